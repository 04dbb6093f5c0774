"""What runs do and when: `profile` has the times of kernel launches, `record` all events, thread by thread."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from disc_tf.runtime import _capi
from disc_tf.runtime.executable import last_error

#: kinds of events by disc_ral.h's numbers; number 0 is an event that is being written
KINDS = ("", "run", "segment", "kernel", "chunk", "library", "arena", "prepare", "output", "send", "extent")
_KERNEL = KINDS.index("kernel")


@dataclass(frozen=True)
class LaunchTime:
    """One kernel launch of a profile: its symbol, tasks and nanoseconds (processor time if one thread ran it, else wall clock)."""

    kernel: str
    tasks: int
    ns: int


@dataclass(frozen=True)
class Event:
    """One thing that the runtime did. Times are nanoseconds of CLOCK_MONOTONIC (`time.monotonic_ns`).

    kind: of `KINDS`; what ``name``, ``first`` and ``second`` are for each kind is written in disc_ral.h (DISC_EVENT_*). executable: the
    artefact's name. thread: the operating system's number. processor_ns: of a launch that one thread ran, else 0.
    """

    kind: str
    name: str
    executable: str
    run: int
    thread: int
    begin_ns: int
    end_ns: int
    processor_ns: int
    first: int
    second: int
    axis: int = 0


@dataclass
class Recording:
    """Filled at the end of the ``with`` of `record`. events: in order of completion; dropped: those that there was no room for;
    threads: names of the threads that are still there."""

    events: list[Event] = field(default_factory=list)
    dropped: int = 0
    threads: dict[int, str] = field(default_factory=dict)


def _start(level: int) -> None:
    if _capi.library().disc_profile(level) != 0:
        raise last_error()


def _events() -> Iterator[_capi.Event]:
    lib, event = _capi.library(), _capi.Event()
    for i in range(lib.disc_profile_event(-1, event)):
        event.struct_size = ctypes.sizeof(event)
        lib.disc_profile_event(i, event)
        if 0 < event.kind < len(KINDS):
            yield event


@contextlib.contextmanager
def profile() -> Iterator[list[LaunchTime]]:
    """Record every kernel launch of the process inside the ``with``; the list is filled at its end, in order of completion.

    Complete only for executables compiled with ``compile_module(..., profile=True)``: others call small kernels without the runtime.
    One profile or recording at a time. Raises `DiscError` if there is no memory for it.
    """
    out: list[LaunchTime] = []
    _start(1)
    try:
        yield out
    finally:
        _start(0)
        for e in _events():
            if e.kind == _KERNEL:
                out.append(LaunchTime((e.name or b"").decode(), e.first, e.processor_ns or e.end_ns - e.begin_ns))
        _start(-1)


@contextlib.contextmanager
def record() -> Iterator[Recording]:
    """Record all that runs of the process do inside the ``with``: segments, launches and which thread did which part of them, memory,
    packed constants, results. Complete as `profile` is: ordinary code calls small kernels itself, and their time is the segment's.

    One at a time. Runs under way at the start are not recorded. Raises `DiscError` if there is no memory for it.
    """
    out = Recording()
    _start(2)
    try:
        yield out
    finally:
        _start(0)
        for e in _events():
            name, executable = (x.decode(errors="replace") if x else "" for x in (e.name, e.executable))
            out.events.append(
                Event(KINDS[e.kind], name, executable, e.run, e.thread, e.begin_ns, e.end_ns, e.processor_ns, e.first, e.second, e.axis)
            )
        out.dropped = _capi.library().disc_profile_dropped()
        out.threads = {t: name for t in {e.thread for e in out.events} if (name := _thread_name(t))}
        _start(-1)


def _thread_name(thread: int) -> str:
    try:
        return Path(f"/proc/self/task/{thread}/comm").read_text().strip()
    except OSError:
        return ""  # it has ended
