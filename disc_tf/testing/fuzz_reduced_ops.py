"""Generators of reductions right behind what moves data: one reader, so that the kernel of the reduction takes its producers in.

Reductions of several results (ArgMax, ArgMin), plain ones and the first of a sort, over one axis or all. Often: by chance alone, one
graph in twelve had an ArgMax, and hardly one in a thousand an ArgMax that alone reads a concatenation.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from disc_tf.testing.fuzz_generator import Generator, generator
from disc_tf.testing.fuzz_program import Ref
from disc_tf.testing.tf_case import tensorflow


def _concat(g: Generator, x: Ref) -> list[Ref]:
    others = [x] + [r for r in (g.pick("fi", like=x, exact=True) for _ in range(2)) if r is not None and g.rank(r) == g.rank(x)]
    return g.add("ConcatV2", {"values": others if len(others) > 1 else [x, x], "axis": g.const(g.axis(g.rank(x)), np.int32)})


def _pad(g: Generator, x: Ref) -> list[Ref]:
    paddings = g.const(g.rng.integers(0, 3, (g.rank(x), 2)), np.int32)
    return g.add("PadV2", {"input": x, "paddings": paddings, "constant_values": g.const(1, g.value(x).dtype)})


def _slice(g: Generator, x: Ref) -> list[Ref]:
    rank = g.rank(x)
    begin = [int(g.rng.integers(2)) for _ in range(rank)]
    ints = [g.const(v, np.int32) for v in (begin, [0] * rank, [int(g.choice((1, 2))) for _ in range(rank)])]
    return g.add("StridedSlice", {"input": x, "begin": ints[0], "end": ints[1], "strides": ints[2]}, end_mask=(1 << rank) - 1)


def _gather(g: Generator, x: Ref) -> list[Ref]:
    axis = g.axis(g.rank(x))
    extents = [v.shape[axis] for v in g.values(x)]
    if not min(extents, default=0):
        return []
    at = g.const(g.rng.integers(0, min(extents), int(g.rng.integers(1, 5))), np.int32)
    return g.add("GatherV2", {"params": x, "indices": at, "axis": g.const(axis, np.int32)})


def _tile(g: Generator, x: Ref) -> list[Ref]:
    return g.add("Tile", {"input": x, "multiples": g.const(g.rng.integers(1, 3, g.rank(x)), np.int32)})


def _transpose(g: Generator, x: Ref) -> list[Ref]:
    return g.add("Transpose", {"x": x, "perm": g.const(g.rng.permutation(g.rank(x)), np.int32)})


def _reverse(g: Generator, x: Ref) -> list[Ref]:
    return g.add("ReverseV2", {"tensor": x, "axis": g.const([g.axis(g.rank(x))], np.int32)})


def _work(g: Generator, x: Ref) -> list[Ref]:
    return g.add("Neg", {"x": x}) if g.flip() else g.add("Maximum", {"x": x, "y": g.const(1, g.value(x).dtype)})


def _stack(g: Generator, x: Ref) -> list[Ref]:
    return g.add("Pack", {"values": [x, x]}, axis=g.axis(g.rank(x) + 1))


def _flat(g: Generator, x: Ref) -> list[Ref]:
    return g.add("Reshape", {"tensor": x, "shape": g.const([-1], np.int32)})


#: concatenations more often: their parts are branches of the kernel
_MOVES: tuple[Callable[[Generator, Ref], list[Ref]], ...] = (
    _concat, _concat, _concat, _pad, _slice, _gather, _tile, _transpose, _reverse, _work, _work, _stack, _flat,
)  # fmt: skip


def _reduce(g: Generator, x: Ref) -> None:
    tf = tensorflow()
    axis = g.axis(g.rank(x))
    how = int(g.rng.integers(5))
    if how < 3:
        to = g.choice((tf.int32, tf.int64))
        g.add(g.choice(("ArgMax", "ArgMin")), {"input": x, "dimension": g.const(axis, np.int32)}, output_type=to)
    elif how == 3 and all(v.shape[-1] for v in g.values(x)):
        g.add("TopKV2", {"input": x, "k": g.const(1, np.int32)}, sorted=True)
    else:
        op = g.choice(("Max", "Min", "Sum", "Prod"))
        if op != "Prod" or g.value(x).size <= 40:
            sums = op in ("Sum", "Prod")
            g.add(op, {"input": x, "axis": g.const([axis], np.int32)}, keep_dims=g.flip(), ulps=16 if sums else 0, sums=sums)


@generator(12)
def reduced(g: Generator) -> None:
    """One to three moves of data, and a reduction of what they give."""
    x = g.pick("fi", min_rank=1, max_rank=4, exact=True)
    if x is None or g.has_nans(x):
        return
    for _ in range(int(g.rng.integers(1, 4))):
        if g.rank(x) == 0 or g.rank(x) > 4:
            return
        moved = g.choice(_MOVES)(g, x)
        if moved:
            x = moved[0]
    if g.rank(x):
        _reduce(g, x)
