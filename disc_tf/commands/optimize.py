"""`disc-tf optimize`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from disc_tf.commands import optimize_model, remote, standalone
from disc_tf.commands.common import (
    BAD_INPUT,
    NOTHING_COMPILED,
    OK,
    STANDALONE_SUFFIX,
    USAGE,
    VERIFY_FAILED,
    CommandError,
    binary_form,
    check_distinct,
    check_output,
    check_output_directory,
    check_sizes,
    model_specs,
    own_names,
    parse_sizes,
    read_whole_graph,
    write_atomically,
)
from disc_tf.commands.kinds import refuse_as_input
from disc_tf.commands.output import staged_file
from disc_tf.commands.progress import Say
from disc_tf.commands.reports import REPORT_HELP, add_profile, is_html, write_report
from disc_tf.commands.signers import refuse_local_code
from disc_tf.commands.unused import FOR_MODELS, NOT_RUN, ONE_SEGMENT, refuse
from disc_tf.commands.verify import add_shape_arguments
from disc_tf.options import OptionError, Options, make_dump_dir
from disc_tf.report import FOREIGN, NOT_VERIFIED, Report, counted, shape_line
from disc_tf.scratch import scratch


def add_option_flags(parser: argparse.ArgumentParser) -> None:
    """A flag for every field of `Options`."""
    group = parser.add_argument_group("compiler options")
    for field in dataclasses.fields(Options):
        meta = field.metadata
        if not meta["flag"]:
            continue
        doc = meta["doc"].replace("%", "%%")  # argparse formats help texts
        if isinstance(field.default, bool):
            action = argparse.BooleanOptionalAction if field.default else "store_true"
            group.add_argument(meta["flag"], dest=field.name, action=action, default=None, help=doc)
        elif isinstance(field.default, tuple):
            group.add_argument(
                meta["flag"], dest=field.name, action="append", default=None, metavar=meta["metavar"], help=doc
            )
        else:
            text = f"{doc} (default: {field.default!r})"
            group.add_argument(
                meta["flag"], dest=field.name, type=type(field.default), default=None, metavar=meta["metavar"], help=text
            )


def options_from(args: argparse.Namespace) -> Options:
    """The Options of the flags given. `CommandError` (usage) for a value that an option refuses."""
    given: dict[str, Any] = {}
    for field in dataclasses.fields(Options):
        value = getattr(args, field.name, None)
        if value is None:
            continue
        if field.name == "targets":
            value = [t for part in value for t in part.split(",") if t]
        given[field.name] = value
    try:
        options = Options.from_overrides(**given)
        if other := sorted({t.isa for t in options.tables} - {*options.targets}):
            what = f"a table is for {', '.join(other)}, and targets are {', '.join(options.targets)}"
            raise OptionError(f"option 'tuning': {what}: name both in --target, or leave --tuning out")
        if not getattr(args, "dry_run", False):
            make_dump_dir(options)
        return options
    except OptionError as e:
        raise CommandError(str(e), USAGE) from e


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", help="a frozen GraphDef, .pb or .pbtxt")
    parser.add_argument(
        "-o", "--output", help="the optimised graph (not needed with --dry-run); NAME.disc: the whole as a file that needs no TensorFlow"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be compiled, write nothing")
    parser.add_argument(
        "--external-weights",
        action="store_true",
        help="keep large weights in files beside the output (OUTPUT.weights/), mapped at run time: a fraction of the memory",
    )
    parser.add_argument("--report", metavar="F", help=REPORT_HELP)
    parser.add_argument(
        "--capture",
        metavar="DIR",
        help="write replay files: of clusters that differ from TensorFlow, else of all; they hold weights and generated inputs",
    )
    parser.add_argument("--profile", action="store_true", help="make code whose every launch can be traced, a little slower")
    parser.add_argument("--no-verify", action="store_true", help="do not run the result against TensorFlow before writing it")
    parser.add_argument("--no-timing", action="store_true", help="verify, but do not time (and never put back for speed)")
    least = "exit with code 4 if less than this share of the ops is compiled (0 to 1)"
    parser.add_argument("--min-coverage", type=fraction, default=0.0, metavar="FRACTION", help=least)
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead of text")
    parser.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    add_shape_arguments(parser)
    optimize_model.add_arguments(parser)
    remote.add_arguments(parser)
    add_option_flags(parser)


def run(args: argparse.Namespace) -> int:
    with contextlib.ExitStack() as stack:
        return _run(args, stack)


def _run(args: argparse.Namespace, stack: contextlib.ExitStack) -> int:
    from disc_tf.frontend.errors import GraphError
    from disc_tf.optimizer import StrictError, optimize_graph_def

    options = options_from(args)
    args.dry_run = args.dry_run or args.remote_dry_run
    if not args.dry_run and not args.output:
        raise CommandError("give -o OUTPUT, or --dry-run", USAGE)
    remote.check(args)
    if not args.dry_run and not args.no_verify:
        refuse_local_code(args.remote or args.remote_result)
    say = Say(args.quiet)
    if args.no_verify and not args.dry_run:
        refuse(args, NOT_RUN)
    if args.output and args.output.endswith(STANDALONE_SUFFIX):
        return standalone.run(args, options, say)
    refuse(args, ONE_SEGMENT)
    if optimize_model.is_model(args.input):
        return optimize_model.run(args, options, say, stack)
    refuse(args, FOR_MODELS)
    _check_files(args)
    graph = read_whole_graph(args.input)
    refuse_as_input(args.input, graph)
    say(f"read {args.input}: {counted(len(graph.node), 'node')}")
    hosts = optimize_model.early_hosts(args, options, stack)
    specs, outputs, sizes = ([], list(args.outputs), None)
    if not args.no_verify and not args.dry_run:
        specs, outputs, trace = model_specs(args.input, graph, args.inputs_json, args.outputs)
        sizes = parse_sizes(args.shape) or _spread(trace, args.points) or None
        check_sizes(specs, sizes or [], own_names(args.input, args.inputs_json))
    elif not args.outputs:
        _, outputs, _ = quiet_specs(args, graph)
    try:
        with remote.compiling(args, say) as elsewhere:
            result = optimize_graph_def(
                graph, outputs=outputs or None, options=options, dry_run=args.dry_run, profile=args.profile, progress=say,
                elsewhere=elsewhere,
            )
    except GraphError as e:
        raise CommandError(f"{args.input}: {e}", BAD_INPUT) from e
    except StrictError as e:
        raise CommandError(f"{args.input}: --strict: {e}", NOTHING_COMPILED) from e
    if args.remote_dry_run:
        return OK
    report = result.report
    code = OK
    if not args.dry_run:
        output = stack.enter_context(staged_file(args.output, external=args.external_weights))
        proved = not args.no_verify and hosts is not None and bool(report.compiled_clusters)
        if args.no_verify:
            report.warnings.append(NOT_VERIFIED)
        elif report.compiled_clusters and hosts is None:
            say(FOREIGN)
            report.warnings.append(FOREIGN)
        elif proved:
            candidate = result.graph_def
            result = _prove(args, graph, result, specs, sizes, say, options, hosts, output.write)
            if report.verified is False:
                code = VERIFY_FAILED
                why = next((shape_line(r) for r in report.verification if not r.ok), "")
                print(f"disc-tf: {args.input}: verification failed: {why}", file=sys.stderr)
            if args.capture:
                with no_process(report.warnings, "nothing was captured"):
                    _capture(args, candidate, report, specs, sizes, say)
        if not proved:
            output.write(result.graph_def)
        output.publish()
        say(f"wrote {args.output}")
    if args.report:
        if is_html(args.report) and not args.no_timing and not args.remote:  # a profile means compiling here
            with no_process(report.warnings, "no profile was made"):
                add_profile(report, graph, specs, sizes, threads=args.threads, progress=say)
        write_report(args.report, report, args.input)
    if args.json:
        print(report.to_json())
    elif not args.quiet:
        print(report.to_text())
        if args.dry_run:
            print("dry run: nothing was compiled, verified or written")
        elif not report.compiled_clusters:
            print(f"nothing compiled: 0 of {len(report.clusters)} clusters")
    if code == OK and options.strict:
        code = strict_code(args.input, report, "planned" if args.dry_run else "compiled")
    return code if code != OK else coverage_code(args, report)


def fraction(text: str) -> float:
    """A number from 0 to 1, of a flag."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a number from 0 to 1")
    return value


