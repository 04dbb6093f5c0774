"""A replay file run in every way that there is, and the place where the answers part.

TensorFlow's answer is the reference. Then: the code in the file; the cluster compiled again by this version; and the IR in the interpreter,
before and after the passes. Who differs first tells which phase is at fault; comparing every node's value tells where.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.graph import Graph, parse_tensor, tensor_name
from disc_tf.frontend.importer import ImportFailed, import_cluster
from disc_tf.frontend.tfproto import serialized
from disc_tf.insight.replay_file import Replay
from disc_tf.ir.core import Module
from disc_tf.options import Options
from disc_tf.passes.specialize import SpecializedModule
from disc_tf.testing.compare import compare
from disc_tf.testing.tf_case import Answer, Failure, our_answer
from disc_tf.testing.tf_process import ProcessFailed, TfError, TfProcess

#: what is run, in the order of the pipeline
WAYS = ("interpreter", "after the passes", "compiled again", "the file's code")
_BLAME = {
    "interpreter": "lowering: the IR already means something else than TensorFlow",
    "after the passes": "a pass of the HLO optimisation",
    "compiled again": "fusion, buffers or code generation",
    "the file's code": "a fault of the version that made the file: this one does not have it",
}


@dataclasses.dataclass
class Difference:
    """A tensor at which one of `WAYS` differs from TensorFlow."""

    way: str
    tensor: str
    message: str


@dataclasses.dataclass
class Findings:
    """``answers``: way -> "same", what differs, or why it was not run. ``first``: the first value (in the order of the graph) at which a
    way differs. ``blame``: the phase at fault, as far as these tell."""

    cluster: str
    versions: dict[str, str]
    reference: str
    answers: dict[str, str] = dataclasses.field(default_factory=dict)
    first: list[Difference] = dataclasses.field(default_factory=list)
    blame: str = ""
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether everything that was run agrees with TensorFlow."""
        return all(a == "same" or a.startswith("not run") for a in self.answers.values())


def rerun(
    replay: Replay,
    directory: Path,
    *,
    captured: bool = True,
    values: bool = False,
    tolerance: float | None = None,
    threads: int = 0,
    progress: Callable[[str], None] = lambda _text: None,
) -> Findings:
    """Run ``replay`` in all ways. captured: the code in the file too; values: compare every node's value even if the results agree."""
    graph_path = directory / "graph.pb"
    results = [*replay.results]
    _write(graph_path, _with_asserts(replay))
    progress("TensorFlow")
    reference = _tensorflow(graph_path, replay, [f"disc_result_{i}:0" for i in range(len(results))], reference=True, threads=threads)
    found = Findings(replay.cluster, replay.versions, _described(reference))
    if replay.note:
        found.notes.append(replay.note)

    def judge(way: str, answer: Answer | str) -> None:
        found.answers[way] = answer if isinstance(answer, str) else _difference(results, reference, answer, tolerance)

    progress("the interpreter")
    before, after = _interpreted(replay, results)
    judge("interpreter", before)
    judge("after the passes", after)
    progress("compiling again")
    judge("compiled again", _compiled(replay, results, directory, threads))
    if captured:
        progress("the file's code")
        _write(directory / "launch.pb", replay.launch)
        outputs = [f"{replay.cluster}:{i}" for i in range(len(results))]
        judge("the file's code", _tensorflow(directory / "launch.pb", replay, outputs, threads=threads))
    bad = [w for w in WAYS if found.answers.get(w, "same") not in ("same",) and not found.answers[w].startswith("not run")]
    if bad:
        found.blame = _BLAME[bad[0]]
    if (bad or values) and not isinstance(reference, Failure):
        progress("every value")
        found.first = _values(replay, directory, tolerance, threads, found.notes)
    return found


def differs(replay: Replay, directory: Path, *, threads: int = 0) -> bool:
    """Whether the code in the file gives something else than TensorFlow."""
    outputs = [f"disc_result_{i}:0" for i in range(len(replay.results))]
    _write(directory / ".graph.pb", _with_asserts(replay))
    _write(directory / ".launch.pb", replay.launch)
    try:
        reference = _tensorflow(directory / ".graph.pb", replay, outputs, reference=True, threads=threads)
        code = [f"{replay.cluster}:{i}" for i in range(len(replay.results))]
        return _difference(replay.results, reference, _tensorflow(directory / ".launch.pb", replay, code, threads=threads), None) != "same"
    finally:
        for name in (".graph.pb", ".launch.pb"):
            (directory / name).unlink(missing_ok=True)


