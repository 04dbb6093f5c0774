"""A whole graph as one file that runs without TensorFlow: `compile_graph_def`.

    disc_tf.compile_graph_def(graph_def, ["logits:0"], "model.disc")
    disc_tf.runtime.load("model.disc").run({"ids": ids})["logits:0"]

Everything is compiled or nothing is: a node that cannot be compiled has nobody to run it. The file holds code for every target, the
signature, and the weights, which are mapped where it is loaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from disc_tf.budget import Budget, OutOfTime
from disc_tf.extras import COMPILING, require
from disc_tf.frontend.analysis import SOURCES, analyse
from disc_tf.frontend.cluster import Clustering, whole_graph
from disc_tf.frontend.condense import condense
from disc_tf.frontend.errors import GraphError, Reason
from disc_tf.frontend.graph import TensorRef, tensor_name
from disc_tf.frontend.hints import parse_hints
from disc_tf.frontend.importer import Imported, ImportFailed, import_cluster
from disc_tf.frontend.load import load
from disc_tf.frontend.tensor_proto import is_splat
from disc_tf.ir.core import ArgInfo, Function, Module, Op, Value
from disc_tf.ir.types import TensorType
from disc_tf.options import OptionError, Options
from disc_tf.report import ClusterReport, Report, counted
from disc_tf.version import __version__

if TYPE_CHECKING:
    from disc_tf.compiler import CompiledCluster
    from disc_tf.runtime.artifact import Artifact

#: nodes that `NotWhole` names in its message
_SHOWN = 8
#: options that have no meaning where every node is compiled
_OF_CLUSTERS = ("allow", "deny", "fuel", "min_cluster_size", "keep_control")


class NotWhole(GraphError):
    """The graph cannot run without TensorFlow. ``reasons``: node -> why it is not compiled."""

    def __init__(self, message: str, reasons: Mapping[str, Reason]) -> None:
        super().__init__(message)
        self.reasons = dict(reasons)


class NotCompiled(RuntimeError):
    """The graph could be whole, but compiling it failed: out of time, or a defect of the compiler. The message says which and where."""


@dataclasses.dataclass
class Standalone:
    """What was written. inputs, outputs: names in order; segments: of each, (inputs it waits for, outputs it makes); times_ms: by phase;
    report: the whole as the only cluster."""

    path: str
    inputs: list[str]
    outputs: list[str]
    segments: list[tuple[list[str], list[str]]]
    kernels: int
    weight_bytes: int
    file_bytes: int
    times_ms: dict[str, float]
    report: Report


def compile_graph_def(
    graph_def: Any,
    outputs: Sequence[str] | None,
    path: str | os.PathLike[str],
    inputs: Sequence[str] | None = None,
    options: Options | Mapping[str, Any] | None = None,
    *,
    names: Mapping[str, str] | None = None,
    title: str = "",
    profile: bool = False,
    progress: Callable[[str], None] = lambda _text: None,
    **overrides: Any,
) -> Standalone:
    """Compile a frozen graph whole and write it to ``path`` (``.disc``), which is replaced at once or not at all.

    outputs: tensors (``name:port``) or ops; None takes the graph's data sinks. inputs: the placeholders that the file may ask for (None:
    all that the outputs need); one that no output needs is not in the file, whose runners take a value of it and do without.
    names: tensor or node -> name in the file's signature, by
    default as it is called here without a ``:0``. title: the model's name in errors (the file's by default). profile: code whose every
    launch can be recorded (`disc_tf.runtime.record`), a little slower. options, overrides: `Options`.
    Raises `NotWhole` with each node that is not compiled, `GraphError` for a graph or names that do not fit, `NotCompiled` (time_budget,
    which is of the whole graph here; a defect), `OptionError`, OSError. Whatever it is, ``path`` is as it was.
    """
    require("compiling", "compiler", COMPILING)
    outputs = [outputs] if isinstance(outputs, str) else outputs
    settings = _settings(options, overrides)
    start = time.perf_counter()
    clustering = _whole(graph_def, outputs, inputs, settings)
    asked = list(outputs) if outputs is not None else [tensor_name(ref) for ref in clustering.fetches]
    with _failures():
        imported, sources = _import(clustering)
    _name(imported, asked, inputs, names or {})
    times = {"lower": (time.perf_counter() - start) * 1e3}

    from disc_tf.compiler import compile_module
    from disc_tf.runtime.artifact import tensor_digest, unpack
    from disc_tf.runtime.artifact_file import write_file
    from disc_tf.runtime.runner import segment_names

    with _failures():
        compiled = compile_module(
            imported.module, settings.targets, name=title or Path(path).stem, verify_passes=settings.verify_passes,
            dump_dir=settings.dump_dir, budget=Budget(settings.time_budget), progress=progress, segments=settings.segments,
            profile=profile, tuning=settings.tables,
        )  # fmt: skip
    times |= compiled.times_ms
    progress("writing")
    start = time.perf_counter()
    artifact = unpack(compiled.executable)
    constants: dict[int, np.ndarray] = {}
    args = []
    for i, x in enumerate(artifact.args):
        if x.kind == "const":
            constants[i] = np.broadcast_to(sources[x.name], x.dims)
            if is_splat(constants[i]):  # large ones are known by their value: the file has the content
                x = dataclasses.replace(x, digest=tensor_digest(constants[i], x.dtype))
        args.append(x)
    artifact = dataclasses.replace(artifact, args=tuple(args))
    artifact = dataclasses.replace(artifact, unused=_unused(graph_def, artifact, inputs, names or {}))
    write_file(path, artifact, constants)
    times["write"] = (time.perf_counter() - start) * 1e3
    wanted = [x.name for x in artifact.args if x.kind != "const"]
    return Standalone(
        os.fspath(path), wanted, [r.name for r in artifact.results], segment_names(artifact), len(compiled.kernels),
        sum(c.nbytes for c in constants.values()), Path(path).stat().st_size, times, _report(clustering, settings, times, compiled),
    )  # fmt: skip


def describe_whole(
    graph_def: Any,
    outputs: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
    options: Options | Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Report:
    """What `compile_graph_def` would compile, as the only cluster of a report; nothing is compiled or written. Raises as it does if the
    graph is not whole (what only compiling it shows is not known)."""
    settings = _settings(options, overrides)
    return _report(_whole(graph_def, [outputs] if isinstance(outputs, str) else outputs, inputs, settings), settings, {}, None)


def _settings(options: Options | Mapping[str, Any] | None, overrides: Mapping[str, Any]) -> Options:
    settings = Options.from_overrides(options, **overrides)
    for name in _OF_CLUSTERS:
        if getattr(settings, name) != getattr(Options, name):
            raise OptionError(f"option {name!r} chooses clusters: of a stand-alone file every node is compiled, or there is no file")
    return settings


def _whole(graph_def: Any, outputs: Sequence[str] | None, inputs: Sequence[str] | None, settings: Options) -> Clustering:
    """The graph as one cluster. Raises `NotWhole`, `GraphError`."""
    loaded = load(graph_def, outputs, verify=settings.verify_passes)
    if not loaded.fetches:
        raise GraphError("a stand-alone file needs an output that is a tensor: name one")
    hints = parse_hints(settings.hints)
    analysis = analyse(
        loaded.graph, [*(n for n, _ in loaded.fetches), *loaded.targets], hints=hints,
        use_tf_shapes=settings.use_tf_shapes, import_tf=settings.use_tf_shapes,
    )  # fmt: skip
    clustering = whole_graph(analysis, loaded.fetches, loaded.targets)
    _require_whole(clustering, inputs)
    return clustering


def _report(clustering: Clustering, settings: Options, times: Mapping[str, float], compiled: CompiledCluster | None) -> Report:
    counted = sum(n.op not in SOURCES and n.op != "NoOp" for n in clustering.order)
    report = Report(
        __version__, list(settings.targets), [tensor_name(ref) for ref in clustering.fetches], total_nodes=len(clustering.order),
        compute_nodes=counted, compiled_nodes=counted, times_ms=dict(times), options=settings.to_dict(), tuning=settings.tuned,
        drawing=condense(clustering),
    )  # fmt: skip
    for cluster in clustering.clusters:
        entry = ClusterReport(cluster.name, len(cluster.nodes), "planned", compute_nodes=counted, node_names=cluster.node_names)
        if compiled is not None:
            entry.status = "compiled"
            compiled.describe(entry)
        report.clusters.append(entry)
    return report


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """What the compiler raises as `NotCompiled`."""
    try:
        yield
    except (GraphError, OSError):  # the graph's fault, or that of where dumps go
        raise
    except OutOfTime as e:
        raise NotCompiled(str(e)) from e
    except Exception as e:
        raise NotCompiled(f"{type(e).__name__}: {e}") from e


def _require_whole(clustering: Clustering, inputs: Sequence[str] | None) -> None:
    """`NotWhole` with the reasons unless every node is compiled; ``GraphError`` for inputs that are not the graph's."""
    graph = clustering.graph
    reasons = dict(clustering.reasons)
    for node in clustering.order:
        if node.op not in ("Const", "Placeholder", "PlaceholderWithDefault", "PlaceholderV2") and node.op in SOURCES:
            reasons[node.name] = Reason("VARIABLE", "holds a variable: freeze the model first")
    if reasons:
        lines = [f"  {name} ({graph[name].op}): {why}" for name, why in list(reasons.items())[:_SHOWN]]
        more = [f"  ... and {len(reasons) - _SHOWN} more"] if len(reasons) > _SHOWN else []
        first = f"the graph cannot run without TensorFlow: {counted(len(reasons), 'needed node')} cannot be compiled"
        raise NotWhole("\n".join([first, *lines, *more]), reasons)
    if inputs is None:
        return
    known = {name.partition(":")[0] for name in inputs}
    for name in known:
        if name not in graph:
            raise GraphError(f"input {name!r}: the graph has no such node")
        if not graph[name].op.startswith("Placeholder"):
            raise GraphError(f"input {name!r} is a {graph[name].op}, not a placeholder")
    for node in clustering.order:
        if node.op.startswith("Placeholder") and node.name not in known:
            raise GraphError(f"the outputs need input {node.name!r}, which is not among the inputs that were given")


