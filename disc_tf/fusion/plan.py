"""The fusion plan: function "main" as an ordered list of kernels, views, constants and host code.

Order of claims: attention, then dots with their epilogues, then rows (stitch), then general reductions with their producers, then
loops; what is left are library calls, views and host code. Every merge keeps the groups convex (`ClusterGraph`).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from disc_tf.fusion.access import EXPENSIVE, INDEX_OPS, Access, is_pointwise
from disc_tf.fusion.apart import NOTHING, Apart
from disc_tf.fusion.conv import Before, conv_group, join_expansions, settle_convolutions
from disc_tf.fusion.early import ranks
from disc_tf.fusion.groups import Group, Grouping
from disc_tf.fusion.outline import REGION_OPS, UPDATE
from disc_tf.fusion.patterns import attention_group, gemm_group, match_attention, settle_dots
from disc_tf.fusion.permuted import permuted_region
from disc_tf.fusion.region import RegionBuilder
from disc_tf.fusion.side_by_side import beside
from disc_tf.fusion.stitch import is_row_reduce, rows_group, settle_rows
from disc_tf.fusion.types import Fusion, Plan, Region
from disc_tf.fusion.views import VIEW_OPS, View, apply_op
from disc_tf.ir.core import Function, Op, Value, may_fail
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import TensorType
from disc_tf.passes.placement import EFFECTS
from disc_tf.passes.wide_concats import WIDEST
from disc_tf.passes.work import rough_work

#: ops that a loop kernel carries out
_LOOP_OPS = INDEX_OPS | VIEW_OPS | {"bitcast_convert"}


#: kinds whose operands lie in memory, and that are kept whoever reads their results
_STORED = frozenset({"library", "host", "while", "case", "update"})


def make_plan(fn: Function, ctx: object = None, *, host_results: bool = False, apart: Apart = NOTHING) -> Plan:
    """Group the ops of ``fn`` (see the module's docstring). The function itself is not changed. ``host_results``: scalars among the results
    are wanted by the host (a region's). ``apart``: ops that are not fused."""
    access = Access(fn, host_results)
    access.warm()
    _settle_apart(access, apart)
    settle_dots(access)
    settle_convolutions(access)
    settle_rows(access)
    _settle_borders(access)
    grouping = Grouping(access, apart)
    nodes = grouping.nodes
    for op in nodes:
        if op.name == "dot_general" and grouping.is_free(op):
            match = match_attention(access, op)
            if match is not None and not any(map(apart.has, (match.qk, match.pv, *match.score))):
                attention_group(grouping, match)
    for op in nodes:
        if op.name == "dot_general" and grouping.is_free(op):
            gemm_group(grouping, op)
        elif op.name == "convolution" and grouping.is_free(op):
            conv_group(grouping, op)
    join_expansions(grouping)
    for op in nodes:
        if grouping.is_free(op) and is_row_reduce(op, access) and not apart.has(op):
            rows_group(grouping, op)
    for op in nodes:
        if grouping.is_free(op) and op.name == "reduce":
            _reduce_group(grouping, op)
    _loops(grouping)
    for op in nodes:
        if op not in grouping.group_of:
            grouping.start(_rest_kind(op, access), op)
    fusions = _schedule(grouping)
    return Plan(fn, fusions if host_results or apart.everything else beside(fusions, fn.results))


def _rest_kind(op: Op, access: Access) -> str:
    if op in access.host or op.name == "disc.dim":  # a dim that lies in a buffer: a result of the function
        return "host"
    if op.name == "constant":
        return "constant"
    if op.name in REGION_OPS:
        return op.name
    return "update" if op.name == UPDATE else "library"


def _settle_apart(access: Access, apart: Apart) -> None:
    """What moves data and is not to be part of another kernel gets a buffer."""
    for op in access.fn.body.ops:
        if (op.name in VIEW_OPS or op.name == "iota") and op.result.rank and apart.has(op):
            access.materialise(op.result)


def _settle_borders(access: Access) -> None:
    """Values that must lie in a buffer of their own: results of the function, operands of library calls and of regions, scalars that the
    host loads."""
    for op in access.fn.body.ops:
        if op.name == "return" or _is_library(op):
            for v in access.values_read(op):
                if isinstance(v.type, TensorType):
                    access.materialise(v)
        elif op in access.host:
            for v in op.operands:
                if v.op is not None and v.op not in access.host and isinstance(v.type, TensorType):
                    access.materialise(v)


def _is_library(op: Op) -> bool:
    return not (
        is_pointwise(op)
        or op.name in _LOOP_OPS
        or op.name in EFFECTS
        or op.name in ("constant", "disc.dim", "dot_general", "convolution", "reduce", "return")
    )


# ---- general reductions -----------------------------------------------------------------------------------------


def _reduce_group(grouping: Grouping, reduce: Op) -> Group:
    """A reduce that is not over rows, with the elementwise producers that only it needs."""
    reduced = set(reduce.attrs["dimensions"])
    dims = reduce.operands[0].dims
    group = grouping.start(
        "reduce",
        reduce,
        reduce=reduce,
        outer=tuple(d for i, d in enumerate(dims) if i not in reduced),
        inner=tuple(d for i, d in enumerate(dims) if i in reduced),
    )
    stack = [reduce]
    while stack:
        op = stack.pop()
        for v in op.operands:
            for p in sorted(grouping.sources(v), key=grouping.index.__getitem__):
                fits = is_pointwise(p) or p.name in ("gather", "concatenate", "pad")
                if not fits or not grouping.access.same_count(p.result.dims, dims):
                    continue
                if all(c in group.ops for c in grouping.consumers(p)) and not _returned(grouping, p) and grouping.merge(group, p):
                    stack.append(p)
    return group


def _returned(grouping: Grouping, op: Op) -> bool:
    return any(user.name == "return" for r in op.results for user in r.users())


# ---- loops --------------------------------------------------------------------------------------------------------


def _is_loop(op: Op) -> bool:
    return len(op.results) == 1 and (is_pointwise(op) or op.name in _LOOP_OPS)


def _loops(grouping: Grouping) -> None:
    """Vertical fusion in program order, then joining loops over equally many elements that read the same values."""
    access = grouping.access
    for op in grouping.nodes:
        if not grouping.is_free(op) or not _is_loop(op):
            continue
        view = _alias(access, op)
        if view is not None and view.is_contiguous(access.env):
            grouping.start("view", op, view=view)
            continue
        group = _join_producers(grouping, op) or grouping.start("loop", op)
        group.attrs.setdefault("space", op.result.dims)
        # Further producers may now be merged group by group.
        for v in op.operands:
            for p in grouping.sources(v):
                other = grouping.group_of.get(p)
                if other is None or other is group or other.kind != "loop" or not _may_inline(grouping, p, op):
                    continue
                same = access.same_count(other.attrs["space"], group.attrs["space"])
                if same or _wholly_inside(grouping, other, group.ops):
                    grouping.join(group, other)
    _join_siblings(grouping)


def _alias(access: Access, op: Op) -> View | None:
    """The view of its operand that ``op`` would be, if it moves no data for certain: a reshape, an element of a small tensor (which
    the host looks at), or the first rows of what an op padded to a bound. The operand must have a buffer."""
    if op.name != "reshape" and not (op.name == "slice" and (all(d == 1 for d in op.result.dims) or _is_prefix(op))):
        return None
    view = access.view(op.operands[0])
    if view is None or view.source is None or (view.source.op is not None and access.is_inlined(view.source.op)):
        return None
    return view if op.name == "reshape" else apply_op(op, view, access.env)  # type: ignore[arg-type]


def _is_prefix(op: Op) -> bool:
    """Whether a slice takes the first rows of an op whose result has more rows than are meant (see `opset.data_dependent`)."""
    x = op.operands[0]
    made = x.op is not None and len(x.op.results) > 1 and x.op.name.startswith("disc.")
    return made and all(s == 0 for s in op.attrs["starts"]) and all(s == 1 for s in op.attrs["strides"])


def _join_producers(grouping: Grouping, op: Op) -> Group | None:
    for v in op.operands:
        for p in sorted(grouping.sources(v), key=grouping.index.__getitem__, reverse=True):
            group = grouping.group_of.get(p)
            if group is None or group.kind != "loop" or not _may_inline(grouping, p, op):
                continue
            same = grouping.access.same_count(group.attrs["space"], op.result.dims)
            if (same or _wholly_inside(grouping, group, {op})) and grouping.merge(group, op):
                if not same:
                    group.attrs["space"] = op.result.dims
                return group
    return None


def _may_inline(grouping: Grouping, producer: Op, consumer: Op) -> bool:
    """Whether a loop may compute ``producer`` where ``consumer`` reads it, without computing anything dear twice.

    Same element count: once per element (a permuted read only if nobody else needs the producer). Concatenations and paddings read each
    element once. A smaller, cheap producer with this one reader may be repeated.
    """
    access = grouping.access
    if len(producer.results) != 1:
        return False
    alone = len(grouping.consumers(producer)) == 1 and not _returned(grouping, producer)
    if access.same_count(producer.result.dims, consumer.result.dims):
        space = consumer.result.dims
        builder = RegionBuilder(access, space, 0, [producer.result])
        if is_pointwise(consumer) and all(builder.reaches(v, "full") or producer not in grouping.sources(v) for v in consumer.operands):
            return True
        return alone
    if not alone or len(grouping.group_of[producer].ops) > 8:
        return False
    group = grouping.group_of[producer]
    if consumer.name == "concatenate" and _parts(group.ops) + len(consumer.operands) > WIDEST:
        return False
    if consumer.name in ("concatenate", "pad", "dynamic_slice"):
        return access.same_count(group.attrs["space"], producer.result.dims)
    return all(o.name not in EXPENSIVE for o in group.ops) and is_pointwise(consumer)


def _parts(ops: set[Op]) -> int:
    """Branches over the parts of concatenations."""
    return sum(len(op.operands) for op in ops if op.name == "concatenate")


def _wholly_inside(grouping: Grouping, group: Group, ops: set[Op]) -> bool:
    """Whether nobody but ``ops`` reads what the group makes: a loop stores only values of its own element count."""
    inside = group.ops | ops
    return not any(grouping.needed(o, inside) for o in group.ops)


def _join_siblings(grouping: Grouping) -> None:
    """Loops over equally many elements that read a common value become one kernel with several outputs."""
    last: dict[tuple[Dim | None, Value], Group] = {}
    loops = [g for g in grouping.groups if g.kind == "loop"]
    for group in loops:
        if not group.ops:
            continue
        count = grouping.access.elements(group.attrs["space"])
        roots = {grouping.access.root(v) for op in group.ops for v in op.operands}
        keys = [(count, r) for r in sorted(roots, key=lambda r: r.uid) if r.op is None or r.op in grouping.index]
        for key in keys:
            other = last.get(key)
            if other is not None and other.ops and other is not group and grouping.join(group, other):
                break
        for key in keys:
            last[key] = group


# ---- the list -----------------------------------------------------------------------------------------------------


def _schedule(grouping: Grouping) -> list[Fusion]:
    """Groups in a topological order: host code as early as it can, then what early results need, else the order of the program."""
    graph = grouping.graph
    group_at = {graph.find(grouping.index[g.anchor]): g for g in grouping.groups}
    roots = graph.clusters()
    waiting = {c: len(graph.predecessors(c)) for c in roots}

    tensors = [v for v in grouping.access.fn.results if isinstance(v.type, TensorType)]
    made = [graph.find(grouping.index[v.op]) for v in tensors if v.op is not None and v.op in grouping.index]
    env = grouping.access.fn.env
    effects = sorted((c for c in roots if any(may_fail(op) for op in group_at[c].ops)), key=lambda c: min(graph.members(c)))
    early = ranks(graph, made, lambda c: sum(rough_work(op, env) for op in group_at[c].ops), effects)

    def key(c: int) -> tuple[int, int, int]:
        return (0 if group_at[c].kind in ("host", "constant") else 1, early.get(c, len(roots)), min(graph.members(c)))

    first = {c: key(c) for c in roots}
    ready = [(*first[c], c) for c in roots if not waiting[c]]
    heapq.heapify(ready)
    fusions: list[Fusion] = []
    while ready:
        *_, c = heapq.heappop(ready)
        fusion = _finish(grouping, group_at[c])
        dead = not fusion.outputs and fusion.kind not in _STORED
        if dead:
            pass  # nobody reads it: the function was not cleaned up by dce
        elif fusion.kind == "host" and fusions and fusions[-1].kind == "host":
            _join_host(fusions[-1], fusion)
        else:
            fusions.append(fusion)
        for s in graph.successors(c):
            waiting[s] -= 1
            if not waiting[s]:
                heapq.heappush(ready, (*first[s], s))
    return fusions


def _join_host(into: Fusion, more: Fusion) -> None:
    into.ops = list(dict.fromkeys(into.ops + more.ops))
    made = {r for op in into.ops for r in op.results}
    into.inputs = [v for v in dict.fromkeys(into.inputs + more.inputs) if v not in made]
    into.outputs = list(dict.fromkeys(into.outputs + more.outputs))


def _finish(grouping: Grouping, group: Group) -> Fusion:
    """Inlined ops, inputs, outputs and the resolved accesses of a group."""
    access = grouping.access
    position = access.position
    nodes = sorted(group.ops, key=position.__getitem__)
    inside = set(nodes)
    inlined: set[Op] = set()
    for op in nodes:
        for v in access.values_read(op):
            inlined.update(access.chain(v, stored=group.kind in _STORED))
    inlined -= inside
    ops = sorted(inside | inlined, key=position.__getitem__)
    made = {r for op in ops for r in op.results}
    inputs = [v for v in dict.fromkeys(v for op in ops for v in access.values_read(op)) if v not in made]
    outputs = [v for op in nodes for v in grouping.needed(op, inside)]
    fusion = Fusion(group.kind, ops, [v for v in inputs if isinstance(v.type, TensorType)], outputs, {})
    _FINISH.get(group.kind, _finish_plain)(grouping, group, fusion, nodes)
    return fusion


def _finish_plain(grouping: Grouping, group: Group, fusion: Fusion, nodes: Sequence[Op]) -> None:
    fusion.attrs.update(group.attrs)


def _finish_gemm(grouping: Grouping, group: Group, fusion: Fusion, nodes: Sequence[Op]) -> None:
    fusion.attrs.update(group.attrs)
    before: Before | None = group.attrs.get("before")
    own = [op for op in nodes if before is None or op not in before.ops]
    fusion.attrs["region"] = _epilogue(grouping, group, own, fusion.outputs)
    if before is not None:
        first = [op for op in nodes if op in before.ops]
        region = _epilogue(grouping, before.group, first, [before.value])
        fusion.attrs["before"] = {**before.group.attrs, "region": region, "bands": before.bands}


def _epilogue(grouping: Grouping, group: Group, nodes: Sequence[Op], outputs: Sequence[Value]) -> Region:
    assert group.region is not None
    epilogue = [op for op in nodes if op is not group.anchor and op not in grouping.access.material]
    region = group.region.build(epilogue, outputs)
    assert region is not None, "an epilogue op was accepted that does not resolve"
    return region


def _finish_attention(grouping: Grouping, group: Group, fusion: Fusion, nodes: Sequence[Op]) -> None:
    attrs = group.attrs
    builder: RegionBuilder = attrs["score_builder"]
    score = builder.build(attrs["score_ops"], [])
    assert score is not None and group.region is not None
    done = RegionBuilder(grouping.access, builder.space, 1, builder.seeds)
    done.level = dict(score.level)
    done.bind(score, attrs["probs"])
    scored = {attrs["qk"], attrs["pv"], *attrs["score_ops"]}
    epilogue = [op for op in nodes if op not in scored and op not in grouping.access.material]
    region = group.region.build(epilogue, fusion.outputs)
    assert region is not None, "an epilogue op was accepted that does not resolve"
    fusion.attrs.update({k: attrs[k] for k in ("qk", "pv", "q", "k", "v")})
    fusion.attrs.update(score=score, probs=score.resolve(attrs["probs"]), region=region)


def _finish_rows(grouping: Grouping, group: Group, fusion: Fusion, nodes: Sequence[Op]) -> None:
    fusion.attrs.update(group.attrs)
    assert group.region is not None
    region = group.region.build([op for op in nodes if op not in grouping.access.material], fusion.outputs)
    if region is not None:
        fusion.attrs["region"] = region


def _finish_loop(grouping: Grouping, group: Group, fusion: Fusion, nodes: Sequence[Op]) -> None:
    fusion.attrs.update(group.attrs)
    if fusion.outputs:
        fusion.attrs["space"] = fusion.outputs[-1].dims
    if grouping.apart.has(group.anchor):
        return  # without its accesses resolved, elements are computed one by one
    builder = RegionBuilder(grouping.access, fusion.attrs["space"], 0)
    builder.moved = {op.result for op in nodes if op in grouping.access.material}
    if all(is_pointwise(op) or (op in grouping.access.material and op.name in VIEW_OPS) for op in nodes):
        region = builder.build([op for op in nodes if is_pointwise(op)], fusion.outputs)
        if region is None:
            region = permuted_region(grouping.access, nodes, fusion.outputs, fusion.attrs["space"])
        if region is not None:
            fusion.attrs["region"] = region


def _finish_view(grouping: Grouping, group: Group, fusion: Fusion, nodes: Sequence[Op]) -> None:
    view: View = group.attrs["view"]
    fusion.attrs["view"] = View(view.source, view.offset, view.axes)
    fusion.inputs = [v for v in fusion.inputs if v is view.source]


def _finish_library(grouping: Grouping, group: Group, fusion: Fusion, nodes: Sequence[Op]) -> None:
    fusion.attrs["call"] = group.anchor


def _finish_regions(grouping: Grouping, group: Group, fusion: Fusion, nodes: Sequence[Op]) -> None:
    fusion.attrs["call"] = group.anchor
    regions = grouping.access.regions[group.anchor]
    fusion.attrs["regions"] = [(r, make_plan(r.function, host_results=True, apart=grouping.apart)) for r in regions]


_FINISH = {
    "while": _finish_regions,
    "case": _finish_regions,
    "gemm": _finish_gemm,
    "conv": _finish_gemm,
    "attention": _finish_attention,
    "rows": _finish_rows,
    "loop": _finish_loop,
    "view": _finish_view,
    "library": _finish_library,
}
