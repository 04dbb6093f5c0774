"""What is compiled answers as before wherever it is loaded; what is not ours stays; `restore` gives the original back."""

from __future__ import annotations

import filecmp
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from disc_tf.frontend.saved_model import SavedModelError, choose_meta_graph, read_saved_model
from disc_tf.frontend.tfproto import serialized
from disc_tf.options import Options
from disc_tf.saved_model import optimize_saved_model, read_marker, restore_saved_model
from disc_tf.saved_model_rewrite import rewrite_meta_graph
from tests.saved_model.models import MODELS, Scorer, feeds

v1 = tf.compat.v1
#: those with signatures and tags
NAMES = [n for n in MODELS if not n.startswith("hub")]


def meta(path: Path):
    return choose_meta_graph(read_saved_model(path), None)


def launches(path: Path) -> int:
    g = meta(path).graph_def
    return sum(n.op == "DiscLaunch" for nodes in (g.node, *(f.node_def for f in g.library.function)) for n in nodes)


def close(a, b) -> None:
    assert a.keys() == b.keys()
    for key in a:
        x, y = np.asarray(a[key]), np.asarray(b[key])
        assert x.dtype == y.dtype and x.shape == y.shape
        if x.dtype.kind == "f":
            np.testing.assert_allclose(y, x, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("name", NAMES)
def test_every_signature_answers_as_before(name, original, optimized):
    path, report = optimized(name)
    least = {"words": 0.6, "tf1_two": 0.75, "estimator": 0.35}.get(name, 0.99)  # strings, tables, fed tensors stay outside
    assert report.compiled_clusters and report.coverage > least, report.to_text()
    assert launches(path) == len(report.compiled_clusters)
    a, b = tf.saved_model.load(str(original(name))), tf.saved_model.load(str(path))
    assert set(a.signatures) == set(b.signatures)
    for key in a.signatures:
        if key == "bump":  # changes the variable
            continue
        assert str(a.signatures[key].structured_input_signature) == str(b.signatures[key].structured_input_signature)
        for size in (1, 4, 0, 13):
            given = feeds(a.signatures[key], size)
            close(a.signatures[key](**given), b.signatures[key](**given))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_computation_stays(name, original, optimized):
    path, _ = optimized(name)
    old, new = meta(original(name)), meta(path)
    for m in (old, new):
        m.meta_info_def.stripped_op_list.Clear()
    op_list = read_saved_model(path).meta_graphs[0].meta_info_def.stripped_op_list
    kept = {n.name for n in old.graph_def.node if n.op in ("SaveV2", "RestoreV2", "Placeholder", "NoOp", "VarHandleOp")}
    assert kept <= {n.name for n in new.graph_def.node}
    assert [f.signature.name for f in old.graph_def.library.function] == [
        f.signature.name for f in new.graph_def.library.function if not f.signature.name.startswith("disc_")
    ]
    assert "DiscLaunch" in {op.name for op in op_list.op}
    for m in (old, new):
        m.graph_def.Clear()
    assert old == new
    for file in ("variables/variables.index", "assets/vocabulary.txt"):
        if (original(name) / file).exists():
            assert filecmp.cmp(original(name) / file, path / file, shallow=False)


def test_the_fingerprint_is_that_of_the_new_files(original, optimized):
    from tensorflow.python.saved_model.pywrap_saved_model import fingerprinting

    path, report = optimized("module")
    assert (path / "fingerprint.pb").read_bytes() != (original("module") / "fingerprint.pb").read_bytes()
    from disc_tf.frontend.tfproto import parse

    ours = parse("FingerprintDef", (path / "fingerprint.pb").read_bytes())
    theirs = parse("FingerprintDef", fingerprinting.CreateFingerprintDef(str(path)))
    assert ours.saved_model_checksum == theirs.saved_model_checksum and ours.graph_def_program_hash == theirs.graph_def_program_hash
    marker = read_marker(path)
    assert marker is not None and marker["source_digest"] == report.source_digest


@pytest.mark.parametrize("name", ["module", "words", "tf1", "tf1_two"])
def test_the_loader_of_tensorflow_1(name, original, optimized):
    found = []
    for path in (original(name), optimized(name)[0]):
        with v1.Graph().as_default() as graph, v1.Session(graph=graph) as session:
            signatures = v1.saved_model.load(session, ["serve"], str(path)).signature_def
            answers = {}
            for key, signature in signatures.items():
                if key in ("bump", "__saved_model_init_op"):
                    continue
                rng = np.random.default_rng(1)
                given = {}
                for info in signature.inputs.values():
                    dims = [5 if d.size < 0 else d.size for d in info.tensor_shape.dim]
                    dtype = tf.dtypes.as_dtype(info.dtype)
                    value = rng.choice(["red", "x"], dims) if dtype == tf.string else rng.normal(size=dims)
                    given[info.name] = value > 0 if dtype == tf.bool else value.astype(dtype.as_numpy_dtype)
                answers |= {f"{key}/{k}": session.run(t.name, given) for k, t in signature.outputs.items()}
            found.append(answers)
    close(*found)


def test_a_reusable_model_of_the_hub(original, optimized):
    """The root call is compiled, though no signature has it; the call for training, its dropout and its counter stay as they are."""
    path, report = optimized("hub")
    a, b = tf.saved_model.load(str(original("hub"))), tf.saved_model.load(str(path))
    assert set(a.signatures) == set(b.signatures) and report.compiled_clusters
    for size in ((3, 5), (1, 1), (0, 4), (7, 2)):
        ids = tf.constant(np.random.default_rng(0).integers(0, 30, size), tf.int32)
        close(a(ids), b(ids))
        close(a(ids, training=False), b(ids, training=False))
    ids = tf.constant([[1, 2], [3, 4]])
    for m in (a, b):
        before = m.seen.numpy()
        assert m(ids, training=True)["default"].shape == (2, 4) and m.seen.numpy() == before + 1
        assert len(m.variables_list) == 3 and m.regularization_losses[0]().numpy() > 0
    found = []
    for m in (a, b):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(m(ids)["default"][:, 0])
        found.append({"kernel": tape.gradient(loss, m.kernel)})
    close(*found)


def test_a_module_of_the_hub_without_tags(original, optimized):
    """TensorFlow 1: the MetaGraph to be used has no tags at all."""
    x = np.random.default_rng(2).normal(size=(6, 8)).astype("f")
    found = []
    for path in (original("hub1"), optimized("hub1")[0]):
        with v1.Graph().as_default() as graph, v1.Session(graph=graph) as session:
            signature = v1.saved_model.load(session, [], str(path)).signature_def["default"]
            found.append({"y": session.run(signature.outputs["default"].name, {signature.inputs["default"].name: x})})
    close(*found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["module", "tf1_two"])
def test_the_stock_command_shows_what_it_showed(name, original, optimized):
    """`saved_model_cli show` in a process that knows nothing of our op."""
    command = [sys.executable, "-m", "tensorflow.python.tools.saved_model_cli", "show", "--all", "--dir"]
    told = []
    for path in (original(name), optimized(name)[0]):
        done = subprocess.run([*command, str(path)], capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        # then come concrete functions, which it cannot list of a model with an op that is not TensorFlow's, and the ops, in no order
        told.append(done.stdout.partition("Concrete Functions:")[0].partition("The MetaGraph with")[0])
    assert "signature_def['serving_default']:" in told[0] and told[0] == told[1]
    assert "'DiscLaunch'" in done.stdout


@pytest.mark.parametrize("name", MODELS)
def test_restore_gives_the_bytes_back(name, original, optimized, tmp_path):
    restored = restore_saved_model(optimized(name)[0], tmp_path / "back")
    assert restored.exact
    different = filecmp.dircmp(original(name), tmp_path / "back")
    assert not different.left_only and not different.right_only
    for file in different.common_files:
        assert filecmp.cmp(original(name) / file, tmp_path / "back" / file, shallow=False), file


def test_saved_again_by_others(optimized, tmp_path):
    path, _ = optimized("module")
    loaded = tf.saved_model.load(str(path))
    tf.saved_model.save(loaded, str(tmp_path / "again"), signatures=dict(loaded.signatures))
    assert launches(tmp_path / "again") == launches(path)
    for more in ({}, {"freeze": True}):
        with pytest.raises(SavedModelError, match="again was optimised by disc_tf: give the original"):
            optimize_saved_model(tmp_path / "again", tmp_path / "twice", **more)
    again = tf.saved_model.load(str(tmp_path / "again"))
    given = feeds(loaded.signatures["serving_default"], 5)
    close(loaded.signatures["serving_default"](**given), again.signatures["serving_default"](**given))
    restored = restore_saved_model(tmp_path / "again", tmp_path / "back")
    assert not restored.exact and restored.launches == launches(path) and launches(tmp_path / "back") == 0
    back = tf.saved_model.load(str(tmp_path / "back"))
    close(loaded.signatures["serving_default"](**given), back.signatures["serving_default"](**given))
    close({"y": loaded(given["x"])}, {"y": back(given["x"])})


def test_restored_main_graph_that_was_saved_again(optimized, copy_of, tmp_path):
    path = copy_of(optimized("tf1")[0])
    message = read_saved_model(path)
    message.meta_graphs[0].meta_info_def.any_info.type_url = "somebody else's"
    (path / "saved_model.pb").write_bytes(serialized(message))
    restored = restore_saved_model(path, tmp_path / "back")
    assert not restored.exact and restored.launches == 1
    a, b = tf.saved_model.load(str(path)), tf.saved_model.load(str(tmp_path / "back"))
    given = feeds(a.signatures["serving_default"], 3)
    close(a.signatures["serving_default"](**given), b.signatures["serving_default"](**given))


def test_gradients_and_training(original, optimized):
    a, b = tf.saved_model.load(str(original("module"))), tf.saved_model.load(str(optimized("module")[0]))
    x = tf.constant(np.random.default_rng(0).normal(size=(6, 16)).astype("f"))
    for step in range(3):
        losses, gradients = [], []
        for m in (a, b):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(m(x)[:, 0] ** 2)
            gradient = tape.gradient(loss, [m.w, m.b, m.w2])
            for v, g in zip((m.w, m.b, m.w2), gradient, strict=True):
                v.assign_sub(g)
            losses.append({"loss": loss})
            gradients.append({str(i): g for i, g in enumerate(gradient)})
        close(*losses)
        close(*gradients)
        assert step or np.abs(np.asarray(gradients[0]["0"])).max() > 0
    close({"loss": a.train_step(x)}, {"loss": b.train_step(x)})
    close({"w": a.w}, {"w": b.w})


def test_equal_bodies_are_compiled_once(tmp_path, monkeypatch):
    import disc_tf.compiler as compiler

    calls = []
    real = compiler.compile_module
    monkeypatch.setattr(compiler, "compile_module", lambda *a, **k: (calls.append(k["name"]), real(*a, **k))[1])
    m = Scorer()
    signatures = {"serving_default": m.serve.get_concrete_function(), "again": m.serve}
    tf.saved_model.save(m, str(tmp_path / "model"), signatures=signatures)
    found = rewrite_meta_graph(meta(tmp_path / "model"), Options.from_overrides(targets=("native",)))
    bodies = {f.name for f in found.functions if f.status == "compiled"}
    codes = [
        n.attr["executable"].s for f in found.without(()).graph_def.library.function if f.signature.name in bodies
        for n in f.node_def if n.op == "DiscLaunch"
    ]  # fmt: skip
    assert len(codes) == len(bodies) == 2 and len(set(codes)) == len(calls) == 1


class Jitted(tf.Module):
    """Functions for XLA: one that is compiled here as a whole, one with an op that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(np.random.default_rng(2).normal(size=(6, 6)).astype("f"))

    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec((None, 6), tf.float32, name="x")])
    def whole(self, x):
        return {"y": tf.nn.softmax(tf.nn.relu(x @ self.w) + 1.0)}

    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec((None, 6), tf.float32, name="x")])
    def part(self, x):
        return {"y": tf.nn.softmax(tf.math.real(tf.signal.fft(tf.cast(x @ self.w, tf.complex64)))) + 1.0}


def test_functions_of_xla(tmp_path):
    m = Jitted()
    tf.saved_model.save(m, str(tmp_path / "in"), signatures={"whole": m.whole, "part": m.part})
    report = optimize_saved_model(tmp_path / "in", tmp_path / "out", targets=("native",), verify=False).report
    status = {f.name.split("_")[3]: f for f in report.functions if f.status != "passes_on"}
    assert status["whole"].status == "compiled" and status["part"].status == "left" and "jit_compile" in status["part"].reason
    functions = {f.signature.name: f for f in meta(tmp_path / "out").graph_def.library.function}
    assert "_XlaMustCompile" not in functions[status["whole"].name].attr and "_XlaMustCompile" in functions[status["part"].name].attr
    a, b = tf.saved_model.load(str(tmp_path / "in")), tf.saved_model.load(str(tmp_path / "out"))
    for key in a.signatures:
        for size in (1, 5):
            given = feeds(a.signatures[key], size)
            close(a.signatures[key](**given), b.signatures[key](**given))
