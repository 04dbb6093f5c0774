"""Generators of ops that move data, and of the shape arithmetic that real exports are full of."""

from __future__ import annotations

from typing import Any

import numpy as np

from disc_tf.testing.fuzz_generator import Generator, generator
from disc_tf.testing.fuzz_program import Ref
from disc_tf.testing.tf_case import tensorflow


def shape_of(g: Generator, x: Ref) -> Ref:
    tf = tensorflow()
    return g.add("Shape", {"input": x}, out_type=g.choice((tf.int32, tf.int32, tf.int64)))[0]


def element(g: Generator, s: Ref, i: int) -> Ref:
    ints = [g.const([v], np.int32) for v in (i, i + 1, 1)]
    return g.add("StridedSlice", {"input": s, "begin": ints[0], "end": ints[1], "strides": ints[2]}, shrink_axis_mask=1)[0]


@generator(4)
def reshape(g: Generator) -> None:
    """A reshape by computed dims: merge, split, -1, permuted."""
    x = g.pick("fib", min_rank=1)
    if x is None:
        return
    rank, s = g.rank(x), shape_of(g, x)
    t = g.value(s).dtype
    parts = [element(g, s, i) for i in range(rank)]
    how = int(g.rng.integers(5))
    if how == 0:
        target = parts[::-1]
    elif how == 1 and rank >= 2:
        i = int(g.rng.integers(rank - 1))
        target = [*parts[:i], g.add("Mul", {"x": parts[i], "y": parts[i + 1]})[0], *parts[i + 2 :]]
    elif how == 2:
        i = int(g.rng.integers(rank))
        target = [*parts[:i], g.const(-1, t), *parts[i + 1 :]]
    elif how == 3:
        i = int(g.rng.integers(rank))
        d = g.shape(x)[i]
        c = g.choice([c for c in (1, 2, 3, 4) if d % c == 0])
        target = [*parts[:i], g.const(c, t), g.const(-1, t), *parts[i + 1 :]]
    else:
        target = [g.const(-1, t), parts[-1]] if g.flip() else [g.const(-1, t)]
    packed = g.add("Pack", {"values": target}, axis=0)
    if packed:
        g.add("Reshape", {"tensor": x, "shape": packed[0]})


@generator()
def flatten(g: Generator) -> None:
    x = g.pick("fib")
    if x is not None:
        g.add("Reshape", {"tensor": x, "shape": g.const(g.choice(([-1], [-1, 1], [1, -1], [0, -1], [-1, 2])), np.int32)})


@generator(2)
def ranks(g: Generator) -> None:
    x = g.pick("fib", max_rank=4)
    if x is None:
        return
    if g.flip(0.6):
        g.add("ExpandDims", {"input": x, "axis": g.const(int(g.rng.integers(-g.rank(x) - 1, g.rank(x) + 1)), np.int32)})
    else:
        ones = [i for i, d in enumerate(g.shape(x)) if d == 1]
        if ones:
            g.add("Squeeze", {"input": x}, axis=[g.choice(ones)])


@generator(2)
def transpose(g: Generator) -> None:
    x = g.pick("fib", min_rank=2)
    if x is not None:
        g.add("Transpose", {"x": x, "perm": g.const(g.rng.permutation(g.rank(x)), np.int32)})


@generator(2)
def concat(g: Generator) -> None:
    x = g.pick("fib", min_rank=1)
    if x is None:
        return
    others = [x] + [r for r in (g.pick("fib", like=x) for _ in range(2)) if r is not None and g.rank(r) == g.rank(x)]
    if g.flip(0.3):
        g.add("Pack", {"values": [x, x]}, axis=int(g.rng.integers(-g.rank(x) - 1, g.rank(x) + 1)))
    else:
        g.add("ConcatV2", {"values": others if len(others) > 1 else [x, x], "axis": g.const(g.axis(g.rank(x)), np.int32)})


@generator(2)
def split(g: Generator) -> None:
    x = g.pick("fib", min_rank=1)
    if x is None:
        return
    axis = g.axis(g.rank(x))
    d = g.shape(x)[axis]
    n = g.choice([c for c in (1, 2, 3, 4) if d % c == 0])
    if g.flip(0.3) and 0 < d <= 5:
        g.add("Unpack", {"value": x}, num=d, axis=axis)
    elif g.flip(0.3) and d >= 2:
        a = int(g.rng.integers(0, d + 1))
        g.add("SplitV", {"value": x, "size_splits": g.const([a, -1], np.int32), "axis": g.const(axis, np.int32)}, num_split=2)
    else:
        g.add("Split", {"axis": g.const(axis, np.int32), "value": x}, num_split=n)


