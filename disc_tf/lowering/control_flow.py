"""If and Case become regions; their bodies are lowered in place. While: `while_loops`."""

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

_LIMITS = "the bodies compile; all branches give the same shapes"


def predicate(ctx: LoweringContext, v: Value, what: str) -> Value:
    if v.rank:
        raise Unsupported("RANK", f"{what} is of rank {v.rank}: only scalars are compiled")
    return v if v.dtype.is_bool else ctx.b.compare(v, ctx.scalar(0, v.dtype), "NE")


# ---- If and Case ----------------------------------------------------------------------------------------------------


@lowering("If", "StatelessIf", limits=_LIMITS)
def if_(ctx: LoweringContext, node: NodeView, condition: Value, *args: Value) -> list[Value]:
    """One of two bodies; only the one of a condition that is known."""
    branches = [body_of(ctx, node.attr("then_branch")), body_of(ctx, node.attr("else_branch"))]
    pred = predicate(ctx, condition, "the condition of a branch")
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
    lists = _Lists(ctx)

    def lower(body: FunctionBody) -> Callable[[Sequence[Value]], list[Value]]:
        def run(_params: Sequence[Value]) -> list[Value]:
            results = lists.tensors(lower_body(ctx, body, args))
            if lists.unknown:
                return []
            first = lists.shapes or results
            out: list[Value] = []
            for k, (v, w) in enumerate(zip(results, first, strict=True)):
                if v.rank != w.rank or v.dtype is not w.dtype:
                    raise Unsupported("SHAPE", f"the branches give result {k} types {w.type} and {v.type}")
                out.append(_same_branch_type(ctx, v, w.tensor, k))
            require_outer(ctx, [d for v in out for d in v.dims], "a result of a branch")
            lists.shapes = lists.shapes or out
            return out

        return run

    mark = ctx.mark()
    while True:
        try:
            for body in branches:
                made.append(build_region(ctx, [], lower(body)))
        except BaseException:
            for block in made:
                discard(block)
            raise
        if not lists.ask_again():
            break
        for block in made:
            discard(block)
        made.clear()
        ctx.rewind(mark)
    if pred is not None and all(len(b.ops) <= _MAX_CHEAP and {op.name for op in walk(b)} <= _CHEAP for b in made):
        return lists.put_together(_select(ctx, pred, made))
    return lists.put_together(list(ctx.b.case(index, made)))


class _Lists:
    """Branches that give TensorLists give their stacks, and behind all results for each list whether an element is set.

    Where some branch alone knows the shape of the elements the branches are lowered once more, with that shape.
    """

    def __init__(self, ctx: LoweringContext) -> None:
        self.ctx = ctx
        #: the results of the first branch
        self.shapes: list[Value] = []
        self.branches: list[dict[int, TensorList]] = []
        #: list -> dims of its elements where a branch does not know them; None: no branch knows them
        self.elements: dict[int, tuple[Dim, ...] | None] = {}
        self.unknown: set[int] = set()

    def tensors(self, results: Sequence[Value]) -> list[Value]:
        lists = {k: v for k, v in enumerate(results) if isinstance(v, TensorList)}
        self.branches.append(lists)
        if lists.keys() != self.branches[0].keys():
            raise Unsupported("INVALID", "a result is a TensorList in some branches only")
        for k, v in lists.items():
            if v.element_dims is None and k not in self.elements:
                self.unknown.add(k)
            elif v.element_dims is not None:
                require_outer(self.ctx, v.element_dims, f"an element of list {k}")
        if self.unknown:
            return []  # this round is in vain: it only tells
        out: list[Value] = []
        for k, v in enumerate(results):
            if not isinstance(v, TensorList):
                out.append(v)
            elif v.element_dims is not None:
                out.append(dense(self.ctx, v))
            elif (dims := self.elements[k]) is not None:
                out.append(self.ctx.b.zeros(v.dtype, (v.length, *dims)))
            elif self.ctx.env.is_equal(v.length, self.branches[0][k].length) is not True:
                raise Unsupported("SHAPE", "the branches give lists of different lengths")
        for k, v in lists.items():
            if k not in self.elements or self.elements[k] is not None:
                out.append(v.any_set if isinstance(v.any_set, Value) else self.ctx.scalar(v.any_set, DType.BOOL))
        return out

    def ask_again(self) -> bool:
        """Whether the branches must be lowered once more, with what this round has told."""
        if not self.unknown:
            return False
        for k in self.unknown:
            self.elements[k] = next((v.element_dims for b in self.branches if (v := b[k]).element_dims is not None), None)
        self.unknown, self.branches, self.shapes = set(), [], []
        return True

    def put_together(self, tensors: list[Value]) -> list[Value]:
        """The results, of the tensors that the op gives."""
        numbers = self.branches[0]
        flags = [k for k in numbers if k not in self.elements or self.elements[k] is not None]
        any_set = dict(zip(flags, tensors[len(tensors) - len(flags) :], strict=True))
        rest = iter(tensors[: len(tensors) - len(flags)])
        out: list[Value] = []
        for k in range(len(tensors) - len(flags) + len(numbers) - len(flags)):
            if k not in numbers:
                out.append(next(rest))
                continue
            of = [b[k] for b in self.branches]
            if k not in any_set:
                out.append(of[0])  # an outer list, or one that nothing is known of but its length
                continue
            stack = next(rest)
            out.append(
                TensorList(
                    of[0].dtype,
                    stack.dims[0],
                    of[0].declared if all(v.declared == of[0].declared for v in of) else None,
                    stack,
                    stack,
                    filled=all(v.filled for v in of),
                    any_set=True if all(v.any_set is True for v in of) else any_set[k],
                    limit=of[0].limit,
                )
            )
        return out


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
