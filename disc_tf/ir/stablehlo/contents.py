"""Symbolic contents of small integer tensors: the shape arithmetic of imported StableHLO, element by element.

JAX writes a dynamic shape as i32/i64 arithmetic on `get_dimension_size`; following it gives the dims back. What cannot be decided (a
division whose operands may be negative, a comparison of unrelated dims) has no content, and the importer then binds a fresh symbol.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim, DimTooComplex, dmax, dmin
from disc_tf.ir.shape_env import ShapeEnv

MAX_ELEMENTS = 64


class Contents:
    """Known contents by value: flat row-major lists of dims (bools are 0 and 1)."""

    def __init__(self, env: ShapeEnv) -> None:
        self.env = env
        self.known: dict[Value, list[Dim]] = {}

    def of(self, v: Value) -> list[Dim] | None:
        """The content of `v`, None if it is not known."""
        found = self.known.get(v)
        if found is None and v.op is not None:
            found = self.derive(v.op)
            if found is not None:
                self.known[v] = found
        return found

    def derive(self, op: Op) -> list[Dim] | None:
        """The content of the only result of `op` from those of its operands (which were asked for before it was made)."""
        if len(op.results) != 1:
            return None
        t = op.result.tensor
        if t.dtype.is_float or not t.is_static or int(t.num_elements()) > MAX_ELEMENTS:
            return None
        if op.name == "constant":
            return [Dim.of(int(x)) for x in op.attrs["value"].reshape(-1)]
        if op.name == "disc.dim":
            return [op.attrs["dim"]]
        operands = [
            self.known.get(v) if v.op is None or v.op.name != "constant" else self.of(v) for v in op.operands
        ]
        if op.name in ("and", "or") and t.dtype.is_bool:
            decided = [Dim.of(int(op.name == "or"))] * int(t.num_elements())
            if decided in operands:
                return decided
        if op.name == "select" and operands[0] is None and op.operands[0].rank == 0:
            operands[0] = self.by_cases(op.operands[0])
        if not operands or any(o is None for o in operands):
            return None
        known = [o for o in operands if o is not None]
        try:
            return self.elementwise(op, known) if op.name in _SCALAR else self.moved(op, known)
        except (DimTooComplex, ZeroDivisionError):
            return None

    def by_cases(self, v: Value) -> list[Dim] | None:
        """Decide a predicate by the cases zero and not zero of the symbols that it is made of.

        Floor division as JAX writes it compares signs; the sign of an extent is 0 or 1, and the answer is the same for both.
        """
        order = _feeding(v)
        if order is None:
            return None
        symbols = sorted({s for u in order for d in self.known.get(u) or () for s in d.symbols()})
        symbols = [s for s in symbols if self.env.bounds(s)[0] == 0][:2]
        answers = []
        for zero in itertools.product((True, False), repeat=len(symbols)):
            env = self.env.child()
            if not all(
                env.assume_eq(s, 0) if z else env.set_range(s, 1) for s, z in zip(symbols, zero, strict=True)
            ):
                continue
            case = Contents(env)
            for u in order:
                if u.op is None and u in self.known:
                    case.known[u] = [env.simplify(d) for d in self.known[u]]
                content = case.of(u)
                if content is not None:
                    case.known[u] = [env.simplify(d) for d in content]
            answers.append(case.known.get(v))
        return answers[0] if symbols and answers and all(a == answers[0] for a in answers) else None

    def elementwise(self, op: Op, operands: Sequence[list[Dim]]) -> list[Dim] | None:
        out = []
        size = len(operands[-1])
        rule = _SCALAR[op.name]
        for k in range(size):
            value = rule(self.env, op, *(o[k] if len(o) == size else o[0] for o in operands))
            if value is None:
                return None
            out.append(value)
        return out

    def moved(self, op: Op, operands: Sequence[list[Dim]]) -> list[Dim] | None:
        """Ops that only move elements, by moving positions."""
        if op.name not in ("reshape", "concatenate", "slice", "broadcast_in_dim", "transpose", "reverse"):
            return None
        if any(not v.tensor.is_static for v in op.operands):
            return None
        flat = [d for o in operands for d in o]
        positions, start = [], 0
        for v in op.operands:
            size = int(v.tensor.num_elements())
            positions.append(np.arange(start, start + size).reshape([int(d) for d in v.dims]))
            start += size
        from disc_tf.ir.opset import op_def

        (moved,) = op_def(op.name).reference(op, positions, _StaticContext())
        return [flat[p] for p in moved.reshape(-1)]


def _feeding(v: Value) -> list[Value] | None:
    """The values that `v` is computed from, operands first; None if they are too many."""
    seen: dict[Value, None] = {}
    work = [(v, False)]
    while work:
        u, done = work.pop()
        if done:
            seen[u] = None
        elif u not in seen:
            work.append((u, True))
            work += [(o, False) for o in (u.op.operands if u.op is not None else ())]
        if len(work) + len(seen) > 4 * MAX_ELEMENTS:
            return None
    return list(seen)


class _StaticContext:
    """Enough of an `EvalContext` for ops whose dims are all static."""

    def dim(self, dim: Dim) -> int:
        return int(dim)

    def bind(self, symbol: str, value: int) -> None:
        raise NotImplementedError

    def run(self, block: object, inputs: object) -> list[np.ndarray]:
        raise NotImplementedError


Rule = Callable[..., Dim | None]


def _divide(env: ShapeEnv, op: Op, a: Dim, b: Dim) -> Dim | None:
    """Truncating division is floor division where both are not negative."""
    if a.is_static and b.is_static and int(b) != 0:
        return Dim.of(int(int(a) / int(b))) if abs(int(a)) < 2**52 else None
    low = env.bounds(b)[0]
    return a // b if env.is_nonneg(a) and low is not None and low > 0 else None


def _remainder(env: ShapeEnv, op: Op, a: Dim, b: Dim) -> Dim | None:
    quotient = _divide(env, op, a, b)
    return None if quotient is None else env.simplify(a - quotient * b if a.is_static else a % b)


def _compare(env: ShapeEnv, op: Op, a: Dim, b: Dim) -> Dim | None:
    direction = op.attrs["direction"]
    if direction in ("EQ", "NE"):
        equal = env.is_equal(a, b)
        return None if equal is None else Dim.of(int(equal == (direction == "EQ")))
    if direction in ("LT", "GT"):
        less = env.is_nonneg(b - a - 1) if direction == "LT" else env.is_nonneg(a - b - 1)
        return None if less is None else Dim.of(int(less))
    at_most = env.is_nonneg(b - a) if direction == "LE" else env.is_nonneg(a - b)
    return None if at_most is None else Dim.of(int(at_most))


def _select(env: ShapeEnv, op: Op, p: Dim, a: Dim, b: Dim) -> Dim | None:
    if env.is_equal(a, b):
        return a
    return (a if int(p) else b) if p.is_static else None


def _sign(env: ShapeEnv, op: Op, a: Dim) -> Dim | None:
    low, high = env.bounds(a)
    if low is not None and low > 0:
        return Dim.of(1)
    if high is not None and high < 0:
        return Dim.of(-1)
    return Dim.of(0) if (low, high) == (0, 0) else None


def _logical(fn: Callable[[int, int], int]) -> Rule:
    def rule(env: ShapeEnv, op: Op, a: Dim, b: Dim) -> Dim | None:
        if not op.result.dtype.is_bool or not (a.is_static and b.is_static):
            return None
        return Dim.of(fn(int(a), int(b)))

    return rule


def _convert(env: ShapeEnv, op: Op, a: Dim) -> Dim | None:
    source = op.operands[0].dtype
    if source.is_float or op.result.dtype.is_bool != source.is_bool:
        return None
    return a


_SCALAR: dict[str, Rule] = {
    "add": lambda env, op, a, b: None if op.result.dtype.is_bool else a + b,
    "subtract": lambda env, op, a, b: a - b,
    "multiply": lambda env, op, a, b: a * b,
    "negate": lambda env, op, a: -a,
    "divide": _divide,
    "remainder": _remainder,
    "maximum": lambda env, op, a, b: env.simplify(dmax(a, b)),
    "minimum": lambda env, op, a, b: env.simplify(dmin(a, b)),
    "compare": _compare,
    "select": _select,
    "clamp": lambda env, op, low, x, high: env.simplify(dmin(dmax(x, low), high)),
    "sign": _sign,
    "and": _logical(lambda a, b: a & b),
    "or": _logical(lambda a, b: a | b),
    "xor": _logical(lambda a, b: a ^ b),
    "not": lambda env, op, a: Dim.of(1 - int(a)) if op.result.dtype.is_bool and a.is_static else None,
    "convert": _convert,
}
