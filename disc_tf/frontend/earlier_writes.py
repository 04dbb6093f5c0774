"""Which changes of a variable a node waits for.

A loop, a branch or a lookup reads a variable when it runs, and it runs when all its inputs are there. A read that is put before it, in its
place, has the handle alone for an input: it must wait for the changes that one of the node's other inputs waited for.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from disc_tf.frontend.functions import called_functions
from disc_tf.frontend.graph import parse_tensor
from disc_tf.frontend.handles import source_of
from disc_tf.frontend.opdefs import op_info
from disc_tf.frontend.state import writes_variables


class EarlierWrites:
    """Of the main graph of ``graph_def``, which must not be changed meanwhile."""

    def __init__(self, graph_def: Any) -> None:
        self.nodes = {n.name: n for n in graph_def.node}
        self.functions = {f.signature.name: f for f in graph_def.library.function}
        self._behind: dict[str, set[str]] = {}

    def before(self, node: str, handle: str) -> list[str]:
        """Control inputs for a read of ``handle``: the nodes that change its variable and that ``node`` waits for, by any path."""
        writers = self._writers.get(self._source(handle), [])
        return [f"^{name}" for name in writers if name != node and node in self._after(name)]

    def _after(self, writer: str) -> set[str]:
        """The nodes that wait for a node. Looked for from here: what initialises a variable, or trains it, has few behind it."""
        if writer not in self._behind:
            behind: set[str] = set()
            work = [writer]
            while work:
                for name in self._readers.get(work.pop(), ()):
                    if name not in behind:
                        behind.add(name)
                        work.append(name)
            self._behind[writer] = behind
        return self._behind[writer]

    @functools.cached_property
    def _readers(self) -> Mapping[str, list[str]]:
        """Node -> the nodes that have an edge from it."""
        readers: dict[str, list[str]] = {}
        for node in self.nodes.values():
            for text in node.input:
                readers.setdefault(_node_of(text), []).append(node.name)
        return readers

    @functools.cached_property
    def _writers(self) -> Mapping[str, list[str]]:
        """Node that a handle comes from -> the nodes that change the variable."""
        found: dict[str, list[str]] = {}
        for node in self.nodes.values():
            if self._writes(node):
                for source in dict.fromkeys(self._source(t) for t in node.input if not t.startswith("^")):
                    found.setdefault(source, []).append(node.name)
        return found

    def _writes(self, node: Any) -> bool:
        if writes_variables(node.op) or (node.op not in self.functions and op_info(node.op) is None):
            return True
        called = called_functions([node], self.functions)
        return any(writes_variables(n.op) for name in called for n in self.functions[name].node_def)

    def _source(self, text: str) -> str:
        return source_of(*parse_tensor(text), self.nodes.get, self._inputs)

    def _inputs(self, node: str) -> list[tuple[str, int]]:
        return [parse_tensor(t) for t in self.nodes[node].input if not t.startswith("^")]


def _node_of(text: str) -> str:
    return text[1:] if text.startswith("^") else parse_tensor(text)[0]
