"""What a caller may do and see: principals, quotas, malformed requests, TLS, health, reflection, metrics, logs."""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import random
from pathlib import Path
from typing import Any

import grpc
import pytest
from disc_tf_server import logs
from disc_tf_server.config import ConfigError
from disc_tf_server.listening import bind, make_server
from google.longrunning import operations_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from disc_tf.remote.messages import message_class, new
from tests.server.harness import Client, failure_of, front, graph, request, run, token_of, tokens_file, until
from tests.server.standins import StandInPool


def get(name: str) -> Any:
    return operations_pb2.GetOperationRequest(name=name)


def test_nobody_sees_what_belongs_to_somebody_else(tmp_path: Path) -> None:
    async def check() -> None:
        async with front(tmp_path, tokens=tokens_file(tmp_path, "alice", "bob")) as f:
            alice, bob = f.as_("alice"), f.as_("bob")
            name = (await alice.events("Optimize", request(request_id="same-id")))[-1].operation
            assert (await alice.call("GetOperation", get(name))).done
            wrong = [
                ("GetOperation", get(name)),
                ("WaitOperation", operations_pb2.WaitOperationRequest(name=name)),
                ("CancelOperation", operations_pb2.CancelOperationRequest(name=name)),
                ("DeleteOperation", operations_pb2.DeleteOperationRequest(name=name)),
                ("Watch", new("WatchRequest", operation=name)),
                ("GetOperation", get("operations/" + "0" * 32)),
                ("GetOperation", get("operations/../x")),
                ("GetOperation", get("")),
            ]
            for method, message in wrong:
                failure = await bob.failure(method, message)
                assert (failure.code, failure.reason) == ("NOT_FOUND", "OPERATION_NOT_FOUND"), method
            assert not (await bob.call("ListOperations", operations_pb2.ListOperationsRequest())).operations
            # bob's results are his own: the same request is compiled again, and his request_id is free
            assert not (await bob.result(request(request_id="same-id")))[1]
            assert (await bob.result(request()))[1]
            assert len(f.pool.runs) == 2
            failure = await f.client.failure("GetOperation", get(name))
            assert (failure.code, failure.reason) == ("UNAUTHENTICATED", "TOKEN_WANTED")

    run(check())


def test_a_trusted_group_shares_results_and_compiles(tmp_path: Path) -> None:
    async def check() -> None:
        tokens = tokens_file(tmp_path, "alice", "bob", "eve")
        async with front(tmp_path, tokens=tokens, trusted_group=("alice", "bob"), pool=StandInPool(auto=False)) as f:
            waiting = [asyncio.ensure_future(f.as_(who).result(request())) for who in ("alice", "bob", "eve")]
            for n in range(2):
                (await f.pool.nth(n)).finish()
            await asyncio.gather(*waiting)
            assert len(f.pool.runs) == 2
            assert (await f.as_("bob").result(request()))[1]

    run(check())


def test_operations(tmp_path: Path) -> None:
    async def check() -> None:
        async with front(tmp_path, pool=StandInPool(auto=False)) as f:
            call = f.client.stream("Optimize", request())
            job = await f.pool.nth(0)
            job.on_progress("analysing", 0.1, "")
            name = (await call.read()).operation
            running = await f.client.call("WaitOperation", operations_pb2.WaitOperationRequest(name=name, timeout={"nanos": 50_000_000}))
            metadata = message_class("OptimizeMetadata").FromString(running.metadata.value)
            assert not running.done and metadata.state == message_class("OptimizeMetadata").RUNNING
            assert running.metadata.type_url == "type.googleapis.com/disc_tf.v1.OptimizeMetadata"
            failure = await f.client.failure("DeleteOperation", operations_pb2.DeleteOperationRequest(name=name))
            assert failure.code == "FAILED_PRECONDITION"
            waiting = asyncio.ensure_future(f.client.call("WaitOperation", operations_pb2.WaitOperationRequest(name=name)))
            job.finish()
            done = await waiting
            assert done.done and done.response.type_url.endswith("disc_tf.v1.OptimizeResult")
            result = message_class("OptimizeResult").FromString(done.response.value)
            assert list(message_class("CompileResult").FromString(result.inline).compiled)
            f.pool.auto = True
            for _ in range(2):
                await f.client.result(request())
            page = await f.client.call("ListOperations", operations_pb2.ListOperationsRequest(page_size=2))
            rest = await f.client.call("ListOperations", operations_pb2.ListOperationsRequest(page_size=2, page_token=page.next_page_token))
            names = [o.name for o in (*page.operations, *rest.operations)]
            assert len(set(names)) == 3 and names[-1] == name and not rest.next_page_token
            for bad in ({"filter": "x"}, {"page_size": -1}, {"name": "other"}):
                failure = await f.client.failure("ListOperations", operations_pb2.ListOperationsRequest(**bad))
                assert failure.code == "INVALID_ARGUMENT"
            await f.client.call("DeleteOperation", operations_pb2.DeleteOperationRequest(name=name))
            assert (await f.client.failure("GetOperation", get(name))).code == "NOT_FOUND"

    run(check())


