"""What the front end asks of its stores and of the pool of compile children; the classes that do it are in `stores`, `blobs`,
`operations_store` and `children`.

Times are seconds since 1970 (float); all byte sizes are of plain (not compressed) content. Everything here is plain data and small:
content that may be large (graphs, results) lies in the `BlobStore`, and operations name it by digest.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


class ServiceError(Exception):
    """An error that a caller is told: `errors` makes a google.rpc.Status of it.

    code: name of a gRPC status code ("NOT_FOUND"). reason: of ErrorInfo (docs/service.md). metadata: of ErrorInfo.
    retry_after: seconds, becomes RetryInfo. field: the wrong field, becomes BadRequest. missing: blobs that are not there, becomes
    PreconditionFailure.
    """

    def __init__(
        self,
        code: str,
        reason: str,
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
        field: str = "",
        missing: Sequence[Digest] = (),
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.metadata = dict(metadata or {})
        self.retry_after, self.field, self.missing = retry_after, field, tuple(missing)


# ---- blobs ----


@dataclass(frozen=True, order=True)
class Digest:
    """Identity of content: SHA-256 in lower-case hexadecimal, and size in bytes."""

    hash: str
    size: int

    @staticmethod
    def of(data: bytes) -> Digest:
        """The digest of ``data``."""
        return Digest(hashlib.sha256(data).hexdigest(), len(data))

    def __str__(self) -> str:
        return f"{self.hash}/{self.size}"


@dataclass(frozen=True)
class Usage:
    """What a namespace holds: bytes and blobs that are there, uploads that are open (their declared sizes are in ``reserved``)."""

    bytes: int
    blobs: int
    uploads: int
    reserved: int


class Upload(Protocol):
    """One upload that is being written by one caller; `committed` counts bytes of the stream as it is sent (compressed or not)."""

    @property
    def committed(self) -> int:
        """Bytes of the stream that are kept: where the next `write` goes on."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the blob is there (it may have been there before)."""
        ...

    async def write(self, offset: int, data: bytes) -> None:
        """Adds data at ``offset``. What is there already is skipped. ServiceError OUT_OF_RANGE for a gap, INVALID_ARGUMENT for too much,
        RESOURCE_EXHAUSTED where the disk is full."""
        ...

    async def finish(self) -> None:
        """Checks size and digest and makes the blob visible. ServiceError INVALID_ARGUMENT where they are not what was declared (the upload
        is thrown away then)."""
        ...

    async def release(self) -> None:
        """Ends this caller's hold; what is not finished stays for a while, to be resumed. Never raises."""
        ...


class BlobStore(Protocol):
    """Content by digest, in a namespace per principal. The empty blob is always there. What nobody uses is evicted, oldest use first."""

    async def missing(self, principal: str, digests: Sequence[Digest]) -> list[Digest]:
        """Those that are not in the namespace, in order, each once. Those that are there count as used now."""
        ...

    async def put(self, principal: str, data: bytes, *, owner: str = "", seconds: float = 0) -> Digest:
        """Adds content (nothing to do if it is there). owner, seconds: also pins it, in one step.

        ServiceError RESOURCE_EXHAUSTED: quota of the principal (reason QUOTA_BYTES) or the store is full (STORE_FULL, with retry_after).
        """
        ...

    async def get(self, principal: str, digest: Digest) -> bytes:
        """All of it, verified. ServiceError NOT_FOUND (reason BLOB_NOT_FOUND), also for what was found corrupt (it is removed then)."""
        ...

    def read(self, principal: str, digest: Digest, offset: int = 0, limit: int = 0) -> AsyncIterator[bytes]:
        """Chunks of at most 1 MiB; limit 0: to the end. A read of all is verified before its last chunk is given.

        ServiceError NOT_FOUND, OUT_OF_RANGE (offset behind the end), DATA_LOSS (turned out to be corrupt; it is removed).
        """
        ...

    async def upload(self, principal: str, digest: Digest, upload_id: str, compressor: str = "") -> Upload:
        """Begins or resumes an upload. One caller holds it at a time; a newer call takes it over (the older one's next call is ABORTED).

        ServiceError INVALID_ARGUMENT (digest, upload_id, compressor; another digest or compressor than the upload began with),
        RESOURCE_EXHAUSTED (blob too large, quota, too many open uploads).
        """
        ...

    async def upload_status(self, principal: str, digest: Digest, upload_id: str) -> tuple[int, bool]:
        """(committed, complete) as of `Upload`; (0, False) for an upload that is not known; of a blob that is there: (its size, True)."""
        ...

    async def link(self, source: str, digest: Digest, principal: str) -> None:
        """Makes a blob of the namespace ``source`` visible in ``principal``'s too, without copying. ServiceError NOT_FOUND, quota."""
        ...

    async def pin(self, principal: str, digest: Digest, owner: str, seconds: float) -> None:
        """Keeps a blob from eviction until `unpin(owner)`, at most so long. ServiceError NOT_FOUND."""
        ...

    async def unpin(self, owner: str) -> None:
        """Ends all pins of an owner."""
        ...

    async def usage(self, principal: str | None = None) -> Usage:
        """Of a namespace; None: of all."""
        ...

    async def sweep(self) -> None:
        """Evicts what is too old or too much, ends uploads that nobody continues, removes leavings of processes that died. Call it every
        minute or so; it may run in several processes."""
        ...

    async def close(self) -> None:
        """Ends it; what was put stays."""
        ...


