"""The compiler process, seen from the program that it works for."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
from typing import IO, Any

from disc_tf.just_in_time.work import Request, Result

_LENGTH = struct.Struct("<Q")
#: no message is longer: a graph cannot be
_LIMIT = 1 << 33


class CompilerGone(RuntimeError):
    """The compiler process ended, or did not start; the message says how."""


def write_message(stream: IO[bytes], head: dict[str, Any], data: bytes) -> None:
    text = json.dumps(head).encode()
    for part in (_LENGTH.pack(len(text)), text, _LENGTH.pack(len(data)), data):
        view = memoryview(part)
        while view:
            view = view[stream.write(view) :]
    stream.flush()


def read_message(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """None at the end of the stream."""
    parts = []
    for _ in range(2):
        head = _read(stream, _LENGTH.size)
        data = _read(stream, _LENGTH.unpack(head)[0]) if head is not None else None
        if data is None:
            return None
        parts.append(data)
    return json.loads(parts[0]), parts[1]


def _read(stream: IO[bytes], size: int) -> bytes | None:
    """Exactly ``size`` bytes; None if there are not so many."""
    if size > _LIMIT:
        return None
    parts = []
    while size:
        part = stream.read(min(size, 1 << 24))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class Child:
    """One compiler process; requests one at a time. Raises `CompilerGone` if it cannot be started."""

    def __init__(self) -> None:
        if not sys.executable:
            raise CompilerGone("there is no Python interpreter to start")
        # The program's own search path: it may have found this package in a way that a new interpreter does not.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path)}
        # -P: what lies in the working directory is not a module
        command = [sys.executable, "-P", "-m", "disc_tf.just_in_time.worker", str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                # without buffers, which would have locks that a fork may leave taken
                command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
            )
        except OSError as e:
            raise CompilerGone(f"the compiler process could not be started: {e}") from e

    def compile(self, request: Request) -> Result:
        """Raises `CompilerGone`, or RuntimeError with the compiler's own words."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        head = {"fetches": request.fetches, "options": dict(request.options), "any_size": request.any_size}
        try:
            write_message(process.stdin, head, request.graph)
            answer = read_message(process.stdout)
        except (OSError, ValueError) as e:
            raise CompilerGone(f"the compiler process is gone: {e}") from e
        if answer is None:
            code = process.wait()
            how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
            raise CompilerGone(f"the compiler process {how}")
        found, graph = answer
        if "error" in found:
            raise RuntimeError(found["error"])
        return Result.of(found["report"].encode(), graph)

    def kill(self) -> None:
        """From any thread; a request that is running raises `CompilerGone` in its own."""
        with contextlib.suppress(OSError):
            self._process.kill()

    def disown(self) -> None:
        """In a forked process: it is the parent's."""
        self._process.returncode = 0  # not ours to wait for
        self._hang_up()

    def close(self) -> None:
        """Let it end by itself, at once if it is idle."""
        self._hang_up()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
            return
        self.kill()
        self._process.wait()

    def _hang_up(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
