"""What `optimize_saved_model` changes in a MetaGraph: function bodies (TensorFlow 2) or the main graph (TensorFlow 1).

Object graph, signatures, variables, assets, tables, initialisers, collections and the saver stay. Pure: messages in, messages out.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from disc_tf.frontend.captured import (
    captured_tensors,
    fetched_for,
    gradients_again,
    keep_captured,
    needed_nodes,
    own_gradients,
    refer_to_gradients,
)
from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.function_graph import FunctionGraph, function_graph, function_of, single_call
from disc_tf.frontend.functions import XLA_ATTR, Library, every_node, jit_compiled, mentioned_functions, must_compile
from disc_tf.frontend.graph import parse_tensor
from disc_tf.frontend.resource_gather import updates_sparsely
from disc_tf.frontend.rewrite import LAUNCH_OP
from disc_tf.frontend.saved_model import Roots, find_roots, is_tf2, signature_names, signature_tensors
from disc_tf.optimizer import Compiled, Elsewhere, OptimizeResult, Request, optimize
from disc_tf.options import Options
from disc_tf.saved_model_report import MAIN_GRAPH, FunctionReport


@dataclasses.dataclass
class Rewritten:
    """``functions``: what was looked at; ``skipped``: what was not, and why. ``without(names)``: the MetaGraph with the clusters of these
    names (``function:cluster``) in TensorFlow; with no names, all that was compiled. ``bodies``: function with a report -> its
    graph and what is fetched of it."""

    functions: list[FunctionReport]
    skipped: dict[str, str]
    without: Callable[[Collection[str]], Any]
    bodies: dict[str, tuple[Any, list[str]]] = dataclasses.field(default_factory=dict)


def rewrite_meta_graph(
    meta: Any,
    settings: Options,
    *,
    signatures: Sequence[str] | None = None,
    all_functions: bool = False,
    dry_run: bool = False,
    compiled: Compiled | None = None,
    elsewhere: Elsewhere | None = None,
    progress: Callable[[str], None] = lambda _text: None,
) -> Rewritten:
    """Compile what the signatures and methods of a MetaGraph call; see `disc_tf.frontend.saved_model.find_roots` for what that is.

    compiled: shared among MetaGraphs, so that equal clusters are compiled once. elsewhere: see `disc_tf.optimizer.Request`.
    """
    means: dict[str, Any] = {"compiled": {} if compiled is None else compiled, "elsewhere": elsewhere}
    roots = find_roots(meta, signatures, all_functions) if is_tf2(meta) else Roots()
    if roots.functions:
        return _Functions(meta, roots, settings, dry_run, means, progress).run()
    return _main_graph(meta, signatures, settings, dry_run, means, progress)


class _Functions:
    """Function by function, from the roots: one that only calls another passes on; what a body still calls afterwards comes next."""

    def __init__(
        self, meta: Any, roots: Roots, settings: Options, dry_run: bool, means: Mapping[str, Any], progress: Callable[[str], None]
    ) -> None:
        self.meta = meta
        self.roots = roots
        self.settings = settings
        self.dry_run = dry_run
        self.means = means
        self.progress = progress
        self.library = Library(meta.graph_def)
        self.gradients = list(meta.graph_def.library.gradient)
        #: function -> tensors of its body that the object graph names
        self.captured = captured_tensors(meta)
        self.read_tables = not updates_sparsely(every_node(meta.graph_def))
        self.entries: dict[str, FunctionReport] = {}
        self.done: dict[str, tuple[FunctionGraph, OptimizeResult]] = {}
        self.bodies: dict[str, tuple[Any, list[str]]] = {}

    def run(self) -> Rewritten:
        work = list(self.roots.functions)
        callers = {name: list(who) for name, who in self.roots.functions.items()}
        while work:
            name = work.pop(0)
            if name in self.entries:
                continue
            for callee in self._visit(name, callers[name]):
                callers.setdefault(callee, []).append(name)
                work.append(callee)
        for name in self.entries:
            self.roots.skipped.pop(name, None)
        return Rewritten(list(self.entries.values()), self.roots.skipped, self.without, self.bodies)

    def _visit(self, name: str, who: list[str]) -> list[str]:
        """Look at a function; the functions to look at because of it."""
        f = self.library.functions[name]
        entry = self.entries[name] = FunctionReport(name, "left", who)
        whole = jit_compiled(f.attr)
        if must_compile(f.attr) and not whole:
            entry.reason = "belongs to a replicated (TPU) computation"
            return []
        if name in self.library.with_gradient:
            entry.reason = "has a gradient of its own, or is one"
            return []
        call = single_call(f, self.library)
        if call is not None:
            entry.status = "passes_on"
            self._pass_variables(f, *call)
            return [call[1]]
        try:
            # The gradient functions that capture tensors of a function can be called from this function only: it is not inlined elsewhere.
            others = self.captured.keys() - {name}
            body = function_graph(f, self.library.functions, self.gradients, self.roots.variables.get(name), others)
            body.kept = fetched_for(body.graph_def, self._kept(body), lambda n: self.library.called(n) is not None)
            request = Request(
                body.graph_def,
                body.fetches,
                self.settings,
                dry_run=self.dry_run,
                progress=lambda text: self.progress(f"{name}: {text}"),
                with_recipe=False,
                read_tables=self.read_tables,
                **self.means,
            )
            result = optimize(request)
        except GraphError as e:
            entry.reason = str(e)
            return []
        if whole and not self.dry_run and not _covered(result):
            entry.reason = "XLA compiles it as a whole (jit_compile=True), and not all of it is compiled here: save it without jit_compile"
            return []
        entry.report = result.report
        self.bodies[name] = body.graph_def, body.fetches
        entry.status = "compiled" if result.report.compiled_clusters else "unchanged"
        if self.dry_run and any(c.status == "planned" for c in result.report.clusters):
            entry.status = "planned"
        if result.report.compiled_clusters:
            self.done[name] = (body, result)
        inside = {n for c in result.report.clusters if c.status in ("compiled", "planned") for n in c.node_names}
        nodes = result.graph_def.node if name in self.done else [n for n in body.graph_def.node if self._stays(n, inside)]
        called = [g for n in nodes if n.op != LAUNCH_OP for g in mentioned_functions(n)]
        return [g for g in dict.fromkeys(called) if g in self.library.functions]

    def _kept(self, body: FunctionGraph) -> list[str]:
        """Tensors and nodes of a function that stay in it for gradients."""
        captured = self.captured.get(body.name)
        return [*captured, *own_gradients(body.graph_def)] if captured else []

    def _stays(self, node: Any, inside: set[str]) -> bool:
        """Whether a node of a body is left as it is: neither in a cluster nor a call that is inlined."""
        return node.name not in inside and (self.library.called(node) is None or self.library.why_not(node, frozenset()) is not None)

    def _pass_variables(self, f: Any, node: Any, callee: str) -> None:
        """Handles that a function passes on to the one that it calls."""
        known = self.roots.variables.get(f.signature.name, {})
        place = {a.name: i for i, a in enumerate(f.signature.input_arg)}
        data = [i for i in node.input if not i.startswith("^")]
        found = {i: known[place[t]] for i, t in enumerate(data) if t in place and place[t] in known}
        self.roots.variables.setdefault(callee, found)

    def without(self, names: Collection[str]) -> Any:
        new = type(self.meta)()
        new.CopyFrom(self.meta)
        library = new.graph_def.library
        functions = {f.signature.name: f for f in library.function}
        added: dict[str, Any] = {}
        taken: set[str] = set()  # from XLA
        for name, (body, result) in self.done.items():
            left = {c.partition(":")[2] for c in names if c.rpartition(":")[0] == name}
            graph = result.without(left)
            if graph is body.graph_def:
                continue
            kept = self._kept(body)
            keep_captured(body.graph_def, graph, kept)
            new_ones = {f.signature.name: f for f in graph.library.function if f.signature.name not in functions}
            refer_to_gradients(new_ones.values(), kept)
            added |= new_ones
            functions[name].CopyFrom(function_of(body, graph, {**functions, **added}))
            if jit_compiled(functions[name].attr):
                del functions[name].attr[XLA_ATTR]
                taken.add(name)
        for node in every_node(new.graph_def) if taken else ():
            call = self.library.called(node)
            if call is not None and call[0] in taken and XLA_ATTR in node.attr:
                del node.attr[XLA_ATTR]
        for f in added.values():
            library.function.add().MergeFromString(f.SerializeToString())
        return new


def _covered(result: OptimizeResult) -> bool:
    """Whether one cluster holds all that the function computes: nothing is left that XLA would have compiled."""
    report = result.report
    return len(report.compiled_clusters) == len(report.clusters) == 1 and report.compiled_nodes == report.compute_nodes


def _main_graph(
    meta: Any,
    signatures: Sequence[str] | None,
    settings: Options,
    dry_run: bool,
    means: Mapping[str, Any],
    progress: Callable[[str], None],
) -> Rewritten:
    """The graph of a TensorFlow 1 model, for the outputs of its signatures. Whatever else is in it stays."""
    names = list(signatures) if signatures is not None else signature_names(meta)
    runs = tuple(dict.fromkeys(tuple(signature_tensors(meta.signature_def[n], "outputs").values()) for n in names))
    outputs = list(dict.fromkeys(t for run in runs for t in run))
    feeds = list(dict.fromkeys(t for n in names for t in signature_tensors(meta.signature_def[n], "inputs").values()))
    entry = FunctionReport(MAIN_GRAPH, "left", [f"signature {n}" for n in names])
    if not outputs:
        entry.reason = "the model has no signature, so that nothing says what is computed"
        return Rewritten([entry], {}, lambda _names: meta)
    graph = meta.graph_def
    there = {n.name for n in graph.node}
    fed = tuple(t for t in feeds if parse_tensor(t)[0] in there)
    request = Request(
        graph,
        outputs,
        settings,
        fed,
        dry_run=dry_run,
        progress=progress,
        with_recipe=False,
        runs=runs,
        read_tables=not updates_sparsely(every_node(graph)),
        **means,
    )
    try:
        result = optimize(request)
    except GraphError as e:
        entry.reason = str(e)
        return Rewritten([entry], {}, lambda _names: meta)
    entry.report = result.report
    entry.status = "compiled" if result.report.compiled_clusters else "planned" if dry_run else "unchanged"

    def without(names: Collection[str]) -> Any:
        left = {n.partition(":")[2] for n in names}
        changed = result.without(left)
        if changed is None or changed is graph:
            return meta
        new = type(meta)()
        new.CopyFrom(meta)
        new.graph_def.CopyFrom(_with_the_rest(meta, changed))
        return new

    return Rewritten([entry], {}, without, {MAIN_GRAPH: (graph, outputs)})


def _with_the_rest(meta: Any, changed: Any) -> Any:
    """``changed`` and every node of the original graph that something else than the signatures may want: initialisers, the saver, what
    collections name, and all that these need. Nodes that moved into clusters are there a second time only if those need them."""
    original = meta.graph_def
    present = {n.name for n in changed.node}
    inside = {name for n in changed.node if n.op == LAUNCH_OP for name in n.attr["nodes"].s.decode().split("\n")}
    nodes = {n.name: n for n in original.node}
    wanted = [n.name for n in original.node if n.name not in present and n.name not in inside]
    for collection in meta.collection_def.values():
        named = [*collection.node_list.value, *(s for v in collection.bytes_list.value for s in embedded_strings(v))]
        wanted += [name for v in named if (name := v.lstrip("^").partition(":")[0]) in nodes]
    needed = needed_nodes(nodes, wanted, present)
    for n in original.node:
        if n.name in needed:
            changed.node.add().CopyFrom(n)
    functions = {f.signature.name for f in changed.library.function}
    for f in original.library.function:
        if f.signature.name not in functions:
            changed.library.function.add().CopyFrom(f)
    del changed.library.gradient[:]
    changed.library.gradient.extend(original.library.gradient)
    return changed


def embedded_strings(data: bytes, depth: int = 8) -> list[str]:
    """All strings in a serialized message of any type: collections name variables and control flow contexts by them."""
    found, at = [], 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            _, at = _varint(data, at)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        elif kind == 2:
            size, at = _varint(data, at)
            part = data[at : at + size]
            at += size
            with contextlib.suppress(UnicodeDecodeError):
                found.append(part.decode())
            if depth and size:
                found += embedded_strings(part, depth - 1)
        else:  # not a message after all
            return found
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            break
    return value, at


def originals_again(meta: Any) -> int:
    """Put the original function of every DiscLaunch back in its place, as a call; the number of launches that were there.

    For models that were saved again by others, who keep no file of ours: the same answers, not the same bytes.
    """
    library = meta.graph_def.library
    functions = {f.signature.name: f for f in library.function}
    count = _originals_in(meta.graph_def.node, functions, in_body=False)[0]
    for f in library.function:
        found, spelled = _originals_in(f.node_def, functions, in_body=True)
        count += found
        for key in f.ret:
            f.ret[key] = spelled(f.ret[key])
    return count


def _originals_in(nodes: Any, functions: Any, in_body: bool) -> tuple[int, Callable[[str], str]]:
    """Replace the launches among ``nodes``; how many there were, and how their outputs are spelled from now on."""
    hosts: dict[str, int] = {}
    for node in nodes:
        if node.op != LAUNCH_OP:
            continue
        name = node.attr["original"].func.name
        if name not in functions:
            raise GraphError(f"its original function {name!r} is not in the model's library", node.name)
        hosts[node.name] = len(node.attr["Thostout"].list.type)
        gradients_again(functions[name], nodes)
        _call_original(node, functions[name])

    def spelled(text: str) -> str:
        node, _, place = text.partition(":")
        arg, _, index = place.partition(":")
        if node not in hosts or arg not in ("host_results", "results"):
            return text
        return f"{node}:output:{int(index or 0) + (hosts[node] if arg == 'results' else 0)}"

    if hosts and in_body:
        for node in nodes:
            inputs = [spelled(t) for t in node.input]
            if inputs != list(node.input):
                del node.input[:]
                node.input.extend(inputs)
    return len(hosts), spelled


def _call_original(node: Any, function: Any) -> None:
    new = type(node)()
    new.name, new.device, new.op = node.name, node.device, "StatefulPartitionedCall"
    new.input.extend(node.input)
    new.attr["f"].func.name = function.signature.name
    for key, args in (("Tin", function.signature.input_arg), ("Tout", function.signature.output_arg)):
        new.attr[key].list.SetInParent()
        new.attr[key].list.type.extend(a.type for a in args)
    for key in ("config", "config_proto", "executor_type"):
        new.attr[key].s = b""
    if "_output_shapes" in node.attr:
        new.attr["_output_shapes"].CopyFrom(node.attr["_output_shapes"])
    node.CopyFrom(new)
