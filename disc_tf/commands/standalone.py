"""`disc-tf optimize GRAPH -o MODEL.disc`: the whole graph as one file that runs without TensorFlow, proved before it is there."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from disc_tf.commands.common import (
    BAD_INPUT,
    NOTHING_COMPILED,
    OK,
    USAGE,
    VERIFY_FAILED,
    CommandError,
    binary_form,
    check_distinct,
    check_output,
    check_sizes,
    model_specs,
    parse_sizes,
    read_whole_graph,
)
from disc_tf.options import Options
from disc_tf.report import shape_line

SUFFIX = ".disc"


def run(args: argparse.Namespace, options: Options, say: Callable[[str], None]) -> int:
    """Compile, compare with TensorFlow, publish. A file that differs from TensorFlow is not written."""
    from disc_tf.frontend.errors import GraphError
    from disc_tf.standalone import NotWhole, compile_graph_def

    if args.external_weights:
        raise CommandError("--external-weights is for graphs: a .disc file is mapped as it is", USAGE)
    check_distinct({"input": args.input, "output": args.output, "report": args.report or None})
    target = check_output(args.output)
    if args.report:
        check_output(args.report)
    graph = read_whole_graph(args.input)
    say(f"read {args.input}: {len(graph.node)} nodes")
    specs, outputs, trace = ([], list(args.outputs), [])
    if not args.no_verify:
        specs, outputs, trace = model_specs(args.input, graph, args.inputs_json, args.outputs)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temp:
        made = Path(temp) / target.name
        try:
            found = compile_graph_def(graph, outputs or None, made, options=options, progress=say)
        except NotWhole as e:
            raise CommandError(f"{args.input}: {e}", NOTHING_COMPILED) from e
        except GraphError as e:
            raise CommandError(f"{args.input}: {e}", BAD_INPUT) from e
        report: dict[str, Any] = {
            "output": args.output, "inputs": found.inputs, "outputs": found.outputs, "kernels": found.kernels,
            "weight_bytes": found.weight_bytes, "file_bytes": found.file_bytes, "times_ms": found.times_ms,
            "segments": [{"waits_for": needs, "makes": makes} for needs, makes in found.segments], "verified": None,
        }  # fmt: skip
        if not args.no_verify:
            sizes = parse_sizes(args.shape) or (trace[: args.points] if trace else None)
            report["verified"] = _prove(args, graph, made, specs, sizes, Path(temp), say)
        os.replace(made, target)
    if args.report:
        Path(args.report).write_text(json.dumps(report, indent=2))
    if args.json:
        print(json.dumps(report, indent=2))
    elif not args.quiet:
        print(_text(report))
    return OK


def _prove(args: argparse.Namespace, graph: Any, made: Path, specs: Any, sizes: Any, temp: Path, say: Callable[[str], None]) -> bool:
    """Whether results could be compared with TensorFlow's. `CommandError` if one differs."""
    from disc_tf.frontend.load import load as load_graph
    from disc_tf.runtime.executable import DiscError
    from disc_tf.runtime.runner import load
    from disc_tf.testing.inputs import sample_sizes
    from disc_tf.testing.standalone_check import verify_runner

    if sizes is None:
        sizes = sample_sizes(specs, args.points)
    check_sizes(specs, sizes)
    try:
        runner = load(made)
    except DiscError as e:
        say(f"not verified: {e.message}")
        return False
    fetches = load_graph(graph, args.outputs or list(runner.outputs)).fetches
    names = [f"{n}:{port}" for n, port in fetches]
    say(f"verifying at {len(sizes)} shapes against TensorFlow")
    used = [s for s in specs if s.name in runner.inputs]
    found = verify_runner(binary_form(args.input, graph, temp), runner, used, names, sizes, threads=args.threads)
    for r in found:
        if not r.ok:
            raise CommandError(f"{args.input}: verification failed, {args.output} was not written: {shape_line(r)}", VERIFY_FAILED)
    compared = sum(bool(r.max_abs) for r in found)
    say(f"{compared} of {len(found)} shapes compared: equal" if compared else "not verified: TensorFlow fails at all shapes")
    return compared > 0


def _text(report: dict[str, Any]) -> str:
    state = {True: "verified against TensorFlow", False: "not verified", None: "not verified (--no-verify)"}[report["verified"]]
    lines = [
        f"{report['output']}: {report['file_bytes'] / 1e6:.1f} MB, {report['weight_bytes'] / 1e6:.1f} MB of weights, "
        f"{report['kernels']} kernels, {state}",
        f"  inputs:  {', '.join(report['inputs']) or 'none'}",
        f"  outputs: {', '.join(report['outputs'])}",
    ]
    for s in report["segments"] if len(report["segments"]) > 1 else ():
        lines.append(f"  after {', '.join(s['waits_for']) or 'nothing'}: {', '.join(s['makes']) or 'intermediate results'}")
    return "\n".join(lines)
