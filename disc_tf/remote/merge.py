"""Clusters that were compiled elsewhere are put into the graph that its owner has: names, digests of weights and messages come back."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from disc_tf.frontend.asserts import assert_message
from disc_tf.frontend.cluster import matches, restored_clustering
from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.graph import Graph, fresh_name, parse_tensor, tensor_name
from disc_tf.frontend.hints import parse_hints
from disc_tf.frontend.load import Loaded
from disc_tf.frontend.rewrite import Launch
from disc_tf.optimizer import CompiledGraph, Request
from disc_tf.options import Options
from disc_tf.remote.canonical import Canonical, canonical, renamed_text
from disc_tf.remote.check import check_result
from disc_tf.remote.messages import new
from disc_tf.remote.result import plan_of, rename_result
from disc_tf.remote.skeleton import Skeleton, make_skeleton
from disc_tf.remote.trust import TrustPolicy, signed_by
from disc_tf.report import Report
from disc_tf.runtime.artifact import DTYPES, Artifact, SignedStatement, pack, unpack

_KINDS = frozenset({"const", "variable", "host", "device"})


class ResultError(RuntimeError):
    """What a server returned does not fit the graph that was asked about."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """A CompileResult that was checked (`disc_tf.remote.check`), in the request's names, and what the service signed of it."""

    result: Any
    signed: SignedStatement | None = None

    @classmethod
    def accept(cls, final: Any, content: bytes, request: Canonical, trust: TrustPolicy | None) -> Answer:
        """What an OptimizeResult and its content say, once both were checked. `CheckError`, `TrustError`."""
        result = check_result(content)
        if trust is not None:
            trust.check(final, result, request.digest)
        # kept whether it was checked or not: whoever loads the code may have a policy
        return cls(result, signed_by(final))


class Transport(Protocol):
    """Gets a request in canonical form compiled."""

    def compile(self, request: Canonical, *, dry_run: bool, progress: Callable[[str], None]) -> Answer: ...


@dataclasses.dataclass
class Prepared:
    """A request, and what is needed to understand the answer: ``names``: canonical name or stand-in -> the graph's."""

    skeleton: Skeleton
    request: Canonical
    names: dict[str, str]


def prepare(loaded: Loaded, request: Request, *, with_contents: bool = False) -> Prepared:
    """What would be sent. ``GraphError`` for outputs, feeds or hints that name nothing."""
    settings, graph = request.settings, loaded.graph
    skeleton = make_skeleton(
        graph, loaded.fetches, loaded.targets, use_tf_shapes=settings.use_tf_shapes, with_contents=with_contents
    )
    there = {n.name for n in skeleton.graph_def.node}
    feeds = [t for t in request.feeds if parse_tensor(t)[0] in there]
    form = canonical(skeleton.graph_def, skeleton.outputs, feeds, _options(graph, settings, request, there))
    names = form.names | {stand_in: text for text, stand_in in skeleton.texts.items()}
    return Prepared(skeleton, form, names)


def compile_remotely(loaded: Loaded, request: Request, transport: Transport, *, with_contents: bool = False) -> CompiledGraph:
    """The clusters of a graph, compiled by ``transport``; see `disc_tf.optimizer.compile_graph`. `ResultError` for an answer that does not
    fit the graph, and what the transport raises."""
    ready = prepare(loaded, request, with_contents=with_contents)
    answer = transport.compile(ready.request, dry_run=request.dry_run, progress=request.progress)
    return merge(loaded, answer, ready.names, request.settings)


def merge(loaded: Loaded, answer: Answer, names: Mapping[str, str], settings: Options) -> CompiledGraph:
    """An answer in terms of the graph. `ResultError` if it does not fit."""
    try:
        renamed = rename_result(answer.result, lambda text: renamed_text(text, names))
        content = json.loads(renamed.report_json)
        report = Report.from_dict(content if isinstance(content, dict) else {"clusters": content})
        if {c.name for c in report.clusters if c.status == "compiled"} != {c.name for c in renamed.clusters}:
            raise ValueError("its report is of other clusters")
    except (ValueError, KeyError, TypeError) as e:
        raise ResultError(f"the answer cannot be read: {type(e).__name__}: {e}") from e
    report.options = settings.to_dict()
    graph = loaded.graph
    taken = set(graph.nodes) | set(graph.signatures)
    try:
        fetched = {name for name, _ in loaded.fetches}
        launches = [_launch(graph, entry, answer.signed, taken, report, fetched) for entry in renamed.clusters]
        outputs = [tensor_name(ref) for ref in loaded.fetches] + [f"^{t}" for t in loaded.targets]
        inside = [n.name for launch in launches for n in launch.cluster.nodes]
        if len(set(inside)) != len(inside):
            raise ResultError("a node is in two clusters")
        compiled = {graph[name].name for name in renamed.compiled} | set(inside)
        clustering = restored_clustering(graph, [x.cluster for x in launches], compiled, outputs)
    except GraphError as e:
        raise ResultError(f"the answer does not fit the graph: {e}") from e
    return CompiledGraph(clustering, launches, report)


