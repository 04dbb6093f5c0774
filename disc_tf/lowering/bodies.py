"""Two lowerings of one cluster: *general* (nothing assumed) and *uniform* (the facts about argument dims that the rules asked for).

While lowering, rules record what they could not decide (``DimRequest``). Those about argument dims alone become the uniform body's entry
predicate. The cluster is then lowered again with them as facts, so that every shape that follows from them (the -1 of a Reshape, a
broadcast, a check) comes out short. That may bring up further requests, hence a few rounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from disc_tf.ir.core import Function
from disc_tf.ir.dims import Dim, dmin
from disc_tf.ir.shape_env import ShapeEnv
from disc_tf.lowering.context import DimRequest, LoweringContext

MAX_FACTS = 32
_ROUNDS = 4


@dataclasses.dataclass(frozen=True)
class Fact:
    """``a == b`` between argument dims, or ``a >= 1`` (kind ``positive``, ``b`` is 1)."""

    kind: str
    a: Dim
    b: Dim

    @property
    def pair(self) -> tuple[Dim, Dim]:
        """Two dims that are equal exactly if the fact holds: the form of an entry predicate."""
        return (dmin(self.a, 1), Dim.of(1)) if self.kind == "positive" else (self.a, self.b)


@dataclasses.dataclass
class Bodies:
    """``general`` is None where nothing was undecided (then ``predicate`` is empty and ``uniform`` holds for all shapes)."""

    uniform: Function
    general: Function | None
    facts: list[Fact]

    @property
    def predicate(self) -> list[tuple[Dim, Dim]]:
        return [fact.pair for fact in self.facts]


#: lowers the cluster under facts. It makes a new ``Function``, applies ``assume(fn.env, facts)``, and gives its parameters the dims
#: ``fn.env.simplify(d)``, so that dims known to be equal are one symbol.
Lower = Callable[[Sequence[Fact]], tuple[Function, LoweringContext]]


def assume(env: ShapeEnv, facts: Iterable[Fact]) -> None:
    """Tell a shape environment."""
    for fact in facts:
        if fact.kind == "positive":
            env.set_range(fact.a, 1, None)
        else:
            env.assume_eq(fact.a, fact.b)


def lower_bodies(lower: Lower) -> Bodies:
    """Both bodies of a cluster."""
    general, ctx = lower(())
    symbols = {s for p in general.params for d in p.dims for s in d.symbols()}
    facts: list[Fact] = []
    uniform, last = general, ctx
    for _ in range(_ROUNDS):
        new = wanted_facts(last.requests, last.env, symbols)[: MAX_FACTS - len(facts)]
        if not new:
            break
        facts += new
        uniform, last = lower(tuple(facts))
    return Bodies(uniform, general if facts else None, facts)


def wanted_facts(requests: Iterable[DimRequest], env: ShapeEnv, symbols: set[str]) -> list[Fact]:
    """The facts over ``symbols`` that grant ``requests``, none implied or excluded by ``env`` and those before it."""
    scope = env.child()
    out: list[Fact] = []
    for request in requests:
        for kind, a, b in _elementary(request):
            if not (a.symbols() | b.symbols()) <= symbols:
                continue
            a, b = scope.simplify(a), scope.simplify(b)
            if kind == "positive":
                low, high = scope.bounds(a)
                if (low is not None and low >= 1) or (high is not None and high < 1) or not scope.set_range(a, 1, None):
                    continue
            elif scope.is_equal(a, b) is not None or not scope.assume_eq(a, b):
                continue
            out.append(Fact(kind, a, b))
    return out


def _elementary(request: DimRequest) -> list[tuple[str, Dim, Dim]]:
    """A request as equalities between the operands of its ``bcast`` atoms, then itself."""
    if request.kind == "positive":
        return [*_leaf_pairs([request.a]), ("positive", request.a, Dim.of(1))]
    return _leaf_pairs([request.a, request.b])


def _leaf_pairs(dims: Sequence[Dim]) -> list[tuple[str, Dim, Dim]]:
    leaves: list[Dim] = []
    work = list(reversed(dims))
    while work:
        d = work.pop()
        atom = d.atom
        if atom is not None and atom.kind == "bcast":
            work.extend(reversed(atom.args))
        else:
            leaves.append(d)
    return [("equal", leaves[0], other) for other in leaves[1:] if other != leaves[0]]
