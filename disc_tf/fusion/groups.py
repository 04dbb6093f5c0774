"""Groups under construction: nodes, the cluster graph over them, and the operation "let this op join that group"."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

from disc_tf.fusion.access import Access
from disc_tf.fusion.apart import NOTHING, Apart
from disc_tf.fusion.cluster_graph import ClusterGraph
from disc_tf.fusion.hazards import may_read_outside
from disc_tf.fusion.region import RegionBuilder
from disc_tf.ir.core import Op, Value, walk
from disc_tf.ir.types import TensorType

#: ops that compute in one kernel at most: beyond this, compile time and registers suffer
MAX_OPS = 192


@dataclasses.dataclass(eq=False)
class Group:
    """A fusion being grown. ``anchor``: a node of it; ``ops``: its nodes; ``region``: for kinds that have one."""

    kind: str
    anchor: Op
    ops: set[Op]
    region: RegionBuilder | None = None
    attrs: dict[str, Any] = dataclasses.field(default_factory=dict)


class Grouping:
    """All nodes of a function with their dependences; each node is in at most one group, and those of ``apart`` in one of their own."""

    def __init__(self, access: Access, apart: Apart = NOTHING) -> None:
        self.access = access
        self.apart = apart
        self.nodes = [op for op in access.fn.body.ops if op.name != "return" and not access.is_inlined(op)]
        self.index = {op: i for i, op in enumerate(self.nodes)}
        self.binders = {op.attrs["symbol"]: op for op in self.nodes if op.name == "disc.bind_dim"}
        #: what loops and branches read from outside, which may lie before an op that their bodies have taken in
        self._captured = {v for regions in access.regions.values() for r in regions for v in r.captures}
        self._binders_of: dict[Any, frozenset[Op]] = {}
        self._sources: dict[Value, frozenset[Op]] = {}
        self.graph = ClusterGraph(len(self.nodes), self._edges())
        self.group_of: dict[Op, Group] = {}
        self.groups: list[Group] = []

    # ---- dependences ----------------------------------------------------------------------------------------------

    def _edges(self) -> Iterable[tuple[int, int]]:
        """Dependences by data and by bound symbols. A check does not wait for the checks before it: those on dims alone come before any
        kernel, whose accesses they guard, even where an earlier check needs a kernel. A symbol is bound after the checks before it,
        since it stands for what they have ensured; so are reads that only a check keeps inside their operand (`hazards`)."""
        guards: set[Op] = set()  # checks since the last binding, and that
        checks: set[Op] = set()
        for op in self.access.fn.body.ops:
            deps: set[Op] = set()
            for v in self.access.values_read(op):
                if isinstance(v.type, TensorType) or op.name != "disc.check":
                    deps |= self._sources.get(v, frozenset())
            if self.binders and op.name != "disc.bind_dim":
                deps |= self._symbol_sources(op)
            if checks and (op in self.access.regions or may_read_outside(op, self.access.env)):
                deps |= checks
            if op.name == "disc.check":
                guards.add(op)
                checks.add(op)
            elif op.name == "disc.bind_dim":
                deps |= guards
                guards = {op}
            here = self.index.get(op)
            if here is not None:
                deps.discard(op)
                for d in deps:
                    yield self.index[d], here
                deps = {op}
            found = frozenset(deps)
            for r in op.results:
                self._sources[r] = found

    def _symbol_sources(self, op: Op) -> frozenset[Op]:
        from disc_tf.passes.rewriter import dims_of_op

        out: frozenset[Op] = frozenset()
        inner = (d for region in op.regions for o in walk(region) for d in dims_of_op(o))
        for d in itertools.chain(dims_of_op(op), inner):
            if d.is_static:
                continue
            known = self._binders_of.get(d)
            if known is None:
                known = frozenset(self.binders[s] for s in d.symbols() if s in self.binders)
                self._binders_of[d] = known
            out |= known
        return out

    def sources(self, v: Value) -> frozenset[Op]:
        """The nodes that ``v`` comes from, through inlined ops."""
        return self._sources.get(v, frozenset())

    def consumers(self, op: Op) -> list[Op]:
        """The nodes that use the op's results, through inlined ops, in program order."""
        return self._readers(list(op.results))

    def readers(self, v: Value) -> list[Op]:
        """The nodes that read ``v``, through inlined ops, in program order."""
        return self._readers([v])

    def _readers(self, stack: list[Value]) -> list[Op]:
        out: set[Op] = set()
        seen: set[Value] = set(stack)
        while stack:
            for user in stack.pop().users():
                user = self._in_body(user)
                if user is None:
                    continue
                if user in self.index:
                    out.add(user)
                elif user.name != "return":
                    for r in user.results:
                        if r not in seen:
                            seen.add(r)
                            stack.append(r)
        return sorted(out, key=self.index.__getitem__)

    def _in_body(self, op: Op) -> Op | None:
        """The op of the function's own block that holds ``op``."""
        body = self.access.fn.body
        while op.parent is not body:
            if op.parent is None or op.parent.parent_op is None:
                return None
            op = op.parent.parent_op
        return op

    # ---- growing --------------------------------------------------------------------------------------------------

    def start(self, kind: str, anchor: Op, region: RegionBuilder | None = None, **attrs: Any) -> Group:
        group = Group(kind, anchor, {anchor}, region, attrs)
        self.group_of[anchor] = group
        self.groups.append(group)
        return group

    def is_free(self, op: Op) -> bool:
        return op in self.index and op not in self.group_of and op not in self.access.host

    def merge(self, group: Group, op: Op, certain: bool = False) -> bool:
        """Put a free node into the group unless that makes it non-convex (``certain``: it cannot, so no limits apply)."""
        if not self.is_free(op) or (len(group.ops) >= MAX_OPS and not certain):
            return False
        if self.apart.has(op) or self.apart.has(group.anchor):
            return False
        if not self.graph.try_merge(self.index[group.anchor], self.index[op], unbounded=certain):
            return False
        group.ops.add(op)
        self.group_of[op] = group
        return True

    def join(self, a: Group, b: Group) -> bool:
        """Put all of ``b`` into ``a`` unless that makes it too large or non-convex."""
        if len(a.ops) + len(b.ops) > MAX_OPS or self.apart.has(a.anchor) or self.apart.has(b.anchor):
            return False
        if not self.graph.try_merge(self.index[a.anchor], self.index[b.anchor]):
            return False
        a.ops |= b.ops
        for op in b.ops:
            self.group_of[op] = a
        b.ops = set()
        self.groups.remove(b)
        return True

    def absorb(self, group: Group, op: Op) -> bool:
        """Let the op join the group's region if it fits there point by point."""
        region = group.region
        if region is None or not self.is_free(op):
            return False
        if op in self.access.material:
            return self._absorb_move(group, op)
        level = region.fit(op)
        if level is None:
            return False
        region.add(op, level)
        if region.users_agree(op) and self.merge(group, op):
            return True
        region.remove(op)
        return False

    def _absorb_move(self, group: Group, op: Op) -> bool:
        """A materialised transpose or reshape of a member: the kernel stores the member where the result lies."""
        region = group.region
        assert region is not None
        if region.write_view(op.result) is None or any(c in group.ops for c in self.consumers(op)):
            return False
        if not self.merge(group, op):
            return False
        region.moved.add(op.result)
        return True

    def grow_forward(self, group: Group, seeds: Iterable[Op]) -> None:
        """Absorb consumers, consumers' consumers ..., in program order."""
        import heapq

        heap = [self.index[c] for s in seeds for c in self.consumers(s)]
        heapq.heapify(heap)
        tried: set[int] = set()
        while heap:
            i = heapq.heappop(heap)
            if i in tried:
                continue
            tried.add(i)
            op = self.nodes[i]
            if self.absorb(group, op):
                for c in self.consumers(op):
                    if self.index[c] not in tried:
                        heapq.heappush(heap, self.index[c])

    def grow_both(self, group: Group, seeds: Iterable[Op]) -> None:
        """Absorb producers and consumers until nothing more fits. A refused op is tried again when the group has grown."""
        queue = list(seeds)
        refused: dict[Op, int] = {}
        size = len(group.ops)
        while queue:
            op = queue.pop(0)
            near = [s for v in op.operands for s in self.sources(v)] + self.consumers(op)
            for n in near:
                if not self.is_free(n) or refused.get(n) == len(group.ops):
                    continue
                if self.absorb(group, n):
                    queue.append(n)
                else:
                    refused[n] = len(group.ops)
            if not queue and len(group.ops) != size:
                size = len(group.ops)
                queue = [o for o in group.ops if any(self.is_free(c) for c in self.consumers(o))]

    # ---- what crosses the border -------------------------------------------------------------------------------------

    def needed(self, op: Op, inside: set[Op]) -> list[Value]:
        """Results of ``op`` that somebody outside ``inside`` reads, directly or through inlined ops (which are not material)."""
        out = []
        for r in op.results:
            if isinstance(r.type, TensorType) and (r in self._captured or self._escapes(r, inside)):
                out.append(r)
        return out

    def _escapes(self, v: Value, inside: set[Op]) -> bool:
        stack, seen = [v], {v}
        while stack:
            for user in stack.pop().users():
                top = self._in_body(user)
                if top is None or top in inside:
                    continue
                if top.name == "return" or top in self.index:
                    return True
                for r in top.results:
                    if r not in seen:
                        seen.add(r)
                        stack.append(r)
        return False
