"""`disc-tf verify A B` and `disc-tf bench A B`: the same answers, and how fast."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from disc_tf.commands import verify_model
from disc_tf.commands.common import (
    BAD_INPUT,
    OK,
    VERIFY_FAILED,
    CommandError,
    binary_form,
    check_distinct,
    check_output,
    check_sizes,
    default_outputs,
    model_specs,
    own_names,
    parse_sizes,
    read_graph,
    shape_text,
)
from disc_tf.commands.kinds import refuse_as_original
from disc_tf.commands.progress import Say
from disc_tf.commands.reports import REPORT_HELP, write_bench, write_csv, write_verification
from disc_tf.commands.signers import add_trust_argument, signers_of, summary
from disc_tf.commands.unused import POINTS
from disc_tf.report import ShapeResult, shape_line
from disc_tf.scratch import scratch
from disc_tf.testing.cold import cold_starts, graph_starter
from disc_tf.testing.differential import BenchRow, OptimizedRaised, bench_graphs, verify_graphs
from disc_tf.testing.inputs import sample_sizes
from disc_tf.testing.tf_process import ProcessFailed, TfError
from disc_tf.testing.timing import busy, interval, pooled

_ADVICE = "give other shapes (--shape) or values (--inputs-json)"


def at_least(lowest: int) -> Callable[[str], int]:
    """An argparse type: an integer from ``lowest`` on."""

    def integer(text: str) -> int:
        if (value := int(text)) < lowest:
            raise argparse.ArgumentTypeError(f"{value} is less than {lowest}")
        return value

    return integer


def between(lowest: int, highest: int) -> Callable[[str], int]:
    """An argparse type: an integer from ``lowest`` to ``highest``."""

    def integer(text: str) -> int:
        if not lowest <= (value := int(text)) <= highest:
            raise argparse.ArgumentTypeError(f"{value} is not between {lowest} and {highest}")
        return value

    return integer


#: longer times are mistakes, and the system's clocks do not take them
_LONGEST_SECONDS = 1e9


def seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= _LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is not a finite number of seconds from 0 to {_LONGEST_SECONDS:.0e}")
    return value


def positive_seconds(text: str) -> float:
    value = seconds(text)
    if not value:
        raise argparse.ArgumentTypeError("0 seconds leave no time: give more")
    return value


def tolerance(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a finite number from 0 on")
    return value


def add_shape_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that say at which shapes a graph is run."""
    parser.add_argument("--outputs", nargs="+", default=[], metavar="T", help="output tensors (default: the graph's sinks)")
    parser.add_argument("--inputs-json", metavar="F", help="model description: inputs, outputs, points (default: IN with .json)")
    parser.add_argument(
        "--shape", action="append", type=shape_text, default=[], metavar="DIMS", help="extents of the dims, e.g. B=2,S=37 (repeatable)"
    )
    parser.add_argument("--points", type=at_least(1), default=POINTS, metavar="N", help="how many shapes to generate without --shape")
    parser.add_argument("--threads", type=at_least(0), default=0, metavar="N", help="threads for both sides (default: all)")


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("original", help="the graph before, or a SavedModel's directory")
    parser.add_argument("optimized", help="the graph after, or a SavedModel's directory")
    add_shape_arguments(parser)
    verify_model.add_model_arguments(parser)
    parser.add_argument("--report", metavar="F", help=REPORT_HELP)
    parser.add_argument("--tolerance", type=tolerance, default=None, metavar="X", help="relative tolerance (default: by dtype)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_trust_argument(parser, loads=False)


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("original", help="the graph before, or a SavedModel's directory")
    parser.add_argument("optimized", help="the graph after, or a SavedModel's directory")
    add_shape_arguments(parser)
    verify_model.add_model_arguments(parser)
    parser.add_argument("--report", metavar="F", help=REPORT_HELP)
    rounds = "interleaved rounds per shape (default: 9; 6 give intervals)"
    parser.add_argument("--rounds", type=at_least(1), default=9, metavar="N", help=rounds)
    parser.add_argument("--cold", type=at_least(0), default=0, metavar="N", help="also time load and first run in N fresh processes a side")
    parser.add_argument("--csv", metavar="F", help="write one line a shape as CSV")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _check_files(args: argparse.Namespace) -> None:
    """Whatever is wrong with the files to be written is said before the work."""
    check_distinct({"optimised graph": args.optimized, "report": args.report})
    csv_file = getattr(args, "csv", None)
    check_distinct({"original": args.original, "report": args.report, "CSV file": csv_file})
    check_distinct({"optimised graph": args.optimized, "CSV file": csv_file})
    for path in filter(None, (args.report, csv_file)):
        check_output(path)


def _plan(args: argparse.Namespace, directory: str):
    """(specs, outputs, sizes); the paths in ``args`` are then of files in wire format."""
    graph = read_graph(args.original)
    refuse_as_original(args.original, graph)
    optimized = read_graph(args.optimized)
    specs, outputs, trace = model_specs(args.original, graph, args.inputs_json, args.outputs)
    outputs = outputs or default_outputs(graph)
    sizes = parse_sizes(args.shape) or trace or sample_sizes(specs, args.points)
    check_sizes(specs, sizes, own_names(args.original, args.inputs_json))
    if not sizes:
        raise CommandError("no shapes to run at: give --shape")
    args.original = binary_form(args.original, graph, directory)
    args.optimized = binary_form(args.optimized, optimized, directory)
    return specs, outputs, sizes


def run_verify(args: argparse.Namespace) -> int:
    with scratch() as temp:
        return _verify(args, str(temp))


def _verify(args: argparse.Namespace, directory: str) -> int:
    names = args.original, args.optimized
    _check_files(args)
    models = verify_model.are_models(args)
    signers, signed = signers_of(args.optimized, args.trust_file)
    signers.require(args.optimized, signed)
    code = {"code": signed}
    if not args.json:
        for line in summary(signers, signed):
            print(line)
    if models:
        with originals_that_load(names[0]):
            results, by_signature = verify_model.verify(args)
        data = {"signatures": {name: [vars(r) for r in found] for name, found in by_signature.items()}}
        return _judge(args, results, data | code, names)
    specs, outputs, sizes = _plan(args, directory)

    def show(result: ShapeResult) -> None:
        if not args.json:
            print(shape_line(result), flush=True)

    with originals_that_load(names[0]):
        results = verify_graphs(
            args.original, args.optimized, specs, outputs, sizes, tolerance=args.tolerance, threads=args.threads, progress=show
        )
    return _judge(args, results, {"shapes": [vars(r) for r in results]} | code, names)


@contextlib.contextmanager
def originals_that_load(path: str) -> Iterator[None]:
    """`CommandError` if TensorFlow does not load the original."""
    try:
        yield
    except (ProcessFailed, TfError) as e:
        raise CommandError(f"TensorFlow does not load {path}: {e}", BAD_INPUT) from e


def _judge(args: argparse.Namespace, results: Sequence[ShapeResult], data: dict[str, Any], names: tuple[str, str]) -> int:
    """Say whether the answers are the same; the exit code. ``data``: the results as ``--json`` shows them."""
    same = all(r.ok for r in results)
    compared = sum(r.compared for r in results)
    ok = same and compared > 0
    data = {"ok": ok, "compared": compared, **data}
    if args.report:
        write_verification(args.report, results, data, *names)
    if args.json:
        print(json.dumps(data, indent=2))
    elif same and not compared:
        pass
    else:
        worst: dict[str, float] = {}
        for name, error in (item for r in results for item in r.max_abs.items()):
            worst[name] = max(error, worst.get(name, 0.0))
        for name, error in worst.items():
            print(f"{name}: worst absolute error {error:.3e}")
        print("same answers" if ok else "DIFFERENT")
    if same and not compared:
        why = f", {results[0].message} at the first" if results and results[0].message else ""
        print(f"disc-tf: nothing was compared: no shape gave results ({len(results)} tried{why}); {_ADVICE}", file=sys.stderr)
    return OK if ok else VERIFY_FAILED


def bench_data(
    rows: Sequence[BenchRow], skipped: Sequence[Mapping[str, Any]], threads: int, cold: Mapping[str, Any]
) -> dict[str, Any]:
    """What `disc-tf bench --json` prints: times in milliseconds; ``low`` and ``high`` bound a ratio with 95 % confidence."""
    ratios = [r.ratio for r in rows]
    bounds = pooled([r.ratios for r in rows])
    return {
        "geometric_mean": statistics.geometric_mean(ratios) if ratios else None,
        "geometric_mean_interval": list(bounds[1:]) if bounds else None,
        "minimum": min(ratios) if ratios else None,
        "threads": threads,
        "fresh_process": dict(cold),
        "shapes": [r.to_dict() for r in rows],
        "not_timed": list(skipped),
    }


def _bounds(row: BenchRow) -> str:
    found = interval(row.ratios)
    return f"  {found[0]:.2f} to {found[1]:.2f}" if found else ""


def run_bench(args: argparse.Namespace) -> int:
    with scratch() as temp:
        return _bench(args, str(temp))


def _bench(args: argparse.Namespace, directory: str) -> int:
    names = args.original, args.optimized
    _check_files(args)
    model = verify_model.plan_bench(args) if verify_model.are_models(args) else None
    specs, outputs, sizes = (model.signature.specs, (), model.sizes) if model is not None else _plan(args, directory)
    skipped: list[dict[str, Any]] = []

    say, done = Say(args.json), itertools.count(1)
    if note := busy():
        say(note)

    def step() -> None:
        say(f"timing ({next(done)} of {len(sizes)})")

    def skip(size: Mapping[str, int], why: str) -> None:
        step()
        say.clear()
        skipped.append({"dims": dict(size), "message": why})
        print(f"disc-tf: {','.join(f'{k}={v}' for k, v in size.items())}: {why}", file=sys.stderr, flush=True)

    try:
        if model is not None:
            rows = model.run(args.original, args.optimized, args.threads, args.rounds, lambda _row: step(), skip)
        else:
            rows = bench_graphs(
                args.original, args.optimized, specs, outputs, sizes,
                threads=args.threads, rounds=args.rounds, progress=lambda _row: step(), skipped=skip,
            )  # fmt: skip
    except OptimizedRaised as e:
        raise CommandError(str(e), VERIFY_FAILED) from e
    except (ProcessFailed, TfError) as e:
        raise CommandError(f"not timed: {e}", BAD_INPUT) from e
    finally:
        say.clear()
    cold = {}
    if args.cold and rows:
        start = model.start if model is not None else graph_starter(specs, outputs)
        cold = cold_starts(
            args.original, args.optimized, specs, rows[0].dims, start, processes=args.cold, threads=args.threads, progress=say
        )
        say.clear()
    data = bench_data(rows, skipped, args.threads, {k: dataclasses.asdict(v) for k, v in cold.items()})
    mean, minimum = data["geometric_mean"], data["minimum"]
    if args.report:
        write_bench(args.report, data, *names)
    if args.csv:
        write_csv(args.csv, data)
    if args.json:
        print(json.dumps(data, indent=2))
    if not rows:
        print(f"disc-tf: warning: nothing was timed: TensorFlow itself raises at all {len(skipped)} shapes; {_ADVICE}", file=sys.stderr)
    if args.json or not rows:
        return OK
    print(f"{'shape':28s} {'cold ms':>18s} {'median ms':>18s} {'p99 ms':>18s} {'ratio':>7s}  95 % in")
    for r in rows:
        dims = ",".join(f"{k}={v}" for k, v in r.dims.items())
        print(
            f"{dims:28s} {r.original.cold:8.2f} {r.optimized.cold:9.2f} {r.original.median:8.2f} {r.optimized.median:9.2f} "
            f"{r.original.p99:8.2f} {r.optimized.p99:9.2f} {r.ratio:7.2f}{_bounds(r)}"
        )
    last = rows[-1]
    bounds = data["geometric_mean_interval"]
    spelled = f" (95 % in {bounds[0]:.2f} to {bounds[1]:.2f})" if bounds else ""
    print(f"geometric mean {mean:.2f}{spelled}, minimum {minimum:.2f} (original / optimised; columns are original, optimised)")
    for side, found in cold.items():
        print(f"fresh process, {side}: {found.start:.0f} ms until the graph is loaded, {found.first:.1f} ms for the first run")
    print(f"peak memory above the bare process: {last.original.peak_mb:.0f} MB, {last.optimized.peak_mb:.0f} MB")
    return OK
