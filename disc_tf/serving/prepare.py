"""`disc-tf serving prepare`: the versions below one base path, optimised, below another.

A version is taken when it is complete, optimised in a process of its own, and published in one step under the same number. If it cannot be
optimised, the original is published instead, and the reason is said: a server that reads the second base path gets every version. What was
published here carries a marker and is never an input.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from disc_tf.publish import make_writable
from disc_tf.saved_model import MARKER as OPTIMIZED
from disc_tf.serving.config import ModelSettings
from disc_tf.serving.stores import MARKER, Store, StoreError
from disc_tf.serving.versions import Settled
from disc_tf.version import __version__

#: what became of a version
DONE, ORIGINAL, CURRENT, OURS, INCOMPLETE, REFUSED, REMOVED, PENDING = (
    "optimized",
    "original published",
    "up to date",
    "not an input",
    "incomplete",
    "refused",
    "removed",
    "to be done",
)
#: outcomes that the command's exit code tells of
FAULTS = frozenset({ORIGINAL, INCOMPLETE, REFUSED})


class OptimizeFailed(Exception):
    """A version cannot be optimised. ``code``: the exit code of the optimiser."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Stopped(Exception):
    """The work was ended on demand: nothing is published."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a version. ``target``: its number in the second base path; ``code``: the optimiser's exit code where it failed."""

    model: str
    version: int
    result: str
    reason: str = ""
    target: int | None = None
    code: int = 0

    def line(self) -> str:
        number = "" if self.target in (None, self.version) else f" -> {self.target}"
        return f"{self.model} version {self.version}{number}: {self.result}" + (f": {self.reason}" if self.reason else "")


#: (source directory, result directory that does not exist yet) -> a remark for the report, or `OptimizeFailed`
Optimize = Callable[[Path, Path], str]
#: (original, what was made of it): writes warm-up records into the latter if it has none; what it did, in words
WarmUp = Callable[[Path, Path], str]


def _digest(files: Any) -> str:
    """Of what a store says is in a version."""
    return hashlib.sha256(repr(files).encode()).hexdigest()


def _no_warmup(original: Path, made: Path) -> str:
    return ""


