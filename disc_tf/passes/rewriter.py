"""Rewriting a function in linear time, and small questions about values that all passes ask.

A rule is ``rule(op, rw) -> Sequence[Value] | None``: None leaves the op alone, values replace its results. New ops made with
``rw.create`` land before the op. A sweep visits every op once; `rewrite` sweeps until nothing changes (bounded).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from disc_tf.ir.core import Block, Function, Op, Value, replace_all_uses
from disc_tf.ir.dims import Dim
from disc_tf.ir.shape_env import ShapeEnv
from disc_tf.ir.types import DType, TensorType, Type

Rule = Callable[[Op, "Rewriter"], "Sequence[Value] | None"]



def words(text: str) -> frozenset[str]:
    """The set of space-separated names in ``text``."""
    return frozenset(text.split())


#: elementwise ops by arity (operands and result have the same dims; scalars are broadcast explicitly)
UNARY = words(
    "abs negate sign exponential exponential_minus_one log log_plus_one sqrt rsqrt cbrt sine cosine tan tanh logistic "
    "floor ceil round_nearest_even round_nearest_afz is_finite not popcnt count_leading_zeros erf erfc asin acos atan sinh "
    "cosh asinh acosh atanh lgamma digamma convert bitcast_convert"
)
BINARY = words(
    "add subtract multiply divide remainder power maximum minimum atan2 and or xor shift_left shift_right_arithmetic "
    "shift_right_logical compare"
)
ELEMENTWISE = UNARY | BINARY | {"select", "clamp"}


def base_name(name: str) -> str:
    """The op's name without a dialect prefix of chlo (``chlo.erf`` and ``erf`` are the same op)."""
    return name.removeprefix("chlo.")


def is_elementwise(op: Op) -> bool:
    """Whether result element i depends on element i of every operand only (all of the same dims)."""
    if base_name(op.name) not in ELEMENTWISE or len(op.results) != 1:
        return False
    if op.name == "bitcast_convert":
        return op.operands[0].dtype.bits == op.result.dtype.bits
    return all(v.rank == op.result.rank for v in op.operands)


class Rewriter:
    """The context of a sweep: makes ops at the current place of the rebuilt list."""

    def __init__(self, env: ShapeEnv, out: list[Op], block: Block) -> None:
        self.env = env
        self.block = block
        self._out = out
        self.loc: tuple[str, ...] = ()
        self.facts: dict[Any, Any] = {}

    def create(
        self,
        name: str,
        operands: Sequence[Value],
        types: Type | Sequence[Type],
        attrs: Mapping[str, Any] | None = None,
        regions: Sequence[Block] = (),
    ) -> Op:
        """Append a new op before the one being rewritten (same ``loc``)."""
        many = list(types) if isinstance(types, Sequence) else [types]
        op = Op(name, operands, many, attrs, regions, self.loc)
        op.parent = self.block
        self._out.append(op)
        return op

    def value(self, name: str, operands: Sequence[Value], type: Type, attrs: Mapping[str, Any] | None = None) -> Value:
        return self.create(name, operands, type, attrs).result

    def reshape(self, x: Value, dims: Sequence[Dim]) -> Value:
        dims = tuple(dims)
        return x if x.dims == dims else self.value("reshape", [x], TensorType(x.dtype, dims))

    def broadcast(self, x: Value, dims: Sequence[Dim], mapping: Sequence[int]) -> Value:
        attrs = {"broadcast_dimensions": tuple(mapping)}
        return self.value("broadcast_in_dim", [x], TensorType(x.dtype, tuple(dims)), attrs)

    def constant(self, array: np.ndarray) -> Value:
        kind = TensorType.of(DType.from_np(array.dtype), array.shape)
        return self.value("constant", [], kind, {"value": array})

    def splat(self, scalar: Any, type: TensorType) -> Value:
        """A value of ``type`` all of whose elements are ``scalar``."""
        c = self.constant(np.asarray(scalar, dtype=type.dtype.np).reshape(()))
        return c if not type.dims else self.broadcast(c, type.dims, ())

    def equal(self, a: Dim, b: Dim) -> bool:
        return a == b or self.env.is_equal(a, b) is True

    def same_dims(self, a: Sequence[Dim], b: Sequence[Dim]) -> bool:
        return len(a) == len(b) and all(self.equal(x, y) for x, y in zip(a, b, strict=True))

    def is_one(self, d: Dim) -> bool:
        return self.equal(d, Dim.of(1))


