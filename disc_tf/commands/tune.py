"""`disc-tf tune`: measure schedules on this machine, and write the table that wins."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from disc_tf.commands.common import BAD_INPUT, OK, USAGE, CommandError, check_distinct, check_output, read_whole_graph, write_atomically
from disc_tf.commands.kinds import is_optimized
from disc_tf.commands.progress import Say
from disc_tf.commands.signers import VARIABLE
from disc_tf.commands.verify import at_least, between
from disc_tf.options import TARGETS
from disc_tf.report import counted

if TYPE_CHECKING:
    from disc_tf.insight.tune import Tuned
    from disc_tf.insight.tune_cases import Case


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "instruction set to tune for (default: this machine's)"
    parser.add_argument("--target", choices=("native", *TARGETS), default="native", metavar="T", help=what)
    parser.add_argument("--seconds", type=between(1, 10**9), default=300, metavar="N", help="time to take at most (default: 300)")
    parser.add_argument("-o", "--output", metavar="F.json", help="write the table, for `disc-tf optimize --tuning F.json`")
    what = "measure the products and convolutions of this graph (repeatable; default: usual ones)"
    parser.add_argument("--model", action="append", default=[], metavar="F", help=what)
    parser.add_argument("--threads", type=at_least(0), default=0, metavar="N", help="threads of a kernel (default: all)")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="print no progress")


def run(args: argparse.Namespace) -> int:
    from disc_tf.insight.tune import tune
    from disc_tf.insight.tune_cases import USUAL
    from disc_tf.runtime.executable import DiscError, set_num_threads
    from disc_tf.tuning import shipped

    isa = _target(args.target)
    check_distinct({"output": args.output, **{f"model {i + 1}": path for i, path in enumerate(args.model)}})
    if args.output:
        check_output(args.output)
    if policy := os.environ.get(VARIABLE):
        why = "is set, and nobody signs what is compiled here, so it cannot be run: unset it for this command"
        raise CommandError(f"{VARIABLE}={policy} {why}", USAGE)
    say = Say(args.quiet or args.json)
    cases = _cases(args.model, say) if args.model else list(USUAL)
    try:
        set_num_threads(args.threads)
    except DiscError as e:
        raise CommandError(f"--threads {args.threads}: {e.message}", USAGE) from e
    try:
        tuned = tune(shipped(isa), cases, float(args.seconds), say)
    finally:
        set_num_threads(0)
    say.clear()
    if args.output:
        write_atomically(args.output, (json.dumps(tuned.table.to_dict(), indent=2) + "\n").encode())
    print(json.dumps({**tuned.to_dict(), "output": args.output}, indent=2) if args.json else _text(tuned, args.output))
    return OK


def _target(name: str) -> str:
    from disc_tf.runtime.cpu import native_target

    native = native_target()
    isa = native if name == "native" else name
    if TARGETS.index(isa) > TARGETS.index(native):
        raise CommandError(f"--target {isa}: this machine runs {native} at most, and what it cannot run it cannot measure", USAGE)
    return isa


def _cases(paths: Sequence[str], say: Say) -> list[Case]:
    """Those of the graphs, each once."""
    from disc_tf.insight.tune_cases import cases_of

    plans: list[Any] = []
    for path in paths:
        say(f"reading {path}")
        plans += _plans(path, say)
    cases = cases_of(plans)
    if not cases:
        raise CommandError(f"{', '.join(paths)}: no product and no convolution is compiled, so there is nothing to tune", BAD_INPUT)
    return cases


def _plans(path: str, say: Say) -> list[Any]:
    """The plans of a graph's clusters; of an optimised one, of the original's."""
    from disc_tf.frontend.errors import GraphError
    from disc_tf.frontend.importer import import_cluster
    from disc_tf.frontend.rewrite import restore
    from disc_tf.fusion.plan import make_plan
    from disc_tf.optimizer import clusters_of
    from disc_tf.passes.pipeline import optimize

    graph = read_whole_graph(path)
    plans = []
    try:
        clustering = clusters_of(restore(graph) if is_optimized(graph) else graph)[1]
        for cluster in list(clustering.clusters):
            try:
                plans.append(make_plan(optimize(import_cluster(clustering, cluster).module).uniform.main))
            except Exception as e:  # `optimize` leaves it in TensorFlow, whatever the reason
                say(f"{path}: {cluster.name} is not compiled: {e}")
    except GraphError as e:
        raise CommandError(f"{path}: {e}", BAD_INPUT) from e
    return plans


def _text(tuned: Tuned, output: str | None) -> str:
    lines = [f"{tuned.table.isa}, {counted(tuned.threads, 'thread')}: {counted(tuned.tried, 'choice')} measured"]
    if tuned.changes:
        rows = [["choice", "shipped", "now", "gain", "worst shape", "noise", "shapes"]]
        rows += [
            [c.choice, c.before, c.after, _percent(c.gain - 1), _percent(c.worst - 1), f"{100 * c.noise:.1f} %", str(c.shapes)]
            for c in tuned.changes
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += ["  ".join([r[0].ljust(widths[0]), *(x.rjust(w) for x, w in zip(r[1:], widths[1:], strict=True))]).rstrip() for r in rows]
    else:
        lines.append("nothing beats the shipped table by more than the noise")
    if tuned.left:
        lines.append(f"no time for {counted(len(tuned.left), 'choice')}, which stay as they are: give more --seconds")
    if output:
        same = ", the shipped one" if tuned.table == tuned.shipped else f"; use it with: disc-tf optimize --tuning {output}"
        lines.append(f"wrote {output}: table {tuned.table.digest}{same}")
    elif tuned.changes:
        lines.append("nothing is written: give -o F.json for the table")
    return "\n".join(lines)


def _percent(x: float) -> str:
    return f"{100 * x:+.1f} %"