def _bad(**changes: Any) -> Any:
    message = request()
    for path, value in changes.items():
        *parents, last = path.split("__")
        at = message
        for parent in parents:
            at = getattr(at, parent)
        if isinstance(value, list):
            del getattr(at, last)[:]
            getattr(at, last).extend(value)
        else:
            setattr(at, last, value)
    return message


@pytest.mark.parametrize(
    ("changes", "reason", "field"),
    [
        ({"request_id": ""}, "REQUEST_ID_WANTED", "request_id"),
        ({"request_id": "a b"}, "REQUEST_ID_WANTED", "request_id"),
        ({"request_id": "a" * 65}, "REQUEST_ID_WANTED", "request_id"),
        ({"graph__outputs": []}, "OUTPUTS_WANTED", "graph.outputs"),
        ({"graph__outputs": [""]}, "BAD_NAME", "graph.outputs"),
        ({"graph__feeds": [""]}, "BAD_NAME", "graph.feeds"),
        ({"graph__outputs": ["nothing:0"]}, "GRAPH_REFUSED", "graph"),
        ({"graph__inline": b"\xff\xff"}, "GRAPH_REFUSED", "graph"),
        ({"graph__inline": b"\x0a\x00" * 1500}, "GRAPH_TOO_LARGE", "graph"),
        ({"graph__inline": b"x" * 5000}, "GRAPH_TOO_LARGE", "graph.inline"),
        ({"graph__inline": graph(*(f"n{i}" for i in range(30)))}, "GRAPH_TOO_LARGE", "graph"),
        ({"options__targets": ["z80"]}, "UNKNOWN_TARGET", "options.targets"),
        ({"options__min_cluster_size": -1}, "BAD_OPTION", "options.min_cluster_size"),
        ({"options__fuel": -1}, "BAD_OPTION", "options.fuel"),
        ({"options__time_budget": float("nan")}, "BAD_OPTION", "options.time_budget"),
        ({"options__hints": ["nowhere: [a]"]}, "GRAPH_REFUSED", "graph"),
        ({"timeout__seconds": -1}, "BAD_TIMEOUT", "timeout"),
    ],
)
def test_malformed_requests(tmp_path: Path, changes: dict[str, Any], reason: str, field: str) -> None:
    async def check() -> None:
        async with front(tmp_path, max_inline_bytes=4096, max_nodes=20) as f:
            failure = await f.client.failure("Optimize", _bad(**changes))
            assert (failure.code, failure.reason) == ("INVALID_ARGUMENT", reason), failure
            assert failure.details["BadRequest"].field_violations[0].field == field
            assert not f.store.operations and not f.pool.runs

    run(check())


def test_missing_blobs_and_bytes_that_are_no_message(tmp_path: Path) -> None:
    async def check() -> None:
        async with front(tmp_path) as f:
            content = graph("y")
            digest = await f.blobs.put("peer:10.9.8.7", content)  # somebody else's: no reason to answer otherwise
            message = request()
            message.graph.blob.hash, message.graph.blob.size_bytes = digest.hash, digest.size
            failure = await f.client.failure("Optimize", message)
            assert (failure.code, failure.reason) == ("FAILED_PRECONDITION", "BLOB_MISSING")
            assert failure.details["PreconditionFailure"].violations[0].subject == f"blobs/{digest.hash}/{digest.size}"
            await f.blobs.put("peer:127.0.0.1", content)
            assert (await f.client.result(message))[0].compiled
            for method in ("Optimize", "Watch", "Inspect", "GetCapabilities", "GetOperation"):
                failure = await f.client.failure(method, b"\x0a\xff\xff\xff\xff\x7f")
                assert (failure.code, failure.reason) == ("INVALID_ARGUMENT", "NOT_A_MESSAGE"), method

    run(check())


