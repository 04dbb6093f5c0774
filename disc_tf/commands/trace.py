"""`disc-tf trace MODEL -o trace.json`: where the time of a run goes, as a file for chrome://tracing and ui.perfetto.dev."""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from disc_tf.commands import optimize_model
from disc_tf.commands.common import (
    OK,
    USAGE,
    CommandError,
    add_packs_argument,
    check_distinct,
    check_output,
    check_sizes,
    default_outputs,
    description_beside,
    model_specs,
    own_names,
    parse_sizes,
    read_whole_graph,
    shape_text,
    share_packs,
    write_atomically,
)
from disc_tf.commands.kinds import is_optimized, is_standalone
from disc_tf.commands.optimize import add_option_flags, options_from
from disc_tf.commands.progress import Say
from disc_tf.commands.run import guarded, read_inputs
from disc_tf.commands.signers import add_trust_argument, refuse_local_code, set_trust
from disc_tf.commands.unused import FOR_MODELS, is_set, refuse
from disc_tf.commands.verify import at_least
from disc_tf.options import Options
from disc_tf.report import counted
from disc_tf.testing.inputs import InputSpec, make_feeds, sample_sizes, specs_from_json

#: lines of a cluster that are printed
_SHOWN = 20
#: of a stand-alone file, whose code is there already
_COMPILED = "is for graphs, which are compiled for the trace: a .disc file is run as it is"
_NOT_COMPILED = {f.name: _COMPILED for f in dataclasses.fields(Options)}
_ALONE = {
    "signature": "is for SavedModels: a .disc file is one signature",
    "tag": "is for SavedModels: a .disc file is one graph",
    "outputs": "is for graphs: a .disc file makes all of its outputs",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", help="a GraphDef (.pb, .pbtxt), optimised or not, the directory of a SavedModel, or a stand-alone file (.disc)"
    )
    parser.add_argument("-o", "--output", metavar="F.json", required=True, help="where the trace is written")
    parser.add_argument("--runs", type=at_least(1), default=5, metavar="N", help="runs to record; the first packs the weights")
    parser.add_argument("--shape", type=shape_text, metavar="DIMS", help="extents of the dims, e.g. B=2,S=37 (default: the largest known)")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=FILE.npy", help="an input's value (repeatable)")
    parser.add_argument("--inputs", metavar="FILE.npz", help="values of the inputs, by their names")
    parser.add_argument("--inputs-json", metavar="F", help="model description: inputs, outputs, points (default: MODEL with .json)")
    parser.add_argument("--outputs", nargs="+", default=[], metavar="T", help="output tensors (default: the graph's sinks)")
    parser.add_argument("--signature", metavar="KEY", help="of a SavedModel (default: serving_default)")
    parser.add_argument("--tag", nargs="+", default=[], metavar="TAG", help="of a SavedModel's MetaGraph (default: serve)")
    parser.add_argument("--threads", type=at_least(0), default=0, metavar="N", help="threads of a run (default: all)")
    parser.add_argument("--json", action="store_true", help="print the times as JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="print no progress")
    add_packs_argument(parser)
    add_trust_argument(parser, loads=True)
    add_option_flags(parser)


def run(args: argparse.Namespace) -> int:
    from disc_tf.insight.chrome_trace import trace_json

    check_distinct({"model": args.model, "inputs": args.inputs or None, "description": args.inputs_json or None, "output": args.output})
    check_output(args.output)
    if args.shape and (args.input or args.inputs):
        raise CommandError("--shape makes values up, --input and --inputs give them: one of the two", USAGE)
    given = read_inputs(args.input, args.inputs)
    share_packs(args.packs)
    say = Say(args.quiet or args.json)
    trace = _standalone if is_standalone(args.model) else _graph
    traced, at, notes = trace(args, given, say)
    say.clear()
    about = {"model": args.model, "at": at, "threads": args.threads or "all", "runs": args.runs}
    write_atomically(args.output, trace_json(traced.recording, traced.programs, traced.tensorflow, about))
    if traced.recording.dropped:
        notes.append(f"{traced.recording.dropped} events had no room in the trace: record fewer --runs")
    data = _summary(args, traced, at, notes)
    print(json.dumps(data, indent=2) if args.json else _text(args, data))
    return OK


Made = tuple[Any, str, list[str]]


def _standalone(args: argparse.Namespace, given: Mapping[str, np.ndarray], say: Say) -> Made:
    from disc_tf.insight.profile import argument_specs
    from disc_tf.insight.trace import trace_runner
    from disc_tf.runtime.artifact import ArtifactError
    from disc_tf.runtime.executable import DiscError
    from disc_tf.runtime.runner import load

    refuse(args, _ALONE | _NOT_COMPILED)
    set_trust(args.trust_file)
    try:
        with load(args.model) as runner:
            values, at = dict(given), "given inputs"
            if not given:
                specs, trace = _described(args, argument_specs(runner.executable.args, runner.executable.bound))
                values, at = _made_up(args, specs, trace, "")
            say(f"running {args.model} at {at}, {counted(args.runs, 'time')}")
            traced = trace_runner(runner, values, runs=args.runs, threads=args.threads)
    except (DiscError, ArtifactError, ValueError, TypeError) as e:
        raise CommandError(f"{args.model}: {e}" if args.model not in str(e) else str(e)) from e
    note = "small kernels are called directly: their time is the host program's (`disc-tf optimize --profile` makes a file that shows each)"
    return traced, at, [] if all(p.complete for p in traced.programs.values()) else [note]


def _described(args: argparse.Namespace, inputs: list[InputSpec]) -> tuple[list[InputSpec], list[dict[str, int]]]:
    """How values of a file's inputs are made, and shapes: by a description, else small integers and normal floats."""
    description = args.inputs_json or description_beside(args.model)
    if description is None:
        return inputs, []
    try:
        specs, _, trace = specs_from_json(description)
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise CommandError(f"{description} is not a model description (inputs, outputs, points): {e!r}") from e
    known = {s.name: s for s in specs}
    if missing := [x.name for x in inputs if x.name not in known]:
        raise CommandError(f"{description} does not describe input {', '.join(missing)} of {args.model}")
    return [known[x.name] for x in inputs], trace


def _made_up(
    args: argparse.Namespace, specs: Sequence[InputSpec], trace: Sequence[dict[str, int]], own: str
) -> tuple[dict[str, np.ndarray], str]:
    """Values by input, and the extents in words."""
    from disc_tf.insight.profile import largest

    sizes = parse_sizes([args.shape]) if args.shape else list(trace) or sample_sizes(specs, 6)
    check_sizes(specs, sizes, own)
    at = largest(sizes)
    words = ",".join(f"{k}={v}" for k, v in at.items()) or "fixed shapes"
    return dict(zip([s.name for s in specs], make_feeds(specs, at), strict=True)), words


def _graph(args: argparse.Namespace, given: Mapping[str, np.ndarray], say: Say) -> Made:
    """Compiled once more, for this machine, with every launch in sight, and run in TensorFlow."""
    from disc_tf.frontend.errors import GraphError
    from disc_tf.frontend.rewrite import LAUNCH_OP, restore
    from disc_tf.insight.trace import trace_graph
    from disc_tf.optimizer import optimize_graph_def
    from disc_tf.runtime.cpu import native_target
    from disc_tf.runtime.executable import DiscError

    options = options_from(args)
    refuse_local_code()
    refuse(args, ["trust_file"], "is for .disc files: the trace is of code that is compiled for it")
    names: dict[str, str] = {}
    notes: list[str] = []
    before: list[Any] = []
    if optimize_model.is_model(args.model):
        graph, outputs, names = _signature(args, say)
    else:
        refuse(args, {k: FOR_MODELS[k] for k in ("signature", "tag")})
        graph, outputs = read_whole_graph(args.model), list(args.outputs)
    try:
        if is_optimized(graph):
            before = [n.attr["original"].func.name for n in graph.node if n.op == LAUNCH_OP]
            graph = restore(graph)
        specs: list[InputSpec] = []
        trace: list[dict[str, int]] = []
        if not given:
            specs, outputs, trace = model_specs(args.model, graph, args.inputs_json, outputs)
        outputs = outputs or default_outputs(graph)
        values, at = dict(given), "given inputs"
        if not given:
            values, at = _made_up(args, specs, trace, "" if names else own_names(args.model, args.inputs_json))
        say("compiling for the trace")
        settings = options if is_set(args, "targets") else Options.from_overrides(options, targets=[native_target()])
        result = optimize_graph_def(graph, outputs, settings, profile=True)
    except GraphError as e:
        raise CommandError(f"{args.model}: {e}") from e
    after = [n.attr["original"].func.name for n in result.graph_def.node if n.op == LAUNCH_OP]
    if before and sorted(before) != sorted(after):
        notes.append("the file has other clusters (made with other options, or put back): the trace is of those that these options make")
    if not after:
        notes.append("nothing was compiled: the trace has TensorFlow's nodes only (disc-tf inspect says why)")
    feeds = _feeds(args, result.graph_def, values, {key: tensor for tensor, key in names.items()})
    say(f"running at {at}, {counted(args.runs, 'time')}")
    try:
        traced = guarded(args.model, lambda: trace_graph(result.graph_def, feeds, outputs, runs=args.runs, threads=args.threads))
    except DiscError as e:  # the recorder's own: what a run raises is TensorFlow's by then
        raise CommandError(f"{args.model}: {e}") from e
    return traced, at, notes


def _signature(args: argparse.Namespace, say: Callable[[str], None]) -> tuple[Any, list[str], dict[str, str]]:
    """The signature's graph, its outputs, and the keys that tensors have."""
    from disc_tf.frontend.saved_model import SavedModelError
    from disc_tf.standalone_model import freeze_signature

    refuse(args, ["outputs"], "is for GraphDefs: a SavedModel has signatures (--signature)")
    try:
        found = freeze_signature(args.model, args.signature or "serving_default", say, args.tag or None)
    except SavedModelError as e:
        raise CommandError(str(e)) from e
    return found.graph_def, found.outputs, found.names


def _feeds(args: argparse.Namespace, graph: Any, values: Mapping[str, np.ndarray], tensors: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Tensor -> value. ``tensors``: of a signature's keys. `CommandError` for an input that the graph does not have."""
    placeholders = [n.name for n in graph.node if n.op == "Placeholder"]
    known = {n: f"{n}:0" for n in placeholders} | {f"{n}:0": f"{n}:0" for n in placeholders} | dict(tensors)
    if unknown := [n for n in values if n not in known]:
        raise CommandError(f"{args.model}: unknown input {', '.join(unknown)}; the inputs are {', '.join(placeholders) or 'none'}")
    return {known[n]: v for n, v in values.items()}


def _summary(args: argparse.Namespace, traced: Any, at: str, notes: Sequence[str]) -> dict[str, Any]:
    """What is printed. Times of kernels are medians over the runs but the first, those of the wall clock means, which add up."""
    from disc_tf.insight.chrome_trace import Share, runs_us, shares
    from disc_tf.insight.wall import wall_rows

    skip = 1 if args.runs > 1 else 0
    windows = traced.windows[skip:]
    rows = wall_rows(windows, traced.recording.events, traced.tensorflow, tensorflow=traced.in_tensorflow)
    wall_us = sum(end - begin for begin, end in windows) / 1e3 / len(windows)
    found = shares(traced.recording, traced.programs, skip_runs=skip)
    every, later = runs_us(traced.recording), runs_us(traced.recording, skip)
    for c in every:
        inside = sum(s.us for s in found if s.cluster == c)
        if (beside := statistics.median(later[c]) - inside) > 0:
            found.append(Share(c, "entering and leaving the program", "", 1.0, beside))
    found.sort(key=lambda s: -s.us)
    clusters = {
        name: {
            "first_us": every[name][0],
            "run_us": statistics.median(later[name]),
            "shares": [{k: v for k, v in dataclasses.asdict(s).items() if k != "cluster"} for s in found if s.cluster == name],
        }
        for name in sorted(every, key=lambda name: -statistics.median(later[name]))
    }
    return {
        "trace": args.output, "at": at, "run_ms": traced.run_ms,
        "events": len(traced.recording.events) + len(traced.tensorflow),
        "wall_us": wall_us, "wall": [dataclasses.asdict(r) for r in rows],
        "dropped_events": traced.recording.dropped, "clusters": clusters, "notes": list(notes),
    }  # fmt: skip


def _text(args: argparse.Namespace, data: Mapping[str, Any]) -> str:
    lines = [f"wrote {args.output}: {counted(data['events'], 'event')} of {counted(args.runs, 'run')} at {data['at']}; "
             "open it in https://ui.perfetto.dev or chrome://tracing"]  # fmt: skip
    spent = data["run_ms"]
    rest = f", then {statistics.median(spent[1:]):.3f} ms" if len(spent) > 1 else ""
    lines.append(f"a run, as its caller sees it: first {spent[0]:.3f} ms{rest} (recorded runs are a little slower)")
    lines.append(f"its {data['wall_us'] / 1e3:.3f} ms (mean, without the first run):" if len(spent) > 1 else "its time:")
    shown = [r for r in data["wall"] if r["us"] >= data["wall_us"] / 1000] or data["wall"]
    for r in shown[:_SHOWN]:
        lines.append(f"  {r['us'] / 1e3:9.3f} ms {r['us'] / data['wall_us'] * 100:5.1f} %  {r['name']}")
    if hidden := data["wall"][len(shown[:_SHOWN]) :]:
        lines.append(f"  {sum(r['us'] for r in hidden) / 1e3:9.3f} ms          and {len(hidden)} more")
    for name, c in data["clusters"].items():
        lines.append(f"{name}: {c['run_us'] / 1e3:.3f} ms a run, the first {c['first_us'] / 1e3:.3f} ms")
        for s in c["shares"][:_SHOWN]:
            share = s["us"] / c["run_us"] * 100 if c["run_us"] else 0.0
            kernel = f"  [{s['kernel']}]" if s["kernel"] and s["kernel"] != s["name"] else ""
            lines.append(f"  {s['us'] / 1e3:9.3f} ms {share:5.1f} %  {s['calls']:5.4g} x  {s['name']}{kernel}")
        if len(c["shares"]) > _SHOWN:
            left = sum(s["us"] for s in c["shares"][_SHOWN:])
            lines.append(f"  {left / 1e3:9.3f} ms          and {len(c['shares']) - _SHOWN} more")
    lines += [f"note: {n}" for n in data["notes"]]
    return "\n".join(lines)