def _write(path: Path, graph: Any) -> None:
    path.write_bytes(serialized(graph))


def _with_asserts(replay: Replay) -> Any:
    """The graph with a node for each result that waits for the assertions, as the results of a launch do."""
    graph = type(replay.graph)()
    graph.CopyFrom(replay.graph)
    types = Graph(replay.graph)
    for i, text in enumerate(replay.results):
        node = graph.node.add(name=f"disc_result_{i}", op="Identity")
        node.input.extend([text, *(f"^{a}" for a in replay.asserts)])
        node.attr["T"].type = types.type_of(parse_tensor(text))
    return graph


def _tensorflow(
    path: Path, replay: Replay, outputs: Sequence[str], *, reference: bool = False, threads: int = 0
) -> Answer:
    names = [f"{n}:0" for n in replay.feeds]
    env = {"TF_ENABLE_ONEDNN_OPTS": "0"}
    try:
        with TfProcess(path, names, outputs, reference=reference, ops=not reference, threads=threads, env=env) as process:
            return process.run(list(replay.feeds.values()))
    except TfError as e:
        return Failure(e.code, str(e))
    except ProcessFailed as e:
        return Failure(None, str(e))


def _clusters(replay: Replay, outputs: Sequence[str]) -> Any:
    from disc_tf.optimizer import clusters_of

    wanted = [*outputs, *(f"^{a}" for a in replay.asserts)]
    return clusters_of(replay.graph, wanted, Options.from_overrides(min_cluster_size=1, use_tf_shapes=False))[1]


def _interpreted(replay: Replay, outputs: Sequence[str], *, partly: bool = False) -> tuple[Answer | str, Answer | str]:
    """The IR's answers before and after the passes, or why there are none. partly: None for outputs that the cluster does not give."""
    from disc_tf.ir.pass_manager import PassContext
    from disc_tf.passes.pipeline import optimize

    try:
        clustering = _clusters(replay, outputs)
        if len(clustering.clusters) != 1:
            left = "; ".join(f"{n}: {r}" for n, r in list(clustering.reasons.items())[:3])
            why = f"not run: this version makes {len(clustering.clusters)} clusters of it{f' ({left})' if left else ''}"
            return why, why
        cluster = clustering.clusters[0]
        arrays = _arguments(replay, clustering.graph, import_cluster(clustering, cluster).args)
    except (ImportFailed, GraphError) as e:
        return f"not run: {e}", f"not run: {e}"

    def answer(passes: bool) -> Answer | str:
        imported = import_cluster(clustering, cluster)
        module: Module = imported.module
        try:
            if passes:
                body = _body(optimize(module, PassContext()), arrays)
                found = our_answer(body.main, _prepared(body, arrays))
            else:
                found = our_answer(module.main, arrays)
        except Exception as e:
            return Failure(None, f"{type(e).__name__}: {e}")
        if isinstance(found, Failure):
            return found
        by_name = {tensor_name(ref): value for ref, value in zip(imported.results, found, strict=True)}
        wanted = [tensor_name(parse_tensor(o)) for o in outputs]
        missing = [o for o in wanted if o not in by_name]
        if missing and not partly:
            return f"not run: {missing[0]} is not a result of the cluster in this version"
        return [by_name.get(o) for o in wanted]  # type: ignore[return-value]

    return answer(False), answer(True)


def _body(special: SpecializedModule, arrays: Sequence[np.ndarray]) -> Module:
    """The body that the host program would choose for these arguments."""
    if special.general is None:
        return special.uniform
    params = special.general.main.params
    dims = {d.symbol: n for p, a in zip(params, arrays, strict=False) for d, n in zip(p.dims, a.shape, strict=True) if d.symbol}
    return special.uniform if all(a.evaluate(dims) == b.evaluate(dims) for a, b in special.predicate) else special.general


