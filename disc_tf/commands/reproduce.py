"""`disc-tf reproduce`: small graphs that show the compiler's internal errors, to be sent with a report."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from disc_tf.commands.common import BAD_INPUT, OK, CommandError, check_output_directory, read_whole_graph, write_atomically
from disc_tf.commands.optimize import add_option_flags, options_from
from disc_tf.report import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", help="a frozen GraphDef, .pb or .pbtxt, whose report names a defect")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="the directory for a graph of each defect")
    parser.add_argument("--outputs", nargs="+", default=[], metavar="T", help="output tensors (default: the graph's sinks)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_option_flags(parser)


def run(args: argparse.Namespace) -> int:
    from disc_tf.frontend.errors import GraphError
    from disc_tf.frontend.tfproto import serialized
    from disc_tf.insight.reproducer import reproducers

    options = options_from(args)
    check_output_directory(args.output)
    graph = read_whole_graph(args.input)
    try:
        found = reproducers(graph, args.outputs or None, options)
    except GraphError as e:
        raise CommandError(f"{args.input}: {e}", BAD_INPUT) from e
    written = []
    Path(args.output).mkdir(parents=True, exist_ok=True)
    for i, r in enumerate(found):
        path = str(Path(args.output) / f"defect-{i}.pb")
        write_atomically(path, serialized(r.graph))
        entry = {"file": path, "nodes": len(r.graph.node), "outputs": r.outputs, "cluster": r.cluster, "exact": r.exact}
        written.append({**entry, **dataclasses.asdict(r.defect)})
    if args.json:
        print(json.dumps({"defects": written}, indent=2))
        return OK
    if not written:
        print("the compiler meets no internal error in this graph")
    for w in written:
        print(f"{w['file']}: {counted(w['nodes'], 'node')}; {w['phase']}: {w['error']} ({w['where']})")
        if not w["exact"]:
            print("  the cut alone does not show the defect: send the model, or its structure, with the report")
    return OK
