"""`disc-tf optimize MODEL -o MODEL.disc`: a graph or a signature as one file that runs without TensorFlow, proved before it is there."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
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
    own_names,
    parse_sizes,
    read_whole_graph,
)
from disc_tf.commands.kinds import refuse_as_input
from disc_tf.commands.reports import write_report, write_standalone
from disc_tf.commands.unused import FOR_MODELS, STANDALONE, refuse
from disc_tf.frontend.tfproto import serialized
from disc_tf.options import Options
from disc_tf.proof import why_nothing
from disc_tf.report import FOREIGN, NOT_VERIFIED, Report, ShapeResult, counted, shape_line, verified_text
from disc_tf.scratch import scratch
from disc_tf.testing.inputs import dim_names, make_feeds


def run(args: argparse.Namespace, options: Options, say: Callable[[str], None]) -> int:
    """Compile, compare with TensorFlow, publish. A file that differs from TensorFlow is not written."""
    refuse(args, STANDALONE)
    if not optimize_model.is_model(args.input):
        refuse(args, FOR_MODELS)
    check_distinct({"input": args.input, "output": args.output, "report": args.report or None})
    if args.report:
        check_output(args.report)
    if args.dry_run:
        return _dry_run(args, options, say)
    target = check_output(args.output)
    try:
        with _refusals(args.input):
            report, whole = _make(args, options, target, say)
    except OSError as e:
        raise CommandError(f"cannot write {args.output}: {e}") from e
    if args.report:
        write_standalone(args.report, report, whole, args.input)
    if args.json:
        print(json.dumps(report, indent=2))
    elif not args.quiet:
        print(_text(report))
    return OK


@contextlib.contextmanager
def _refusals(source: str) -> Iterator[None]:
    """What the compiler says of a graph that it does not take, as the command's errors."""
    from disc_tf.frontend.errors import GraphError
    from disc_tf.standalone import NotCompiled, NotWhole

    try:
        yield
    except (NotWhole, NotCompiled) as e:
        raise CommandError(f"{source}: {e}", NOTHING_COMPILED) from e
    except GraphError as e:
        raise CommandError(f"{source}: {e}", BAD_INPUT) from e


def _dry_run(args: argparse.Namespace, options: Options, say: Callable[[str], None]) -> int:
    """Say whether the whole would be compiled. `CommandError` with the nodes that would not."""
    from disc_tf.commands.optimize import quiet_specs
    from disc_tf.standalone import describe_whole

    with _refusals(args.input):
        graph, outputs, _ = _read(args, args.input, say)
        if not outputs:
            _, outputs, _ = quiet_specs(args, graph)
        report = describe_whole(graph, outputs or None, options=options)
    if args.report:
        write_report(args.report, report, args.input)
    if args.json:
        print(report.to_json())
    elif not args.quiet:
        print(f"the whole would be compiled: {counted(report.compute_nodes, 'op')}\ndry run: nothing was compiled, verified or written")
    return OK


def _read(args: argparse.Namespace, source: str | Path, say: Callable[[str], None]) -> tuple[Any, list[str], dict[str, str]]:
    """The graph of ``source`` (the input, or what it was saved as), its outputs (empty: not said), and the keys that tensors of a
    signature have."""
    if optimize_model.is_model(args.input):
        graph, outputs, names = _signature(args, source, say)
    else:
        graph, outputs, names = read_whole_graph(args.input), list(args.outputs), {}
        refuse_as_input(args.input, graph)
    say(f"read {args.input}: {counted(len(graph.node), 'node')}")
    return graph, outputs, names


