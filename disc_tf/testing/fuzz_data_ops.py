"""Generators of ops whose result sizes depend on data, of segments and of counting."""

from __future__ import annotations

import numpy as np

from disc_tf.testing.fuzz_generator import Generator, generator
from disc_tf.testing.fuzz_program import Ref
from disc_tf.testing.tf_case import tensorflow


def finite(g: Generator, ref: Ref) -> bool:
    """No NaN or infinity at any size."""
    return g.kind(ref) != "f" or g.all_within(ref, -1e30, 1e30)


def small_ints(g: Generator, below: int, *, negative: bool = False, rank: int = 1, like: Ref | None = None) -> Ref | None:
    """An i32 or i64 vector in [0, below) made from data; ``like``: as long as the first axis of that value."""
    tf = tensorflow()
    x = like if like is not None else g.pick("i", min_rank=rank, max_rank=rank)
    if x is None:
        return None
    if like is not None and (g.rank(x) != 1 or g.kind(x) != "i"):
        summed = g.add("Cast", {"x": g.add("ZerosLike", {"x": x})[0]}, DstT=tf.int32)
        rows = g.add("Sum", {"input": summed[0], "axis": g.const(list(range(1, g.rank(x))), np.int32)}, keep_dims=False)
        at = g.add("Cumsum", {"x": g.add("OnesLike", {"x": rows[0]})[0], "axis": g.const(0, np.int32)})[0]
        x = g.add("Mul", {"x": at, "y": g.const(int(g.choice((1, 3, 7))), np.int32)})[0]
    wide = g.add("Cast", {"x": x}, DstT=g.choice((tf.int32, tf.int64)))
    if not wide:
        return None
    t = g.value(wide[0]).dtype
    found = g.add("FloorMod", {"x": wide[0], "y": g.const(below, t)})
    if found and negative:
        found = g.add("Sub", {"x": found[0], "y": g.const(1, t)})
    return found[0] if found else None


@generator(2)
def where(g: Generator) -> None:
    """Positions of what is set, and what lies there (boolean_mask)."""
    x = g.pick("fib", min_rank=1, max_rank=4, exact=True)
    if x is None:
        return
    condition = x if g.kind(x) == "b" or g.flip(0.3) else None
    if condition is None:
        found = g.add("Greater", {"x": x, "y": g.const(0, g.value(x).dtype)})
        condition = found[0] if found else None
    at = g.add("Where", {"condition": condition}) if condition else []
    if not at:
        return
    y = g.pick("fib", min_rank=g.rank(x))
    if y is not None and g.flip(0.7) and all(a[: len(b)] == b for a, b in g.shapes_of(y, x)):
        g.add("GatherNd", {"params": y, "indices": at[0]})


@generator(2)
def unique(g: Generator) -> None:
    x = g.pick("fi", min_rank=1, max_rank=1, exact=True)
    if x is None or not finite(g, x):
        return
    tf = tensorflow()
    small = small_ints(g, 4, like=x) if g.kind(x) == "i" else x
    if small is None:
        return
    out = g.choice((tf.int32, tf.int64))
    if g.flip():
        found = g.add("Unique", {"x": small}, out_idx=out)
        if found and g.flip():
            g.add("GatherV2", {"params": found[0], "indices": found[1], "axis": g.const(0, np.int32)})
    else:
        g.add("UniqueWithCounts", {"x": small}, out_idx=out)


@generator()
def unique_rows(g: Generator) -> None:
    x = g.pick("ib", min_rank=2, max_rank=3)
    if x is not None:
        small = g.add("Cast", {"x": x}, DstT=tensorflow().bool)
        values = g.add("Cast", {"x": small[0]}, DstT=tensorflow().int32)
        g.add("UniqueV2", {"x": values[0], "axis": g.const([int(g.rng.integers(g.rank(x)))], np.int64)}, out_idx=tensorflow().int32)


@generator()
def partition(g: Generator) -> None:
    x = g.pick("fib", min_rank=1, max_rank=3)
    if x is None:
        return
    n = int(g.choice((1, 2, 3)))
    parts = small_ints(g, n, like=x)
    if parts is None:
        return
    parts = g.add("Cast", {"x": parts}, DstT=tensorflow().int32)[0]
    found = g.add("DynamicPartition", {"data": x, "partitions": parts}, num_partitions=n)
    count = g.add("Range", {"start": g.const(0, np.int32), "limit": g.add("Size", {"input": parts}, out_type=tensorflow().int32)[0],
                            "delta": g.const(1, np.int32)})  # fmt: skip
    if found and count and g.flip():
        places = g.add("DynamicPartition", {"data": count[0], "partitions": parts}, num_partitions=n)
        g.add("DynamicStitch", {"indices": places, "data": found})


@generator()
def list_diff(g: Generator) -> None:
    x = g.pick("i", min_rank=1, max_rank=1)
    y = g.pick("i", min_rank=1, max_rank=1, like=x) if x else None
    if x is not None and y is not None:
        g.add("ListDiff", {"x": x, "y": y}, out_idx=g.choice((tensorflow().int32, tensorflow().int64)))


