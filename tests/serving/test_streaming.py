"""Streamed Predict: outputs arrive as they come to exist, proved by holding the run between two of them."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from disc_tf.serving import streaming
from disc_tf.serving.config import ModelSettings
from disc_tf.serving.errors import ServingError
from disc_tf.serving.grpc_server import _stream
from disc_tf.serving.protos import message_class, serving
from disc_tf.serving.tensors import to_numpy, to_proto
from tests.serving.conftest import Running, start
from tests.serving.models import save_tf1

WIDTH = 64
METHOD = "/disc_tf.serving.StreamedPrediction/PredictStreamed"


def save(path: Path) -> None:
    """Layers with an early exit, in several signatures; compiled."""
    import tensorflow as tf

    import disc_tf

    spec = tf.TensorSpec([None, WIDTH], tf.float32, name="x")

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            rng: Any = np.random.default_rng(0)
            self.layers = [tf.Variable(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8) for _ in range(6)]
            self.exit = tf.constant(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32))

        def early(self, x: Any) -> Any:
            return tf.nn.softmax(tf.nn.relu(x @ self.layers[0]) @ self.exit)

        def late(self, x: Any) -> Any:
            for w in self.layers:
                x = tf.nn.relu(x @ w)
            return x

        @tf.function(input_signature=[spec])
        def __call__(self, x: Any) -> dict[str, Any]:
            late = self.late(x)
            outputs = {"early": self.early(x), "late": late, "mean": tf.reduce_mean(late, 1)}
            return {**outputs, "echo": tf.identity(x), "fixed": tf.constant([7])}

        @tf.function(input_signature=[spec, tf.TensorSpec([], tf.float32, name="by")])
        def picked(self, x: Any, by: Any) -> dict[str, Any]:
            late = self.late(x)
            return {"early": self.early(x), "late": tf.gather(late, tf.cast(tf.reduce_max(late, 1) * by, tf.int32))}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
        def text(self, text: Any) -> dict[str, Any]:
            x = tf.cast(tf.strings.to_number(text), tf.float32)[:, None] * tf.ones([WIDTH])
            return {"early": self.early(x), "late": self.late(x), "upper": tf.strings.upper(text)}

        @tf.function(input_signature=[spec])
        def behind(self, x: Any) -> dict[str, Any]:
            return {"early": self.early(x), "text": tf.strings.as_string(tf.reduce_mean(self.late(x), 1))}

        @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="by")])
        def scale(self, by: Any) -> dict[str, Any]:
            self.layers[0].assign(self.layers[0] * by)
            return {"by": by * 1.0}

    model = Model()
    signatures = {"serving_default": model.__call__, **{n: getattr(model, n) for n in ("picked", "text", "behind", "scale")}}
    original = path.parent.parent / f"original_{path.name}"
    tf.saved_model.save(model, str(original), signatures=signatures)
    path.parent.mkdir(parents=True, exist_ok=True)
    disc_tf.optimize_saved_model(str(original), str(path), targets="native", verify=False)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `m`, the base path of one version."""
    root = tmp_path_factory.mktemp("streams")
    save(root / "m" / "1")
    return root


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[Running]:
    found = start([ModelSettings("m", str(models / "m"))])
    yield found
    found.channel.close()
    assert found.server.stop(10.0)


@dataclasses.dataclass
class Held:
    """Runs stop right after the output ``name`` was handed over, until `release`. ``came``: what was handed over, in order."""

    name: str
    reached: threading.Event = dataclasses.field(default_factory=threading.Event)
    released: threading.Event = dataclasses.field(default_factory=threading.Event)
    came: list[str] = dataclasses.field(default_factory=list)

    def release(self) -> None:
        self.released.set()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    found, put = Held("early"), streaming.Stream.put

    def holding(self: Any, name: str, value: np.ndarray) -> None:
        found.came.append(name)
        put(self, name, value)
        if name == found.name:
            found.reached.set()
            assert found.released.wait(60)

    monkeypatch.setattr(streaming.Stream, "put", holding)
    yield found
    found.release()


