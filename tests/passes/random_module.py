"""Random modules over symbolic shapes: elementwise chains, views, reductions, dots, gathers, several results."""

from __future__ import annotations

import numpy as np

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Module, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType, TensorType

_UNARY = ("tanh", "exponential", "negate", "abs", "logistic", "sine")
_BINARY = ("add", "subtract", "multiply", "maximum", "minimum")
BASE = ((), ("m",), ("n",), (4,), ("m", "n"), ("m", 4), ("n", 4), ("m", "n", 4), (1, "n"), ("m", 1), ("m", 2, "n", 2))


class Random:
    """Grows a function op by op from a numpy generator; every value stays bounded."""

    def __init__(self, seed: int, ops: int, dtype: DType = DType.F64) -> None:
        self.rng = np.random.default_rng(seed)
        self.fn = Function("main")
        self.b = Builder(self.fn.body, self.fn.env)
        self.dtype = dtype
        self.values: list[Value] = []
        for i in range(2):  # constants come first among a cluster's arguments
            self.values.append(self.arg(f"w{i}", ((4,), (4, 4), (3, 4))[self.rng.integers(3)], "const"))
        for i in range(4):
            dims = BASE[self.rng.integers(1, len(BASE))]
            self.values.append(self.arg(f"x{i}", dims, "device"))
        for _ in range(ops):
            v = self.step()
            if v is not None and v.rank <= 5:
                self.values.append(v)

    def arg(self, name: str, dims, kind: str) -> Value:
        return self.fn.add_arg(TensorType.of(self.dtype, dims), ArgInfo(name, kind))

    def pick(self, *, rank: int = 0) -> Value:
        """A value of at least this rank, recent ones more often."""
        found = [v for v in self.values if v.rank >= rank]
        i = len(found) - 1 - int(min(self.rng.exponential(4), len(found) - 1))
        return found[i]

    def choice(self, items):
        return items[self.rng.integers(len(items))]

    def step(self) -> Value | None:
        return getattr(self, "_" + self.choice(_STEPS))()

    def _unary(self) -> Value:
        return self.b.create1(self.choice(_UNARY), [self.b.clamp(-3.0, self.pick(), 3.0)])

    def _binary(self) -> Value | None:
        x = self.pick()
        same = [v for v in self.values if v.dims == x.dims]
        y = self.choice(same)
        if self.rng.random() < 0.3:
            y = self.b.full(self.choice([0.0, -0.0, 1.0, 2.0, 0.5, -1.5]), self.dtype, x.dims)
        if self.rng.random() < 0.15:
            return self.b.divide(x, self.b.full(self.choice([1.0, 4.0, 3.0]), self.dtype, x.dims))
        return self.b.create1(self.choice(_BINARY), [x, y] if self.rng.random() < 0.7 else [y, x])

    def _select(self) -> Value:
        x = self.pick()
        y = self.choice([v for v in self.values if v.dims == x.dims])
        return self.b.select(self.b.compare(x, y, self.choice(["LT", "GE", "EQ"])), x, y)

    def _transpose(self) -> Value:
        x = self.pick(rank=1)
        return self.b.transpose(x, self.rng.permutation(x.rank).tolist())

    def _reshape(self) -> Value | None:
        x = self.pick()
        dims = list(x.dims)
        kind = self.rng.integers(4)
        if kind == 0 and len(dims) > 1:
            i = int(self.rng.integers(len(dims) - 1))
            dims[i : i + 2] = [dims[i] * dims[i + 1]]
        elif kind == 1:
            dims.insert(int(self.rng.integers(len(dims) + 1)), Dim.of(1))
        elif kind == 2:
            dims = [d for d in dims if d != 1]
        elif dims and dims[-1] == 4:
            dims[-1:] = [Dim.of(2), Dim.of(2)]
        return self.b.reshape(x, dims)

    def _broadcast(self) -> Value | None:
        x, like = self.pick(), self.pick()
        mapping, at = [], 0
        for d in x.dims:
            while at < like.rank and like.dims[at] != d and d != 1:
                at += 1
            if at >= like.rank:
                return None
            mapping.append(at)
            at += 1
        return self.b.broadcast_in_dim(x, like.dims, mapping)

    def _slice(self) -> Value | None:
        x = self.pick(rank=1)
        i = int(self.rng.integers(x.rank))
        if x.dims[i] != 4:
            return None
        lo, hi = sorted(self.rng.choice(5, 2, replace=False).tolist())
        starts, limits, strides = [0] * x.rank, list(x.dims), [1] * x.rank
        starts[i], limits[i], strides[i] = lo, Dim.of(hi), int(self.rng.integers(1, 3))
        return self.b.slice(x, starts, limits, strides)

    def _concat(self) -> Value | None:
        x = self.pick(rank=1)
        y = self.choice([v for v in self.values if v.dims == x.dims])
        return self.b.concatenate([x, y], int(self.rng.integers(x.rank)))

    def _reduce(self) -> Value:
        x = self.pick(rank=1)
        if self.rng.random() < 0.6:
            axes = list(range(int(self.rng.integers(x.rank)), x.rank))
        else:
            axes = [i for i in range(x.rank) if self.rng.random() < 0.5]
        r = self.b.reduce(x, axes, "max" if self.rng.random() < 0.4 else "add")
        r = self.b.clamp(-50.0, r, 50.0)
        if self.rng.random() < 0.6:  # back to the rows: softmax and layernorm are made of this
            r = self.b.broadcast_in_dim(r, x.dims, [i for i in range(x.rank) if i not in axes])
            return self.b.subtract(x, r)
        return r

    def _dot(self) -> Value | None:
        x = self.pick(rank=1)
        for y in reversed(self.values):
            if y.rank and y.rank <= 3 and x.rank <= 3:
                for i in range(y.rank):
                    if y.dims[i] == x.dims[-1]:
                        d = self.b.dot_general(x, y, [x.rank - 1], [i])
                        return self.b.clamp(-50.0, d, 50.0)
        return None

    def _gather(self) -> Value | None:
        table, x = self.pick(rank=2), self.pick()
        if not table.dims[0].is_static or x.rank > 3:
            return None
        index = self.b.convert(self.b.clamp(0.0, x, float(int(table.dims[0]) - 1)), DType.I32)
        sizes = [Dim.of(1), *table.dims[1:]]
        return self.b.gather(
            table, index, sizes, offset_dims=tuple(range(x.rank, x.rank + table.rank - 1)),
            collapsed_slice_dims=(0,), start_index_map=(0,), index_vector_dim=x.rank,
        )  # fmt: skip

    def _iota(self) -> Value | None:
        x = self.pick(rank=1)
        i = self.b.convert(self.b.iota(DType.I32, x.dims, int(self.rng.integers(x.rank))), self.dtype)
        return self.b.minimum(x, i)

    def _mean(self) -> Value:
        x = self.pick(rank=1)
        n = self.b.convert(self.b.dim(x.dims[-1] + 1), self.dtype)
        return self.b.divide(x, self.b.broadcast_in_dim(n, x.dims, ()))

    def finish(self) -> Module:
        unused = [v for v in self.values if not v.uses and v.op is not None]
        results = [*unused[-4:], self.pick(), self.values[0]]
        self.b.return_(results)
        module = Module()
        module.add(self.fn)
        return module


_STEPS = (
    ["unary"] * 4 + ["binary"] * 6 + ["reduce"] * 4 + ["reshape"] * 3 + ["broadcast"] * 3 + ["transpose"] * 2
    + ["select", "slice", "slice", "concat", "dot", "dot", "gather", "iota", "mean"]
)  # fmt: skip


def random_module(seed: int, ops: int = 24, dtype: DType = DType.F64) -> Module:
    """A module with function "main" over the symbols m and n, the same for the same arguments."""
    return Random(seed, ops, dtype).finish()


def inputs_for(fn: Function, symbols: dict[str, int], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal([d.evaluate(symbols) for d in p.dims]).astype(p.dtype.np) for p in fn.params]