def coverage_code(args: argparse.Namespace, report: Any) -> int:
    """With --min-coverage: `NOTHING_COMPILED`, and a line on stderr whatever else is quiet, if less is compiled (or would be)."""
    if report.coverage >= args.min_coverage:
        return OK
    found = report.headline or f"{100 * report.coverage:.1f} % of the ops are compiled"
    print(f"disc-tf: {args.input}: --min-coverage {args.min_coverage:g}: {found}", file=sys.stderr)
    return NOTHING_COMPILED


@contextlib.contextmanager
def no_process(warnings: list[str], without: str) -> Iterator[None]:
    """What a TensorFlow process ends with costs what it was for, not the command."""
    from disc_tf.testing.differential import first_line
    from disc_tf.testing.tf_process import ProcessFailed, TfError

    try:
        yield
    except (ProcessFailed, TfError) as e:
        warnings.append(f"{without}: {first_line(e)}")


def strict_code(path: str, report: Report, status: str) -> int:
    """With --strict: `NOTHING_COMPILED`, and a line on stderr whatever else is quiet, if no cluster has ``status``."""
    if any(c.status == status for c in report.clusters):
        return OK
    reasons = [f"{c.name}: {c.reason or c.status}" for c in report.clusters]
    if not reasons:
        reasons = [f"{x.node} ({x.op}): {x.reason}" for x in report.left_out]
    more = [f"and {len(reasons) - 3} more"] if len(reasons) > 3 else []
    what = "; ".join([*reasons[:3], *more]) or "the graph has nothing to compile"
    print(f"disc-tf: {path}: --strict: nothing was compiled (0 of {len(report.clusters)} clusters): {what}", file=sys.stderr)
    return NOTHING_COMPILED


