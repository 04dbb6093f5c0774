"""Hostile graphs through the public API and the command, in child processes with a time limit and a memory limit: a clear error or a graph,
never a crash, a hang or another exception."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from disc_tf.testing.hostile import CASES, base

ROOT = Path(__file__).parents[2]
#: take seconds each
SLOW = (
    "thousand_way_concat", "hundred_thousand_nodes", "exponential_functions", "deep_functions", "nested_splits",
    "many_unrelated_broadcasts",
)  # fmt: skip
RANDOM = [n for n in CASES if n.startswith(("cut_", "flipped_", "shuffled_"))]
FAST = [*RANDOM[::4], *(n for n in CASES if n not in RANDOM and n not in SLOW)]


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))


def run(*arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=timeout, check=False, preexec_fn=limit_memory)


def check(names: list[str], timeout: float) -> None:
    done = run("disc_tf.testing.hostile", *names, timeout=timeout)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, [line for line in lines if "FAULT" in line] or (lines[-1:], done.stderr[-1500:])
    assert len(lines) == len(names)


def test_fast_cases() -> None:
    check(FAST, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_random_changes(part: int) -> None:
    check(RANDOM[part::4], timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_large_case(name: str) -> None:
    check([name], timeout=240)


def test_there_are_many() -> None:
    assert len(CASES) >= 150


# ---- the command --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "graph.pb"
    path.write_bytes(base().bytes())
    return path


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["optimize", "{graph}", "-o", "{out}", "--no-verify", "--outputs", "nowhere:0"], 3, "nowhere"),
        (["optimize", "{graph}", "-o", "{out}", "--no-verify", "--outputs", "q:7"], 3, "q:7"),
        (["optimize", "{graph}", "-o", "{out}", "--no-verify", "--outputs", "^"], 3, ""),
        (["optimize", "{graph}", "-o", "{out}", "--no-verify", "--target", "z80"], 2, "z80"),
        (["optimize", "{graph}", "-o", "{graph}", "--no-verify"], 2, "same file"),
        (["optimize", "{graph}", "-o", "{dir}/gone/x.pb", "--no-verify"], 3, "cannot write"),
        (["optimize", "{dir}", "-o", "{out}", "--no-verify"], 3, ""),
        (["optimize", "{dir}/nothing.pb", "-o", "{out}", "--no-verify"], 3, "nothing.pb"),
        (["optimize", "{cut}", "-o", "{out}", "--no-verify"], 3, "GraphDef"),
        (["optimize", "{graph}", "-o", "{out}", "--no-verify", "--hint", "x: ["], 3, "hint"),
        (["restore", "{graph}", "-o", "{out}"], 3, ""),
        (["inspect", "{cut}"], 3, "GraphDef"),
    ],
)  # fmt: skip
def test_command(graph: Path, tmp_path: Path, arguments: list[str], code: int, says: str) -> None:
    cut, out = tmp_path / "cut.pb", tmp_path / "out.pb"
    cut.write_bytes(graph.read_bytes()[:100])
    names = {"graph": graph, "out": out, "dir": tmp_path, "cut": cut}
    done = run("disc_tf.cli", *(a.format(**names) for a in arguments), timeout=120)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr[-800:])
    assert says in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert not out.exists()