@generator(2)
def segments(g: Generator) -> None:
    """Sorted and unsorted segments over the first axis."""
    x = g.pick("fi", min_rank=1, max_rank=3)
    if x is None or not finite(g, x):
        return
    sums = {"ulps": 4, "sums": True}
    if g.flip():
        n = int(g.choice((1, 3, 6)))
        ids = small_ints(g, n, negative=g.flip(0.3), like=x)
        op = g.choice(("Sum", "Max", "Min", "Prod"))
        if ids is not None and (op != "Prod" or g.value(x).size < 60):
            g.add(f"UnsortedSegment{op}", {"data": x, "segment_ids": ids, "num_segments": g.const(n, np.int32)},
                  **(sums if op in ("Sum", "Prod") else {}))  # fmt: skip
        return
    rows = small_ints(g, 1, like=x)
    if rows is None:
        return
    t = g.value(rows).dtype
    step = g.add("AddV2", {"x": rows, "y": g.const(1, t)})[0]
    ids = g.add("Cumsum", {"x": step, "axis": g.const(0, np.int32)}, exclusive=True)[0]
    if g.flip():
        ids = g.add("FloorDiv", {"x": ids, "y": g.const(int(g.choice((2, 3))), t)})[0]
    op = g.choice(("SegmentSum", "SegmentMean", "SegmentMax", "SegmentMin", "SegmentProd"))
    if op == "SegmentMean" and g.kind(x) != "f":
        return
    g.add(op, {"data": x, "segment_ids": ids}, **({} if op in ("SegmentMax", "SegmentMin") else sums))


@generator()
def sparse_segments(g: Generator) -> None:
    x = g.pick("f", min_rank=2, max_rank=3)
    if x is None or not finite(g, x) or not g.shape(x)[0]:
        return
    n = int(g.rng.integers(0, 7))
    at = g.const(g.rng.integers(0, g.shape(x)[0], n), g.choice((np.int32, np.int64)))
    ids = g.const(np.sort(g.rng.integers(0, 4, n)), np.int32)
    op = g.choice(("Sum", "Mean", "SqrtN"))
    operands = {"data": x, "indices": at, "segment_ids": ids}
    if g.flip():
        g.add(f"SparseSegment{op}", operands, ulps=4, sums=True)
    else:
        g.add(f"SparseSegment{op}WithNumSegments", {**operands, "num_segments": g.const(5, np.int32)}, ulps=4, sums=True)


@generator()
def counting(g: Generator) -> None:
    tf = tensorflow()
    x = small_ints(g, 5)
    if x is None:
        return
    how = int(g.rng.integers(4))
    if how == 0:
        size = g.const(int(g.choice((3, 5, 8))), g.value(x).dtype)
        g.add("DenseBincount", {"input": x, "size": size, "weights": g.const(np.zeros(0), np.float32)}, binary_output=g.flip())
    elif how == 1:
        narrow = g.add("Cast", {"x": x}, DstT=tf.int32)
        g.add("Bincount", {"arr": narrow[0], "size": g.const(6, np.int32), "weights": g.const(np.zeros(0), np.float32)})
    elif how == 2:
        g.add("Bucketize", {"input": x}, boundaries=[0.0, 1.5, 3.0])
    else:
        ranges = g.const([0, 4], g.value(x).dtype)
        g.add("HistogramFixedWidth", {"values": x, "value_range": ranges, "nbins": g.const(3, np.int32)})


@generator()
def searching(g: Generator) -> None:
    x = g.pick("fi", min_rank=2, max_rank=2, exact=True)
    if x is None or not finite(g, x):
        return
    tf = tensorflow()
    edges = g.const(np.sort(g.rng.integers(-3, 6, (g.shape(x)[0], 4)), axis=1).astype(g.value(x).dtype))
    g.add(g.choice(("LowerBound", "UpperBound")), {"sorted_inputs": edges, "values": x}, out_type=g.choice((tf.int32, tf.int64)))


@generator()
def suppression(g: Generator) -> None:
    """Boxes that overlap less than a threshold."""
    x = g.pick("f", min_rank=1, max_rank=1, exact=True)
    if x is None or str(g.value(x).dtype) != "float32" or not finite(g, x):
        return
    n = g.shape(x)[0]
    corners = g.rng.integers(0, 6, (n, 2))
    boxes = g.const(np.concatenate([corners, corners + g.rng.integers(1, 5, (n, 2))], 1), np.float32)
    half, low = g.const(0.4, np.float32), g.const(-0.5, np.float32)
    operands = {"boxes": boxes, "scores": x, "max_output_size": g.const(int(g.rng.integers(0, 5)), np.int32), "iou_threshold": half}
    which = int(g.rng.integers(4))
    if which == 0:
        g.add("NonMaxSuppressionV2", operands)
    elif which == 1:
        g.add("NonMaxSuppressionV3", {**operands, "score_threshold": low})
    elif which == 2:
        g.add("NonMaxSuppressionV4", {**operands, "score_threshold": low}, pad_to_max_output_size=g.flip())
    else:
        more = {"score_threshold": low, "soft_nms_sigma": g.const(float(g.choice((0.0, 0.5))), np.float32)}
        g.add("NonMaxSuppressionV5", {**operands, **more}, pad_to_max_output_size=g.flip(), ulps=32)


@generator()
def reverse_sequence(g: Generator) -> None:
    x = g.pick("fib", min_rank=2, max_rank=4)
    if x is None:
        return
    lengths = small_ints(g, int(min(g.shape(x)[1], 3)) + 1, like=x)
    if lengths is not None:
        g.add("ReverseSequence", {"input": x, "seq_lengths": lengths}, seq_dim=1, batch_dim=0)
