"""`disc-tf inspect --kernels`: what each kernel takes, and what the cost model says that it takes."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from disc_tf.commands.common import (
    BAD_INPUT,
    NOTHING_COMPILED,
    OK,
    USAGE,
    CommandError,
    check_distinct,
    check_output,
    check_sizes,
    model_specs,
    own_names,
    parse_sizes,
    read_whole_graph,
)
from disc_tf.commands.kinds import is_optimized, is_standalone
from disc_tf.commands.optimize_model import is_model
from disc_tf.commands.progress import Say
from disc_tf.commands.reports import write_report
from disc_tf.commands.signers import VARIABLE, set_trust
from disc_tf.commands.unused import refuse
from disc_tf.extras import COMPILING, require
from disc_tf.options import Options
from disc_tf.report import ClusterProfile, Report, counted
from disc_tf.scratch import scratch

if TYPE_CHECKING:
    from disc_tf.testing.inputs import InputSpec

#: flags of `inspect` that go with --kernels only
FLAGS = ("shape", "threads", "inputs_json", "signature")
_COMPILED_HERE = "(its kernels are compiled again for this machine, with this version and the options given here)"
_AS_IT_IS = (
    "(this file does not say what its kernels have to do, and calls small ones itself: for predictions give the graph, "
    "or a file made by `disc-tf optimize --profile`)"
)


def run(args: argparse.Namespace, options: Options) -> int:
    """Compile for this machine, run, print. `CommandError` for what cannot be compiled or run."""
    refuse(args, ["explain", "draw"], "does not go with --kernels: give one of the two")
    refuse(args, ["targets"], "does not go with --kernels, which is about this machine: leave it out")
    refuse(args, ["dump_dir", "segments"], "is for `disc-tf optimize`: leave it out")
    check_distinct({"input": args.input, "report": args.report})
    if args.report:
        check_output(args.report)
    say = Say(args.json)
    if is_standalone(args.input):
        return _standalone(args, say)
    refuse(args, ["trust_file"], "is for code that is loaded: --kernels compiles what it runs")
    if policy := os.environ.get(VARIABLE):
        why = "is set, and nobody signs what is compiled here, so it cannot be run: unset it for this command"
        raise CommandError(f"{VARIABLE}={policy} {why}", USAGE)
    require("inspect --kernels", "compiler", (*COMPILING, "tensorflow"))
    return _compiled(args, options, _model(args, say) if is_model(args.input) else _graph(args), say)


@dataclasses.dataclass
class _Source:
    """The original graph, the outputs that are asked for, a note for the reader, and what placeholders are called in ``--shape``."""

    graph: Any
    outputs: list[str]
    note: str = ""
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def specs(self, args: argparse.Namespace) -> tuple[list[InputSpec], list[str], list[dict[str, int]]]:
        """As `model_specs`."""
        specs, outputs, trace = model_specs(args.input, self.graph, args.inputs_json, self.outputs)
        return [dataclasses.replace(s, dims=tuple(self._dim(d) for d in s.dims)) for s in specs], outputs, trace

    def _dim(self, d: int | str) -> int | str:
        if isinstance(d, int):
            return d
        name, slash, axis = d.rpartition("/")
        return self.names.get(name, name) + slash + axis


def _graph(args: argparse.Namespace) -> _Source:
    from disc_tf.frontend.errors import GraphError
    from disc_tf.frontend.rewrite import restore

    refuse(args, ["signature"], "is for SavedModels: name a graph's outputs (--outputs)")
    graph = read_whole_graph(args.input)
    if not is_optimized(graph):
        return _Source(graph, list(args.outputs))
    try:
        return _Source(restore(graph), list(args.outputs), _COMPILED_HERE)
    except GraphError as e:
        raise CommandError(f"{args.input}: {e}", BAD_INPUT) from e


def _model(args: argparse.Namespace, say: Say) -> _Source:
    from disc_tf.frontend.saved_model import SavedModelError
    from disc_tf.standalone_model import freeze_signature

    refuse(args, ["outputs"], "is for GraphDefs: a SavedModel has signatures (--signature)")
    refuse(args, ["inputs_json"], "is for GraphDefs: a SavedModel has signatures (--signature)")
    signature = args.signature or "serving_default"
    try:
        found = freeze_signature(args.input, signature, say)
    except SavedModelError as e:
        raise CommandError(f"{args.input}: {e}" if args.input not in str(e) else str(e), BAD_INPUT) from e
    names = {tensor.rpartition(":")[0]: key for tensor, key in found.names.items()}
    return _Source(found.graph_def, found.outputs, f"(signature {signature} with the variables' values baked in)", names)


def _compiled(args: argparse.Namespace, options: Options, source: _Source, say: Say) -> int:
    from disc_tf.frontend.errors import GraphError
    from disc_tf.insight.profile import compile_for_profile, largest, profile_graph
    from disc_tf.testing.inputs import sample_sizes
    from disc_tf.testing.tf_process import TfError

    specs, outputs, trace = source.specs(args)
    given = parse_sizes(args.shape)
    check_sizes(specs, given, "" if source.names else own_names(args.input, args.inputs_json))
    sizes = given or [largest(trace or sample_sizes(specs, 6))]
    try:
        result = compile_for_profile(source.graph, outputs or None, options, say)
    except GraphError as e:
        raise CommandError(f"{args.input}: {e}", BAD_INPUT) from e
    report = result.report
    if not report.compiled_clusters:
        why = f"nothing is compiled, so there are no kernels: `disc-tf inspect {args.input}` says why"
        raise CommandError(f"{args.input}: {why}", NOTHING_COMPILED)
    _announce(say)
    try:
        with scratch() as temp:
            report.profile, report.machine = profile_graph(result, specs, sizes, temp, threads=args.threads)
    except TfError as e:
        reason = str(e).splitlines()[0]
        raise CommandError(f"{args.input} cannot be run: {reason}; give other shapes (--shape) or values (--inputs-json)", BAD_INPUT) from e
    if args.report:
        write_report(args.report, report, args.input)
    _print(args, report, source.note)
    return OK


def _standalone(args: argparse.Namespace, say: Say) -> int:
    from disc_tf.insight.profile import profile_file, standalone_specs
    from disc_tf.runtime import DiscError
    from disc_tf.runtime.artifact import ArtifactError
    from disc_tf.testing.inputs import sample_sizes

    refuse(args, ["outputs", "report", "inputs_json", "signature"], "is for graphs: a stand-alone file is run as it is")
    require("inspect --kernels", "compiler", COMPILING)
    set_trust(args.trust_file)
    try:
        specs = standalone_specs(args.input)
        sizes = parse_sizes(args.shape)
        check_sizes(specs, sizes)
        _announce(say)
        report = Report()
        for at in sizes or [sample_sizes(specs, 6)[5]]:
            profile, report.machine = profile_file(args.input, specs, at, threads=args.threads)
            report.profile.append(profile)
    except (ArtifactError, DiscError, OSError, ValueError) as e:
        raise CommandError(f"{args.input}: {e}" if args.input not in str(e) else str(e), BAD_INPUT) from e
    known = any(k.predicted_us is not None for p in report.profile for k in p.kernels)
    _print(args, report, "" if known else _AS_IT_IS)
    return OK


def _announce(say: Say) -> None:
    from disc_tf.testing.timing import busy

    if note := busy():
        say(note)
    say("timing kernels")


def _print(args: argparse.Namespace, report: Report, note: str) -> None:
    from disc_tf.insight.profile import totals

    failed = [p for p in report.profile if p.message]
    for p in failed:
        print(f"disc-tf: {args.input}: {p.cluster} was not timed: {p.message}", file=sys.stderr)
    if args.json:
        profiles = [{**dataclasses.asdict(p), "totals": dataclasses.asdict(totals(p))} for p in report.profile]
        print(json.dumps({"input": args.input, "note": note, "machine": report.machine, "profiles": profiles}, indent=2))
        return
    lines = [_machine(report.machine), *([note] if note else [])]
    for p in report.profile:
        lines += ["", *table(p)]
    print("\n".join(lines))


def _machine(machine: Mapping[str, Any]) -> str:
    levels = ", ".join(f"{rate:.0f} GB/s up to {_bytes(size)}" for size, rate in machine["bandwidth"])
    caches = " and ".join(_bytes(size) for size in machine["caches"]) or "unknown"
    what = f"{machine['isa']}, {counted(machine['threads'], 'thread')}"
    return f"this machine, {what}: {machine['gflops']:.0f} GFLOP/s, {levels}; caches {caches}"


def table(p: ClusterProfile) -> list[str]:
    """A profile as lines: its kernels by the time that they took, and their sum."""
    from disc_tf.insight.profile import totals

    shapes = ", ".join(f"{name} {dims}" for name, dims in p.shapes.items())
    head = f"{p.cluster} at {shapes or 'no inputs'}"
    if p.message:
        return [f"{head}: not timed: {p.message}"]
    sums = totals(p)
    notes = dict.fromkeys(k.note for k in p.kernels if k.note)
    marks = {note: "*" * (i + 1) for i, note in enumerate(notes)}
    rows = [
        [
            f"{k.us:.1f}", _or(k.predicted_us, "{:.1f}"), str(k.calls), k.kind, _or(k.flops and k.flops / 1e6, "{:.1f}"),
            _or(k.bytes and k.bytes / 1e3, "{:.0f}"), _or(k.roofline and 100 * k.roofline, "{:.0f} %") + marks.get(k.note, ""), k.bound,
            _nodes(k.nodes, k.symbol),
        ]
        for k in p.kernels
    ]  # fmt: skip
    share = _or(sums.roofline and 100 * sums.roofline, "{:.0f} %")
    sizes = [_or(sums.flops / 1e6, "{:.1f}"), _or(sums.bytes / 1e3, "{:.0f}")]
    predicted = _or(sums.predicted_us, "{:.1f}")
    rows.append([f"{sums.us:.1f}", predicted, str(sums.calls), f"{len(p.kernels)} in all", *sizes, share, "", ""])
    names = ["us", "predicted", "calls", "kind", "MFLOP", "kB", "roofline", "bound by", "nodes"]
    widths = [max(len(r[i]) for r in [names, *rows]) for i in range(len(names))]
    left = {3, 7, 8}
    lines = [
        "  ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))).rstrip()
        for r in [names, *rows]
    ]
    order = f"; rank correlation of predictions with times {sums.correlation:.2f}" if sums.correlation is not None else ""
    first = f"{head}: {p.run_us:.1f} us a run, {p.other_us:.1f} us of them beside these kernels{order}"
    return [first, *lines, *(f"{marks[n]:2} {n}" for n in notes)]


def _or(value: float | None, form: str) -> str:
    return form.format(value) if value else "-"


def _nodes(nodes: Sequence[str], symbol: str) -> str:
    """The first node, or the symbol of what has none, and the number of the others."""
    if not nodes:
        return symbol
    return nodes[0] + (f" +{len(nodes) - 1}" if len(nodes) > 1 else "")


def _bytes(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
