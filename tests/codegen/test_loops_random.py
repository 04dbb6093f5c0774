"""Random expressions of index and elementwise ops in one loop kernel, against the interpreter."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from disc_tf.ir.builder import new_function
from disc_tf.ir.dims import Dim, bcast
from disc_tf.ir.interp import evaluate
from disc_tf.ir.types import DType
from disc_tf.testing.kernel_runner import CompiledFusion, fusion_of

from .kernel_cases import TARGETS, compare

EXTENTS = [0, 1, 2, 3, 5, 8, 17, 33]
STEPS = ["neg", "add_self", "transpose", "merge", "split", "slice", "reverse", "pad", "concat", "broadcast", "iota", "bias"]


def step(b, name, x, pick):
    """One more op on x; `pick(n)` chooses in [0, n)."""
    r = x.rank
    if name == "neg":
        return b.negate(x)
    if name == "add_self":
        return b.add(x, b.multiply(x, 2))
    if name == "transpose" and r > 1:
        k = 1 + pick(r - 1)
        return b.transpose(x, [*range(k, r), *range(k)])
    if name == "merge" and r > 1:
        k = pick(r - 1)
        return b.reshape(x, [*x.dims[:k], x.dims[k] * x.dims[k + 1], *x.dims[k + 2:]])
    if name == "split" and r:
        k = pick(r)
        n = x.dims[k]
        if n.is_static and int(n) % 2 == 0:
            return b.reshape(x, [*x.dims[:k], 2, Dim.of(int(n) // 2), *x.dims[k + 1:]])
        return b.reshape(x, [*x.dims[:k], 1, n, *x.dims[k + 1:]])
    if name == "slice" and r:
        k = pick(r)
        low, _ = b.env.bounds(x.dims[k])
        start = 1 if (low or 0) >= 1 else 0
        starts = [start if i == k else 0 for i in range(r)]
        return b.slice(x, starts, list(x.dims), [2 if i == k else 1 for i in range(r)])
    if name == "reverse" and r:
        return b.reverse(x, [pick(r)])
    if name == "pad" and r:
        k = pick(r)
        fill = b.constant(np.int32(99))
        gap = pick(2)
        return b.pad(x, fill, [pick(3) if i == k else 0 for i in range(r)], [pick(3) if i == k else 0 for i in range(r)],
                     [gap if i == k else 0 for i in range(r)])
    if name == "concat" and r:
        return b.concatenate([x, b.negate(x)], pick(r))
    if name == "broadcast":
        return b.broadcast_in_dim(x, [*x.dims[:1], 3, *x.dims[1:]], [0, *range(2, r + 1)] if r else [])
    if name == "iota" and r:
        return b.add(x, b.iota(DType.I32, x.dims, pick(r)))
    return x


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_expressions(data):
    def pick(n: int) -> int:
        return data.draw(st.integers(0, n - 1))

    rank = 1 + pick(3)
    static = [pick(3) == 0 for _ in range(rank)]
    extents = [data.draw(st.sampled_from(EXTENTS)) for _ in range(rank)]
    dims = [n if s else f"d{i}" for i, (n, s) in enumerate(zip(extents, static, strict=True))]
    fn, b = new_function("f", {"x": (DType.I32, dims), "y": (DType.I32, [f"e{i}" for i in range(rank)])})
    x, y = fn.params
    shape_y = [n if data.draw(st.booleans()) else 1 for n in extents]
    spread = [bcast(p, q) for p, q in zip(x.dims, y.dims, strict=True)]
    v = b.add(b.broadcast_in_dim(x, spread, range(rank)), b.broadcast_in_dim(y, spread, range(rank)))
    if data.draw(st.booleans()):
        v = x
    for _ in range(1 + pick(5)):
        v = step(b, data.draw(st.sampled_from(STEPS)), v, pick)
    b.return_([b.add(v, 1)])
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-50, 50, extents).astype(np.int32), rng.integers(-50, 50, shape_y).astype(np.int32)]
    symbols = {f"d{i}": n for i, n in enumerate(extents)} | {f"e{i}": n for i, n in enumerate(shape_y)}
    target = TARGETS[pick(len(TARGETS))]
    c = CompiledFusion(fusion_of(fn, "loop"), fn, target)
    compare(c, fn, symbols, arrays, evaluate(fn, arrays, symbols), target)
