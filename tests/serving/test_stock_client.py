"""Stock clients of TensorFlow Serving (the tensorflow-serving-api package) talk to the server unchanged.

`make test-serving` has the package.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow_serving", reason="tensorflow-serving-api is not installed here; `make test-serving` runs this")

import grpc
import tensorflow as tf
from google.protobuf import descriptor
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_log_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)
from tensorflow_serving.config import model_server_config_pb2

from disc_tf.serving.protos import message_class, pool
from tests.serving.conftest import Running
from tests.serving.models import rows, save_tf1, save_tf2

#: our fields that are declared as bytes or int32 where the server does not look: the same wire type
_SAME_WIRE = {
    descriptor.FieldDescriptor.TYPE_MESSAGE: descriptor.FieldDescriptor.TYPE_BYTES,
    descriptor.FieldDescriptor.TYPE_ENUM: descriptor.FieldDescriptor.TYPE_INT32,
}
X = rows((1.0, 2.5), (0.5, 4.0))
_MODULES = (
    predict_pb2,
    classification_pb2,
    regression_pb2,
    inference_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_management_pb2,
    prediction_log_pb2,
    model_server_config_pb2,
)


def test_every_declaration_is_the_stock_one() -> None:
    """Field numbers, names, types, labels: of all messages that we declare."""
    found: dict[str, Any] = {}
    work = [m.DESCRIPTOR for m in _MODULES]
    seen: set[str] = set()
    while work:
        file = work.pop()
        if file.name not in seen:
            seen.add(file.name)
            work += list(file.dependencies)
            found.update({m.full_name: m for m in file.message_types_by_name.values()})
    ours = pool().FindFileByName("serving.proto").message_types_by_name
    compared = 0
    todo = [(m, found[m.full_name]) for m in ours.values()]
    while todo:
        mine, stock = todo.pop()
        todo += [(n, stock.nested_types_by_name[n.name]) for n in mine.nested_types]
        for field in mine.fields:
            other = stock.fields_by_number[field.number]
            assert field.name == other.name and field.is_repeated == other.is_repeated, field.full_name
            assert field.type in (other.type, _SAME_WIRE.get(other.type)), field.full_name
            if field.message_type is not None:
                assert field.message_type.full_name == other.message_type.full_name, field.full_name
            compared += 1
        missing = {f.name for f in stock.fields} - {f.name for f in mine.fields}
        # a field left out would be dropped from a file that is edited; this message is only the scope of another
        assert missing <= {"metric"} or mine.name == "FileSystemStoragePathSourceConfig", mine.full_name
    assert compared > 80
    state = message_class("serving.ModelVersionStatus").DESCRIPTOR.fields_by_name["state"].enum_type
    assert {v.name: v.number for v in state.values} == dict(get_model_status_pb2.ModelVersionStatus.State.items())


def predict(stub: Any, x: np.ndarray, timeout: float = 30.0, version: int | None = None) -> Any:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "m"
    if version is not None:
        request.model_spec.version.value = version
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(x))
    return stub.Predict(request, timeout)


def test_all_calls(running: Running) -> None:
    stub = prediction_service_pb2_grpc.PredictionServiceStub(running.channel)
    answer = predict(stub, X, version=1)
    np.testing.assert_array_equal(tf.make_ndarray(answer.outputs["y"]), 2 * X)
    assert list(answer.outputs["total"].float_val) == [7.0, 9.0] and answer.model_spec.version.value == 1

    example = tf.train.Example()
    example.features.feature["x"].float_list.value.extend([1.0, 2.0])
    classify = classification_pb2.ClassificationRequest()
    classify.model_spec.name, classify.model_spec.signature_name = "m", "classify"
    classify.input.example_list.examples.append(example)
    assert [(c.label, c.score) for c in stub.Classify(classify, 30).result.classifications[0].classes] == [("left", 2), ("right", 4)]

    regress = regression_pb2.RegressionRequest()
    regress.model_spec.name, regress.model_spec.signature_name = "m", "regress"
    regress.input.example_list_with_context.context.CopyFrom(example)
    regress.input.example_list_with_context.examples.add()
    assert stub.Regress(regress, 30).result.regressions[0].value == 6

    multi = inference_pb2.MultiInferenceRequest()
    multi.tasks.add(method_name="tensorflow/serving/regress").model_spec.CopyFrom(regress.model_spec)
    multi.tasks.add(method_name="tensorflow/serving/classify").model_spec.CopyFrom(classify.model_spec)
    multi.input.CopyFrom(classify.input)
    results = stub.MultiInference(multi, 30).results
    assert results[0].regression_result.regressions[0].value == 6
    assert results[1].classification_result.classifications[0].classes[0].label == "left"

    metadata = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    metadata.model_spec.name = "m"
    packed = stub.GetModelMetadata(metadata, 30).metadata["signature_def"]
    definitions = get_model_metadata_pb2.SignatureDefMap()
    assert packed.Unpack(definitions) and "counts" in definitions.signature_def

    models = model_service_pb2_grpc.ModelServiceStub(running.channel)
    status = get_model_status_pb2.GetModelStatusRequest()
    status.model_spec.name = "m"
    available = get_model_status_pb2.ModelVersionStatus.AVAILABLE
    assert any(s.version == 1 and s.state == available for s in models.GetModelStatus(status, 30).model_version_status)
    reload = model_management_pb2.ReloadConfigRequest()
    entry = reload.config.model_config_list.config.add(name="m", base_path=str(running.base), model_platform="tensorflow")
    entry.model_version_policy.all.SetInParent()
    entry.version_labels["stable"] = 1
    assert models.HandleReloadConfigRequest(reload, 60).status.error_code == 0
    with pytest.raises(grpc.RpcError) as caught:
        predict(stub, X, version=99)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND  # type: ignore[attr-defined]


def test_a_stream_with_stock_messages(running: Running) -> None:
    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.version.value = "m", 1
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(X))
    stream = running.channel.unary_stream(
        "/disc_tf.serving.StreamedPrediction/PredictStreamed",
        request_serializer=predict_pb2.PredictRequest.SerializeToString,
        response_deserializer=predict_pb2.PredictResponse.FromString,
    )
    found = [(name, tf.make_ndarray(tensor)) for response in stream(request, timeout=30) for name, tensor in response.outputs.items()]
    assert sorted(name for name, _ in found) == ["total", "y"]
    np.testing.assert_array_equal(dict(found)["y"], 2 * X)


def free_port() -> int:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_hot_reload_and_drain_lose_no_request(tmp_path: Path) -> None:
    """The command itself, versions switched under load from many threads, then SIGTERM: every request sent before it is answered."""
    save_tf1(tmp_path / "m" / "1")
    save_tf2(tmp_path / "later")
    port = free_port()
    command = [sys.executable, "-m", "disc_tf.cli", "serve", str(tmp_path / "m"), "--port", str(port), "--rest-port", "-1"]
    child = subprocess.Popen([*command, "--poll", "0.1", "--quiet-seconds", "0.2"], cwd=Path(__file__).parents[2])
    try:
        channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        grpc.channel_ready_future(channel).result(timeout=120)
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        end = time.monotonic() + 60
        while True:
            try:
                predict(stub, X)
                break
            except grpc.RpcError:
                assert time.monotonic() < end
                time.sleep(0.1)
        stop, failures, versions = threading.Event(), [], []

        def client(number: int) -> None:
            rng = np.random.default_rng(number)
            while not stop.is_set():
                x = rng.random((int(rng.integers(1, 5)), int(rng.integers(1, 9))), np.float32)
                try:
                    answer = predict(stub, x)
                except grpc.RpcError as e:
                    failures.append((e.code(), e.details()))  # type: ignore[attr-defined]
                    return
                version = answer.model_spec.version.value
                versions.append(version)
                if not np.array_equal(tf.make_ndarray(answer.outputs["y"]), x * np.float32(version + 1)):
                    failures.append(("wrong answer", version))

        threads = [threading.Thread(target=client, args=(i,)) for i in range(12)]
        for t in threads:
            t.start()
        time.sleep(0.5)
        (tmp_path / "later").rename(tmp_path / "m" / "2")
        end = time.monotonic() + 60
        while not versions or versions[-1] != 2:
            assert time.monotonic() < end and not failures
            time.sleep(0.05)
        time.sleep(0.5)
        stop.set()
        for t in threads:
            t.join()
        assert not failures and set(versions) == {1, 2}
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.wait()
