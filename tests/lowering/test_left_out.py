"""Ops that stay in TensorFlow on purpose: the reason is in the error, the report and the page."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.lowering import all_rules
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.left_out import LEFT_OUT, left_out_reason, left_out_table
from disc_tf.lowering.registry import RULES, rule_for
from disc_tf.testing.session_case import SessionCase
from disc_tf.testing.tf_case import tensorflow


def test_names_are_ops_of_tensorflow() -> None:
    known = set(dir(tensorflow().raw_ops))
    names = [n for group in LEFT_OUT.values() for n in group]
    plain = [n for n in names if not n.startswith("_") and not set("*[") & set(n) and n not in ("TRTEngineOp", "DiscLaunch", "DiscWeight")]
    assert not [n for n in plain if n not in known]
    assert len(plain) == len(set(plain)), "an op has two reasons"


@pytest.mark.parametrize(
    "op", ["RandomUniform", "FFT", "Svd", "DecodeJpeg", "ResourceApplyAdam", "TensorSliceDataset", "LookupTableFindV2"]
)
def test_the_error_gives_the_reason(op: str) -> None:
    reason = left_out_reason(op)
    assert reason
    with pytest.raises(Unsupported, match="stays in TensorFlow") as failure:
        rule_for(op)
    assert reason in failure.value.message


def test_unknown_ops_have_no_reason() -> None:
    with pytest.raises(Unsupported, match="has no lowering rule"):
        rule_for("NoSuchOp")


def test_the_page_does_not_list_what_is_compiled() -> None:
    all_rules()
    assert "`FFT`" in left_out_table()
    assert {op: reason for op in RULES if (reason := left_out_reason(op))} == {}


def test_stateful_random_numbers_do_not_break_clusters() -> None:
    """The generator stays outside; what is before and behind it is one cluster each, and nothing else is split."""

    def build(tf):
        x = tf.compat.v1.placeholder(tf.float32, [None, 8], name="x")
        before = tf.nn.relu(x * 2.0 + 1.0)
        noise = tf.random.uniform(tf.shape(before), seed=3)
        kept = tf.cast(noise >= 0.0, tf.float32)  # always: so that both graphs give the same
        tf.identity(tf.nn.softmax(before * kept - 1.0), name="y")
        tf.identity(tf.reduce_sum(before), name="total")

    case = SessionCase(build, ["y:0", "total:0"])
    report = case.result.report
    assert case.ops.count("RandomUniform") == 1
    assert len(report.compiled_clusters) <= 2, report.to_text()
    reasons = [r for r in report.to_text().splitlines() if "RandomUniform" in r]
    assert any("generator with state" in r for r in reasons), report.to_text()
    for shape in ((3, 8), (1, 8), (0, 8)):
        case.check({"x:0": np.random.default_rng(1).standard_normal(shape).astype(np.float32)})
