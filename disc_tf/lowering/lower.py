"""Walk nodes in topological order and apply the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from disc_tf.ir.core import Value
from disc_tf.ir.dims import DimTooComplex
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.fold import try_fold
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.registry import RuleFn, rule_for

#: a tensor of the graph: (node name, output port)
TensorRef = tuple[str, int]
#: called for a node that has no lowering; gives stand-in results (or raises)
OnUnsupported = Callable[[NodeView, "list[Value | None]", Unsupported], Sequence["Value | None"]]


def lower_node(ctx: LoweringContext, node: NodeView, args: Sequence[Value | None]) -> list[Value]:
    """Lower one node; returns its results. ``Unsupported`` names the node, and nothing of a failed try stays in the block.

    An operand may be None (it has no compiled value) only where the rule says that it does not need it.
    """
    mark = ctx.mark()
    try:
        with ctx.at(node.name):
            rule = rule_for(node.op)
            _require_operands(node, args, rule.optional_from)
            of_lists = _list_rule(node, args)
            if of_lists is not None:
                out = of_lists(ctx, node, *args)
            else:
                rule.check(ctx, node, args)
                folded = try_fold(ctx, node, [a for a in args if a is not None])
                out = rule.fn(ctx, node, *args) if folded is None else folded
    except Exception as e:
        ctx.rewind(mark)
        raise _as_unsupported(e, node) from e
    return [out] if isinstance(out, Value) else list(out)


def _require_operands(node: NodeView, args: Sequence[Value | None], optional_from: int | None) -> None:
    needed = len(args) if optional_from is None else optional_from
    for i, a in enumerate(args[:needed]):
        if a is None:
            name, port = node.inputs[i] if i < len(node.inputs) else ("?", i)
            raise Unsupported("RANK", f"input {name}:{port} has no compiled value")


def _list_rule(node: NodeView, args: Sequence[Value | None]) -> RuleFn | None:
    """The rule for list handles of an op that has another for tensors. A handle may only go where rules know it."""
    from disc_tf.lowering.tensor_lists import LIST_OPS, LIST_RULES, TensorList

    if not any(isinstance(a, TensorList) for a in args) or node.op in LIST_OPS:
        return None
    if node.op not in LIST_RULES:
        raise Unsupported("DTYPE", f"{node.op} of a TensorList is not compiled")
    return LIST_RULES[node.op]


def _as_unsupported(e: Exception, node: NodeView) -> Unsupported:
    if isinstance(e, Unsupported):
        return Unsupported(e.code, e.message, e.node or node.name, e.op or node.op)
    if isinstance(e, DimTooComplex):
        return Unsupported("TOO_COMPLEX", str(e), node.name, node.op)
    return Unsupported("INTERNAL", f"{type(e).__name__}: {e}", node.name, node.op)


def lower_nodes(
    ctx: LoweringContext,
    nodes: Iterable[NodeView],
    feeds: Mapping[TensorRef, Value],
    on_unsupported: OnUnsupported | None = None,
) -> dict[TensorRef, Value]:
    """Lower ``nodes`` (topological order) on top of ``feeds``; returns every tensor that has a value, feeds included.

    A node whose outputs are all fed is skipped. Without ``on_unsupported`` the first ``Unsupported`` is raised; with it, it decides,
    also for nodes one of whose inputs has no value (result None).
    """
    env: dict[TensorRef, Value] = dict(feeds)
    fed = {name for name, _ in feeds}
    for node in nodes:
        if node.name in fed:
            continue
        args = [env.get(ref) for ref in node.inputs]
        try:
            results: Sequence[Value | None] = lower_node(ctx, node, args)
        except Unsupported as e:
            if on_unsupported is None:
                raise
            results = on_unsupported(node, args, e)
        for port, value in enumerate(results):
            if value is not None:
                env[(node.name, port)] = value
    return env
