"""The server as its clients see it: gRPC and REST on a model with every kind of signature."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from disc_tf.serving.config import ModelSettings
from disc_tf.serving.handlers import Handlers
from disc_tf.serving.http_server import HttpServer, RestApi
from disc_tf.serving.manager import ModelManager
from disc_tf.serving.metrics import Metrics
from disc_tf.serving.protos import message_class, serving
from disc_tf.serving.server import ModelServer, ServerSettings
from disc_tf.serving.tensors import to_numpy, to_proto
from tests.serving.conftest import Running, start
from tests.serving.models import example_bytes, models_config_text, rows, save_tf1, save_tf2


def predict_request(signature: str = "", version: int | None = None, label: str = "", outputs: Any = (), **inputs: Any) -> Any:
    request = serving("PredictRequest", output_filter=list(outputs))
    request.model_spec.name = "m"
    request.model_spec.signature_name = signature
    if version is not None:
        request.model_spec.version.value = version
    if label:
        request.model_spec.version_label = label
    for name, value in inputs.items():
        to_proto(np.asarray(value), request.inputs[name])
    return request


def failure(running: Running, method: str, request: Any, **options: Any) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        running.call(method, request, **options)
    return caught.value.code().name, caught.value.details()  # type: ignore[attr-defined]


X = rows((1.0, 2.5), (0.2, 4.0))


@pytest.mark.parametrize("which", [{}, {"version": 1}, {"label": "stable"}])
def test_predict(running: Running, which: dict[str, Any]) -> None:
    response = running.call("Predict", predict_request(x=X, **which))
    assert (response.model_spec.name, response.model_spec.version.value, response.model_spec.signature_name) == ("m", 1, "serving_default")
    np.testing.assert_array_equal(to_numpy(response.outputs["y"]), 2 * X)
    np.testing.assert_allclose(to_numpy(response.outputs["total"]), [7.0, 8.4], rtol=1e-6)
    assert response.outputs["y"].float_val  # clients read the typed field, not tensor_content


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (3, 0), (2, 5)])
def test_predict_takes_any_extent(running: Running, shape: tuple[int, int]) -> None:
    response = running.call("Predict", predict_request(x=np.ones(shape, np.float32)))
    assert to_numpy(response.outputs["y"]).shape == shape


def test_output_filter(running: Running) -> None:
    response = running.call("Predict", predict_request(x=X, outputs=["total"]))
    assert list(response.outputs) == ["total"]


def test_strings_and_several_inputs(running: Running) -> None:
    text = np.array([b"abc", b"\xffx"], np.object_)
    response = running.call("Predict", predict_request("strings", text=text, outputs=["upper"]))
    assert to_numpy(response.outputs["upper"]).tolist() == [b"ABC", b"\xffX"]
    counts = predict_request("counts", a=np.array([1, 2], np.int32), b=np.array([1 << 40, -5]))
    assert to_numpy(running.call("Predict", counts).outputs["sum"]).tolist() == [(1 << 40) + 1, -3]


FAULTS: dict[str, tuple[Any, str, str]] = {
    "no name": (serving("PredictRequest"), "INVALID_ARGUMENT", "ModelSpec has no name"),
    "no such version": (predict_request(x=X, version=7), "NOT_FOUND", "Servable not found for request: Specific(m, 7)"),
    "no such label": (predict_request(x=X, label="new"), "INVALID_ARGUMENT", "Unrecognized servable version label: new"),
    "no such signature": (predict_request("other", x=X), "FAILED_PRECONDITION", 'Serving signature key "other" not found'),
    "missing input": (predict_request("counts", a=np.array([1], np.int32)), "INVALID_ARGUMENT", "Missing but required: {b}"),
    "extra input": (predict_request(x=X, z=X), "INVALID_ARGUMENT", "Sent extra: {z}"),
    "wrong type": (predict_request(x=X.astype(np.float64)), "INVALID_ARGUMENT", "expected float, got double"),
    "no such output": (predict_request(x=X, outputs=["q"]), "INVALID_ARGUMENT", "output tensor alias not found in signature: q"),
    "output twice": (predict_request(x=X, outputs=["y", "y"]), "INVALID_ARGUMENT", "duplicate output tensor alias: y"),
    "the graph fails": (predict_request("counts", a=np.array([1, 2], np.int32), b=np.array([1, 2, 3])), "INVALID_ARGUMENT", ""),
    "too large": (predict_request(x=np.zeros((1, 1 << 19), np.float32)), "RESOURCE_EXHAUSTED", ""),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_predict(running: Running, name: str) -> None:
    request, code, message = FAULTS[name]
    found, details = failure(running, "Predict", request)
    assert found == code and message in details


def test_a_passed_deadline_is_said(running: Running) -> None:
    assert failure(running, "Predict", predict_request(x=X), timeout=1e-6)[0] == "DEADLINE_EXCEEDED"


def test_what_is_not_there_is_unimplemented(running: Running) -> None:
    stub = running.channel.unary_unary("/tensorflow.serving.SessionService/SessionRun", lambda b: b, lambda b: b)
    with pytest.raises(grpc.RpcError) as caught:
        stub(b"", timeout=10)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]


def examples_request(kind: str, signature: str, *values: bytes, context: bytes = b"") -> Any:
    request = serving(kind)
    request.model_spec.name, request.model_spec.signature_name = "m", signature
    example = message_class("Example")
    target = request.input.example_list_with_context if context else request.input.example_list
    if context:
        target.context.ParseFromString(context)
    target.examples.extend(example.FromString(v) for v in values)
    return request


def test_classify_and_regress(running: Running) -> None:
    two = (example_bytes(1.0, 2.0), example_bytes(3.0, 4.0))
    found = running.call("Classify", examples_request("ClassificationRequest", "classify", *two)).result.classifications
    assert [[(c.label, c.score) for c in row.classes] for row in found] == [[("left", 2), ("right", 4)], [("left", 6), ("right", 8)]]
    result = running.call("Regress", examples_request("RegressionRequest", "regress", *two))
    assert [r.value for r in result.result.regressions] == [6, 14] and result.model_spec.version.value == 1
    with_context = examples_request("RegressionRequest", "regress", b"", b"", context=two[0])
    assert [r.value for r in running.call("Regress", with_context).result.regressions] == [6, 6]


@pytest.mark.parametrize(
    ("method", "request_", "message"),
    [
        ("Classify", examples_request("ClassificationRequest", "classify"), "Input is empty"),
        ("Classify", examples_request("ClassificationRequest", "", b""), "Expected classification signature method_name"),
        ("Regress", examples_request("RegressionRequest", "classify", b""), "Expected regression signature method_name"),
        ("Regress", examples_request("RegressionRequest", "nothing", b""), "No signature was found with the name: nothing"),
    ],
)
def test_faults_of_examples(running: Running, method: str, request_: Any, message: str) -> None:
    code, details = failure(running, method, request_)
    assert code == "INVALID_ARGUMENT" and message in details


def multi_request(*tasks: tuple[str, str]) -> Any:
    request = serving("MultiInferenceRequest")
    for signature, method in tasks:
        task = request.tasks.add(method_name=f"tensorflow/serving/{method}")
        task.model_spec.name, task.model_spec.signature_name = "m", signature
    request.input.example_list.examples.add().ParseFromString(example_bytes(1.0, 2.0))
    return request


def test_multi_inference(running: Running) -> None:
    first, second = running.call("MultiInference", multi_request(("regress", "regress"), ("classify", "classify"))).results
    assert first.regression_result.regressions[0].value == 6
    assert second.classification_result.classifications[0].classes[1].label == "right"
    assert failure(running, "MultiInference", multi_request(("regress", "regress"), ("regress", "regress")))[0] == "INVALID_ARGUMENT"
    assert failure(running, "MultiInference", multi_request(("regress", "predict")))[0] == "UNIMPLEMENTED"


def test_metadata(running: Running) -> None:
    request = serving("GetModelMetadataRequest", metadata_field=["signature_def"])
    request.model_spec.name = "m"
    packed = running.call("GetModelMetadata", request).metadata["signature_def"]
    assert packed.type_url.endswith("tensorflow.serving.SignatureDefMap")
    definitions = message_class("serving.SignatureDefMap").FromString(packed.value).signature_def
    assert definitions["serving_default"].inputs["x"].name == "x:0"
    request.metadata_field[0] = "other"
    assert failure(running, "GetModelMetadata", request)[0] == "INVALID_ARGUMENT"


def status(running: Running, version: int | None = None) -> dict[int, int]:
    request = serving("GetModelStatusRequest")
    request.model_spec.name = "m"
    if version is not None:
        request.model_spec.version.value = version
    response = running.call("GetModelStatus", request, service="ModelService")
    return {s.version: s.state for s in response.model_version_status}


def test_status_and_health(running: Running) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    assert status(running) == status(running, 1) == {1: 30}
    health = health_pb2_grpc.HealthStub(running.channel)
    for service in ("", "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"):
        assert health.Check(health_pb2.HealthCheckRequest(service=service)).status == health_pb2.HealthCheckResponse.SERVING
    assert running.rest("/readyz")[0] == running.rest("/healthz")[0] == 200


REST: dict[str, tuple[str, Any, int, Any]] = {
    "rows": (
        "m:predict",
        {"instances": X.tolist()},
        200,
        {"predictions": [{"total": 7.0, "y": [2.0, 5.0]}, {"total": 8.4, "y": [0.4, 8.0]}]},
    ),
    "columns": ("m:predict", {"inputs": {"x": [[1]]}}, 200, {"outputs": {"total": [2.0], "y": [[2.0]]}}),
    "one output": ("m/versions/1:predict", {"signature_name": "counts", "instances": [{"a": 1, "b": 2}]}, 200, {"predictions": [3]}),
    "base64": (
        "m/labels/stable:predict",
        {"signature_name": "strings", "inputs": ["a", {"b64": "Yg=="}]},
        200,
        {"outputs": {"upper": ["A", "B"], "upper_bytes": [{"b64": "QQ=="}, {"b64": "Qg=="}]}},
    ),
    "classify": (
        "m:classify",
        {"signature_name": "classify", "examples": [{"x": [1.0, 2.0]}]},
        200,
        {"results": [[["left", 2.0], ["right", 4.0]]]},
    ),
    "regress": ("m:regress", {"signature_name": "regress", "context": {"x": [1.0, 2.0]}, "examples": [{}]}, 200, {"results": [6.0]}),
    "both formats": ("m:predict", {"inputs": [[1]], "instances": [[1]]}, 400, "only one of"),
    "no input": ("m:predict", {}, 400, "Missing 'inputs' or 'instances' key"),
    "ragged": ("m:predict", {"instances": [[1], [1, 2]]}, 400, "size 1 at level 1"),
    "type": ("m:predict", {"instances": [[True]]}, 400, "not of expected type: float"),
    "digits": ("m:predict", {"instances": [[1 << 30]]}, 400, "without loss of precision"),
    "json": ("m:predict", b"{", 400, "JSON Parse error"),
    "version": ("m/versions/7:predict", {"instances": [[1]]}, 404, "Servable not found for request: Specific(m, 7)"),
    "label": ("m/labels/new:predict", {"instances": [[1]]}, 400, "Unrecognized servable version label"),
    "no number": (f"m/versions/{'9' * 5000}:predict", {"instances": [[1]]}, 400, "Malformed request: POST"),
    "large number": (f"m/versions/{'9' * 19}:predict", {"instances": [[1]]}, 400, "Failed to convert version"),
    "surrogate": ("m:predict", b'{"signature_name": "\\ud800", "instances": [[1]]}', 400, "surrogates"),
    "method": ("m:explain", {}, 400, "Malformed request: POST"),
    "size": ("m:predict", b" " * (2 << 20), 413, "over the limit"),
}


@pytest.mark.parametrize("name", REST)
def test_rest(running: Running, name: str) -> None:
    path, body, expected, answer = REST[name]
    code, found = running.rest(f"/v1/models/{path}", body)
    assert code == expected
    if code == 200:
        assert found == answer
    else:
        assert answer in found["error"]


def test_rest_says_what_there_is(running: Running) -> None:
    assert running.rest("/v1/models/m")[1]["model_version_status"][0] == {
        "version": "1",
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    assert running.rest("/v1/models/other")[0] == 404
    found = running.rest("/v1/models/m/metadata")[1]
    assert found["model_spec"] == {"name": "m", "signature_name": "", "version": "1"}
    definition = found["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert definition["inputs"]["x"]["dtype"] == "DT_FLOAT" and definition["method_name"] == "tensorflow/serving/predict"


def test_metrics(running: Running) -> None:
    running.rest("/v1/models/nobody:predict", {"instances": [1]})
    text = running.rest("/monitoring/prometheus/metrics")[1]
    assert 'disc_serve_version_state{model="m",state="AVAILABLE",version="1"} 1.0' in text
    assert 'disc_serve_requests_total{api="Predict",entry="REST",model="",status="NOT_FOUND"}' in text
    assert "nobody" not in text  # names that are not served would grow without bound


def wait_for(what: Any) -> None:
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_versions_come_and_reload_requests_change_them(running: Running, tmp_path: Any) -> None:
    from disc_tf.serving.config import VersionPolicy

    save_tf2(running.base / "2")
    wait_for(lambda: status(running).get(2) == 30)
    np.testing.assert_array_equal(to_numpy(running.call("Predict", predict_request(x=X)).outputs["y"]), 3 * X)
    np.testing.assert_array_equal(to_numpy(running.call("Predict", predict_request(x=X, version=1)).outputs["y"]), 2 * X)

    def reload(*models: ModelSettings) -> tuple[int, str]:
        from google.protobuf import text_format

        from disc_tf.serving.protos import pool

        request = serving("ReloadConfigRequest")
        text_format.Parse(models_config_text(models), request.config, descriptor_pool=pool())
        answer = running.call("HandleReloadConfigRequest", request, service="ModelService").status
        return answer.error_code, answer.error_message

    base = str(running.base)
    assert reload(ModelSettings("m", base, VersionPolicy("all"), {"stable": 9}))[0] == 9  # FAILED_PRECONDITION
    outside = reload(ModelSettings("m", str(tmp_path)))
    assert outside[0] == 7 and "--reload-root" in outside[1]  # PERMISSION_DENIED
    assert reload(ModelSettings("m", base, VersionPolicy("all"), {"stable": 1, "new": 2})) == (0, "")
    np.testing.assert_array_equal(to_numpy(running.call("Predict", predict_request(x=X, label="new")).outputs["y"]), 3 * X)
    assert reload(ModelSettings("m", base, VersionPolicy("specific", versions=(1,)), {"stable": 1})) == (0, "")
    wait_for(lambda: status(running) == {1: 30, 2: 50})
    np.testing.assert_array_equal(to_numpy(running.call("Predict", predict_request(x=X)).outputs["y"]), 2 * X)


def test_token_and_a_model_that_does_not_load(running: Running, tmp_path: Any) -> None:
    """A broken version is reported with the reason; without the token nothing answers but health."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    save_tf1(tmp_path / "m" / "1")
    broken = tmp_path / "m" / "2"
    broken.mkdir()
    (broken / "saved_model.pb").write_bytes(b"no model")
    other = start([ModelSettings("m", str(tmp_path / "m"))], token="secret", poll_seconds=0.0)
    try:
        assert failure(other, "Predict", predict_request(x=X))[0] == "UNAUTHENTICATED"
        assert failure(other, "Predict", predict_request(x=X), metadata=[("authorization", "Bearer other")])[0] == "UNAUTHENTICATED"
        health = health_pb2_grpc.HealthStub(other.channel).Check(health_pb2.HealthCheckRequest(service=""))
        assert health.status in (health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING)
        assert other.rest("/v1/models/m")[0] == 401
        assert other.rest("/v1/models/m", headers={"Authorization": "Bearer \xff"})[0] == 401
        found = other.rest("/v1/models/m", headers={"Authorization": "Bearer secret"})[1]["model_version_status"]
        assert [(s["version"], s["state"]) for s in found] == [("2", "END")]
        assert "cannot load" in found[0]["status"]["error_message"]
    finally:
        other.channel.close()
        assert other.server.stop(5.0)


