"""Compute-intensive patterns: a dot with its epilogue, and attention as one kernel."""

from __future__ import annotations

import dataclasses

from disc_tf.fusion.access import Access, is_monoid_reduce, is_pointwise
from disc_tf.fusion.groups import Group, Grouping
from disc_tf.fusion.region import RegionBuilder
from disc_tf.fusion.views import View
from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim, DimTooComplex

#: ops between the two products of an attention, at most
_MAX_SCORE_OPS = 64


@dataclasses.dataclass(frozen=True)
class DotDims:
    """Positions of the dims of a dot_general's operands by role."""

    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]
    lhs_contract: tuple[int, ...]
    rhs_contract: tuple[int, ...]
    lhs_free: tuple[int, ...]
    rhs_free: tuple[int, ...]

    @staticmethod
    def of(op: Op) -> DotDims:
        lb, rb = tuple(op.attrs["lhs_batching"]), tuple(op.attrs["rhs_batching"])
        lc, rc = tuple(op.attrs["lhs_contracting"]), tuple(op.attrs["rhs_contracting"])
        lf = tuple(i for i in range(op.operands[0].rank) if i not in lb + lc)
        rf = tuple(i for i in range(op.operands[1].rank) if i not in rb + rc)
        return DotDims(lb, rb, lc, rc, lf, rf)


def settle_dots(access: Access) -> None:
    """Make sure that every dot operand is an affine view of something (before nodes are numbered)."""
    for op in access.fn.body.ops:
        if op.name == "dot_general":
            for v in op.operands:
                access.settle(v)
                root = access.root(v).op
                if root is not None and access.is_inlined(root):  # made of constants, dims or positions: it has no buffer yet
                    access.materialise(v)


def gemm_group(grouping: Grouping, dot: Op) -> Group:
    """The dot with the elementwise ops after it that need nothing else over its points."""
    access, d = grouping.access, DotDims.of(dot)
    lhs, rhs = (access.view(v) for v in dot.operands)
    assert lhs is not None and rhs is not None  # settled
    axes = (len(d.lhs_batch), len(d.lhs_free), len(d.rhs_free), len(d.lhs_contract))
    region = RegionBuilder(access, dot.result.dims, 0, [dot.result])
    group = grouping.start(
        "gemm",
        dot,
        region,
        dot=dot,
        axes=axes,
        lhs=lhs.select(d.lhs_batch + d.lhs_free + d.lhs_contract),
        rhs=rhs.select(d.rhs_batch + d.rhs_contract + d.rhs_free),
    )
    group.attrs["pack"] = "rhs" if access.is_weight(rhs.source) else "lhs" if access.is_weight(lhs.source) else None
    grouping.grow_forward(group, [dot])
    return group


# ---- attention ------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class AttentionMatch:
    """``pv = dot(rows(qk = dot(q, k)), v)``; score: nodes between the products in program order; probs: the operand of pv."""

    qk: Op
    pv: Op
    score: list[Op]
    probs: Value
    probs_side: int


def match_attention(access: Access, pv: Op) -> AttentionMatch | None:
    """Find the pattern that ends in ``pv``: probabilities from one other dot through elementwise ops and reductions of the last dim."""
    for side in (0, 1):
        found = _match_side(access, pv, side)
        if found is not None:
            return found
    return None


def _match_side(access: Access, pv: Op, side: int) -> AttentionMatch | None:
    probs = pv.operands[side]
    d = DotDims.of(pv)
    contract = (d.lhs_contract, d.rhs_contract)[side]
    free = (d.lhs_free, d.rhs_free)[side]
    batch = (d.lhs_batch, d.rhs_batch)[side]
    other_free = (d.rhs_free, d.lhs_free)[side]
    if len(contract) != 1 or len(free) != 1 or len(other_free) != 1 or batch + free + contract != tuple(range(probs.rank)):
        return None  # the row must be the minor axis of the probabilities
    between, qk = _ancestors_to_dot(access, probs)
    if qk is None or qk is pv:
        return None
    inner = DotDims.of(qk)
    if (len(inner.lhs_free), len(inner.rhs_free), len(inner.lhs_contract)) != (1, 1, 1):
        return None
    if not access.same_count(qk.result.dims, probs.dims) or not any(is_monoid_reduce(op) for op in between):
        return None
    if access.env.is_equal(qk.result.dims[-1], probs.dims[-1]) is not True:
        return None
    inside = {*between, pv, qk}
    for op in [qk, *between]:  # nothing of the scores is needed elsewhere
        if not all(_stays(access, r, inside) for r in op.results):
            return None
    return AttentionMatch(qk, pv, between, probs, side)


