"""Functional control flow: While, If and Case become regions; their bodies are lowered in place.

What a loop passes on unchanged is no carried value: the body sees the outer one, so that weights are weights inside. Every other value
has dims that the loop does not change (they are fixed before it starts); a TensorList whose elements' shape the first iteration decides
gets it before the loop. A loop that changes a dim stays in TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from disc_tf.ir.core import Block, Value, walk
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType, TensorType
from disc_tf.lowering.bodies import FunctionBody, body_of, build_region, discard, lower_body, require_outer
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.registry import lowering
from disc_tf.lowering.tensor_lists import TensorList, dense

_MAX_ROUNDS = 8
_LIMITS = "the bodies compile; no value changes its shape"


def _predicate(ctx: LoweringContext, v: Value, what: str) -> Value:
    if v.rank:
        raise Unsupported("RANK", f"{what} is of rank {v.rank}: only scalars are compiled")
    return v if v.dtype.is_bool else ctx.b.compare(v, ctx.scalar(0, v.dtype), "NE")


# ---- While --------------------------------------------------------------------------------------------------------


class _Pending(Exception):
    """The body decides the shape of the elements of list ``k``."""

    def __init__(self, k: int, dims: tuple[Dim, ...]) -> None:
        super().__init__(k, dims)
        self.k = k
        self.dims = dims


@lowering("While", "StatelessWhile", limits=_LIMITS)
def while_loop(ctx: LoweringContext, node: NodeView, *args: Value) -> list[Value]:
    """A loop. Its condition and body see the values that it does not change as outer ones."""
    cond, body = body_of(ctx, node.attr("cond")), body_of(ctx, node.attr("body"))
    if len(body.returns) != len(args) or len(cond.returns) != 1:
        raise Unsupported("INVALID", "condition or body have a wrong number of results")
    carried = [k for k in range(len(args)) if body.passes(k) != k]
    inits = {k: args[k] for k in carried}
    for _ in range(_MAX_ROUNDS):
        try:
            return _loop(ctx, cond, body, args, inits)
        except _Pending as p:
            v = inits[p.k]
            assert isinstance(v, TensorList)
            inits[p.k] = v.with_stack(ctx.b.zeros(v.dtype, (v.length, *p.dims)))
    raise Unsupported("SHAPE", "the shapes of the lists of a loop are not found")


def _loop(
    ctx: LoweringContext, cond: FunctionBody, body: FunctionBody, args: Sequence[Value], inits: dict[int, Value]
) -> list[Value]:
    carried = [k for k, v in inits.items() if not _is_open(v)]
    start = [dense(ctx, v) if isinstance(v, TensorList) else v for v in (inits[k] for k in carried)]
    types = [v.tensor for v in start]
    hints = [v.hint for v in start]

    def inside(params: Sequence[Value]) -> list[Value]:
        """The arguments of the functions in a region."""
        out = list(args)
        for k, v in inits.items():
            out[k] = v
        for k, p in zip(carried, params, strict=True):
            v = inits[k]
            out[k] = v.with_stack(p) if isinstance(v, TensorList) else p
        return out

    def test(params: Sequence[Value]) -> list[Value]:
        (result,) = lower_body(ctx, cond, inside(params))
        return [_predicate(ctx, result, "the condition of a loop")]

    def step(params: Sequence[Value]) -> list[Value]:
        results = lower_body(ctx, body, inside(params))
        out = []
        for k, v in inits.items():
            new = results[k]
            if isinstance(v, TensorList) != isinstance(new, TensorList):
                raise Unsupported("INVALID", f"carried value {k} is a TensorList on one side only")
            if isinstance(new, TensorList) and isinstance(v, TensorList):
                if ctx.env.is_equal(new.length, v.length) is not True:
                    raise Unsupported("SHAPE", f"the loop changes the length of list {k}")
                if _is_open(v) and new.stack is not None:
                    require_outer(ctx, new.stack.dims[1:], f"an element of list {k}")
                    raise _Pending(k, new.stack.dims[1:])
                if _is_open(v):
                    continue  # never set in the loop either
                new = dense(ctx, new)
            if k in carried:
                out.append(_same_type(ctx, new, types[carried.index(k)], k, body))
        return out

    inner = build_region(ctx, types, step, hints)
    try:
        test_block = build_region(ctx, types, test, hints)
    except BaseException:
        discard(inner)
        raise
    results = ctx.b.while_(start, test_block, inner)
    out = inside(results)
    return [out[k] if k in inits else args[k] for k in range(len(args))]


def _is_open(v: Value) -> bool:
    """A list whose elements have no known shape yet."""
    return isinstance(v, TensorList) and v.stack is None and v.element_dims is None


def _same_type(ctx: LoweringContext, v: Value, want: TensorType, k: int, body: FunctionBody) -> Value:
    if v.dtype is not want.dtype or v.rank != len(want.dims):
        raise Unsupported("SHAPE", f"the loop {body.name!r} changes carried value {k} from {want} to {v.type}")
    for a, b in zip(v.dims, want.dims, strict=True):
        if ctx.env.is_equal(a, b) is not True:
            raise Unsupported("SHAPE", f"the loop {body.name!r} may change a dimension of carried value {k} from {b} to {a}")
    return v if v.dims == want.dims else ctx.cast_dims(v, want.dims)


# ---- If and Case ----------------------------------------------------------------------------------------------------


@lowering("If", "StatelessIf", limits=_LIMITS)
def if_(ctx: LoweringContext, node: NodeView, condition: Value, *args: Value) -> list[Value]:
    """One of two bodies; only the one of a condition that is known."""
    branches = [body_of(ctx, node.attr("then_branch")), body_of(ctx, node.attr("else_branch"))]
    pred = _predicate(ctx, condition, "the condition of a branch")
    content = ctx.constant(pred)
    if content is not None:
        return lower_body(ctx, branches[0 if bool(content) else 1], args)
    index = ctx.b.select(pred, ctx.scalar(0, DType.I32), ctx.scalar(1, DType.I32))
    return _branches(ctx, index, branches, args, pred)


@lowering("Case", "StatelessCase", limits=_LIMITS)
def case(ctx: LoweringContext, node: NodeView, index: Value, *args: Value) -> list[Value]:
    """One of several bodies; the last for an index out of range."""
    branches = [body_of(ctx, name) for name in node.attr("branches")]
    if index.rank or index.dtype is not DType.I32 or not branches:
        raise Unsupported("INVALID", "the index of a Case must be an i32 scalar")
    content = ctx.constant(index)
    if content is not None or len(branches) == 1:
        at = int(content) if content is not None and 0 <= int(content) < len(branches) else len(branches) - 1
        return lower_body(ctx, branches[at], args)
    return _branches(ctx, index, branches, args, None)


#: ops of branches that are computed both where their results are selected
_CHEAP = frozenset(
    "add subtract multiply negate abs compare select and or xor not maximum minimum convert constant broadcast_in_dim reshape disc.dim "
    "return".split()
)
_MAX_CHEAP = 12


def _branches(
    ctx: LoweringContext, index: Value, branches: Sequence[FunctionBody], args: Sequence[Value], pred: Value | None
) -> list[Value]:
    made: list[Block] = []
    shapes: list[list[Value]] = []

    def lower(body: FunctionBody) -> Callable[[Sequence[Value]], list[Value]]:
        def run(_params: Sequence[Value]) -> list[Value]:
            results = lower_body(ctx, body, args)
            first = shapes[0] if shapes else results
            out: list[Value] = []
            for k, (v, w) in enumerate(zip(results, first, strict=True)):
                if isinstance(v, TensorList) or isinstance(w, TensorList):
                    raise Unsupported("OP", "branches that give TensorLists are not compiled")
                if v.rank != w.rank or v.dtype is not w.dtype:
                    raise Unsupported("SHAPE", f"the branches give result {k} types {w.type} and {v.type}")
                out.append(_same_branch_type(ctx, v, w.tensor, k))
            require_outer(ctx, [d for v in out for d in v.dims], "a result of a branch")
            if not shapes:
                shapes.append(out)
            return out

        return run

    try:
        for body in branches:
            made.append(build_region(ctx, [], lower(body)))
    except BaseException:
        for block in made:
            discard(block)
        raise
    if pred is not None and all(len(b.ops) <= _MAX_CHEAP and {op.name for op in walk(b)} <= _CHEAP for b in made):
        return _select(ctx, pred, made)
    return list(ctx.b.case(index, made))


def _select(ctx: LoweringContext, pred: Value, blocks: Sequence[Block]) -> list[Value]:
    results: list[list[Value]] = []
    for block in blocks:
        *ops, last = block.ops
        results.append(list(last.operands))
        last.drop()
        for op in ops:
            ctx.b.block.append(op)
        block.ops = []
    return [a if a is b else ctx.b.select(pred, a, b) for a, b in zip(*results, strict=True)]


def _same_branch_type(ctx: LoweringContext, v: Value, want: TensorType, k: int) -> Value:
    for a, b in zip(v.dims, want.dims, strict=True):
        if ctx.env.is_equal(a, b) is not True:
            raise Unsupported("SHAPE", f"the branches may give result {k} different shapes: dimensions {b} and {a}")
    return v if v.dims == want.dims else ctx.cast_dims(v, want.dims)