def _check_files(args: argparse.Namespace) -> None:
    """Whatever is wrong with the files to be written is said before minutes of work."""
    output = None if args.dry_run else args.output
    check_distinct({"input": args.input, "output": args.output or None, "report": args.report or None})
    if output:
        check_output(output)
        if args.external_weights:
            check_output_directory(f"{output}.weights")
    if args.report:
        check_output(args.report)
    if args.capture:
        if args.no_verify or args.dry_run:
            raise CommandError("--capture needs a run: it goes with neither --no-verify nor --dry-run", USAGE)
        check_output_directory(args.capture)


def _capture(args: argparse.Namespace, candidate: Any, report: Report, specs: Any, sizes: Any, say: Say) -> None:
    """Replay files of the graph before clusters were put back."""
    from disc_tf.insight.faults import capture_faults
    from disc_tf.testing.inputs import sample_sizes

    Path(args.capture).mkdir(exist_ok=True)
    at = list(sizes or sample_sizes(specs, args.points))
    for path in capture_faults(
        candidate, report, specs, at, Path(args.capture), threads=args.threads, write=write_atomically, progress=say
    ):
        say(f"wrote {path}")


def quiet_specs(args: argparse.Namespace, graph: Any):
    """`model_specs`, nothing where there is no description and the graph's inputs cannot be made up."""
    try:
        return model_specs(args.input, graph, args.inputs_json, args.outputs)
    except CommandError:
        return [], [], []


def _spread(trace: list[dict[str, int]], count: int) -> list[dict[str, int]]:
    """At most ``count`` points of a trace, evenly spread."""
    if len(trace) <= count:
        return trace
    return [trace[round(i * (len(trace) - 1) / (count - 1))] for i in range(count)] if count > 1 else trace[:1]


def _prove(
    args: argparse.Namespace, graph: Any, result: Any, specs: Any, sizes: Any, say: Any, options: Options, hosts: Any, write: Any
) -> Any:
    from disc_tf.proof import prove

    with scratch() as temp:
        original = binary_form(args.input, graph, temp, original=True)
        arguments = optimize_model.proof_arguments(args, options, say)
        return prove(original, result, specs, sizes, temp, write=write, hosts=hosts, **arguments)
