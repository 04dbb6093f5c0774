"""Loads, switches and unloads versions while requests run: a new version is loaded before the old one goes, and the old one goes when its
last request has ended.

One thread changes what is served (`reconcile`); any number of threads use it (`lease`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from disc_tf.serving.config import ModelSettings
from disc_tf.serving.errors import ServingError, from_exception, invalid
from disc_tf.serving.servable import Servable
from disc_tf.serving.sources import LocalSource, Source, StoreSource
from disc_tf.serving.stores import StoreError
from disc_tf.serving.versions import Settled

log = logging.getLogger("disc_tf.serving")

#: how often a version that does not load is tried again, unless its files change
MAX_LOAD_ATTEMPTS = 5
#: failed and unloaded versions that stay in the status of a model
_KEPT_STATES = 64


@dataclasses.dataclass
class VersionState:
    """What GetModelStatus says of a version. ``state``: START, LOADING, AVAILABLE, UNLOADING or END; ``code``: of its last error."""

    state: str
    code: str = "OK"
    message: str = ""
    attempts: int = 0
    files: object = None  # what the last attempt saw of the version's files
    not_before: float = 0.0  # monotonic time of the next attempt


class _Model:
    def __init__(self, settings: ModelSettings, source: Source) -> None:
        self.settings = settings
        self.source = source
        #: where its versions were at the latest look
        self.seen: set[Any] = set()
        self.available: dict[int, Servable] = {}
        self.states: dict[int, VersionState] = {}
        self.labels: dict[str, int] = {}


class ModelManager:
    """The models of a server.

    ``load(name, version, path)``: makes a Servable, warm-up included; it may raise anything. ``source(base_path)``: gives the versions
    there. ``quiet``: seconds without a change after which a version counts as complete. ``allow_unavailable_labels``: labels may name
    versions that are not loaded (yet).
    """

    def __init__(
        self,
        load: Callable[[str, int, Path], Servable],
        *,
        source: Callable[[str], Source] = LocalSource,
        quiet: float = 1.0,
        retry_seconds: float = 60.0,
        allow_unavailable_labels: bool = False,
        on_change: Callable[[], object] = lambda: None,
    ) -> None:
        self._load, self._source = load, source
        self._settled = Settled(quiet)
        self._retry = retry_seconds
        self._allow_labels = allow_unavailable_labels
        self._on_change = on_change
        self._models: dict[str, _Model] = {}
        self._lock = threading.Lock()  # of the tables; held for moments
        self._idle = threading.Condition(self._lock)
        self._changing = threading.Lock()  # of loading and unloading
        self._draining: list[threading.Thread] = []
        self.stopping = False

    # ---- use ----

    @contextlib.contextmanager
    def lease(self, name: str, version: int | None = None, label: str = "") -> Iterator[Servable]:
        """The servable of a request: the latest version, a given or a labelled one. It stays loaded inside the block."""
        servable = self._take(name, version, label)
        try:
            yield servable
        finally:
            with self._idle:
                servable.users -= 1
                if not servable.users:
                    self._idle.notify_all()

    def _take(self, name: str, version: int | None, label: str) -> Servable:
        if not name:
            raise invalid("ModelSpec has no name specified.")
        with self._lock:
            model, version = self._resolve(name, version, label)
            available = model.available if model is not None else {}
            wanted = max(available, default=None) if version is None else version
            if wanted is None or wanted not in available:
                which = f"Latest({name})" if version is None else f"Specific({name}, {version})"
                raise ServingError("NOT_FOUND", f"Servable not found for request: {which}")
            servable = available[wanted]
            servable.users += 1
            return servable

    def _resolve(self, name: str, version: int | None, label: str) -> tuple[_Model | None, int | None]:
        """The model, and the version that is asked for (None: whichever). Under the lock."""
        model = self._models.get(name)
        if label:
            if model is None or label not in model.labels:
                raise invalid(f"Unrecognized servable version label: {label}")
            version = model.labels[label]
        return model, version

    def status(self, name: str, version: int | None = None, label: str = "") -> dict[int, VersionState]:
        """Version -> state. NOT_FOUND as ModelServer says it."""
        with self._lock:
            model, version = self._resolve(name, version, label)
            states = {v: dataclasses.replace(s) for v, s in model.states.items()} if model is not None else {}
        if version is not None:
            if version not in states:
                raise ServingError("NOT_FOUND", f"Could not find version {version} of model {name}")
            return {version: states[version]}
        if not states:
            raise ServingError("NOT_FOUND", f"Could not find any versions of model {name}")
        return states

    def has(self, name: str) -> bool:
        """Whether a model of that name is configured."""
        with self._lock:
            return name in self._models

    def models(self) -> dict[str, list[int]]:
        """Model -> versions that answer."""
        with self._lock:
            return {name: sorted(model.available) for name, model in self._models.items()}

    def states(self) -> dict[str, dict[int, str]]:
        """Model -> version -> state."""
        with self._lock:
            return {name: {v: s.state for v, s in model.states.items()} for name, model in self._models.items()}

    def stores(self) -> dict[str, tuple[bool, int]]:
        """Model -> whether its object store answers, and how many calls to it failed. Models of local base paths are left out."""
        with self._lock:
            sources = {name: model.source for name, model in self._models.items()}
        return {name: (s.up, s.errors) for name, s in sources.items() if isinstance(s, StoreSource)}

    def ready(self) -> bool:
        """Whether every configured model answers."""
        with self._lock:
            return not self.stopping and all(model.available for model in self._models.values())

    def settings(self) -> list[ModelSettings]:
        """The configuration that is in force."""
        with self._lock:
            return [model.settings for model in self._models.values()]

    # ---- change ----

    def configure(self, models: Sequence[ModelSettings]) -> None:
        """Serve these models and no others.

        Loads what is new, then unloads what is gone. Raises `ServingError`; what ran before still runs.
        """
        with self._changing:
            new = {m.name: m for m in models}
            sources = {m.name: self._source_of(m) for m in models}
            self._check_labels(models, sources)
            with self._lock:
                for name, settings in new.items():
                    model = self._models.get(name)
                    if model is None or model.settings.base_path != settings.base_path:
                        # another base path: the versions there are other versions, the old ones go once the new ones are there
                        old = model
                        model = self._models[name] = _Model(settings, sources[name])
                        if old is not None:
                            model.available, model.states, model.labels = old.available, old.states, old.labels
                    model.settings = settings
                gone = [self._models.pop(name) for name in list(self._models) if name not in new]
            for name in new:
                self._reconcile(self._models[name], eager=True)
            for model in gone:
                for version in sorted(model.available):
                    self._unload(model, version)
            self._assign_labels()
        self._on_change()

    def reconcile(self) -> None:
        """One look at the disk: loads versions that became complete, unloads what the policy no longer names."""
        with self._changing:
            for model in list(self._models.values()):
                self._reconcile(model)
            self._settled.forget(set().union(*(model.seen for model in self._models.values())))
            self._assign_labels()

    def _source_of(self, settings: ModelSettings) -> Source:
        model = self._models.get(settings.name)
        if model is not None and model.settings.base_path == settings.base_path:
            return model.source
        try:
            return self._source(settings.base_path)
        except StoreError as e:
            raise invalid(f"model {settings.name}: {e}") from e

    def _check_labels(self, models: Sequence[ModelSettings], sources: Mapping[str, Source]) -> None:
        if self._allow_labels:
            return
        for m in models:
            have = self._models.get(m.name)
            known = set(have.available) if have is not None else set()
            for label, version in m.labels.items():
                # at the start nothing is loaded yet: what is there counts, and what then does not load gets no label
                if version not in known and not _may_have(sources[m.name], version):
                    raise ServingError(
                        "FAILED_PRECONDITION",
                        f"Request to assign label {label} to version {version} of model {m.name}, "
                        "which is not currently available for inference",
                    )

    def _assign_labels(self) -> None:
        with self._lock:
            for model in self._models.values():
                labels = model.settings.labels
                model.labels = {k: v for k, v in labels.items() if self._allow_labels or v in model.available}

    def _reconcile(self, model: _Model, eager: bool = False) -> None:
        try:
            found = model.source.versions()
            model.seen = set(found.values())
            complete = self._complete(model, found, eager)
        except StoreError:  # the source has said it; what is loaded goes on answering
            return
        wanted = model.settings.policy.select(complete)
        for version in reversed(wanted):  # the newest first: it is what most requests ask for
            self._try_load(model, version, complete[version])
        loaded = [v for v in wanted if _is_loaded(model, v, complete[v])]
        # What answers stays until something else does: an emptied directory or a broken newest version takes nothing away.
        if loaded:
            keep = set(loaded)
            if len(loaded) < len(wanted):  # a wanted version does not load: the ones that it was to replace stay
                keep |= {v for v in model.available if v in found}
            for version in [v for v in model.available if v not in keep]:
                self._unload(model, version)
        elif not found and model.available:
            log.warning("model %s: no version below %s; what is loaded goes on answering", model.settings.name, model.settings.base_path)

    def _complete(self, model: _Model, found: Mapping[int, Any], eager: bool) -> dict[int, Any]:
        """Version -> where it is, of the complete ones that the policy may name: not every old one is looked into."""
        policy = model.settings.policy
        complete: dict[int, Any] = {}
        for version in sorted(found, reverse=True):
            if policy.kind == "latest" and len(complete) >= policy.count:
                break
            if policy.kind == "specific" and version not in policy.versions:
                continue
            if self._is_there(model, version, found[version], eager):
                complete[version] = found[version]
        return complete

    def _is_there(self, model: _Model, version: int, where: Any, eager: bool) -> bool:
        if _is_loaded(model, version, where):
            return True
        files, changed = model.source.files(where)
        return files is not None if eager else self._settled.observe(where, files, changed)

    def _try_load(self, model: _Model, version: int, where: Any) -> None:
        if _is_loaded(model, version, where):
            return
        loaded = model.available.get(version)
        state = model.states.setdefault(version, VersionState("START"))
        try:
            files = model.source.files(where)[0]
        except StoreError:
            return
        if state.state == "END" and state.code != "OK" and state.files == files:
            if state.attempts >= MAX_LOAD_ATTEMPTS or time.monotonic() < state.not_before:
                return
        elif state.state == "END":
            state.attempts = 0
        name = model.settings.name
        self._set(model, version, "LOADING")
        state.files, state.attempts = files, state.attempts + 1
        log.info("loading model %s version %d from %s", name, version, where)
        start = time.monotonic()
        try:
            servable = self._fetch_and_load(model, version, where)
        except Exception as e:
            error = from_exception(e)
            state.not_before = time.monotonic() + self._retry
            if isinstance(e, StoreError):  # not the version's fault: it is tried until the store answers
                error = ServingError("UNAVAILABLE", str(e))
                state.not_before, state.attempts = 0.0, state.attempts - 1
            self._set(model, version, "AVAILABLE" if loaded is not None else "END", error)
            log.error("model %s version %d does not load: %s: %s", name, version, error.code, error.message)
            return
        with self._lock:
            model.available[version] = servable
        state.attempts = 0
        self._set(model, version, "AVAILABLE")
        log.info("model %s version %d is available after %.1f s", name, version, time.monotonic() - start)
        if loaded is not None:
            self._drain(loaded, lambda: None)

    def _fetch_and_load(self, model: _Model, version: int, where: Any) -> Servable:
        path, release = model.source.fetch(where)
        try:
            servable = self._load(model.settings.name, version, path)
        except BaseException:
            release()
            raise
        servable.origin, servable.on_closed = where, release
        return servable

    def _set(self, model: _Model, version: int, state: str, error: ServingError | None = None) -> None:
        with self._lock:
            entry = model.states.setdefault(version, VersionState(state))
            entry.state = state
            entry.code, entry.message = (error.code, error.message) if error is not None else ("OK", "")
            ended = [v for v, s in model.states.items() if s.state == "END"]
            for old in sorted(ended)[: max(0, len(ended) - _KEPT_STATES)]:
                del model.states[old]
        self._on_change()

    def _unload(self, model: _Model, version: int) -> None:
        with self._lock:
            servable = model.available.pop(version)
        self._set(model, version, "UNLOADING")

        def ended() -> None:
            if version not in model.available:
                self._set(model, version, "END")

        self._drain(servable, ended)

    def _drain(self, servable: Servable, then: Callable[[], None]) -> None:
        """Close ``servable`` when its last request has ended, in a thread of its own: a long request must not hold up the next version."""

        def wait() -> None:
            with self._idle:
                self._idle.wait_for(lambda: not servable.users)
            servable.close()
            servable.on_closed()
            log.info("unloaded model %s version %d", servable.name, servable.version)
            then()

        thread = threading.Thread(target=wait, name=f"drain-{servable.name}-{servable.version}", daemon=True)
        self._draining = [t for t in self._draining if t.is_alive()]
        self._draining.append(thread)
        thread.start()

    def close(self, seconds: float = 30.0) -> bool:
        """Unload all; waits up to ``seconds`` for requests that run. False if some did not end."""
        self.stopping = True
        with self._changing:
            with self._lock:
                models = list(self._models.values())
            for model in models:
                for version in sorted(model.available):
                    self._unload(model, version)
        end = time.monotonic() + seconds
        for thread in self._draining:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._draining)


def _is_loaded(model: _Model, version: int, where: Any) -> bool:
    """Whether the version that answers is the one that is there."""
    loaded = model.available.get(version)
    return loaded is not None and loaded.origin == where


def _may_have(source: Source, version: int) -> bool:
    """Whether there is such a version; True for a store that is down."""
    try:
        return version in source.versions()
    except StoreError:
        return True


class Watcher:
    """Calls `ModelManager.reconcile` every ``seconds`` in a thread."""

    def __init__(self, manager: ModelManager, seconds: float) -> None:
        self._manager, self._seconds = manager, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch-versions", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            try:
                self._manager.reconcile()
            except Exception:  # the next look may succeed: a watcher that died would go unnoticed
                log.exception("looking for versions failed")

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=60)


def label_or_version(spec: Mapping[str, object] | object) -> tuple[int | None, str]:
    """(version, label) of a ModelSpec message: at most one is set."""
    choice = spec.WhichOneof("version_choice")  # type: ignore[attr-defined]
    if choice == "version":
        return spec.version.value, ""  # type: ignore[attr-defined]
    if choice == "version_label":
        return None, spec.version_label  # type: ignore[attr-defined]
    return None, ""
