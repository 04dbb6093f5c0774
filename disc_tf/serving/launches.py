"""Whether a signature's computation is one compiled artefact, and how to run that outside of TensorFlow.

    found = find_launch(meta, "serving_default")       # raises `NotOne` with the reason

Then outputs can be had as they come to exist: TensorFlow gives all results of a run at once, the artefact's own runner one by one. What
lies before the artefact (variables, lookups of strings) stays TensorFlow's: `Launch.before` is put into the session's graph. What lies
behind it must only pass results on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from disc_tf.frontend.functions import mentioned_functions
from disc_tf.frontend.graph import Graph, Node, TensorRef, parse_tensor
from disc_tf.frontend.load import expand
from disc_tf.frontend.rewrite import LAUNCH_OP

_PASS_ON = frozenset({"Identity", "IdentityN"})


class NotOne(Exception):
    """A signature is not one compiled artefact. The message says why."""


@dataclasses.dataclass(frozen=True)
class Launch:
    """How a signature runs.

    ``executable``: the artefact's bytes. ``inputs``: of the launch, in order: the name of a signature input, a constant, or a tensor
    (`TensorRef`) that TensorFlow computes. ``results``: output of the signature -> number of the launch's output; ``others``: outputs that
    do not come from it -> the same as for inputs. ``targets``: nodes that have to run besides. ``before``: a GraphDef of the nodes that
    tensors and targets need and that the main graph lacks; ``present``: those which it has.
    """

    executable: bytes
    inputs: tuple[str | np.ndarray | TensorRef, ...]
    results: Mapping[str, int]
    others: Mapping[str, str | np.ndarray | TensorRef]
    targets: tuple[str, ...]
    before: Any
    present: frozenset[str]


def find_launch(meta: Any, signature: str) -> Launch:
    """The launch of a signature of a MetaGraph. `NotOne`; ``GraphError`` for a graph that cannot be read."""
    return _Search(meta, signature).launch()


class _Search:
    def __init__(self, meta: Any, signature: str) -> None:
        definition = meta.signature_def[signature]
        self.given = {n.name: n for n in meta.graph_def.node}
        self.feeds = {parse_tensor(info.name): alias for alias, info in definition.inputs.items()}
        self.outputs = {alias: parse_tensor(info.name) for alias, info in definition.outputs.items()}
        roots = list(dict.fromkeys(name for name, _ in self.outputs.values()))
        self.graph: Graph = expand(Graph(meta.graph_def), roots, None)[0]
        cone = self._ancestors([*self.outputs.values()], [])
        self.cone = [n for n in self.graph.order if n.name in cone]
        self.targets: set[str] = set()

    def launch(self) -> Launch:
        launches = [n for n in self.cone if n.op == LAUNCH_OP]
        if len(launches) != 1:
            raise NotOne(f"{len(launches)} parts of it are compiled, with TensorFlow between them" if launches else "it is not compiled")
        self.node = launches[0]
        self.behind = behind = self._behind()
        for name in behind:
            node = self.graph[name]
            if node.op not in (*_PASS_ON, "NoOp"):
                raise NotOne(f"{name} ({node.op}) runs in TensorFlow, after the compiled part")
        results: dict[str, int] = {}
        others: dict[str, str | np.ndarray | TensorRef] = {}
        for alias, ref in self.outputs.items():
            source = self._source(ref)
            if source[0] == self.node.name:
                results[alias] = source[1]
            else:
                others[alias] = self._value(source)
        inputs = tuple(self._value(self._source(ref)) for ref in self.node.inputs)
        for name in (*behind, self.node.name):
            self._also_run(self.graph[name])
        wanted = [v for v in (*inputs, *others.values()) if isinstance(v, tuple)]
        before, present = self._before(wanted)
        return Launch(self.node.attr["executable"].s, inputs, results, others, tuple(sorted(self.targets)), before, present)

    def _ancestors(self, refs: Iterable[TensorRef], names: Iterable[str]) -> set[str]:
        """The nodes that tensors and nodes need; what is fed needs nothing."""
        found: set[str] = set()
        work = [*(name for name, port in refs if (name, port) not in self.feeds), *names]
        while work:
            name = work.pop()
            if name not in found:
                found.add(name)
                node = self.graph[name]
                work += [source for source, port in node.inputs if (source, port) not in self.feeds]
                work += node.controls
        return found

    def _behind(self) -> dict[str, None]:
        """The nodes of the cone that need the launch, in order."""
        found: dict[str, None] = {}
        reached = {self.node.name}
        for node in self.cone:
            sources = [name for name, port in node.inputs if (name, port) not in self.feeds]
            if node is not self.node and not reached.isdisjoint([*sources, *node.controls]):
                reached.add(node.name)
                found[node.name] = None
        return found

    def _source(self, ref: TensorRef) -> TensorRef:
        """Where a tensor comes from: through the nodes that pass it on, whose other duties become targets."""
        while ref not in self.feeds:
            node = self.graph[ref[0]]
            if node.op not in _PASS_ON:
                break
            self._also_run(node)
            ref = node.inputs[ref[1]]
        return ref

    def _also_run(self, node: Node) -> None:
        """What a node waits for becomes a target, where it is not the launch and what follows it."""
        self.targets |= {c for c in node.controls if c not in self.behind and c != self.node.name}

    def _value(self, ref: TensorRef) -> str | np.ndarray | TensorRef:
        if ref in self.feeds:
            return self.feeds[ref]
        constant = self.graph.constant(ref[0])
        if constant is not None and constant.present and constant.dtype is not None and not self.graph[ref[0]].controls:
            return np.ascontiguousarray(constant.array()).reshape(constant.shape)
        return ref

    def _before(self, wanted: list[TensorRef]) -> tuple[Any, frozenset[str]]:
        needed = self._ancestors(wanted, self.targets)
        if self.node.name in needed:
            raise NotOne("what has to run before the compiled part needs its results")
        before = type(self.graph.graph_def)()
        before.versions.CopyFrom(self.graph.graph_def.versions)
        present: set[str] = set()
        # ancestors of what the session's graph has are there too
        work, seen = [*(name for name, _ in wanted), *self.targets], set()
        while work:
            name = work.pop()
            if name in seen or name not in needed:
                continue
            seen.add(name)
            node = self.graph[name]
            if self._is_given(node):
                present.add(name)
                continue
            if not self.graph.signatures.keys().isdisjoint(mentioned_functions(node.proto)):
                raise NotOne(f"{name} ({node.op}) calls functions before the compiled part")
            before.node.add().CopyFrom(node.proto)
            work += [source for source, _ in node.inputs]
            work += node.controls
        for source in (n.split(":")[0].removeprefix("^") for node in before.node for n in node.input):
            if source not in seen:  # what is fed
                present.add(source)
        return before, frozenset(present)

    def _is_given(self, node: Node) -> bool:
        """Whether the main graph has the node as it is. One without outputs cannot be referred to when the others are put in."""
        given = self.given.get(node.name)
        return given is not None and given.op == node.op and list(given.input) == list(node.proto.input) and bool(node.output_types)
