"""The process that compile children are forked from, and the children.

The template imports the compiler once, has one thread, reads nothing that a client sent, and waits for orders on a socket: fork a child
that talks on the descriptor sent along, watch it, kill it. It looks at the memory and time of the children that work every 20 ms, reaps
them and reports their end. A child serves one job (`frames`) inside the sandbox, and ends. The template ends with the front end, children
end with the template.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from disc_tf_server import sandbox
from disc_tf_server.frames import HEAD, PHASE_CHARACTERS, PROGRESS_EVERY_S, frame, printable

#: seconds between looks at the children that work
LOOK_S = 0.02
#: threads that a compile may have (one a target, and what LLVM and numpy start)
MAX_THREADS = 128
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

#: (graph, outputs, feeds, options message, dry_run=, progress=) -> CompileResult message; or its bytes
Compile = Callable[..., Any]


@dataclass
class Watched:
    """A child of the template. limits: (wall, cpu, memory), from when it was given its job."""

    id: int
    pid: int
    pidfd: int
    stderr: int
    limits: tuple[float, float, int] | None = None
    began: float = 0.0
    base: int = 0
    killed: str = ""
    oom_kills: int = 0


@dataclass(frozen=True)
class ProcessUse:
    """cpu: seconds; rss: bytes."""

    cpu: float
    rss: int
    threads: int


def process_use(pid: int) -> ProcessUse | None:
    """What a process uses; None if it is not there."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return ProcessUse((int(fields[11]) + int(fields[12])) / _TICK, int(fields[21]) * _PAGE, int(fields[17]))


def _oom_kills() -> int:
    """How often the kernel has ended a process for want of memory."""
    with contextlib.suppress(OSError, ValueError), open("/proc/vmstat", "rb") as file:
        for line in file:
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return 0


class Template:
    """The template's loop. control: a SOCK_SEQPACKET socket, one JSON object a message."""

    def __init__(self, control: socket.socket, compile: Compile) -> None:
        self._control, self._compile = control, compile
        self._children: dict[int, Watched] = {}
        self._roots = sandbox.code_roots(m for name, m in list(sys.modules.items()) if "." not in name)
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def run(self) -> None:
        """Serves orders until the front end is gone."""
        self._tell({"ready": True})
        while True:
            busy = any(c.limits for c in self._children.values())
            events = {fd for fd, _ in self._poll.poll(LOOK_S * 1e3 if busy else None)}
            if self._control.fileno() in events and not self._order():
                return
            for child in list(self._children.values()):
                if child.pidfd in events:
                    self._reap(child)
                elif child.limits:
                    self._look(child)

    def _tell(self, message: dict[str, Any]) -> None:
        self._control.send(json.dumps(message).encode())

    def _order(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self._control, 1 << 16, 1)
        if not data:
            return False
        order = json.loads(data)
        if "fork" in order:
            self._fork(order["fork"], fds[0])
            os.close(fds[0])
        elif (child := self._children.get(order.get("watch", order.get("kill", -1)))) is None:
            pass  # it has ended, the report is on its way
        elif "watch" in order:
            use = process_use(child.pid)
            child.base = use.rss if use else 0
            child.began, child.oom_kills = time.monotonic(), _oom_kills()
            child.limits = (order["wall"], (use.cpu if use else 0) + order["cpu"], order["memory"])
        else:
            self._kill(child, "asked")
        return True

    def _fork(self, id: int, fd: int) -> None:
        stderr = os.memfd_create("stderr", os.MFD_CLOEXEC)
        me = os.getpid()
        try:
            pid = os.fork()
        except OSError as e:
            os.close(stderr)
            self._tell({"ended": id, "why": "fork", "text": e.strerror or str(e)})
            return
        if pid == 0:
            with contextlib.suppress(BaseException):  # nothing may come back into the template's loop
                _child(me, fd, stderr, self._compile, self._roots)
            os._exit(1)
        child = Watched(id, pid, os.pidfd_open(pid), stderr)
        self._children[id] = child
        self._poll.register(child.pidfd, select.POLLIN)

    def _kill(self, child: Watched, why: str) -> None:
        child.killed = child.killed or why
        signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)

    def _look(self, child: Watched) -> None:
        use = process_use(child.pid)
        if use is None or child.limits is None or child.killed:
            return
        wall, cpu, memory = child.limits
        if use.rss - child.base > memory:
            self._kill(child, "memory")
        elif use.cpu > cpu:
            self._kill(child, "cpu")
        elif time.monotonic() - child.began > wall:
            self._kill(child, "wall")
        elif use.threads > MAX_THREADS:
            self._kill(child, "threads")

    def _reap(self, child: Watched) -> None:
        _, status, usage = os.wait4(child.pid, 0)
        cpu = usage.ru_utime + usage.ru_stime
        why = child.killed
        if not why and os.WIFSIGNALED(status):
            if os.WTERMSIG(status) == signal.SIGXCPU or (child.limits and cpu > child.limits[1]):
                why = "cpu"
            elif os.WTERMSIG(status) == signal.SIGKILL and _oom_kills() > child.oom_kills and child.limits:
                why = "memory"
            else:
                why = f"signal {signal.Signals(os.WTERMSIG(status)).name}"
        elif not why:
            why = f"exit {os.WEXITSTATUS(status)}"
        text = os.pread(child.stderr, sandbox.STDERR_BYTES, 0).decode(errors="replace")
        self._poll.unregister(child.pidfd)
        os.close(child.pidfd)
        os.close(child.stderr)
        del self._children[child.id]
        self._tell({"ended": child.id, "why": why, "text": printable(text[-4000:])})


