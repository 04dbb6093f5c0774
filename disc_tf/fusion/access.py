"""What a value is made of: classification of ops, and the view under which a value is seen from the one that holds its data."""

from __future__ import annotations

from collections.abc import Sequence

from disc_tf.costs import is_dear
from disc_tf.fusion.outline import REGION_OPS, outline_regions
from disc_tf.fusion.views import VIEW_OPS, ZERO, Axis, View, apply_op, iota, of_value
from disc_tf.ir.core import Function, Op, Value, reduce_kind
from disc_tf.ir.dims import Dim, DimLike, DimTooComplex, product
from disc_tf.ir.shape_env import ShapeEnv
from disc_tf.ir.types import TensorType
from disc_tf.passes.placement import EFFECTS, host_ops
from disc_tf.passes.rewriter import ELEMENTWISE, base_name, splat_of, words

#: ops that pick or place elements by computed positions; a loop kernel evaluates them per element
INDEX_OPS = words("concatenate pad gather dynamic_slice dynamic_update_slice reverse iota")
#: dearer to compute again than to load
EXPENSIVE = frozenset(filter(is_dear, ELEMENTWISE | {"gather"}))


def is_splat_constant(op: Op) -> bool:
    return op.name == "constant" and splat_of(op.result) is not None


def is_pointwise(op: Op) -> bool:
    """Elementwise, where ``select`` and ``clamp`` may have scalar operands."""
    name = base_name(op.name)
    if name not in ELEMENTWISE or len(op.results) != 1:
        return False
    if name == "bitcast_convert":
        return op.operands[0].dtype.bits == op.result.dtype.bits
    return True


def is_monoid_reduce(op: Op) -> bool:
    """A reduce of one operand with a recognised monoid and a known initial value."""
    return (
        op.name == "reduce"
        and len(op.operands) == 2
        and reduce_kind(op) in ("add", "mul", "max", "min", "and", "or")
        and splat_of(op.operands[1]) is not None
    )


class FrozenEnv:
    """A shape environment whose facts no longer change: answers are remembered."""

    def __init__(self, env: ShapeEnv) -> None:
        self._env = env
        self._equal: dict[tuple[Dim, Dim], bool | None] = {}
        self.simplify = env.simplify
        self.bounds = env.bounds
        self.same_elements = env.same_elements

    def is_equal(self, a: DimLike, b: DimLike) -> bool | None:
        a, b = Dim.of(a), Dim.of(b)
        if a == b:
            return True
        key = (a, b)
        if key not in self._equal:
            self._equal[key] = self._env.is_equal(a, b)
        return self._equal[key]


