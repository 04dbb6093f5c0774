"""Generators of gathers, scatters, diagonals and other ops on positions."""

from __future__ import annotations

import numpy as np

from disc_tf.testing.fuzz_generator import Generator, generator
from disc_tf.testing.fuzz_program import Ref
from disc_tf.testing.tf_case import tensorflow


def _positions(g: Generator, extents: tuple[int, ...], count: int, distinct: bool) -> np.ndarray:
    """``count`` index vectors inside of ``extents``; sometimes one outside."""
    total = int(np.prod(extents))
    flat = g.rng.permutation(total)[:count] if distinct else g.rng.integers(0, max(total, 1), count)
    at = np.stack(np.unravel_index(flat, extents), -1) if extents else np.zeros((count, 0), np.int64)
    if at.size and g.flip(0.05):
        at[0, 0] = extents[0]
    return at.astype(g.choice((np.int32, np.int64)))


@generator()
def gather_nd(g: Generator) -> None:
    x = g.pick("fib", min_rank=1, max_rank=4)
    if x is None or not g.value(x).size:
        return
    depth = int(g.rng.integers(1, g.rank(x) + 1))
    g.add("GatherNd", {"params": x, "indices": g.const(_positions(g, g.shape(x)[:depth], int(g.rng.integers(0, 5)), False))})


@generator()
def scatter(g: Generator) -> None:
    """Into an existing tensor, or one of zeros."""
    x = g.pick("fi", min_rank=1, max_rank=4)
    if x is None or not g.value(x).size:
        return
    depth = int(g.rng.integers(1, g.rank(x) + 1))
    kind = g.choice(("Update", "Add", "Sub", "Max", "Min"))
    if kind in ("Max", "Min") and g.has_nans(x):
        return
    count = int(g.rng.integers(0, min(4, np.prod(g.shape(x)[:depth])) + 1))
    at = g.const(_positions(g, g.shape(x)[:depth], count, distinct=kind == "Update"))
    updates = g.const(g.data("float64", (count, *g.shape(x)[depth:]), False).astype(g.value(x).dtype))
    if g.flip(0.8):
        g.add(f"TensorScatter{kind}", {"tensor": x, "indices": at, "updates": updates}, ulps=2, sums=kind in ("Add", "Sub"))
    else:
        shape = g.add("Shape", {"input": x}, out_type=tensorflow().as_dtype(g.value(at).dtype))[0]
        g.add("ScatterNd", {"indices": at, "updates": updates, "shape": shape}, ulps=2, sums=True)


@generator()
def diagonals(g: Generator) -> None:
    x = g.pick("fib", min_rank=1, max_rank=3)
    if x is None:
        return
    zero = g.const(0, g.value(x).dtype)
    how = int(g.rng.integers(6))
    lower, upper = sorted(g.rng.integers(-2, 3, 2).tolist())
    align = g.choice(("RIGHT_LEFT", "LEFT_RIGHT", "LEFT_LEFT", "RIGHT_RIGHT"))
    if how == 0:
        g.add("MatrixDiag", {"diagonal": x})
    elif how == 1 and g.rank(x) < 3:
        g.add("Diag", {"diagonal": x})
    elif g.rank(x) < 2:
        return
    elif how == 2:
        g.add("MatrixDiagPart", {"input": x})
    elif how == 3:
        k = g.const([lower, upper] if g.flip() else lower, np.int32)
        g.add("MatrixDiagPartV3", {"input": x, "k": k, "padding_value": zero}, align=align)
    elif how == 4:
        part = g.add("MatrixDiagPart", {"input": x})
        if part:
            g.add("MatrixSetDiag", {"input": x, "diagonal": part[0]})
    else:
        bounds = [g.const(int(v), np.int64) for v in (g.rng.integers(-1, 4), g.rng.integers(-1, 4))]
        g.add("MatrixBandPart", {"input": x, "num_lower": bounds[0], "num_upper": bounds[1]})


@generator()
def select_rows(g: Generator) -> None:
    """Select (the old form): a condition per row, or of the operands' shape."""
    x = g.pick("fi", min_rank=1)
    if x is None:
        return
    y = g.add("Neg", {"x": x}) if g.value(x).dtype.kind != "u" else [x]
    row = g.add("Sum", {"input": g.add("Cast", {"x": g.add("ZerosLike", {"x": x})[0]}, DstT=tensorflow().int32)[0],
                        "axis": g.const(list(range(1, g.rank(x))), np.int32)}, keep_dims=False)  # fmt: skip
    if y and row:
        some = g.add("Cumsum", {"x": g.add("OnesLike", {"x": row[0]})[0], "axis": g.const(0, np.int32)})
        condition = g.add("Less", {"x": some[0], "y": g.const(3, np.int32)})
        g.add("Select", {"condition": condition[0], "x": x, "y": y[0]})


@generator()
def stitch(g: Generator) -> None:
    x = g.pick("fi", min_rank=1, max_rank=3)
    if x is None or not 0 < g.shape(x)[0] < 8:
        return
    n = g.shape(x)[0]
    order = g.rng.permutation(2 * n).astype(np.int32)
    both = [g.const(order[:n]), g.const(order[n:])]
    g.add(g.choice(("DynamicStitch", "ParallelDynamicStitch")), {"indices": both, "data": [x, x]})


@generator()
def one_row(g: Generator) -> Ref | None:
    """Gather along the first axis, by the old op."""
    x = g.pick("fib", min_rank=1, max_rank=4)
    if x is None or not g.shape(x)[0]:
        return None
    found = g.add("Gather", {"params": x, "indices": g.const(g.rng.integers(0, g.shape(x)[0], 3), np.int32)})
    return found[0] if found else None
