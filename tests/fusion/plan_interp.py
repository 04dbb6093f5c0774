"""Executes a plan on numpy strictly through what it hands to code generation: views, regions, aliases, writes.

Where a fusion has no region its ops are evaluated by their references. Comparing with `disc_tf.ir.interp` proves every access.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from disc_tf.fusion.types import Fusion, GatherRead, Plan, Region
from disc_tf.fusion.views import Axis, View
from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.interp import _Context, bind_dims
from disc_tf.ir.opset import op_def
from disc_tf.ir.types import TensorType


class PlanRunner:
    def __init__(self, plan: Plan, inputs: list[np.ndarray]) -> None:
        self.plan = plan
        self.ctx = _Context({})
        self.buffers: dict[Value, np.ndarray] = {}
        fn = plan.function
        for p, x in zip(fn.params, inputs, strict=True):
            self.buffers[p] = np.ascontiguousarray(x)
            bind_dims(self.ctx.symbols, p.tensor, x.shape, repr(p))

    def run(self) -> list[np.ndarray]:
        for fusion in self.plan:
            for v in fusion.inputs:
                assert v in self.buffers, f"{fusion.kind} {fusion.name} reads {v!r} before it is made"
            getattr(self, f"_{fusion.kind}", self._by_reference)(fusion)
            for v in fusion.outputs:
                assert v in self.buffers, f"{fusion.kind} does not make {v!r}"
        out = []
        for v in self.plan.function.results:
            if isinstance(v.type, TensorType):
                out.append(self.buffers[v].reshape(self.shape(v)))
        return out

    def shape(self, v: Value) -> tuple[int, ...]:
        return tuple(self.ctx.dim(d) for d in v.dims)

    def positions(self, view: View) -> np.ndarray:
        extents = [self.ctx.dim(a.extent) for a in view.axes]
        out = np.full(extents, self.ctx.dim(view.offset), np.int64)
        for i, a in enumerate(view.axes):
            shape = [-1 if i == j else 1 for j in range(len(extents))]
            out = out + np.arange(extents[i]).reshape(shape) * self.ctx.dim(a.stride)
        return out

    def load(self, view: View, extents: list[int] | None = None) -> np.ndarray:
        assert view.source is not None
        at = self.positions(view)
        flat = self.buffers[view.source].reshape(-1)
        assert at.size == 0 or (at.min() >= 0 and at.max() < flat.size), f"{view} leaves its buffer"
        return flat[at] if at.size else np.zeros(at.shape, flat.dtype)

    # ---- kinds ------------------------------------------------------------------------------------------------

    def _by_reference(self, fusion: Fusion) -> None:
        values: dict[Value, Any] = {v: self.buffers[v].reshape(self.shape(v)) for v in fusion.inputs}
        self.ctx.values.update(values)
        for op in fusion.ops:
            self.ctx.step(op)
        for v in fusion.outputs:
            self.buffers[v] = np.ascontiguousarray(self.ctx.values[v])

    def _view(self, fusion: Fusion) -> None:
        (out,) = fusion.outputs
        view = fusion.attrs["view"]
        n = int(np.prod(self.shape(out), dtype=np.int64))
        start = self.ctx.dim(view.offset)
        self.buffers[out] = self.buffers[view.source].reshape(-1)[start : start + n].reshape(self.shape(out))

    def _gemm(self, fusion: Fusion) -> None:
        nb, nm, nn, nk = fusion.attrs["axes"]
        lhs, rhs = self.load(fusion.attrs["lhs"]), self.load(fusion.attrs["rhs"])
        assert lhs.ndim == nb + nm + nk and rhs.ndim == nb + nk + nn
        letters = iter("abcdefghijklmnopqrstuvwxyz")
        b, m, n, k = ("".join(next(letters) for _ in range(c)) for c in (nb, nm, nn, nk))
        product = _einsum(f"{b}{m}{k},{b}{k}{n}->{b}{m}{n}", lhs, rhs, fusion.attrs["dot"])
        self.region(fusion.attrs["region"], {fusion.attrs["dot"].result: product})

    def _attention(self, fusion: Fusion) -> None:
        a = fusion.attrs
        q, k, v = (self.load(a[x]) for x in "qkv")
        scores = _einsum("...md,...nd->...mn", q, k, a["qk"])
        values = self.region(a["score"], {a["qk"].result: scores})
        probs = np.broadcast_to(self.at(a["score"], values, a["probs"], scores.shape), scores.shape)
        out = _einsum("...mn,...nd->...md", probs, v, a["pv"])
        self.region(a["region"], {a["pv"].result: out})

    def _rows(self, fusion: Fusion) -> None:
        self._region_or_reference(fusion)

    def _loop(self, fusion: Fusion) -> None:
        counts = {int(np.prod(self.shape(v), dtype=np.int64)) for v in fusion.outputs}
        assert len(counts) == 1, f"{fusion.name} stores {counts} elements"
        self._region_or_reference(fusion)

    def _region_or_reference(self, fusion: Fusion) -> None:
        region = fusion.attrs.get("region")
        if region is None:
            self._by_reference(fusion)
        else:
            self.region(region, {})

    # ---- regions ------------------------------------------------------------------------------------------------

    def region(self, region: Region, seeds: dict[Value, np.ndarray]) -> dict[Value, np.ndarray]:
        """Evaluate in the space's shape; row values keep extent 1 along the inner axes."""
        space = tuple(self.ctx.dim(d) for d in region.space)
        values: dict[Value, np.ndarray] = dict(seeds)
        for op in region.scalars:
            operands = [values[v] for v in op.operands]
            (r,) = op_def(op.name).reference(op, operands, self.ctx)
            values[op.result] = np.asarray(r).reshape(-1)[0]
        for op in region.ops:
            values[op.result] = self.step(region, values, op, space)
        for out, view in region.writes:
            data = values[region.resolve(out)] if region.resolve(out) in values else self.at(region, values, out, space)
            if region.level[region.resolve(out)] == "row":
                outer = len(space) - region.inner
                view = View(view.source, view.offset, (*view.axes[:outer], *(Axis(Dim.of(1), a.stride) for a in view.axes[outer:])))
                at = self.positions(view)
                assert view.strides[outer:] == (0,) * region.inner
            else:
                at = self.positions(view)
            buffer = self.buffers.setdefault(out, np.zeros(int(np.prod(self.shape(out), dtype=np.int64)), out.dtype.np))
            assert at.size == buffer.size, f"{out!r}: {at.size} stores into {buffer.size} elements"
            assert len(np.unique(at)) == at.size and (not at.size or (at.min() >= 0 and at.max() < buffer.size))
            buffer[at] = np.broadcast_to(data, at.shape)
        return values

    def at(self, region: Region, values: dict[Value, np.ndarray], v: Value, space: tuple[int, ...]) -> np.ndarray:
        v = region.resolve(v)
        if v in values:
            return values[v]
        if v in region.reads:
            return self.load(region.reads[v]) if 0 not in space else np.zeros(space, v.dtype.np)
        return self.positions(region.iotas[v]).astype(v.dtype.np)

    def step(self, region: Region, values: dict[Value, np.ndarray], op: Op, space: tuple[int, ...]) -> np.ndarray:
        if op.name == "gather":
            return self.gather(region, values, region.gathers[op.result], space)
        operands = [self.at(region, values, v, space) for v in op.operands[: 1 if op.name == "reduce" else 3]]
        outer = len(space) - region.inner
        if op.name == "reduce":
            x = np.broadcast_to(operands[0], space)
            reduced = _reduce(op, x, tuple(range(outer, len(space))))
            return reduced.reshape(space[:outer] + (1,) * region.inner)
        if region.level[op.result] == "row":  # operands were seen with stride 0 along the row
            operands = [o[(..., *(slice(0, 1) for _ in range(region.inner)))] if np.ndim(o) else o for o in operands]
        (r,) = op_def(op.name).reference(op, operands, self.ctx)
        want = space if region.level[op.result] == "full" else space[:outer] + (1,) * region.inner
        return np.broadcast_to(r, want)

    def gather(self, region: Region, values: dict[Value, np.ndarray], g: GatherRead, space: tuple[int, ...]) -> np.ndarray:
        index = self.at(region, values, g.index, space)
        outer = len(space) - region.inner
        index = np.clip(index[(..., *(slice(0, 1) for _ in range(region.inner)))], 0, self.ctx.dim(g.limit) - 1)
        row, *rest = g.table.axes
        at = self.positions(View(g.table.source, g.table.offset, tuple(rest))) + index.astype(np.int64) * self.ctx.dim(row.stride)
        assert outer + region.inner == len(rest)
        return self.buffers[g.table.source].reshape(-1)[np.broadcast_to(at, space)]


def _reduce(op: Op, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    from disc_tf.ir.core import reduce_kind
    from disc_tf.passes.rewriter import splat_of

    ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or}
    init = splat_of(op.operands[1])
    return ufunc[reduce_kind(op)].reduce(x, axis=axes, initial=init).astype(x.dtype)


def _einsum(spec: str, a: np.ndarray, b: np.ndarray, op: Op) -> np.ndarray:
    return np.einsum(spec, a.astype(np.float64), b.astype(np.float64)).astype(op.result.dtype.np)


def run_plan(plan: Plan, inputs: list[np.ndarray]) -> list[np.ndarray]:
    return PlanRunner(plan, inputs).run()
