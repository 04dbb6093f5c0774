"""A process that has imported TensorFlow and forks children that run models: the import, which takes seconds, is paid once.

    with Server(environment) as server:      # returns at once, while TensorFlow is still being imported
        child = server.start({"NAME": "value"}, stderr)

The server itself never loads a model or starts a session, so each child is as fresh as a new process. What TensorFlow reads while it is
imported (oneDNN on or off) belongs to the server; the rest of the environment to each child. When the starter ends, so does the server
with all of its children.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import IO, Any

#: bytes of a message: a few environment variables
_MOST = 1 << 16
#: of waiting for the end of a child: first and longest pause, seconds
_PAUSE = 0.001, 0.05
_PR_SET_PDEATHSIG = 1


class ServerFailed(RuntimeError):
    """The server does not answer. The message has its last words."""


class Server:
    """The starter's side."""

    def __init__(self, environment: Mapping[str, str], python: str = sys.executable) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        self._lock = threading.Lock()
        # a file, not a pipe: nobody reads while it works
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        with theirs:
            self._process = subprocess.Popen(
                # -P: what is in the working directory is not a module
                [python, "-P", "-m", "disc_tf.testing.fork_server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                env=dict(environment),
                pass_fds=[theirs.fileno()],
            )

    def start(self, environment: Mapping[str, str], stderr: int) -> ForkedChild:
        """A child that runs `disc_tf.testing.tf_worker`. Waits for the import if need be. `ServerFailed`."""
        reading, child_out = os.pipe()
        child_in, writing = os.pipe()
        try:
            pid = self._ask({"start": dict(environment)}, [child_in, child_out, stderr])
        except BaseException:
            os.close(reading)
            os.close(writing)
            raise
        finally:
            os.close(child_in)
            os.close(child_out)
        return ForkedChild(self, int(pid), os.fdopen(writing, "wb"), os.fdopen(reading, "rb"))

    def poll(self, pid: int) -> int | None:
        """The status that a child ended with; None while it runs."""
        return self._ask({"poll": pid})

    def kill(self, pid: int) -> None:
        with contextlib.suppress(ServerFailed):
            self._ask({"kill": pid})

    def _ask(self, message: Any, files: list[int] | None = None) -> Any:
        with self._lock:
            try:
                socket.send_fds(self._control, [json.dumps(message).encode()], files or [])
                reply = self._control.recv(_MOST)
            except OSError:
                reply = b""
        if not reply:
            raise ServerFailed(f"the process that imports TensorFlow ended with status {self._process.wait()}\n{self._last_words()}")
        return json.loads(reply)

    def _last_words(self) -> str:
        if self._stderr.closed:
            return ""
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")[-2000:]

    def close(self) -> None:
        """End the server and its children."""
        self._control.close()
        self._process.kill()  # it may be importing; children end with it
        self._process.wait()
        self._stderr.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ForkedChild:
    """A child of a server, with what is used here of `subprocess.Popen`."""

    def __init__(self, server: Server, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.server, self.pid, self.stdin, self.stdout = server, pid, stdin, stdout
        self.returncode: int | None = None

    def kill(self) -> None:
        if self.returncode is None:
            self.server.kill(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        """The status, negative for a signal. ``subprocess.TimeoutExpired``."""
        stop = None if timeout is None else time.monotonic() + timeout
        pause = _PAUSE[0]
        while self.returncode is None:
            try:
                self.returncode = self.server.poll(self.pid)
            except ServerFailed:
                self.returncode = -signal.SIGKILL  # the server took it along
            if self.returncode is None:
                if stop is not None and time.monotonic() > stop:
                    raise subprocess.TimeoutExpired("a child of the server", timeout or 0)
                time.sleep(pause)
                pause = min(2 * pause, _PAUSE[1])
        return self.returncode


# ---- the server's side --------------------------------------------------------------------------------------------


def serve(control: socket.socket) -> None:
    """Answer until the starter ends."""
    children: dict[int, int | None] = {}
    while True:
        data, files, _, _ = socket.recv_fds(control, _MOST, 3)
        if not data:
            break
        (command, argument), *_ = json.loads(data).items()
        reply: int | None = None
        if command == "start":
            reply = _fork(control, argument, files)
            children[reply] = None
        elif command == "poll":
            reply = children[argument] = children[argument] if children[argument] is not None else _ended(argument)
        elif command == "kill" and children[argument] is None:
            os.kill(argument, signal.SIGKILL)
        for file in files:
            os.close(file)
        control.send(json.dumps(reply).encode())
    for pid, status in children.items():
        if status is None and _ended(pid) is None:
            os.kill(pid, signal.SIGKILL)


def _ended(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _fork(control: socket.socket, environment: Mapping[str, str], files: list[int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        control.close()
        for i, file in enumerate(files):
            os.dup2(file, i)
        for file in files:
            os.close(file)
        os.environ.update(environment)
        from disc_tf.testing import tf_worker

        tf_worker.main()
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # the server's exit handlers are not the child's


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    import tensorflow  # noqa: F401  what children inherit

    serve(control)


if __name__ == "__main__":
    main()
