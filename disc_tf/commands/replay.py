"""`disc-tf replay FILE`: a captured cluster, run in every way, and where the answers part."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from disc_tf.commands.common import BAD_INPUT, OK, VERIFY_FAILED, CommandError
from disc_tf.commands.progress import Say
from disc_tf.commands.verify import at_least, tolerance
from disc_tf.scratch import scratch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", help="a file of `disc-tf optimize --capture DIR`; it holds native code: replay only what you trust")
    parser.add_argument("--values", action="store_true", help="compare every node's value, even if the results agree")
    parser.add_argument("--skip-code", action="store_true", help="do not run the code in the file, only what this version compiles")
    parser.add_argument("--tolerance", type=tolerance, default=None, metavar="X", help="relative tolerance (default: by dtype)")
    parser.add_argument("--threads", type=at_least(0), default=0, metavar="N", help="threads (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("-q", "--quiet", action="store_true", help="print errors only")


def run(args: argparse.Namespace) -> int:
    from disc_tf.insight.replay_file import ReplayError, read_replay
    from disc_tf.insight.rerun import rerun

    try:
        replay = read_replay(args.input)
    except OSError as e:
        raise CommandError(f"cannot read {args.input}: {e.strerror or e}") from e
    except ReplayError as e:
        raise CommandError(str(e), BAD_INPUT) from e
    with scratch() as temp:
        found = rerun(
            replay, Path(temp), captured=not args.skip_code, values=args.values, tolerance=args.tolerance, threads=args.threads,
            progress=Say(args.quiet),
        )  # fmt: skip
    if args.json:
        print(json.dumps({"same": found.same, **dataclasses.asdict(found)}, indent=2))
    elif not args.quiet:
        made = ", ".join(f"{k} {v}" for k, v in found.versions.items())
        print(f"{found.cluster}, made with {made}")
        print(f"TensorFlow: {found.reference}")
        for way, answer in found.answers.items():
            print(f"{way}: {answer}")
        for d in found.first:
            print(f"first difference, {d.way}: {d.tensor}: {d.message}")
        for note in found.notes:
            print(f"({note})")
        if found.blame:
            print(f"at fault: {found.blame}")
    return OK if found.same else VERIFY_FAILED