@generator(3)
def strided_slice(g: Generator) -> None:
    x = g.pick("fib", min_rank=1)
    if x is None:
        return
    n = int(g.rng.integers(1, g.rank(x) + 1))
    begin, end, stride = [], [], []
    for i in range(n):
        d = g.shape(x)[i]
        st = int(g.choice((1, 1, 1, 2, -1, 3)))
        begin.append(int(g.rng.integers(-d - 1, d + 2)))
        end.append(int(g.rng.integers(-d - 1, d + 2)))
        stride.append(st)
    ints = [g.const(v, np.int32) for v in (begin, end, stride)]
    masks: dict[str, Any] = {m: int(g.rng.integers(1 << n)) for m in ("begin_mask", "end_mask")}
    masks["shrink_axis_mask"] = int(g.rng.integers(1 << n)) if g.flip(0.3) else 0
    masks["new_axis_mask"] = int(g.rng.integers(1 << n)) if g.flip(0.15) else 0
    masks["ellipsis_mask"] = 1 << int(g.rng.integers(n)) if g.flip(0.15) else 0
    g.add("StridedSlice", {"input": x, "begin": ints[0], "end": ints[1], "strides": ints[2]}, **masks)


@generator()
def slice_by_shape(g: Generator) -> None:
    """x[:, : shape(y)[i] - c] by computed limits."""
    x, y = g.pick("fib", min_rank=1), g.pick("fib", min_rank=1)
    if x is None or y is None:
        return
    tf = tensorflow()
    s = g.add("Shape", {"input": y}, out_type=tf.int32)[0]
    limit = element(g, s, g.axis(g.rank(y)) % g.rank(y))
    if g.flip():
        op, c = g.choice(("Sub", "FloorDiv", "AddV2", "Mul", "Maximum", "Minimum")), int(g.choice((1, 2)))
        limit = g.add(op, {"x": limit, "y": g.const(c, np.int32)})[0]
    zero, one = g.const(0, np.int32), g.const(1, np.int32)
    if g.flip():
        begin, end = g.add("Pack", {"values": [zero]}, axis=0), g.add("Pack", {"values": [limit]}, axis=0)
        strides = g.add("Pack", {"values": [one]}, axis=0)
        g.add("StridedSlice", {"input": x, "begin": begin[0], "end": end[0], "strides": strides[0]})
    else:
        sizes = [limit] + [g.const(-1, np.int32)] * (g.rank(x) - 1)
        size, begin = g.add("Pack", {"values": sizes}, axis=0), g.const([0] * g.rank(x), np.int32)
        g.add("Slice", {"input": x, "begin": begin, "size": size[0]})


@generator()
def pads(g: Generator) -> None:
    x = g.pick("fi", min_rank=1, max_rank=4)
    if x is None:
        return
    paddings = g.const(g.rng.integers(0, 3, (g.rank(x), 2)), np.int32)
    if g.flip(0.4):
        g.add("MirrorPad", {"input": x, "paddings": paddings}, mode=g.choice(("REFLECT", "SYMMETRIC")))
    elif g.flip():
        g.add("PadV2", {"input": x, "paddings": paddings, "constant_values": g.const(1, g.value(x).dtype)})
    else:
        g.add("Pad", {"input": x, "paddings": paddings})


@generator()
def moves(g: Generator) -> None:
    x = g.pick("fib", min_rank=1)
    if x is None:
        return
    axis = g.axis(g.rank(x))
    if g.flip(0.4):
        g.add("ReverseV2", {"tensor": x, "axis": g.const([axis], np.int32)})
    elif g.flip():
        g.add("Roll", {"input": x, "shift": g.const([int(g.rng.integers(-4, 5))], np.int32), "axis": g.const([axis], np.int32)})
    else:
        g.add("Tile", {"input": x, "multiples": g.const(g.rng.integers(0 if g.flip(0.1) else 1, 3, g.rank(x)), np.int32)})


