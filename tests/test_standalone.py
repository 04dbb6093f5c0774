"""A whole graph as one file: what it holds, how it runs, what is refused. The runner is tested in a process that may import numpy only."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import weakref
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disc_tf.frontend.errors import GraphError
from disc_tf.runtime import ArtifactError, DiscError, counters, load
from disc_tf.runtime.artifact import tensor_digest
from disc_tf.runtime.artifact_file import read_file, verify_file
from disc_tf.runtime.host import Host
from disc_tf.standalone import NotWhole, compile_graph_def
from tests.frontend.graphs import I32, G

ROOT = Path(__file__).parents[1]
RNG = np.random.default_rng(3)
QUICK: dict[str, Any] = {"targets": "native", "use_tf_shapes": False}
W = RNG.standard_normal((64, 32)).astype(np.float32)


def mlp() -> G:
    g = G()
    g.placeholder("x", [None, 64])
    g.const("w", W)
    g.unary("y", g.matmul("m", "x", "w"))
    g.unary("z", "y", "Neg")
    return g


def expected(x: np.ndarray) -> np.ndarray:
    return np.tanh(x @ W)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("standalone") / "mlp.disc"
    compile_graph_def(mlp().proto, ["y", "z:0"], path, **QUICK)
    return path


def x_of(rows: int) -> np.ndarray:
    return RNG.standard_normal((rows, 64)).astype(np.float32)


def test_names_shapes_and_answers(model: Path) -> None:
    runner = load(model, verify=True)
    assert [(t.name, t.dtype, t.shape) for t in runner.inputs.values()] == [("x", "f32", (None, 64))]
    assert [(t.name, t.dtype, t.shape) for t in runner.outputs.values()] == [("y", "f32", (None, 32)), ("z", "f32", (None, 32))]
    for rows in (1, 0, 7, 300):
        x = x_of(rows)
        out = runner.run({"x": x})
        np.testing.assert_allclose(out["y"], expected(x), rtol=2e-5, atol=2e-6)
        np.testing.assert_array_equal(out["z"], -out["y"])
        later = runner.run_async({"x": x})
        assert later.outputs["y"].result(30).tobytes() == out["y"].tobytes()
        assert later.result(30)["z"].tobytes() == out["z"].tobytes() and later.done()


def test_wrong_calls_are_named(model: Path) -> None:
    runner = load(model)
    with pytest.raises(ValueError, match="no value for input x; the inputs are x"):
        runner.run({})
    with pytest.raises(ValueError, match="unknown input q"):
        runner.run({"x": x_of(1), "q": x_of(1)})
    with pytest.raises(TypeError, match="argument x: f32 is needed, float64"):
        runner.run({"x": np.zeros((1, 64))})
    with pytest.raises(DiscError, match=r"input x has shape \[1,63\]"):
        runner.run({"x": np.zeros((1, 63), np.float32)})
    with pytest.raises(DiscError, match=r"has shape \[1,63\]"):
        runner.run_async({"x": np.zeros((1, 63), np.float32)}).outputs["y"].result(30)


def test_inputs_as_futures(model: Path) -> None:
    runner = load(model)
    x: Future[np.ndarray] = Future()
    told: list[str] = []
    job = runner.run_async({"x": x}, on_output=lambda name, _array: told.append(name))
    assert not job.done()
    x.set_result(x_of(5))
    assert job.result(30)["y"].shape == (5, 32) and sorted(told) == ["y", "z"]
    broken: Future[np.ndarray] = Future()
    job = runner.run_async({"x": broken})
    broken.set_exception(OSError("no sensor"))
    with pytest.raises(OSError, match="no sensor"):
        job.result(30)
    job = runner.run_async({"x": Future()})
    job.cancel()
    with pytest.raises(CancelledError):
        job.outputs["y"].result(30)


def test_many_runs_of_one_model_at_a_time(model: Path) -> None:
    runner = load(model)
    wrong = []

    def work() -> None:
        for rows in (1, 9, 33):
            x = x_of(rows)
            jobs = [runner.run_async({"x": x}) for _ in range(4)]
            want = runner.run({"x": x})["y"].tobytes()
            wrong.extend(1 for job in jobs if job.result(60)["y"].tobytes() != want)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_abandoned_runs_leave_nothing(model: Path) -> None:
    def held() -> tuple[int, int]:
        gc.collect()
        return counters()["arena_in_use_bytes"], sum(isinstance(x, Host) for x in gc.get_objects())

    runner = load(model)
    runner.run({"x": x_of(3)})
    before = held()
    jobs = [runner.start() for _ in range(20)]
    watch = weakref.ref(jobs[-1])
    for job in jobs[:10]:
        job.cancel()
    del jobs, job
    for _ in range(200):
        if watch() is None and held()[1] == before[1]:
            break
        threading.Event().wait(0.01)
    assert watch() is None and held() == before


def test_early_results_cannot_be_changed_before_the_end(model: Path) -> None:
    frozen = []
    job = load(model).run_async({"x": x_of(2)}, on_output=lambda _name, array: frozen.append(array.flags.writeable))
    assert job.result(30)["y"].flags.writeable and frozen == [False, False]


# ---- the file -----------------------------------------------------------------------------------------------------------


def test_the_weights_are_in_the_file_once_and_aligned(model: Path) -> None:
    artifact = read_file(model)
    (c,) = artifact.constants
    assert c.size == W.nbytes and c.offset % 64 == 0
    data = model.read_bytes()
    assert data[c.offset : c.offset + c.size] == W.tobytes() and data.count(W.tobytes()) == 1
    assert artifact.args[c.arg].digest == tensor_digest(W, "f32")


def test_a_changed_weight_is_found(model: Path, tmp_path: Path) -> None:
    data = bytearray(model.read_bytes())
    data[read_file(model).constants[0].offset + 5] ^= 1
    (tmp_path / "bad.disc").write_bytes(data)
    with pytest.raises(ArtifactError, match="constant w does not match its digest"):
        verify_file(tmp_path / "bad.disc")
    with pytest.raises(ArtifactError):
        load(tmp_path / "bad.disc", verify=True)


def test_damaged_files_are_refused(model: Path, tmp_path: Path) -> None:
    data = model.read_bytes()
    bad = tmp_path / "bad.disc"
    count = int.from_bytes(data[12:16], "little")
    table_end = 64 + 32 * count
    for damaged in (b"", data[:40], data[:-1], data + b"\0", b"\x7fELF" + data[4:]):
        bad.write_bytes(damaged)
        with pytest.raises((DiscError, ArtifactError)):
            load(bad)
    for at in (*range(8, table_end, 7), table_end + 70):
        flipped = bytearray(data)
        flipped[at] ^= 0x40
        bad.write_bytes(flipped)
        with pytest.raises((DiscError, ArtifactError)):
            load(bad, verify=True)
    with pytest.raises(DiscError, match="NOT_FOUND: cannot open"):
        load(tmp_path / "none.disc")
    with pytest.raises(DiscError, match="not a regular file"):
        load(tmp_path)


def test_writing_is_atomic_and_deterministic(model: Path, tmp_path: Path) -> None:
    again = tmp_path / model.name  # the name is in the file
    compile_graph_def(mlp().proto, ["y", "z:0"], again, **QUICK)
    assert again.read_bytes() == model.read_bytes()
    assert os.listdir(tmp_path) == [model.name]
    with pytest.raises(OSError):
        compile_graph_def(mlp().proto, ["y"], tmp_path / "no" / "where.disc", **QUICK)


# ---- graphs -------------------------------------------------------------------------------------------------------------


def test_outputs_that_nothing_computes(tmp_path: Path) -> None:
    """Inputs, constants, the same tensor twice: every output that was asked for is there."""
    g = mlp()
    g.node("same", "Identity", ["x"], T=("type", 1))
    g.const("small", [1.5, 2.5])
    path = tmp_path / "m.disc"
    compile_graph_def(g.proto, ["y", "x:0", "same", "small", "w", "m"], path, names={"x": "picture"}, **QUICK)
    x = x_of(3)
    out = load(path).run({"picture": x})
    assert list(out) == ["y", "picture", "same", "small", "w", "m"]
    np.testing.assert_array_equal(out["picture"], x)
    np.testing.assert_array_equal(out["same"], x)
    np.testing.assert_array_equal(out["small"], np.float32([1.5, 2.5]))
    np.testing.assert_array_equal(out["w"], W)
    out["w"][:] = 0  # not the file's pages
    np.testing.assert_array_equal(load(path).run({"picture": x})["w"], W)
    compile_graph_def(g.proto, ["small"], path, **QUICK)
    assert load(path).run({})["small"].tolist() == [1.5, 2.5]


def test_a_graph_that_needs_tensorflow_is_refused_with_every_reason(tmp_path: Path) -> None:
    g = mlp()
    g.node("text", "AsString", ["y"], T=("type", 1))
    g.node("back", "StringToNumber", ["text"], out_type=("type", 1))
    with pytest.raises(NotWhole, match="cannot run without TensorFlow: 2 needed nodes cannot be compiled") as error:
        compile_graph_def(g.proto, ["back"], tmp_path / "m.disc", **QUICK)
    assert error.value.reasons.keys() == {"text", "back"} and "text (AsString)" in str(error.value)
    assert not list(tmp_path.iterdir())
    v = G()
    v.node("v", "VarHandleOp", dtype=("type", 1), shape=("shape", [4]))
    v.node("r", "ReadVariableOp", ["v"], dtype=("type", 1))
    v.unary("o", "r")
    with pytest.raises(NotWhole, match="freeze the model first"):
        compile_graph_def(v.proto, ["o"], tmp_path / "m.disc", **QUICK)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [(["q"], "no such node"), (["w"], "is a Const, not a placeholder"), ([], "need input 'x', which is not among")],
)
def test_inputs_that_are_not_the_graphs(tmp_path: Path, inputs: list[str], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        compile_graph_def(mlp().proto, ["y"], tmp_path / "m.disc", inputs, **QUICK)


def test_checks_keep_their_code_and_node(tmp_path: Path) -> None:
    g = G()
    g.const("table", RNG.standard_normal((5, 3)))
    g.placeholder("i", [None], I32)
    g.const("axis", 0, np.int32)
    g.node("pick", "GatherV2", ["table", "i", "axis"], Tparams=("type", 1), Tindices=("type", I32), Taxis=("type", I32), batch_dims=0)
    path = tmp_path / "m.disc"
    compile_graph_def(g.proto, ["pick"], path, **QUICK)
    runner = load(path)
    assert runner.run({"i": np.array([4, 0], np.int32)})["pick"].shape == (2, 3)
    for run in (runner.run, lambda feeds: runner.run_async(feeds).result(30)):
        with pytest.raises(DiscError) as error:
            run({"i": np.array([4, 5], np.int32)})
        assert (error.value.code, error.value.node) == (3, "pick")


# ---- what the process needs ---------------------------------------------------------------------------------------------


def child(code: str, *arguments: object) -> str:
    """Output of a program that may import the standard library, numpy and us."""
    guard = """
        import sys
        class Guard:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {"tensorflow", "jax", "jaxlib", "llvmlite", "google", "ml_dtypes", "scipy", "keras"}:
                    raise AssertionError(f"{name} was imported")
        sys.meta_path.insert(0, Guard())
    """
    program = textwrap.dedent(guard) + textwrap.dedent(code)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_runner_needs_numpy_only(model: Path) -> None:
    code = """
        import numpy as np
        import disc_tf.runtime
        m = disc_tf.runtime.load(sys.argv[1], verify=True)
        x = np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)
        out = m.run({"x": x})
        assert m.run_async({"x": x}).result()["y"].tobytes() == out["y"].tobytes()
        print(float(out["y"].sum()))
        ours = {n for n in sys.modules if n.startswith("disc_tf")}
        print(sorted(n for n in ours if not n.startswith(("disc_tf.runtime", "disc_tf.version", "disc_tf.atomic")) and n != "disc_tf"))
    """
    total, modules = child(code, model).splitlines()
    x = np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)
    assert float(total) == pytest.approx(float(expected(x).sum()), rel=1e-4)
    assert modules == "[]"


def test_importing_the_op_imports_no_compiler() -> None:
    """What comes with `import disc_tf.ops` (a stand-in for TensorFlow is there): the path of the library and the gradient, nothing else."""
    code = """
        import types
        tf = types.ModuleType("tensorflow")
        tf.load_op_library = lambda path: types.SimpleNamespace(path=path)
        tf.RegisterGradient = lambda name: lambda fn: fn
        registry = types.ModuleType("tensorflow.python.framework.op_def_registry")
        registry.get = lambda name: name
        names = ["tensorflow", "tensorflow.python", "tensorflow.python.framework"]
        sys.modules |= {n: types.ModuleType(n) for n in names} | {"tensorflow": tf, registry.__name__: registry}
        import numpy
        before = set(sys.modules)
        import disc_tf.ops
        assert disc_tf.ops.load_op_library().path.endswith("libdisc_tf_op.so")
        print(" ".join(sorted(n for n in set(sys.modules) - before if n.startswith("disc_tf"))))
    """
    ours = set(child(code).split())
    allowed = {"disc_tf", "disc_tf.ops", "disc_tf.version", "disc_tf.runtime"}
    assert ours == {*allowed, "disc_tf.runtime._build"}


@pytest.mark.parametrize(
    ("inputs", "names", "unused"),
    [
        (None, {}, {"mask", "seed"}),
        (["x", "mask"], {}, {"mask"}),
        (["x"], {}, set()),
        (None, {"mask:0": "attention_mask", "x:0": "hidden"}, {"attention_mask", "seed"}),
    ],
    ids=["all", "some", "none", "named"],
)
def test_inputs_that_nothing_reads_are_taken(inputs: list[str] | None, names: dict[str, str], unused: set[str], tmp_path: Path) -> None:
    g = mlp()
    g.placeholder("mask", [None, 64])
    g.placeholder("seed", [], I32)
    compile_graph_def(g.proto, ["y"], tmp_path / "m.disc", inputs, names=names, **QUICK)
    x, called = x_of(3), names.get("x:0", "x")
    with load(tmp_path / "m.disc") as runner:
        assert set(runner.unused) == unused and list(runner.inputs) == [called]
        assert read_file(tmp_path / "m.disc").unused == tuple(sorted(unused))
        more = {name: np.zeros((1, 1)) for name in unused}
        for given in ({called: x}, {called: x, **more}):
            np.testing.assert_allclose(runner.run(given)["y"], expected(x), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(runner.run_async(given).result(30)["y"], expected(x), rtol=1e-4, atol=1e-5)
        job = runner.start()
        for name, value in {**more, called: x}.items():
            job.feed(name, value)
        np.testing.assert_allclose(job.result(30)["y"], expected(x), rtol=1e-4, atol=1e-5)
        for wrong, meant in (("maks", "mask"), (f"{called}s", called)):
            with pytest.raises(ValueError, match=f"unknown input {wrong}; the inputs are {called}") as told:
                runner.run({called: x, wrong: x})
            assert f"did you mean {meant}?" in str(told.value) or meant not in (*runner.inputs, *unused)


@pytest.mark.parametrize("shape", [(64,), (3, 63), (0, 0), (1, 2, 64)])
def test_a_wrong_shape_names_the_input_as_the_user_does(model: Path, shape: tuple[int, ...], tmp_path: Path) -> None:
    """Weights are arguments too, and are not counted."""
    text = str(list(shape)).replace(" ", "")
    with load(model) as runner, pytest.raises(DiscError) as told:
        runner.run({"x": np.zeros(shape, np.float32)})
    assert told.value.message == f"input x has shape {text}, [?,64] was compiled"
    g = mlp()
    g.placeholder("b", [None, 32])
    g.binary("s", "y", "b")
    compile_graph_def(g.proto, ["s"], tmp_path / "two.disc", **QUICK)
    with load(tmp_path / "two.disc") as runner, pytest.raises(DiscError) as told:
        runner.run({"x": x_of(3), "b": np.zeros((3, 31), np.float32)})
    place = 1 + list(runner.inputs).index("b")
    assert told.value.message == f"input b ({place} of 2) has shape [3,31], [?,32] was compiled"
