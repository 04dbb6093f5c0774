"""What reports and predictions are told of a fusion: bytes, constants, picked rows, lane operations."""

from __future__ import annotations

from disc_tf.codegen.describe import operations, picked, traffic, weights
from disc_tf.costs import LANE_PER_MAC, WEIGHTS
from disc_tf.ir.builder import new_function
from disc_tf.ir.core import Function
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType
from disc_tf.testing.kernel_runner import fusion_of

F32, I32 = DType.F32, DType.I32


def at(terms: tuple[Dim, ...], **symbols: int) -> list[int]:
    return [d.evaluate(symbols) for d in terms]


def lookup() -> Function:
    """``tanh(table[ids]) + bias``"""
    fn, b = new_function("f", {"table": (F32, [1000, 64]), "ids": (I32, ["n"]), "bias": (F32, [64])})
    table, ids, bias = fn.params
    sizes = (Dim.of(1), Dim.of(64))
    rows = b.create1(
        "gather", [table, ids], offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), index_vector_dim=1, slice_sizes=sizes
    )
    wide = b.broadcast_in_dim(bias, rows.dims, (1,))
    b.return_([b.create1("add", [b.create1("tanh", [rows]), wide])])
    return fn


def test_a_table_counts_as_far_as_rows_are_picked() -> None:
    fn = lookup()
    table, _, bias = fn.params
    fusion = fusion_of(fn, "loop", space=(Dim.of("n"), Dim.of(64)))
    assert at(traffic(fusion), n=10) == [2560, 2560, 40, 256] and at(traffic(fusion), n=10**6)[1] == 256_000
    assert at(picked(fusion), n=10) == [2560]
    assert at(weights(fusion, {table, bias}), n=10) == [256] and weights(fusion, set()) == ()


def test_rows_are_copied_and_dear_ops_weigh() -> None:
    """The gather of runs is one lane operation an element, `add` one, views none."""
    fusion = fusion_of(lookup(), "loop", space=(Dim.of("n"), Dim.of(64)))
    assert at(operations(fusion, 16), n=10) == [640 * (2 + int(WEIGHTS["tanh"]))]
    fusion.kind = "library"
    assert operations(fusion, 16) == ()


def test_a_reduction_weighs_by_what_it_reads() -> None:
    fn, b = new_function("f", {"x": (F32, ["n", 32])})
    b.return_([b.reduce(fn.params[0], [1], "add")])
    fusion = fusion_of(fn, "rows", outer=(Dim.of("n"),), inner=(Dim.of(32),))
    assert at(operations(fusion, 16), n=7) == [7 * 32 * int(WEIGHTS["reduce"])]


def conv(features: int) -> Function:
    fn, b = new_function("f", {"x": (F32, ["n", 10, 10, 8]), "w": (F32, [3, 3, 8, features])})
    same = (Dim.of(1), Dim.of(1))
    b.return_(
        [b.create1(
            "convolution", list(fn.params), window_strides=(1, 1), lhs_dilation=(1, 1), rhs_dilation=(1, 1), padding_low=same,
            padding_high=same, feature_group_count=1,
        )]
    )  # fmt: skip
    return fn


def test_lanes_without_a_feature_are_idle() -> None:
    def idle(features: int) -> list[int]:
        return at(operations(fusion_of(conv(features), "conv"), 16), n=1)

    assert idle(16) == idle(32) == []
    assert idle(8) == [100 * 8 * round(72 / LANE_PER_MAC)]  # as many as are at work
    assert idle(1) == [100 * round(7 * 72 / LANE_PER_MAC)]
