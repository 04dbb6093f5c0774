"""The pool of compile children: single-use processes in a sandbox, started ahead of need. See `child` for the other side."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from disc_tf_server import sandbox
from disc_tf_server.frames import CHILD_FRAMES, HEAD, PHASE_CHARACTERS, printable
from disc_tf_server.interfaces import ChildFailed, Job, OnProgress, Reason

log = logging.getLogger("disc_tf_server.children")

COMPILE = "disc_tf.remote.compile:compile_skeleton"
WARM_UP = "disc_tf_server.warm:compile_once"
#: libraries must not start threads in the process that children are forked from
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "LC_ALL": "C.UTF-8"}
#: arguments: the socket's descriptor, our process id, the compile function, what to call before, the module path
_BOOT = """
import json, sys
sys.path[:] = json.loads(sys.argv[5])
from disc_tf_server.child import main
main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
"""
_START_S = 120.0
_END_S = 5.0
#: frames of progress in one job, from whoever floods
_MAX_FRAMES = 100_000
#: what a child may say of itself
_TOLD = (Reason.REFUSED, Reason.OUT_OF_MEMORY, Reason.DEFECT)


@dataclass
class _Child:
    """A child that waits or works."""

    id: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    ended: asyncio.Future[dict[str, Any]]
    template: _Template


class _Template:
    """The process that children are forked from, seen from the front end."""

    def __init__(self, function: str, warm_up: str) -> None:
        self._functions = function, warm_up
        self._children: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next = 0
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ready.add_done_callback(lambda f: f.cancelled() or f.exception())  # it may be that nobody waits for it
        self.alive = False

    async def start(self) -> None:
        """Returns when it is ready to fork. ChildFailed."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        paths = json.dumps([os.path.abspath(p) for p in sys.path if p])
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-c", _BOOT, str(theirs.fileno()), str(os.getpid()), *self._functions, paths,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, env=_ENVIRONMENT, cwd="/", pass_fds=[theirs.fileno()],
                start_new_session=True,
            )  # fmt: skip
        except OSError as e:
            ours.close()
            raise ChildFailed(Reason.UNAVAILABLE, f"no compile process can be started: {e}") from e
        finally:
            theirs.close()
        self._control, self.alive = ours, True
        asyncio.get_running_loop().add_reader(ours.fileno(), self._read)
        try:
            async with asyncio.timeout(_START_S):
                await self._ready
        except TimeoutError as e:
            self.kill()
            raise ChildFailed(Reason.UNAVAILABLE, f"the compile process was not ready after {_START_S:g} s") from e

    def _read(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.kill()
            return
        message = json.loads(data)
        if "ready" in message:
            self._ready.set_result(None)
        elif "ended" in message and (future := self._children.pop(message["ended"], None)) and not future.done():
            future.set_result(message)

    def tell(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Sends an order. ChildFailed if it is gone."""
        if not self.alive or self._control is None:
            raise ChildFailed(Reason.UNAVAILABLE, "the process that compile children come from has ended")
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], fds)
        except OSError as e:
            self.kill()
            raise ChildFailed(Reason.UNAVAILABLE, f"the process that compile children come from does not answer: {e}") from e

    async def fork(self) -> _Child:
        """A new child, waiting for its job. ChildFailed."""
        ours, theirs = socket.socketpair()
        self._next += 1
        ended: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        try:
            self.tell({"fork": self._next}, [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        id = self._next
        self._children[id] = ended
        reader, writer = await asyncio.open_connection(sock=ours)
        return _Child(id, reader, writer, ended, self)

    def kill(self) -> None:
        """Ends it; the kernel ends its children with it."""
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
        self.alive = False
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        if not self._ready.done():
            self._ready.set_exception(ChildFailed(Reason.UNAVAILABLE, "the compile process ended while it started; the log has its error"))
        for future in self._children.values():
            if not future.done():
                future.set_result({"why": "template"})
        self._children.clear()

    async def wait(self) -> None:
        if self._process is not None:
            await self._process.wait()


class ForkedChildPool:
    """A `ChildPool`.

    function: "module:name" of the compile function, imported in the children only; warm_up: of one that is called before they are forked.
    max_result: bytes. require_sandbox: do not start where the kernel cannot keep a child from files and the network (seccomp and Landlock).
    """

    def __init__(
        self, size: int, *, function: str = COMPILE, warm_up: str = WARM_UP, max_result: int = 256 << 20, require_sandbox: bool = False
    ) -> None:
        if size < 1:
            raise ValueError(f"{size} compile children: at least 1 is needed")
        self._size, self._functions, self._max_result = size, (function, warm_up), max_result
        self._slots = asyncio.Semaphore(size)
        self._template: _Template | None = None
        self._starting, self._refilling = asyncio.Lock(), asyncio.Lock()
        self._spare: list[_Child] = []
        self._refills: set[asyncio.Task[None]] = set()
        self._closed = False
        self.sandbox = sandbox.available()
        if require_sandbox and not self.sandbox.whole:
            raise ValueError(
                f"this kernel has no whole sandbox for compile children (seccomp: {self.sandbox.seccomp}, Landlock: "
                f"{self.sandbox.landlock}); use Linux 5.13 or newer on x86-64, or switch the requirement off"
            )

    @property
    def size(self) -> int:
        return self._size

    async def start(self) -> None:
        await self._refill()

    async def _living(self) -> _Template:
        if self._closed:
            raise ChildFailed(Reason.UNAVAILABLE, "the server is shutting down")
        async with self._starting:
            if self._template is None or not self._template.alive:
                for child in self._spare:
                    child.writer.close()
                self._spare.clear()
                self._template = None
                template = _Template(*self._functions)
                try:
                    await template.start()
                except BaseException:
                    template.kill()
                    raise
                self._template = template
            return self._template

    async def _refill(self) -> None:
        async with self._refilling:
            while len(self._spare) < min(self._size, 2):
                template = await self._living()
                self._spare.append(await template.fork())

    def _refill_later(self) -> None:
        async def refill() -> None:
            with contextlib.suppress(ChildFailed):  # the next job says what is wrong
                await self._refill()

        task = asyncio.create_task(refill())
        self._refills.add(task)
        task.add_done_callback(self._refills.discard)

    async def _take(self) -> _Child:
        template = await self._living()
        while self._spare:
            child = self._spare.pop()
            if child.template is template and not child.ended.done():
                return child
            child.writer.close()
        return await template.fork()

    async def run(self, job: Job, on_progress: OnProgress | None = None) -> bytes:
        async with self._slots:
            child = await self._take()
            self._refill_later()
            try:
                return await self._run(child, job, on_progress or (lambda *_: None))
            finally:
                child.writer.close()
                with contextlib.suppress(ChildFailed):
                    child.template.tell({"kill": child.id})
                # the slot is free when the process is gone
                _, late = await asyncio.wait([child.ended], timeout=_END_S)
                if late:
                    log.error("a compile child does not end: its template is killed")
                    child.template.kill()

    async def _run(self, child: _Child, job: Job, on_progress: OnProgress) -> bytes:
        child.template.tell({"watch": child.id, "wall": job.wall_s, "cpu": job.cpu_s, "memory": job.memory_bytes})
        head = {
            "outputs": job.outputs, "feeds": job.feeds, "dry_run": job.dry_run,
            "cpu_s": job.cpu_s, "data_bytes": 2 * job.memory_bytes + (2 << 30),
        }  # fmt: skip
        try:
            # the template keeps the time; this is for when it cannot
            async with asyncio.timeout(job.wall_s + _END_S):
                sending = asyncio.create_task(self._send(child, job, json.dumps(head).encode()))
                try:
                    return await self._receive(child, on_progress)
                finally:
                    sending.cancel()
                    await asyncio.wait([sending])
        except TimeoutError as e:
            raise ChildFailed(Reason.OUT_OF_TIME, f"not compiled within {job.wall_s:g} s") from e
        except (EOFError, OSError) as e:
            done, _ = await asyncio.wait([child.ended], timeout=_END_S)
            end = child.ended.result() if done else {"why": "silence"}
            raise _failure(end, job) from e

    @staticmethod
    async def _send(child: _Child, job: Job, head: bytes) -> None:
        with contextlib.suppress(OSError):  # what it means is seen where its answer is read
            for letter, payload in ((b"J", head), (b"G", job.graph), (b"O", job.options)):
                child.writer.write(HEAD.pack(letter, len(payload)))
                for at in range(0, len(payload), 1 << 20):
                    child.writer.write(payload[at : at + (1 << 20)])
                    await child.writer.drain()

    async def _receive(self, child: _Child, on_progress: OnProgress) -> bytes:
        for _ in range(_MAX_FRAMES):
            letter, size = HEAD.unpack(await child.reader.readexactly(HEAD.size))
            most = min(CHILD_FRAMES.get(letter, -1), self._max_result)
            if size > most:
                raise _garbled("is too large" if letter == b"R" else "is not well-formed")
            payload = await child.reader.readexactly(size)
            if letter == b"R":
                return payload
            try:
                content = json.loads(payload)
                if letter == b"P":
                    phase, fraction, text = content
                    fraction = float(fraction) if 0 <= float(fraction) <= 1 else -1.0
                    on_progress(printable(str(phase), PHASE_CHARACTERS), fraction, printable(str(text)))
                else:
                    reason = {r.value: r for r in _TOLD}[content["reason"]]
                    message = printable(str(content["message"]))
                    raise ChildFailed(reason, message)
            except (ValueError, TypeError, KeyError, RecursionError) as e:
                raise _garbled("is not well-formed") from e
        raise _garbled("has no end")

    async def close(self) -> None:
        self._closed = True
        template, self._template = self._template, None
        for task in self._refills:
            task.cancel()
        for child in self._spare:
            child.writer.close()
        self._spare.clear()
        if template is not None:
            template.kill()
            await template.wait()


def _garbled(what: str) -> ChildFailed:
    return ChildFailed(Reason.CRASHED, f"what the compile process answered {what}")


def _failure(end: dict[str, Any], job: Job) -> ChildFailed:
    """Why a child ended without an answer."""
    why, text = end["why"], end.get("text", "")
    if why == "memory" or "out of memory" in text.lower():
        most = job.memory_bytes >> 20
        return ChildFailed(Reason.OUT_OF_MEMORY, f"compiling needs more than the {most} MiB of memory that a request may use")
    if why == "cpu":
        return ChildFailed(Reason.OUT_OF_CPU, f"compiling needs more than the {job.cpu_s:g} s of CPU time that a request may use")
    if why == "wall":
        return ChildFailed(Reason.OUT_OF_TIME, f"not compiled within {job.wall_s:g} s")
    if why in ("template", "fork"):
        return ChildFailed(Reason.UNAVAILABLE, f"the compile process was ended from outside{f': {text}' if text else ''}")
    tail = f": {text[-500:]}" if text else ""
    return ChildFailed(Reason.CRASHED, f"the compile process ended without an answer ({why}){tail}")
