"""What a lowering rule works with: builder, known contents, symbolic dims, checks, broadcasting.

Two side tables follow integer tensors that are computed from shapes: ``constant`` (numeric content) and ``dims_of`` (symbolic
content, one ``Dim`` per element of a rank-0/1 integer tensor). Rules that compute on shapes call ``set_dims`` or, better, return
``from_dims``. Both tables are keyed by ``Value``; a value without an entry is simply not known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import Block, Value
from disc_tf.ir.dims import Dim, DimLike, DimTooComplex, bcast, sym
from disc_tf.ir.shape_env import ShapeEnv
from disc_tf.ir.types import DType
from disc_tf.lowering.errors import Status, Unsupported
from disc_tf.lowering.plain import plain

if TYPE_CHECKING:
    from disc_tf.lowering.bodies import FunctionBody

#: integer tensors up to this many elements are followed element by element
MAX_TRACKED = 256
#: longer expressions are bound to a symbol where rules make them (``LoweringContext.plain_dim``)
MAX_PLAIN_DEPTH, MAX_PLAIN_SIZE = 2, 16


@dataclasses.dataclass(frozen=True)
class DimRequest:
    """An equality that a rule needed and could not decide: ``disc.check`` guards it in the general body; the uniform body may
    assume it. ``kind`` is ``equal``, ``broadcast`` (equal, or either one is 1) or ``positive`` (``a >= 1``: nothing is checked, the
    general body is right at 0 as well, but the uniform one has plainer dims; `Function.wanted_positive`)."""

    kind: str
    a: Dim
    b: Dim
    node: str


class Mark(NamedTuple):
    """How far a `LoweringContext` was (see `LoweringContext.mark`)."""

    ops: int
    token: Value | None
    requests: int
    checked: int
    plain: int


class LoweringContext:
    """State of one walk over a list of nodes; ``b`` appends to one block, ``env`` is the scope's shape environment."""

    def __init__(self, builder: Builder, env: ShapeEnv, symbol_prefix: str = "n") -> None:
        self.b = builder
        self.env = env
        #: last token of the check chain, None before the first check
        self.token: Value | None = None
        #: undecided equalities, in program order
        self.requests: list[DimRequest] = []
        #: name of the node being lowered, for messages and locations
        self.node_name = ""
        self._prefix = symbol_prefix
        self._next_symbol = 0
        self._constants: dict[Value, np.ndarray] = {}
        self._dims: dict[Value, list[Dim]] = {}
        self._checked: dict[tuple[str, Dim, Dim], None] = {}  # ordered, so that `rewind` can take back the last ones
        self._plain: dict[Dim, Dim] = {}
        #: symbols of signed run-time scalars: bounds of expressions over them are not searched for (``content.signed_dim``)
        self.run_time: set[str] = set()
        #: how many calls, loops and branches are around (`bodies.lower_body`)
        self.depth = 0
        #: bodies of library functions by name (`bodies.body_of`), None where there is no library
        self.functions: Callable[..., FunctionBody] | None = None

    # ---- taking back --------------------------------------------------------------------------------------------

    def mark(self) -> Mark:
        """The present state, for `rewind`."""
        return Mark(len(self.b.block.ops), self.token, len(self.requests), len(self._checked), len(self._plain))

    def rewind(self, mark: Mark) -> None:
        """Take back every op, check and request since ``mark`` (a rule that failed)."""
        gone = {op.attrs["symbol"] for op in self.b.block.ops[mark.ops :] if op.name == "disc.bind_dim"}
        for op in reversed(self.b.block.ops[mark.ops :]):
            op.erase()
        if gone:  # contents over symbols that nothing binds any more
            lost = [v for v, dims in self._dims.items() if any(not gone.isdisjoint(d.symbols()) for d in dims)]
            for v in lost:
                del self._dims[v]
        self.token = mark.token
        del self.requests[mark.requests :]
        while len(self._checked) > mark.checked:
            self._checked.popitem()
        while len(self._plain) > mark.plain:
            self._plain.popitem()

    # ---- constants and symbolic contents ----------------------------------------------------------------------

    def set_constant(self, v: Value, content: np.ndarray) -> Value:
        """Record the numeric content of ``v`` (an argument whose constant the compiler has). Returns ``v``."""
        self._constants[v] = content
        return v

    def constant(self, v: Value) -> np.ndarray | None:
        """The content of ``v`` as an array of its dtype and shape, or None. A splat has stride 0: never write to it."""
        found = self._constants.get(v)
        if found is not None:
            return found
        if v.op is not None and v.op.name == "constant":
            return v.op.attrs["value"]
        dims = self._dims.get(v)
        if dims is not None and all(d.is_static for d in dims):
            with np.errstate(over="ignore"):
                flat = np.array([int(d) for d in dims], np.int64).astype(v.dtype.np)
            return flat.reshape([int(d) for d in v.dims])
        return None

    def set_dims(self, v: Value, dims: Iterable[DimLike]) -> Value:
        """Record the symbolic content of ``v``, a small integer tensor (row-major; ``dims_of`` gives ranks 0 and 1). Returns ``v``."""
        self._dims[v] = [Dim.of(d) for d in dims]
        return v

    def known_dims(self, v: Value) -> list[Dim] | None:
        """What ``set_dims`` recorded: the elements in row-major order, of any rank."""
        found = self._dims.get(v)
        return None if found is None else list(found)

    def dims_of(self, v: Value) -> list[Dim] | None:
        """The content of an integer tensor of rank 0 or 1 as dims (a scalar gives one), or None if not known."""
        if v.rank > 1 or not v.dtype.is_int:
            return None
        found = self._dims.get(v)
        if found is not None:
            return list(found)
        content = self.constant(v)
        if content is None or content.size > MAX_TRACKED:
            return None
        return [Dim.of(int(x)) for x in content.reshape(-1)]

    def const(self, value: object, dtype: DType | None = None) -> Value:
        """A constant op from anything numpy takes (rank kept)."""
        return self.b.constant(np.asarray(value), dtype)

    def scalar(self, value: float | bool, dtype: DType) -> Value:
        """A rank-0 constant."""
        return self.b.constant(value, dtype)

    def splat(self, value: float | bool, like: Value) -> Value:
        """``value`` in the dtype and shape of ``like``."""
        return self.broadcast_to(self.scalar(value, like.dtype), like.dims)

    def full(self, value: float | bool, dtype: DType, dims: Sequence[Dim]) -> Value:
        """``value`` in the given dtype and dims."""
        return self.broadcast_to(self.scalar(value, dtype), dims)

    def dim(self, d: DimLike, dtype: DType = DType.I64) -> Value:
        """The scalar tensor of a dim, with its symbolic content recorded."""
        d = Dim.of(d)
        if d.is_static:
            with np.errstate(over="ignore"):
                value = self.b.constant(np.asarray(int(d), np.int64).astype(dtype.np))
        elif dtype in (DType.I32, DType.I64):
            value = self.b.dim(d, dtype)
        else:
            value = self.b.convert(self.b.dim(d, DType.I64), dtype)
        return self.set_dims(value, [d])

    def from_dims(self, dims: Sequence[DimLike], dtype: DType = DType.I64) -> Value:
        """The rank-1 integer tensor ``[dims...]``, with its symbolic content recorded."""
        known = [Dim.of(d) for d in dims]
        if all(d.is_static for d in known):
            with np.errstate(over="ignore"):
                value = self.b.constant(np.array([int(d) for d in known], np.int64).astype(dtype.np))
        else:
            parts = [self.b.reshape(self.dim(d, dtype), [1]) for d in known]
            value = parts[0] if len(parts) == 1 else self.b.concatenate(parts, 0)
        return self.set_dims(value, known)

    def fresh_dim(self, scalar: Value) -> Dim:
        """The value of an integer scalar as a dim: its symbolic content if known, else a fresh symbol bound to it.

        The caller checks first that the scalar is not negative; the environment then assumes it.
        """
        known = self.dims_of(scalar)
        if known is not None:
            return known[0]
        d = self.new_symbol()
        if scalar.dtype not in (DType.I32, DType.I64):
            scalar = self.b.convert(scalar, DType.I64)
        self.b.bind_dim(scalar, str(d))
        self._dims[scalar] = [d]
        return d

    def new_symbol(self) -> Dim:
        """A symbol that nothing binds yet."""
        name = f"{self._prefix}{self._next_symbol}"
        self._next_symbol += 1
        self.env.set_range(name, 0, None)
        return sym(name)

    def plain_dim(self, d: DimLike) -> Dim:
        """``d`` while it is a short expression, else a symbol bound to its value (one for each expression).

        Expressions that no fact decides would otherwise grow from layer to layer, with the time to reason about them.
        """
        d = Dim.of(d)
        if d.depth <= MAX_PLAIN_DEPTH and d.size <= MAX_PLAIN_SIZE:
            return d
        found = self._plain.get(d)
        if found is None:
            low, high = self.env.bounds(d)
            found = self._plain[d] = self.fresh_dim(self.b.dim(d, DType.I64))
            self.env.set_range(found, max(low or 0, 0), high)
        return found

    def behind(self, symbols: Iterable[str]) -> frozenset[str]:
        """``symbols`` with those of `plain_dim` replaced by the symbols of what they stand for."""
        stands_for = {str(short): long for long, short in self._plain.items()} if self._plain else {}
        found: set[str] = set()
        work = list(symbols)
        while work:
            name = work.pop()
            if name in stands_for:
                work.extend(stands_for[name].symbols())
            else:
                found.add(name)
        return frozenset(found)

    # ---- checks ---------------------------------------------------------------------------------------------------

    def check(self, pred: Value, code: Status | int = Status.INVALID_ARGUMENT, message: str = "") -> None:
        """Raise ``code`` at run time unless every element of the bool tensor ``pred`` holds; keeps program order."""
        if pred.rank:
            pred = self.reduce(pred, range(pred.rank), "and")
        content = self.constant(pred)
        if content is not None and bool(content):
            return
        if self.token is None:
            self.token = self.b.create_token()
        self.token = self.b.check(pred, self.token, code=int(code), message=message, node=self.node_name)

    def is_run_time(self, d: Dim) -> bool:
        """Whether ``d`` holds a function (min, max ...) over signed run-time scalars: no use in searching for a proof."""
        return any(a.kind != "sym" for a in d.atoms()) and not self.run_time.isdisjoint(d.symbols())

    def _dim_equals(self, a: Dim, b: Dim) -> Value:
        return self.b.compare(self.dim(a), self.dim(b), "EQ")

    def check_dims_eq(
        self, a: DimLike, b: DimLike, code: Status | int = Status.INVALID_ARGUMENT, message: str = ""
    ) -> None:
        """Require ``a == b``: nothing if known, ``Unsupported(INVALID)`` if known to be false, else a check and a request.

        The environment is not told: the equality holds only downstream of the check. Use ``cast_dims`` to go on.
        """
        a, b = Dim.of(a), Dim.of(b)
        known = self.env.is_equal(a, b)
        if known is True:
            return
        if known is False:
            raise Unsupported("INVALID", message or f"dimensions {a} and {b} must be equal")
        key = ("equal", a, b)
        if key in self._checked:
            return
        self._checked.update({key: None, ("equal", b, a): None})
        self.requests.append(DimRequest("equal", a, b, self.node_name))
        self.check(self._dim_equals(a, b), code, message or f"dimensions {plain(a)} and {plain(b)} must be equal")

    def check_dim_cond(
        self, a: DimLike, direction: str, b: DimLike, code: Status | int = Status.INVALID_ARGUMENT, message: str = ""
    ) -> None:
        """Require ``a <direction> b`` (``LT LE GT GE NE``) between dims; static where the environment decides."""
        a, b = Dim.of(a), Dim.of(b)
        if direction == "NE":
            known = self.env.is_equal(a, b)
            known = None if known is None else not known
        else:
            slack = {"GE": a - b, "GT": a - b - 1, "LE": b - a, "LT": b - a - 1}[direction]
            low, high = (None, None) if self.is_run_time(slack) else self.env.bounds(slack)
            known = True if low is not None and low >= 0 else False if high is not None and high < 0 else None
        if known is True:
            return
        if known is False:
            raise Unsupported("INVALID", message or f"{a} {direction} {b} does not hold")
        key = (direction, a, b)
        if key not in self._checked:
            self._checked[key] = None
            self.check(self.b.compare(self.dim(a), self.dim(b), direction), code, message)

    def bcast_dim(self, a: DimLike, b: DimLike, message: str = "") -> Dim:
        """The broadcast extent of two dims, with a check where equality cannot be decided."""
        a, b = Dim.of(a), Dim.of(b)
        if b == 1 or a == b:
            return a
        if a == 1:
            return b
        if self.env.is_equal(a, b) is True:
            return a
        text = message or f"Incompatible shapes: dimensions {plain(a)} and {plain(b)}"
        one_a, one_b = self.env.is_equal(a, 1), self.env.is_equal(b, 1)
        if one_a is False and one_b is False and self.env.is_equal(a, b) is False:
            raise Unsupported("INVALID", text)
        key = ("broadcast", a, b)
        if key not in self._checked:
            self._checked.update({key: None, ("broadcast", b, a): None})
            self.requests.append(DimRequest("broadcast", a, b, self.node_name))
            ok = self._dim_equals(a, b)
            for d, one in ((a, one_a), (b, one_b)):
                if one is not False:
                    ok = self.b.or_(ok, self._dim_equals(d, Dim.of(1)))
            self.check(ok, Status.INVALID_ARGUMENT, text)
        try:
            return self.plain_dim(bcast(a, b))
        except DimTooComplex:
            return self.plain_dim(bcast(self.plain_dim(a), self.plain_dim(b)))
        except ValueError as e:
            raise Unsupported("INVALID", text) from e

    # ---- shapes -----------------------------------------------------------------------------------------------------

    def broadcast_dims(self, *shapes: Sequence[Dim], message: str = "") -> tuple[Dim, ...]:
        """TF's implicit broadcast of shapes, aligned on the right; checks are emitted where undecided."""
        rank = max((len(s) for s in shapes), default=0)
        out: list[Dim] = []
        for axis in range(rank):
            d = Dim.of(1)
            for s in shapes:
                at = axis - rank + len(s)
                if at >= 0:
                    d = self.bcast_dim(d, s[at], message)
            out.append(d)
        return tuple(out)

    def broadcast_to(self, v: Value, dims: Sequence[DimLike]) -> Value:
        """``v`` with its dims aligned on the right of ``dims``; each must be equal or 1 (checked by the caller)."""
        target = tuple(Dim.of(d) for d in dims)
        if v.dims == target:
            return v
        offset = len(target) - v.rank
        return self.b.broadcast_in_dim(v, target, tuple(range(offset, len(target))))

    def broadcast(self, *vals: Value) -> list[Value]:
        """TF implicit broadcasting: all values brought to the common dims (``bcast`` and a check when undecided)."""
        shapes = [v.dims for v in vals]
        dims = self.broadcast_dims(*shapes, message=f"Incompatible shapes: {' vs. '.join(map(plain, shapes))}")
        return [self.broadcast_to(v, dims) for v in vals]

    def cast_dims(self, v: Value, dims: Sequence[DimLike]) -> Value:
        """``v`` retyped to ``dims``, which are equal to its own at run time (known, or checked before)."""
        return self.broadcast_to(v, dims)

    def require_same_shape(self, a: Value, b: Value, message: str) -> None:
        """Require equal shapes without broadcasting; ``Unsupported(INVALID)`` if ranks differ."""
        if a.rank != b.rank:
            raise Unsupported("INVALID", message)
        for x, y in zip(a.dims, b.dims, strict=True):
            self.check_dims_eq(x, y, message=message)

    def num_elements(self, v: Value) -> Dim:
        return v.tensor.num_elements()

    # ---- regions ----------------------------------------------------------------------------------------------------

    def reduce(self, x: Value, axes: Iterable[int], kind: str, init: Value | None = None) -> Value:
        """Reduce ``x`` over ``axes`` with a monoid: ``add multiply maximum minimum and or``; ``init`` defaults to its identity."""
        return self.b.reduce(x, sorted(set(axes)), kind, init)

    @contextmanager
    def inside(self, block: Block) -> Iterator[None]:
        """Append to ``block``, a region's; checks have a chain of their own there. What is bound, checked or found inside does not hold
        outside; requests stay, unless the inside fails."""
        saved = self.b, self.token, dict(self._checked), dict(self._plain), dict(self._dims)
        requests = len(self.requests)
        self.b = Builder(block, self.env, self.b.loc)
        self.token = None
        try:
            yield
        except BaseException:
            del self.requests[requests:]
            raise
        finally:
            self.b, self.token, self._checked, self._plain, self._dims = saved

    @contextmanager
    def nested(self) -> Iterator[int]:
        """One call, loop or branch deeper; how deep."""
        self.depth += 1
        try:
            yield self.depth
        finally:
            self.depth -= 1

    @contextmanager
    def at(self, name: str) -> Iterator[None]:
        """Sets the node name and the builder's location while a rule runs."""
        before, before_loc = self.node_name, getattr(self.b, "loc", ())
        self.node_name = name
        self.b.loc = (name,)
        try:
            yield
        finally:
            self.node_name = before
            self.b.loc = before_loc
