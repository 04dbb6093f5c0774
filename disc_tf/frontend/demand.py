"""Which constants a compiler elsewhere needs the content of: by what reads them, never by how small they are.

An integer or bool constant of at most `MAX_BYTES` is needed if it reaches, through arithmetic on integers alone, an operand that a lowering
rule reads at compile time (`lowering.compile_time`); a scalar of another type only if it is such an operand itself (the exponent of a
power only if it is 2). Arguments and results of loops, branches and calls are followed into the functions' bodies.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.functions import read_body
from disc_tf.frontend.graph import Graph, constant_of
from disc_tf.frontend.opdefs import op_info
from disc_tf.frontend.patterns import known_pattern
from disc_tf.frontend.reads import LOOPS, called_by, first_argument
from disc_tf.frontend.tensor_proto import Constant
from disc_tf.ir.types import DType
from disc_tf.lowering import all_rules
from disc_tf.lowering.compile_time import ARITHMETIC, VALUES, compile_time_operands

#: of a constant that travels
MAX_BYTES = 4096
#: nested deeper than this, calls are not followed
_DEPTH = 32

#: (function name or "", node name)
Place = tuple[str, str]
#: a tensor inside a scope: (node, port), or (None, argument)
Ref = tuple[str | None, int]


@dataclasses.dataclass
class _Scope:
    """The nodes of the main graph or of a function's body, and what each one reads."""

    nodes: dict[str, Any]
    inputs: dict[str, list[Ref]]
    returns: list[Ref]

    @functools.cached_property
    def first(self) -> list[tuple[list[Ref], str | None]]:
        """Where a walk begins, by node: what rules read at compile time, and the node if it has functions. Kept: a scope is walked for
        each set of its results that somebody needs."""
        found: list[tuple[list[Ref], str | None]] = []
        for name, node in self.nodes.items():
            refs = self.inputs[name]
            read = [refs[at] for at in compile_time_operands(node.op, len(refs))]
            if node.op in VALUES and _is_one_of(node.op, refs[VALUES[node.op][0]], self):
                read.append(refs[VALUES[node.op][0]])
            calls = name if called_by(node) else None
            if read or calls is not None:
                found.append((read, calls))
        return found


def needed_constants(graph: Graph) -> set[Place]:
    """The Const nodes whose content travels, of the main graph and of function bodies. Bodies that cannot be read need none."""
    all_rules()
    return _Demand(graph).run()


def may_travel(constant: Constant) -> bool:
    """Whether a constant that is needed is of a kind that may travel."""
    dtype = constant.dtype
    if dtype is None:
        return False
    if dtype.is_int or dtype.is_bool:
        return constant.nbytes <= MAX_BYTES
    return all(d == 1 for d in constant.shape)


def travels(constant: Constant, needed: bool) -> bool:
    """Whether a compiler elsewhere knows the content of a constant (``needed``: as such; else as a pattern, or because there is none)."""
    if not constant.present or constant.dtype is None:
        return False
    return 0 in constant.shape or (needed and may_travel(constant)) or bool(known_pattern(constant))


class _Demand:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.functions = {f.signature.name: f for f in graph.graph_def.library.function}
        self.found: set[Place] = set()
        self.scopes: dict[str, _Scope | None] = {}
        #: (function, results that are needed) -> arguments that are
        self.known: dict[tuple[str, frozenset[int]], frozenset[int]] = {}

    def run(self) -> set[Place]:
        nodes = {name: node.proto for name, node in self.graph.nodes.items()}
        inputs: dict[str, list[Ref]] = {name: list(node.inputs) for name, node in self.graph.nodes.items()}
        self._walk("", _Scope(nodes, inputs, []), (), 0)
        return self.found

    def _scope(self, name: str) -> _Scope | None:
        if name not in self.scopes:
            found = None
            if name in self.functions:
                try:
                    body = read_body(self.functions[name], self.functions)
                    names = [n.name for n in body.nodes]
                    found = _Scope(dict(zip(names, body.nodes, strict=True)), dict(zip(names, body.inputs, strict=True)), body.returns)
                except GraphError:
                    found = None
            self.scopes[name] = found
        return self.scopes[name]

    def _arguments(self, name: str, results: Iterable[int], depth: int) -> frozenset[int]:
        """The arguments of a function whose content is needed, if that of ``results`` is."""
        key = name, frozenset(results)
        if key not in self.known:
            self.known[key] = frozenset()  # what a recursive call finds
            scope = self._scope(name)
            if scope is not None and depth <= _DEPTH:
                wanted = [scope.returns[k] for k in sorted(key[1]) if k < len(scope.returns)]
                self.known[key] = frozenset(self._walk(name, scope, wanted, depth))
        return self.known[key]

    def _walk(self, where: str, scope: _Scope, wanted: Iterable[Ref], depth: int) -> set[int]:
        """Mark the constants of a scope that are needed; the arguments that are."""
        arguments: set[int] = set()
        results: dict[str, set[int]] = {}  # of calls: what is needed of them
        work: list[Ref] = list(wanted)
        for refs, name in scope.first:
            work += refs
            if name is not None:
                results[name] = set()
                work += self._through(scope.nodes[name], scope.inputs[name], set(), depth)
        seen: set[Ref] = set()
        while work:
            ref = work.pop()
            if ref in seen:
                continue
            seen.add(ref)
            name, port = ref
            if name is None:
                arguments.add(port)
                continue
            node = scope.nodes.get(name)
            if node is None:
                continue
            if node.op == "Const":
                self.found.add((where, name))
            elif name in results:
                results[name].add(port)
                work += self._through(node, scope.inputs[name], results[name], depth)
            elif node.op in ARITHMETIC:
                work += _integers(node, scope.inputs[name])
        return arguments

    def _through(self, node: Any, refs: list[Ref], results: set[int], depth: int) -> list[Ref]:
        """What a node with functions reads that is needed, if ``results`` of it are."""
        if node.op in LOOPS:
            cond, body = called_by(node)
            needed = results | self._arguments(cond, (), depth + 1)
            while True:
                more = needed | self._arguments(body, needed, depth + 1)
                if more == needed:
                    break
                needed = more
            return [refs[k] for k in sorted(needed) if k < len(refs)]
        first = first_argument(node)
        wanted = {k for f in called_by(node) for k in self._arguments(f, results, depth + 1)}
        return [refs[k + first] for k in sorted(wanted) if k + first < len(refs)]


def _is_one_of(op: str, ref: Ref, scope: _Scope) -> bool:
    """Whether an operand is a constant with one of the values that the rule makes use of."""
    source = scope.nodes.get(ref[0]) if ref[0] is not None else None
    if source is None or source.op != "Const":
        return False
    constant = constant_of(source)
    number = constant.present and constant.dtype is not None and all(d == 1 for d in constant.shape)
    return number and float(constant.array().reshape(-1)[0]) in VALUES[op][1]


def _integers(node: Any, refs: list[Ref]) -> list[Ref]:
    """The operands of integer or bool type."""
    info = op_info(node.op)
    if info is None:
        return []
    try:
        types = [DType.from_tf(t) for t in info.input_types(node.attr)]
    except GraphError:
        return []
    return [ref for ref, t in zip(refs, types, strict=False) if t is not None and (t.is_int or t.is_bool)]

