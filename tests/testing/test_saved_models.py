"""SavedModels in TensorFlow: made, read, run by both loaders, compared signature by signature; warm-up records first and unquoted."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disc_tf.cli import main
from disc_tf.frontend.saved_model import read_saved_model, write_saved_model
from disc_tf.frontend.tensor_proto import fill_tensor
from disc_tf.serving.protos import message_class
from disc_tf.testing.saved_models import ROUTES, WARMUP, ModelCheck, verify_saved_models
from disc_tf.testing.signatures import plan_model
from disc_tf.testing.tf_process import Hosts
from disc_tf.testing.warmup import FILE

pytestmark = pytest.mark.slow  # processes and models of their own: minutes on a busy machine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four signatures: ids of an embedding, words of a vocabulary, Examples, a counter with random numbers beside it."""
    import tensorflow as tf

    base = tmp_path_factory.mktemp("model")
    (base / "words.txt").write_text("ape\nbee\ncat\n")

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            rng = np.random.default_rng(0)
            self.table = tf.Variable(tf.constant(rng.normal(size=(17, 4)), tf.float32))
            self.count = tf.Variable(tf.constant(0.0))
            line, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
            source = tf.lookup.TextFileInitializer(tf.saved_model.Asset(str(base / "words.txt")), tf.string, line, tf.int64, number)
            self.words = tf.lookup.StaticHashTable(source, -1)

        @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32, name="ids"), tf.TensorSpec((None, 4), tf.float32, name="bias")])
        def rows(self, ids: Any, bias: Any) -> Any:
            return {"y": tf.reduce_sum(tf.gather(self.table, ids - 1), 1) + bias, "n": tf.size(ids)}

        @tf.function(input_signature=[tf.TensorSpec((None,), tf.string, name="words")])
        def named(self, words: Any) -> Any:
            return {"y": tf.gather(self.table, self.words.lookup(tf.strings.lower(words))), "upper": tf.strings.upper(words)}

        @tf.function(input_signature=[tf.TensorSpec((None,), tf.string, name="examples")])
        def parsed(self, examples: Any) -> Any:
            spec = {"id": tf.io.FixedLenFeature([], tf.int64), "tags": tf.io.VarLenFeature(tf.string)}
            found = tf.io.parse_example(examples, spec)
            return {"y": tf.gather(self.table, found["id"]), "tags": tf.sparse.to_dense(found["tags"])}

        @tf.function(input_signature=[tf.TensorSpec((None,), tf.float32, name="x")])
        def counted(self, x: Any) -> Any:
            return {"count": self.count.assign_add(1.0) + 0.0 * tf.reduce_sum(x), "noise": tf.random.uniform(tf.shape(x))}

        @tf.function(input_signature=[tf.TensorSpec((None,), tf.int64, name="ids")])
        def __call__(self, ids: Any) -> Any:
            return tf.tanh(tf.gather(self.table, ids)) * 2.0, {"n": tf.size(ids)}

    m = Model()
    signatures = {"serving_default": m.rows, "named": m.named, "parsed": m.parsed, "counted": m.counted}
    tf.saved_model.save(m, str(base / "1"), signatures=signatures)
    return base / "1"


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts() as made:
        yield made


def add_warmup(directory: Path) -> list[int]:
    """Two records of the default signature, one for a signature that is not there; the ids in them."""
    ids = [11, 13]
    records = []
    for name, value in (("", ids[0]), ("", ids[1]), ("gone", 1)):
        made = message_class("serving.PredictionLog")()
        request = made.predict_log.request
        request.model_spec.signature_name = name
        fill_tensor(request.inputs["ids"], np.full((2, 5), value, np.int32))
        fill_tensor(request.inputs["bias"], np.full((2, 4), 12345.0, np.float32))
        records.append(made.SerializeToString())
    path = directory / FILE
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(struct.pack("<QI", len(r), 0) + r + bytes(4) for r in records))
    return ids


