"""Constant folding through the numpy references of the op set, of bounded size."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from disc_tf.ir.core import Block, Module, Op, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.opset import op_def
from disc_tf.ir.pass_manager import Pass
from disc_tf.ir.types import TensorType
from disc_tf.passes.elementwise_rules import dim_of
from disc_tf.passes.rewriter import Rewriter, constant_of, is_elementwise, rewrite, splat_of, words

#: ops that fold although they have several operands and move data only
_MOVES = words("reshape transpose slice concatenate pad reverse broadcast_in_dim iota gather dynamic_slice reduce")


class _NoContext:
    """The evaluation context of ops without symbols."""

    def dim(self, dim: Dim) -> int:
        return int(dim)

    def bind(self, symbol: str, value: int) -> None:
        raise TypeError("a constant binds no symbol")

    def run(self, block: Block, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Regions of scalar ops (the monoids of reductions)."""
        values: dict[Value, np.ndarray] = dict(zip(block.params, inputs, strict=True))
        for op in block.ops:
            if op.name == "return":
                return [values[v] for v in op.operands]
            results = op_def(op.name).reference(op, [values[v] for v in op.operands], self)
            values.update(zip(op.results, results, strict=True))
        raise ValueError("region without return")


@dataclasses.dataclass(frozen=True)
class ConstantFolding(Pass):
    """Evaluate ops whose operands are constants.

    Elementwise ops of splats stay splats whatever their (even symbolic) size; other results (of constants and splats) are folded up to
    ``max_elements`` and only where they are not larger than twice the constants, except below ``small`` elements. ``disc.dim`` of a static
    dim is a constant.
    """

    max_elements: int = 1 << 14
    small: int = 1024
    name = "constant_folding"

    def run(self, module: Module, ctx: object) -> None:
        for fn in module.functions.values():
            rewrite(fn, fold_rules(self.max_elements, self.small))


def fold_rules(max_elements: int = 1 << 14, small: int = 1024):
    """The rules of `ConstantFolding`."""

    def rule(op: Op, rw: Rewriter) -> Sequence[Value] | None:
        return fold(op, rw, max_elements, small)

    return _Everything(rule)


class _Everything(dict):
    """A rule table that gives the same rule for every op name."""

    def __init__(self, rule) -> None:
        super().__init__()
        self._rules = (rule,)

    def get(self, key: object, default: object = None):  # type: ignore[override]
        return self._rules


def fold(op: Op, rw: Rewriter, max_elements: int, small: int) -> Sequence[Value] | None:
    if op.name == "disc.dim":
        d = rw.env.simplify(op.attrs["dim"])
        if d.is_static:
            return [rw.constant(np.array(int(d), op.result.dtype.np))]
        return None
    if not op.operands or len(op.results) != 1 or op.name == "return" or not isinstance(op.results[0].type, TensorType):
        return None
    known = same_dim_comparison(op)
    if known is not None:
        return [rw.constant(known)]
    if is_elementwise(op):
        scalars = [splat_of(v) for v in op.operands]
        if all(s is not None for s in scalars):
            arrays = [np.asarray(s, v.dtype.np) for s, v in zip(scalars, op.operands, strict=True)]
            with np.errstate(all="ignore"):
                (value,) = op_def(op.name).reference(op, arrays, _NoContext())
            return [rw.splat(value, op.result.tensor)]
    elif op.name not in _MOVES or (op.name == "broadcast_in_dim" and op.operands[0].rank == 0):
        return None
    if not op.result.tensor.is_static:
        return None
    contents = [constant_of(v) for v in op.operands]
    size = int(op.result.tensor.num_elements())
    if size > max_elements or (size > small and size > 2 * sum(c.size for c in contents if c is not None)):
        return None
    if is_elementwise(op):  # a splat is a broadcast, not a constant
        contents = [_splat_array(v) if c is None else c for v, c in zip(op.operands, contents, strict=True)]
    if any(c is None for c in contents):
        return None
    with np.errstate(all="ignore"):
        (value,) = op_def(op.name).reference(op, contents, _NoContext())
    value = np.ascontiguousarray(np.asarray(value, op.result.dtype.np)).reshape([int(d) for d in op.result.dims])
    return [rw.constant(value)]


def _splat_array(v: Value) -> np.ndarray | None:
    scalar = splat_of(v)
    return None if scalar is None else np.broadcast_to(np.asarray(scalar, v.dtype.np), [int(d) for d in v.dims])


def same_dim_comparison(op: Op) -> np.ndarray | None:
    """``compare(disc.dim a, disc.dim a)`` of equal expressions."""
    if op.name != "compare" or op.result.rank:
        return None
    a, b = (dim_of(v) for v in op.operands)
    if a is None or b is None or a != b:
        return None
    return np.array(op.attrs["direction"] in ("EQ", "LE", "GE"))


__all__ = ["ConstantFolding", "fold", "fold_rules"]
