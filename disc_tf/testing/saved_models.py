"""Two SavedModels against each other: every signature on generated values and on the records of the model's warm-up file."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from disc_tf.report import ShapeResult
from disc_tf.testing.differential import QUIET, Case, Check, Side, generated
from disc_tf.testing.inputs import dim_names, make_feeds, sample_sizes
from disc_tf.testing.signatures import ModelPlan, SignaturePlan, plan_model
from disc_tf.testing.tf_process import SavedModelProcess, SignatureSide, start_all
from disc_tf.testing.timing import ROUNDS
from disc_tf.testing.warmup import Request, WarmupError, read_requests

#: source of a case that was made of a warm-up record
WARMUP = "warm-up records"
#: tried where TensorFlow refuses all smaller shapes: dims that are not the first
_LARGER = (224, 512)
#: shapes of warm-up records that are timed
_TIMED_RECORDS = 4

Progress = Callable[[str, ShapeResult], None]


def verify_saved_models(
    original: str | Path,
    optimized: str | Path,
    *,
    tags: Sequence[str] | None = None,
    signatures: Sequence[str] | None = None,
    sizes: Sequence[Mapping[str, int]] | None = None,
    loader: str = "auto",
    points: int = 6,
    tolerance: float | None = None,
    timing: bool = False,
    threads: int = 0,
    progress: Progress | None = None,
) -> dict[str, list[ShapeResult]]:
    """Signature -> results. Warm-up records come first, then generated values at ``sizes`` (None: ``points`` shapes).

    A signature whose inputs cannot be made up and that no record feeds has no results. Raises `SavedModelError` for models that cannot be
    read, `ProcessFailed` if the original does not load.
    """
    plan = plan_model(original, tags=tags, signatures=signatures, loader=loader)
    with ModelCheck(plan, tolerance=tolerance, points=points, sizes=sizes, threads=threads) as check:
        return check.attempt(optimized, timing=timing, progress=progress)


class ModelCheck(contextlib.ExitStack):
    """The original's processes, loaded once, against which candidates are held one after the other.

    sizes: shapes for the signature that has just these dims. warnings: what could not be replayed or made up.
    """

    def __init__(
        self,
        plan: ModelPlan,
        *,
        tolerance: float | None = None,
        points: int = 6,
        sizes: Sequence[Mapping[str, int]] | None = None,
        threads: int = 0,
        two_bodies: bool = False,
    ) -> None:
        super().__init__()
        self.plan = plan
        self.tolerance, self.threads = tolerance, threads
        self.warnings: list[str] = []
        self._kept: dict[str, SavedModelProcess] = {}
        records = self._records()
        self.cases: dict[str, list[Case]] = {}
        for name, signature in plan.signatures.items():
            cases = self._replayed(signature, [r for r in records if r.signature == name])
            if signature.why_not:
                if not cases:
                    self.warnings.append(f"signature {name} is not verified: {signature.why_not}")
            else:
                free = set(dim_names(signature.specs))
                given = [size for size in sizes or () if size.keys() == free]
                chosen = _distinct(given or sample_sizes(signature.specs, points))
                cases += generated(signature.specs, chosen, broadcast=two_bodies)
            self.cases[name] = cases

    def _records(self) -> list[Request]:
        try:
            records = read_requests(self.plan.directory)
        except WarmupError as e:
            self.warnings.append(f"the warm-up records are not replayed: {e}")
            return []
        unknown = {r.signature for r in records} - self.plan.signatures.keys()
        if unknown:
            skipped = sum(r.signature in unknown for r in records)
            self.warnings.append(f"{skipped} warm-up records are not replayed: they are for other signatures")
        return records

    def _replayed(self, signature: SignaturePlan, records: Sequence[Request]) -> list[Case]:
        """Cases of the records that feed all inputs; the first ones of different shapes are timed."""
        cases: list[Case] = []
        shapes: set[tuple[tuple[int, ...], ...]] = set()
        unfit = 0
        for record in records:
            if set(record.feeds) != set(signature.inputs):
                unfit += 1
                continue
            feeds = [record.feeds[name] for name in signature.inputs]
            shape = tuple(f.shape for f in feeds)
            timed = shape not in shapes and len(shapes) < _TIMED_RECORDS
            shapes.add(shape)
            cases.append(Case(feeds, timed, WARMUP, private=True))
        if unfit:
            self.warnings.append(f"{unfit} warm-up records for {signature.name} are not replayed: they do not feed its inputs")
        return cases

    # ---- running --------------------------------------------------------------------------------------------

    def _load(self, directory: str | Path, *, ops: bool = False, reference: bool = False, quiet: bool = False) -> SavedModelProcess:
        return SavedModelProcess(
            directory,
            tags=self.plan.tags,
            loader=self.plan.loader,
            reference=reference,
            ops=ops,
            threads=self.threads,
            env=QUIET if quiet else None,
        )

    def attempt(
        self,
        candidate: str | Path,
        *,
        timing: bool = False,
        deadline: float = math.inf,
        signatures: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> dict[str, list[ShapeResult]]:
        """Results of a candidate by signature (None: all). Every signature is compared at least once, whatever the ``deadline``."""
        roles: dict[str, Callable[[], SavedModelProcess]] = {
            "reference": functools.partial(self._load, self.plan.directory, reference=True),
            "checked": functools.partial(self._load, candidate, ops=True, quiet=True),
        }
        if timing:
            roles["user"] = functools.partial(self._load, self.plan.directory)
            roles["timed"] = functools.partial(self._load, candidate, ops=True)
        # a run of the original that changes something must not find what an earlier attempt left
        kept = set() if any(p.stateful for p in self.plan.signatures.values()) else {"reference", "user"}
        failure = ""
        with contextlib.ExitStack() as stack:
            jobs = {role: (make, self if role in kept else stack) for role, make in roles.items() if role not in self._kept}
            started = dict(zip(jobs, start_all(list(jobs.values())), strict=True))
            processes: dict[str, SavedModelProcess] = {role: p for role, p in self._kept.items() if role in roles}
            for role, process in started.items():
                if isinstance(process, SavedModelProcess):
                    processes[role] = process
                elif role in ("reference", "user"):
                    raise process
                else:
                    failure = f"the optimised model does not load: {process}"
            self._kept |= {role: p for role, p in processes.items() if role in kept}
            found: dict[str, list[ShapeResult]] = {}
            for name in signatures if signatures is not None else self.plan.signatures:
                signature = self.plan.signatures[name]
                sides = {role: _side(p, signature) for role, p in processes.items()}
                check = Check(
                    signature.inputs,
                    signature.outputs,
                    sides["reference"],
                    sides.get("checked"),
                    [sides["user"], sides["timed"]] if {"user", "timed"} <= sides.keys() else [],
                    self.tolerance,
                    ROUNDS,
                    failure,
                    deadline,
                    signature.random,
                )
                found[name] = self._one(check, signature, progress)
                failure = check.failure
            return found

    def _one(self, check: Check, signature: SignaturePlan, progress: Progress | None) -> list[ShapeResult]:
        def show(result: ShapeResult) -> None:
            if progress is not None:
                progress(signature.name, result)

        results = check.all(self.cases[signature.name], show)
        free = set(dim_names(signature.specs))
        if results and free and all(r.ok and not r.max_abs for r in results) and not check.failure:
            first = {s.dims[0] for s in signature.specs if s.dims}
            sizes = [{d: 1 if d in first else n for d in free} for n in _LARGER] if free - first else []
            results += check.all([Case(make_feeds(signature.specs, size)) for size in sizes], show)
        return _merged(results)


def _side(process: SavedModelProcess, signature: SignaturePlan) -> Side:
    return SignatureSide(process, signature.name, signature.inputs, signature.outputs)


def _distinct(sizes: Sequence[Mapping[str, int]]) -> list[Mapping[str, int]]:
    return list({tuple(sorted(s.items())): s for s in sizes}.values())


def _merged(results: Sequence[ShapeResult]) -> list[ShapeResult]:
    """Warm-up records of equal shapes as one result: the worst errors, the times of the one that was timed."""
    out: list[ShapeResult] = []
    places: dict[str, int] = {}
    for r in results:
        key = repr((r.shapes, r.ok, r.message))
        if r.source != WARMUP or key not in places:
            places[key] = len(out)
            out.append(r)
            continue
        kept = out[places[key]]
        for mine, other in ((kept.max_abs, r.max_abs), (kept.max_rel, r.max_rel)):
            for name, error in other.items():
                mine[name] = max(error, mine.get(name, 0.0))
    return out
