"""The newcomer's path, word for word: the files and commands of the page, in the order of the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "quickstart.md"
#: commands that make the environment, which is there
INSTALL = re.compile(r"^(python -m venv|pip install) ")


def steps(page: str) -> Iterator[tuple[str, str]]:
    """("file NAME", content) and ("run", command), in order. A Python block is the file that the text before it names."""
    name = ""
    for block in re.split(r"(?m)^(```\w+\n.*?^```)$", page, flags=re.S | re.M):
        if block.startswith("```python\n"):
            assert name, "a file without a name"
            yield f"file {name}", block.removeprefix("```python\n").removesuffix("```")
            name = ""
        elif block.startswith("```console\n"):
            yield from (("run", line[2:]) for line in block.splitlines() if line.startswith("$ "))
        elif found := re.findall(r"\(`(\w+\.py)`\)", block):
            name = found[-1]


def test_the_page_has_the_path() -> None:
    found = list(steps(PAGE.read_text()))
    assert [kind for kind, _ in found if kind != "run"] == ["file make_model.py", "file use_model.py"]
    commands = [c for kind, c in found if kind == "run" and not INSTALL.match(c)]
    assert [c.split()[1] for c in commands] == ["doctor", "make_model.py", "inspect", "optimize", "use_model.py", "restore"]


@pytest.mark.slow
def test_the_path_works(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, command in (("python", ""), ("disc-tf", " -m disc_tf.cli")):
        tool = tools / name
        tool.write_text(f'#!/bin/sh\nexec {sys.executable}{command} "$@"\n')
        tool.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    said = {}
    for kind, content in steps(PAGE.read_text()):
        if kind != "run":
            (work / kind.removeprefix("file ")).write_text(content)
        elif not INSTALL.match(content):
            done = subprocess.run(["bash", "-c", content], cwd=work, env=environment, capture_output=True, text=True, timeout=900)
            assert done.returncode == 0, f"{content}\n{done.stdout}\n{done.stderr}"
            said[content.split()[1]] = done.stdout
    assert "FAILED" not in said["doctor"]
    assert "would be compiled" in said["inspect"]
    assert "verified against TensorFlow" in said["optimize"]
    assert said["use_model.py"].count("TensorShape([2, ") == 3
    assert (work / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert (work / "restored" / "saved_model.pb").read_bytes() == (work / "saved_model" / "saved_model.pb").read_bytes()
