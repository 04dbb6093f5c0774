"""Files that are written whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from disc_tf.atomic import replacing
from disc_tf.commands.common import write_atomically


@pytest.fixture
def umask(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A umask, which nobody may change: it is every thread's."""
    before = os.umask(0o027)
    real = os.umask
    monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the umask is set"))
    yield 0o027
    real(before)


@pytest.mark.parametrize("mode", [0o666, 0o600])
def test_the_file_is_there_when_the_block_ends(tmp_path: Path, umask: int, mode: int) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"old")
    target.chmod(0o777)
    with replacing(target, mode=mode, prefix=".entry.") as file:
        file.write(b"new")
        assert target.read_bytes() == b"old"
        (temp,) = [p for p in tmp_path.iterdir() if p != target]
        assert temp.name.startswith(".entry.") and temp.stat().st_mode & 0o777 == mode & ~umask
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert target.read_bytes() == b"new" and target.stat().st_mode & 0o777 == mode & ~umask


def test_a_block_that_raises_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), replacing(target) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert [p.name for p in tmp_path.iterdir()] == ["out"] and target.read_bytes() == b"old"
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "absent" / "out"):
        pass


def test_commands_write_with_it(tmp_path: Path, umask: int) -> None:
    (tmp_path / "link").symlink_to("out")
    write_atomically(str(tmp_path / "link"), b"x")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "out").stat().st_mode & 0o777 == 0o640
