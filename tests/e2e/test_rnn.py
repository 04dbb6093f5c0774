"""A bidirectional recurrent tagger: its loops run inside one cluster, on packed weights, with TensorFlow's answers and errors."""

from __future__ import annotations

from collections import Counter

import pytest
from conftest import load_model

from disc_tf.testing.differential import verify_graphs

#: no rows, no steps (TensorFlow then refuses to stack an empty list), one step, primes
OTHER_SIZES = [{"B": 1, "S": 1}, {"B": 7, "S": 13}, {"B": 0, "S": 5}, {"B": 2, "S": 0}, {"B": 1, "S": 113}]


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory):
    return load_model("rnn_tagger", tmp_path_factory.mktemp("rnn_tagger"))


def test_one_cluster(tagger) -> None:
    report = tagger.report
    assert len(report.compiled_clusters) == len(report.clusters) == 1
    assert report.coverage == 1.0
    assert {n.op for n in tagger.result.node} <= {"Const", "Placeholder", "Identity", "DiscLaunch", "NoOp"}
    kinds = Counter(k.kind for k in report.kernels)
    # four layers of an input product for all steps, and in each step one recurrent product and one kernel of gates; the classifier
    assert kinds["gemm"] == 9
    assert len(report.kernels) <= 22


def test_answers(tagger) -> None:
    sizes = tagger.trace + OTHER_SIZES
    results = verify_graphs(tagger.path, tagger.optimized, tagger.specs, tagger.outputs, sizes)
    assert [r.message for r in results if not r.ok] == []
    assert len(results) == len(sizes)
