"""Packed weights that processes share through a directory, on the toy executable; the directory's rules are tested in cpp/test_packs.cc."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from disc_tf.runtime import DiscError, pack, packs_directory, packs_problem, share_packs
from tests.runtime import toy

#: runs the toy, after the code in its second argument; prints whether the answer was right and the counters that matter
_CHILD = """
import os, sys
from pathlib import Path
import numpy as np
from disc_tf.runtime import *
file, code = sys.argv[1:]
artifact, w = Path(file).read_bytes(), np.fromfile(file + ".w", np.float32)
library_path(), counters()
exec(code)
x = np.ones((2, w.size), np.float32) / 3
try:
    with Executable.from_bytes(artifact) as exe:
        got = exe.run([w, x, np.array(1, np.int64)])[0]
        now = counters()
except DiscError as e:
    sys.exit(str(e))
names = ["prepared_built", *("packs_" + k for k in ("loaded", "written", "refused", "unwritten", "mapped_bytes")), "prepared_live_bytes"]
print((got == x * (2 * w)).all(), *(now[k] for k in names), packs_problem(), sep="|")
"""
COLUMNS = 1 << 16
BYTES = 4 * COLUMNS
MADE = ["True", "1", "0", "1", "0", "0", str(BYTES), "0", ""]
FOUND = ["True", "0", "1", "0", "0", "0", str(BYTES), "0", ""]
#: packed in its own memory, because the pack could not be written
ALONE = ["True", "1", "0", "0", "0", "1", "0", str(BYTES)]


@functools.cache
def _model(columns: int) -> str:
    """A file with the toy's artefact, beside it one with its weights."""
    w = (np.arange(columns, dtype=np.float32) % 997) - 300
    place = Path(tempfile.mkdtemp(prefix="disc_tf_toy_"))
    atexit.register(shutil.rmtree, place)
    place.chmod(0o755)
    (place / "toy").write_bytes(pack(toy.artifact(w, name="packs", code_hash=b"packs")))
    w.tofile(place / "toy.w")
    return str(place / "toy")


def start(packs: Path | str, *, columns: int = COLUMNS, code: str = "", cwd: Path | None = None, **env: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "DISC_TF_PACKS": str(packs), "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), **env}
    command = [sys.executable, "-c", _CHILD, _model(columns), code]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=cwd)


def finish(process: subprocess.Popen[str]) -> list[str]:
    out, err = process.communicate(timeout=60)
    return out.rstrip("\n").split("|") if process.returncode == 0 else [err]


def test_the_second_process_packs_nothing(tmp_path):
    packs = tmp_path / "packs"
    assert finish(start(packs)) == MADE
    assert [p.stat().st_mode & 0o777 for p in (packs, *packs.iterdir())] == [0o700, 0o600]
    assert finish(start(packs)) == FOUND
    assert finish(start("", code=f"share_packs({str(packs)!r})")) == FOUND
    relative = finish(start("packs", cwd=tmp_path, code="packs_directory(); os.chdir('/')"))
    assert relative == FOUND, "relative to where the runtime was first used"
    assert finish(start(packs, code="share_packs('')")) == ["True", "1", "0", "0", "0", "0", "0", str(BYTES), ""]


def test_processes_that_start_at_once_agree(tmp_path):
    found = [finish(p) for p in [start(tmp_path / "packs") for _ in range(4)]]
    late = ["True", "1", "1", "0", "0", "0", str(BYTES), "0", ""]  # packed, and then took the file of who was faster
    assert found.count(MADE) == 1 and all(f in (MADE, FOUND, late) for f in found), found
    assert len(list((tmp_path / "packs").iterdir())) == 1
    assert finish(start(tmp_path / "packs")) == FOUND


