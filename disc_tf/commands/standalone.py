"""`disc-tf optimize MODEL -o MODEL.disc`: a graph or a signature as one file that runs without TensorFlow, proved before it is there."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from disc_tf.commands import optimize_model
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
    write_atomically,
)
from disc_tf.commands.reports import is_html
from disc_tf.frontend.tfproto import serialized
from disc_tf.options import Options
from disc_tf.report import shape_line

SUFFIX = ".disc"

#: flags of `optimize` that a .disc file has no use for -> what is said
_NOT_HERE = {
    "external_weights": "--external-weights is for graphs: a .disc file is mapped as it is",
    "tag": "--tag does not go with a .disc file, which is made of the graph that is tagged serve: leave it out",
    "all_functions": "--all-functions does not go with a .disc file, which is made of one signature (--signature): leave it out",
    "freeze": "--freeze does not go with a .disc file, which always has the variables' values: leave it out",
    "overwrite": "--overwrite does not go with a .disc file, which is replaced if it is there: leave it out",
    "capture": "--capture is for clusters in graphs: optimise to a graph (-o NAME.pb) for replay files",
    "no_timing": "--no-timing does not go with a .disc file, which is not timed: leave it out",
}


def run(args: argparse.Namespace, options: Options, say: Callable[[str], None]) -> int:
    """Compile, compare with TensorFlow, publish. A file that differs from TensorFlow is not written."""
    from disc_tf.frontend.errors import GraphError
    from disc_tf.standalone import NotCompiled, NotWhole

    for flag, message in _NOT_HERE.items():
        if getattr(args, flag):
            raise CommandError(message, USAGE)
    if args.signature and not optimize_model.is_model(args.input):
        raise CommandError("--signature is for SavedModels: name a graph's outputs (--outputs)", USAGE)
    if is_html(args.report):
        raise CommandError(f"--report {args.report}: the report of a .disc file is JSON, give another name", USAGE)
    check_distinct({"input": args.input, "output": args.output, "report": args.report or None})
    target = check_output(args.output)
    if args.report:
        check_output(args.report)
    try:
        report = _make(args, options, target, say)
    except (NotWhole, NotCompiled) as e:
        raise CommandError(f"{args.input}: {e}", NOTHING_COMPILED) from e
    except GraphError as e:
        raise CommandError(f"{args.input}: {e}", BAD_INPUT) from e
    except OSError as e:
        raise CommandError(f"cannot write {args.output}: {e}") from e
    text = json.dumps(report, indent=2)
    if args.report:
        write_atomically(args.report, text.encode())
    if args.json:
        print(text)
    elif not args.quiet:
        print(_text(report))
    return OK


def _make(args: argparse.Namespace, options: Options, target: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Publish the file; its report. Raises what `compile_graph_def` does."""
    from disc_tf.standalone import compile_graph_def

    names: dict[str, str] = {}
    if optimize_model.is_model(args.input):
        graph, outputs, names = _signature(args, say)
    else:
        graph, outputs = read_whole_graph(args.input), list(args.outputs)
    say(f"read {args.input}: {len(graph.node)} nodes")
    specs, trace = [], []
    if not args.no_verify:
        specs, outputs, trace = model_specs(args.input, graph, args.inputs_json, outputs)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temp:
        made = Path(temp) / target.name
        found = compile_graph_def(graph, outputs or None, made, options=options, names=names, progress=say)
        report: dict[str, Any] = {
            "output": args.output, "inputs": found.inputs, "outputs": found.outputs, "kernels": found.kernels,
            "weight_bytes": found.weight_bytes, "file_bytes": found.file_bytes, "times_ms": found.times_ms,
            "segments": [{"waits_for": needs, "makes": makes} for needs, makes in found.segments], "verified": None,
        }  # fmt: skip
        if not args.no_verify:
            sizes = parse_sizes(args.shape) or (trace[: args.points] if trace else None)
            file = Path(temp) / "frozen.pb"
            if names:
                file.write_bytes(serialized(graph))
            original = file if names else binary_form(args.input, graph, temp)
            report["verified"] = _prove(args, original, made, specs, outputs, names, sizes, say)
        os.replace(made, target)
    return report


def _signature(args: argparse.Namespace, say: Callable[[str], None]) -> tuple[Any, list[str], dict[str, str]]:
    """The graph of the model's signature, its outputs, and the keys that tensors have."""
    from disc_tf.frontend.saved_model import SavedModelError
    from disc_tf.standalone_model import freeze_signature

    if len(args.signature) > 1 or args.outputs:
        raise CommandError("a .disc file is made of one signature (--signature), all its outputs", USAGE)
    try:
        found = freeze_signature(args.input, (args.signature or ["serving_default"])[0], say)
    except SavedModelError as e:
        raise CommandError(str(e)) from e
    return found.graph_def, found.outputs, found.names


def _prove(
    args: argparse.Namespace, original: str | Path, made: Path, specs: Any, outputs: list[str], names: dict[str, str], sizes: Any,
    say: Callable[[str], None],
) -> bool:  # fmt: skip
    """Whether results could be compared with TensorFlow's. `CommandError` if one differs."""
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
    fetches = [n if ":" in n else f"{n}:0" for n in outputs or runner.outputs]
    say(f"verifying at {len(sizes)} shapes against TensorFlow")
    public: dict[str, str] = {s.name: names.get(f"{s.name}:0", str(s.name)) for s in specs}
    used = [s for s in specs if public[s.name] in runner.inputs]
    found = verify_runner(original, runner, used, fetches, sizes, names=public, threads=args.threads)
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
