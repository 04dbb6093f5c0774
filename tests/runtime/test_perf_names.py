"""DISC_TF_PERF: what perf is told of compiled code, by reading it and by running perf; and that nothing of it can fail a run."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from disc_tf.compiler import compile_module
from disc_tf.insight.chrome_trace import label_of
from disc_tf.runtime.artifact import pack, unpack
from tests.runtime.test_profile import _module

RUN = """
import os, sys
import numpy as np
from disc_tf.runtime.executable import DiscError, Executable
def load(path=sys.argv[1]):
    return Executable.from_bytes(open(path, "rb").read())
def run(e, times=1, m=2000):
    x, w = np.ones((m, 24), np.float32), np.ones((24, 40), np.float32)
    for _ in range(times):
        y = e.run([x, w])
    return round(float(y[0][0, 0]), 3)
map_file = f"/tmp/perf-{os.getpid()}.map"
"""
#: code of the child -> prints what perf is told, and the mapping that it lies in
SHOW = """
e = load()
print(run(e), e.loader)
print(open(map_file).read(), end="")
os.unlink(map_file)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("perf") / "model.bin"
    artifact = unpack(compile_module(_module(), ["x86-64-v2"], name="cluster_7").executable)
    gemm = next(k for k in artifact.kernels if k.startswith("k_gemm"))
    nodes = ("dense/Reshape", "dense/MatMul_1", "act\ncc 1 x")
    path.write_bytes(pack(dataclasses.replace(artifact, kernels={**artifact.kernels, gemm: nodes})))
    return path


def child(
    code: str, model: Path, *, perf: str = "map", before: Callable[[], None] | None = None, wrap: tuple[str, ...] = (), **env: str
) -> subprocess.CompletedProcess:
    environment = {**os.environ, "DISC_TF_PERF": perf, "PYTHONPATH": os.pathsep.join(sys.path), **env}
    command = [*wrap, sys.executable, "-c", RUN + code, str(model)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, preexec_fn=before, timeout=120)


def entries(text: str) -> list[tuple[int, int, str]]:
    found = []
    for line in text.splitlines():
        parts = re.fullmatch(r"([0-9a-f]+) ([0-9a-f]+) (.+)", line)
        assert parts, line
        found.append((int(parts[1], 16), int(parts[2], 16), parts[3]))
    return found


def test_the_map_names_kernels_after_their_nodes(model: Path) -> None:
    code = SHOW + "maps = [l for l in open('/proc/self/maps')]\nprint('---')\nprint(''.join(maps))"
    done = child(code, model)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    head, _, rest = done.stdout.partition("\n")
    assert head == "1.0 mmap"
    told, _, maps = rest.partition("---\n")
    found = entries(told)
    assert any(re.fullmatch(r"dense/MatMul_1 \+2 \[k_gemm\w+\] cluster_7", name) for *_, name in found)
    assert {"[body_uniform] cluster_7", "[segment_0] cluster_7", "[disc_executable_query] cluster_7"} <= {name for *_, name in found}
    at = sorted((a, a + n) for a, n, _ in found)
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(at))
    spans = [re.match(r"([0-9a-f]+)-([0-9a-f]+) r-xp 0+ 00:00 0 *$", line) for line in maps.splitlines()]
    assert any(s and int(s[1], 16) <= at[0][0] and at[-1][1] <= int(s[2], 16) for s in spans)  # perf: only where no file is mapped


def test_off_unless_asked_for(model: Path) -> None:
    done = child("e = load(); print(run(e), e.loader, os.path.exists(map_file))", model, perf="")
    assert done.stdout.split()[::2] == ["1.0", "False"]


@pytest.mark.parametrize(
    "nodes",
    [("a/Reshape", "a/MATMUL_2", "a/BiasAdd"), ("Einsums/x",), ("a/conv/b", "a/b/Conv2D"), ("a", "b/"), ("first", "then/depthwise")],
    ids=lambda nodes: nodes[-1],
)
def test_kernels_are_called_as_in_traces(model: Path, tmp_path: Path, nodes: tuple[str, ...]) -> None:
    artifact = unpack(model.read_bytes())
    kernels = dict.fromkeys(artifact.kernels, nodes)
    assert {k.split("_")[1] for k in kernels} >= {"gemm", "rows"}
    other = tmp_path / "other.bin"
    other.write_bytes(pack(dataclasses.replace(artifact, kernels=kernels)))
    done = child(SHOW, other)
    told = {name for *_, name in entries(done.stdout.partition("\n")[2])}
    assert {f"{label_of(k, nodes)} [{k}] cluster_7" for k in kernels} <= told


