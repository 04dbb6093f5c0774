"""The disk cache: hit by the next process, never trusted further than its bytes and owner, of bounded size."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import disc_tf
from disc_tf.just_in_time import settings, version
from disc_tf.just_in_time.cache import CacheError, DiskCache, cache_key
from disc_tf.just_in_time.canonical import canonical
from disc_tf.just_in_time.work import Request, Result
from disc_tf.report import ClusterReport, KernelReport, LeftOut, Report, ShapeResult

PROGRAM = Path(__file__).with_name("program.py")


def entries(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.discjit"))


def program() -> Any:
    spec = importlib.util.spec_from_file_location("jit_program", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_next_process_compiles_nothing(tmp_path):
    """Here first, then in a process where everything has other numbers."""
    here = program().run(str(tmp_path))
    assert [(r["state"], r["cached"]) for r in here] == [("compiled", False)] * 2
    files = entries(tmp_path)
    assert len(files) == 2 and all(f.stat().st_mode & 0o777 == 0o600 for f in files)
    assert max(f.stat().st_size for f in files) < 200_000
    root = Path(disc_tf.__file__).parents[1]
    command, env = [sys.executable, str(PROGRAM), str(tmp_path)], {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    there = json.loads(done.stdout.splitlines()[-1])
    assert [(r["state"], r["cached"]) for r in there] == [("compiled", True)] * 2
    assert entries(tmp_path) == files
    for a, b in zip(here, there, strict=True):
        np.testing.assert_array_equal(a["y"], b["y"])
        np.testing.assert_array_equal(a["gradient"], b["gradient"])
    np.testing.assert_allclose(here[1]["gradient"], np.exp([0.0, 1.0]) * 3.0, rtol=1e-6)


def small(cache_dir: Any, **options: Any) -> Any:
    return disc_tf.jit(lambda x: tf.nn.softmax(x) * 2.0 + 1.0, background=False, cache_dir=cache_dir, **options)


def run_small(cache_dir: Any, **options: Any) -> Any:
    f = small(cache_dir, **options)
    x = tf.constant([[1.0, 2.0, 3.0]])
    np.testing.assert_allclose(f(x), tf.nn.softmax(x) * 2.0 + 1.0, rtol=1e-5)
    assert f.report()[0].state == "compiled"
    return f


DAMAGE = {
    "empty": lambda data: b"",
    "short": lambda data: data[: len(data) // 2],
    "one bit": lambda data: data[:-7] + bytes([data[-7] ^ 1]) + data[-6:],
    "another format": lambda data: b"DISCJIT\x09" + data[8:],
    "noise": lambda data: os.urandom(len(data)),
}


def test_a_damaged_entry_is_compiled_again(tmp_path):
    assert not run_small(tmp_path).report().from_cache
    assert run_small(tmp_path).report().from_cache
    (path,) = entries(tmp_path)
    good = path.read_bytes()
    for name, damage in DAMAGE.items():
        path.write_bytes(damage(good))
        assert not run_small(tmp_path).report().from_cache, name
        assert run_small(tmp_path).report().from_cache, name


def test_only_files_of_this_user_alone_are_trusted(tmp_path):
    run_small(tmp_path)
    (path,) = entries(tmp_path)
    for mode in (0o622, 0o660, 0o604):
        path.chmod(mode)
        assert not run_small(tmp_path).report().from_cache
        assert path.stat().st_mode & 0o777 == 0o600
    real = tmp_path / "elsewhere"
    path.rename(real)
    path.symlink_to(real)
    assert not run_small(tmp_path).report().from_cache, "a link is not followed"
    tmp_path.chmod(0o777)
    report = run_small(tmp_path).report()
    assert not report.from_cache and "others may write" in str(report[0].report.warnings)
    tmp_path.chmod(0o700)
    assert run_small(tmp_path).report().from_cache


def test_a_directory_that_cannot_be_used_costs_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    report = run_small(tmp_path / "file" / "cache").report()
    assert "cannot be made" in str(report[0].report.warnings)
    with pytest.raises(CacheError, match="give another cache_dir"):
        DiskCache(tmp_path / "file", 1).prepare()
    cache = DiskCache(tmp_path / "new", 1 << 20)
    cache.prepare()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert not DiskCache(tmp_path / "gone", 1 << 20).put("k", result(10))


def result(size: int) -> Result:
    graph = tf.compat.v1.GraphDef()
    node = graph.node.add()
    node.name, node.op = "n", "NoOp"
    node.attr["data"].s = os.urandom(size)
    return Result(graph.SerializeToString(), Report(compiler_version="1"))


def test_the_least_recently_used_goes_first(tmp_path):
    cache, empty = DiskCache(tmp_path, 11_000), tf.compat.v1.GraphDef()
    for i in range(3):
        assert cache.put(f"k{i}", result(3000))
        os.utime(tmp_path / f"k{i}.discjit", (1000 + i, 1000 + i))
    assert cache.get("k0", empty) is not None  # used: now the youngest
    assert cache.put("k3", result(3000))
    assert [p.stem for p in entries(tmp_path)] == ["k0", "k2", "k3"]
    assert not cache.put("huge", result(20_000)) and len(entries(tmp_path)) == 3
    stale = tmp_path / ".entry.killed"
    stale.write_text("x")
    os.utime(stale, (1000, 1000))
    cache.evict()
    assert not stale.exists()


def test_a_result_comes_back_whole_but_weights_come_from_the_graph(tmp_path):
    graph = tf.compat.v1.GraphDef()
    node = graph.node.add()
    node.name, node.op = "w", "Const"
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.arange(2000, dtype=np.float32)))
    report = Report(
        compiler_version="1", targets=["t"], clusters=[ClusterReport("c", 3, kernels=[KernelReport("k", "rows", ["a"])])],
        left_out=[LeftOut("n", "Op", "CODE", "why")], verification=[ShapeResult({"x": [1]}, True)], warnings=["w"],
    )  # fmt: skip
    cache = DiskCache(tmp_path, 1 << 20)
    cache.prepare()
    assert cache.put("k", Result(graph.SerializeToString(), report))
    assert (tmp_path / "k.discjit").stat().st_size < 2000
    found = cache.get("k", graph)
    assert found is not None and found.report == report
    assert tf.compat.v1.GraphDef.FromString(found.graph) == graph
    assert cache.get("k", tf.compat.v1.GraphDef()) is None, "without the weights it is no entry"


def test_the_key_is_content_not_names_or_order():
    def make(prelude: int) -> tuple[Any, Any]:
        for _ in range(prelude):
            tf.function(lambda x: x + 1.0).get_concrete_function(tf.TensorSpec([None]))
        f = tf.function(lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: tf.exp(x), lambda: inner(x)))
        inner = tf.function(lambda x: x * 2.0)
        return f, f.get_concrete_function(tf.TensorSpec([None], name="x")).graph.as_graph_def(add_shapes=True)

    keep, a = make(0)
    also, b = make(3)
    assert a != b and keep is not also
    shuffled = type(b)()
    shuffled.CopyFrom(b)
    del shuffled.node[:]
    shuffled.node.extend(reversed(b.node))
    changed = type(b)()
    changed.CopyFrom(b)
    for f in changed.library.function:
        for n in f.node_def:
            if n.op == "Exp":
                n.op = "Expm1"
    digests = [canonical(g).digest for g in (a, b, shuffled, changed)]
    assert digests[0] == digests[1] == digests[2] != digests[3]
    assert all(f.signature.name.startswith("disc_fn_") for f in a.library.function)
    for graph in (a, b):  # still a graph
        with tf.Graph().as_default():
            tf.import_graph_def(graph)
    request = Request(b"", ["y"], {"targets": ["x86-64-v3"]})
    other = Request(b"", ["y"], {"targets": ["x86-64-v2"]})
    assert cache_key(digests[0], request) == cache_key(digests[1], request) != cache_key(digests[0], other)
    assert cache_key(digests[0], request) != cache_key(digests[3], request)


def test_options_and_what_is_not_stored(tmp_path, monkeypatch):
    run_small(tmp_path)
    assert not run_small(tmp_path, min_cluster_size=2).report().from_cache
    assert len(entries(tmp_path)) == 2
    run_small(None)
    assert len(entries(tmp_path)) == 2

    def half(request, *_):
        return Result(b"", Report(clusters=[ClusterReport("c", 3, "failed", "out of memory")]))

    monkeypatch.setattr(version, "compile_request", half)
    f = disc_tf.jit(lambda x: tf.exp(x) - 1.0, background=False, cache_dir=tmp_path)
    with pytest.warns(UserWarning, match="c: out of memory"):
        f(tf.ones([2]))
    assert len(entries(tmp_path)) == 2, "a failure may be another time's success"


def test_the_default_directory_is_the_users(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/tmp/xdg")
    assert settings.default_cache_dir() == "/var/tmp/xdg/disc_tf"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the specification
    assert settings.default_cache_dir() == os.path.expanduser("~/.cache/disc_tf")
    assert settings.JitOptions.from_overrides(cache_dir="~/x").cache_dir == os.path.expanduser("~/x")
