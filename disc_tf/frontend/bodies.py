"""Bodies of library functions as the lowering rules of While, If and Case want them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.functions import NOINLINE, Library, flag, has_effect, jit_compiled, must_compile, read_body
from disc_tf.lowering.bodies import FunctionBody
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.node import NodeView


def function_bodies(graph_def: Any) -> Callable[..., FunctionBody]:
    """Function name -> body; read when first asked for. The result raises ``Unsupported`` with the reason for a body that must not be
    lowered in place. ``jitted``: XLA is to compile the function as a whole, and the caller answers for doing so in XLA's place."""
    library = Library(graph_def)
    known: dict[tuple[str, bool], FunctionBody | Unsupported] = {}

    def find(name: str, jitted: bool = False) -> FunctionBody:
        found = known.get((name, jitted))
        if found is None:
            try:
                found = _read(library, name, jitted)
            except Unsupported as e:
                found = e
            known[name, jitted] = found
        if isinstance(found, Unsupported):
            raise Unsupported(found.code, found.message)
        return found

    return find


def _read(library: Library, name: str, jitted: bool) -> FunctionBody:
    f = library.functions.get(name)
    if f is None:
        raise Unsupported("INVALID", f"function {name!r} is not in the library")
    if not (jitted and jit_compiled(f.attr)) and (flag(f.attr, NOINLINE) or must_compile(f.attr)):
        raise Unsupported("ATTR", f"function {name!r} must not be inlined")
    if name in library.with_gradient:
        raise Unsupported("ATTR", f"function {name!r} has or is a registered gradient")
    try:
        body = read_body(f, library.functions)
    except GraphError as e:
        raise Unsupported("OP", str(e)) from None
    calls: dict[str, str] = {}
    nodes: dict[str, NodeView] = {}
    waits: dict[str, list[str]] = {}
    for n, inputs, controls in zip(body.nodes, body.inputs, body.controls, strict=True):
        call = library.called(n)
        if call is not None:
            why = library.why_not(n, frozenset((name,)))
            if why is not None:
                raise Unsupported("OP", f"function {name!r} calls {call[0]!r}: {why}")
            calls[n.name] = call[0]
        refs = [(ref[0] or "", ref[1]) for ref in inputs]
        nodes[n.name] = NodeView(n.name, n.op, refs, n.attr, [c for c in controls if isinstance(c, str)], n.device)
        waits[n.name] = [r for r, _ in refs if r] + [c for c in controls if isinstance(c, str)]
        if any(n.attr[key].WhichOneof("value") == "placeholder" for key in n.attr):
            raise Unsupported("ATTR", f"node {n.name} of function {name!r} has attributes that the call gives")
    returns = tuple((ref[0] or "", ref[1]) for ref in body.returns)
    roots = [r for r, _ in returns if r] + body.control_returns + [n for n, v in nodes.items() if has_effect(v.op, library.functions)]
    live = _needed(roots, waits)
    order = [n for n in _ordered(name, nodes, waits) if n.name in live]
    return FunctionBody(name, len(f.signature.input_arg), tuple(order), returns, calls)


def _needed(roots: list[str], waits: dict[str, list[str]]) -> set[str]:
    """The nodes that run: TensorFlow prunes the others from a body."""
    live, work = set(roots), list(roots)
    while work:
        for source in waits[work.pop()]:
            if source not in live:
                live.add(source)
                work.append(source)
    return live


def _ordered(name: str, nodes: dict[str, NodeView], waits: dict[str, list[str]]) -> list[NodeView]:
    left = {n: len(set(w)) for n, w in waits.items()}
    users: dict[str, list[str]] = {n: [] for n in nodes}
    for n, w in waits.items():
        for source in set(w):
            users[source].append(n)
    ready = [n for n in reversed(nodes) if not left[n]]
    order: list[NodeView] = []
    while ready:
        n = ready.pop()
        order.append(nodes[n])
        for user in users[n]:
            left[user] -= 1
            if not left[user]:
                ready.append(user)
    if len(order) != len(nodes):
        raise Unsupported("OP", f"the body of function {name!r} has a cycle")
    return order