def sweep(block: Block, rules: Mapping[str, Sequence[Rule]], env: ShapeEnv) -> bool:
    """Visit every op of the block (and of its regions) once; True if anything changed."""
    out: list[Op] = []
    rw = Rewriter(env, out, block)
    changed = False
    for op in block.ops:
        for region in op.regions:
            changed |= sweep(region, rules, env.child())
        rw.loc = op.loc
        for rule in rules.get(op.name, ()):
            new = rule(op, rw)
            if new is None:
                continue
            for old, v in zip(op.results, new, strict=True):
                if old.hint and not v.hint:
                    v.hint = old.hint
                replace_all_uses(old, v)
            op.drop()
            op.parent = None
            changed = True
            break
        else:
            out.append(op)
    block.ops = out
    return changed


def rewrite(fn: Function, rules: Mapping[str, Sequence[Rule]], max_sweeps: int = 12) -> bool:
    """Sweep until nothing changes; True if anything changed."""
    changed = False
    for _ in range(max_sweeps):
        if not sweep(fn.body, rules, fn.env):
            break
        changed = True
    return changed


def table(*rules: tuple[Iterable[str], Rule]) -> dict[str, list[Rule]]:
    """``(op names, rule)`` pairs as the table that `sweep` takes."""
    out: dict[str, list[Rule]] = {}
    for names, rule in rules:
        for n in names:
            out.setdefault(n, []).append(rule)
    return out


# ---- questions -----------------------------------------------------------------------------------------------


def constant_of(v: Value) -> np.ndarray | None:
    """The content if ``v`` is a ``constant``."""
    return v.op.attrs["value"] if v.op is not None and v.op.name == "constant" else None


def is_number(v: Value, number: int) -> bool:
    """Whether ``v`` is a constant of one element, this one."""
    content = constant_of(v)
    return content is not None and content.size == 1 and int(np.asarray(content).reshape(-1)[0]) == number


def conjuncts(pred: Value) -> Iterator[Value]:
    """The terms that a scalar predicate is a conjunction of."""
    todo = [pred]
    while todo:
        v = todo.pop()
        if v.op is not None and v.op.name == "and":
            todo += v.op.operands
        else:
            yield v


def splat_of(v: Value) -> np.generic | None:
    """The scalar (numpy, of v's dtype) that every element of ``v`` is, if known: a splat constant, also reshaped or broadcast."""
    for _ in range(64):
        op = v.op
        if op is None:
            return None
        if op.name == "constant":
            return splat_of_array(op.attrs["value"])
        if op.name not in ("broadcast_in_dim", "reshape", "transpose"):
            return None
        v = op.operands[0]
    return None


def splat_of_array(a: np.ndarray) -> np.generic | None:
    if a.size == 0:
        return None
    if a.size == 1 or all(s == 0 or n == 1 for s, n in zip(a.strides, a.shape, strict=True)):
        return a.reshape(-1)[0] if a.size == 1 else a[(0,) * a.ndim]
    if a.size <= 65536:
        first = a[(0,) * a.ndim]
        if a.dtype.kind in "biu":
            return first if bool((a == first).all()) else None
        raw = np.ascontiguousarray(a).view(np.uint8).reshape(a.size, a.dtype.itemsize)
        return first if bool((raw == raw[0]).all()) else None
    return None


def map_dims_in(value: Any, f: Callable[[Dim], Dim]) -> Any:
    """``value`` (an attribute) with ``f`` applied to every Dim in it."""
    if isinstance(value, Dim):
        return f(value)
    if isinstance(value, tuple) and any(isinstance(x, (Dim, tuple)) for x in value):
        return tuple(map_dims_in(x, f) for x in value)
    if isinstance(value, list) and any(isinstance(x, (Dim, tuple, list)) for x in value):
        return [map_dims_in(x, f) for x in value]
    if isinstance(value, TensorType):
        return map_type(value, f)
    return value


def map_type(t: Type, f: Callable[[Dim], Dim]) -> Type:
    if not isinstance(t, TensorType):
        return t
    dims = tuple(f(d) for d in t.dims)
    return t if dims == t.dims else TensorType(t.dtype, dims)


def dims_in(value: Any) -> Iterator[Dim]:
    """All dims of an attribute."""
    if isinstance(value, Dim):
        yield value
    elif isinstance(value, (tuple, list)):
        for x in value:
            yield from dims_in(x)
    elif isinstance(value, TensorType):
        yield from value.dims


def dims_of_op(op: Op) -> Iterator[Dim]:
    """All dims that an op mentions: in its result types and attributes (not in its regions)."""
    for r in op.results:
        if isinstance(r.type, TensorType):
            yield from r.type.dims
    for a in op.attrs.values():
        yield from dims_in(a)