def changed(model: Path, target: Path) -> Path:
    """A copy whose `rows` gathers row 0 for every id: other answers for one signature."""
    import shutil

    shutil.copytree(model, target)
    message = read_saved_model(target)
    hits = 0
    for f in message.meta_graphs[0].graph_def.library.function:
        if "rows" in f.signature.name and "wrapper" not in f.signature.name:
            for node in f.node_def:
                if node.op == "Sub":
                    node.op, hits = "Mul", hits + 1
    assert hits
    write_saved_model(target, message)
    return target


def saved_functions(model: Path) -> list[str]:
    return [f.signature.name for f in read_saved_model(model).meta_graphs[0].graph_def.library.function]


def test_values_that_the_signatures_accept(model: Path) -> None:
    plan = plan_model(model)
    assert plan.loader == "tf2" and next(iter(plan.signatures)) == "serving_default"
    bias, ids = plan.signatures["serving_default"].specs
    assert (ids.low, ids.high) == (1, 18) and ids.dims[0] == bias.dims[0] and bias.dims[1] == 4
    rng = np.random.default_rng(0)
    (words,) = plan.signatures["named"].specs
    assert set(words.make([100], rng)) == {b"ape", b"bee", b"cat"}
    (examples,) = plan.signatures["parsed"].specs
    found = [message_class("Example").FromString(e).features.feature for e in examples.make([200], rng)]
    assert {e["id"].int64_list.value[0] for e in found} == set(range(17)) and all(e["tags"].bytes_list.value for e in found)
    called = {f for f in saved_functions(model) if f.startswith("__inference___call__")}
    (method,) = (s for n, s in plan_model(model, functions=called).signatures.items() if n not in plan.signatures)
    assert method.name == "__call__#0" and method.specs[0].high == 17 and len(method.outputs) == 2
    assert [s.name for s in plan.signatures.values() if s.random] == ["counted"]
    assert [s.name for s in plan.signatures.values() if s.stateful] == ["counted"]