def test_random_bytes_never_break_the_front_end(tmp_path: Path) -> None:
    """A short form of the fuzzer: every answer is one of the documented errors, and the server goes on."""

    async def check() -> None:
        rng = random.Random(11)
        expected = {"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "OUT_OF_RANGE", "ALREADY_EXISTS", "RESOURCE_EXHAUSTED"}
        seeds = [request().SerializeToString(), new("WatchRequest", operation="operations/" + "a" * 32).SerializeToString()]
        async with front(tmp_path) as f:
            for i in range(150):
                data = bytearray(seeds[i % 2])
                for _ in range(rng.randint(1, 6)):
                    data[rng.randrange(len(data))] = rng.randrange(256)
                for method in ("Optimize", "Watch", "Inspect", "GetOperation"):
                    try:
                        await (f.client.events if method in ("Optimize", "Watch") else f.client.call)(method, bytes(data))
                    except grpc.aio.AioRpcError as e:
                        assert failure_of(e).code in expected, failure_of(e)
            assert (await f.client.result(request()))[0].compiled

    run(check())


def test_quotas(tmp_path: Path) -> None:
    async def check() -> None:
        async with front(tmp_path, max_calls=2, pool=StandInPool(auto=False)) as f:
            calls = [f.client.stream("Optimize", request(graph(n, "y", op=op))) for n, op in (("a", "Relu"), ("b", "Tanh"))]
            jobs = [await f.pool.nth(n) for n in range(2)]
            failure = await f.client.failure("Optimize", request())
            assert (failure.code, failure.reason) == ("RESOURCE_EXHAUSTED", "QUOTA_CALLS") and "RetryInfo" in failure.details
            for job in jobs:
                job.finish()
            for call in calls:
                while await call.read() is not grpc.aio.EOF:
                    pass
            f.pool.auto = True
            await f.client.result(request())
            f.store.max_waiting = 0
            failure = await f.client.failure("Optimize", request(graph("c", "d", "y")))
            assert (failure.code, failure.reason) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL") and "RetryInfo" in failure.details
            assert (await f.client.result(request()))[1]  # what is cached needs no room

    run(check())


def test_large_results_travel_as_blobs(tmp_path: Path) -> None:
    async def check() -> None:
        async with front(tmp_path, max_inline_bytes=1 << 10) as f:
            content = graph(*(f"a_long_name_of_a_node_{i}" for i in range(80)), "y")
            digest = await f.blobs.put("peer:127.0.0.1", content)
            message = request()
            message.graph.blob.hash, message.graph.blob.size_bytes = digest.hash, digest.size
            event = (await f.client.events("Optimize", message))[-1]
            data = f.blobs.content["peer:127.0.0.1", event.result.blob.hash]
            assert len(data) == event.result.blob.size_bytes > 1 << 10
            assert "a_long_name_of_a_node_7" in message_class("CompileResult").FromString(data).compiled
            # the content is evicted: said so, and asking anew makes it again
            f.blobs.content.clear()
            f.service.results._contents._items.clear()
            f.service.operations._delivery._renamed._items.clear()
            event = (await f.client.events("Watch", new("WatchRequest", operation=event.operation)))[-1]
            assert event.error.code == 5 and "another request_id" in event.error.message

    run(check())


def test_a_corrupt_cache_entry_is_a_miss(tmp_path: Path) -> None:
    async def check() -> None:
        async with front(tmp_path, cache_memory=0) as f:
            first, _ = await f.client.result(request())
            for key, data in f.blobs.content.items():
                f.blobs.content[key] = data[:-1] + bytes([data[-1] ^ 1])
            again, cached = await f.client.result(request())
            assert not cached and again == first and len(f.pool.runs) == 2
            # another request under the same key would be a collision, not a hit
            entry = await f.service.results.find("peer:127.0.0.1", b"k" * 32, b"r")
            assert entry is None

    run(check())


def test_inspect(tmp_path: Path) -> None:
    async def check() -> None:
        async with front(tmp_path) as f:
            message = new("InspectRequest", graph=request().graph)
            answer = await f.client.call("Inspect", message)
            assert json.loads(answer.report_json) == {"nodes": 2}
            assert f.pool.runs[0].job.dry_run and not f.store.operations

    run(check())


def test_health_checks_at_an_address_of_their_own(tmp_path: Path) -> None:
    """Without TLS, beside an address that has it, and nothing else is answered there; the probe says the same in exit codes."""
    from disc_tf_server.probe import main

    files = make_certificates(tmp_path, "localhost")
    settings = {"tls_cert": files["localhost"][0], "tls_key": files["localhost"][1], "health_address": "127.0.0.1:0"}

    async def check() -> None:
        async with front(tmp_path, **settings) as f:
            address = f.service.health_address
            assert await asyncio.to_thread(main, [address]) == 0
            assert await asyncio.to_thread(main, [address, "disc_tf.v1.Optimizer"]) == 0
            assert await asyncio.to_thread(main, [address, "nothing"]) == 2
            plain = Client(grpc.aio.insecure_channel(address))
            assert (await plain.failure("GetCapabilities", new("GetCapabilitiesRequest"))).code == "UNIMPLEMENTED"
            await plain.channel.close()
            await f.service._health.set(False)  # type: ignore[union-attr]
            assert await asyncio.to_thread(main, [address]) == 1
        assert await asyncio.to_thread(main, [address]) == 2

    run(check())


def test_health_and_reflection(tmp_path: Path) -> None:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    async def check() -> None:
        async with front(tmp_path, reflection=True, tokens=tokens_file(tmp_path, "alice")) as f:
            stub: Any = health_pb2_grpc.HealthStub(f.client.channel)
            for name in ("", "disc_tf.v1.Optimizer", "google.longrunning.Operations"):
                assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == health_pb2.HealthCheckResponse.SERVING
            watch = stub.Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            ask: Any = reflection_pb2_grpc.ServerReflectionStub(f.client.channel)

            async def questions():
                yield reflection_pb2.ServerReflectionRequest(list_services="")
                yield reflection_pb2.ServerReflectionRequest(file_containing_symbol="disc_tf.v1.Optimizer")

            answers = [a async for a in ask.ServerReflectionInfo(questions())]
            assert {"disc_tf.v1.Optimizer", "grpc.health.v1.Health"} <= {s.name for s in answers[0].list_services_response.service}
            files = [FileDescriptorProto.FromString(d) for d in answers[1].file_descriptor_response.file_descriptor_proto]
            assert any(s.name == "Optimizer" for file in files for s in file.service)
            ending = asyncio.ensure_future(f.service.end(0.0))
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            await ending
            f.service.end = lambda _seconds: asyncio.sleep(0)  # type: ignore[method-assign,assignment]

    run(check())


def test_metrics_and_logs_without_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def check() -> None:
        logs.configure("json", "debug")  # first: the start is logged, too
        async with front(tmp_path, tokens=tokens_file(tmp_path, "alice"), log_format="json") as f:
            client = f.another(authorization=f"Bearer {token_of('alice')}", **{"x-request-id": "my-id.1"})
            await client.result(request(graph("secret_name", "y")))
            await client.result(request())
            await f.another(authorization="Bearer wrong-secret-9999").failure("GetCapabilities", new("GetCapabilitiesRequest"))
            text = f.service.metrics.text().decode()
            assert 'disc_server_rpcs_total{code="OK",method="Optimize"} 2.0' in text
            assert 'disc_server_cache_lookups_total{outcome="miss"} 2.0' in text
            assert 'disc_server_failures_total{reason="TOKEN_WANTED"} 1.0' in text
            assert 'disc_server_compiles_total{outcome="OK"} 2.0' in text
            assert 'disc_server_phase_seconds_count{phase="analysis"} 2.0' in text

    run(check())
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    rpcs = [line for line in lines if line["message"] == "rpc"]
    assert {(r["method"], r["code"], r["request"]) for r in rpcs} >= {("Optimize", "OK", "my-id.1")}
    assert [r["reason"] for r in rpcs if r["code"] == "UNAUTHENTICATED"] == ["TOKEN_WANTED"]
    everything = json.dumps(lines)
    assert token_of("alice") not in everything and "wrong-secret" not in everything and "secret_name" not in everything


def test_log_lines_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("text", "json"):
        logs.configure(form, "info")
        logs.event(logging.getLogger("disc_tf_server.x"), logging.INFO, "said", text='a\nb" c=d', n=1.5)
        (line,) = capsys.readouterr().err.splitlines()
        assert '"a\\nb\\" c=d"' in line
    assert logs.clean_id("x" * 65) != "x" * 65 and logs.clean_id("a\nb") != "a\nb" and logs.clean_id("a-1") == "a-1"


def make_certificates(directory: Path, *names: str) -> dict[str, tuple[str, str]]:
    """An authority ("ca") and a certificate of each name: paths of (certificate, key)."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now, found = datetime.datetime.now(datetime.UTC), {}
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test authority")])
    for name in ("ca", *names):
        key = ca_key if name == "ca" else ec.generate_private_key(ec.SECP256R1())
        subject = ca_name if name == "ca" else x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(ca_name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=1))
        builder = builder.add_extension(x509.BasicConstraints(ca=name == "ca", path_length=None), critical=True)
        if name != "ca":
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        files = str(directory / f"{name}.pem"), str(directory / f"{name}.key")
        Path(files[0]).write_bytes(builder.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        plain = serialization.NoEncryption()
        Path(files[1]).write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
        found[name] = files
    return found


def test_tls_and_client_certificates(tmp_path: Path) -> None:
    files = make_certificates(tmp_path, "localhost", "alice")

    def channel(f: Any, client: str = "") -> Client:
        pair = [Path(p).read_bytes() for p in reversed(files[client])] if client else [None, None]
        credentials = grpc.ssl_channel_credentials(Path(files["ca"][0]).read_bytes(), *pair)
        options = [("grpc.ssl_target_name_override", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        return Client(grpc.aio.secure_channel(f.service.addresses[0], credentials, options))

    async def check() -> None:
        tls = {"tls_cert": files["localhost"][0], "tls_key": files["localhost"][1]}
        async with front(tmp_path / "1", **tls) as f:
            assert (await channel(f).call("GetCapabilities", new("GetCapabilitiesRequest"))).ops
            with pytest.raises(grpc.aio.AioRpcError):
                await f.client.call("GetCapabilities", new("GetCapabilitiesRequest"), timeout=5)
        async with front(tmp_path / "2", **tls, tls_client_ca=files["ca"][0]) as f:
            name = (await channel(f, "alice").events("Optimize", request()))[-1].operation
            assert f.store.operations[name.removeprefix("operations/")].principal == "cert:alice"
            with pytest.raises(grpc.aio.AioRpcError):
                await channel(f).call("GetCapabilities", new("GetCapabilitiesRequest"), timeout=5)

    run(check())


def test_certificates_that_cannot_be_used(tmp_path: Path) -> None:
    files = make_certificates(tmp_path, "a", "b")
    from disc_tf_server.config import ServerConfig
    from disc_tf_server.listening import Certificates

    other = tmp_path / "other.pem"
    other.write_text("nothing")
    for cert, key, message in (
        (files["a"][0], files["b"][1], "is not the key of"),
        (str(other), files["a"][1], "not a PEM"),
        ("/no", "/no", "cannot"),
    ):
        with pytest.raises(ConfigError, match=message):
            Certificates(ServerConfig(tls_cert=cert, tls_key=key))


def test_an_address_that_is_taken(tmp_path: Path) -> None:
    async def check() -> None:
        async with front(tmp_path) as f:
            server = make_server(f.service.config)
            with pytest.raises(OSError, match="cannot listen on"):
                bind(server, [f.service.addresses[0]], None)

    run(check())


def _half_open(f: Any, method: str, metadata: Any = ()) -> Any:
    """A call that never sends its request."""
    never = asyncio.Event()

    async def requests():
        await never.wait()
        yield b""

    stub = f.client.channel.stream_stream(f"/disc_tf.v1.Optimizer/{method}", None, None)
    return stub(requests(), timeout=20, metadata=metadata)


async def _ended(call: Any) -> Any:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    return failure_of(caught.value)


def test_a_caller_is_known_before_its_request_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with front(tmp_path, tokens=tokens_file(tmp_path, "alice"), max_calls=1, max_rpcs=2) as f:
            assert (await _ended(_half_open(f, "Optimize"))).reason == "TOKEN_WANTED"
            alice = (("authorization", f"Bearer {token_of('alice')}"),)
            held = _half_open(f, "Optimize", alice)
            reading = asyncio.ensure_future(_ended(held))
            await until(lambda: f.service.metrics.running_rpcs.labels("Optimize")._value.get() >= 1, 60)
            assert (await _ended(_half_open(f, "Watch", alice))).reason == "QUOTA_CALLS"
            held.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            monkeypatch.setattr("disc_tf_server.rpc.READ_TIMEOUT", 0.1)
            failure = await _ended(_half_open(f, "Optimize", alice))
            assert (failure.code, failure.reason) == ("ABORTED", "SLOW_WRITER")

    run(check())


def test_slow_senders_hold_up_themselves_only(tmp_path: Path) -> None:
    async def check() -> None:
        tokens = tokens_file(tmp_path, "slow", "quick")
        settings = {"tokens": tokens, "max_inline_bytes": 1 << 20, "graph_memory": 16 << 20}
        async with front(tmp_path, **settings) as f:  # room for 8 requests, 2 of them of one principal
            calls = [_half_open(f, "Optimize", (("authorization", f"Bearer {token_of('slow')}"),)) for _ in range(30)]
            waiting = [asyncio.ensure_future(_ended(c)) for c in calls]
            await until(lambda: f.service.metrics.running_rpcs.labels("Optimize")._value.get() >= 30, 60)
            assert (await f.as_("quick").result(request()))[0].compiled
            for call in calls:
                call.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    run(check())


def test_a_client_that_does_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It loses its stream, not its operation, and nobody else is held up."""

    async def check() -> None:
        monkeypatch.setattr("disc_tf_server.rpc.WRITE_TIMEOUT", 0.3)
        async with front(tmp_path, pool=StandInPool(auto=False)) as f:
            options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.lookahead_bytes", 1 << 16), ("grpc.http2.bdp_probe", 0)]
            lazy = Client(grpc.aio.insecure_channel(f.service.addresses[0], options))
            call = lazy.stream("Optimize", request())
            name = (await call.read()).operation
            job = await f.pool.nth(0)
            result = message_class("CompileResult")(report_json=json.dumps({"x": "y" * (3 << 20)}).encode(), compiler_version="t")
            job.result.set_result(result.SerializeToString())
            await until(lambda: not f.service.metrics.running_rpcs.labels("Optimize")._value.get(), 20)
            event = (await f.client.events("Watch", new("WatchRequest", operation=name)))[-1]
            assert len(event.result.inline) > 3 << 20
            call.cancel()

    run(check())


def test_names_too_large_for_the_operation_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        monkeypatch.setattr("disc_tf_server.delivery._LARGE_NAMES", 10)
        async with front(tmp_path) as f:
            result, _ = await f.client.result(request(graph("a", "y")))
            assert sorted(result.compiled) == ["a", "x", "y"]
            assert all(o.private.startswith(b"b") for o in f.store.operations.values())
            assert not [p for p in f.blobs.pins if p.startswith("work:")]  # the work is over

    run(check())


def test_hostile_graphs_are_refused_and_nobody_waits_for_them(tmp_path: Path) -> None:
    """Millions of nodes in a few bytes, at the top and in a function; names that are paths."""
    bomb = b"\x0a\x00" * 2_000_000
    body = b"\x1a\x00" * 1_000_000  # node_def of a function
    function = b"\x0a" + _varint(len(body)) + body
    nested = b"\x12" + _varint(len(function)) + function

    async def check() -> None:
        async with front(tmp_path) as f:
            hostile = [asyncio.ensure_future(f.client.failure("Optimize", _bad(graph__inline=data))) for data in (bomb, nested) * 2]
            assert (await f.client.result(request()))[0].compiled
            for failure in await asyncio.gather(*hostile):
                assert (failure.code, failure.reason) == ("INVALID_ARGUMENT", "GRAPH_TOO_LARGE"), failure
            odd = graph("../../etc/passwd", "y")
            assert "../../etc/passwd" in (await f.client.result(request(odd)))[0].compiled  # a name is a name

    run(check())


def _varint(n: int) -> bytes:
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])
