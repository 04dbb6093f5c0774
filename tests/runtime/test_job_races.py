"""Jobs that are fed, cancelled and dropped by several threads at a time: one thread at a time is inside of a run, and it is ended once."""

from __future__ import annotations

import concurrent.futures
import ctypes
import functools
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disc_tf.runtime import Runner, _capi, counters, load
from disc_tf.runtime import executable as runtime
from disc_tf.runtime.host import Host
from tests.runtime import staged_models as models

ROWS = 3
RNG = np.random.default_rng(11)


class Watched:
    """The runtime's library, with a record of every call that would have used freed memory; such calls are not made."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._lock = threading.Lock()
        self.inside: set[int] = set()
        self.live: set[int] = set()
        self.wrong: list[str] = []
        self.began = 0
        self.before_advance: Callable[[], object] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def begin(self, run: Callable[..., Any], *args: Any) -> Any:
        """`_capi.Capsules.run`, which a run ends with at the latest."""
        place = run(*args)
        with self._lock:
            self.live.add(handle_in(_capi.capsules().address(place)))
            self.began += 1
        return place

    def _call(self, what: str, handle: int, call: Callable[[], int], *, last: bool = False) -> int:
        with self._lock:
            if handle in self.inside or handle not in self.live:
                self.wrong.append(f"{what} of a run that {'another thread is in' if handle in self.inside else 'has ended'}")
                return 0
            self.inside.add(handle)
        try:
            if what == "advance":
                self.before_advance()
            with self._lock:
                if last:
                    self.live.discard(handle)
                    self.inside.discard(handle)
            return call()
        finally:
            if not last:
                with self._lock:
                    self.inside.discard(handle)

    def disc_run_set_input(self, handle: int, *args: Any) -> int:
        return self._call("set_input", handle, lambda: self._library.disc_run_set_input(handle, *args))

    def disc_run_advance(self, handle: int, remaining: Any) -> int:
        return self._call("advance", handle, lambda: self._library.disc_run_advance(handle, remaining))

    def disc_host_end(self, place: int) -> int:
        return self._call("end", handle_in(place), lambda: self._library.disc_host_end(place), last=True)


def handle_in(place: int) -> int:
    return ctypes.c_void_p.from_address(place).value or 0


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("races") / "chain.disc"
    models.build(models.chain, out).close()
    return out


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    out, capsules = Watched(_capi.library()), _capi.capsules()
    monkeypatch.setattr(_capi, "library", lambda: out)
    monkeypatch.setattr(capsules, "run", functools.partial(out.begin, capsules.run))
    return out


@pytest.fixture
def runner(path: Path, watched: Watched) -> Iterator[Runner]:
    with load(path) as out:
        yield out


@pytest.fixture
def eager_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def live_hosts() -> int:
    """What runs of the process hold."""
    return sum(isinstance(x, Host) for x in gc.get_objects())


def eventually(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        gc.collect()
        time.sleep(0.005)
    return condition()


INPUTS = {n: RNG.standard_normal((ROWS, 32)).astype(np.float32) for n in "abc"}


@pytest.mark.usefixtures("eager_switches")
def test_feeding_cancelling_and_dropping_by_many_threads(runner: Runner, watched: Watched) -> None:
    """Each job: a thread for each input, and one that cancels early, late or never. Answers are right or the job was cancelled."""
    want = {n: x.tobytes() for n, x in runner.run(INPUTS).items()}
    before, end = live_hosts(), time.monotonic() + 1.2
    failures: list[object] = []
    ended = {"well": 0, "cancelled": 0}
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for seed in range(10_000):
            if time.monotonic() > end:
                break
            rng = np.random.default_rng(seed)
            job = runner.start()

            def cancel(job: Any = job, after: float = max(0.0, rng.uniform(-1e-3, 1e-3)), never: bool = seed % 3 == 0) -> None:
                time.sleep(after)
                if not never:
                    job.cancel()

            calls: list[Callable[[], object]] = [lambda n=n, job=job: job.feed(n, INPUTS[n]) for n in rng.permutation(list("abc"))]
            calls.insert(int(rng.integers(0, 4)), cancel)
            concurrent.futures.wait([pool.submit(c) for c in calls])
            if seed % 7 == 5:
                continue  # nobody asks
            try:
                failures.extend(n for n, x in job.result(30).items() if x.tobytes() != want[n])
                ended["well"] += 1
            except CancelledError:
                ended["cancelled"] += 1
            except Exception as e:
                failures.append(e)
            if len(concurrent.futures.wait(job.outputs.values(), 30).done) != 3:
                failures.append("an output that never is done")
    del job, calls, cancel
    assert not failures and not watched.wrong
    assert min(ended.values()) > 5, ended
    assert eventually(lambda: live_hosts() <= before), "runs that never ended"


class Hooked:
    """A lock that tells when it was released."""

    def __init__(self, lock: Any, released: Callable[[], object]) -> None:
        self._lock, self._released = lock, released

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._released()


def test_a_driver_that_stops_leaves_the_next_ones_run_alone(runner: Runner, watched: Watched) -> None:
    """The first driver is held just after it stopped, until a second one is in the run and the job is cancelled."""
    job = runner.start()
    assert eventually(lambda: not job._driving)
    second, go_on = threading.Event(), threading.Event()
    held: list[int] = []

    def released() -> None:
        me = threading.get_ident()
        if job._driving or held or not threading.current_thread().name.startswith("disc_tf_run"):
            return
        held.append(me)  # this driver has let go; it must not look at the run again

        def in_the_run() -> None:
            second.set()
            go_on.wait(30)

        watched.before_advance = in_the_run
        job.feed("b", INPUTS["b"])
        assert second.wait(30)
        job.cancel()

    job._lock = Hooked(job._lock, released)  # type: ignore[assignment]
    job.feed("a", INPUTS["a"])
    assert second.wait(30)
    assert eventually(job.done)
    time.sleep(0.05)  # the first driver goes on
    assert not watched.wrong and watched.live
    go_on.set()
    assert eventually(lambda: not watched.live) and not watched.wrong


def test_cancelling_from_within(runner: Runner, watched: Watched) -> None:
    """By who is told of an output, in the driving thread."""
    jobs: list[Any] = []
    job = runner.start(on_output=lambda *_: jobs[0].cancel())
    jobs.append(job)
    for n in "abc":
        job.feed(n, INPUTS[n])
    with pytest.raises(CancelledError):
        job.result(30)
    assert eventually(lambda: not watched.live) and not watched.wrong


def test_no_thread_to_drive_is_the_failure_of_the_run(runner: Runner, watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    before = live_hosts()

    def no_thread(_work: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(runner, "_submit", no_thread)
    job = runner.run_async(INPUTS)
    for future in (job._all, *job.outputs.values()):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            future.result(30)
    del job, future
    assert eventually(lambda: live_hosts() <= before) and not watched.wrong


def test_waiting_for_cancelled_outputs_ends(runner: Runner) -> None:
    job = runner.run_async({**INPUTS, "c": Future()})
    job.outputs["l9"].cancel()  # by who does not want it
    job.outputs["l6"].result(30)
    threading.Timer(0.02, job.cancel).start()
    everything: list[Future[Any]] = [*job.outputs.values(), job._all]
    assert not concurrent.futures.wait(everything, 30).not_done


# ---- closed while in use ------------------------------------------------------------------------------------------------


def test_starting_a_closed_model_leaves_nothing(runner: Runner) -> None:
    before = live_hosts()
    runner.close()
    for start in (runner.start, lambda: runner.run_async(INPUTS), lambda: runner.run(INPUTS)):
        with pytest.raises(ValueError, match="was closed"):
            start()
    assert live_hosts() == before


def test_a_run_that_cannot_begin_says_why(runner: Runner, watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    before = live_hosts()
    real = _capi.capsules().run

    def failing(*args: Any) -> Any:
        place = real(*args)
        watched.disc_host_end(_capi.capsules().address(place))
        return place

    monkeypatch.setattr(_capi.capsules(), "run", failing)
    monkeypatch.setattr(watched, "disc_last_error", lambda: b"out of memory", raising=False)
    monkeypatch.setattr(watched, "disc_last_error_code", lambda: 8, raising=False)
    with pytest.raises(runtime.DiscError, match="RESOURCE_EXHAUSTED: out of memory"):
        runner.start()
    assert live_hosts() == before


def test_closing_waits_for_who_is_inside(path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handle that a call was given stays good until the call has returned."""
    runner = load(path)
    execute, live = watched.disc_execute, counters()["images_live"]

    def slow(*args: Any) -> int:
        runner.close()
        assert counters()["images_live"] == live
        return execute(*args)

    monkeypatch.setattr(watched, "disc_execute", slow, raising=False)
    assert runner.run(INPUTS).keys() == {"l9", "l3", "l6"}
    assert counters()["images_live"] == live - 1
    with pytest.raises(ValueError, match="was closed"):
        runner.run(INPUTS)