def _import(clustering: Clustering) -> tuple[Imported, dict[str, np.ndarray]]:
    """The module, with a result for each fetched tensor in their order, and the contents of its const arguments by their names."""
    graph, fetches = clustering.graph, clustering.fetches
    if clustering.clusters:
        try:
            imported = import_cluster(clustering, clustering.clusters[0])
        except ImportFailed as e:
            raise NotWhole(f"the graph cannot run without TensorFlow: {e.node} is not compiled: {e.reason}", {e.node: e.reason}) from e
    else:
        imported = Imported(None, Module(), [], [], [], [])  # type: ignore[arg-type]
        imported.module.add(Function("main")).body.append(Op("return"))
    main = imported.main
    values: dict[TensorRef, Value] = dict(zip(imported.args, main.params, strict=True))
    values |= dict(zip(imported.results, main.results, strict=False))
    token = [v for v in main.results if not isinstance(v.type, TensorType)]
    ret = main.body.ops.pop()
    ret.drop()
    returned = []
    for ref in fetches:
        if ref not in values:
            values[ref] = _outside(clustering, imported, ref, values)
        returned.append(values[ref])
    main.body.append(Op("return", [*returned, *token]))
    contents: dict[str, np.ndarray] = {}
    for info in main.args:
        constant = graph.constant(info.tensor.partition(":")[0])
        if info.kind == "const" and constant is not None:
            contents[info.name] = constant.array()
    return imported, contents


