"""The work on one version, in processes of their own: a crash or a model that eats the memory ends the child, not the watch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from disc_tf.extras import LACKING
from disc_tf.serving.prepare import OptimizeFailed, Stopped
from disc_tf.serving.stores import StoreError
from disc_tf.serving.warmup import WARMUP_FILE


class Children:
    """Runs `disc-tf optimize` and the warm-up writer. ``flags``: of `disc-tf optimize`; ``timeout``: seconds for each (0: none)."""

    def __init__(self, flags: Sequence[str], *, timeout: float = 0.0, model: str = "model", shapes: int = 6) -> None:
        self._flags, self._timeout, self._model, self._shapes = list(flags), timeout, model, shapes
        self._child: subprocess.Popen[bytes] | None = None
        self.stopped = False

    def optimize(self, source: Path, target: Path) -> str:
        """A remark on what was compiled. `OptimizeFailed` with the last line that the optimiser said; `StoreError` where it
        lacks a package, which says nothing of the model: nothing is published."""
        code, output, errors = self._run("disc_tf.cli", "optimize", str(source), "-o", str(target), "--json", "-q", *self._flags)
        if code and LACKING in _last(errors):
            raise StoreError(_last(errors))
        if code:
            raise OptimizeFailed(_last(errors) or f"`disc-tf optimize` ended with status {code}", code)
        return _remark(output)

    def warm_up(self, original: Path, made: Path) -> str:
        """How many records were written, in words; what went wrong is a remark too: a model without warm-up is still a model."""
        arguments = [str(original), str(made), "--name", self._model, "--shapes", str(self._shapes)]
        had = (made / WARMUP_FILE).exists()
        try:
            code, output, errors = self._run("disc_tf.serving.warmup_writer", *arguments)
            why = (_last(errors) or f"status {code}") if code else ""
        except OptimizeFailed as e:
            why, output = str(e), ""
        if why:
            if not had:  # half a file would keep a server from loading the model
                (made / WARMUP_FILE).unlink(missing_ok=True)
            return f"no warm-up records were written: {why}"
        with contextlib.suppress(ValueError, KeyError, TypeError):
            count = int(json.loads(output)["records"])
            return f"{count} warm-up records written" if count else ""
        return ""

    def stop(self) -> None:
        """End what runs now."""
        self.stopped = True
        self._kill()

    def _kill(self) -> None:
        child = self._child
        if child is not None and child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

    def _run(self, module: str, *arguments: str) -> tuple[int, str, str]:
        if self.stopped:
            raise Stopped
        root = str(Path(__file__).parents[2])
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
        environment["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        # files, not pipes: nobody reads while it works
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            # -P: what lies in the working directory is not a module
            command = [sys.executable, "-P", "-m", "disc_tf.with_parent", str(os.getpid()), module, *arguments]
            # a session of its own: what the child starts goes with it, and with us
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True
            )
            try:
                code = self._child.wait(self._timeout or None)
            except subprocess.TimeoutExpired:
                self._kill()
                self._child.wait()
                raise OptimizeFailed(f"it took longer than {self._timeout:.0f} s", 1) from None
            except BaseException:
                self._kill()
                self._child.wait()
                raise
            if self.stopped:
                raise Stopped
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        if code < 0:
            name = signal.Signals(-code).name
            return 1, texts[0], f"the process was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
        return code, texts[0], texts[1]


def _last(text: str) -> str:
    """The last line, which is the error message, without the command's name."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("disc-tf: ")[:500] if lines else ""


def _remark(output: str) -> str:
    try:
        reports = [f["report"] for f in json.loads(output)["functions"]]
        found = [c["status"] for r in reports if r for c in r["clusters"]]
    except (ValueError, KeyError, TypeError):
        return ""
    compiled = found.count("compiled")
    return f"{compiled} of {len(found)} clusters compiled"