def test_a_writer_that_is_killed_leaves_nothing_that_is_taken(tmp_path):
    packs, columns, killed = tmp_path / "packs", 1 << 22, 0
    for _ in range(20):
        process = start(packs, columns=columns)
        while process.poll() is None and not list(packs.glob(".writing-*")):
            time.sleep(0.0005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += bool(list(packs.glob(".writing-*")))
        if killed >= 2:
            break
        for p in packs.iterdir():
            p.unlink()
    assert killed, "no writer was killed in time"
    for left in packs.glob(".writing-*"):
        os.utime(left, (time.time() - 60, time.time() - 60))
    expected = [str(4 * columns) if text == str(BYTES) else text for text in MADE]
    assert finish(start(packs, columns=columns)) == expected
    assert [p.suffix for p in packs.iterdir()] == [".pack"], "what the dead left is deleted"


@contextlib.contextmanager
def _readable_directory() -> Iterator[Path]:
    """Where other users get in, unlike pytest's."""
    place = Path(tempfile.mkdtemp(prefix="disc_tf_packs_"))
    place.chmod(0o755)
    try:
        yield place
    finally:
        shutil.rmtree(place)


@pytest.mark.skipif(os.geteuid() != 0, reason="changes users")
def test_a_directory_of_roots_is_read_by_others_but_not_written():
    become = "os.setgid(12345); os.setuid(12345)"
    with _readable_directory() as place:
        *counted, reason = finish(start(place, code=become))
        assert counted == ALONE and "no file can be made there: Permission denied" in reason
        assert finish(start(place)) == MADE
        *counted, reason = finish(start(place, code=become))
        assert counted == ["True", "1", "0", "0", "1", "1", "0", str(BYTES)] and reason
        next(place.iterdir()).chmod(0o644)
        assert finish(start(place, code=become)) == FOUND
        os.chown(place, 23456, 23456)
        *counted, reason = finish(start(place, code=become))
        assert counted == ALONE and "belongs to user 23456, neither to this one (12345) nor to root" in reason


def test_a_full_disk_costs_nothing_but_the_sharing(tmp_path):
    command = ["mount", "-t", "tmpfs", "-o", f"size={BYTES // 2},mode=700", "none", str(tmp_path)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("no file system may be mounted here")
    try:
        *counted, reason = finish(start(tmp_path))
        assert counted == ALONE and "no space for a file of" in reason
        assert not list(tmp_path.iterdir())
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize(
    ("directory", "env", "expected"),
    [
        ("/proc/self", {}, "is not known to be of this host alone (type 0x9fa0)"),
        ("/nowhere/packs", {}, "cannot make the directory /nowhere/packs: No such file or directory"),
        ("", {"DISC_TF_PACKS_LIMIT_MB": "much"}, "DISC_TF_PACKS_LIMIT_MB=much: expected a number of megabytes; 0 is no limit"),
    ],
)
def test_what_is_wrong_is_said(directory, env, expected):
    *counted, reason = finish(start(directory, **env))
    assert expected in reason and (counted == ALONE or env)


def test_the_api_refuses_what_it_cannot_use(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(DiscError, match=r"packed weights cannot be shared: the directory .*/open may be written by others"):
        share_packs(tmp_path / "open")
    assert packs_directory() == ""
    try:
        share_packs(tmp_path / "new", limit_bytes=1 << 20)
        assert packs_directory() == str(tmp_path / "new") and packs_problem() == ""
    finally:
        share_packs(None)
    assert packs_directory() == ""


def test_the_doctor_and_the_servers_metrics_tell(tmp_path):
    from prometheus_client import generate_latest

    from disc_tf.commands.doctor import _packs
    from disc_tf.serving.manager import ModelManager
    from disc_tf.serving.metrics import Metrics

    registry = Metrics(ModelManager(lambda *_: None)).registry  # type: ignore[arg-type]
    assert _packs() == [] and b"disc_serve_packs" not in generate_latest(registry)
    try:
        share_packs(tmp_path / "packs")
        (tmp_path / "packs" / "a.pack").write_bytes(b"x" * 100_000)
        assert _packs() == [("shared packs", True, f"{tmp_path}/packs: 1 files, 0.1 MB")]
        assert b'disc_serve_packs_total{result="refused"}' in generate_latest(registry)
        (tmp_path / "packs").chmod(0o777)
        (row,) = _packs()
        assert not row[1] and "may be written by others" in row[2] and "set DISC_TF_PACKS" in row[2]
    finally:
        share_packs(None)


def test_the_commands_option(tmp_path, capsys):
    from disc_tf.cli import main

    assert main(["run", "model.disc", "--packs", str(tmp_path / "no" / "parent")]) == 3
    assert f"--packs {tmp_path}/no/parent: packed weights cannot be shared: cannot make the directory" in capsys.readouterr().err
