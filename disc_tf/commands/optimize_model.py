"""`disc-tf optimize` and `disc-tf inspect` for SavedModels and Keras files."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from disc_tf.commands import remote
from disc_tf.commands.common import (
    BAD_INPUT,
    NOTHING_COMPILED,
    OK,
    USAGE,
    VERIFY_FAILED,
    CommandError,
    check_output,
    check_sizes,
    parse_sizes,
)
from disc_tf.commands.describe import describe
from disc_tf.commands.reports import write_report
from disc_tf.commands.unused import FOR_GRAPHS, refuse
from disc_tf.frontend.rewrite import launch_nodes
from disc_tf.frontend.saved_model import (
    SavedModelError,
    choose_meta_graphs,
    describe_signatures,
    is_saved_model,
    read_saved_model,
    signature_lines,
    version_hint,
)
from disc_tf.options import Options
from disc_tf.publish import PublishError

KERAS_FILES = (".keras", ".h5", ".hdf5")


def is_model(path: str) -> bool:
    """Whether a path is for this module: a directory, or a file of Keras."""
    return Path(path).is_dir() or Path(path).suffix in KERAS_FILES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that only SavedModels have."""
    group = parser.add_argument_group("SavedModels")
    group.add_argument("--signature", action="append", default=[], metavar="S", help="compile only this signature (repeatable)")
    tags = "compile only the graph with these tags (default: all but those for training)"
    group.add_argument("--tag", action="append", default=[], metavar="T", help=tags)
    group.add_argument("--all-functions", action="store_true", help="also methods for training and those of inner objects")
    group.add_argument("--freeze", action="store_true", help="bake the variables' values in; only the signatures are left")
    group.add_argument("--overwrite", action="store_true", help="replace an existing OUTPUT directory, in one step")


def early_hosts(args: argparse.Namespace, options: Options, stack: contextlib.ExitStack, *, timing: bool = True) -> Any:
    """The processes that the proof will run TensorFlow in: they import it while this one compiles. None where there is no proof."""
    from disc_tf.proof import runs_here
    from disc_tf.testing.tf_process import Hosts

    if args.dry_run or args.no_verify or not runs_here(options.targets):
        return None
    hosts = stack.enter_context(Hosts())
    hosts.start(timing=timing and not args.no_timing)
    return hosts


def run(args: argparse.Namespace, options: Options, say: Callable[[str], None], stack: contextlib.ExitStack) -> int:
    """`disc-tf optimize DIR -o DIR2`."""
    from disc_tf.optimizer import StrictError
    from disc_tf.proof_saved_model import prove_saved_model
    from disc_tf.saved_model import optimize_saved_model

    refuse(args, FOR_GRAPHS)
    suffix = Path(args.output or "").suffix
    model = is_saved_model(args.input) or not Path(args.input).is_dir()  # of another directory the reason is said below
    if model and suffix in (".pb", ".pbtxt", *KERAS_FILES) and not Path(args.output).is_dir():
        kind = "SavedModel" if Path(args.input).is_dir() else "Keras model"
        raise CommandError(f"-o {args.output}: a {kind} becomes the directory of a SavedModel: give a name without {suffix}", USAGE)
    if args.freeze:
        refuse(args, ["all_functions"], "does not go with --freeze, which leaves only the signatures: give one of the two")
    if args.signature:
        refuse(args, ["all_functions"], "does not go with --signature, which compiles only what that calls: give one of the two")
    if args.report:
        check_output(args.report)
    _check(args.input)
    hosts = early_hosts(args, options, stack)
    sizes = _sizes(args)
    try:
        with remote.compiling(args, say) as elsewhere:
            result = optimize_saved_model(
                args.input,
                args.output,
                options,
                tags=args.tag or None,
                signatures=args.signature or None,
                all_functions=args.all_functions,
                freeze=args.freeze,
                overwrite=args.overwrite,
                dry_run=args.dry_run,
                verify=not args.no_verify,
                prove=functools.partial(prove_saved_model, sizes=sizes, hosts=hosts, **proof_arguments(args, options, say)),
                progress=say,
                elsewhere=elsewhere,
                hosts=hosts,
            )
    except StrictError as e:
        raise CommandError(f"{args.input}: --strict: {e}", NOTHING_COMPILED) from e
    except (SavedModelError, PublishError) as e:
        raise CommandError(str(e), BAD_INPUT) from e
    if args.remote_dry_run:
        return OK
    report = result.report
    if result.path is not None:
        say(f"wrote {result.path}")
    if args.report:
        write_report(args.report, report, args.input)
    if args.json:
        print(report.to_json())
    elif not args.quiet:
        print(report.to_text())
    if report.verified_all is False:
        return VERIFY_FAILED
    status = "planned" if args.dry_run else "compiled"
    if options.strict and not any(c.status == status for c in report.clusters_of_all.values()):
        raise CommandError(f"{args.input}: --strict: nothing was compiled", NOTHING_COMPILED)
    from disc_tf.commands.optimize import coverage_code

    return coverage_code(args, report)


