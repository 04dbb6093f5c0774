"""Requests that run together: concatenated along dim 0, where that is proved not to change any answer.

Off unless configured. Only requests with the same signature, outputs, types and equal other dims share a batch; nothing is padded. The
first request of a batch waits for others and then runs it for all of them, so there is no thread to hand it to.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from disc_tf.serving.errors import ServingError, from_exception
from disc_tf.serving.handlers import Runner, run_directly
from disc_tf.serving.servable import Servable, Signature

log = logging.getLogger("disc_tf.serving")


@dataclasses.dataclass(frozen=True)
class BatchSettings:
    """``max_rows``.

    Of a batch; ``wait_seconds``: how long a request waits for others; ``max_waiting``: requests in unfinished batches, more are refused.
    """

    max_rows: int = 32
    wait_seconds: float = 0.001
    max_waiting: int = 1024


class _Member:
    def __init__(self, feeds: Mapping[str, np.ndarray], rows: int, deadline: float | None) -> None:
        self.feeds, self.rows, self.deadline = feeds, rows, deadline
        self.done = threading.Event()
        self.values: list[np.ndarray] = []
        self.error: ServingError | None = None


class _Batch:
    def __init__(self) -> None:
        self.members: list[_Member] = []
        self.rows = 0
        self.full = threading.Event()


class Batcher:
    """A `Runner` that batches.

    Requests of a signature share batches where ``servable.not_batched`` has ``""`` for it. ``observe(model, rows)``: of each batch.
    """

    def __init__(
        self,
        settings: BatchSettings,
        *,
        run: Runner = run_directly,
        observe: Callable[[str, int], object] = lambda model, rows: None,
    ) -> None:
        self._settings, self._run, self._observe = settings, run, observe
        self._lock = threading.Lock()
        self._open: dict[Any, _Batch] = {}
        self._waiting = 0

    def __call__(
        self, servable: Servable, signature: Signature, feeds: Mapping[str, np.ndarray], outputs: tuple[str, ...], deadline: float | None
    ) -> list[np.ndarray]:
        rows = _rows(feeds)
        if (
            not rows
            or rows >= self._settings.max_rows
            or servable.not_batched.get(signature.name, "not judged")
        ):
            return self._run(servable, signature, feeds, outputs, deadline)
        shapes = tuple((a, feeds[a].dtype.str, feeds[a].shape[1:]) for a in sorted(feeds))
        key = (id(servable), signature.name, outputs, shapes)
        member = _Member(feeds, rows, deadline)
        batch, leads = self._join(key, member)
        try:
            if leads:
                batch.full.wait(self._patience(deadline))
                self._close(key, batch)
                self._run_batch(servable, signature, outputs, batch)
            elif not member.done.wait(None if deadline is None else max(0.0, deadline - time.monotonic())):
                raise ServingError("DEADLINE_EXCEEDED", "the deadline passed while the batch ran")
        finally:
            with self._lock:
                self._waiting -= 1
        if member.error is not None:
            raise member.error
        return member.values

    def _patience(self, deadline: float | None) -> float:
        left = float("inf") if deadline is None else deadline - time.monotonic()
        return max(0.0, min(self._settings.wait_seconds, left / 2))

    def _join(self, key: Any, member: _Member) -> tuple[_Batch, bool]:
        with self._lock:
            if self._waiting >= self._settings.max_waiting:
                raise ServingError("RESOURCE_EXHAUSTED", f"{self._waiting} requests wait for their batch already")
            self._waiting += 1
            batch = self._open.get(key)
            if batch is not None and batch.rows + member.rows > self._settings.max_rows:
                batch.full.set()  # its leader runs it as it is
                del self._open[key]
                batch = None
            leads = batch is None
            if batch is None:
                batch = self._open[key] = _Batch()
            batch.members.append(member)
            batch.rows += member.rows
            if batch.rows >= self._settings.max_rows:
                batch.full.set()
                del self._open[key]
            return batch, leads

    def _close(self, key: Any, batch: _Batch) -> None:
        with self._lock:
            if self._open.get(key) is batch:
                del self._open[key]

    def _run_batch(self, servable: Servable, signature: Signature, outputs: tuple[str, ...], batch: _Batch) -> None:
        members = batch.members
        self._observe(servable.name, batch.rows)
        try:
            if len(members) > 1 and self._together(servable, signature, outputs, members):
                return
            for m in members:  # alone, or each for itself: one bad request must not fail the others
                try:
                    m.values = self._run(servable, signature, m.feeds, outputs, m.deadline)
                except Exception as e:
                    m.error = from_exception(e)
        finally:
            for m in members:
                if not m.values and m.error is None and outputs:
                    m.error = ServingError("INTERNAL", "the batch ended without a result")
                m.done.set()

    def _together(self, servable: Servable, signature: Signature, outputs: tuple[str, ...], members: list[_Member]) -> bool:
        deadlines = [m.deadline for m in members]
        # the run goes on as long as somebody waits for it
        deadline = None if None in deadlines else max(d for d in deadlines if d is not None)
        feeds = {alias: np.concatenate([m.feeds[alias] for m in members]) for alias in members[0].feeds}
        try:
            values = self._run(servable, signature, feeds, outputs, deadline)
        except ServingError as e:
            if e.code == "DEADLINE_EXCEEDED":
                for m in members:
                    m.error = e
                return True
            return False
        rows = sum(m.rows for m in members)
        if any(v.ndim == 0 or v.shape[0] != rows for v in values):
            reason = servable.not_batched[signature.name] = "an output has not one row for each of the inputs"
            log.error("model %s signature %s: %s; not batched any more", servable.name, signature.name, reason)
            return False
        at = 0
        for m in members:
            m.values = [v[at : at + m.rows] for v in values]
            at += m.rows
        return True


def _rows(feeds: Mapping[str, np.ndarray]) -> int:
    """The extent of dim 0 that all feeds share, 0 if they do not."""
    if not feeds or any(v.ndim == 0 for v in feeds.values()):
        return 0
    sizes = {v.shape[0] for v in feeds.values()}
    return sizes.pop() if len(sizes) == 1 else 0
