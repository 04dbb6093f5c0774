"""Which pass over a row computes what: levels of reductions, values to keep, values to recompute."""

from __future__ import annotations

import dataclasses

from disc_tf.codegen.cpu.loops import _HEAVY as HEAVY
from disc_tf.fusion.types import Region
from disc_tf.fusion.views import View
from disc_tf.ir.core import Op, Value, reduce_kind
from disc_tf.ir.types import DType

KEEP_COST = 8  # from this cost on, a value is kept rather than computed again
_HEAVY_COST = 20


@dataclasses.dataclass
class Pass:
    """One walk over the row. ops: full-level ops to compute, in order. reloads: kept values of earlier passes that it
    reads. keep: values to store in strips. reduces, writes: what it finishes."""

    ops: list[Op] = dataclasses.field(default_factory=list)
    reloads: list[Value] = dataclasses.field(default_factory=list)
    keep: list[Value] = dataclasses.field(default_factory=list)
    reduces: list[Op] = dataclasses.field(default_factory=list)
    writes: list[tuple[Value, View]] = dataclasses.field(default_factory=list)

    @property
    def heavy(self) -> bool:
        return any(op.name in HEAVY for op in self.ops) or len(self.ops) > 10


@dataclasses.dataclass
class RowPlan:
    """passes in order; ``row_ops[s]``: row-level ops to compute before pass s (one more entry than passes)."""

    passes: list[Pass]
    row_ops: list[list[Op]]
    kept: list[Value]
    rows: frozenset[Value]

    def is_row(self, v: Value) -> bool:
        return v in self.rows


def plan_rows(region: Region) -> RowPlan:
    """Assign the ops of a region to passes."""
    stage, row = _stages(region)
    made = {op.result: op for op in region.ops}
    count = 1 + max([stage[op.result] for op in region.ops], default=0)
    passes = [Pass() for _ in range(count)]
    row_ops: list[list[Op]] = [[] for _ in range(count + 1)]
    roots: list[list[Value]] = [[] for _ in range(count)]
    for op in region.ops:
        if op.name == "reduce":
            s = stage[op.result] - 1
            passes[s].reduces.append(op)
            roots[s].append(region.resolve(op.operands[0]))
        elif row[op.result]:
            row_ops[stage[op.result]].append(op)
    for out, view in region.writes:
        v = region.resolve(out)
        if not row.get(v, False):
            s = stage.get(v, 0)
            passes[s].writes.append((out, view))
            roots[s].append(v)
    kept = _choose_kept(region, made, stage, row, roots)
    for s, p in enumerate(passes):
        p.keep = [v for v in kept if stage[v] == s]
        needed, reloads = _closure(region, made, row, [*roots[s], *p.keep], {v for v in kept if stage[v] < s})
        p.ops = [op for op in region.ops if op.result in needed]
        p.reloads = [v for v in kept if v in reloads]
    passes = passes[: 1 + max((i for i, p in enumerate(passes) if p.reduces or p.writes or p.keep), default=-1)]
    return RowPlan(passes, row_ops, kept, frozenset(v for v, r in row.items() if r))


def _stages(region: Region) -> tuple[dict[Value, int], dict[Value, bool]]:
    """Per computed value: the number of reductions in a row that it waits for, and whether it is one value per row."""
    stage: dict[Value, int] = {}
    row: dict[Value, bool] = {}
    for op in region.ops:
        operands = [region.gathers[op.result].index] if op.name == "gather" else op.operands
        s = max((stage.get(region.resolve(v), 0) for v in operands), default=0)
        stage[op.result] = s + 1 if op.name == "reduce" else s
        row[op.result] = region.level[op.result] == "row"
    return stage, row


def _costs(region: Region, row: dict[Value, bool]) -> dict[Value, int]:
    """What it takes to compute each full-level value again from memory."""
    cost: dict[Value, int] = {}
    for op in region.ops:
        if row[op.result]:
            cost[op.result] = 0
            continue
        own = _HEAVY_COST if op.name in HEAVY else 1
        inputs = 0 if op.name == "gather" else sum(cost.get(region.resolve(v), 1) for v in set(op.operands))
        cost[op.result] = own + inputs
    return cost


def _choose_kept(region: Region, made: dict[Value, Op], stage: dict[Value, int], row: dict[Value, bool],
                 roots: list[list[Value]]) -> list[Value]:
    """Walk down from every pass's roots; the first values of earlier passes that are dear are kept."""
    cost = _costs(region, row)
    kept: dict[Value, None] = {}
    for s, pass_roots in enumerate(roots):
        stack, seen = list(pass_roots), set(pass_roots)
        while stack:
            v = stack.pop()
            op = made.get(v)
            if op is None or row[v]:
                continue
            if stage[v] < s and cost[v] >= KEEP_COST:
                kept[v] = None
                continue
            if op.name == "gather":
                continue
            for x in op.operands:
                x = region.resolve(x)
                if x not in seen:
                    seen.add(x)
                    stack.append(x)
    return [op.result for op in region.ops if op.result in kept]


def _closure(region: Region, made: dict[Value, Op], row: dict[Value, bool], roots: list[Value],
             stops: set[Value]) -> tuple[set[Value], set[Value]]:
    """Full-level values that the roots need, not going beyond `stops`; and which stops are reached."""
    needed: set[Value] = set()
    reached: set[Value] = set()
    stack = list(roots)
    while stack:
        v = stack.pop()
        op = made.get(v)
        if op is None or row[v] or v in needed:
            continue
        if v in stops:
            reached.add(v)
            continue
        needed.add(v)
        if op.name != "gather":
            stack += [region.resolve(x) for x in op.operands]
    return needed, reached


def softmax_sum(region: Region, op: Op) -> Value | None:
    """The sum that ``op`` divides by if it is the division of a softmax in f32 or f64: exp(x - max(x)) / sum(exp(x - max(x))). TensorFlow's
    own multiplies by the reciprocal, which is taken once a row. This sum is at least 1: that of any other exponentials may be so large that
    its reciprocal is denormal, which is flushed to 0."""
    if op.name != "divide" or op.result.dtype not in (DType.F32, DType.F64):
        return None

    def reduced(v: Value, kind: str) -> Value | None:
        """What a value of the row is the sum or so of."""
        made = v.op
        if made is None or region.level.get(v) != "row" or made.name != "reduce" or reduce_kind(made) != kind:
            return None
        return region.resolve(made.operands[0])

    power, total = (region.resolve(v) for v in op.operands)
    if power.op is None or power.op.name != "exponential" or reduced(total, "add") is not power:
        return None
    less = region.resolve(power.op.operands[0]).op
    if less is None or less.name != "subtract":
        return None
    x, most = (region.resolve(v) for v in less.operands)
    return total if reduced(most, "max") is x else None