def test_the_same_model_twice(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All signatures give results at all shapes; what counts and what is random is told from what differs."""
    import shutil

    shutil.copytree(model, tmp_path / "1")
    ids = add_warmup(tmp_path / "1")
    assert main(["verify", str(tmp_path / "1"), str(model), "--json", "--points", "3"]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert data["ok"] and data["signatures"].keys() == {"serving_default", "named", "parsed", "counted"}
    for name, results in data["signatures"].items():
        assert len(results) == {"serving_default": 4, "named": 2, "parsed": 2, "counted": 2}[name]
        assert all(r["ok"] and r["max_abs"] for r in results)
    for r in data["signatures"]["counted"]:
        assert r["max_abs"].keys() == {"count"} and r["message"].startswith("random in TensorFlow itself, compared by distribution")
    first = data["signatures"]["serving_default"][0]
    assert first["source"] == WARMUP and first["shapes"] == {"bias": [2, 4], "ids": [2, 5]}
    assert "1 warm-up records are not replayed" in err
    assert "12345" not in out + err and not any(f"{i}, {i}" in out + err for i in ids)


@pytest.mark.slow
@pytest.mark.parametrize("loader", ["tf2", "session"])
def test_a_changed_signature_is_found(model: Path, tmp_path: Path, loader: str) -> None:
    other = changed(model, tmp_path / "other")
    found = verify_saved_models(model, other, loader=loader, points=3, timing=True)
    assert not any(r.ok for r in found.pop("serving_default") if r.shapes["ids"][1])
    assert found.keys() == {"named", "parsed", "counted"}
    for results in found.values():
        assert all(r.ok and r.original_ms and 6 <= len(r.ratios) <= 9 and r.interval for r in results)


def swap_outputs(meta: Any) -> None:
    outputs = meta.signature_def["named"].outputs
    outputs["y"].name, outputs["upper"].name = outputs["upper"].name, outputs["y"].name


def no_such_output(meta: Any) -> None:
    meta.signature_def["serving_default"].outputs["y"].name = "nothing:0"


def no_signature(meta: Any) -> None:
    del meta.signature_def["named"]


def no_functions(meta: Any) -> None:
    meta.object_graph_def.concrete_functions.clear()


def no_such_initialiser(meta: Any) -> None:
    meta.signature_def["__saved_model_init_op"].outputs["__saved_model_init_op"].name = "nothing"


@pytest.mark.parametrize(
    ("damage", "signature", "said"),
    [
        (swap_outputs, "named", "loaded by tf.compat.v1.saved_model.load: "),  # the other loader asks the object graph
        (no_such_output, "serving_default", "loaded by tf.compat.v1.saved_model.load: "),
        (no_signature, "named", "tf.compat.v1.saved_model.load does not offer signature named"),
        (no_such_initialiser, "parsed", "the optimised model does not load by tf.compat.v1.saved_model.load: "),
        (no_functions, "serving_default", "the optimised model does not load by tf.saved_model.load: "),
        (None, "", ""),
    ],
)
def test_each_loader_is_tried(model: Path, hosts: Hosts, tmp_path: Path, damage: Any, signature: str, said: str) -> None:
    import shutil

    other = shutil.copytree(model, tmp_path / "other")
    message = read_saved_model(other)
    if damage is not None:
        damage(message.meta_graphs[0])
    write_saved_model(other, message)
    with ModelCheck(plan_model(model), points=2, loaders=list(ROUTES), hosts=hosts) as check:
        found = check.attempt(other)
        bad = {name: [r.message for r in results if not r.ok] for name, results in found.items()}
        if not said:
            assert not any(bad.values()) and check.used == list(ROUTES) and not check.warnings
        else:
            assert bad[signature][0].startswith(said), bad


@pytest.mark.slow
def test_bench(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", str(model), str(model), "--json", "--rounds", "2"]
    assert main([*arguments, "--signature", "serving_default", "--shape", "ids/0=2,ids/1=3"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["shapes"]
    assert row["dims"] == {"ids/0": 2, "ids/1": 3} and row["original"]["median"] > 0


@pytest.fixture(scope="module")
def composites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Methods that no signature runs, with ragged and sparse arguments; and two keys of one signature."""
    import tensorflow as tf

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = tf.Variable(tf.ones([8, 3]))

        @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32)])
        def one(self, x: Any) -> Any:
            return {"y": tf.tanh(x * 2.0 + 1.0) * 3.0}

        @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32)])
        def other(self, x: Any) -> Any:
            return {"y": tf.tanh(x * 2.0 + 1.0) * 4.0}

        @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.float32)])
        def ragged(self, x: Any) -> Any:
            return tf.tanh(x * 2.0 + 1.0) * 3.0

        @tf.function(input_signature=[tf.SparseTensorSpec([None, 8], tf.float32)])
        def sparse(self, x: Any) -> Any:
            return tf.tanh(tf.sparse.sparse_dense_matmul(x, self.w) * 2.0 + 1.0) * 2.0

        @tf.function(
            input_signature=[{"k": tf.TensorSpec([], tf.float32)}, tf.RaggedTensorSpec([None, None, None], tf.float32, ragged_rank=2)]
        )
        def mixed(self, factors: Any, x: Any) -> Any:
            return tf.tanh(tf.exp(x * factors["k"]) - 1.0) * 2.0

    base = tmp_path_factory.mktemp("composites")
    m = Model()
    tf.saved_model.save(m, str(base / "1"), signatures={"serving_default": m.one, "other": m.other, "again": m.one})
    return base / "1"


