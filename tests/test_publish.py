"""Publication of directories: the old one or the new one, whatever happens meanwhile; and nothing is left behind."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from disc_tf import publish
from disc_tf.publish import PublishError, staged

PB = "saved_model.pb"


def fill(directory: Path, text: str) -> None:
    (directory / PB).write_text(text)
    (directory / "variables").mkdir()
    (directory / "variables" / "index").write_text(text)


def content(directory: Path) -> dict[str, str]:
    return {str(p.relative_to(directory)): p.read_text() for p in directory.rglob("*") if p.is_file()}


def whole(text: str) -> dict[str, str]:
    return {PB: text, "variables/index": text}


def test_new_directory(tmp_path: Path) -> None:
    with staged(tmp_path / "out") as directory:
        assert directory.parent == tmp_path and directory.name.startswith(f".out.{os.getpid()}.")
        fill(directory, "new")
        assert not (tmp_path / "out").exists()
    assert content(tmp_path / "out") == whole("new") and os.listdir(tmp_path) == ["out"]
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o777 & ~umask


def test_overwrite_exchanges(tmp_path: Path) -> None:
    fill_new(tmp_path / "out", "old")
    (tmp_path / "out" / "variables").chmod(0o500)
    (tmp_path / "out").chmod(0o750)
    with staged(tmp_path / "out", overwrite=True) as directory:
        fill(directory, "new")
        assert content(tmp_path / "out") == whole("old")
    assert content(tmp_path / "out") == whole("new") and os.listdir(tmp_path) == ["out"]
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750


def fill_new(directory: Path, text: str) -> None:
    directory.mkdir()
    fill(directory, text)


def make_link(path: Path) -> None:
    path.symlink_to(path.name)


#: what is at the destination, whether --overwrite is given, what is said
REFUSED: dict[str, tuple[Callable[[Path], object], bool, str]] = {
    "there": (lambda p: fill_new(p, "old"), False, "exists: give another name, or --overwrite"),
    "empty": (lambda p: p.mkdir(), False, "exists"),
    "file": (lambda p: p.write_text("old"), True, "it is a file, not a directory"),
    "link to itself": (make_link, True, "a symbolic link to itself"),
    "other things": (lambda p: (p.mkdir(), (p / "thesis.tex").write_text("old")), True, "it holds other things"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_any_work(tmp_path: Path, case: str) -> None:
    make, overwrite, said = REFUSED[case]
    target = tmp_path / "out"
    make(target)
    before = (os.listdir(tmp_path), os.lstat(target))
    with pytest.raises(PublishError, match=said), staged(target, overwrite=overwrite):
        pytest.fail("the work began")
    assert (os.listdir(tmp_path), os.lstat(target)) == before


@pytest.mark.parametrize(
    ("source", "destination", "said"),
    [
        ("in", "in", "the original would be lost"),
        ("in", "in/out", "lies inside the input"),
        ("in", "in/a/../out", "lies inside the input"),
        ("link", "in", "the original would be lost"),
        ("in/sub", "in", "lies inside .*it would be lost"),
        ("in", "none/out", "none does not exist"),
        ("in", "in/saved_model.pb/out", "cannot write|not a directory"),
    ],
)
def test_places_that_are_refused(tmp_path: Path, source: str, destination: str, said: str) -> None:
    fill_new(tmp_path / "in", "old")
    (tmp_path / "in" / "sub").mkdir()
    (tmp_path / "link").symlink_to("in")
    with pytest.raises(PublishError, match=said), staged(tmp_path / destination, overwrite=True, source=tmp_path / source):
        pytest.fail("the work began")
    assert content(tmp_path / "in") == whole("old")


def test_a_neighbour_of_the_source_is_fine(tmp_path: Path) -> None:
    fill_new(tmp_path / "in", "old")
    with staged(tmp_path / "in2", source=tmp_path / "in") as directory:
        fill(directory, "new")
    assert content(tmp_path / "in2") == whole("new")


@pytest.mark.parametrize("there", [False, True])
def test_links_stay(tmp_path: Path, there: bool) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to("far/model")
    if there:
        fill_new(tmp_path / "far" / "model", "old")
    with staged(tmp_path / "link", overwrite=there) as directory:
        fill(directory, "new")
    assert (tmp_path / "link").is_symlink() and content(tmp_path / "far" / "model") == whole("new")
    assert os.listdir(tmp_path / "far") == ["model"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_after_an_exception(tmp_path: Path, overwrite: bool, error: type[BaseException]) -> None:
    if overwrite:
        fill_new(tmp_path / "out", "old")
    with pytest.raises(error), staged(tmp_path / "out", overwrite=overwrite) as directory:
        fill(directory, "new")
        (directory / "variables").chmod(0o500)
        raise error
    assert os.listdir(tmp_path) == (["out"] if overwrite else [])
    assert not overwrite or content(tmp_path / "out") == whole("old")


def test_made_by_another_process_meanwhile(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="another process made it meanwhile"), staged(tmp_path / "out") as directory:
        fill(directory, "new")
        fill_new(tmp_path / "out", "other")
    assert content(tmp_path / "out") == whole("other") and os.listdir(tmp_path) == ["out"]
    # with overwrite it is what was asked for, whether it comes or goes meanwhile
    with staged(tmp_path / "out2", overwrite=True) as directory:
        fill(directory, "new")
        fill_new(tmp_path / "out2", "other")
    assert content(tmp_path / "out2") == whole("new")
    with staged(tmp_path / "out2", overwrite=True) as directory:
        fill(directory, "newer")
        publish.remove_tree(tmp_path / "out2")
    assert content(tmp_path / "out2") == whole("newer")
    assert sorted(os.listdir(tmp_path)) == ["out", "out2"]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS])
@pytest.mark.parametrize("overwrite", [False, True])
def test_filesystems_without_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, overwrite: bool) -> None:
    def unknown(source: Path, target: Path, flags: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(publish, "_renameat2", unknown)
    if overwrite:
        fill_new(tmp_path / "out", "old")
        with pytest.raises(PublishError, match="cannot exchange two directories in one step"), staged(tmp_path / "out", overwrite=True):
            pytest.fail("the work began")
        assert content(tmp_path / "out") == whole("old")
    else:
        with staged(tmp_path / "out") as directory:
            fill(directory, "new")
        assert content(tmp_path / "out") == whole("new")
        with pytest.raises(PublishError, match="another process made it"), staged(tmp_path / "out3") as directory:
            fill(directory, "new")
            fill_new(tmp_path / "out3", "other")
        assert content(tmp_path / "out3") == whole("other")
        publish.remove_tree(tmp_path / "out3")
    assert os.listdir(tmp_path) == ["out"]


def test_a_layer_that_cannot_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overlay exchanges new directories but not those of its lower layer."""
    real = publish._renameat2

    def overlay(source: Path, target: Path, flags: int) -> None:
        if target.name == "out":
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        real(source, target, flags)

    fill_new(tmp_path / "out", "old")
    monkeypatch.setattr(publish, "_renameat2", overlay)
    with pytest.raises(PublishError, match="give a new name"), staged(tmp_path / "out", overwrite=True) as directory:
        fill(directory, "new")
    assert content(tmp_path / "out") == whole("old") and os.listdir(tmp_path) == ["out"]


