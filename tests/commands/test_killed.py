"""SIGKILL at random moments of whole commands: what is published is the old or the new, loadable, and the next run leaves nothing over."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
#: kills in a test; 50 moments of the one command, 20 of the other
KILLS = 5
pytestmark = pytest.mark.slow


def save(path: Path, factor: float) -> None:
    """y = factor * x, out of a variable and an asset that say the same."""
    import tensorflow as tf

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            file = path.parent / f"{path.name}.factor"
            file.write_text(str(factor))
            self.file = tf.saved_model.Asset(str(file))
            self.factor = tf.Variable(tf.constant(factor))

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def __call__(self, x: Any) -> dict[str, Any]:
            said = tf.strings.to_number(tf.io.read_file(self.file.asset_path))
            return {"y": tf.nn.relu(x) * self.factor, "said": said * tf.ones_like(x)}

    path.parent.mkdir(parents=True, exist_ok=True)
    model = Model()
    tf.saved_model.save(model, str(path), signatures={"serving_default": model.__call__})


def factor_of(directory: Path) -> float:
    """The factor of a model, which its graph, variables and assets must agree on."""
    import tensorflow as tf

    import disc_tf.ops

    disc_tf.ops.load_op_library()
    found = tf.saved_model.load(str(directory)).signatures["serving_default"](x=tf.constant([1.0, 2.0]))
    factor = float(found["said"][0])
    np.testing.assert_array_equal(found["y"].numpy(), np.array([factor, 2 * factor], np.float32))
    return factor


def command(arguments: list[str], temporary: Path) -> subprocess.Popen[bytes]:
    temporary.mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(temporary), "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "disc_tf.cli", *arguments]
    return subprocess.Popen(line, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def run(arguments: list[str], temporary: Path) -> float:
    """Seconds that the whole takes."""
    start = time.monotonic()
    child = command(arguments, temporary)
    _, errors = child.communicate(timeout=600)
    assert child.returncode == 0, errors.decode()
    return time.monotonic() - start


def kill(arguments: list[str], temporary: Path, moment: float) -> None:
    """Start, kill after ``moment`` seconds (if it still runs), wait until its children are gone too."""
    child = command(arguments, temporary)
    try:
        child.wait(moment)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGKILL)
        child.wait()
    end = time.monotonic() + 60
    while of_session(child.pid):  # they end by themselves: nobody kills them
        assert time.monotonic() < end, "children outlive the command"
        time.sleep(0.05)
    assert child.stderr is not None
    child.stderr.close()


def of_session(session: int) -> list[int]:
    """Living processes of a session, and those that `serving prepare` starts in sessions of their own: by their command lines."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                line = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if fields[0] != "Z" and (int(fields[3]) == session or ("disc_tf.with_parent" in line and str(session) in line)):
                found.append(int(entry.name))
    return found


def moments(group: int, seconds: float) -> list[float]:
    """Half of them anywhere, half in the last third, where files are written."""
    rng = random.Random(group)
    return [seconds * (rng.random() if i % 2 else rng.uniform(0.6, 1.05)) for i in range(KILLS)]


def names(directory: Path) -> set[str]:
    return {p.name for p in directory.iterdir()}


@pytest.mark.parametrize("group", range(10))
def test_optimize_overwrite(group: int, tmp_path: Path) -> None:
    """``-o`` a directory with an older model: it is the older or the newer one at every moment."""
    save(tmp_path / "old", 2.0)
    save(tmp_path / "new", 3.0)
    out, temporary = tmp_path / "out" / "m", tmp_path / "tmp"
    out.parent.mkdir()
    flags = ["--target", "native", "--no-timing", "-q", *(["--freeze"] if group % 2 else [])]
    run(["optimize", str(tmp_path / "old"), "-o", str(out), *flags], temporary)
    arguments = ["optimize", str(tmp_path / "new"), "-o", str(out), "--overwrite", *flags]
    seconds = run(arguments, temporary)
    run(["optimize", str(tmp_path / "old"), "-o", str(out), "--overwrite", *flags], temporary)
    for moment in moments(group, seconds):
        kill(arguments, temporary, moment)
        assert factor_of(out) in (2.0, 3.0)
    run(arguments, temporary)
    assert factor_of(out) == 3.0
    assert names(out.parent) == {"m"} and not names(temporary)


@pytest.mark.parametrize("group", range(4))
def test_serving_prepare_watch(group: int, tmp_path: Path) -> None:
    """The target has whole versions at every moment, and in the end all of them."""
    base, target, temporary = tmp_path / "in", tmp_path / "out", tmp_path / "tmp"
    save(base / "1", 2.0)
    save(base / "2", 3.0)
    (base / "1.factor").unlink()
    (base / "2.factor").unlink()
    given = ["serving", "prepare", str(base), "--to", str(target), "--versions", "all", "--quiet-seconds", "0", "--no-timing"]
    given += ["--target", "native", "--warmup-shapes", "1"]
    seconds = run(given, temporary)
    expected = {1: 2.0, 2: 3.0}

    def whole(directory: Path) -> dict[int, float]:
        return {int(p.name): factor_of(p) for p in directory.iterdir() if p.name.isdigit()}

    assert whole(target) == expected
    for i, moment in enumerate(moments(group, seconds)):
        version = 1 + i % 2
        shutil.rmtree(target / str(version), ignore_errors=True)  # it is made again, if the moment is late enough
        before = whole(target)
        kill([*given, "--watch", "--poll", "0.1"], temporary, moment)
        assert before.items() <= whole(target).items() <= expected.items()
    run(given, temporary)
    assert whole(target) == expected
    assert {n for n in names(target) if not n.isdigit()} <= {".disc_tf_prepare.lock"} and not names(temporary)
