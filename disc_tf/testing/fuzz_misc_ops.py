"""Generators of ops that fit nowhere else: old forms, passthroughs, norms, bits."""

from __future__ import annotations

import numpy as np

from disc_tf.testing.fuzz_generator import Generator, generator
from disc_tf.testing.tf_case import tensorflow


@generator()
def many(g: Generator) -> None:
    """AddN, IdentityN, ShapeN of several values."""
    x = g.pick("fi")
    y = g.pick("fi", like=x) if x else None
    if x is None or y is None:
        return
    if g.flip(0.4) and all(a == b for a, b in g.shapes_of(x, y)):
        g.add("AddN", {"inputs": [x, y, x]}, ulps=2, sums=True)
    elif g.flip():
        g.add("ShapeN", {"input": [x, y]}, out_type=g.choice((tensorflow().int32, tensorflow().int64)))
    else:
        g.add("IdentityN", {"input": [x, y]})


@generator()
def passthrough(g: Generator) -> None:
    x = g.pick("fib")
    if x is None:
        return
    how = int(g.rng.integers(5))
    if how == 0:
        g.add("Snapshot", {"input": x})
    elif how == 1:
        g.add("PreventGradient", {"input": x}, message="no gradient")
    elif how == 2:
        g.add("EnsureShape", {"input": x}, shape=[None] * g.rank(x))
    elif how == 3 and g.kind(x) == "f":
        g.add("CheckNumerics", {"tensor": x}, message="checked")
    else:
        g.add(g.choice(("Rank", "Size")), {"input": x})


@generator()
def old_forms(g: Generator) -> None:
    """Ops that newer ones replaced."""
    x = g.pick("fi", min_rank=1, max_rank=4)
    if x is None:
        return
    how = int(g.rng.integers(6))
    rank = g.rank(x)
    if how == 0:
        g.add("Concat", {"concat_dim": g.const(int(g.rng.integers(rank)), np.int32), "values": [x, x]})
    elif how == 1:
        g.add("Reverse", {"tensor": x, "dims": g.const(g.rng.integers(0, 2, rank).astype(bool))})
    elif how == 2:
        g.add(g.choice(("Add", "Div")) if g.kind(x) == "f" else "Add", {"x": x, "y": x}, ulps=1)
    elif how == 3 and rank >= 2:
        g.add("ConjugateTranspose", {"x": x, "perm": g.const(g.rng.permutation(rank), np.int32)})
    elif how == 4 and g.kind(x) == "f" and rank >= 2:
        g.add("BatchMatMul", {"x": x, "y": x}, adj_y=True, ulps=2, sums=True)
    elif how == 5 and g.kind(x) == "f" and rank >= 2:
        g.add("BatchMatMulV3", {"x": x, "y": x}, adj_y=True, Tout=tensorflow().as_dtype(g.value(x).dtype), ulps=2, sums=True)


@generator()
def float_misc(g: Generator) -> None:
    x = g.pick("f")
    y = g.pick("f", like=x) if x else None
    if x is None or y is None:
        return
    how = int(g.rng.integers(7))
    if how == 0:
        g.add("L2Loss", {"t": x}, ulps=4, sums=True)
    elif how == 1:
        g.add("LeakyRelu", {"features": x}, alpha=float(g.choice((0.0, 0.2, 1.0, 1.5))), ulps=1)
    elif how == 2:
        g.add(g.choice(("Xdivy", "Xlog1py")), {"x": x, "y": y}, ulps=16)
    elif how == 3:
        axes = [a for a in range(g.rank(x)) if g.flip()]
        g.add("EuclideanNorm", {"input": x, "axis": g.const(axes, np.int32)}, keep_dims=g.flip(), ulps=4, sums=True)
    elif how == 4 and str(g.value(x).dtype) in ("float32", "float64"):
        ends = [g.const(v, g.value(x).dtype) for v in g.rng.uniform(-3, 3, 2)]
        g.add("LinSpace", {"start": ends[0], "stop": ends[1], "num": g.const(int(g.rng.integers(1, 9)), np.int32)}, ulps=8, floor=3.0)
    elif how == 5 and g.exact(x) and g.exact(y) and all(a == b for a, b in g.shapes_of(x, y)):
        g.add("ApproximateEqual", {"x": x, "y": y}, tolerance=0.5)
    elif how == 6:
        g.add("Inv", {"x": x}, ulps=4)


@generator()
def bits(g: Generator) -> None:
    x = g.pick("fi", exact=True)
    if x is None:
        return
    tf = tensorflow()
    size = g.value(x).dtype.itemsize
    same = {1: (tf.int8, tf.uint8), 2: (tf.int16, tf.uint16, tf.float16), 4: (tf.int32, tf.uint32, tf.float32), 8: (tf.int64, tf.float64)}
    if g.kind(x) == "i" and g.flip(0.3):
        g.add("PopulationCount", {"x": x})
    elif g.flip(0.8):
        g.add("Bitcast", {"input": x}, type=g.choice(same[size]))
    else:
        g.add("Bitcast", {"input": x}, type=g.choice((tf.uint8, tf.int16, tf.float32)))


@generator()
def products_along(g: Generator) -> None:
    x = g.pick("fi", min_rank=1)
    if x is not None and g.value(x).size < 200:
        axis = g.const(g.axis(g.rank(x)), np.int32)
        g.add("Cumprod", {"x": x, "axis": axis}, exclusive=g.flip(), reverse=g.flip(), ulps=16, sums=True)


@generator()
def permutations(g: Generator) -> None:
    if g.flip():
        n = int(g.rng.integers(1, 6))
        g.add("InvertPermutation", {"x": g.const(g.rng.permutation(n), g.choice((np.int32, np.int64)))})
        return
    x, y = g.pick("fib"), g.pick("fib")
    if x is not None and y is not None:
        shapes = [g.add("Shape", {"input": v}, out_type=tensorflow().int32)[0] for v in (x, y)]
        g.add("BroadcastArgs", {"s0": shapes[0], "s1": shapes[1]})