@dataclasses.dataclass
class Preparer:
    """One model: from ``source`` to ``target``.

    ``offset`` is added to version numbers (needed where both base paths are one). ``keep``: at most so many of our versions stay in the
    target (0: all); an older one that the policy selects is not made.
    ``mirror``: a version that is gone from the source goes from the target too. ``retry``: optimise again what could not be.
    """

    settings: ModelSettings
    source: Store
    target: Store
    optimize: Optimize
    warm_up: WarmUp = _no_warmup
    offset: int = 0
    keep: int = 0
    mirror: bool = True
    retry: bool = False
    progress: Callable[[str], object] = lambda text: None
    settled: Settled = dataclasses.field(default_factory=lambda: Settled(2.0))

    # ---- one look ----

    def run(self, wait: float = 0.0, pause: float = 0.2) -> list[Outcome]:
        """Prepare what is wanted and not there yet. ``wait``: seconds for versions that are still being written. `StoreError`."""
        self.target.make()
        out: dict[int, Outcome] = {o.version: o for o in self._look(final=not wait, act=False)}
        if all(o.result != PENDING for o in out.values()) and not wait and not list(self._retire(act=False)):
            return [out[v] for v in sorted(out)]  # nothing to do: no lock is taken
        end = time.monotonic() + wait
        out.clear()
        with self.target.locked():
            while True:
                for outcome in self._look(final=time.monotonic() >= end, act=True):
                    # of several looks the one that did something counts
                    if outcome.result != CURRENT or outcome.version not in out:
                        out[outcome.version] = outcome
                if not any(o.result == INCOMPLETE for o in out.values()) or time.monotonic() >= end:
                    break
                time.sleep(pause)
            found = [out[v] for v in sorted(out)]
            found += self._retire()
        return found

    def _look(self, final: bool, act: bool) -> Iterable[Outcome]:
        names = self.source.versions()
        inputs = {v: n for v, n in names.items() if not self._is_ours(n)}
        wanted = set(self.settings.policy.select(inputs)) | (set(self.settings.labels.values()) & set(inputs))
        labelled = set(self.settings.labels.values())
        there = {source for source, _ in self._ours().values() if source in names or not self.mirror} - labelled if self.keep else set()
        for version in sorted(wanted, reverse=True):
            if self.keep and version not in labelled and sum(newer > version for newer in there) >= self.keep:
                continue  # `_retire` would take it away again
            outcome = self._version(version, inputs[version], final, act)
            if self.keep and version not in labelled and outcome.result in (DONE, ORIGINAL, CURRENT, PENDING):
                there.add(version)
            yield outcome
        for version in sorted(set(self.settings.policy.select(names)) - set(inputs)):
            if not self._made_here(version):
                yield self._outcome(version, OURS, "it was optimised already")

    def _is_ours(self, name: str) -> bool:
        return self.source.read(name, MARKER) is not None or self.source.read(name, OPTIMIZED) is not None

    def _made_here(self, version: int) -> bool:
        """Whether a version of a shared base path is one that we made of another."""
        return self.offset > 0 and version - self.offset > 0

    def _outcome(self, version: int, result: str, reason: str = "", code: int = 0) -> Outcome:
        return Outcome(self.settings.name, version, result, reason, version + self.offset, code)

    def _version(self, version: int, name: str, final: bool, act: bool) -> Outcome:
        files = self.source.files(name)
        if not self.settled.observe((str(self.source), name), files and files[0], files and files[1]):
            why = "no saved_model.pb yet" if files is None else "its files still change"
            return self._outcome(version, INCOMPLETE, why if not final else f"{why}; it was not taken")
        assert files is not None
        digest = _digest(files[0])
        there = self.target.versions().get(version + self.offset)
        before = self._marker(there) if there is not None else None
        if there is not None and (why := self._foreign(there, before)):
            return self._outcome(version, REFUSED, why)
        if before is not None and before.get("source_digest") == digest and self.target.files(there or "") is not None:
            if before.get("pinned"):
                return self._outcome(version, CURRENT, "rolled back to the original, and kept so")
            if before.get("result") == DONE or not self.retry:
                return self._outcome(version, CURRENT)
        if not act:
            return self._outcome(version, PENDING)
        return self._prepare(version, name, there or str(version + self.offset), digest)

    def _marker(self, name: str) -> dict[str, Any] | None:
        data = self.target.read(name, MARKER)
        if data is None:
            return None
        try:
            found = json.loads(data)
            return found if isinstance(found, dict) else None
        except ValueError:
            return None

    def _foreign(self, there: str, marker: dict[str, Any] | None) -> str:
        """Why a directory of the target, with its marker, is not replaced; "" if it may be."""
        if marker is not None or self.target.empty(there):
            return ""
        return f"{self.target}/{there} was not made by `disc-tf serving prepare`, it is not replaced"

    def _prepare(self, version: int, name: str, target: str, digest: str, pin: str = "") -> Outcome:
        self.progress(f"{self.settings.name} version {version}: " + ("publishing the original" if pin else "optimising"))
        try:
            return self._make(version, name, target, digest, pin)
        except OSError as e:
            raise StoreError(f"{self.settings.name} version {version}: {e}") from e

    def _make(self, version: int, name: str, target: str, digest: str, pin: str) -> Outcome:
        with self.source.fetched(name) as original, self.target.workspace() as work:
            made = work / "model"
            outcome = self._outcome(version, ORIGINAL if pin else DONE, pin)
            if not pin:
                try:
                    outcome = dataclasses.replace(outcome, reason=self.optimize(original, made))
                except OptimizeFailed as e:
                    outcome = self._outcome(version, ORIGINAL, str(e), e.code)
            if outcome.result == ORIGINAL:
                shutil.rmtree(made, ignore_errors=True)
                try:
                    shutil.copytree(original, made)
                    make_writable(made)  # the source may be read-only
                except OSError as e:
                    return self._outcome(version, REFUSED, f"cannot copy the original: {e}")
            elif said := self.warm_up(original, made):
                outcome = dataclasses.replace(outcome, reason="; ".join(filter(None, [outcome.reason, said])))
            after = self.source.files(name)
            if after is None or _digest(after[0]) != digest:
                return self._outcome(version, INCOMPLETE, "its files changed while it was optimised")
            marker = made / MARKER
            marker.parent.mkdir(parents=True, exist_ok=True)
            content = {
                "format": 1,
                "source_version": version,
                "source_digest": digest,
                "result": outcome.result,
                "reason": outcome.reason,
                "pinned": bool(pin),
                "compiler": __version__,
            }
            marker.write_text(json.dumps(content, indent=1) + "\n")
            self.target.renew()
            self.target.publish(target, made)
        return outcome

    # ---- going back, and what goes ----

    def rollback(self, version: int) -> Outcome:
        """Publish the original of a version in place of what was made of it, for good. `StoreError`."""
        self.target.make()
        with self.target.locked():
            name = self.source.versions().get(version)
            if name is None or (files := self.source.files(name)) is None:
                raise StoreError(f"{self.source} has no version {version}: the original is needed to go back to it")
            if self._is_ours(name):
                raise StoreError(f"{self.source}: version {version} is no original")
            there = self.target.versions().get(version + self.offset)
            if there is not None and (why := self._foreign(there, self._marker(there))):
                raise StoreError(why)
            digest = _digest(files[0])
            return self._prepare(version, name, there or str(version + self.offset), digest, pin="rolled back")

    def _ours(self) -> dict[int, tuple[int, str]]:
        """Number in the target -> (number in the source, directory) of the versions that were made here."""
        ours: dict[int, tuple[int, str]] = {}
        for number, name in self.target.versions().items():
            marker = self._marker(name)
            if marker is not None and marker.get("source_version") == number - self.offset:
                ours[number] = (number - self.offset, name)
        return ours

    def _retire(self, act: bool = True) -> Iterable[Outcome]:
        """Versions of ours that are gone from the source, and those beyond ``keep``. Never the last one, never what is not ours."""
        sources = set(self.source.versions())
        if not sources:
            return  # an emptied or unmounted source takes nothing away
        ours = self._ours()
        gone = {n for n, (source, _) in ours.items() if self.mirror and source not in sources}
        labelled = {v + self.offset for v in self.settings.labels.values()}
        left = sorted(set(ours) - gone - labelled)
        if self.keep:
            gone |= set(left[: max(0, len(left) - self.keep)])
        if not set(ours) - gone:
            gone -= {max(gone, default=0)}
        for number in sorted(gone):
            source, name = ours[number]
            why = "it is gone from the source" if source not in sources else f"the newest {self.keep} are kept"
            if act:
                self.target.remove(name)
            yield Outcome(self.settings.name, source, REMOVED, why, number)


def watch(
    preparers: Iterable[Preparer],
    seconds: float,
    stopped: Callable[[float], bool],
    say: Callable[[Outcome], object],
    complain: Callable[[str], object],
) -> None:
    """Look again and again, every ``seconds``, until ``stopped(seconds to wait)``.

    Only what is new is said; an error waits for the next look.
    """
    said: dict[tuple[str, int], Outcome] = {}
    last_error: dict[str, str] = {}
    while True:
        for preparer in preparers:
            name = preparer.settings.name
            try:
                for outcome in preparer.run():
                    key = (name, outcome.version)
                    if outcome.result == CURRENT:
                        continue
                    if said.get(key) != outcome:
                        say(outcome)
                    said[key] = outcome
                last_error.pop(name, None)
            except Stopped:
                return
            except StoreError as e:
                if last_error.get(name) != str(e):
                    complain(str(e))
                last_error[name] = str(e)
        if stopped(seconds):
            return
