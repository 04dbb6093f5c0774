"""A compile function for the tests of the pool: ``outputs[0]`` says how it behaves. Imported in children only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from disc_tf.frontend.errors import GraphError


def attempt(action: Callable[[], Any]) -> str:
    """"done", or the name of the error."""
    try:
        action()
    except OSError as e:
        return type(e).__name__
    return "done"


def forbidden(where: str, only: Sequence[str] = ()) -> dict[str, str]:
    """What a child tries that it must not; ``where``: a directory of the test with a file "secret" in it. only: these alone."""
    secret = Path(where, "secret")
    tries: dict[str, Callable[[], Any]] = {
        "write": lambda: Path(where, "new").write_text("x"),
        "append": lambda: secret.open("a"),
        "read": secret.read_text,
        "list": lambda: os.listdir(where),
        "unlink": secret.unlink,
        "mkdir": lambda: os.mkdir(os.path.join(where, "d")),
        "link": lambda: os.symlink("a", os.path.join(where, "l")),
        "environment": lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
        "tcp": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
        "udp": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "unix": lambda: socket.socket(socket.AF_UNIX),
        "fork": os.fork,
        "exec": lambda: subprocess.run(["/bin/true"], check=True),
        "exec_self": lambda: os.execv(sys.executable, [sys.executable, "-c", ""]),
        "kill": lambda: os.kill(os.getppid(), 0),
        "memfd": lambda: os.memfd_create("x"),
        "descriptors": lambda: [os.fstat(fd) for fd in range(4, 64)],
    }
    return {name: attempt(action) for name, action in tries.items() if not only or name in only}


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def compile(graph: bytes, outputs: Sequence[str], feeds: Sequence[str], options: Any, *, dry_run: bool, progress: Callable) -> Any:
    kind, *rest = outputs
    progress("begin", 0.5, f"{len(graph)} bytes, {len(options.targets)} targets, dry {dry_run}, feeds {list(feeds)}")
    if kind == "echo":
        return bytes(reversed(graph))
    if kind == "pid":
        return f"{os.getpid()} {os.getpgrp()} {sorted(os.environ)}".encode()
    if kind == "forbidden":
        return repr(forbidden(rest[0])).encode()
    if kind == "threads":
        done: list[int] = []
        threads = [threading.Thread(target=lambda i=i: done.append(i)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        import json.tool  # an import that nobody has made yet works in the sandbox

        return f"{sorted(done)} {json.tool.__name__}".encode()
    if kind == "refuse":
        raise GraphError("the graph \x1b[31mis wrong\n here")
    if kind == "defect":
        raise KeyError("something")
    if kind == "hang":
        with contextlib.suppress(BaseException):
            signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))
        time.sleep(600)
    if kind == "slow":
        time.sleep(2)
    if kind == "burn":
        burn(600)
    if kind == "hog":
        kept = []
        while True:
            kept.append(b"x" * (8 << 20))
    if kind == "one_big":
        return bytes(1 << 40)
    if kind == "crash":
        os.write(2, b"LLVM ERROR: that was \x07 wrong\n")
        ctypes.string_at(0) if rest else os.abort()
    if kind == "exit":
        os._exit(3)
    if kind == "nested":
        return deep(0)
    if kind == "chatter":
        os.write(2, b"y" * 200_000)
        print("z" * 1000)
    if kind == "garbage":
        os.write(3, b"\xff" * 100)
        time.sleep(600)
    if kind == "bad_progress":
        os.write(3, b"P\x03\x00\x00\x00[1]")
        time.sleep(600)
    if kind == "huge":
        os.write(3, b"R\xff\xff\xff\xff")
        time.sleep(600)
    if kind == "flood":
        while True:
            os.write(3, b"P\x09\x00\x00\x00[\"\",0,\"\"]" * 100)
    return b"done"


def deep(n: int) -> Any:
    return deep(n + 1)
