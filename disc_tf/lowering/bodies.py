"""Function bodies that a node refers to, and regions: lowering a body into a block of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

from disc_tf.ir.core import Block, Value, walk
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import Type
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Status, Unsupported
from disc_tf.lowering.lower import lower_node
from disc_tf.lowering.node import NodeView

#: nesting of calls, loops and branches, all together
MAX_DEPTH = 32
_MAX_MESSAGE = 2000


@dataclasses.dataclass(frozen=True)
class FunctionBody:
    """A function of the graph's library. ``nodes``: in topological order, arguments left out; an input ``(name, port)`` is a node's
    output, ``("", k)`` argument k. ``calls``: names of nodes that are calls -> the function they call. ``ports``: number of outputs of the
    nodes that are read."""

    name: str
    arguments: int
    nodes: tuple[NodeView, ...]
    returns: tuple[tuple[str, int], ...]
    calls: dict[str, str] = dataclasses.field(default_factory=dict)

    @cached_property
    def _by_name(self) -> dict[str, NodeView]:
        return {n.name: n for n in self.nodes}

    def passes(self, result: int) -> int | None:
        """The argument that a result is, seen through Identity nodes."""
        name, port = self.returns[result]
        while name:
            node = self._by_name[name]
            if node.op != "Identity":
                return None
            name, port = node.inputs[0]
        return port


def body_of(ctx: LoweringContext, name: str, *, jitted: bool = False) -> FunctionBody:
    """The body of a library function. ``Unsupported`` with the reason if it cannot be lowered in place.

    jitted: a function that XLA compiles as a whole is taken as well.
    """
    if ctx.functions is None:
        raise Unsupported("OP", f"the library with function {name!r} is not at hand")
    return ctx.functions(name, jitted=True) if jitted else ctx.functions(name)


def lower_body(ctx: LoweringContext, body: FunctionBody, args: Sequence[Value]) -> list[Value]:
    """Lower a function's nodes at the present place; its results. Messages of ``Unsupported`` name function and node."""
    if len(args) != body.arguments:
        raise Unsupported("INVALID", f"function {body.name!r} takes {body.arguments} arguments, not {len(args)}")
    with ctx.nested() as depth:
        if depth > MAX_DEPTH:
            raise Unsupported("TOO_COMPLEX", f"calls, loops and branches are nested more than {MAX_DEPTH} deep")
        return _lower_nodes(ctx, body, args)


def _lower_nodes(ctx: LoweringContext, body: FunctionBody, args: Sequence[Value]) -> list[Value]:
    env: dict[tuple[str, int], Value] = {("", k): v for k, v in enumerate(args)}
    texts: dict[tuple[str, int], str] = {}
    unread: dict[tuple[str, int], Unsupported] = {}
    for node in body.nodes:
        operands = [env.get(ref) for ref in node.inputs]
        if node.op != "Assert":
            _require(unread, node.inputs)
        if node.name in body.calls:
            if any(v is None for v in operands):
                raise Unsupported("RANK", f"an operand of call {node.name} in function {body.name!r} has no type")
            inner = body_of(ctx, body.calls[node.name])
            results = lower_body(ctx, inner, [v for v in operands if v is not None])
        elif node.op == "Assert" and operands[0] is not None and operands[0].rank == 0:
            # at the node that calls the body: its name is one that the user knows
            said = " ".join(f"[{texts.get(ref, f'{ref[0]}:{ref[1]}')}]" for ref in node.inputs[1:])
            ctx.check(operands[0], Status.INVALID_ARGUMENT, f"assertion failed: {said}"[:_MAX_MESSAGE])
            results = []
        else:
            try:
                results = lower_node(ctx, node, operands)
            except Unsupported as e:
                why = Unsupported(e.code, f"function {body.name!r}, node {node.name} ({node.op}): {e.message}")
                if node.op == "Const" and e.code in ("DTYPE", "NOT_CONSTANT"):  # a string, or a secret, that an Assert would print
                    unread[node.name, 0] = why
                    if value := getattr(node.attr("value"), "string_val", ()):
                        texts[node.name, 0] = " ".join(x.decode("utf-8", "replace") for x in value[:3])
                    continue
                raise why from None
        env.update(((node.name, port), v) for port, v in enumerate(results))
    _require(unread, body.returns)
    for ref in body.returns:
        if ref not in env:
            raise Unsupported("RANK", f"result {ref[0]} of function {body.name!r} has no type")
    return [env[ref] for ref in body.returns]


def _require(unread: Mapping[tuple[str, int], Unsupported], refs: Iterable[tuple[str, int]]) -> None:
    for ref in refs:
        if ref in unread:
            raise Unsupported(unread[ref].code, unread[ref].message)


@contextmanager
def region(ctx: LoweringContext, types: Sequence[Type], hints: Sequence[str] = ()) -> Iterator[Block]:
    """A new block that ``ctx`` appends to inside; checks have a chain of their own there. If the inside fails, nothing of it stays."""
    block = Block(types, hints)
    try:
        with ctx.inside(block):
            yield block
    except BaseException:
        discard(block)
        raise


def discard(block: Block) -> None:
    """Drop a block that is in no op."""
    for op in reversed(block.ops):
        op.drop()
    block.ops = []


def build_region(
    ctx: LoweringContext, types: Sequence[Type], body: Callable[[Sequence[Value]], Sequence[Value]], hints: Sequence[str] = ()
) -> Block:
    """A block over parameters of ``types`` that returns what ``body`` gives for them."""
    with region(ctx, types, hints) as block:
        ctx.b.return_(body(block.params))
    return block


def require_outer(ctx: LoweringContext, dims: Iterable[Dim], what: str) -> None:
    """Inside of a region: ``Unsupported(SHAPE)`` if one of ``dims`` is bound in it."""
    bound = {op.attrs["symbol"] for op in walk(ctx.b.block) if op.name == "disc.bind_dim"}
    for d in dims:
        if not bound.isdisjoint(d.symbols()):
            raise Unsupported("SHAPE", f"{what} has a dimension that is only known inside of the loop or branch")
