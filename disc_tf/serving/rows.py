"""Whether the rows of a signature are independent: then requests may share a batch, and no answer changes.

    verdict = rows_independent("models/m/1", "serving_default")
    if not verdict: print(verdict.reason)

A proof on the graph, not a guess from shapes. Every input has the unknown batch size B as its first extent. Every tensor is shown to be
*free* (it hangs neither on the data nor on B), a *shape* (integers computed from extents, B among them), or *rows*: of extent `B * m`
along dim 0, with `m` and all other extents free of B, where block i of m rows hangs on row i of the inputs only. Every output must be
rows with m = 1. An op without a rule, a random number, a side effect: refused, with the reason. Optimised models are judged by the
functions that their clusters were made from.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from disc_tf.serving.row_rules import FREE, ROWS, RULES, SHAPE, Refused
from disc_tf.serving.servable import DEFAULT_SIGNATURE
from disc_tf.serving.tensors import DT_STRING

log = logging.getLogger("disc_tf.serving")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """True if rows are independent; ``reason`` says why not."""

    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason


def rows_independent(directory: str | Path, signature: str = DEFAULT_SIGNATURE) -> Verdict:
    """The verdict on a signature of a SavedModel. Never raises: a model that cannot be read or understood is refused."""
    from disc_tf.frontend.errors import GraphError
    from disc_tf.frontend.saved_model import choose_meta_graph, read_saved_model

    try:
        Proof(choose_meta_graph(read_saved_model(directory), TAGS), signature).run()
    except Refused as e:
        return Verdict(str(e))
    except Exception as e:  # whatever the graph does to the analysis: the server answers without batches
        if not isinstance(e, (OSError, GraphError)):
            log.exception("%s signature %s: whether its rows are independent cannot be analysed", directory, signature)
        return Verdict(f"the graph cannot be analysed: {e if str(e) else type(e).__name__}")
    return Verdict()


#: the graph that the server's session loads (`Servable`)
TAGS = ("serve",)
_INT64 = 9


class Proof:
    """State of the walk. Rules get this and the node, and return the state of the outputs (one for all)."""

    def __init__(self, meta: Any, signature: str) -> None:
        from disc_tf.frontend.graph import parse_tensor
        from disc_tf.saved_model_rewrite import originals_again

        if signature not in meta.signature_def:
            raise Refused(f"there is no signature {signature}")
        self.definition = meta.signature_def[signature]
        self.outputs = [parse_tensor(info.name) for info in self.definition.outputs.values()]
        self.inputs = [parse_tensor(info.name) for info in self.definition.inputs.values()]
        originals_again(meta)
        self.graph_def = meta.graph_def
        self.state: dict[tuple[str, int], str] = {}
        #: symbols that hang neither on the data nor on B
        self.known: set[str] = set()

    def run(self) -> None:
        from disc_tf.frontend.analysis import analyse
        from disc_tf.frontend.graph import Graph
        from disc_tf.frontend.load import expand
        from disc_tf.frontend.resource_gather import read_first

        self._check_inputs()
        roots = [name for name, _ in self.outputs]
        graph, _, _ = expand(Graph(self.graph_def), roots, ())
        graph_def = read_first(graph.graph_def)
        _describe_variables(graph_def)
        graph = Graph(graph_def)
        self.analysis = analyse(graph, roots, use_tf_shapes=False)
        self.graph = graph
        leads = [self.dims((name, 0))[0] for name, _ in self.inputs]
        self.batch = leads[0]
        for other in leads[1:]:
            self.analysis.ctx.env.assume_eq(self.batch, other)
        self.analysis.ctx.env.set_range(self.batch, 1)  # a batch is never empty
        self.batch = self.analysis.ctx.env.simplify(self.batch)
        for name, _ in self.inputs:
            self._know(self.dims((name, 0)))
        self.fed = {name for name, _ in self.inputs}
        needed = self._needed(roots)
        for node in self.analysis.order:
            if node.name in needed:
                self._visit(node)
            else:  # a check: one that fails for a batch is tried again for each request
                self._check_effect(node)
        for ref, alias in zip(self.outputs, self.definition.outputs, strict=True):
            if self.state.get(ref) != ROWS or self.lead(ref) != self.batch:
                raise Refused(f"output {alias!r} has not one row for each of the inputs")

    def _needed(self, roots: Iterable[str]) -> set[str]:
        """The nodes whose values the outputs are computed from."""
        found: set[str] = set()
        work = list(roots)
        while work:
            name = work.pop()
            if name not in found:
                found.add(name)
                if name not in self.fed:
                    work += [source for source, _ in self.graph.nodes[name].inputs]
        return found

    def _check_inputs(self) -> None:
        nodes = {n.name: n for n in self.graph_def.node}
        if not self.inputs or not self.outputs:
            raise Refused("the signature has no inputs or no outputs")
        for (name, port), (alias, info) in zip(list(self.inputs), self.definition.inputs.items(), strict=True):
            dims = info.tensor_shape.dim
            if info.tensor_shape.unknown_rank or not dims or dims[0].size >= 0:
                raise Refused(f"the first extent of input {alias!r} is fixed or its rank is unknown")
            if port or name not in nodes or nodes[name].op != "Placeholder":
                raise Refused(f"input {alias!r} is no placeholder")
            nodes[name].attr["shape"].shape.ParseFromString(info.tensor_shape.SerializeToString())
            if nodes[name].attr["dtype"].type == DT_STRING:
                _number_strings(self.graph_def, nodes[name])
                self.inputs[self.inputs.index((name, port))] = (f"{name}/values", 0)

    # ---- what rules ask ----

    def dims(self, ref: tuple[str, int]) -> list[Any]:
        """Extents of a tensor; an unknown one refuses."""
        from disc_tf.ir.dims import Dim

        found = self.analysis.type_of(ref)
        raw: Sequence[Any] | None = found.dims if found is not None else self.analysis.shapes.get(ref)
        known = [Dim.of(d) for d in raw or () if d is not None]
        if raw is None or len(known) < len(raw):
            raise Refused(f"the shape of {ref[0]} is not known")
        return [self.analysis.ctx.env.simplify(d) for d in known]

    def rank(self, ref: tuple[str, int]) -> int:
        return len(self.dims(ref))

    def lead(self, ref: tuple[str, int]) -> Any:
        """The first extent, which must be a multiple of the batch size."""
        from disc_tf.ir.dims import exact_div

        dims = self.dims(ref)
        if not dims:
            raise Refused(f"{ref[0]} is a scalar made of rows")
        times = exact_div(dims[0], self.batch)
        if times is None or self.varies(times):
            raise Refused(f"the first extent of {ref[0]}, {dims[0]}, is no multiple of the batch size")
        return dims[0]

    def varies(self, dim: Any) -> bool:
        """Whether an extent may differ from batch to batch: it has B in it, or a symbol that stands for a value of the run."""
        return not self.analysis.ctx.behind(dim.symbols()) <= self.known

    def _know(self, dims: Iterable[Any]) -> None:
        self.known |= {s for d in dims for s in d.symbols()} - self.batch.symbols()

    def fixed_values(self, node: Any, at: int, first: int = 1) -> None:
        """Refuses if operand ``at``, a list of integers, hangs on B beyond its first ``first`` elements."""
        if self.kind(node.inputs[at]) == FREE:
            return
        contents = self.analysis.contents(node.inputs[at])
        if contents is None or any(self.varies(d) for d in contents[first:]):
            raise Refused(f"{node.name} ({node.op}) computes with the batch size")

    def constant(self, ref: tuple[str, int]) -> np.ndarray:
        """The value of a small constant; refuses if it is not known."""
        node = self.graph.nodes[ref[0]]
        while node.op in ("Identity", "Snapshot") and node.inputs:
            node = self.graph.nodes[node.inputs[0][0]]
        if node.op == "Const":
            found = self.graph.constant(node.name)
            array = found.array() if found is not None and found.present else None
            if array is not None:
                return np.asarray(array)
        contents = self.analysis.contents(ref)
        if contents is None or not all(d.is_static for d in contents):
            raise Refused(f"the value of {ref[0]} is not known")
        return np.array([int(d) for d in contents])

    def kind(self, ref: tuple[str, int]) -> str:
        return self.state[ref]

    def data(self, node: Any, count: int | None = None) -> list[tuple[str, int]]:
        """The operands that hold rows or free values; a shape among the first ``count`` refuses."""
        refs = list(node.inputs if count is None else node.inputs[:count])
        for ref in refs:
            if self.kind(ref) == SHAPE:
                raise Refused(f"{node.name} ({node.op}) computes with the batch size")
        return refs

    # ---- the walk ----

    def _visit(self, node: Any) -> None:
        kinds = [self.state[ref] for ref in node.inputs]
        ports = range(len(node.output_types or []))
        if node.name in self.fed:
            self._set(node, ports, ROWS)
            return
        self._check_effect(node)
        if all(k == FREE for k in kinds):
            self._set(node, ports, FREE)
            return
        contents = [c for p in ports if (c := self.analysis.contents((node.name, p))) is not None]
        if ports and len(contents) == len(ports):
            self._set(node, ports, [SHAPE if any(self.varies(d) for d in c) else FREE for c in contents])
            return
        rule = RULES.get(node.op)
        if rule is None:
            raise Refused(f"nothing is known of the op {node.op} ({node.name})")
        self._set(node, ports, rule(self, node))

    def _set(self, node: Any, ports: Sequence[int], state: str | list[str]) -> None:
        """``state``: of every output, or a list of one each."""
        for p, found in zip(ports, [state] * len(ports) if isinstance(state, str) else state, strict=True):
            self.state[node.name, p] = found
            if found == ROWS:
                self.lead((node.name, p))
                if any(self.varies(d) for d in self.dims((node.name, p))[1:]):
                    raise Refused(f"an extent of {node.name} ({node.op}) besides the first hangs on the batch size or the data")
            elif found == FREE:
                self._know(self._free_dims((node.name, p)))

    def _free_dims(self, ref: tuple[str, int]) -> list[Any]:
        try:
            return [*self.dims(ref), *(self.analysis.contents(ref) or ())]
        except Refused:
            return []

    def _check_effect(self, node: Any) -> None:
        from disc_tf.frontend.opdefs import op_info

        info = op_info(node.op)
        if info is None and node.op != "DiscWeight":
            raise Refused(f"nothing is known of the op {node.op} ({node.name})")
        if info is not None and info.is_stateful and node.op not in _HARMLESS:
            raise Refused(f"{node.name} ({node.op}) has a state or an effect")


#: stateful by declaration, yet they only read what requests do not change
_HARMLESS = frozenset(
    "VarHandleOp ReadVariableOp ResourceGather Placeholder HashTableV2 MutableHashTableV2 LookupTableFindV2 LookupTableSizeV2 Assert "
    "StatefulPartitionedCall VarIsInitializedOp".split()
)


def _number_strings(graph_def: Any, node: Any) -> None:
    """Make a string input the text of numbers: extents of strings have no symbols, and which strings they are plays no part."""
    fresh = graph_def.node.add(name=f"{node.name}/values", op="Placeholder")
    fresh.attr["dtype"].type = _INT64
    fresh.attr["shape"].CopyFrom(node.attr["shape"])
    for name in list(node.attr):
        del node.attr[name]
    node.op = "AsString"
    node.input.append(fresh.name)
    node.attr["T"].type = _INT64


def _describe_variables(graph_def: Any) -> None:
    """Reads of variables get the shape that the variable declares."""
    nodes = {n.name: n for n in graph_def.node}
    for node in graph_def.node:
        if node.op == "ReadVariableOp" and node.input and "_output_shapes" not in node.attr:
            handle = nodes.get(node.input[0].partition(":")[0])
            if handle is not None and handle.op == "VarHandleOp" and "shape" in handle.attr:
                node.attr["_output_shapes"].list.shape.add().CopyFrom(handle.attr["shape"].shape)
