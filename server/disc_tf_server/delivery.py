"""How a result gets from the worker that made it to the operations that wait for it: what is stored with a work and with an operation,
and the OptimizeResult that a caller gets, in the names of its own request."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from google.rpc import status_pb2

from disc_tf.remote.canonical import renamed_text
from disc_tf.remote.messages import message_class, new
from disc_tf.runtime.cpu import with_extensions
from disc_tf_server import errors
from disc_tf_server.intake import Prepared, Threads
from disc_tf_server.interfaces import BlobStore, Digest, Operation, ServiceError, Signer, State
from disc_tf_server.lru import Lru
from disc_tf_server.results import ResultCache

#: (CompileResult, canonical name -> name) -> CompileResult
Rename = Callable[[Any, Mapping[str, str]], Any]
#: a serialized executable -> `disc_tf.runtime.identity.code_identity` of its artefact
Identify = Callable[[bytes], bytes]
#: names that are not kept in the operation itself
_LARGE_NAMES = 256 << 10
_RENAMED_BYTES = 64 << 20
#: how long a result that became a blob of its principal is kept at least (seconds)
_KEEP = 3600.0


@dataclasses.dataclass(frozen=True)
class Work:
    """What a worker needs. request: the canonical request, in the space's namespace; digest: of the canonical request (`Prepared.digest`);
    key: of the result; trace: a traceparent, "" for none."""

    space: str
    request: Digest
    digest: bytes
    key: bytes
    trace: str = ""

    @property
    def owner(self) -> str:
        """Who pins the request in the blob store."""
        return work_owner(self.space, self.key)

    def pack(self) -> bytes:
        fields = [self.space, self.request.hash, self.request.size, self.digest.hex(), self.key.hex(), self.trace]
        return json.dumps(fields).encode()

    @staticmethod
    def unpack(data: bytes) -> Work:
        space, hash, size, digest, key, trace = json.loads(data)
        return Work(space, Digest(hash, size), bytes.fromhex(digest), bytes.fromhex(key), trace)


def work_owner(space: str, key: bytes) -> str:
    """See `Work.owner`."""
    return f"work:{shared_key(space, key).hex()}"


def shared_key(space: str, key: bytes) -> bytes:
    """What operations that may share a compile have in common."""
    return hashlib.sha256(space.encode() + b"\0" + key).digest()


@dataclasses.dataclass(frozen=True)
class Made:
    """The outcome of a work that succeeded. result: the CompileResult with canonical names; digest: of the canonical request."""

    space: str
    result: Digest
    digest: bytes
    targets: tuple[str, ...]
    cached: bool = False

    def pack(self) -> bytes:
        fields = [self.space, self.result.hash, self.result.size, self.digest.hex(), list(self.targets), self.cached]
        return json.dumps(fields).encode()

    @staticmethod
    def unpack(data: bytes) -> Made:
        space, hash, size, digest, targets, cached = json.loads(data)
        return Made(space, Digest(hash, size), bytes.fromhex(digest), tuple(targets), cached)


class Delivery:
    """Makes OptimizeResults. max_inline: bytes of a result inside a message; a larger one becomes a blob of the principal."""

    def __init__(
        self,
        results: ResultCache,
        blobs: BlobStore,
        threads: Threads,
        rename: Rename,
        identify: Identify,
        signer: Signer | None,
        max_inline: int,
    ) -> None:
        self._results, self._blobs, self._threads = results, blobs, threads
        self._rename, self._identify, self._signer = rename, identify, signer
        self._max_inline = max_inline
        self._renamed: Lru[tuple[Digest, bytes], bytes] = Lru(_RENAMED_BYTES)
        self._identities: Lru[Digest, tuple[list[bytes], str]] = Lru(4 << 20)

    async def pack_names(self, prepared: Prepared, seconds: float) -> bytes:
        """What an operation keeps of its names (`Submission.private`)."""
        data = await self._threads.run(_compressed, prepared.names)
        if len(data) <= _LARGE_NAMES:
            return b"z" + data
        owner = f"names:{hashlib.sha256(data).hexdigest()[:32]}"
        digest = await self._results.store(prepared.space, data, owner, seconds)
        return b"b" + json.dumps([prepared.space, digest.hash, digest.size]).encode()

    async def _names(self, private: bytes) -> dict[str, str]:
        if private.startswith(b"b"):
            space, hash, size = json.loads(private[1:])
            data = await self._results.content(space, Digest(hash, size))
        else:
            data = private[1:]
        return await self._threads.run(_decompressed, data)

    async def outcome(self, operation: Operation) -> tuple[Any, bytes]:
        """How an operation ended: (its OptimizeResult, b""), or (None, a google.rpc.Status), also where its result is not kept any more."""
        if operation.state != State.SUCCEEDED:
            return None, await self._error(operation)
        try:
            return await self._result(operation), b""
        except ServiceError as e:
            if e.code != "NOT_FOUND":
                raise
            gone = "the result is not kept any more: ask again with another request_id"
            return None, errors.status_of(ServiceError("NOT_FOUND", "RESULT_EVICTED", gone)).SerializeToString()

    async def _result(self, operation: Operation) -> Any:
        """The OptimizeResult of an operation that succeeded. ServiceError NOT_FOUND where its content is gone."""
        assert operation.outcome is not None
        made = Made.unpack(operation.outcome.result)
        data = await self._renamed_result(made, operation.private)
        message = new("OptimizeResult", cached=made.cached)
        if len(data) <= self._max_inline:
            message.inline = data
        else:
            digest = await self._blobs.put(operation.principal, data, owner=f"operation:{operation.id}", seconds=_KEEP)
            message.blob.hash, message.blob.size_bytes = digest.hash, digest.size
        if self._signer is not None:
            message.signature.MergeFromString(await self._signature(made, self._signer))
        return message

    async def _error(self, operation: Operation) -> bytes:
        """The google.rpc.Status of an operation that failed, in the names of its request."""
        status = status_pb2.Status.FromString(operation.outcome.error if operation.outcome else b"")
        if not status.code:
            code = "CANCELLED" if operation.state is State.CANCELLED else "UNKNOWN"
            return errors.status_of(ServiceError(code, code, "see GetOperation")).SerializeToString()
        try:
            names = await self._names(operation.private)
        except ServiceError:  # a large map that is not kept any more
            names = {}
        status.message = renamed_text(status.message, names)
        return status.SerializeToString()

    async def _renamed_result(self, made: Made, private: bytes) -> bytes:
        key = (made.result, hashlib.sha256(private).digest())
        data = self._renamed.get(key)
        if data is None:
            canonical, names = await self._results.content(made.space, made.result), await self._names(private)
            data = await self._threads.run(self._rename_bytes, canonical, names)
            self._renamed.put(key, data, len(data))
        return data

    def _rename_bytes(self, data: bytes, names: Mapping[str, str]) -> bytes:
        return self._rename(message_class("CompileResult").FromString(data), names).SerializeToString()

    async def _signature(self, made: Made, signer: Signer) -> bytes:
        known = self._identities.get(made.result)
        if known is None:
            known = await self._threads.run(self._identified, await self._results.content(made.space, made.result))
            self._identities.put(made.result, known, 100 + 80 * len(known[0]))
        artifacts, version = known
        return await self._threads.run(signer.sign, artifacts, made.digest, version, with_extensions(made.targets))

    def _identified(self, data: bytes) -> tuple[list[bytes], str]:
        result = message_class("CompileResult").FromString(data)
        return [self._identify(c.executable) for c in result.clusters], result.compiler_version


def _compressed(names: Mapping[str, str]) -> bytes:
    return zlib.compress(json.dumps(names, separators=(",", ":")).encode(), 1)


def _decompressed(data: bytes) -> dict[str, str]:
    return json.loads(zlib.decompress(data))