@generator(2)
def spread(g: Generator) -> None:
    """BroadcastTo and Fill by another value's shape."""
    x, y = g.pick("fib"), g.pick("fib")
    if x is None or y is None:
        return
    s = shape_of(g, y)
    if g.flip():
        g.add("BroadcastTo", {"input": x, "shape": s})
    elif g.rank(x) == 0:
        g.add("Fill", {"dims": s, "value": x})
    else:
        tf = tensorflow()
        d = element(g, g.add("Shape", {"input": x}, out_type=tf.int32)[0], 0)
        g.add("Range", {"start": g.const(0, np.int32), "limit": d, "delta": g.const(int(g.choice((1, 2))), np.int32)})


@generator(2)
def gather(g: Generator) -> None:
    x = g.pick("fib", min_rank=1, max_rank=4)
    if x is None:
        return
    axis = g.axis(g.rank(x))
    d = g.shape(x)[axis]
    if d == 0:
        return
    idx = g.pick("i", max_rank=2) if g.flip(0.3) else None
    if idx is None or g.value(idx).dtype not in (np.int32, np.int64):
        rank = int(g.rng.integers(0, 3))
        idx = g.const(g.rng.integers(0, d, [int(g.rng.integers(0, 4)) for _ in range(rank)]), g.choice((np.int32, np.int64)))
    g.add("GatherV2", {"params": x, "indices": idx, "axis": g.const(axis, np.int32)})


@generator()
def embed(g: Generator) -> None:
    """One-hot and embedding by clipped integers; errors for what lies outside."""
    x = g.pick("i", max_rank=2)
    if x is None or g.value(x).dtype not in (np.int32, np.int64):
        return
    if g.flip():
        on, off = g.const(1, np.float32), g.const(0, np.float32)
        g.add("OneHot", {"indices": x, "depth": g.const(5, np.int32), "on_value": on, "off_value": off}, axis=-1)
        return
    if g.flip(0.8):
        t = g.value(x).dtype
        x = g.add("Maximum", {"x": g.add("Minimum", {"x": x, "y": g.const(8, t)})[0], "y": g.const(0, t)})[0]
    table = g.const(g.data("float32", (9, int(g.choice((4, 40)))), False))
    g.add("GatherV2", {"params": table, "indices": x, "axis": g.const(0, np.int32)})


@generator()
def scans(g: Generator) -> None:
    x = g.pick("fi", min_rank=1)
    if x is None:
        return
    axis = g.const(g.axis(g.rank(x)), np.int32)
    if g.flip(0.6):
        g.add("Cumsum", {"x": x, "axis": axis}, exclusive=g.flip(), reverse=g.flip(), ulps=2, sums=True)
    elif g.exact(x) and not g.has_nans(x) and g.shape(x)[-1]:
        g.add("TopKV2", {"input": x, "k": g.const(int(g.rng.integers(1, g.shape(x)[-1] + 1)), np.int32)}, sorted=True)


@generator()
def clips(g: Generator) -> None:
    x = g.pick("fi")
    if x is not None:
        t = g.value(x).dtype
        g.add("ClipByValue", {"t": x, "clip_value_min": g.const(0, t), "clip_value_max": g.const(2, t)})


@generator()
def einsum(g: Generator) -> None:
    x = g.pick("f", min_rank=2, max_rank=4)
    y = g.pick("f", min_rank=2, max_rank=4, like=x) if x else None
    if x is None or y is None:
        return
    a = "abcd"[: g.rank(x)]
    b = "".join(g.rng.permutation(list("abcdef"))[: g.rank(y)])
    if any((len(s), len(t)) != (len(a), len(b)) for s, t in g.shapes_of(x, y)):
        return  # a squeezed axis: the rank hangs on the sizes
    if any(_zero_mismatch(a, b, *shapes) for shapes in g.shapes_of(x, y)):
        return  # TensorFlow takes a first extent of 0 for "not seen yet" and lets the labels differ
    free = [c for c in dict.fromkeys(a + b) if g.flip(0.7)]
    g.add("Einsum", {"inputs": [x, y]}, equation=f"{a},{b}->{''.join(free)}", ulps=2, sums=True)


def _zero_mismatch(a: str, b: str, x: tuple[int, ...], y: tuple[int, ...]) -> bool:
    sizes = dict(zip(a, x, strict=True))
    return any(sizes.get(label, d) != d and 0 in (d, sizes[label]) for label, d in zip(b, y, strict=True))
