"""A `ChildPool` on a Ray cluster: each slot is an actor in a worker of the cluster, with a template and sandboxed children of its own.

Workers need the same version of this package as the front end. Keys and stores stay at the front end: a worker gets a job and gives bytes.
A worker that dies in the middle of a job costs time, not the job: it is given to another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from typing import Any

from disc_tf.extras import missing_packages
from disc_tf_server.children import COMPILE, WARM_UP, ForkedChildPool
from disc_tf_server.fingerprint import fingerprint
from disc_tf_server.interfaces import ChildFailed, Job, OnProgress, Reason

log = logging.getLogger("disc_tf_server.ray")

#: workers that may die under one job
_LOSSES = 3
#: a long poll, and what an answer may take beyond it
_POLL_S, _ANSWER_S = 2.0, 60.0
#: until a worker is found and ready; its first start may install nothing, but it imports the compiler
_START_S = 180.0
_CONNECT_S = 10.0
_PROGRESS = 100
Outcome = tuple[str, Any, str]


class CompileHost:
    """What runs in a Ray worker. One job at a time; everything in and out is plain data."""

    def __init__(self, function: str, warm_up: str, max_result: int, require_sandbox: bool) -> None:
        self._pool = ForkedChildPool(1, function=function, warm_up=warm_up, max_result=max_result, require_sandbox=require_sandbox)
        self._id, self._task = "", None
        self._progress: list[tuple[str, float, str]] = []
        self._changed = asyncio.Event()

    async def start(self) -> tuple[bytes, int, bool, int]:
        """Starts the template: (fingerprint of the compiler, process id, seccomp, Landlock)."""
        await self._pool.start()
        return fingerprint(), os.getpid(), self._pool.sandbox.seccomp, self._pool.sandbox.landlock

    async def begin(self, id: str, job: Job) -> None:
        """Begins a job; what ran before is cancelled."""
        await self.cancel(self._id)
        self._id, self._progress = id, []
        self._task = asyncio.create_task(self._run(job))
        self._task.add_done_callback(lambda _: self._changed.set())

    async def _run(self, job: Job) -> Outcome:
        def say(*progress: Any) -> None:
            self._progress = [*self._progress[-_PROGRESS:], progress]
            self._changed.set()

        try:
            return "ok", await self._pool.run(job, say), ""
        except ChildFailed as e:
            return "failed", e.reason.value, e.message

    async def wait(self, id: str, seconds: float) -> tuple[list[tuple[str, float, str]], Outcome | None]:
        """Progress since the last call, and the outcome if there is one, as soon as there is either."""
        if id != self._id or self._task is None:
            return [], ("failed", Reason.UNAVAILABLE.value, "the worker has another job")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()
        progress, self._progress = self._progress, []
        if not self._task.done():
            return progress, None
        # the outcome stays for a poll whose answer was lost
        self._changed.set()
        return progress, self._task.result()

    async def cancel(self, id: str) -> None:
        """Kills the job's child."""
        if id == self._id and self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._id, self._task = "", None
            self._changed.clear()