def _outside(clustering: Clustering, imported: Imported, ref: TensorRef, values: Mapping[TensorRef, Value]) -> Value:
    """An output that no compiled node makes: an input, or a constant."""
    main, graph = imported.main, clustering.graph
    constant = graph.constant(ref[0])
    if constant is not None:
        if constant.dtype is None:
            raise NotWhole(f"output {ref[0]} is a constant of strings or complex numbers", {ref[0]: Reason("DTYPE", "not a number")})
        if constant.is_small:
            array = np.array(constant.array())
            return main.body.append(Op("constant", [], [TensorType.of(constant.dtype, array.shape)], {"value": array})).result
    analysis = clustering.analysis
    assert analysis is not None
    type_ = analysis.type_of(ref)
    if type_ is None:
        raise NotWhole(f"output {ref[0]} has no type that can be compiled", {ref[0]: Reason("DTYPE", "no element type or rank")})
    kind, digest = ("device", b"") if constant is None else ("const", constant.digest())
    return main.add_arg(type_, ArgInfo(tensor_name(ref), kind, digest, tensor_name(ref)))


def _unused(graph_def: Any, artifact: Artifact, inputs: Sequence[str] | None, names: Mapping[str, str]) -> tuple[str, ...]:
    """Public names of the inputs that the file does not ask for."""
    given = inputs if inputs is not None else [n.name for n in graph_def.node if n.op.startswith("Placeholder")]
    nodes = dict.fromkeys(name.partition(":")[0] for name in given)
    public = [names.get(n, names.get(f"{n}:0", n)) for n in nodes]
    asked = {x.name.removesuffix(":0") for x in artifact.args} | {x.name for x in artifact.args}
    return tuple(n for n in public if n not in asked)


def _name(imported: Imported, asked: Sequence[str], inputs: Sequence[str] | None, names: Mapping[str, str]) -> None:
    """Public names of arguments and results; ``GraphError`` where two would be the same."""
    main = imported.main

    def public(text: str, default: str) -> str:
        node = text.partition(":")[0]
        forms = (text, node, f"{node}:0") if text in (node, f"{node}:0") else (text,)
        return next((names[f] for f in forms if f in names), default)

    for info in main.args:
        if info.kind in ("host", "device"):
            info.name = public(info.tensor, info.tensor)
    main.result_names = [public(text, text.removesuffix(":0")) for text in asked]
    for what, found in (("input", [a.name for a in main.args]), ("output", main.result_names)):
        if twice := [n for i, n in enumerate(found) if n in found[:i]]:
            raise GraphError(f"two {what}s would be called {twice[0]!r}: give `names`")


__all__ = ["NotWhole", "Standalone", "compile_graph_def"]
