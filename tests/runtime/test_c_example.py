"""examples/c/run_model.c, built by the system's C compiler and run on a model: the C API is enough by itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from disc_tf.runtime import library_path
from tests.runtime import staged_models as models

ROOT = Path(__file__).parents[2]
FLAGS = ("-std=c11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or "cc"
    library = library_path("disc_ral")
    out = tmp_path_factory.mktemp("c") / "run_model"
    source = str(ROOT / "examples" / "c" / "run_model.c")
    include = str(ROOT / "disc_tf" / "runtime" / "ral" / "include")
    command = [compiler, *FLAGS, f"-I{include}", source, "-o", str(out), str(library), f"-Wl,-rpath,{library.parent}"]
    subprocess.run(command, check=True)
    return out


def call(program: Path, *arguments: object) -> tuple[int, list[str], str]:
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_the_example(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "towers.disc"
    runner = models.build(models.towers, path)
    a, b = (np.linspace(low, 1, 96, dtype=np.float32).reshape(3, 32) for low in (-1, 0))
    a.tofile(tmp_path / "a.bin")
    b.tofile(tmp_path / "b.bin")
    code, lines, error = call(program, path, f"a=3x32:{tmp_path / 'a.bin'}", f"b=3x32:{tmp_path / 'b.bin'}")
    assert code == 0, error
    assert lines[0].startswith("code for x86-64") and lines[1:3] == ["input a f32[?,32]", "input b f32[?,32]"]
    want = runner.run({"a": a, "b": b})
    assert [line.split()[0] for line in lines[3:]] == ["early", "joined"]
    for line in lines[3:]:
        name, type_, *values = line.split()
        assert type_ == "f32[3,32]" and values[-1] == "..."
        np.testing.assert_allclose([float(v) for v in values[:-1]], want[name].reshape(-1)[:8], rtol=1e-5, atol=1e-7)
    code, lines, _ = call(program, path)
    assert code == 0 and [line.split()[1] for line in lines[3:]] == ["f32[1,32]", "f32[1,32]"]
    for arguments, message in (
        ((path, "q=1"), "NAME=EXTENTS:FILE"),
        ((path, f"a=4x32:{tmp_path / 'a.bin'}"), "another size"),
        ((path, "a=3x31"), "has shape [3,31], [?,32] was compiled (code 3)"),
        ((path, "a=3x32", "b=4x32"), "(code 3) at sum"),
        ((tmp_path / "none.disc",), "cannot open"),
        ((), "usage"),
    ):
        code, _, error = call(program, *arguments)
        assert code == 1 and message in error, error