# ---- operations ----


class State(enum.StrEnum):
    """State of an operation, as in OptimizeMetadata."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def ended(self) -> bool:
        return self not in (State.QUEUED, State.RUNNING)


@dataclass(frozen=True)
class Outcome:
    """How work ended: ``result`` (opaque to the store; of a success) or ``error`` (a serialized google.rpc.Status)."""

    result: bytes = b""
    error: bytes = b""


@dataclass(frozen=True)
class Event:
    """An entry of the log: opaque ``data``. A later event of the same non-empty ``kind`` replaces it (progress, queue position); events of
    kind "" are kept, up to the store's bound (the oldest of them stay)."""

    sequence: int
    time: float
    kind: str
    data: bytes


@dataclass(frozen=True)
class Submission:
    """A request for work.

    request_id: unique for the principal for 24 hours. body: digest of all that the request says (32 bytes). key: what equal compiles have
    in common (it includes the principal, where results must not be shared). cost: how much of a fair share it takes (1: an ordinary
    request). work: what a worker needs; private: what belongs to this operation alone (names to put back); both opaque and at most 1 MiB.
    timeout: seconds from now; of shared work the latest counts. outcome: known already (a hit in the cache): the operation is born ended.
    queued: data of the first event of the log (kind "queued"), if it is new work.
    """

    principal: str
    request_id: str
    body: bytes
    key: bytes
    work: bytes
    private: bytes = b""
    timeout: float = 600.0
    cost: float = 1.0
    cancel_on_disconnect: bool = False
    outcome: Outcome | None = None
    queued: bytes = b""


@dataclass(frozen=True)
class Operation:
    """What is known of an operation. id: 32 random hexadecimal characters. shared: how many operations wait for the same work."""

    id: str
    principal: str
    request_id: str
    state: State
    created: float
    started: float | None
    ended: float | None
    expires: float | None
    last_sequence: int
    private: bytes
    cancel_on_disconnect: bool
    work_id: str
    shared: int = 1
    outcome: Outcome | None = None


@dataclass(frozen=True)
class Lease:
    """Work that was given to a worker. fence: larger for every later lease of the same work; whoever holds an older one is refused."""

    work_id: str
    fence: int
    key: bytes
    work: bytes
    attempt: int
    deadline_in: float


@dataclass(frozen=True)
class Heartbeat:
    """Answer to a heartbeat. lost: the lease is not this worker's any more (also where all its waiters are gone): stop, commit nothing.
    deadline_in: seconds that are left (negative: over)."""

    lost: bool
    deadline_in: float


@dataclass(frozen=True)
class QueueState:
    """waiting: works by principal that nobody has begun; running: works that are leased; operations: not ended, by principal."""

    waiting: dict[str, int] = field(default_factory=dict)
    running: int = 0
    operations: dict[str, int] = field(default_factory=dict)