# ---- the child ----


def _read(fd: int, size: int) -> bytes:
    """Exactly so many bytes; EOFError."""
    parts = bytearray()
    while len(parts) < size:
        part = os.read(fd, min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view[: 1 << 20]) :]


def _read_frame(fd: int) -> bytes:
    _, size = HEAD.unpack(_read(fd, HEAD.size))
    return _read(fd, size)


class _Progress:
    """Sends progress, not too often; a new phase always."""

    def __init__(self, fd: int) -> None:
        self._fd, self._phase, self._sent = fd, "", 0.0

    def __call__(self, phase: str, fraction: float, text: str = "") -> None:
        now = time.monotonic()
        if phase != self._phase or now - self._sent > PROGRESS_EVERY_S:
            self._phase, self._sent = phase, now
            _write(self._fd, frame(b"P", json.dumps([phase[:PHASE_CHARACTERS], float(fraction), text[:500]]).encode()))


def _child(parent: int, channel: int, stderr: int, compile: Compile, roots: Sequence[str]) -> None:
    """The life of a child: from here on nothing of the template is used but its code."""
    os.setsid()
    sandbox.die_with_parent(parent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for to, fd in enumerate([fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (null, null, stderr, channel)]):
        os.dup2(fd, to)
    channel = 3
    os.closerange(4, max(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 16))
    sys.stdin = sys.stdout = open(os.devnull, "r+")  # noqa: SIM115
    sys.stderr = sys.stdout
    with contextlib.suppress(OSError):
        os.nice(5)
    try:
        head = json.loads(_read_frame(channel))
    except EOFError:
        os._exit(0)  # not needed any more
    sandbox.limit_resources(head["cpu_s"], head["data_bytes"])
    sandbox.enter(roots)
    _serve(channel, head, compile)
    os._exit(0)


def _serve(channel: int, head: dict[str, Any], compile: Compile) -> None:
    from disc_tf.frontend.errors import GraphError
    from disc_tf.options import OptionError

    graph, packed = _read_frame(channel), _read_frame(channel)
    try:
        from disc_tf.remote.messages import message_class

        options = message_class("CompileOptions").FromString(packed)
        progress = _Progress(channel)
        result = compile(graph, tuple(head["outputs"]), tuple(head["feeds"]), options, dry_run=head["dry_run"], progress=progress)
        answer = frame(b"R", result if isinstance(result, bytes) else result.SerializeToString(deterministic=True))
    except (GraphError, OptionError) as e:
        answer = _error("REFUSED", str(e))
    except MemoryError:
        answer = _error("OUT_OF_MEMORY", "no memory left")
    except RecursionError:
        answer = _error("REFUSED", "the graph is nested too deeply")
    except Exception as e:
        answer = _error("DEFECT", _where(e))
    _write(channel, answer)


def _error(reason: str, message: str) -> bytes:
    return frame(b"E", json.dumps({"reason": reason, "message": printable(message)}).encode())


def _where(e: BaseException) -> str:
    """An exception with the places it came through, innermost last."""
    places, tb = [], e.__traceback__
    while tb is not None:
        code = tb.tb_frame.f_code
        places.append(f"{os.path.basename(code.co_filename)}:{tb.tb_lineno}")
        tb = tb.tb_next
    return f"{type(e).__name__}: {e} (at {' > '.join(places[-8:])})"


def _imported(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def main(control: int, parent: int, function: str, warm_up: str) -> None:
    """The template. control: the socket's descriptor. function, warm_up: "module:name" of the compile function and of one to call first
    ("": none)."""
    sandbox.die_with_parent(parent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the front end decides when it is over
    compile = _imported(function)
    if warm_up:
        _imported(warm_up)()
    importlib.import_module("disc_tf.remote.messages").message_class("CompileOptions")
    importlib.import_module("disc_tf.options")
    gc.collect()
    gc.freeze()  # children share these pages as long as nobody writes to them
    Template(socket.socket(fileno=control), compile).run()


