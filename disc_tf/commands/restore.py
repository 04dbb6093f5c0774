"""`disc-tf restore`: the original of an optimised graph."""

from __future__ import annotations

import argparse
import json
from typing import Any

from disc_tf.commands.common import (
    BAD_INPUT,
    OK,
    CommandError,
    check_distinct,
    check_output,
    graph_bytes,
    read_whole_graph,
    write_atomically,
)
from disc_tf.commands.optimize_model import is_model
from disc_tf.commands.unused import refuse
from disc_tf.report import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", help="an optimised GraphDef, or the directory of an optimised SavedModel")
    parser.add_argument("-o", "--output", required=True, help="where the original goes")
    parser.add_argument("--overwrite", action="store_true", help="SavedModels: replace an existing OUTPUT directory, in one step")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from disc_tf.frontend.errors import GraphError
    from disc_tf.frontend.rewrite import restore

    if is_model(args.input):
        return _run_model(args)
    refuse(args, ["overwrite"], "is for SavedModels: the file of a GraphDef is replaced if it is there")
    check_distinct({"input": args.input, "output": args.output})
    check_output(args.output)
    graph = read_whole_graph(args.input)
    try:
        original = restore(graph)
    except GraphError as e:
        raise CommandError(f"{args.input}: {e}", BAD_INPUT) from e
    write_atomically(args.output, graph_bytes(original, args.output))
    _say(args, {"output": args.output, "nodes": len(original.node)}, counted(len(original.node), "node"))
    return OK


def _run_model(args: argparse.Namespace) -> int:
    from disc_tf.frontend.errors import GraphError
    from disc_tf.publish import PublishError
    from disc_tf.saved_model import restore_saved_model

    try:
        restored = restore_saved_model(args.input, args.output, overwrite=args.overwrite)
    except (GraphError, PublishError) as e:
        raise CommandError(str(e), BAD_INPUT) from e
    how = "the original's bytes" if restored.exact else f"{counted(restored.launches, 'launch')} replaced by what they were made from"
    _say(args, {"output": args.output, "exact": restored.exact, "launches": restored.launches}, how)
    return OK


def _say(args: argparse.Namespace, data: dict[str, Any], text: str) -> None:
    print(json.dumps(data) if args.json else f"wrote {args.output}: {text}")
