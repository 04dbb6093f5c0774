"""A bidirectional recurrent tagger: its loops run inside one cluster, on packed weights, with TensorFlow's answers and errors."""

from __future__ import annotations

from collections import Counter

from disc_tf.frontend.rewrite import restore
from disc_tf.frontend.tfproto import serialized
from disc_tf.testing.differential import verify_graphs

#: no rows, no steps (TensorFlow then refuses to stack an empty list), one step, primes
OTHER_SIZES = [{"B": 1, "S": 1}, {"B": 7, "S": 13}, {"B": 0, "S": 5}, {"B": 2, "S": 0}, {"B": 1, "S": 113}]


def test_one_cluster(rnn_tagger) -> None:
    report = rnn_tagger.report
    assert len(report.compiled_clusters) == len(report.clusters) == 1
    assert report.coverage == 1.0
    assert report.flops_share is not None and report.flops_share >= 0.99
    assert {n.op for n in rnn_tagger.result.node} <= {"Const", "Placeholder", "Identity", "DiscLaunch", "NoOp"}
    kinds = Counter(k.kind for k in report.kernels)
    # four layers of an input product for all steps, and in each step one recurrent product and one kernel of gates; the classifier
    assert kinds["gemm"] == 9
    assert len(report.kernels) <= 22


def test_answers(rnn_tagger) -> None:
    sizes = rnn_tagger.trace + OTHER_SIZES
    results = verify_graphs(rnn_tagger.path, rnn_tagger.optimized, rnn_tagger.specs, rnn_tagger.outputs, sizes)
    assert [r.message for r in results if not r.ok] == []
    assert len(results) == len(sizes)


def test_restore(rnn_tagger) -> None:
    """The original with its loops comes back bit for bit."""
    assert serialized(restore(rnn_tagger.result)) == serialized(rnn_tagger.graph_def)
