"""Implicit broadcast: from one module two bodies, *uniform* (all needed equalities between argument dims hold) and *general*."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from disc_tf.ir.core import Function, Module, Op, Value, clone_block, walk
from disc_tf.ir.dims import Atom, Dim, dmin
from disc_tf.ir.shape_env import ShapeEnv
from disc_tf.passes.elementwise_rules import dim_of
from disc_tf.passes.exact_floats import whole_dim
from disc_tf.passes.rewriter import conjuncts, dims_of_op
from disc_tf.passes.shape_simplifier import simplify_shapes

_MAX_EQUALITIES = 32
_MAX_ROUNDS = 8


@dataclasses.dataclass
class SpecializedModule:
    """uniform: the body under ``predicate``; general: the body without assumption, None where nothing was ambiguous (then the predicate
    is empty). predicate: pairs of dims over the symbols of ``general``'s parameters that must be equal, evaluated on entry.
    Both bodies have the same parameters in the same order (their types may name fewer symbols in ``uniform``)."""

    uniform: Module
    general: Module | None
    predicate: list[tuple[Dim, Dim]]

    @property
    def modules(self) -> list[Module]:
        return [self.uniform] if self.general is None else [self.uniform, self.general]


def specialize_broadcast(module: Module, ctx: object = None) -> SpecializedModule:
    """Split ``module`` by the equalities that its broadcasts and checks need, and by the extents that its reshapes need not to be zero.

    ``module`` becomes the general body, or the only one. Facts found in one round (a bound dim that turns out to be an argument's) allow
    more in the next.
    """
    main = module.main
    resolve_bound_dims(main)
    arguments = main.entry_symbols()
    uniform = clone_module(module)
    fn = uniform.main
    predicate: list[tuple[Dim, Dim]] = []
    for _ in range(_MAX_ROUNDS):
        found = [
            *_assume_equalities(fn, arguments, len(predicate)), *_assume_positive(fn, arguments), *_assume_exact(fn, arguments)
        ]
        predicate += found
        simplify_shapes(fn)
        if not resolve_bound_dims(fn) and not found:
            break
        simplify_shapes(fn)
    if not predicate:
        return SpecializedModule(module, None, [])
    # Limits alone are not worth a second body; where there are two anyway, the uniform one is free of these checks as well.
    predicate += _assume_limits(fn, arguments)
    simplify_shapes(fn)
    return SpecializedModule(uniform, module, predicate)


def _assume_equalities(fn: Function, arguments: set[str], taken: int) -> list[tuple[Dim, Dim]]:
    out: list[tuple[Dim, Dim]] = []
    for a, b in list(wanted_equalities(fn)):
        if taken + len(out) >= _MAX_EQUALITIES or not (a.symbols() | b.symbols()) <= arguments:
            continue
        if fn.env.is_equal(a, b) is not None:
            continue  # implied by the others, or excluded by them
        a, b = fn.env.simplify(a), fn.env.simplify(b)
        if fn.env.assume_eq(a, b):
            out.append((a, b))
    return out


def _assume_positive(fn: Function, arguments: set[str]) -> list[tuple[Dim, Dim]]:
    """``min(d, 1) == 1`` says that d is at least 1."""
    out: list[tuple[Dim, Dim]] = []
    one = Dim.of(1)
    for d in fn.wanted_positive:
        d = fn.env.simplify(d)
        low, _ = fn.env.bounds(d)
        if d.symbols() <= arguments and d.atom is not None and (low is None or low < 1) and fn.env.set_range(d, 1, None):
            out.append((dmin(d, one), one))
    return out


def _assume_exact(fn: Function, arguments: set[str]) -> list[tuple[Dim, Dim]]:
    """Dims of arguments from which bound dims are computed in a float type: small enough to be exact there."""
    out: list[tuple[Dim, Dim]] = []
    for op in fn.body.ops:
        found = whole_dim(op.operands[0], fn.env) if op.name == "disc.bind_dim" else None
        if found is None:
            continue
        d, c = fn.env.simplify(found[0]), found[1]
        _, high = fn.env.bounds(d)
        if d.symbols() <= arguments and d.atom is not None and (high is None or high > c) and fn.env.set_range(d, None, c):
            out.append((dmin(d, Dim.of(c)), d))
    return out


def _assume_limits(fn: Function, arguments: set[str]) -> list[tuple[Dim, Dim]]:
    """Checks ``d <= c`` of an argument's dim, as ``min(d, c) == d``: a sequence no longer than its position table."""
    out: list[tuple[Dim, Dim]] = []
    for op in fn.body.ops:
        if op.name != "disc.check":
            continue
        for d, c in _limits(op.operands[0]):
            d = fn.env.simplify(d)
            low, high = fn.env.bounds(d)
            new = (high is None or high > c) and (low is None or low <= c)
            if new and d.atom is not None and d.symbols() <= arguments and fn.env.set_range(d, None, c):
                out.append((dmin(d, Dim.of(c)), d))
    return out


def _limits(pred: Value) -> Iterator[tuple[Dim, int]]:
    """``(d, c)`` for each ``d <= c`` that a scalar predicate is a conjunction of."""
    for op in (v.op for v in conjuncts(pred)):
        if op is not None and op.name == "compare" and op.attrs["direction"] in ("LE", "LT"):
            a, b = (dim_of(v) for v in op.operands)
            if a is not None and b is not None and b.is_static and not a.is_static:
                yield a, int(b) - (op.attrs["direction"] == "LT")


def resolve_bound_dims(fn: Function) -> bool:
    """Drop ``disc.bind_dim`` of a dim that the facts make a plain expression: its symbol becomes that expression."""
    kept: set[str] = set()
    while True:
        trial = fn.env.child()
        names = {op.attrs["symbol"] for op in _assume_bound(fn, trial, kept)}
        if not names:
            return False
        # Products of long expressions may exceed what a dim can be: then their factors stay symbols.
        left = {s for op in walk(fn.body) for d in dims_of_op(op) for s in trial.simplify(d).symbols()} & names
        if not left:
            break
        kept |= left
    resolved = _assume_bound(fn, fn.env, kept)
    gone = set(resolved)
    names = {op.attrs["symbol"] for op in resolved}
    for op in resolved:
        op.set_operands(())
    fn.body.set_ops(op for op in fn.body.ops if op not in gone)
    simplify_shapes(fn)
    left = {s for op in walk(fn.body) for d in dims_of_op(op) for s in d.symbols()} & names
    if left:
        raise AssertionError(f"dims {', '.join(sorted(left))} are used but no longer bound")
    return True


def _assume_bound(fn: Function, env: ShapeEnv, kept: set[str]) -> list[Op]:
    """Tell ``env`` what the bound symbols but ``kept`` equal, where that is a polynomial; the ops that bind them."""
    out: list[Op] = []
    for op in fn.body.ops:
        if op.name != "disc.bind_dim" or op.attrs["symbol"] in kept:
            continue
        dim = dim_of(op.operands[0])
        if dim is None:
            dim = _exact_dim(op.operands[0], env)
        if dim is None:
            continue
        symbol, value = Dim.of(op.attrs["symbol"]), env.simplify(dim)
        if any(a.kind != "sym" for a in value.atoms()) or symbol == value:
            continue
        # That a symbol is no dim below 0 may be known from a check alone: taken over to the value it would prove that very check.
        if env.is_nonneg(value) is not True:
            continue
        if env.assume_eq(symbol, value) and env.simplify(symbol) == env.simplify(value):
            out.append(op)
    return out


def _exact_dim(v: Value, env: ShapeEnv) -> Dim | None:
    """What `whole_dim` finds, where the limit is known to hold."""
    found = whole_dim(v, env)
    if found is None:
        return None
    _, high = env.bounds(env.simplify(found[0]))
    return found[0] if high is not None and high <= found[1] else None


def clone_module(module: Module) -> Module:
    new = Module()
    for fn in module.functions.values():
        new.add(clone_function(fn))
    return new


def clone_function(fn: Function) -> Function:
    """A deep copy; the environment is a child of the original's."""
    copy = Function(fn.name, clone_block(fn.body, {}), [dataclasses.replace(a) for a in fn.args])
    copy.result_names = list(fn.result_names)
    copy.env = fn.env.child()
    copy.wanted_positive = list(fn.wanted_positive)
    copy.absent = fn.absent
    return copy


def wanted_equalities(fn: Function) -> Iterator[tuple[Dim, Dim]]:
    """Equalities that would make broadcasts plain and checks true: first what the checks require (no run gets by without), then what
    ``bcast`` atoms, either side of checks and undecided broadcasts would like."""
    dims: dict[Dim, None] = {}
    checks: list[Op] = []
    broadcasts: list[Op] = []
    for op in walk(fn.body):
        for d in dims_of_op(op):
            if not d.is_static:
                dims[d] = None
        if op.name == "disc.check":
            checks.append(op)
        elif op.name == "broadcast_in_dim":
            broadcasts.append(op)
    for op in checks:
        if not _has_or(op.operands[0]):
            yield from implied_by(op.operands[0])
    for d in dims:
        yield from _bcast_pairs(d)
    for op in checks:
        yield from implied_by(op.operands[0])
    for op in broadcasts:
        x = op.operands[0]
        for d, i in zip(x.dims, op.attrs["broadcast_dimensions"], strict=True):
            if not d.is_static and fn.env.is_equal(d, op.result.dims[i]) is None:
                yield d, op.result.dims[i]


def _has_or(pred: Value) -> bool:
    """Whether a conjunction of comparisons has alternatives."""
    stack = [pred]
    while stack:
        op = stack.pop().op
        if op is not None and op.name == "or":
            return True
        if op is not None and op.name == "and":
            stack.extend(op.operands)
    return False


def _bcast_pairs(d: Dim) -> Iterator[tuple[Dim, Dim]]:
    work: list[Atom] = d.atoms()
    while work:
        atom = work.pop()
        if atom.kind == "sym":
            continue
        a, b = atom.args
        work.extend(a.atoms())
        work.extend(b.atoms())
        if atom.kind == "bcast":
            left = a
            while (inner := left.atom) is not None and inner.kind == "bcast":  # bcast(bcast(a, b), c): compare leaves
                left = inner.args[0]
            yield left, b


def implied_by(pred: Value) -> Iterator[tuple[Dim, Dim]]:
    """Equalities of dims which together make a scalar predicate true. An ``or`` needs one side: one that does not ask for an extent of 1 or
    0, which are exceptions (a broadcast; nothing to read) and no body's purpose."""
    op = pred.op
    for _ in range(64):
        if op is None:
            return
        if op.name == "compare" and op.attrs["direction"] == "EQ" and pred.rank == 0:
            a, b = (dim_of(v) for v in op.operands)
            if a is not None and b is not None and a != b:
                yield a, b
            return
        if op.name == "and":
            yield from implied_by(op.operands[0])
            op = op.operands[1].op
        elif op.name == "or":
            left, right = (list(implied_by(v)) for v in op.operands)
            better = [side for side in (left, right) if side and not any(1 in pair or 0 in pair for pair in side)]
            if better:
                yield from better[0]
            return
        else:
            return


__all__ = ["SpecializedModule", "clone_function", "clone_module", "implied_by", "specialize_broadcast", "wanted_equalities"]
