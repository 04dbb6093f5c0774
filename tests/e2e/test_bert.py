"""The main job on real BERTs: coverage, kernel counts, the same answers at every shape, one compile, restore."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from disc_tf.frontend.rewrite import put_back, restore
from disc_tf.frontend.tfproto import serialized
from disc_tf.testing.compare import compare
from disc_tf.testing.differential import verify_graphs
from disc_tf.testing.inputs import make_feeds
from disc_tf.testing.tf_process import TfError, TfProcess

LAYERS = {"tiny_bert": 4, "bert_base": 12}
#: shapes that no trace has: ones, a prime length, an odd batch
OTHER_SIZES = [{"B": 1, "S": 1}, {"B": 1, "S": 113}, {"B": 7, "S": 29}, {"B": 3, "S": 130}]


def check_structure(model) -> None:
    report = model.report
    assert len(report.compiled_clusters) == len(report.clusters) <= 3
    assert report.coverage >= 0.95
    assert report.flops_share is not None and report.flops_share >= 0.99
    left = {n.op for n in model.result.node}
    assert left <= {"Const", "Placeholder", "Identity", "DiscLaunch", "NoOp"}, left
    per_layer = (len(report.kernels) - 8) / LAYERS[model.name]
    assert per_layer <= 10
    kinds = Counter(k.kind for k in report.kernels)
    assert kinds["attention"] == LAYERS[model.name]  # one kernel from Q, K, V to the context
    assert kinds["gemm"] == 4 * LAYERS[model.name] + 1  # QKV merged, output, two of the feed-forward; the pooler


def test_tiny_bert_structure(tiny_bert) -> None:
    check_structure(tiny_bert)


def test_tiny_bert_answers(tiny_bert) -> None:
    sizes = tiny_bert.trace + OTHER_SIZES + [{"B": 0, "S": 5}, {"B": 2, "S": 0}]
    results = verify_graphs(tiny_bert.path, tiny_bert.optimized, tiny_bert.specs, tiny_bert.outputs, sizes)
    assert [r.message for r in results if not r.ok] == []
    assert len(results) == len(sizes)


@pytest.mark.slow
def test_bert_base(bert_base) -> None:
    check_structure(bert_base)
    sizes = bert_base.trace + OTHER_SIZES + [{"B": 0, "S": 5}]
    results = verify_graphs(bert_base.path, bert_base.optimized, bert_base.specs, bert_base.outputs, sizes)
    assert [r.message for r in results if not r.ok] == []


#: shapes of (ids, mask, types): TensorFlow broadcasts unrelated inputs, or refuses
BROADCASTS = [
    ((3, 7), (3, 7), (1, 7)),
    ((3, 7), (1, 7), (3, 7)),
    ((1, 7), (3, 7), (1, 7)),
    ((3, 7), (1, 7), (1, 7)),
    ((3, 7), (3, 1), (3, 7)),
    ((3, 7), (2, 7), (3, 7)),
    ((3, 7), (3, 6), (3, 7)),
    ((1, 7), (1, 7), (3, 7)),
    ((3, 1), (3, 7), (3, 7)),
]


def test_implicit_broadcast_and_errors(tiny_bert) -> None:
    """Both sides of the entry predicate, and the same status code where TensorFlow refuses."""
    rng = np.random.default_rng(0)
    codes = []
    with (
        TfProcess(tiny_bert.path, tiny_bert.feeds, tiny_bert.outputs, reference=True) as reference,
        TfProcess(tiny_bert.optimized, tiny_bert.feeds, tiny_bert.outputs, ops=True) as ours,
    ):
        for shapes in BROADCASTS:
            feeds = [s.make(shape, rng) for s, shape in zip(tiny_bert.specs, shapes, strict=True)]
            assert_same(reference, ours, feeds, codes)
        bad = make_feeds(tiny_bert.specs, {"B": 2, "S": 9})
        bad[0][1, 3] = 30522  # one past the vocabulary
        assert_same(reference, ours, bad, codes)
    assert set(codes) == {None, 3}


def assert_same(reference: TfProcess, ours: TfProcess, feeds: list[np.ndarray], codes: list[int | None]) -> None:
    def run(process: TfProcess) -> tuple[list[np.ndarray] | None, int | None]:
        try:
            return process.run(feeds), None
        except TfError as e:
            return None, e.code

    want, want_code = run(reference)
    got, got_code = run(ours)
    assert got_code == want_code, [f.shape for f in feeds]
    codes.append(got_code)
    for a, b in zip(want or [], got or [], strict=True):
        found = compare(a, b)
        assert found.ok, (found.message, [f.shape for f in feeds])


def test_restore_is_bitwise(tiny_bert) -> None:
    assert serialized(restore(tiny_bert.result)) == serialized(tiny_bert.graph_def)
    names = [c.name for c in tiny_bert.report.clusters]
    assert serialized(put_back(tiny_bert.result, names)) == serialized(tiny_bert.graph_def)


_COUNT = """
import sys
import numpy as np, tensorflow as tf
before = set(sys.modules)
import disc_tf.ops
new = {m.split(".")[0] for m in set(sys.modules) - before}
from disc_tf.runtime.executable import counters
from disc_tf.testing.inputs import make_feeds, specs_from_json
specs, outputs, trace = specs_from_json(sys.argv[2])
graph_def = tf.compat.v1.GraphDef.FromString(open(sys.argv[1], "rb").read())
with tf.Graph().as_default():
    tf.import_graph_def(graph_def, name="")
    with tf.compat.v1.Session() as s:
        for sizes in trace:
            s.run(outputs, dict(zip([f"{x.name}:0" for x in specs], make_feeds(specs, sizes))))
print("LOADED", counters()["images_loaded"], sorted(new & {"jax", "llvmlite", "google", "scipy"}))
"""


def test_one_compile_serves_all_shapes(tiny_bert) -> None:
    """One image is loaded for the whole trace, and no compiler is in the process."""
    description = Path(__file__).parents[2] / "bench" / "models" / "tiny_bert.json"
    command = [sys.executable, "-c", _COUNT, str(tiny_bert.optimized), str(description)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "LOADED 1 []" in done.stdout


def test_artefact_holds_no_weights(tiny_bert) -> None:
    for node in tiny_bert.result.node:
        if node.op == "DiscLaunch":
            assert len(node.attr["executable"].s) < 4 << 20
    original, optimized = tiny_bert.path.stat().st_size, tiny_bert.optimized.stat().st_size
    assert optimized < original + (4 << 20)