class RayChildPool:
    """See `ChildPool`. address: ``ray://HOST:PORT``, or anything else that ``ray.init`` takes. size: jobs at a time (a processor each).

    `MissingPackages` if Ray is not installed.
    """

    def __init__(
        self, address: str, size: int, *, function: str = COMPILE, warm_up: str = WARM_UP, max_result: int = 256 << 20,
        require_sandbox: bool = False,
    ) -> None:  # fmt: skip
        try:
            import ray
        except ImportError as e:
            raise missing_packages("a ray:// executor", "ray", ["ray"]) from e
        if size < 1:
            raise ValueError(f"{size} compile children: at least 1 is needed")
        self._ray, self._address, self._size = ray, address, size
        self._arguments = function, warm_up, max_result, require_sandbox
        self._slots = asyncio.Semaphore(size)
        self._idle: list[Any] = []
        self._all: list[Any] = []
        self._closed = False

    @property
    def size(self) -> int:
        return self._size

    async def start(self) -> None:
        listens = False

        def connect() -> None:
            nonlocal listens
            if self._address.startswith("ray://"):
                # Ray itself tries for minutes
                host, _, port = self._address.removeprefix("ray://").rpartition(":")
                socket.create_connection((host, int(port)), _CONNECT_S).close()
                listens = True
            self._ray.init(address=self._address, namespace="disc_tf", log_to_driver=False, logging_level=logging.ERROR)

        try:
            await asyncio.to_thread(connect)
        except Exception as e:  # it has errors of many kinds
            message = f"the Ray cluster {self._address} cannot be reached: {e}"
            if listens:  # Ray does not say why it then gave up
                message += "; it listens: if it wants a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN in this server's environment"
            raise ChildFailed(Reason.UNAVAILABLE, message) from e
        self._idle.append(await self._new_host())

    async def _new_host(self) -> Any:
        """A worker that is ready. ChildFailed."""
        if self._closed:
            raise ChildFailed(Reason.UNAVAILABLE, "the server is shutting down")

        def make() -> Any:
            return self._ray.remote(num_cpus=1, max_restarts=0)(CompileHost).remote(*self._arguments)

        host = None
        try:
            host = await asyncio.to_thread(make)
            self._all.append(host)
            version, pid, seccomp, landlock = await self._answer(host.start.remote(), _START_S)
        except (self._ray.exceptions.RayError, TimeoutError, ConnectionError) as e:
            self._drop(host)
            raise ChildFailed(Reason.UNAVAILABLE, f"no worker of the Ray cluster is ready: {type(e).__name__}") from e
        except BaseException:
            self._drop(host)
            raise
        if version != fingerprint():
            self._drop(host)
            message = "a worker of the Ray cluster has another version of disc-tf or of its packages: install the same"
            raise ChildFailed(Reason.UNAVAILABLE, message)
        log.info("a Ray worker is ready (process %d, seccomp %s, Landlock %d)", pid, seccomp, landlock)
        return host

    async def _answer(self, reference: Any, seconds: float) -> Any:
        """What a call gave; Ray's errors. (`future` is there with and without Ray's client protocol.)"""
        async with asyncio.timeout(seconds):
            return await asyncio.wrap_future(reference.future())

    def _drop(self, host: Any) -> None:
        if host is not None and host in self._all:
            self._all.remove(host)
            with contextlib.suppress(Exception):
                self._ray.kill(host)

    async def run(self, job: Job, on_progress: OnProgress | None = None) -> bytes:
        async with self._slots:
            for loss in range(1, _LOSSES + 1):
                host = self._idle.pop() if self._idle else await self._new_host()
                try:
                    outcome = await self._run(host, job, on_progress or (lambda *_: None))
                except (self._ray.exceptions.RayError, ConnectionError, TimeoutError) as e:
                    self._drop(host)
                    log.warning("a Ray worker was lost in the middle of a job: %s", type(e).__name__)
                    if loss == _LOSSES:
                        raise ChildFailed(Reason.UNAVAILABLE, "workers of the Ray cluster were lost again and again") from e
                    continue
                except BaseException:
                    # cancelled: the child must not go on, and what the worker is doing is not known
                    self._drop(host)
                    raise
                self._idle.append(host)
                kind, value, message = outcome
                if kind == "ok":
                    return value
                raise ChildFailed(Reason(value), message)
        raise AssertionError

    async def _run(self, host: Any, job: Job, on_progress: OnProgress) -> Outcome:
        id = secrets.token_hex(8)
        await self._answer(host.begin.remote(id, job), _ANSWER_S)
        async with asyncio.timeout(job.wall_s + _ANSWER_S):  # the template there keeps the job's own time
            while True:
                progress, outcome = await self._answer(host.wait.remote(id, _POLL_S), _POLL_S + _ANSWER_S)
                for entry in progress:
                    on_progress(*entry)
                if outcome is not None:
                    return outcome

    async def close(self) -> None:
        self._closed = True

        def end() -> None:
            for host in list(self._all):
                self._drop(host)
            self._ray.shutdown()

        await asyncio.to_thread(end)