class Access:
    """Facts about the values of a function's body that all pattern matchers share.

    A *node* is an op that a kernel (or library, or host code) carries out. The rest is *inlined* wherever it is used: view ops, iota, splat
    constants, ``disc.dim`` and rank-0 arithmetic on these. `materialise` turns an inlined op into a node.
    """

    def __init__(self, fn: Function, host_results: bool = False) -> None:
        self.fn = fn
        self.env = FrozenEnv(fn.env)
        self.position = {op: i for i, op in enumerate(fn.body.ops)}
        self.host = host_ops(fn, fn.results if host_results else ())
        self.regions = {op: outline_regions(op, fn) for op in fn.body.ops if op.name in REGION_OPS}
        self.material: set[Op] = set()
        self._scalar: dict[Op, bool] = {}
        self._view: dict[Value, View | None] = {}
        self._elements: dict[tuple[Dim, ...], Dim | None] = {}
        self._shaped: dict[tuple[Value, tuple[Dim, ...]], View | None] = {}

    # ---- classes ----------------------------------------------------------------------------------------------

    def is_inlined(self, op: Op) -> bool:
        if op in self.material:
            return False
        if op.name in VIEW_OPS or op.name in ("iota", "disc.dim"):
            return True
        if op.name == "constant":
            return is_splat_constant(op)
        return self.is_dim_scalar(op)

    def is_dim_scalar(self, op: Op) -> bool:
        """Rank-0 arithmetic on dims and constants: any kernel computes it from its scalar arguments."""
        known = self._scalar.get(op)
        if known is None:
            known = op.name in ("disc.dim", "constant") and op.result.rank == 0
            if not known and is_pointwise(op) and op.result.rank == 0:
                # Operands come earlier, so the answers are there unless the chain is first asked from its end.
                known = all(v.op is not None and self.is_dim_scalar(v.op) for v in op.operands)
            self._scalar[op] = known
        return known

    def warm(self) -> None:
        """Fill the caches in program order, so that no query recurses deeply."""
        for op in self.fn.body.ops:
            if len(op.results) == 1 and isinstance(op.result.type, TensorType):
                self.is_dim_scalar(op)

    def is_scalar_value(self, v: Value) -> bool:
        """Rank 0 and computed from dims and constants only: a kernel computes it itself, even where it lies in a buffer for others."""
        return v.op is not None and self.is_dim_scalar(v.op)

    def is_weight(self, v: Value | None) -> bool:
        """A parameter whose content may be packed once: const, variable or prepared."""
        if v is None or v.owner is not self.fn.body:
            return False
        return v.index < len(self.fn.args) and self.fn.args[v.index].kind in ("const", "variable", "prepared")

    def materialise(self, v: Value) -> None:
        """Make the op of an inlined value a node (its result gets a buffer)."""
        if v.op is not None and self.is_inlined(v.op):
            self.material.add(v.op)
            self._view.clear()
            self._shaped.clear()

    # ---- views ------------------------------------------------------------------------------------------------

    def view(self, v: Value) -> View | None:
        """How ``v`` lies in the value that holds its data; None where the way there is not affine."""
        if v in self._view:
            return self._view[v]
        chain: list[Value] = []
        x = v
        while x not in self._view and x.op is not None and x.op.name in VIEW_OPS and x.op not in self.material:
            chain.append(x)
            x = x.op.operands[0]
        if x in self._view:
            view = self._view[x]
        elif x.op is not None and x.op.name == "iota" and x.op not in self.material:
            view = iota(x.dims, x.op.attrs["dimension"])
        elif x.op is not None and is_splat_constant(x.op) and x.rank:
            view = _constant_view(x)
        else:
            view = of_value(x)
        self._view[x] = view
        for y in reversed(chain):
            try:
                view = None if view is None else apply_op(y.op, view, self.env)  # type: ignore[arg-type]
            except DimTooComplex:
                view = None
            self._view[y] = view
        return view

    def shaped(self, v: Value, dims: tuple[Dim, ...]) -> View | None:
        """`view` of ``v``, seen under the shape ``dims`` of as many elements."""
        key = (v, dims)
        if key not in self._shaped:
            view = self.view(v) if self.same_count(v.dims, dims) else None
            try:
                self._shaped[key] = None if view is None else view if view.dims == dims else view.reshape(dims, self.env)
            except DimTooComplex:
                self._shaped[key] = None
        return self._shaped[key]

    def settle(self, v: Value) -> View:
        """The view of ``v``; where it is not affine the operand of the failing step is materialised first."""
        while (view := self.view(v)) is None:
            x = v
            while x.op is not None and self.view(x.op.operands[0]) is None:
                x = x.op.operands[0]
            inner = x.op.operands[0]  # type: ignore[union-attr]
            if inner.op is not None and self.is_inlined(inner.op):
                self.materialise(inner)
            else:  # the step itself cannot be expressed
                self.materialise(x)
        return view

    def root(self, v: Value) -> Value:
        """The value that holds ``v``'s data: a node's result, a parameter, an iota, a constant or a dim scalar."""
        while v.op is not None and v.op.name in VIEW_OPS and v.op not in self.material:
            v = v.op.operands[0]
        return v

    def chain(self, v: Value, *, stored: bool = False) -> list[Op]:
        """The inlined ops that ``v`` is made with, without those of its root unless that is inlined too. ``stored``: scalars made of dims
        are read from their buffers, where they have one."""
        out: list[Op] = []
        stack, seen = [v], {v}
        while stack:
            op = stack.pop().op
            if op is None or not (self.is_inlined(op) or (not stored and self.is_dim_scalar(op))):
                continue
            out.append(op)
            for x in op.operands:
                if x not in seen:
                    seen.add(x)
                    stack.append(x)
        return out

    # ---- element counts -----------------------------------------------------------------------------------------

    def elements(self, dims: Sequence[Dim]) -> Dim | None:
        """The canonical element count of a shape, None if it is too complex."""
        key = tuple(dims)
        if key not in self._elements:
            try:
                self._elements[key] = self.env.simplify(product(key))
            except DimTooComplex:
                self._elements[key] = None
        return self._elements[key]

    def same_count(self, a: Sequence[Dim], b: Sequence[Dim]) -> bool:
        x, y = self.elements(a), self.elements(b)
        if x is not None and x == y:
            return True
        return self.env.same_elements(a, b) is True if x is None or y is None else self.env.is_equal(x, y) is True

    # ---- sources ------------------------------------------------------------------------------------------------

    def values_read(self, op: Op) -> list[Value]:
        """Operands and the outer values that regions use."""
        if op in self.regions:
            return [*op.operands, *(v for r in self.regions[op] for v in r.captures)]
        out, body = list(op.operands), self.fn.body
        blocks = list(op.regions)
        while blocks:
            block = blocks.pop()
            for inner in block.ops:
                out.extend(v for v in inner.operands if v.owner is body or (v.op is not None and v.op.parent is body))
                blocks.extend(inner.regions)
        return out


def _constant_view(x: Value) -> View:
    """A splat constant of rank > 0: every element lies at position 0."""
    return View(x, ZERO, tuple(Axis(d, ZERO) for d in x.dims))


__all__ = ["EFFECTS", "EXPENSIVE", "INDEX_OPS", "Access", "is_monoid_reduce", "is_pointwise", "is_splat_constant"]