def proof_arguments(args: argparse.Namespace, options: Options, say: Callable[[str], None]) -> dict[str, Any]:
    """What flags say of a proof, of a graph or of a SavedModel."""
    return {
        "timing": not args.no_timing, "threads": args.threads, "points": args.points, "time_budget": options.time_budget, "progress": say,
    }  # fmt: skip


def _sizes(args: argparse.Namespace) -> list[dict[str, int]] | None:
    """``--shape``, which names the dims of one signature. `CommandError` before any work if it does not fit."""
    from disc_tf.testing.signatures import plan_model

    sizes = parse_sizes(args.shape)
    if not sizes:
        return None
    if not is_saved_model(args.input):
        raise CommandError("--shape is for SavedModels and GraphDefs: save the model first", USAGE)
    try:
        message = read_saved_model(args.input)
        choices = [c for c in choose_meta_graphs(message, args.tag or None, args.signature or None) if not c.reason]
        if not choices:
            raise CommandError("--shape: no graph of the model is compiled unless it is named: give --tag", USAGE)
        if len(choices) > 1:
            raise CommandError(f"--shape needs one --tag: the model has graphs tagged {'; '.join(c.title for c in choices)}", USAGE)
        plan = plan_model(args.input, tags=choices[0].tags, signatures=choices[0].signatures, message=message)
    except SavedModelError as e:
        raise CommandError(str(e), BAD_INPUT) from e
    if len(plan.signatures) != 1:
        raise CommandError(f"--shape needs one --signature: the model has {', '.join(plan.signatures) or '(none)'}", USAGE)
    (signature,) = plan.signatures.values()
    check_sizes(signature.specs, sizes)
    return sizes


def run_inspect(args: argparse.Namespace, options: Options) -> int:
    """`disc-tf inspect DIR`: the signatures, and the report of a dry run."""
    from disc_tf.saved_model_source import as_directory

    _check(args.input)
    if args.report:
        check_output(args.report)
    try:
        with as_directory(args.input) as directory:
            return _inspect(args, options, str(directory))
    except SavedModelError as e:
        raise CommandError(str(e), BAD_INPUT) from e


def _inspect(args: argparse.Namespace, options: Options, directory: str) -> int:
    """``directory``: the model's own, or that of what was converted."""
    from disc_tf.saved_model import optimize_saved_model

    message = read_saved_model(directory)
    optimized = any(launch_nodes(message))
    if not optimized:
        refuse(args, ["trust_file"], "is for optimised models: there is no code in this one")
    elif args.report:
        raise CommandError(f"{args.input} is optimised already: --report takes the original (disc-tf restore gives it back)", USAGE)
    elif not args.explain:
        return describe(args, message)
    if args.explain:
        _explain(args, options, directory)
        if not args.report:
            return OK
    report = optimize_saved_model(directory, None, options, dry_run=True).report
    if args.report:
        write_report(args.report, report, args.input)
        print(f"wrote {args.report}", file=sys.stderr)
    if not args.explain:
        signatures = describe_signatures(message)
        if args.json:
            print(json.dumps({**json.loads(report.to_json()), "interface": signatures}, indent=2))
        else:
            print("\n".join([*signature_lines(signatures), report.to_text()]))
    if options.strict and not report.clusters_of_all:
        raise CommandError(f"{args.input}: --strict: nothing would be compiled", NOTHING_COMPILED)
    return OK


def _explain(args: argparse.Namespace, options: Options, directory: str) -> None:
    """`disc-tf inspect DIR --explain NODE`: in every function that has the node."""
    from disc_tf.frontend.errors import GraphError
    from disc_tf.insight.explain import explain_model

    try:
        found = explain_model(directory, args.explain, options)
    except (GraphError, SavedModelError) as e:
        raise CommandError(f"{args.input}: {e}", BAD_INPUT) from e
    if args.json:
        print(json.dumps({name: dataclasses.asdict(e) for name, e in found.items()}, indent=2))
    else:
        print("\n".join(f"{name}:\n{e.to_text()}" for name, e in found.items()))


def _check(path: str) -> None:
    if Path(path).is_dir() and not is_saved_model(path):
        way_out = version_hint(path) or ": give a SavedModel's directory, or a GraphDef (.pb or .pbtxt)"
        raise CommandError(f"{path} is a directory without a saved_model.pb{way_out}")