def _options(graph: Graph, settings: Options, request: Request, there: set[str]) -> Any:
    options = new("CompileOptions", targets=list(settings.targets), min_cluster_size=settings.min_cluster_size)
    if settings.fuel >= 0:
        options.fuel = settings.fuel
    if settings.time_budget:
        options.time_budget = settings.time_budget
    options.denied.extend(
        node.name
        for node in graph.order
        if node.name in there and (matches(settings.deny, node) or (settings.allow and not matches(settings.allow, node)))
    )
    for text in settings.hints:
        for name in parse_hints([text]):
            if name.partition(":")[0] not in graph:
                raise GraphError(f"hint for {name!r}: the graph has no such input")
            if name.partition(":")[0] in there:
                options.hints.append(_without_names(text))
    for run in request.runs:
        options.runs.add().outputs.extend(run)
    return options


def _without_names(hint: str) -> str:
    """A hint with its dims' names, which mean something to their user alone, as numbers."""
    head, bracket, rest = hint.partition("[")
    names: dict[str, str] = {"None": "None"}
    numbered = re.sub(r"[A-Za-z_]\w*", lambda m: names.setdefault(m.group(), f"d{len(names)}"), rest)
    return f"{head}{bracket}{numbered}"


def _launch(
    graph: Graph, entry: Any, signed: SignedStatement | None, taken: set[str], report: Report, fetched: set[str]
) -> Launch:
    plan = plan_of(entry)
    name = fresh_name(plan.name, taken, "_v")
    for reported in report.clusters:
        if reported.name == plan.name:
            reported.name = name
    plan.name = name
    launch = Launch.from_plan(graph, plan, b"", [tuple(s.dims) for s in entry.shapes], entry.abi)
    artifact = unpack(entry.executable)
    args, results = launch.args, launch.results
    for ref in (*args, *results):
        graph.check_tensor(ref, "tensor")
    for node in (*plan.constants, *plan.controls):
        if node not in graph:
            raise GraphError(f"the graph has no node {node!r}")
    of_args = {len(x) for x in (args, plan.kinds, artifact.args)}
    of_results = {len(x) for x in (results, plan.host_results, entry.shapes, artifact.results)}
    if len(of_args) > 1 or len(of_results) > 1:
        raise ResultError(f"{name}: numbers of arguments or results do not agree")
    if not set(plan.kinds) <= _KINDS:
        raise ResultError(f"{name}: unknown kind of argument")
    for ref, kind in zip(args, plan.kinds, strict=True):
        if (kind == "const") != (graph[ref[0]].op == "Const"):
            raise ResultError(f"{name}: argument {tensor_name(ref)} is of kind {kind}, which it is not in the graph")
    _check_boundary(graph, launch, artifact, fetched)
    launch.executable = pack(dataclasses.replace(_filled(graph, args, artifact, name), signed=signed))
    return launch


def _filled(graph: Graph, args: Sequence[tuple[str, int]], artifact: Artifact, name: str) -> Artifact:
    """With the digests of weights, and messages of assertions, that only their owner knows."""
    specs = []
    for ref, spec in zip(args, artifact.args, strict=True):
        constant = graph.constant(ref[0])
        digest = constant.digest() if constant is not None and spec.kind == "const" else b""
        specs.append(dataclasses.replace(spec, digest=digest))
    checks = [
        dataclasses.replace(c, message=assert_message(graph, graph.nodes[c.node]))
        if c.node in graph.nodes and graph.nodes[c.node].op == "Assert"
        else c
        for c in artifact.checks
    ]
    return dataclasses.replace(artifact, args=tuple(specs), checks=tuple(checks), name=name)


def _check_boundary(graph: Graph, launch: Launch, artifact: Artifact, fetched: set[str]) -> None:
    """The types of arguments and results are the graph's, and nothing is read that the cluster does not give."""
    for what, refs, specs in (("argument", launch.args, artifact.args), ("result", launch.results, artifact.results)):
        for ref, spec in zip(refs, specs, strict=True):
            if graph.type_of(ref) not in (0, DTYPES[spec.dtype][2]):
                raise ResultError(f"{launch.cluster.name}: {what} {tensor_name(ref)} is of another type in the graph than {spec.dtype}")
    inside = {n.name for n in launch.cluster.nodes}
    given, needed = set(launch.args) | set(launch.cluster.through), set()
    for node in launch.cluster.nodes:
        needed |= {ref for ref in node.inputs if ref[0] not in inside and ref[0] not in launch.cluster.constants}
    if missing := needed - given:
        raise ResultError(f"{launch.cluster.name}: {tensor_name(min(missing))} is read inside, and is no argument")
    results = set(launch.results)
    for node in launch.cluster.nodes:
        if node.name in fetched and (node.name, 0) not in results and node.output_types:
            raise ResultError(f"{launch.cluster.name}: {node.name} is fetched, and is no result")
