"""Growing a `Region`: which ops can be computed point by point over one iteration space, and how each operand is reached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from disc_tf.fusion.access import Access, is_monoid_reduce, is_pointwise
from disc_tf.fusion.types import GatherRead, Region
from disc_tf.fusion.views import VIEW_OPS, ZERO, Axis, View, invert_op, of_value, row_major
from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim, DimTooComplex
from disc_tf.ir.types import TensorType
from disc_tf.ir.views import embedding_gather


class RegionBuilder:
    """Members (values computed in the region, with their level) and the questions whether an op fits.

    space: extents, outermost first; the last ``inner`` of them are the row. seeds: values that exist at every point to begin with.
    """

    def __init__(self, access: Access, space: Sequence[Dim], inner: int = 0, seeds: Iterable[Value] = ()) -> None:
        self.access = access
        self.env = access.env
        self.space = tuple(space)
        self.inner = inner
        self.outer = self.space[: len(self.space) - inner]
        full = row_major(None, self.space).strides
        row = (*row_major(None, self.outer).strides, *(ZERO for _ in range(inner)))
        self._expected = {"full": full, "row": row}
        self.level: dict[Value, str] = {v: "full" for v in seeds}
        self.seeds = tuple(self.level)
        #: members stored under another shape by this kernel: in memory only when it has run, so nothing here may read them
        self.moved: set[Value] = set()

    # ---- fitting ------------------------------------------------------------------------------------------------

    def level_of(self, dims: Sequence[Dim]) -> str | None:
        if self.access.same_count(dims, self.space):
            return "full"
        if self.inner and self.access.same_count(dims, self.outer):
            return "row"
        return None

    def located(self, v: Value, level: str) -> View | None:
        """The view of ``v`` over the space's axes when it is used at ``level``; None if there is none."""
        if not isinstance(v.type, TensorType):
            return None
        target = self.space if level == "full" else self.outer
        view = self.access.shaped(v, target)
        if view is None:
            return None
        if level == "row":
            ones = tuple(Axis(d, ZERO) for d in self.space[len(self.outer) :])
            view = View(view.source, view.offset, view.axes + ones)
        return view

    def is_scalar(self, v: Value) -> bool:
        """The same everywhere: made of dims and constants."""
        root = self.access.root(v)
        if root.op is None:
            return False
        return self.access.is_scalar_value(root) or (root.op.name == "constant" and self.access.is_inlined(root.op))

    def reaches(self, v: Value, level: str) -> bool:
        """Whether ``v`` can be used at ``level``: a scalar, an external read, or a member seen point by point."""
        if self.is_scalar(v):
            return True
        view = self.located(v, level)
        if view is None or view.source in self.moved:
            return False
        member = self.level.get(view.source) if view.source is not None else None
        if member is None:
            return True
        if level == "row" and member == "full":
            return False
        return view.offset == ZERO and self._aligned(view, self._expected[member])

    def _aligned(self, view: View, expected: Sequence[Dim]) -> bool:
        return all(
            a.stride == e or self.env.is_equal(a.extent, 1) is True or self.env.is_equal(a.stride, e) is True
            for a, e in zip(view.axes, expected, strict=True)
        )

    def fit(self, op: Op) -> str | None:
        """The level at which the op can join, given the present members; None if it cannot."""
        if is_monoid_reduce(op):
            return "row" if self._fits_reduce(op) else None
        if op.name == "gather":
            return "full" if self.inner and embedding_gather(op) and self._gather(op) is not None else None
        if not is_pointwise(op):
            return None
        level = self.level_of(op.result.dims)
        if level is None or not all(self.reaches(v, level) for v in op.operands):
            return None
        return level

    def _fits_reduce(self, op: Op) -> bool:
        if not self.inner:
            return False
        x = op.operands[0]
        dims = sorted(op.attrs["dimensions"])
        first = x.rank - len(dims)
        if dims != list(range(first, x.rank)) and not trailing(x.dims, dims, self.access):
            return False
        kept = [d for i, d in enumerate(x.dims) if i not in dims]
        return (
            self.access.same_count(x.dims, self.space)
            and self.access.same_count(kept, self.outer)
            and self.reaches(x, "full")
        )

    def _gather(self, op: Op) -> GatherRead | None:
        """The read of an embedding lookup whose rows are this space's rows."""
        table, index = op.operands
        if not self.access.same_count(op.result.dims, self.space) or not self.access.same_count(index.dims, self.outer):
            return None
        if not self.reaches(index, "row"):
            return None
        view = self.access.view(table)
        if view is None or view.source is None or self._is_inlined(view.source):
            return None
        if view.source in self.level or view.source in self.moved:
            return None  # the table must lie in memory
        tail = View(view.source, view.offset, view.axes[1:])
        try:
            seen = tail.reshape(self.space[len(self.outer) :], self.env)
        except DimTooComplex:
            return None
        if seen is None or not self.access.same_count(tail.dims, self.space[len(self.outer) :]):
            return None
        zeros = tuple(Axis(d, ZERO) for d in self.outer)
        return GatherRead(op, View(view.source, view.offset, (view.axes[0], *zeros, *seen.axes)), index, table.dims[0])

    def _is_inlined(self, v: Value) -> bool:
        return v.op is not None and self.access.is_inlined(v.op)

    # ---- members --------------------------------------------------------------------------------------------------

    def add(self, op: Op, level: str) -> None:
        self.level[op.result] = level

    def remove(self, op: Op) -> None:
        del self.level[op.result]

    def users_agree(self, op: Op) -> bool:
        """Whether the members that use ``op`` (also through inlined ops) see it point by point."""
        stack, seen = [op.result], {op.result}
        while stack:
            for user in stack.pop().users():
                if len(user.results) != 1:
                    continue
                if user.result in self.level:
                    if self.fit(user) is None:
                        return False
                elif self.access.is_inlined(user) and user.result not in seen:
                    seen.add(user.result)
                    stack.append(user.result)
        return True

    def write_view(self, out: Value) -> tuple[Value, View] | None:
        """``(member, view)``: which member's points make up ``out`` (the member itself, or moved by view ops), and their place in it."""
        view: View | None = of_value(out)
        x = out
        while x not in self.level:
            op = x.op
            if op is None or op.name not in VIEW_OPS:
                return None
            view = invert_op(op, view, self.env)  # type: ignore[arg-type]
            if view is None:
                return None
            x = op.operands[0]
        target = self.space if self.level[x] == "full" else self.outer
        if not self.access.same_count(x.dims, target):
            return None
        placed = view.reshape(target, self.env)  # type: ignore[union-attr]
        if placed is None:
            return None
        if self.level[x] == "row":
            placed = View(out, placed.offset, placed.axes + tuple(Axis(d, ZERO) for d in self.space[len(self.outer) :]))
        return x, placed

    # ---- the result -------------------------------------------------------------------------------------------------

    def build(self, ops: Sequence[Op], outputs: Sequence[Value]) -> Region | None:
        """The region of these computing ops (program order); None if something does not resolve after all."""
        region = Region(self.space, self.inner)
        done = RegionBuilder(self.access, self.space, self.inner, self.seeds)
        done.moved = self.moved
        reads: dict[View, Value] = {}
        for op in ops:
            level = done.fit(op)
            if level is None:
                return None
            if op.name == "gather":
                read = done._gather(op)
                assert read is not None
                region.gathers[op.result] = read
                done._bind(region, read.index, "row", reads)
            else:
                at = "full" if is_monoid_reduce(op) else level
                values = op.operands[:1] if is_monoid_reduce(op) else op.operands
                for v in values:
                    done._bind(region, v, at, reads)
            region.ops.append(op)
            done.add(op, level)
        region.level = dict(done.level)
        for out in outputs:
            if not isinstance(out.type, TensorType):
                continue
            try:
                written = done.write_view(out)
            except DimTooComplex:
                written = None
            if written is None:
                return None
            member, view = written
            if member is not out:
                region.alias[out] = member
            region.writes.append((out, view))
        return region

    def bind(self, region: Region, v: Value, level: str = "full") -> None:
        """Record in ``region`` how ``v`` is reached."""
        self._bind(region, v, level, {})

    def _bind(self, region: Region, v: Value, level: str, reads: dict[View, Value]) -> None:
        if v in self.level or v in region.alias or v in region.reads or v in region.iotas:
            return
        root = self.access.root(v)
        if self.is_scalar(v):
            present = set(region.scalars)
            chain = [op for op in self.access.chain(root) if op not in present]
            region.scalars.extend(sorted(chain, key=self.access.position.__getitem__))
            if v is not root:
                region.alias[v] = root
            return
        view = self.located(v, level)
        assert view is not None
        if view.source is None:
            region.iotas[v] = view
        elif view.source in self.level:
            if v is not view.source:
                region.alias[v] = view.source
        elif view in reads:
            if reads[view] is not v:
                region.alias[v] = reads[view]
        else:
            reads[view] = v
            region.reads[v] = view


def trailing(dims: Sequence[Dim], reduced: Sequence[int], access: Access) -> bool:
    """Whether the reduced dims are the minor ones, unit dims aside."""
    real = [i for i, d in enumerate(dims) if access.env.is_equal(d, 1) is not True]
    inside = [i in reduced for i in real]
    return True not in inside or all(inside[inside.index(True) :])
