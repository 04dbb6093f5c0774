"""`disc-tf restore`: the original of an optimised graph."""

from __future__ import annotations

import argparse

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", help="an optimised GraphDef")
    parser.add_argument("-o", "--output", required=True, help="where the original goes")


def run(args: argparse.Namespace) -> int:
    from disc_tf.frontend.errors import GraphError
    from disc_tf.frontend.rewrite import restore

    check_distinct({"input": args.input, "output": args.output})
    check_output(args.output)
    graph = read_whole_graph(args.input)
    try:
        original = restore(graph)
    except GraphError as e:
        raise CommandError(f"{args.input}: {e}", BAD_INPUT) from e
    write_atomically(args.output, graph_bytes(original, args.output))
    print(f"wrote {args.output}: {len(original.node)} nodes")
    return OK