def test_what_other_runtimes_wrote_stays_and_what_is_of_a_dead_process_goes(model: Path) -> None:
    done = child("open(map_file, 'w').write('10 10 other runtime\\n')" + SHOW, model)
    assert done.stdout.splitlines()[1] == "10 10 other runtime" and "cluster_7" in done.stdout
    old = "open(map_file, 'w').write('10 10 dead process\\n'); os.utime(map_file, (1e9, 1e9))"
    done = child(old + SHOW, model)
    assert "dead process" not in done.stdout and "cluster_7" in done.stdout


HOSTILE = {
    "a link": ("os.symlink(sys.argv[1], map_file)", "cannot open /tmp/perf-"),
    "a directory": ("os.mkdir(map_file)", "cannot open /tmp/perf-"),
    "a pipe": ("os.mkfifo(map_file)", "cannot open /tmp/perf-"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_map_that_is_something_else(model: Path, name: str) -> None:
    prepare, says = HOSTILE[name]
    before = model.read_bytes()
    code = f"{prepare}\nprint(run(load()))\n(os.rmdir if os.path.isdir(map_file) else os.unlink)(map_file)"
    done = child(code, model)
    assert done.stdout == "1.0\n" and model.read_bytes() == before
    assert done.stderr.count("DISC_TF_PERF") == 1 and says in done.stderr and "perf will not know the names" in done.stderr


@pytest.mark.parametrize(
    ("perf", "loader", "says"),
    [
        ("maps", "", "DISC_TF_PERF: unknown form 'maps'; expected map, jitdump or jitdump:DIRECTORY"),
        ("jitdumps", "", "DISC_TF_PERF: unknown form 'jitdumps'"),
        ("map", "memfd", "names code in anonymous memory only: leave the loader (DISC_TF_LOADER) at auto, or choose mmap"),
    ],
)
def test_settings_that_cannot_be(model: Path, perf: str, loader: str, says: str) -> None:
    done = child("try: load()\nexcept DiscError as e: print(e)", model, perf=perf, DISC_TF_LOADER=loader)
    assert says in done.stdout and not done.stderr


def dump_records(data: bytes) -> list[tuple[int, str, bytes]]:
    """(address, name, code) of a jitdump's records, which fill it to its end."""
    magic, version, size, machine, _, _pid, _time, flags = struct.unpack_from("<6I2Q", data)
    assert (magic, version, size, machine, flags) == (0x4A695444, 1, 40, 62, 0)
    at, out = size, []
    while at < len(data):
        kind, size, _time, _pid, _tid, vma, address, length, index = struct.unpack_from("<2IQ2I4Q", data, at)
        assert kind == 0 and vma == address and index == len(out)
        name, _, code = data[at + 56 : at + size].partition(b"\0")
        assert len(code) == length > 0
        out.append((address, name.decode(), code))
        at += size
    assert at == len(data)
    return out


def jit_child(
    code: str, model: Path, directory: Path, before: Callable[[], None] | None = None
) -> tuple[subprocess.CompletedProcess, list[Path]]:
    done = child(code, model, perf=f"jitdump:{directory}", before=before)
    if "without noexec" in done.stderr:
        pytest.skip("the directory for temporary files is mounted noexec")
    return done, sorted(directory.glob("jit-*.dump"))


def test_a_jitdump_has_the_code(model: Path, tmp_path: Path) -> None:
    done, (path,) = jit_child("print(run(load()))", model, tmp_path)
    assert done.stdout == "1.0\n" and done.stderr == ""
    found = dump_records(path.read_bytes())
    assert any(name.startswith("dense/MatMul_1 +2 [k_gemm") for _, name, _ in found)
    image = unpack(model.read_bytes()).targets[0].image
    assert all(code in image for _, _, code in found)


def test_no_room_for_a_jitdump(model: Path, tmp_path: Path) -> None:
    """A second image that does not fit is not named; the first is, the dump stays whole, and the run goes on."""
    artifact = unpack(model.read_bytes())
    second = tmp_path / "second.bin"
    second.write_bytes(pack(dataclasses.replace(artifact, name="second")))
    limit = (lambda n: lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (n, n)))(len(artifact.targets[0].image) + 4096)
    code = f"a = load(); b = load({str(second)!r}); print(run(a) + run(b))"
    done, (path,) = jit_child(code, model, tmp_path, limit)
    assert done.stdout == "2.0\n"
    assert done.stderr.count("DISC_TF_PERF") == 1 and "File too large (what was there before is whole)" in done.stderr
    assert all("cluster_7" in name for _, name, _ in dump_records(path.read_bytes()))


def test_a_directory_that_is_not_there(model: Path, tmp_path: Path) -> None:
    done, found = jit_child("print(run(load()))", model, tmp_path / "none")
    assert done.stdout == "1.0\n" and not found and f"cannot make {tmp_path}/none/jit-" in done.stderr


def test_a_forked_process_has_files_of_its_own(model: Path, tmp_path: Path) -> None:
    code = """
e = load()
pid = os.fork()
if pid == 0:
    other = load(sys.argv[1] + "2")
    os._exit(0 if run(e) + run(other) == 2.0 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), run(e))
"""
    Path(f"{model}2").write_bytes(pack(dataclasses.replace(unpack(model.read_bytes()), name="childs")))
    done, found = jit_child(code, model, tmp_path)
    assert done.stdout == "0 1.0\n", done.stderr
    parent, forked = (dump_records(p.read_bytes()) for p in sorted(found, key=lambda p: int(p.stem[4:])))
    assert {n.rpartition(" ")[2] for _, n, _ in parent} == {"cluster_7"} and {n.rpartition(" ")[2] for _, n, _ in forked} == {"childs"}


def _perf(arguments: list[str], directory: Path) -> str:
    done = subprocess.run(["perf", *arguments], capture_output=True, text=True, check=False, cwd=directory, timeout=120)
    if done.returncode != 0:
        pytest.skip(f"perf cannot be used here: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    return done.stdout


@pytest.mark.parametrize("form", ["map", "jitdump"])
def test_perf_shows_the_names(model: Path, tmp_path: Path, form: str) -> None:
    if shutil.which("perf") is None:
        pytest.skip("perf is not installed")
    _perf(["record", "-e", "cpu-clock", "-o", "probe", "true"], tmp_path)
    record = ("perf", "record", "-k", "mono", "-e", "cpu-clock", "-F", "2000", "-o", str(tmp_path / "data"))
    done = child("import time\nprint(map_file)\ne, end = load(), time.monotonic() + 0.7\nwhile time.monotonic() < end: run(e, 20)", model,
                 perf="map" if form == "map" else f"jitdump:{tmp_path}", wrap=record)  # fmt: skip
    assert done.returncode == 0 and "DISC_TF_PERF" not in done.stderr, done.stderr
    data = "data"
    if form == "jitdump":
        _perf(["inject", "--jit", "-i", "data", "-o", "named"], tmp_path)
        data = "named"
    report = _perf(["report", "-i", data, "--stdio", "--sort", "symbol"], tmp_path)
    Path(done.stdout.strip()).unlink(missing_ok=True)
    assert re.search(r"\d\.\d\d% +\[\.\] dense/MatMul_1 \+2 \[k_gemm\w+\] cluster_7", report), report


def test_names_are_one_line(model: Path) -> None:
    """What a node is called in an artefact is not ours to trust."""
    artifact = unpack(model.read_bytes())
    gemm = next(k for k in artifact.kernels if k.startswith("k_gemm"))
    odd = Path(f"{model}-odd")
    odd.write_bytes(pack(dataclasses.replace(artifact, kernels={gemm: ("a\n7f 1 b\x1b" + "x" * 5000,)})))
    done = child(SHOW, odd)
    found = entries(done.stdout.partition("\n")[2])
    assert [len(n) for *_, n in found if n.startswith("a?7f 1 b?xxx")] == [240]
