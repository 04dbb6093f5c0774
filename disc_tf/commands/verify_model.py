"""`disc-tf verify` and `disc-tf bench` of two SavedModels, signature by signature."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from disc_tf.commands.common import BAD_INPUT, USAGE, CommandError, check_sizes, parse_sizes
from disc_tf.commands.kinds import refuse_as_original
from disc_tf.frontend.saved_model import SavedModelError, choose_meta_graphs, read_saved_model, title_of
from disc_tf.report import ShapeResult, shape_line
from disc_tf.testing.differential import BenchRow, bench_sides
from disc_tf.testing.inputs import sample_sizes
from disc_tf.testing.saved_models import ROUTES, ModelCheck
from disc_tf.testing.signatures import ModelPlan, SignaturePlan, plan_model
from disc_tf.testing.tf_process import SavedModelProcess, SignatureSide


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that only SavedModels have."""
    group = parser.add_argument_group("SavedModels")
    group.add_argument(
        "--signature",
        action="append",
        default=[],
        metavar="S",
        help="only this signature (repeatable; default: verify takes all, bench serving_default)",
    )
    tags = "load only the graph with these tags (default: verify takes all, bench the one tagged serve)"
    group.add_argument("--tag", action="append", default=[], metavar="T", help=tags)
    loaders = {"choices": ["auto", "tf2", "session"], "default": "auto"}
    group.add_argument("--loader", **loaders, help="tf.saved_model.load, or a session as TensorFlow Serving has it (default: by model)")


def are_models(args: argparse.Namespace) -> bool:
    """Whether both paths are directories. `CommandError` (usage) for one of each kind, and for flags of the other kind."""
    kinds = [Path(path).is_dir() for path in (args.original, args.optimized)]
    if kinds[0] != kinds[1]:
        one, other = (args.original, args.optimized) if kinds[0] else (args.optimized, args.original)
        raise CommandError(f"{one} is a directory and {other} is not: give two SavedModels or two GraphDefs", USAGE)
    wrong = (
        (("--outputs", args.outputs), ("--inputs-json", args.inputs_json))
        if kinds[0]
        else (("--signature", args.signature), ("--tag", args.tag), ("--loader", args.loader != "auto"))
    )
    for flag, given in wrong:
        if given:
            raise CommandError(f"{flag} is for {'GraphDefs' if kinds[0] else 'SavedModels'}", USAGE)
    return kinds[0]


def _plans(args: argparse.Namespace) -> list[ModelPlan]:
    """A plan for each MetaGraph that is looked at and has signatures, the one tagged ``serve`` first."""
    plans = []
    try:
        original = read_saved_model(args.original)
        refuse_as_original(args.original, original)
        choices = choose_meta_graphs(original, args.tag or None, args.signature or None)
        optimized = read_saved_model(args.optimized)
        for choice in choices:
            if choice.reason:
                continue
            plan_model(args.optimized, tags=choice.tags, message=optimized)
            plans.append(plan_model(args.original, tags=choice.tags, signatures=choice.signatures, loader=args.loader, message=original))
    except SavedModelError as e:
        raise CommandError(str(e), BAD_INPUT) from e
    plans = [plan for plan in plans if plan.signatures]
    if not plans:
        raise CommandError(f"{args.original} has no signatures: nothing can be run", BAD_INPUT)
    return plans


def _sizes(args: argparse.Namespace, plans: Sequence[ModelPlan]) -> list[dict[str, int]] | None:
    """``--shape``, which names the dims of one signature."""
    sizes = parse_sizes(args.shape)
    if not sizes:
        return None
    if len(plans) > 1:
        raise CommandError(f"--shape needs one --tag: there are {'; '.join(title_of(p.tags) for p in plans)}", USAGE)
    if len(plans[0].signatures) > 1:
        raise CommandError(f"--shape needs one --signature: the model has {', '.join(plans[0].signatures)}", USAGE)
    (signature,) = plans[0].signatures.values()
    check_sizes(signature.specs, sizes)
    return sizes


def verify(args: argparse.Namespace) -> tuple[list[ShapeResult], dict[str, list[ShapeResult]]]:
    """All results, and by signature (``[tags] signature`` where there are several MetaGraphs); each is printed as it comes (not with
    ``--json``), warnings go to standard error."""
    plans = _plans(args)
    sizes = _sizes(args, plans)
    found: dict[str, list[ShapeResult]] = {}
    for plan in plans:
        where = f"[{title_of(plan.tags)}] " if len(plans) > 1 else ""
        named = bool(where) or len(plan.signatures) > 1

        def show(signature: str, result: ShapeResult, where: str = where, named: bool = named) -> None:
            if not args.json:
                print(f"{where}{signature}: {shape_line(result)}" if named else shape_line(result), flush=True)

        loaders = list(ROUTES) if args.loader == "auto" else []
        settings = {"tolerance": args.tolerance, "points": args.points, "sizes": sizes, "threads": args.threads}
        with ModelCheck(plan, loaders=loaders, **settings) as check:
            results = check.attempt(args.optimized, progress=show)
        for name, rows in results.items():
            for row in rows:
                if not row.ok and not row.shapes:  # of a loader, not of a shape
                    show(name, row)
        found |= {f"{where}{name}": rows for name, rows in results.items()}
        if not args.json:
            for name, first in check.same.items():
                print(f"{where}{name}: the same computation as {first}")
            if len(check.used) > 1:
                print(f"{where}loaded by {', '.join(ROUTES[loader] for loader in check.used)}")
        for warning in check.warnings:
            print(f"disc-tf: warning: {where}{warning}", file=sys.stderr)
    return [r for results in found.values() for r in results], found


@dataclasses.dataclass(frozen=True)
class Bench:
    """One signature of a model, to be timed at ``sizes``."""

    plan: ModelPlan
    signature: SignaturePlan
    sizes: Sequence[Mapping[str, int]]

    def run(
        self,
        original: str,
        optimized: str,
        threads: int,
        rounds: int,
        progress: Callable[[BenchRow], None],
        skipped: Callable[[Mapping[str, int], str], None],
    ) -> list[BenchRow]:
        """Both models in turn; see `bench_sides`."""
        with contextlib.ExitStack() as stack:
            sides = [stack.enter_context(self.start(original, False, threads)), stack.enter_context(self.start(optimized, True, threads))]
            return bench_sides(sides, self.signature.specs, self.sizes, rounds=rounds, progress=progress, skipped=skipped)

    @contextlib.contextmanager
    def start(self, path: str | Path, ops: bool, threads: int) -> Iterator[SignatureSide]:
        """The signature in a fresh process."""
        s = self.signature
        with SavedModelProcess(path, tags=self.plan.tags, loader=self.plan.loader, ops=ops, threads=threads) as process:
            yield SignatureSide(process, s.name, s.inputs, s.outputs)


def plan_bench(args: argparse.Namespace) -> Bench:
    """What is timed: ``--signature``, else ``serving_default``, else the first."""
    if len(args.signature) > 1:
        raise CommandError("bench takes one --signature", USAGE)
    plan = _plans(args)[0]
    name, signature = next(iter(plan.signatures.items()))
    if signature.why_not:
        raise CommandError(f"signature {name}: {signature.why_not}", BAD_INPUT)
    sizes = _sizes(args, [dataclasses.replace(plan, signatures={name: signature})])
    return Bench(plan, signature, sizes or sample_sizes(signature.specs, args.points))