def _make(args: argparse.Namespace, options: Options, target: Path, say: Callable[[str], None]) -> tuple[dict[str, Any], Report]:
    """Publish the file; its report, and that of the whole as a cluster. Raises what `compile_graph_def` does."""
    from disc_tf.standalone import compile_graph_def

    with contextlib.ExitStack() as stack:
        hosts = optimize_model.early_hosts(args, options, stack, timing=False)
        model = stack.enter_context(_model(args, say)) if optimize_model.is_model(args.input) else None
        graph, outputs, names = _read(args, model or args.input, say)
        specs, sizes = [], None
        if not args.no_verify:
            specs, outputs, trace = model_specs(args.input, graph, args.inputs_json, outputs)
            sizes = parse_sizes(args.shape) or trace[: args.points] or None
            check_sizes(specs, sizes or [], "" if names else own_names(args.input, args.inputs_json))
        temp = stack.enter_context(scratch(f".{target.name}.", target.parent))
        made = temp / target.name
        found = compile_graph_def(graph, outputs or None, made, options=options, names=names, profile=args.profile, progress=say)
        report: dict[str, Any] = {
            "output": args.output, "inputs": found.inputs, "outputs": found.outputs, "kernels": found.kernels,
            "weight_bytes": found.weight_bytes, "file_bytes": found.file_bytes, "times_ms": found.times_ms,
            "segments": [{"waits_for": needs, "makes": makes} for needs, makes in found.segments], "verified": None, "shapes": [],
        }  # fmt: skip
        if args.no_verify:
            found.report.warnings.append(NOT_VERIFIED)
        elif hosts is None:
            say(FOREIGN)
            report["verified"] = False
            found.report.warnings.append(FOREIGN)
        else:
            file = Path(temp) / "frozen.pb"
            if names:
                file.write_bytes(serialized(graph))
            original = file if names else binary_form(args.input, graph, temp, original=True)
            shapes = _prove(args, model, original, made, specs, outputs, names, sizes, say, hosts)
            report["verified"] = any(r.compared for r in shapes)
            report["shapes"] = [vars(r) for r in shapes]
            found.report.verification = shapes
            found.report.verified = report["verified"] or None
            found.report.routes = [ROUTE]
        os.replace(made, target)
    return report, found.report


#: how users load the file
ROUTE = "disc_tf.runtime.load"


@contextlib.contextmanager
def _model(args: argparse.Namespace, say: Callable[[str], None]) -> Iterator[Path]:
    """The SavedModel that the input is, or is saved as."""
    from disc_tf.frontend.saved_model import SavedModelError
    from disc_tf.saved_model_source import as_directory

    try:
        with as_directory(args.input, progress=say) as directory:
            yield directory
    except SavedModelError as e:
        raise CommandError(str(e)) from e


def _signature(args: argparse.Namespace, source: str | Path, say: Callable[[str], None]) -> tuple[Any, list[str], dict[str, str]]:
    """The graph of the model's signature, its outputs, and the keys that tensors have."""
    from disc_tf.frontend.saved_model import SavedModelError
    from disc_tf.standalone_model import freeze_signature

    if len(args.signature) > 1 or args.outputs:
        raise CommandError("a .disc file is made of one signature (--signature), all its outputs", USAGE)
    try:
        found = freeze_signature(source, _signature_name(args), say, args.tag or None)
    except SavedModelError as e:
        raise CommandError(str(e)) from e
    return found.graph_def, found.outputs, found.names


