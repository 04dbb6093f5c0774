"""The client against a server that does what the test says: drops connections, refuses, lies."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import zstandard
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from disc_tf.frontend.graph import Graph
from disc_tf.optimizer import OptimizeResult
from disc_tf.options import Options
from disc_tf.remote import AsyncClient, Client
from disc_tf.remote.canonical import canonical
from disc_tf.remote.check import CheckError
from disc_tf.remote.compile import compile_skeleton
from disc_tf.remote.connection import METHODS, Address, Retries
from disc_tf.remote.errors import RemoteError
from disc_tf.remote.messages import PACKAGE, message_class, new
from disc_tf.remote.trust import TrustError, TrustPolicy
from tests.remote.test_compile import SETTINGS, mlp

QUICK = Retries(attempts=4, first=0.01, longest=0.02)


class Scripted:
    """A service. ``script``: what each call of Optimize or Watch does, in order; the last one again and again."""

    def __init__(self) -> None:
        self.script: list[Callable[[Any], Iterator[Any]]] = [self.whole]
        self.calls: list[tuple[str, Any]] = []
        self.blobs: dict[str, bytes] = {}
        self.uploads: dict[str, bytearray] = {}
        self.drop_upload_after = 0
        self.made: dict[bytes, bytes] = {}
        self.as_blob = False
        self.compressed: Callable[[bytes], bytes] = zstandard.compress
        self.metadata: list[dict[str, Any]] = []

    # ---- what a call does

    def event(self, sequence: int, **fields: Any) -> Any:
        return new("OptimizeEvent", sequence=sequence, operation="operations/1", **fields)

    def queued(self, _request: Any) -> Iterator[Any]:
        yield self.event(1, queued=new("Queued", position=3))

    def progress(self, _request: Any) -> Iterator[Any]:
        yield self.event(2, progress=new("Progress", phase="fusion", fraction=0.5, text="fusion"))

    def whole(self, request: Any) -> Iterator[Any]:
        yield from self.queued(request)
        yield from self.progress(request)
        yield from self.last(request)

    def last(self, request: Any) -> Iterator[Any]:
        data = self.result_of(next(r for name, r in self.calls if name == "Optimize"))
        if self.as_blob:
            digest = hashlib.sha256(data).hexdigest()
            self.blobs.setdefault(digest, data)
            result = new("OptimizeResult", blob=new("Digest", hash=digest, size_bytes=len(data)))
        else:
            result = new("OptimizeResult", inline=data)
        yield self.event(3, result=result)

    def result_of(self, request: Any) -> bytes:
        graph = request.graph.inline or self.blobs[request.graph.blob.hash]
        if graph not in self.made:
            made = compile_skeleton(graph, request.graph.outputs, request.graph.feeds, request.options)
            self.made[graph] = made.SerializeToString()
        return self.made[graph]

    # ---- the RPCs

    def Optimize(self, request: Any, context: Any) -> Iterator[Any]:
        return self._run("Optimize", request, context)

    def Watch(self, request: Any, context: Any) -> Iterator[Any]:
        return self._run("Watch", request, context)

    def _run(self, name: str, request: Any, context: Any) -> Iterator[Any]:
        self.calls.append((name, request))
        self.metadata.append(dict(context.invocation_metadata()))
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        try:
            yield from step(request)
        except Refused as e:
            e.end(context)

    def GetCapabilities(self, request: Any, context: Any) -> Any:
        self.calls.append(("GetCapabilities", request))
        return new("Capabilities", compiler_version="7")

    def Inspect(self, request: Any, context: Any) -> Any:
        made = compile_skeleton(request.graph.inline, request.graph.outputs, request.graph.feeds, request.options, dry_run=True)
        return new("InspectResponse", report_json=made.report_json)

    def FindMissingBlobs(self, request: Any, context: Any) -> Any:
        return new("FindMissingBlobsResponse", missing=[d for d in request.digests if d.hash not in self.blobs])

    def QueryWriteStatus(self, request: Any, context: Any) -> Any:
        if request.digest.hash in self.blobs:
            return new("WriteBlobResponse", committed_size=request.digest.size_bytes, complete=True)
        return new("WriteBlobResponse", committed_size=len(self.uploads.get(request.upload_id, b"")))

    def WriteBlob(self, requests: Iterator[Any], context: Any) -> Any:
        digest = None
        for i, request in enumerate(requests):
            self.calls.append(("WriteBlob", request.write_offset))
            digest = digest or request.digest
            kept = self.uploads.setdefault(request.upload_id, bytearray())
            assert request.write_offset == len(kept), "nothing is sent twice"
            kept += request.data
            if self.drop_upload_after and i + 1 == self.drop_upload_after:
                self.drop_upload_after = 0
                context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
            if request.finish:
                data = zstandard.decompress(bytes(kept))
                assert digest is not None and hashlib.sha256(data).hexdigest() == digest.hash
                self.blobs[digest.hash] = data
        return new("WriteBlobResponse", complete=True)

    def ReadBlob(self, request: Any, context: Any) -> Iterator[Any]:
        packed = self.compressed(self.blobs[request.digest.hash])
        for at in range(0, len(packed), 1000):
            yield new("ReadBlobResponse", data=packed[at : at + 1000])


class Refused(Exception):
    def __init__(self, code: grpc.StatusCode, reason: str = "", retry_after: float | None = None) -> None:
        self.code, self.reason, self.retry_after = code, reason, retry_after

    def end(self, context: Any) -> None:
        status = status_pb2.Status(code=self.code.value[0], message="refused by the test")
        if self.reason:
            _pack(status, error_details_pb2.ErrorInfo(reason=self.reason, domain="disc-tf.dev"))
        if self.retry_after is not None:
            delay = duration_pb2.Duration()
            delay.FromNanoseconds(int(self.retry_after * 1e9))
            _pack(status, error_details_pb2.RetryInfo(retry_delay=delay))
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(self.code, status.message)


def _pack(status: Any, detail: Any) -> None:
    packed = any_pb2.Any()
    packed.Pack(detail)
    status.details.add().CopyFrom(packed)


def refuse(*arguments: Any) -> Callable[[Any], Iterator[Any]]:
    def step(_request: Any) -> Iterator[Any]:
        raise Refused(*arguments)
        yield

    return step


def then(*steps: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
    def step(request: Any) -> Iterator[Any]:
        for s in steps:
            yield from s(request)

    return step


@contextlib.contextmanager
def served(
    service: Scripted, seen: Callable[[bytes], object] = lambda _data: None, interceptors: Sequence[grpc.ServerInterceptor] = ()
) -> Iterator[Any]:
    """A server of it; ``seen`` is given each request as it arrives."""
    server = grpc.server(futures.ThreadPoolExecutor(64), interceptors=interceptors)

    def parser(request: str) -> Callable[[bytes], Any]:
        def parse(data: bytes) -> Any:
            seen(data)
            return message_class(request).FromString(data)

        return parse

    for name in ("Optimizer", "ContentStore"):
        handlers = {}
        for method, (owner, request, response, many_in, many_out) in METHODS.items():
            if owner == name:
                kind = f"{'stream' if many_in else 'unary'}_{'stream' if many_out else 'unary'}_rpc_method_handler"
                serialize = message_class(response).SerializeToString
                handlers[method] = getattr(grpc, kind)(getattr(service, method), parser(request), serialize)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"{PACKAGE}.{name}", handlers),))
    service.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"  # type: ignore[attr-defined]
    server.start()
    try:
        yield service
    finally:
        server.stop(None).wait()


@pytest.fixture
def service() -> Iterator[Scripted]:
    with served(Scripted()) as scripted:
        yield scripted


def optimized(service: Any, **arguments: Any) -> OptimizeResult:
    with Client(service.address, retries=QUICK, **arguments) as client:
        return client.optimize_graph_def(mlp().proto, ["y"], SETTINGS)


def compiled(result: OptimizeResult) -> bool:
    return [c.status for c in result.report.clusters] == ["compiled"] and Graph(result.graph_def).nodes.keys() >= {"x", "w", "y"}


def names(service: Any) -> list[str]:
    return [name for name, _ in service.calls]


def test_progress_and_bytes(service: Any) -> None:
    seen: list[str] = []
    with Client(service.address) as client:
        result = client.optimize_graph_def(mlp().proto, ["y"], SETTINGS, progress=seen.append)
        assert compiled(result) and client.sent > 200 and client.received > 1000
        assert client.capabilities().compiler_version == "7"
    assert seen == ["waiting: 3 before this one", "server: fusion (50 %)"]


def test_a_dry_run_compiles_nothing(service: Any) -> None:
    with Client(service.address) as client:
        result = client.optimize_graph_def(mlp().proto, ["y"], SETTINGS, dry_run=True)
    assert [c.status for c in result.report.clusters] == ["planned"] and not names(service)


def test_a_dropped_stream_is_taken_up_where_it_was(service: Any) -> None:
    cut = refuse(grpc.StatusCode.UNAVAILABLE)
    service.script = [then(service.queued, cut), then(service.progress, cut), then(service.progress), service.last]
    assert compiled(optimized(service))
    assert names(service) == ["Optimize", "Watch", "Watch", "Watch"]
    assert [r.after_sequence for name, r in service.calls if name == "Watch"] == [1, 2, 2]


def test_a_request_that_was_not_answered_is_sent_again_under_its_id(service: Any) -> None:
    service.script = [refuse(grpc.StatusCode.UNAVAILABLE), refuse(grpc.StatusCode.UNAVAILABLE), service.whole]
    seen: list[str] = []
    with Client(service.address, retries=QUICK) as client:
        assert compiled(client.optimize_graph_def(mlp().proto, ["y"], SETTINGS, progress=seen.append))
    assert [line for line in seen if "again" in line] == ["refused by the test [UNAVAILABLE]: trying again"] * 2  # nobody waits in silence
    assert len({r.request_id for _, r in service.calls}) == 1 and len(service.calls) == 3


REFUSALS = [
    (grpc.StatusCode.UNAVAILABLE, "", None, 4),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", 0.01, 4),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA", None, 1),
    (grpc.StatusCode.INVALID_ARGUMENT, "BAD_GRAPH", None, 1),
    (grpc.StatusCode.UNAUTHENTICATED, "NO_TOKEN", None, 1),
    (grpc.StatusCode.DEADLINE_EXCEEDED, "", None, 1),
]


@pytest.mark.parametrize(("code", "reason", "retry_after", "calls"), REFUSALS)
def test_what_is_tried_again(service: Any, code: Any, reason: str, retry_after: float | None, calls: int) -> None:
    service.script = [refuse(code, reason, retry_after)]
    with pytest.raises(RemoteError, match="refused by the test") as caught:
        optimized(service)
    assert (caught.value.code, caught.value.reason) == (code.name, reason) and len(service.calls) == calls


def test_the_error_of_an_operation(service: Any) -> None:
    def failed(_request: Any) -> Iterator[Any]:
        status = status_pb2.Status(code=8, message="the compiler ran out of memory")
        _pack(status, error_details_pb2.ErrorInfo(reason="OUT_OF_MEMORY"))
        event = service.event(2)
        event.error.ParseFromString(status.SerializeToString())
        yield event

    service.script = [failed]
    with pytest.raises(RemoteError, match="out of memory") as caught:
        optimized(service)
    assert (caught.value.code, caught.value.reason) == ("RESOURCE_EXHAUSTED", "OUT_OF_MEMORY")


def test_nobody_is_there() -> None:
    with pytest.raises(RemoteError) as caught:
        optimized(type("Nobody", (), {"address": "127.0.0.1:1"}))
    assert caught.value.code == "UNAVAILABLE"


def test_large_content_goes_through_the_store(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disc_tf.remote.client._INLINE", 100)
    monkeypatch.setattr("disc_tf.remote.client._CHUNK", 50)
    service.as_blob, service.drop_upload_after = True, 2
    assert compiled(optimized(service))
    offsets = [at for name, at in service.calls if name == "WriteBlob"]
    assert offsets == sorted(offsets) and len(offsets) > 4, "what was there before the cut is not sent again"
    before = len(offsets)
    assert compiled(optimized(service))
    assert len([1 for name, _ in service.calls if name == "WriteBlob"]) == before, "content that is there is not sent at all"


LIES = {
    "other content": lambda data: zstandard.compress(data[:-1] + b"x"),
    "truncated": lambda data: zstandard.compress(data)[:-9],
    "no compression": lambda data: data,
    "endless": lambda data: zstandard.compress(b"\0" * (64 << 20)),
    "empty": lambda _data: b"",
}


@pytest.mark.parametrize("lie", LIES)
def test_content_that_is_not_what_was_named(service: Any, lie: str) -> None:
    service.as_blob, service.compressed = True, LIES[lie]
    with pytest.raises(RemoteError) as caught:
        optimized(service)
    assert caught.value.code == "DATA_LOSS"


def test_a_result_that_is_none(service: Any) -> None:
    service.result_of = lambda _request: b"\x0a\x03abc"
    with pytest.raises(CheckError):
        optimized(service)


def test_unsigned_results_are_refused_with_a_trust_file(service: Any, tmp_path: Path) -> None:
    file = tmp_path / "trust.toml"
    file.write_text(f'[[key]]\nid = "a"\npublic = "{"A" * 43}="\n')
    with pytest.raises(TrustError, match="not signed"):
        optimized(service, trust=TrustPolicy.from_file(file))


def test_tokens_travel_with_every_call_and_never_in_the_clear(service: Any, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    optimized(type("S", (), {"address": Address(service.address, token_file=str(file))}))
    assert all(m["authorization"] == "Bearer secret" for m in service.metadata) and service.metadata
    for address in (Address("example.com:1", token="secret"), Address("10.0.0.1:1", token_file=str(file))):
        with pytest.raises(ValueError, match="over TLS only"):
            Client(address)
    with pytest.raises(ValueError, match="needs its key"):
        Client(Address("h:1", certificate=str(file)))


def test_many_threads_share_a_client(service: Any) -> None:
    with Client(service.address, retries=QUICK) as client, futures.ThreadPoolExecutor(8) as pool:
        proto = mlp().proto
        done = list(pool.map(lambda _: client.optimize_graph_def(proto, ["y"], SETTINGS), range(16)))
    assert all(compiled(r) for r in done)
    assert len({r.request_id for name, r in service.calls if name == "Optimize"}) == 16


def test_asyncio(service: Any) -> None:
    async def main() -> None:
        seen: list[str] = []
        async with AsyncClient(service.address, retries=QUICK) as client:
            assert (await client.capabilities()).compiler_version == "7"
            results = await asyncio.gather(
                *(client.optimize_graph_def(mlp().proto, ["y"], SETTINGS, progress=seen.append) for _ in range(3))
            )
            assert all(compiled(r) for r in results) and len(seen) == 6

    asyncio.run(main())


def test_many_calls_wait_at_a_time(service: Any) -> None:
    """More than the event loop has threads; these stay free for whatever else the program does."""
    many = 34
    there = threading.Barrier(many)

    def together(_request: Any) -> Iterator[Any]:
        there.wait(60)
        yield from service.whole(_request)

    async def main() -> None:
        service.script = [together]
        async with AsyncClient(service.address, retries=QUICK) as client:
            calls = [asyncio.ensure_future(client.optimize_graph_def(mlp().proto, ["y"], SETTINGS)) for _ in range(many)]
            assert await asyncio.wait_for(asyncio.to_thread(lambda: 7), 5) == 7
            assert all(compiled(r) for r in await asyncio.gather(*calls))

    asyncio.run(main())


def test_a_cancelled_task_ends_its_call_and_no_other(service: Any) -> None:
    entered, ended = threading.Event(), threading.Event()

    def hang(_request: Any) -> Iterator[Any]:
        entered.set()
        yield service.event(1, queued=new("Queued"))
        while not ended.wait(0.01):
            yield service.event(2, progress=new("Progress", phase="x"))

    async def main() -> None:
        service.script = [hang, service.whole]
        async with AsyncClient(service.address, retries=QUICK) as client:
            task = asyncio.create_task(client.optimize_graph_def(mlp().proto, ["y"], SETTINGS))
            await asyncio.to_thread(entered.wait, 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert compiled(await client.optimize_graph_def(mlp().proto, ["y"], SETTINGS))

    try:
        asyncio.run(main())
    finally:
        ended.set()


def test_the_same_request_for_the_same_graph() -> None:
    """What a server keys its cache by does not hang on weights."""
    form = []
    for seed in (1, 2):
        g = mlp()
        for node in g.proto.node:
            if node.name in ("w", "b"):
                content = np.frombuffer(node.attr["value"].tensor.tensor_content, np.float32) * np.float32(seed + 0.25)
                node.attr["value"].tensor.tensor_content = content.tobytes()
        from disc_tf.frontend.load import load
        from disc_tf.optimizer import Request
        from disc_tf.remote.merge import prepare

        form.append(prepare(load(g.proto, ["y"]), Request(g.proto, ["y"], Options.from_overrides(SETTINGS))).request)
    assert form[0].digest == form[1].digest
    assert canonical(form[0].graph, form[0].outputs, form[0].feeds, form[0].options).digest == form[0].digest
