"""Artefacts of earlier versions: they load, answer with the bits that they answered with then, and give their original back."""

from __future__ import annotations

import filecmp
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from disc_tf.frontend.rewrite import restore
from disc_tf.frontend.tfproto import graph_from_bytes, serialized
from disc_tf.runtime import DiscError, load
from disc_tf.runtime.cpu import native_target
from disc_tf.runtime.executable import set_target
from disc_tf.saved_model import restore_saved_model

HERE = Path(__file__).parent
VERSIONS = sorted((HERE / "published").iterdir())
TARGETS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
RUNNABLE = [t for t in TARGETS if t <= native_target()]

pytestmark = pytest.mark.parametrize("where", VERSIONS, ids=lambda path: path.name)


def same_bits(where: Path, kind: str, target: str, found: dict[str, np.ndarray]) -> None:
    with np.load(where / f"answers.{kind}.{target}.npz", allow_pickle=False) as stored:
        assert sorted(found) == sorted(stored.files)
        for name in stored.files:
            assert found[name].dtype == stored[name].dtype and found[name].shape == stored[name].shape, name
            assert found[name].tobytes() == stored[name].tobytes(), f"{kind}, {target}: other bits in {name}"


def inputs(where: Path) -> dict[int, dict[str, np.ndarray]]:
    found = {}
    for path in where.glob("inputs.*.npz"):
        with np.load(path) as stored:
            found[int(path.name.split(".")[1])] = {name: stored[name] for name in stored.files}
    return found


@pytest.mark.parametrize("target", RUNNABLE)
def test_a_program_answers_as_then(where, target):
    set_target(target)
    try:
        with load(where / "program.disc", verify=True) as runner:
            found = {
                f"{rows}/{name.removesuffix(':0')}": value
                for rows, given in inputs(where).items()
                for name, value in runner.run(given).items()
            }
    finally:
        set_target(None)
    same_bits(where, "program", target, found)


def test_a_program_still_checks_its_inputs(where):
    given = inputs(where)[3]
    with load(where / "program.disc") as runner, pytest.raises(DiscError, match="GatherV2"):
        runner.run({**given, "ids": given["ids"] + 100})


# each runs TensorFlow in a process of its own, since an instruction set is chosen once
@pytest.mark.parametrize("target", [pytest.param(t, marks=() if t == RUNNABLE[-1] else pytest.mark.slow) for t in RUNNABLE])
@pytest.mark.parametrize("kind", ["graph", "model"])
def test_a_graph_and_a_model_answer_as_then(where, kind, target, tmp_path):
    script = (
        "import sys, numpy as np; from pathlib import Path\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "import publish\n"
        f"np.savez({str(tmp_path / 'found.npz')!r}, **publish.answers(Path({str(where)!r}), {kind!r}))\n"
    )
    root = str(HERE.parents[1])
    environment = {**os.environ, "DISC_TF_TARGET": target, "PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(tmp_path / "found.npz") as stored:
        same_bits(where, kind, target, {name: stored[name] for name in stored.files})


def test_the_original_graph_comes_back(where):
    restored = restore(graph_from_bytes((where / "graph.pb").read_bytes()))
    assert serialized(restored) == serialized(graph_from_bytes((where / "graph.original.pb").read_bytes()))


def test_the_original_model_comes_back(where, tmp_path):
    restored = restore_saved_model(where / "model", tmp_path / "model")
    assert restored.exact
    original = where / "model.original"
    files = sorted(str(p.relative_to(original)) for p in original.rglob("*") if p.is_file())
    assert files == sorted(str(p.relative_to(tmp_path / "model")) for p in (tmp_path / "model").rglob("*") if p.is_file())
    assert filecmp.cmpfiles(original, tmp_path / "model", files, shallow=False)[0] == files


def test_it_says_what_made_it(where):
    made_by = json.loads((where / "made_by.json").read_text())
    assert made_by["disc_tf"] and made_by["tensorflow"]