def _prove(
    args: argparse.Namespace, model: str | Path | None, original: str | Path, made: Path, specs: Any, outputs: list[str],
    names: dict[str, str], sizes: Any, say: Callable[[str], None], hosts: Any,
) -> list[ShapeResult]:  # fmt: skip
    """The results, those that TensorFlow gave none to compare with included. ``model``: of which the graph is a signature, made constant;
    then its own answers count. `CommandError` if one differs, or if the file does not load."""
    from disc_tf.testing.inputs import sample_sizes
    from disc_tf.testing.random_outputs import draws_random
    from disc_tf.testing.standalone_check import FileProcess, verify_file
    from disc_tf.testing.tf_process import ProcessFailed, TfError, TfProcess

    if sizes is None:
        sizes = sample_sizes(specs, args.points)
    with contextlib.ExitStack() as stack:
        try:
            process = stack.enter_context(FileProcess(made, threads=args.threads))
        except (ProcessFailed, TfError) as e:
            why = f"verification failed, {args.output} was not written: it does not load: {e}"
            raise CommandError(f"{args.input}: {why}", VERIFY_FAILED) from e
        fetches = [n if ":" in n else f"{n}:0" for n in outputs or process.info["outputs"]]
        say(f"verifying at {counted(len(sizes), 'shape')} against TensorFlow")
        public: dict[str, str] = {s.name: names.get(f"{s.name}:0", str(s.name)) for s in specs}
        used = [s for s in specs if public[s.name] in process.info["inputs"]]
        try:
            feeds = [f"{s.name}:0" for s in used]
            reference: Any = stack.enter_context(TfProcess(original, feeds, fetches, reference=True, threads=args.threads, hosts=hosts))
            random = draws_random(reference.info["ops"])
            if model is not None:
                ends = [public[s.name] for s in used], [names[f] for f in fetches]
                reference = stack.enter_context(_signature_side(args, model, *ends, hosts))
        except (ProcessFailed, TfError) as e:
            say(f"not verified: TensorFlow does not load the original: {e}")
            return []
        found = verify_file(reference, process, used, fetches, sizes, names=public, random=random)
    for r in found:
        if not r.ok:
            raise CommandError(f"{args.input}: verification failed, {args.output} was not written: {shape_line(r)}", VERIFY_FAILED)
    compared = sum(r.compared for r in found)
    say(f"{compared} of {len(found)} shapes compared: equal" if compared else f"not verified: {why_nothing(found)}")
    return found


@contextlib.contextmanager
def _signature_side(
    args: argparse.Namespace, model: str | Path, inputs: Sequence[str], outputs: Sequence[str], hosts: Any
) -> Iterator[Any]:
    """The signature of the model as it was given, its variables in place. `ProcessFailed` or `TfError`."""
    from disc_tf.testing.signatures import plan_model
    from disc_tf.testing.tf_process import SavedModelProcess, SignatureSide

    name = _signature_name(args)
    plan = plan_model(model, tags=args.tag or None, signatures=[name])
    settings = {"tags": plan.tags, "loader": plan.loader, "reference": True, "threads": args.threads, "hosts": hosts}
    with SavedModelProcess(model, **settings) as process:
        yield _Filled(SignatureSide(process, name, plan.signatures[name].inputs, outputs), plan.signatures[name], inputs)


class _Filled:
    """A side that is fed ``inputs`` only; the plan's others, which no output needs, get any values."""

    def __init__(self, side: Any, plan: Any, inputs: Sequence[str]) -> None:
        self.side, self.plan, self.inputs = side, plan, list(inputs)
        self.others = dict(zip(plan.inputs, make_feeds(plan.specs, dict.fromkeys(dim_names(plan.specs), 1)), strict=False))

    def run(self, feeds: Sequence[Any]) -> list[Any]:
        given = dict(zip(self.inputs, feeds, strict=True))
        return self.side.run([given[name] if name in given else self.others[name] for name in self.plan.inputs])


def _signature_name(args: argparse.Namespace) -> str:
    return (args.signature or ["serving_default"])[0]


def _text(report: dict[str, Any]) -> str:
    verified = verified_text({"": [ShapeResult(**s) for s in report["shapes"]]}, [ROUTE])
    state = {True: verified, False: "not verified", None: "not verified (--no-verify)"}[report["verified"]]
    lines = [
        f"{report['output']}: {report['file_bytes'] / 1e6:.1f} MB, {report['weight_bytes'] / 1e6:.1f} MB of weights, "
        f"{report['kernels']} kernels, {state}",
        f"  inputs:  {', '.join(report['inputs']) or 'none'}",
        f"  outputs: {', '.join(report['outputs'])}",
    ]
    for s in report["segments"] if len(report["segments"]) > 1 else ():
        lines.append(f"  after {', '.join(s['waits_for']) or 'nothing'}: {', '.join(s['makes']) or 'intermediate results'}")
    return "\n".join(lines)