def request_of(signature: str = "", outputs: tuple[str, ...] = (), **inputs: np.ndarray) -> Any:
    request = serving("PredictRequest", output_filter=outputs)
    request.model_spec.name, request.model_spec.signature_name = "m", signature
    for name, value in inputs.items():
        to_proto(value, request.inputs[name])
    return request


def streamed(server: Running, request: Any, timeout: float = 60.0, **options: Any) -> Any:
    response = message_class("serving.PredictResponse")
    return server.channel.unary_stream(METHOD, lambda m: m.SerializeToString(), response.FromString)(request, timeout=timeout, **options)


def arrays(response: Any) -> dict[str, np.ndarray]:
    return {name: to_numpy(value) for name, value in response.outputs.items()}


def code(call: Callable[[], Any]) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code().name  # type: ignore[attr-defined]


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


X = np.random.default_rng(1).standard_normal((5, WIDTH)).astype(np.float32)
TEXT = np.array([b"1.5", b"-2"], object)


def test_the_early_output_is_there_while_the_late_one_is_not_made(server: Running, held: Held) -> None:
    expected = arrays(server.call("Predict", request_of(x=X)))
    call = streamed(server, request_of(x=X))
    found: dict[str, np.ndarray] = {}
    while "early" not in found:
        part = arrays(next(call))
        assert part and not part.keys() & found.keys()
        found |= part
    # the thread that computes is held: nothing of what is missing can have been made
    assert not held.released.is_set() and not {"late", "mean"} & (found.keys() | set(held.came))
    held.release()
    for response in call:
        assert (response.model_spec.name, response.model_spec.signature_name) == ("m", "serving_default")
        assert response.model_spec.version.value == 1
        part = arrays(response)
        assert part and not part.keys() & found.keys()
        found |= part
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, name)


CASES: dict[str, tuple[str, tuple[str, ...], dict[str, np.ndarray]]] = {
    "one early": ("", ("early",), {"x": X}),
    "one late": ("", ("late",), {"x": X}),
    "an input and a constant": ("", ("fixed", "echo"), {"x": X}),
    "no rows": ("", (), {"x": X[:0]}),
    "one row": ("", (), {"x": X[:1]}),
    "text first": ("text", (), {"text": TEXT}),
    "text only": ("text", ("upper",), {"text": TEXT}),
    "text after": ("behind", (), {"x": X}),
    "not compiled": ("scale", (), {"by": np.array(1, np.float32)}),
}


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_predict(name: str, server: Running) -> None:
    signature, outputs, inputs = CASES[name]
    expected = arrays(server.call("Predict", request_of(signature, outputs, **inputs)))
    responses = [arrays(r) for r in streamed(server, request_of(signature, outputs, **inputs))]
    found = {k: v for part in responses for k, v in part.items()}
    assert sum(map(len, responses)) == len(found)
    assert found.keys() == expected.keys()
    for output, value in expected.items():
        np.testing.assert_array_equal(found[output], value)
    if signature in ("behind", "scale"):
        assert len(responses) == 1


def test_text_before_the_compiled_part_does_not_keep_outputs_from_being_early(server: Running, held: Held) -> None:
    call = streamed(server, request_of("text", text=TEXT))
    found: dict[str, np.ndarray] = {}
    while "early" not in found:
        found |= arrays(next(call))
    assert "upper" in found and "late" not in found
    held.release()
    assert {name for response in call for name in response.outputs} == {"late"}


def test_variables_are_followed(server: Running) -> None:
    request = request_of(outputs=("late",), x=X)
    before = arrays(next(streamed(server, request)))["late"]
    server.call("Predict", request_of("scale", by=np.array(2, np.float32)))
    after = arrays(next(streamed(server, request)))["late"]
    np.testing.assert_array_equal(after, arrays(server.call("Predict", request))["late"])
    np.testing.assert_allclose(after, 2 * before, rtol=1e-6)
    server.call("Predict", request_of("scale", by=np.array(0.5, np.float32)))