def upload(port: int, size: int, sent: bytes) -> socket.socket:
    """A connection with a request of which only ``sent`` of ``size`` bytes are there."""
    made = socket.create_connection(("127.0.0.1", port), 20)
    made.sendall(f"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode() + sent)
    return made


@pytest.fixture
def small() -> Iterator[HttpServer]:
    """REST alone, without models: bodies of up to 1000 bytes, a second for each."""
    manager = ModelManager(lambda name, version, path: None)  # type: ignore[arg-type,return-value]
    limits: dict[str, Any] = {"threads": 2, "max_message_bytes": 1000, "timeout": 1.0, "ready": manager.ready}
    server = HttpServer(RestApi(Handlers(manager)), Metrics(manager), "127.0.0.1", 0, **limits)
    server.start()
    yield server
    server.stop(1.0)


def test_slow_and_many_uploads_are_refused(small: HttpServer) -> None:
    held = [upload(small.port, 1000, b" " * 990) for _ in range(4)]
    wait_for(lambda: small._buffered == 4 * 990)
    with upload(small.port, 1000, b" " * 990) as late:
        answer = late.recv(4096)
    assert answer.startswith(b"HTTP/1.1 503 ") and b"too many large requests" in answer
    for connection in held:
        assert connection.recv(4096).startswith(b"HTTP/1.1 504 ")
        connection.close()
    wait_for(lambda: small._buffered == 0)
    with upload(small.port, 2, b"{}") as fine:
        assert fine.recv(4096).startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize(
    ("head", "sent", "status"),
    [
        ("Content-Encoding: gzip\r\nContent-Length: 6", "SECRET", 400),
        ("Transfer-Encoding: chunked", "SECRET\r\n", 400),
        ("Authorization: Bearer SECRET\0\r\nContent-Length: 0", "", 400),
        ("Content-Length: 100", "SECRET", None),  # the client goes away
    ],
)
def test_unreadable_requests(small: HttpServer, caplog: pytest.LogCaptureFixture, head: str, sent: str, status: int | None) -> None:
    """They are the client's fault, and nothing of them is logged."""
    with socket.create_connection(("127.0.0.1", small.port), timeout=20) as client:
        client.sendall(f"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n{sent}".encode())
        if status is not None:
            assert client.recv(100).split()[1] == str(status).encode()
    wait_for(lambda: not small._running)
    assert "SECRET" not in caplog.text and "Traceback" not in caplog.text


def test_a_stream_that_nobody_reads_ends(small: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = threading.Event()

    def lines(_body: bytes, _deadline: float | None, _cancellation: Any) -> Iterator[str]:
        try:
            for _ in range(5):
                yield " " * (8 << 20)
        finally:
            closed.set()

    monkeypatch.setattr(small._api, "stream", lambda _method, _path: ("m", lines))
    with upload(small.port, 2, b"{}") as connection:
        wait_for(closed.is_set)
        assert small._running == 1
        wait_for(lambda: not small._running)
        came = b""
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(1 << 20):
                came += piece
    assert len(came) < 5 * (8 << 20) and not came.endswith(b"0\r\n\r\n"), "nobody takes it for a whole answer"
    reader = http.client.HTTPConnection("127.0.0.1", small.port, timeout=20)
    reader.request("POST", "/v1/models/m:predict_streamed", b"{}")
    assert len(reader.getresponse().read()) == 5 * ((8 << 20) + 1)
    reader.close()


def test_a_server_that_cannot_start_says_why(small: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(self: Any) -> None:
        raise OSError("no more files")

    monkeypatch.setattr("aiohttp.web.SockSite.start", fails)
    manager = ModelManager(lambda name, version, path: None)  # type: ignore[arg-type,return-value]
    limits: dict[str, Any] = {"threads": 1, "max_message_bytes": 1000, "timeout": 1.0, "ready": manager.ready}
    server = HttpServer(RestApi(Handlers(manager)), Metrics(manager), "127.0.0.1", 0, **limits)
    with pytest.raises(OSError, match="no more files"):
        server.start()
    server.stop(0.0)


def test_both_protocols_refuse_new_requests_while_one_drains(tmp_path: Any) -> None:
    server = ModelServer([ModelSettings("m", str(tmp_path))], ServerSettings(port=0, rest_port=0, poll_seconds=0.0))
    server.start()
    held = upload(server.rest_port or 0, 10, b"{")
    wait_for(lambda: server._http is not None and server._http._running == 1)
    stopping = threading.Thread(target=server.stop, args=(20.0,))
    stopping.start()
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict", lambda b: b, lambda b: b)

        def refused() -> bool:
            with pytest.raises(grpc.RpcError) as caught:
                call(b"", timeout=5)
            return caught.value.code() == grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]

        wait_for(refused)
        assert stopping.is_alive()
    held.sendall(b" " * 8 + b"}")
    stopping.join(20)
    assert not stopping.is_alive() and held.recv(4096).startswith(b"HTTP/1.1 4")
    held.close()


def test_where_reload_requests_may_load_from(tmp_path: Any) -> None:
    def allowed(base: str, *roots: str) -> list[str]:
        server = ModelServer([ModelSettings("m", base)], ServerSettings(port=0, rest_port=None, reload_roots=roots))
        server.stop(0.0)
        return [p for p in ("/", str(tmp_path.parent), str(tmp_path), str(tmp_path / "new")) if server.handlers._allowed(p)]

    assert allowed(str(tmp_path)) == [str(tmp_path), str(tmp_path / "new")]
    assert allowed("/") == []
    assert allowed(str(tmp_path), str(tmp_path.parent)) == [str(tmp_path.parent), str(tmp_path), str(tmp_path / "new")]


def test_the_order_of_outputs_makes_no_new_callable(running: Running) -> None:
    with running.server.manager.lease("m", 1) as servable:
        for outputs in (["y", "total"], ["total", "y"]):
            response = running.call("Predict", predict_request(version=1, x=X, outputs=outputs))
            np.testing.assert_array_equal(to_numpy(response.outputs["y"]), 2 * X)
            assert to_numpy(response.outputs["total"]).shape == (2,)
        assert len({tuple(sorted(fetches)) for _, fetches in servable._calls}) == len(servable._calls)
