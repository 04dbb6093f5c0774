"""What the commands may write, and onto what: said before any work, and never at the cost of what is there."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from disc_tf import optimizer
from tests.commands.test_cli import QUICK, graph, optimized, run

__all__ = ["graph", "optimized"]  # fixtures


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path.name)
    finally:
        os.chdir(here)


def _link_to_pipe(path: Path) -> None:
    os.mkfifo(path.parent / "pipe")
    path.symlink_to("pipe")


PLACES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "pipe": ("there", _pipe, "a named pipe"),
    "link to a pipe": ("there", _link_to_pipe, "a named pipe"),
    "socket": ("there", _socket, "a socket"),
    "directory": ("there", Path.mkdir, "a directory"),
    "link to itself": ("there", lambda path: path.symlink_to(path.name), "cannot write"),
    "no directory": ("none/there", lambda _path: None, "none does not exist"),
    "file for a directory": ("file/there", lambda path: path.parent.write_text(""), "cannot write"),
}
WRITERS: dict[str, Callable[[Path, Path, Path], list[object]]] = {
    "optimize -o": lambda graph, optimized, place: ["optimize", graph, "-o", place, *QUICK],
    "optimize --report": lambda graph, optimized, place: ["optimize", graph, "--dry-run", "--report", place, *QUICK],
    "restore -o": lambda graph, optimized, place: ["restore", optimized, "-o", place],
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("writer", WRITERS)
def test_places_that_are_refused(
    graph: Path,
    optimized: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    writer: str,
    place: str,
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("compiled first")

    monkeypatch.setattr(optimizer, "optimize_graph_def", never)
    name, make, said = PLACES[place]
    target = tmp_path / name
    make(target)
    before = {p: os.lstat(p).st_mode for p in tmp_path.iterdir()}
    capsys.readouterr()
    assert run(*WRITERS[writer](graph, optimized, target)) == 3
    error = capsys.readouterr().err
    assert "cannot write" in error and said in error
    assert {p: os.lstat(p).st_mode for p in tmp_path.iterdir()} == before


def test_a_directory_that_cannot_be_written(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "locked").mkdir()
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "locked" and real(path, mode))
    assert run("optimize", graph, "-o", tmp_path / "locked" / "out.pb", *QUICK) == 3
    assert f"the directory {tmp_path / 'locked'} is not writable" in capsys.readouterr().err


def test_weights_need_a_directory(graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out.pb.weights").write_text("mine")
    assert run("optimize", graph, "-o", tmp_path / "out.pb", "--external-weights", *QUICK) == 3
    assert "is not a directory" in capsys.readouterr().err
    assert (tmp_path / "out.pb.weights").read_text() == "mine" and not (tmp_path / "out.pb").exists()


@pytest.mark.parametrize("there", [False, True])
def test_links_stay(graph: Path, optimized: Path, tmp_path: Path, there: bool) -> None:
    """The file that the link leads to is written, whether it is there yet or not."""
    (tmp_path / "far").mkdir()
    for name, writer in WRITERS.items():
        link, target = tmp_path / name, tmp_path / "far" / name
        link.symlink_to(Path("far") / name)
        if there:
            target.write_bytes(b"old")
        assert run(*writer(graph, optimized, link)) == 0
        assert link.is_symlink() and stat.S_ISREG(target.lstat().st_mode) and target.stat().st_size > 3
    assert (tmp_path / "restore -o").read_bytes() == graph.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["optimize", "in.pb", "-o", "link.pb"], "input and output are the same file: the original would be lost"),
        (["optimize", "in.pb", "--dry-run", "--report", "link.pb"], "input and report are the same file: the original would be lost"),
        (["optimize", "in.pb", "-o", "out.pb", "--report", "./out.pb"], "output and report are the same file"),
        (["restore", "optimized.pb", "-o", "optimized.pb"], "input and output are the same file: the original would be lost"),
    ],
)
def test_the_same_file_twice(
    graph: Path, optimized: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(graph.parent)
    Path("link.pb").symlink_to("in.pb")
    before = graph.read_bytes(), optimized.read_bytes()
    assert run(*arguments) == 2
    assert said in capsys.readouterr().err
    assert (graph.read_bytes(), optimized.read_bytes()) == before and not Path("out.pb").exists()