def test_a_failure_after_an_output_is_that_of_the_rest(server: Running) -> None:
    far, found = np.array(1e6, np.float32), {}  # rows that are not there, as the late part finds out
    call = streamed(server, request_of("picked", x=X, by=far))

    def all_of_it() -> None:
        for response in call:
            found.update(arrays(response))

    assert code(all_of_it) == code(lambda: server.call("Predict", request_of("picked", x=X, by=far))) == "INVALID_ARGUMENT"
    assert found.keys() == {"early"}
    right = arrays(server.call("Predict", request_of("picked", ("early",), x=X, by=far * 0)))
    np.testing.assert_array_equal(found["early"], right["early"])


def test_a_cancelled_request_computes_no_further(server: Running, held: Held) -> None:
    with server.server.manager.lease("m") as servable:
        call = streamed(server, request_of(x=X))
        while "early" not in next(call).outputs:
            pass
        call.cancel()
        wait_for(lambda: servable.users == 1)  # this one: the request has let go while its run is still held
        held.release()
        time.sleep(0.2)
    assert "late" not in held.came
    text = server.rest("/monitoring/prometheus/metrics")[1]
    assert 'disc_serve_requests_total{api="PredictStreamed",entry="gRPC",model="m",status="CANCELLED"}' in text
    assert "disc_serve_first_output_seconds_count" in text


def test_a_deadline_in_the_middle(server: Running, held: Held) -> None:
    call = streamed(server, request_of(x=X), timeout=2.0)
    while "early" not in next(call).outputs:
        pass
    assert code(lambda: list(call)) == "DEADLINE_EXCEEDED"
    held.release()
    with pytest.raises(ServingError) as caught:  # the server's own clock
        list(server.server.handlers.predict_streamed(request_of(x=X), time.monotonic() - 1))
    assert caught.value.code == "DEADLINE_EXCEEDED"


def test_the_servers_own_deadline(server: Running, held: Held) -> None:
    found = []
    with pytest.raises(ServingError) as caught:
        for response in server.server.handlers.predict_streamed(request_of(x=X), time.monotonic() + 1.0):
            found += list(response.outputs)
    assert caught.value.code == "DEADLINE_EXCEEDED" and "early" in found and "late" not in found


def test_lines_of_json(server: Running, held: Held) -> None:
    """The same over REST: a line for each part, a failure in the middle as the last line."""
    url = f"http://127.0.0.1:{server.server.rest_port}/v1/models/m:predict_streamed"
    asked = urllib.request.Request(url, json.dumps({"inputs": X.tolist()}).encode())
    found: dict[str, Any] = {}
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert answer.headers["Content-Type"] == "application/x-ndjson"
        while "early" not in found:
            found |= json.loads(answer.readline())["outputs"]
        assert "late" not in found and not held.released.is_set()
        held.release()
        for line in answer:
            part = json.loads(line)["outputs"]
            assert part and not part.keys() & found.keys()
            found |= part
    assert found == server.rest("/v1/models/m:predict", {"inputs": X.tolist()})[1]["outputs"]
    body = {"signature_name": "picked", "inputs": {"x": X.tolist(), "by": 1e6}}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=60) as answer:
        *parts, last = [json.loads(line) for line in answer]
    assert [part["outputs"].keys() for part in parts] == [{"early"}] and last.keys() == {"error"}
    status, text = server.rest("/v1/models/m:predict_streamed", {"signature_name": "nothing", "inputs": [1.0]})
    assert status == 400 and "nothing" in text["error"]


def test_a_rest_client_that_leaves(server: Running, held: Held) -> None:
    with server.server.manager.lease("m") as servable:
        connection = http.client.HTTPConnection("127.0.0.1", server.server.rest_port, timeout=60)
        connection.request("POST", "/v1/models/m:predict_streamed", json.dumps({"instances": X.tolist()}))
        answer = connection.getresponse()
        while b'"early"' not in answer.readline():
            pass
        answer.close()
        connection.close()
        held.release()
        wait_for(lambda: servable.users == 1)


def faulty(fault: str) -> Any:
    inputs: dict[str, Any] = {} if fault == "input" else {"x": X[:, :9] if fault == "shape" else X}
    request = request_of("nothing" if fault == "signature" else "", **inputs)
    if fault == "model":
        request.model_spec.name = "other"
    if fault == "filter":
        request.output_filter.append("nothing")
    return request


