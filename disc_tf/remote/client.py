"""A client of the optimization service.

    with disc_tf.remote.Client("127.0.0.1:8470") as client:
        r = client.optimize_graph_def(graph_def, outputs=["logits:0"])     # as disc_tf.optimize_graph_def; weights stay here

What travels is a skeleton (`disc_tf.remote.skeleton`); the clusters that come back are put into the caller's own graph. They are not
verified: `disc_tf.proof` and the command line do that here, with the real weights.
"""

from __future__ import annotations

import copy
import hashlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc
import zstandard

from disc_tf.frontend.load import Loaded
from disc_tf.optimizer import CompiledGraph, OptimizeResult, Request, optimize_graph_def
from disc_tf.options import Options
from disc_tf.remote.canonical import Canonical
from disc_tf.remote.connection import METHODS, Address, Retries, method, options
from disc_tf.remote.errors import RemoteError, from_rpc, from_status
from disc_tf.remote.merge import Answer, compile_remotely
from disc_tf.remote.messages import new
from disc_tf.remote.trust import TrustPolicy
from disc_tf.version import __version__

_CHUNK = 1 << 20
_INLINE = 1 << 20
_MAX_RESULT = 1 << 30
_WINDOW = 1 << 27


class Client:
    """One connection. Thread-safe; closed by `close` or the end of its ``with`` block.

    address: ``host:port`` or an `Address`. timeout: seconds for each optimization, waiting included (0: the server's limit). full: send the
    constants too. trust: which signatures are accepted (None: any, or none).
    """

    def __init__(
        self,
        address: str | Address,
        *,
        timeout: float = 0,
        full: bool = False,
        trust: TrustPolicy | None = None,
        retries: Retries = Retries(),  # noqa: B008 (frozen)
        cancel_on_disconnect: bool = False,
    ) -> None:
        self.address = address if isinstance(address, Address) else Address(address)
        self.timeout, self.full, self.trust, self.retries = timeout, full, trust, retries
        self.cancel_on_disconnect = cancel_on_disconnect
        #: bytes of messages sent and received
        self.sent = self.received = 0
        self._stopped = threading.Event()
        self._calls: set[Any] = set()
        self.metadata = self.address.metadata()
        credentials = self.address.credentials()
        if credentials is None:
            self._channel = grpc.insecure_channel(self.address.target, options(), grpc.Compression.Gzip)
        else:
            self._channel = grpc.secure_channel(self.address.target, credentials, options(), grpc.Compression.Gzip)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; calls that run fail with CANCELLED."""
        self._channel.close()

    def cancel(self) -> None:
        """End what runs on this connection; what is called later fails too. The server's work ends only with ``cancel_on_disconnect``."""
        self._stopped.set()
        for call in list(self._calls):
            call.cancel()

    def session(self) -> Client:
        """The same connection, with counts and a `cancel` of its own."""
        other = copy.copy(self)
        other.sent = other.received = 0
        other._stopped, other._calls = threading.Event(), set()
        return other

    # ---- what it is for -----------------------------------------------------------------------------------------

    def capabilities(self) -> Any:
        """The server's Capabilities message. `RemoteError`."""
        return self._retried(lambda: self._unary("GetCapabilities", new("GetCapabilitiesRequest")))

    def optimize_graph_def(
        self,
        graph_def: Any,
        outputs: Sequence[str] | None = None,
        options: Options | Mapping[str, Any] | None = None,
        *,
        feeds: Sequence[str] = (),
        dry_run: bool = False,
        progress: Callable[[str], None] = lambda _text: None,
        **overrides: Any,
    ) -> OptimizeResult:
        """`disc_tf.optimize_graph_def` with the compilation at the server. Its errors, and `RemoteError`, `ResultError`, `TrustError`."""
        return optimize_graph_def(
            graph_def, outputs, options, feeds=feeds, dry_run=dry_run, progress=progress, elsewhere=self.compile_graph, **overrides
        )

    def compile_graph(self, loaded: Loaded, request: Request) -> CompiledGraph:
        """What `disc_tf.optimizer.Request.elsewhere` takes."""
        return compile_remotely(loaded, request, self, with_contents=self.full)

    def compile(self, request: Canonical, *, dry_run: bool, progress: Callable[[str], None]) -> Answer:
        """The answer to a request in canonical form, checked. Dropped connections are taken up again."""
        graph = new("Graph", outputs=request.outputs, feeds=request.feeds)
        if len(request.graph) <= _INLINE:
            graph.inline = request.graph
        else:
            graph.blob.CopyFrom(self.upload(request.graph))
        if dry_run:
            answer = self._retried(lambda: self._unary("Inspect", new("InspectRequest", graph=graph, options=request.options)))
            return Answer(new("CompileResult", report_json=answer.report_json))
        message = new("OptimizeRequest", request_id=str(uuid.uuid4()), graph=graph, options=request.options, client_version=__version__)
        message.cancel_on_disconnect = self.cancel_on_disconnect
        if self.timeout:
            message.timeout.FromNanoseconds(int(self.timeout * 1e9))
        final = self._follow(message, progress)
        data = final.inline if final.WhichOneof("content") == "inline" else self.download(final.blob)
        return Answer.accept(final, data, request, self.trust)

    # ---- events -------------------------------------------------------------------------------------------------

    def _follow(self, message: Any, progress: Callable[[str], None]) -> Any:
        """The OptimizeResult of a request, through as many connections as it takes."""
        deadline = time.monotonic() + self.timeout + 30 if self.timeout else None
        operation, sequence, result = "", 0, None
        waits = self.retries.waits()
        while True:
            try:
                if operation:
                    events = self._stream("Watch", new("WatchRequest", operation=operation, after_sequence=sequence), deadline)
                else:
                    events = self._stream("Optimize", message, deadline)
                for event in events:
                    operation, sequence = event.operation or operation, max(sequence, event.sequence)
                    waits = self.retries.waits()  # it goes on: a later failure starts anew
                    kind = event.WhichOneof("event")
                    if kind == "result":
                        result = event.result
                        continue  # to the end of the stream: leaving before it would look like a dropped connection
                    if kind == "error":
                        raise from_status(event.error.SerializeToString())
                    progress(_line(event, kind))
                failure = RemoteError("UNAVAILABLE", "", "the server ended the stream without a result")
            except grpc.RpcError as e:
                failure = from_rpc(e)
            if result is not None:
                return result
            if not failure.retriable:
                raise failure
            self._wait(failure, waits, progress)

    def _wait(self, failure: RemoteError, waits: Iterator[float], progress: Callable[[str], None] = lambda _text: None) -> None:
        pause = next(waits, None)
        if pause is None:
            raise failure
        pause = max(pause, min(failure.retry_after or 0, 60))
        progress(f"{failure}: trying again in {pause:.0f} s" if pause >= 1 else f"{failure}: trying again")
        self._stopped.wait(pause)
        if self._stopped.is_set():
            raise RemoteError("CANCELLED", "", "cancelled by the caller")

    # ---- content ------------------------------------------------------------------------------------------------

    def upload(self, data: bytes) -> Any:
        """Put content into the server's store, unless it is there; its Digest message."""
        digest = new("Digest", hash=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
        found = self._retried(lambda: self._unary("FindMissingBlobs", new("FindMissingBlobsRequest", digests=[digest])))
        if not found.missing:
            return digest
        packed = zstandard.compress(data)
        upload_id = str(uuid.uuid4())

        def write() -> Any:
            asked = new("QueryWriteStatusRequest", upload_id=upload_id, digest=digest)
            status = self._unary("QueryWriteStatus", asked)
            if status.complete:
                return status
            return self._call("WriteBlob", stream=True)(_chunks(packed, digest, upload_id, status.committed_size), metadata=self.metadata)

        self._retried(write)
        self.sent += len(packed)
        return digest

    def download(self, digest: Any) -> bytes:
        """Content of the server's store, verified."""
        if digest.size_bytes > _MAX_RESULT:
            raise RemoteError("DATA_LOSS", "", f"the server's result has {digest.size_bytes} bytes, more than {_MAX_RESULT}")

        def read() -> bytes:
            parts = self._stream("ReadBlob", new("ReadBlobRequest", digest=digest, compressor="zstd"), None)
            out = bytearray()
            for piece in zstandard.ZstdDecompressor(max_window_size=_WINDOW).read_to_iter(_Parts(parts)):
                out += piece
                if len(out) > digest.size_bytes:  # whatever it unpacks to, no more is kept
                    break
            return bytes(out)

        try:
            data = self._retried(read)
        except zstandard.ZstdError as e:
            raise RemoteError("DATA_LOSS", "", f"the server's result cannot be unpacked: {e}") from e
        if len(data) != digest.size_bytes or hashlib.sha256(data).hexdigest() != digest.hash:
            raise RemoteError("DATA_LOSS", "", "the server's result is not what its digest says")
        return data

    # ---- calls --------------------------------------------------------------------------------------------------

    def _call(self, name: str, *, stream: bool = False) -> Callable[..., Any]:
        path, serialize, parse = method(name)
        _, _, _, many_in, many_out = METHODS[name]
        kinds = {
            (False, False): self._channel.unary_unary,
            (False, True): self._channel.unary_stream,
            (True, False): self._channel.stream_unary,
        }
        assert stream == many_in
        return kinds[many_in, many_out](path, serialize, parse)

    def _unary(self, name: str, message: Any) -> Any:
        self.sent += message.ByteSize()
        answer = self._call(name)(message, timeout=300, metadata=self.metadata)
        self.received += answer.ByteSize()
        return answer

    def _stream(self, name: str, message: Any, deadline: float | None) -> Iterator[Any]:
        self.sent += message.ByteSize()
        left = None if deadline is None else max(deadline - time.monotonic(), 0.001)
        call = self._call(name)(message, timeout=left, metadata=self.metadata)
        self._calls.add(call)
        if self._stopped.is_set():
            call.cancel()
        try:
            for answer in call:
                self.received += answer.ByteSize()
                yield answer
        finally:
            call.cancel()  # ended already, unless the reader left early
            self._calls.discard(call)

    def _retried(self, call: Callable[[], Any]) -> Any:
        waits = self.retries.waits()
        while True:
            try:
                return call()
            except grpc.RpcError as e:
                failure = from_rpc(e)
            if not failure.retriable:
                raise failure
            self._wait(failure, waits)


class _Parts:
    """The data of ReadBlob's messages as a file."""

    def __init__(self, messages: Iterator[Any]) -> None:
        self.messages = messages
        self.rest = b""

    def read(self, size: int) -> bytes:
        while not self.rest:
            message = next(self.messages, None)
            if message is None:
                return b""
            self.rest = message.data
        piece, self.rest = self.rest[:size], self.rest[size:]
        return piece


def _chunks(packed: bytes, digest: Any, upload_id: str, start: int) -> Iterator[Any]:
    at = start
    while True:
        piece = packed[at : at + _CHUNK]
        yield new(
            "WriteBlobRequest",
            digest=digest,
            upload_id=upload_id,
            compressor="zstd",
            write_offset=at,
            data=piece,
            finish=at + len(piece) >= len(packed),
        )
        at += len(piece)
        if at >= len(packed):
            return


def _line(event: Any, kind: str | None) -> str:
    """What a person is told of an event."""
    if kind == "queued":
        return f"waiting: {event.queued.position} before this one" if event.queued.position else "waiting for a free compiler"
    if kind == "progress":
        share = f" ({100 * event.progress.fraction:.0f} %)" if event.progress.fraction >= 0 else ""
        return f"server: {event.progress.text or event.progress.phase}{share}"
    if kind == "diagnostic":
        return f"server: {event.diagnostic.message}"
    return "server: ?"
