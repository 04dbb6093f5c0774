"""Two SavedModels against each other: every signature on generated values and on the records of the model's warm-up file."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.saved_model import SavedModelError, choose_meta_graph, read_saved_model
from disc_tf.report import ShapeResult
from disc_tf.testing.differential import QUIET, Case, Check, Side, first_line, generated
from disc_tf.testing.inputs import dim_names, make_feeds, sample_sizes
from disc_tf.testing.originals import ROLES, Answers, Originals, Recorded
from disc_tf.testing.same_signatures import same_signatures
from disc_tf.testing.signatures import ModelPlan, SignaturePlan, plan_model
from disc_tf.testing.tf_process import Hosts, ProcessFailed, SavedModelProcess, SignatureSide, TfError
from disc_tf.testing.warmup import Request, WarmupError, read_requests

#: source of a case that was made of a warm-up record
WARMUP = "warm-up records"
#: tried where TensorFlow refuses all smaller shapes: dims that are not the first
_LARGER = (224, 512)
#: shapes of warm-up records that are timed
_TIMED_RECORDS = 4

#: loader -> what users call it
ROUTES = {"tf2": "tf.saved_model.load", "session": "tf.compat.v1.saved_model.load", "serve": "disc-tf serve"}
#: how the message starts that names a loader which does not take the result
UNLOADABLE = "the optimised model does not load"
#: of each signature, a loader other than the plan's is tried at so many shapes at least, and at all of them if that takes no longer
_LOADER_CASES, _LOADER_SECONDS = 2, 2.0

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
    loaders = list(ROUTES) if loader == "auto" else []
    with ModelCheck(plan, tolerance=tolerance, points=points, sizes=sizes, threads=threads, loaders=loaders) as check:
        return check.attempt(optimized, timing=timing, progress=progress)


class ModelCheck(Originals):
    """A SavedModel against which candidates are held one after the other.

    sizes: shapes for the signature that has just these dims. loaders: by which candidates are loaded and compared, besides the plan's.
    warnings: what could not be replayed, made up or loaded. used: the loaders of the last attempt that passed with the plan's.
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
        loaders: Sequence[str] = (),
        hosts: Hosts | None = None,
    ) -> None:
        super().__init__(hosts)
        self.plan = plan
        self.tolerance, self.threads, self.loaders = tolerance, threads, list(loaders)
        self.warnings: list[str] = []
        self.used: list[str] = []
        self.same: dict[str, str] = {}
        self._recorded_of: Any = None
        self._recorded: dict[str, Recorded] = {}
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

    def _load(
        self, directory: str | Path, *, ops: bool = False, reference: bool = False, quiet: bool = False, loader: str = ""
    ) -> SavedModelProcess:
        return SavedModelProcess(
            directory,
            tags=self.plan.tags,
            loader=loader or self.plan.loader,
            reference=reference,
            ops=ops,
            threads=self.threads,
            env=QUIET if quiet else None,
            hosts=self.hosts,
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
        """Results of a candidate by signature (None: all). Every signature is compared at least once, whatever the ``deadline``. Where
        another loader of ``loaders`` does not offer a signature, or has other answers, there is one more result that says so.
        `ProcessFailed` or `TfError` if the original does not load."""
        roles: dict[str, Callable[[], SavedModelProcess]] = {
            "reference": functools.partial(self._load, self.plan.directory, reference=True),
            "checked": functools.partial(self._load, candidate, ops=True, quiet=True),
        }
        if timing:
            roles["user"] = functools.partial(self._load, self.plan.directory)
            roles["timed"] = functools.partial(self._load, candidate, ops=True)
        stateful = any(p.stateful for p in self.plan.signatures.values())
        names = list(signatures if signatures is not None else self.plan.signatures)
        self.same = self._same(candidate, names)
        names = [name for name in names if name not in self.same]
        with contextlib.ExitStack() as stack:
            # a run of the original that changes something must not find what an earlier attempt left
            processes = self.started(roles, stack, () if stateful else ROLES)
            for role in ("reference", "user"):
                if isinstance(error := processes.get(role), Exception):
                    raise error
            failure = ""
            for role in ("checked", "timed"):
                if isinstance(error := processes.get(role), Exception):
                    failure = f"{UNLOADABLE} by {ROUTES[self.plan.loader]}: {error}"
            self._record(processes["reference"])
            found: dict[str, list[ShapeResult]] = {}
            for name in names:
                signature = self.plan.signatures[name]
                if processes["reference"].dead:  # by an earlier signature
                    processes |= self._again(roles["reference"], stack, stateful)
                sides = {role: _side(p, signature) for role, p in processes.items() if not isinstance(p, Exception)}
                check = self._check(signature, sides["reference"] if stateful else self._recorded[name], sides.get("checked"))
                check.users = [sides["user"], sides["timed"]] if {"user", "timed"} <= sides.keys() else []
                check.failure, check.deadline = failure, deadline
                found[name] = self._one(check, signature, progress)
                failure = check.failure
            if not failure and all(r.ok for results in found.values() for r in results):
                self.used = [self.plan.loader]
                for loader in self.loaders:
                    if loader != self.plan.loader:
                        self._by_loader(loader, processes["checked"], names, found, stateful)
            return found

    def _record(self, reference: SavedModelProcess) -> None:
        if self._recorded_of is not reference:
            self._recorded_of = reference
            self._recorded = {n: Recorded(_side(reference, s)) for n, s in self.plan.signatures.items()}

    def _again(self, make: Callable[[], SavedModelProcess], stack: contextlib.ExitStack, stateful: bool) -> dict[str, SavedModelProcess]:
        """A reference in place of one that ended. `ProcessFailed` or `TfError`."""
        found = self.started({"reference": make}, stack, () if stateful else ROLES)
        if isinstance(found["reference"], Exception):
            raise found["reference"]
        self._record(found["reference"])
        return found

    def _same(self, candidate: str | Path, names: Sequence[str]) -> dict[str, str]:
        """Of ``names``, those that are the same as another one of them, in the original and in the candidate."""
        if not any(first in names for name, first in self.plan.same.items() if name in names):
            return {}
        try:
            there = same_signatures(choose_meta_graph(read_saved_model(candidate), self.plan.tags), list(self.plan.signatures))
        except (SavedModelError, GraphError, KeyError):  # what is wrong is said when it is loaded
            return {}
        return {name: first for name, first in self.plan.same.items() if {name, first} <= {*names} and there.get(name) == first}

    def _check(self, signature: SignaturePlan, reference: Answers, candidate: Answers | None) -> Check:
        return Check(signature.inputs, signature.outputs, reference, candidate, tolerance=self.tolerance, random=signature.random)

    # ---- the other loaders ----

    def _by_loader(
        self, loader: str, checked: SavedModelProcess, names: Sequence[str], found: dict[str, list[ShapeResult]], stateful: bool
    ) -> None:
        """Load the candidate by another loader, in the process that is there, and compare again; what fails is added to ``found``."""
        names = [name for name in names if self.cases[name] and "#" not in name]
        if not names:
            return
        route = ROUTES[loader]
        unloadable, wrong = "", {}
        try:
            checked.load_by(loader)
        except (ProcessFailed, TfError) as e:
            unloadable = f"{UNLOADABLE} by {route}: {e}"
        with contextlib.ExitStack() as stack:
            original: SavedModelProcess | Exception | None = None
            if stateful or unloadable:
                original = self._original_by(loader, stack)
            if unloadable:
                wrong = {name: ShapeResult({}, False, unloadable) for name in names}
            for name in names if not unloadable else ():
                wrong |= self._compared_by(route, name, checked, self._recorded[name] if original is None else original)
            if wrong and original is None:
                original = self._original_by(loader, stack)
                for name in list(wrong):  # the loader itself may give other answers
                    del wrong[name]
                    wrong |= self._compared_by(route, name, checked, original)
        if isinstance(original, Exception):
            self._warn(f"the result was not loaded by {route}, which does not load the original either: {first_line(original)}")
            return
        self.used.append(loader)
        for name, result in wrong.items():
            found[name].append(result)

    def _original_by(self, loader: str, stack: contextlib.ExitStack) -> SavedModelProcess | Exception:
        try:
            return stack.enter_context(self._load(self.plan.directory, reference=True, loader=loader))
        except (ProcessFailed, TfError) as e:
            return e

    def _compared_by(
        self, route: str, name: str, checked: SavedModelProcess, reference: SavedModelProcess | Recorded | Exception
    ) -> dict[str, ShapeResult]:
        """The first failure of a signature, by its name."""
        if isinstance(reference, Exception):
            return {}
        signature, cases = self.plan.signatures[name], self.cases[name]
        there = {name} & set(checked.info.get("signatures", ()))
        if isinstance(reference, SavedModelProcess):
            if name not in reference.info.get("signatures", ()):
                return {}
            cases = cases if there else cases[:1]
        if not there:
            return {name: ShapeResult({}, False, f"{route} does not offer signature {name}")}
        sides = _side(reference, signature) if isinstance(reference, SavedModelProcess) else reference
        check = self._check(signature, sides, _side(checked, signature))
        stop, done = time.monotonic() + _LOADER_SECONDS, 0
        for case in cases:
            result = check.one(case)
            done += result.compared
            if not result.ok:
                result.message = f"loaded by {route}: {result.message}"
                return {name: result}
            if done >= _LOADER_CASES and time.monotonic() > stop and not signature.stateful:
                break
        return {}

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def _one(self, check: Check, signature: SignaturePlan, progress: Progress | None) -> list[ShapeResult]:
        def show(result: ShapeResult) -> None:
            if progress is not None:
                progress(signature.name, result)

        results = check.all(self.cases[signature.name], show)
        free = set(dim_names(signature.specs))
        if results and free and all(r.ok and not r.compared for r in results) and not check.failure:
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
        for name, number in r.elements.items():
            kept.elements[name] = kept.elements.get(name, 0) + number
    return out