def _prepared(module: Module, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Arguments of main after the passes: those given, then what "prepare" makes of the constants among them."""
    from disc_tf.ir.interp import evaluate

    main = module.main
    prepare = module.functions.get("prepare")
    given = list(arrays)
    if prepare is None:
        return given
    by_name = {info.name: a for info, a in zip([i for i in main.args if i.kind != "prepared"], given, strict=True)}
    return given + evaluate(prepare, [by_name[info.name] for info in prepare.args])


def _arguments(replay: Replay, graph: Graph, refs: Sequence[tuple[str, int]]) -> list[np.ndarray]:
    out = []
    for name, _ in refs:
        constant = graph.constant(name)
        out.append(replay.feeds[name] if name in replay.feeds else constant.array() if constant is not None else np.zeros(0))
    return out


def _compiled(replay: Replay, outputs: Sequence[str], directory: Path, threads: int) -> Answer | str:
    """The answer of this version's code, run in TensorFlow in a process of its own."""
    from disc_tf.optimizer import optimize_graph_def
    from disc_tf.runtime.cpu import native_target

    wanted = [*outputs, *(f"^{a}" for a in replay.asserts)]
    options = Options.from_overrides(min_cluster_size=1, use_tf_shapes=False, targets=[native_target()])
    try:
        result = optimize_graph_def(replay.graph, wanted, options)
    except GraphError as e:
        return f"not run: {e}"
    if not result.report.compiled_clusters:
        why = "; ".join(c.reason for c in result.report.clusters) or "; ".join(x.reason for x in result.report.left_out[:3])
        return f"not run: this version does not compile it: {why}"
    path = directory / "again.pb"
    _write(path, result.graph_def)
    return _tensorflow(path, replay, list(outputs), threads=threads)


def _described(answer: Answer) -> str:
    if isinstance(answer, Failure):
        return f"raises code {answer.code}: {answer.message.splitlines()[0] if answer.message else '?'}"
    return f"{len(answer)} results"


def _difference(names: Sequence[str], reference: Answer, answer: Answer, tolerance: float | None) -> str:
    """``same``, or what differs first."""
    if isinstance(reference, Failure) or isinstance(answer, Failure):
        if isinstance(reference, Failure) and isinstance(answer, Failure) and reference.code == answer.code:
            return "same"
        return _described(answer) if isinstance(answer, Failure) else "gives results where TensorFlow raises"
    for name, r, a in zip(names, reference, answer, strict=True):
        c = compare(r, a, tolerance=tolerance)
        if not c.ok:
            return f"{name}: {c.message}, worst error {c.max_abs:.3e}"
    return "same"


def _values(
    replay: Replay, directory: Path, tolerance: float | None, threads: int, notes: list[str]
) -> list[Difference]:
    """Every node's value in TensorFlow, the interpreter and compiled code: the first difference of each way."""
    clustering = _clusters(replay, replay.results)
    analysis = clustering.analysis
    assert analysis is not None
    inside = {n.name for c in clustering.clusters for n in c.nodes}
    given = {n.name for n in replay.graph.node}
    tensors = []
    for node in clustering.order:
        if node.name in inside and node.name in given and node.op != "Assert":
            tensors += [f"{node.name}:{p}" for p in range(len(node.output_types or ())) if (node.name, p) in analysis.values]
    if not tensors:
        notes.append("no value inside can be compared: the nodes became others when calls were inlined")
        return []
    everything = dataclasses.replace(replay, results=tensors, asserts=[])
    path = directory / "values.pb"
    _write(path, replay.graph)
    reference = _tensorflow(path, everything, tensors, reference=True, threads=threads)
    if isinstance(reference, Failure):
        notes.append(f"values inside were not compared: TensorFlow {_described(reference)}")
        return []
    ways: Mapping[str, Answer | str] = {
        **dict(zip(WAYS, _interpreted(everything, tensors, partly=True), strict=False)),
        "compiled again": _compiled(everything, tensors, directory, threads),
    }
    out = []
    for way, answer in ways.items():
        if isinstance(answer, (str, Failure)):
            notes.append(f"values inside, {way}: {answer if isinstance(answer, str) else _described(answer)}")
            continue
        compared = 0
        for name, r, a in zip(tensors, reference, answer, strict=True):
            if a is None:
                continue
            compared += 1
            c = compare(r, a, tolerance=tolerance)
            if not c.ok:
                out.append(Difference(way, name, f"{c.message}, worst error {c.max_abs:.3e}"))
                break
        else:
            notes.append(f"values inside, {way}: the same, all {compared} of them")
    return out

