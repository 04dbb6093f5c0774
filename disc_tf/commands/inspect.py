"""`disc-tf inspect`: what would be compiled, why not the rest, what happens with one node."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from disc_tf.commands import kernels, optimize_model
from disc_tf.commands.common import (
    BAD_INPUT,
    OK,
    USAGE,
    CommandError,
    check_distinct,
    check_output,
    read_graph,
    shape_text,
    write_atomically,
)
from disc_tf.commands.describe import describe, describe_file
from disc_tf.commands.kinds import is_standalone
from disc_tf.commands.optimize import add_option_flags, options_from, quiet_specs, strict_code
from disc_tf.commands.reports import REPORT_HELP, write_report
from disc_tf.commands.signers import add_trust_argument
from disc_tf.commands.unused import NOT_COMPILED, refuse
from disc_tf.commands.verify import at_least

_DRAWINGS = (".svg", ".dot", ".gv")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "input",
        help="a GraphDef (.pb, .pbtxt) or the directory of a SavedModel; an optimised one, or a .disc file, is described, no code loaded "
        "(but with --kernels)",
    )
    parser.add_argument("--outputs", nargs="+", default=[], metavar="T", help="output tensors (default: the graph's sinks)")
    parser.add_argument("--explain", metavar="NODE", help="say what happens with this node: its cluster and kernel, or why it has none")
    parser.add_argument("--draw", metavar="F", help="draw the clusters on the graph: .svg for viewers, .dot for Graphviz")
    parser.add_argument("--report", metavar="F", help=REPORT_HELP)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    group = parser.add_argument_group("kernels")
    group.add_argument(
        "--kernels", action="store_true",
        help="compile for this machine, run, and print the time of each kernel: measured, and by the cost model",
    )  # fmt: skip
    group.add_argument(
        "--shape", action="append", type=shape_text, default=[], metavar="DIMS",
        help="extents of the dims to run at, e.g. B=2,S=37 (repeatable; default: the largest of some shapes)",
    )  # fmt: skip
    group.add_argument("--threads", type=at_least(0), default=0, metavar="N", help="threads to run on (default: all)")
    group.add_argument("--inputs-json", metavar="F", help="model description: inputs, outputs, points (default: IN with .json)")
    group.add_argument("--signature", metavar="S", help="of a SavedModel (default: serving_default)")
    add_trust_argument(parser, loads=False)
    add_option_flags(parser)


def run(args: argparse.Namespace) -> int:
    from disc_tf.frontend.errors import GraphError
    from disc_tf.optimizer import optimize_graph_def

    options = options_from(args)
    if args.kernels:
        return kernels.run(args, options)
    refuse(args, kernels.FLAGS, "is for --kernels, which runs the graph: give that too")
    refuse(args, NOT_COMPILED)
    if is_standalone(args.input):
        refuse(args, ["outputs", "explain", "draw", "report"], "is for graphs: a stand-alone file is described as a whole")
        return describe_file(args)
    if optimize_model.is_model(args.input):
        if args.draw or args.outputs:
            raise CommandError("--draw and --outputs are for GraphDefs; --report draws each function", USAGE)
        return optimize_model.run_inspect(args, options)
    _check_files(args)
    graph = read_graph(args.input)
    optimized = any(n.op == "DiscLaunch" for n in graph.node)
    if optimized and (args.report or args.draw):
        flag = "--report" if args.report else "--draw"
        raise CommandError(f"{args.input} is optimised already: {flag} takes the original graph (disc-tf restore gives it back)", USAGE)
    if not optimized:
        refuse(args, ["trust_file"], "is for optimised graphs: there is no code in this one")
    if optimized and not args.explain:
        refuse(args, ["outputs"], "is for original graphs: an optimised one is described as a whole")
    outputs = list(args.outputs)
    if not outputs and not optimized:
        _, outputs, _ = quiet_specs(args, graph)
    try:
        if args.explain:
            from disc_tf.insight.explain import explain

            found = explain(graph, args.explain, outputs or None, options)
            print(json.dumps(dataclasses.asdict(found), indent=2) if args.json else found.to_text())
            if not args.report and not args.draw:
                return OK
        if optimized:
            return describe(args, graph)
        result = optimize_graph_def(graph, outputs=outputs or None, options=options, dry_run=True)
    except GraphError as e:
        raise CommandError(f"{args.input}: {e}", BAD_INPUT) from e
    if args.report:
        write_report(args.report, result.report, args.input)
        print(f"wrote {args.report}", file=sys.stderr)
    if args.draw:
        _draw(args.draw, result.report)
    if not args.explain:
        print(result.report.to_json() if args.json else result.report.to_text(left_out_limit=50))
    return strict_code(args.input, result.report, "planned") if options.strict else OK


def _check_files(args: argparse.Namespace) -> None:
    check_distinct({"input": args.input, "report": args.report, "drawing": args.draw})
    if args.report:
        check_output(args.report)
    if args.draw:
        if Path(args.draw).suffix.lower() not in _DRAWINGS:
            raise CommandError(f"--draw {args.draw}: end the name in .svg or .dot", USAGE)
        check_output(args.draw)


def _draw(path: str, report: Any) -> None:
    from disc_tf.insight.draw import to_dot, to_svg

    status = {c.name: c.status for c in report.clusters}
    make = to_svg if Path(path).suffix.lower() == ".svg" else to_dot
    write_atomically(path, make(report.drawing, status).encode("utf-8", "replace"))
    print(f"wrote {path}", file=sys.stderr)