def _ancestors_to_dot(access: Access, probs: Value) -> tuple[list[Op], Op | None]:
    """Nodes between ``probs`` and the one dot it depends on (both ancestors of probs and descendants of the dot)."""
    ancestors: set[Op] = set()
    dots: set[Op] = set()
    stack, seen = [probs], {probs}
    while stack:
        op = stack.pop().op
        if op is None:
            continue
        if op.name == "dot_general":
            dots.add(op)
            continue
        if not access.is_inlined(op):
            if not (is_pointwise(op) or is_monoid_reduce(op)) or len(ancestors) > _MAX_SCORE_OPS:
                continue  # an outer value: read it
            ancestors.add(op)
        for v in op.operands:
            if v not in seen:
                seen.add(v)
                stack.append(v)
    if len(dots) != 1:
        # Values that the mask is computed from may be products too; the scores are those of the same extent as probs.
        dots = {x for x in dots if access.same_count(x.result.dims, probs.dims)}
        if len(dots) != 1:
            return [], None
    (qk,) = dots
    below: set[Op] = set()
    for op in sorted(ancestors, key=access.position.__getitem__):
        roots = {r for v in op.operands for r in _root_ops(access, v)}
        if qk in roots or roots & below:
            below.add(op)
    return sorted(below, key=access.position.__getitem__), qk


def _root_ops(access: Access, v: Value) -> list[Op]:
    root = access.root(v)
    return [root.op] if root.op is not None else []


def _stays(access: Access, v: Value, inside: set[Op]) -> bool:
    stack, seen = [v], {v}
    while stack:
        for user in stack.pop().users():
            if user in inside:
                continue
            if user.parent is not access.fn.body or not access.is_inlined(user):
                return False
            for r in user.results:
                if r not in seen:
                    seen.add(r)
                    stack.append(r)
    return True


def attention_group(grouping: Grouping, m: AttentionMatch) -> Group | None:
    """The whole attention as one group, or None where views, shapes or convexity forbid it."""
    access = grouping.access
    if not all(grouping.is_free(op) for op in (m.qk, m.pv, *m.score)):
        return None
    score = RegionBuilder(access, m.qk.result.dims, 1, [m.qk.result])
    for op in m.score:
        level = score.fit(op)
        if level is None:
            return None
        score.add(op, level)
    if not score.reaches(m.probs, "full"):
        return None
    views = _attention_views(access, m)
    if views is None:
        return None
    q, k, v, out_space = views
    group = grouping.start("attention", m.pv, RegionBuilder(access, out_space, 0, [m.pv.result]))
    for op in reversed((m.qk, *m.score)):
        # All users of the op are in the group by now, so that joining it cannot close a cycle.
        if not grouping.merge(group, op, certain=True):
            raise AssertionError(f"{op!r} does not join its attention")
    group.attrs.update(qk=m.qk, pv=m.pv, q=q, k=k, v=v, score_builder=score, score_ops=m.score, probs=m.probs)
    grouping.grow_forward(group, [m.pv])
    return group


def _attention_views(access: Access, m: AttentionMatch) -> tuple[View, View, View, tuple[Dim, ...]] | None:
    """q over batch+m+d, k over batch+n+d, v over batch+n+dv, and the iteration space batch+m+dv of the result."""
    a, b = DotDims.of(m.qk), DotDims.of(m.pv)
    ql, kl = (access.view(v) for v in m.qk.operands)
    vl = access.view(m.pv.operands[1 - m.probs_side])
    if ql is None or kl is None or vl is None:
        return None
    q = ql.select(a.lhs_batch + a.lhs_free + a.lhs_contract)
    k = kl.select(a.rhs_batch + a.rhs_free + a.rhs_contract)
    if m.probs_side == 0:
        v = vl.select(b.rhs_batch + b.rhs_contract + b.rhs_free)
    else:
        v = vl.select(b.lhs_batch + b.lhs_contract + b.lhs_free)
    batch = q.dims[:-2]
    dv = v.dims[-1]
    if m.probs_side == 1:
        return None  # the result would be batch+dv+m: left to two kernels
    if v.dims[:-2] != batch:
        try:
            moved = v.reshape((*batch, *v.dims[-2:]), access.env) if access.same_count(v.dims[:-2], batch) else None
        except DimTooComplex:
            moved = None
        if moved is None:
            return None
        v = moved
    return q, k, v, (*batch, q.dims[-2], dv)