@pytest.mark.slow
def test_methods_with_composite_arguments(composites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_model(composites).same == {"again": "serving_default"}
    arguments = ["optimize", str(composites), "-o", str(tmp_path / "out"), "--no-timing", "--target", "native", "--json", "--quiet"]
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verified"] and report["same"] == {"again": "serving_default"} and len(report["routes"]) == 3
    assert report["verification"].keys() == {"serving_default", "other", "ragged#0", "sparse#0", "mixed#0"}
    for results in report["verification"].values():
        assert all(r["ok"] and any(r["elements"].values()) for r in results)
    assert not any("not verified" in w for w in report["warnings"])


def test_usage(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "g.pb").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    cases = [
        ([str(model), str(tmp_path / "g.pb")], 2, "give two SavedModels or two GraphDefs"),
        ([str(model), str(tmp_path / "empty")], 3, "it is not a SavedModel"),
        ([str(model), str(model), "--signature", "nope"], 3, "no signature nope; there are: serving_default"),
        ([str(model), str(model), "--tag", "gpu"], 3, "no graph is tagged gpu"),
        ([str(model), str(model), "--outputs", "y:0"], 2, "--outputs is for GraphDefs"),
        ([str(tmp_path / "g.pb"), str(tmp_path / "g.pb"), "--signature", "a"], 2, "--signature is for SavedModels"),
        ([str(model), str(model), "--shape", "a=1"], 2, "--shape needs one --signature"),
        ([str(model), str(model), "--signature", "named", "--shape", "a=1"], 2, "no extent for words/0"),
    ]
    for arguments, code, said in cases:
        assert main(["verify", *arguments]) == code
        assert said in capsys.readouterr().err


@pytest.mark.slow
def test_a_broken_cluster_is_put_back_and_the_rest_published(model: Path, tmp_path: Path) -> None:
    """One artefact is damaged in every candidate that holds it: bisection finds it among the clusters of all signatures."""
    from disc_tf.proof_saved_model import prove_saved_model
    from disc_tf.saved_model import optimize_saved_model

    def damage(directory: Path, function: str) -> None:
        message = read_saved_model(directory)
        for f in message.meta_graphs[0].graph_def.library.function:
            for node in f.node_def:
                if node.op == "DiscLaunch" and f.signature.name == function:
                    code = bytearray(node.attr["executable"].s)
                    code[len(code) // 2] ^= 0xFF
                    node.attr["executable"].s = bytes(code)
        write_saved_model(directory, message)

    bad: list[str] = []

    def prove(source: Path, candidate: Path, report: Any, put_back: Any, **_: Any) -> None:
        names = list(report.clusters)
        bad.append(next(n for n in names if "rows" in n))
        function = bad[0].rpartition(":")[0]
        damage(candidate, function)

        def put_back_and_damage(gone: Any) -> None:
            put_back(gone)
            damage(candidate, function)

        prove_saved_model(source, candidate, report, put_back_and_damage, timing=False, points=3)

    result = optimize_saved_model(model, tmp_path / "out", targets=("native",), prove=prove)
    report = result.report
    assert len(report.clusters) >= 2 and report.verified is True
    assert [name for name, c in report.clusters.items() if c.status == "put_back"] == bad
    assert "signature serving_default differs" in report.clusters[bad[0]].reason
    assert report.verification["__call__#0"][0].max_abs.keys() == {"output_0", "output_1"}  # no signature runs it
    assert not any("not verified" in w for w in report.warnings)
    assert main(["verify", str(model), str(tmp_path / "out"), "--points", "3"]) == 0


@pytest.mark.slow
def test_optimize_at_given_shapes(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["optimize", str(model), "-o", str(tmp_path / "out"), "--no-timing", "--target", "native", "--json", "--quiet"]
    assert main([*arguments, "--shape", "ids/0=2,ids/1=3"]) == 2
    assert "--shape needs one --signature" in capsys.readouterr().err
    assert main([*arguments, "--signature", "serving_default", "--shape", "ids/0=2,ids/1=3"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verified"] and report["verification"]["serving_default"][0]["shapes"]["ids"] == [2, 3]
    assert all(r["original_ms"] is None for r in report["verification"]["serving_default"])
    assert any("--no-timing" in w for w in report["warnings"])