@pytest.mark.parametrize("fault", ["signature", "input", "shape", "model", "filter"])
def test_what_predict_refuses_is_refused(fault: str, server: Running) -> None:
    expected = code(lambda: server.call("Predict", faulty(fault)))
    assert code(lambda: list(streamed(server, faulty(fault)))) == expected


def test_options_of_the_request(server: Running) -> None:
    single = request_of(x=X)
    single.predict_streamed_options.return_single_response = True
    assert [len(r.outputs) for r in streamed(server, single)] == [5]
    split = request_of(x=X)
    split.predict_streamed_options.request_state = 1
    assert code(lambda: list(streamed(server, split))) == "UNIMPLEMENTED"


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    save_tf1(tmp_path / "m" / "1")
    found = start([ModelSettings("m", str(tmp_path / "m"))], token="secret", rest_port=None)
    try:
        request = request_of(x=np.ones((1, 2), np.float32))
        assert code(lambda: list(streamed(found, request))) == "UNAUTHENTICATED"
        (answer,) = streamed(found, request, metadata=[("authorization", "Bearer secret")])
        assert answer.outputs.keys() == {"y", "total"}
    finally:
        found.channel.close()
        assert found.server.stop(5.0)


def test_a_reload_in_the_middle(models: Path, held: Held) -> None:
    """The stream ends on the version that it began with, which is unloaded then and not before."""
    import shutil

    base = models / "reloaded"
    shutil.copytree(models / "m" / "1", base / "1")
    found = start([ModelSettings("m", str(base))])
    try:
        late = arrays(found.call("Predict", request_of(outputs=("late",), x=X)))["late"]
        call = streamed(found, request_of(x=X))
        while "early" not in next(call).outputs:
            pass
        save_tf1(models / "other" / "2")
        (models / "other" / "2").rename(base / "2")
        manager = found.server.manager
        wait_for(lambda: manager.models()["m"] == [2])
        time.sleep(0.1)
        assert manager.states()["m"][1] == "UNLOADING"
        assert arrays(found.call("Predict", request_of(x=X)))["y"].shape == X.shape  # the new one answers
        held.release()
        parts = {name: value for response in call for name, value in arrays(response).items()}
        np.testing.assert_array_equal(parts["late"], late)
        wait_for(lambda: manager.states()["m"][1] == "END")
    finally:
        found.channel.close()
        assert found.server.stop(10.0)


@pytest.mark.parametrize("reads", [False, True])
def test_a_client_that_does_not_read_is_not_waited_for(reads: bool) -> None:
    """It has no deadline, and the responses do not fit into what is on its way: the thread would never come back."""
    ended: list[str] = []
    over = threading.Event()

    def outputs(_request: Any, _deadline: float | None, _cancellation: Any) -> Iterator[Any]:
        try:
            for _ in range(3):
                time.sleep(0.3)  # making an output takes as long as it takes
                response = serving("PredictResponse")
                response.outputs["y"].tensor_content = bytes(8 << 20)
                yield response
        finally:
            over.set()

    metrics: Any = SimpleNamespace(
        running=SimpleNamespace(track_inprogress=contextlib.nullcontext),
        finish=lambda _model, _api, _entry, status, _seconds: ended.append(status),
        first_output=lambda *_: None,
    )
    handler = grpc.unary_stream_rpc_method_handler(
        _stream(outputs, "PredictStreamed", metrics, 0.6),
        request_deserializer=message_class("serving.PredictRequest").FromString,
        response_serializer=lambda m: m.SerializeToString(),
    )
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", {"m": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.max_receive_message_length", -1)]) as channel:
        call = channel.unary_stream("/s/m", request_serializer=lambda m: m.SerializeToString(), response_deserializer=len)
        responses = call(serving("PredictRequest"))
        if reads:
            assert len(list(responses)) == 3
        assert over.wait(20), "the thread still waits for the client"
        if not reads:
            with pytest.raises(grpc.RpcError) as e:
                list(responses)
            assert e.value.code() == grpc.StatusCode.CANCELLED
    server.stop(None).wait()
    assert ended == ["OK" if reads else "CANCELLED"]