def test_directories_in_use_are_not_stale(tmp_path: Path) -> None:
    """Two publications at once: the second one's cleaning leaves the first's directory alone."""
    stale = tmp_path / ".out.1.abcdef01.disc_tf_staging"
    other = tmp_path / ".out.b.1.abcdef01.disc_tf_staging"  # of the destination `out.b`
    for path in (stale, other):
        fill_new(path, "left")
    with staged(tmp_path / "out", overwrite=True) as first:
        assert not stale.exists() and other.exists()
        fill(first, "first")
        with staged(tmp_path / "out") as second:
            fill(second, "second")
        assert content(first) == whole("first")
    assert content(tmp_path / "out") == whole("first")
    assert sorted(os.listdir(tmp_path)) == [other.name, "out"]


PUBLISHER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from disc_tf.publish import staged

    overwrite = sys.argv[2] == "overwrite"
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(1, 10**6):
        target = Path(sys.argv[1]) / ("out" if overwrite else f"out{number}")
        with staged(target, overwrite=overwrite) as directory:
            for i in range(4):
                (directory / f"part{i}").mkdir()
                (directory / f"part{i}" / "data").write_bytes(b"%08d" % number * 4096)
            (directory / "saved_model.pb").write_bytes(b"%08d" % number * 4096)
    """
)


def check_whole(directory: Path) -> int:
    """The number that every file of ``directory`` repeats."""
    files = ["saved_model.pb", *(f"part{i}/data" for i in range(4))]
    found = {(directory / name).read_bytes() for name in files}
    assert len(found) == 1, f"{directory} is of two publications"
    data = found.pop()
    assert data == data[:8] * 4096
    return int(data[:8])


def kill_at_a_random_moment(tmp_path: Path, mode: str, delay: float) -> int:
    command = [sys.executable, "-c", PUBLISHER, str(tmp_path), mode]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
    assert child.stdin is not None and child.stdout is not None
    try:
        assert child.stdout.readline() == b"ready\n"
        child.stdin.write(b"go\n")
        child.stdin.flush()
        time.sleep(delay)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdin.close()
        child.stdout.close()
    published = [p for p in tmp_path.iterdir() if not p.name.startswith(".")]
    return max((check_whole(p) for p in published), default=0)


def kills(tmp_path: Path, count: int) -> None:
    """Half of them overwrite. Whatever is left over goes with the next publication."""
    rng = random.Random(20261)
    left = numbers = 0
    for i in range(count):
        mode = "overwrite" if i % 2 else "new"
        place = tmp_path / str(i)
        place.mkdir()
        if mode == "overwrite":
            with staged(place / "out") as directory:
                for k in range(4):
                    (directory / f"part{k}").mkdir()
                    (directory / f"part{k}" / "data").write_bytes(b"%08d" % 0 * 4096)
                (directory / PB).write_bytes(b"%08d" % 0 * 4096)
        numbers += kill_at_a_random_moment(place, mode, rng.uniform(0.0, 0.2))
        left += sum(p.name.startswith(".") for p in place.iterdir())
        for name in {p.name.split(".")[1] for p in place.iterdir() if p.name.startswith(".")}:
            with staged(place / name, overwrite=True) as directory:
                (directory / PB).write_text("after")
        assert not any(p.name.startswith(".") for p in place.iterdir())
    assert numbers and left, "no kill came in the middle of a publication: the test shows nothing"


def test_killed(tmp_path: Path) -> None:
    kills(tmp_path, 8)


@pytest.mark.slow
def test_killed_at_fifty_moments(tmp_path: Path) -> None:
    kills(tmp_path, 50)