class OperationStore(Protocol):
    """Operations, the work that they wait for, and its log. Several front ends may share one store.

    Whoever asks for another principal's operation gets NOT_FOUND (reason OPERATION_NOT_FOUND), as for one that never was. A call waits for
    a busy store for a bounded time; then it is UNAVAILABLE (reason STORE_UNAVAILABLE, with retry_after).
    """

    async def submit(self, s: Submission) -> tuple[Operation, bool]:
        """Creates an operation, or finds the one of the same (principal, request_id, body); whether it was created. It waits for work of
        the same key that has not ended, else for new work.

        ServiceError ALREADY_EXISTS (REQUEST_ID_REUSED: another body), RESOURCE_EXHAUSTED (QUEUE_FULL, QUOTA_OPERATIONS; with retry_after).
        """
        ...

    async def get(self, principal: str, id: str) -> Operation:
        """One operation. ServiceError NOT_FOUND."""
        ...

    async def list(self, principal: str, limit: int = 100, page: str = "") -> tuple[list[Operation], str]:
        """Operations of a principal, newest first, and the token of the next page ("": none). Outcomes are left out."""
        ...

    async def delete(self, principal: str, id: str) -> None:
        """Forgets an ended operation. ServiceError NOT_FOUND, FAILED_PRECONDITION (OPERATION_RUNNING)."""
        ...

    async def cancel(self, principal: str, id: str, error: bytes) -> Operation:
        """Ends an operation with this google.rpc.Status, if it has not ended; its work too, if nobody else waits for it."""
        ...

    async def watch(self, principal: str, id: str, after: int, seconds: float) -> tuple[list[Event], Operation]:
        """Events after a sequence number, and the operation, as soon as there is one or it has ended, at the latest after so long.

        When the operation has ended its outcome is no event of the log: it has the sequence number ``last_sequence``.
        """
        ...

    async def position(self, principal: str, id: str) -> int:
        """How many works are likely to be begun before this operation's; 0: it runs or has ended."""
        ...

    async def queue(self) -> QueueState:
        """How full it is (over all front ends)."""
        ...

    async def lease(self, worker: str) -> Lease | None:
        """The next work by fair share: of the principal that has the least running, and then was given the least of late. None: nothing
        waits. A lease lasts `lease_seconds` unless it is renewed."""
        ...

    async def wait_for_work(self, seconds: float) -> None:
        """Returns when there may be something to lease, at the latest after so long."""
        ...

    async def heartbeat(self, work_id: str, fence: int) -> Heartbeat:
        """Renews a lease."""
        ...

    async def append(self, work_id: str, fence: int, events: Sequence[tuple[str, bytes]]) -> bool:
        """Adds (kind, data) to the log of a work; False: the lease is lost, nothing was added."""
        ...

    async def commit(self, work_id: str, fence: int, outcome: Outcome) -> bool:
        """Ends the work and all operations that wait for it; False: the lease is lost, nothing changed."""
        ...

    async def release(self, work_id: str, fence: int) -> bool:
        """Hands work back unfinished (drain): it is the next of its principal, and the attempt does not count."""
        ...

    async def sweep(self, lost_error: bytes, late_error: bytes) -> int:
        """Puts work whose lease ran out back into the queue (fails it with ``lost_error`` after `max_attempts`), ends what is past its
        deadline with ``late_error``, forgets what is past its retention. Returns how many works were put back. To be called every few
        seconds."""
        ...

    async def close(self) -> None:
        """Ends it; what was stored stays."""
        ...


# ---- children ----


@dataclass(frozen=True)
class Job:
    """One compile. options: a serialized disc_tf.v1.CompileOptions. wall_s, cpu_s: seconds; memory_bytes: resident, beyond what an idle
    child has."""

    graph: bytes
    outputs: tuple[str, ...]
    feeds: tuple[str, ...]
    options: bytes
    dry_run: bool = False
    wall_s: float = 600.0
    cpu_s: float = 1200.0
    memory_bytes: int = 4 << 30


class Reason(enum.StrEnum):
    """Why a child gave no result. REFUSED: the request's own fault, the message says what. DEFECT: an exception that should not be."""

    CRASHED = "CRASHED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    OUT_OF_TIME = "OUT_OF_TIME"
    OUT_OF_CPU = "OUT_OF_CPU"
    REFUSED = "REFUSED"
    DEFECT = "DEFECT"
    UNAVAILABLE = "UNAVAILABLE"


class ChildFailed(Exception):
    """A compile gave no result. UNAVAILABLE: no child could be started, or the pool is closed; trying again may help."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


OnProgress = Callable[[str, float, str], None]


class ChildPool(Protocol):
    """Single-use compile children, started ahead of need."""

    @property
    def size(self) -> int:
        """How many jobs run at a time; more `run`s wait."""
        ...

    async def start(self) -> None:
        """Starts the first children; returns when one is ready. ChildFailed if none can be."""
        ...

    async def run(self, job: Job, on_progress: OnProgress | None = None) -> bytes:
        """The serialized CompileResult, unchecked (`disc_tf.remote.check`). Cancelling the awaiting task kills the child.

        on_progress(phase, fraction, text) is called in the event loop. Raises ChildFailed.
        """
        ...

    async def close(self) -> None:
        """Kills all children."""
        ...


# ---- signing ----


class Signer(Protocol):
    """Signs results; at the front end only, children have no keys."""

    @property
    def key_ids(self) -> tuple[str, ...]:
        """Of the keys that sign now (Capabilities.key_ids)."""
        ...

    def reload(self) -> None:
        """Reads the keys again. ValueError: those of before stay in force."""
        ...

    def sign(self, artifacts: Sequence[bytes], request: bytes, compiler_version: str, targets: Sequence[str]) -> bytes:
        """A serialized disc_tf.v1.Signature. artifacts: `code_identity` of each cluster; request: the digest of the canonical request."""
        ...
