"""dot_general: transposes of operands fold into its dimension numbers, and conversions of narrow ones into its result's type; several dots
of one operand with weights merge into one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from disc_tf.ir.core import Function, Module, Op, Value, replace_all_uses
from disc_tf.ir.dims import Dim
from disc_tf.ir.pass_manager import Pass
from disc_tf.ir.types import DType, TensorType, Type
from disc_tf.passes.rewriter import Rewriter, constant_of, rewrite, table

_MAX_MERGED = 4
_MAX_DISTANCE = 600  # ops between the first and the last merged dot: further apart, results live too long


@dataclasses.dataclass(frozen=True)
class DotCanonicalize(Pass):
    """Fold transposes of operands into dimension numbers; a dot without contraction is a product of broadcasts; a dot of operands that were
    widened first is one of the narrow ones with a wide result.

    Transposes that would change the order of the result's dims stay beside the dot, where the fusion plan folds them into strides. A result
    that is only used with its rows and columns exchanged is the product of the exchanged operands (``K @ Q`` as Keras's einsum has it).
    """

    name = "dot_canonicalize"

    def run(self, module: Module, ctx: object) -> None:
        for fn in module.functions.values():
            rewrite(fn, DOT_RULES)


def fold_transpose(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    operands, attrs = list(op.operands), dict(op.attrs)
    changed = False
    for side, (batch, contract) in enumerate((("lhs_batching", "lhs_contracting"), ("rhs_batching", "rhs_contracting"))):
        t = operands[side].op
        if t is None or t.name != "transpose":
            continue
        order = t.attrs["permutation"]
        used = set(attrs[batch]) | set(attrs[contract])
        free = [order[i] for i in range(len(order)) if i not in used]
        if free != sorted(free):
            continue
        operands[side] = t.operands[0]
        attrs[batch] = tuple(order[i] for i in attrs[batch])
        attrs[contract] = tuple(order[i] for i in attrs[contract])
        changed = True
    return [rw.value("dot_general", operands, op.result.type, attrs)] if changed else None


def outer_product(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    a, b = op.operands
    if op.attrs["lhs_contracting"] or a.dtype != op.result.dtype or a.dtype.is_bool:
        return None
    nb = len(op.attrs["lhs_batching"])
    free_a = [i for i in range(a.rank) if i not in op.attrs["lhs_batching"]]
    free_b = [i for i in range(b.rank) if i not in op.attrs["rhs_batching"]]
    place_a = {d: i for i, d in enumerate((*op.attrs["lhs_batching"], *free_a))}
    place_b = {d: i for i, d in enumerate(op.attrs["rhs_batching"])}
    place_b |= {d: nb + len(free_a) + i for i, d in enumerate(free_b)}
    dims = op.result.dims
    wide = [
        rw.broadcast(x, dims, [place[i] for i in range(x.rank)]) for x, place in ((a, place_a), (b, place_b))
    ]
    return [rw.value("multiply", wide, op.result.type)]


def transposed_result(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    dot = op.operands[0].op
    if dot is None or dot.name != "dot_general" or len(dot.result.uses) != 1 or not dot.attrs["lhs_batching"]:
        return None  # without batch dims one side may be a weight, and weights are right operands
    attrs, order = dict(dot.attrs), tuple(op.attrs["permutation"])
    batch = len(attrs["lhs_batching"])
    free = dot.operands[0].rank - batch - len(attrs["lhs_contracting"])
    left, right = tuple(range(batch, batch + free)), tuple(range(batch + free, dot.result.rank))
    if sorted(order[:batch]) != list(range(batch)) or order[batch:] != right + left or not (left and right):
        return None
    swapped = {
        "lhs_batching": tuple(attrs["rhs_batching"][i] for i in order[:batch]),
        "rhs_batching": tuple(attrs["lhs_batching"][i] for i in order[:batch]),
        "lhs_contracting": attrs["rhs_contracting"],
        "rhs_contracting": attrs["lhs_contracting"],
    }
    rw.loc = tuple(dict.fromkeys((*dot.loc, *op.loc)))
    return [rw.value("dot_general", dot.operands[::-1], op.result.type, {**attrs, **swapped})]


def grouped_scores(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """Scores of query heads that share a key head (``btkgh,bskh->bkgts``): the group is a batch dim, over which the keys are broadcast.

    Without it the scores come as ``bktgs`` and are transposed, and no attention is seen in them.
    """
    dot = op.operands[0].op
    if dot is None or dot.name != "dot_general" or len(dot.result.uses) != 1 or not dot.attrs["lhs_batching"]:
        return None
    n = len(dot.attrs["lhs_batching"])
    if tuple(op.attrs["permutation"]) != (*range(n), n + 1, n, n + 2) or len(free_dims(dot, "lhs")) != 2:
        return None
    rw.loc = tuple(dict.fromkeys((*dot.loc, *op.loc)))
    return [_batched_group(dot, free_dims(dot, "lhs")[1], op.result.type, rw)]


def grouped_context(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """The values of such an attention (``bkgts,bskh->bkgth``), likewise."""
    if len(free_dims(op, "lhs")) != 2 or not op.attrs["lhs_batching"] or len(free_dims(op)) != 1 or not _is_softmax(op.operands[0]):
        return None
    return [_batched_group(op, free_dims(op, "lhs")[0], op.result.type, rw)]


def _batched_group(dot: Op, group: int, kind: Type, rw: Rewriter) -> Value:
    """``dot`` with the free dim ``group`` of its left operand as the last batch dim."""
    a, b = dot.operands
    wide = rw.broadcast(b, (a.dims[group], *b.dims), range(1, b.rank + 1))
    attrs = {
        **dot.attrs,
        "lhs_batching": (*dot.attrs["lhs_batching"], group),
        "rhs_batching": (*(i + 1 for i in dot.attrs["rhs_batching"]), 0),
        "rhs_contracting": tuple(i + 1 for i in dot.attrs["rhs_contracting"]),
    }
    return rw.value("dot_general", [a, wide], kind, attrs)


#: ops between a softmax and the product with the values: masks, dropout's scale, broadcasts that are none once dims are known to be equal
_AROUND_SOFTMAX = frozenset("select multiply convert transpose reshape broadcast_in_dim divide".split())


def _is_softmax(v: Value) -> bool:
    """Whether ``v`` is a quotient of exponentials, seen through what masks and scales it."""
    for _ in range(8):
        op = v.op
        if op is None or op.name not in _AROUND_SOFTMAX:
            return False
        v = op.operands[1 if op.name == "select" else 0]
        if op.name == "divide":
            return v.op is not None and v.op.name == "exponential"
    return False


#: result of a product -> types that operands may have whose products are exact in it
_NARROW = {DType.I32: (DType.I8, DType.U8), DType.F32: (DType.BF16,)}
#: views between a conversion and the product that are looked through
_MAX_VIEWS = 4


def narrow_operands(op: Op, rw: Rewriter) -> Sequence[Value] | None:
    """What ``Cast`` makes of both operands is left to the product: each element is exact in the result's type, and so are products, so
    that only the order of sums of floats may be another. Integers of constants that fit are no hindrance."""
    wanted = _NARROW.get(op.result.dtype, ())
    if not all(v.dtype is op.result.dtype for v in op.operands):
        return None
    found = [narrowed(v, wanted) for v in op.operands]
    if any(x is None for x in found) or all(isinstance(x, np.ndarray) for x in found):
        return None
    operands = [rw.constant(x) if isinstance(x, np.ndarray) else _through_views(v, x, rw) for v, x in zip(op.operands, found, strict=True)]  # type: ignore[arg-type]
    return [rw.value("dot_general", operands, op.result.type, dict(op.attrs))]


def narrowed(v: Value, wanted: Sequence[DType]) -> Value | np.ndarray | None:
    """What ``v`` was converted from, if that is of one of the types ``wanted``; the content of a constant as bytes."""
    if (content := constant_of(v)) is not None:
        if v.rank == 0 or not v.dtype.is_int or any(not -128 <= x <= 127 for x in (content.min(initial=0), content.max(initial=0))):
            return None
        return content.astype(np.int8)
    for _ in range(_MAX_VIEWS):
        op = v.op
        if op is None or op.name not in ("convert", "reshape", "transpose", "broadcast_in_dim"):
            return None
        v = op.operands[0]
        if op.name == "convert":
            return v if v.dtype in wanted else None
    return None


def _through_views(v: Value, narrow: Value, rw: Rewriter) -> Value:
    """The views that made ``v`` of the converted ``narrow``, of ``narrow`` itself."""
    views: list[Op] = []
    while (op := v.op) is not None and op.name != "convert":
        views.append(op)
        v = op.operands[0]
    for op in reversed(views):
        narrow = rw.value(op.name, [narrow], op.result.tensor.with_dtype(narrow.dtype), dict(op.attrs))
    return narrow


DOT_RULES = table(
    (["dot_general"], fold_transpose),
    (["dot_general"], narrow_operands),
    (["dot_general"], outer_product),
    (["dot_general"], grouped_context),
    (["transpose"], transposed_result),
    (["transpose"], grouped_scores),
)


# ---- merging --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class DotMerge(Pass):
    """Dots of the same operand with weights become one dot with the concatenated weight (Q, K, V of an attention).

    The bias adds that follow all of them are merged as well. The concatenations depend on constants only: ``outline_prepare`` takes
    them away. Each result is a slice of the merged one.
    """

    name = "dot_merge"

    def run(self, module: Module, ctx: object) -> None:
        merge_dots(module.main)


@dataclasses.dataclass
class _Tail:
    """A dot with what follows: ``reshape`` (keeps the weight's dims) and ``add`` of a bias along these, each optional."""

    dot: Op
    reshape: Op | None = None
    add: Op | None = None
    bias: Value | None = None

    @property
    def last(self) -> Op:
        return self.add or self.reshape or self.dot


def merge_dots(fn: Function) -> int:
    """Number of merged groups."""
    weights = {p for p, a in zip(fn.params, fn.args, strict=True) if a.kind in ("const", "variable", "prepared")}
    position = {op: i for i, op in enumerate(fn.body.ops)}
    by_lhs: dict[tuple, list[Op]] = {}
    for op in fn.body.ops:
        if op.name == "dot_general" and _mergeable(op, weights):
            rest = tuple(op.operands[1].dims[i] for i in free_dims(op)[1:])
            key = (op.operands[0], op.attrs["lhs_contracting"], op.attrs["rhs_contracting"], op.result.dtype, op.operands[1].dtype, rest)
            by_lhs.setdefault(key, []).append(op)
    before: dict[Op, list[Op]] = {}
    replaced: dict[Op, None] = {}
    groups = 0
    for dots in by_lhs.values():
        for group in _split(dots, position):
            before[group[0]] = _merge(fn, group, weights, replaced)
            groups += 1
    if groups:
        _rebuild(fn, before, replaced)
    return groups


def free_dims(dot: Op, side: str = "rhs") -> list[int]:
    """The dims of an operand that the result has, in order. Weights, on the right, are joined along the first."""
    taken = (*dot.attrs[f"{side}_contracting"], *dot.attrs[f"{side}_batching"])
    return [i for i in range(dot.operands[side == "rhs"].rank) if i not in taken]


def _mergeable(op: Op, weights: set[Value]) -> bool:
    rhs = op.operands[1]
    return (
        not op.attrs["lhs_batching"]
        and len(free_dims(op)) >= 1
        and rhs.tensor.is_static
        and _weight_chain(rhs, weights) is not None
    )


def _weight_chain(v: Value, weights: set[Value]) -> list[Op] | None:
    """The ops (program order) that make ``v`` from weights alone, None if it needs anything else."""
    out: list[Op] = []
    stack = [v]
    while stack:
        x = stack.pop()
        if x in weights:
            continue
        op = x.op
        if op is None or op.regions or len(out) >= 8 or not x.tensor.is_static or op.name.startswith("disc."):
            return None
        out.append(op)
        stack.extend(op.operands)
    return list(dict.fromkeys(reversed(out)))


def _split(dots: list[Op], position: dict[Op, int]) -> list[list[Op]]:
    groups: list[list[Op]] = []
    for op in dots:
        last = groups[-1] if groups else None
        if last and len(last) < _MAX_MERGED and position[op] - position[last[0]] <= _MAX_DISTANCE:
            last.append(op)
        else:
            groups.append([op])
    return [g for g in groups if len(g) > 1]


def _tail(dot: Op, weights: set[Value]) -> _Tail:
    tail = _Tail(dot)
    op, n = dot, len(free_dims(dot))
    if _only_user(op, "reshape") and op.result.users()[0].result.dims[-n:] == op.result.dims[-n:]:
        tail.reshape = op = op.result.users()[0]
    if _only_user(op, "add"):
        add = op.result.users()[0]
        other = add.operands[1] if add.operands[0] is op.result else add.operands[0]
        b = other.op
        if (
            b is not None
            and b.name == "broadcast_in_dim"
            and b.operands[0].rank == n
            and tuple(b.attrs["broadcast_dimensions"]) == tuple(range(other.rank - n, other.rank))
            and b.operands[0].dims == op.result.dims[-n:]
            and add.result.dims == op.result.dims
            and _weight_chain(b.operands[0], weights) is not None
        ):
            tail.add, tail.bias = add, b.operands[0]
    return tail


def _only_user(op: Op, name: str) -> bool:
    users = list(op.result.uses)
    return len(users) == 1 and users[0][0].name == name and users[0][0].parent is op.parent


def _merge(fn: Function, dots: list[Op], weights: set[Value], replaced: dict[Op, None]) -> list[Op]:
    """Make the merged ops (to be placed before the first dot) and redirect the uses of the old results."""
    out: list[Op] = []
    rw = Rewriter(fn.env, out, fn.body)
    rw.loc = tuple(dict.fromkeys(n for d in dots for n in d.loc))
    first = dots[0]
    tails = [_tail(d, weights) for d in dots]
    n = len(free_dims(first))
    lead = [t.reshape.result.dims[:-n] if t.reshape else None for t in tails]
    if any(x != lead[0] for x in lead) or any((t.add is None) != (tails[0].add is None) for t in tails):
        tails = [_Tail(d) for d in dots]
    axis = free_dims(first)[0]
    sizes = [d.operands[1].dims[axis] for d in dots]
    cloned: dict[Value, Value] = {}
    kernels = [_clone(d.operands[1], weights, rw, cloned) for d in dots]
    kernel = _concatenate(rw, kernels, axis)
    wide = tuple(kernel.dims[i] for i in free_dims(first))
    kind = TensorType(first.result.dtype, (*first.result.dims[:-n], *wide))
    merged = rw.value("dot_general", [first.operands[0], kernel], kind, dict(first.attrs))
    if tails[0].reshape is not None:
        merged = rw.reshape(merged, (*tails[0].reshape.result.dims[:-n], *wide))
    if tails[0].add is not None:
        rw.loc = tuple(dict.fromkeys(n for t in tails if t.add for n in t.add.loc))
        bias = _concatenate(rw, [_clone(t.bias, weights, rw, cloned) for t in tails if t.bias is not None], 0)
        spread = rw.broadcast(bias, merged.dims, range(merged.rank - n, merged.rank))
        merged = rw.value("add", [merged, spread], merged.type)
    zeros, ones = (tuple(Dim.of(x) for _ in merged.dims) for x in (0, 1))
    start, axis = Dim.of(0), merged.rank - n
    for tail, size in zip(tails, sizes, strict=True):
        rw.loc = tail.last.loc
        lows = (*zeros[:axis], start, *zeros[axis + 1 :])
        highs = (*merged.dims[:axis], start + size, *merged.dims[axis + 1 :])
        attrs = {"starts": lows, "limits": highs, "strides": ones}
        kind = TensorType(merged.dtype, (*merged.dims[:axis], size, *merged.dims[axis + 1 :]))
        part = rw.value("slice", [merged], kind, attrs)
        replace_all_uses(tail.last.result, part)
        for op in (tail.add, tail.reshape, tail.dot):
            if op is not None:
                replaced[op] = None
        start = start + size
    return out


def _concatenate(rw: Rewriter, parts: list[Value], axis: int) -> Value:
    dims = list(parts[0].dims)
    dims[axis] = sum((p.dims[axis] for p in parts), Dim.of(0))
    return rw.value("concatenate", parts, TensorType(parts[0].dtype, tuple(dims)), {"dimension": axis})


def _clone(v: Value, weights: set[Value], rw: Rewriter, cloned: dict[Value, Value]) -> Value:
    """``v`` computed again from weights at the current place."""
    for op in _weight_chain(v, weights) or []:
        if op.result not in cloned:
            operands = [cloned.get(x, x) for x in op.operands]
            cloned[op.result] = rw.create(op.name, operands, op.result.type, dict(op.attrs)).result
    return cloned.get(v, v)


def _rebuild(fn: Function, before: dict[Op, list[Op]], replaced: dict[Op, None]) -> None:
    ops: list[Op] = []
    for op in fn.body.ops:
        ops.extend(before.get(op, ()))
        if op not in replaced:
            ops.append(op)
    for op in replaced:  # consumers come first in each tail
        op.drop()
        op.parent = None
    fn.body.ops = ops
