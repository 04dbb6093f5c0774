"""Warm-up records: written where there are none, read, replayed; what is in them never shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disc_tf.serving import warmup_writer
from disc_tf.serving.errors import ServingError
from disc_tf.serving.protos import message_class, serving
from disc_tf.serving.servable import Servable
from disc_tf.serving.tensors import to_numpy, to_proto
from disc_tf.serving.warmup import MAX_RECORDS, WARMUP_FILE, parse_record, read_records, replay
from disc_tf.serving.warmup_writer import write_warmup
from tests.serving.models import example_bytes, rows, save_tf1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("warm") / "1"
    save_tf1(path)
    return path


def examples(*values: bytes) -> np.ndarray:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def requests(original: Path, shapes: int) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    yield "serving_default", {"x": rows((1.0, 2.0))}
    yield "counts", {"a": np.array([1], np.int32), "b": np.array([1, 2, 3])}  # the graph accepts it: it broadcasts
    yield "counts", {"a": np.array([1, 2], np.int32), "b": np.array([1, 2, 3])}  # the graph refuses it
    yield "strings", {"text": examples(b"secret")}
    yield "nothing", {"x": rows((1.0,))}
    yield "classify", {"inputs": examples(example_bytes(1.0, 2.0))}
    yield "regress", {"inputs": examples(example_bytes(1.0, 2.0), example_bytes(3.0, 4.0))}


def write(path: Path, *records: bytes) -> None:
    import tensorflow as tf

    (path / WARMUP_FILE).parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path / WARMUP_FILE)) as writer:
        for record in records:
            writer.write(record)


def copy(model: Path, target: Path) -> Path:
    import shutil

    shutil.copytree(model, target)
    return target


def test_what_the_model_accepts_is_written_and_replayed(model: Path, tmp_path: Path) -> None:
    made = copy(model, tmp_path / "1")
    assert write_warmup(model, made, "m", 3, requests) == 5
    logs = [parse_record(r) for r in read_records(made / WARMUP_FILE)]
    assert [log.WhichOneof("log_type") for log in logs] == ["predict_log"] * 3 + ["classify_log", "regress_log"]
    request = logs[0].predict_log.request
    assert (request.model_spec.name, request.model_spec.signature_name) == ("m", "serving_default")
    np.testing.assert_array_equal(to_numpy(request.inputs["x"]), rows((1.0, 2.0)))
    servable = Servable("other", 1, made)
    assert replay(servable) == 5
    servable.close()
    before = (made / WARMUP_FILE).read_bytes()
    assert write_warmup(model, made, "m", 3, requests) == 0 and (made / WARMUP_FILE).read_bytes() == before


def test_records_that_keep_a_server_from_loading_are_removed(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(servable: Servable) -> int:
        assert (servable.path / WARMUP_FILE).exists()
        raise ServingError("INTERNAL", "warm-up record 1 fails")

    monkeypatch.setattr(warmup_writer, "replay", fails)
    made = copy(model, tmp_path / "1")
    with pytest.raises(ServingError, match="record 1"):
        write_warmup(model, made, "m", 3, requests)
    assert not (made / WARMUP_FILE).exists()


def test_every_type_of_record_is_replayed(model: Path, tmp_path: Path) -> None:
    made = copy(model, tmp_path / "1")
    log = message_class("serving.PredictionLog")
    predict, streamed, classify, regress, multi, session = log(), log(), log(), log(), log(), log()
    to_proto(rows((1.0,)), predict.predict_log.request.inputs["x"])
    to_proto(rows((1.0,)), streamed.predict_streamed_log.request.add().inputs["x"])
    example = message_class("Example").FromString(example_bytes(1.0, 2.0))
    for target, signature in ((classify.classify_log, "classify"), (regress.regress_log, "regress")):
        target.request.model_spec.signature_name = signature
        target.request.input.example_list.examples.append(example)
    for kind in ("regress", "classify"):
        task = multi.multi_inference_log.request.tasks.add(method_name=f"tensorflow/serving/{kind}")
        task.model_spec.name, task.model_spec.signature_name = "m", kind
    multi.multi_inference_log.request.input.example_list.examples.append(example)
    run = session.session_run_log.request
    to_proto(rows((1.0,)), run.feed.add(name="x:0").tensor)
    run.fetch.append("y:0")
    run.target.append("total")
    write(made, *(m.SerializeToString() for m in (predict, streamed, classify, regress, multi, session)))
    servable = Servable("m", 1, made)
    assert replay(servable) == 6
    servable.close()


def streamed_record(*factors: float) -> bytes:
    log = serving("PredictionLog")
    log.predict_streamed_log.SetInParent()
    for value in factors:
        to_proto(rows((value,)), log.predict_streamed_log.request.add().inputs["unknown" if len(factors) == 1 else "x"])
    return log.SerializeToString()


def bad_record() -> bytes:
    log = serving("PredictionLog")
    log.predict_log.request.model_spec.signature_name = "strings"
    to_proto(np.array([b"secret"], object), log.predict_log.request.inputs["unknown"])
    return log.SerializeToString()


FAULTS: dict[str, tuple[list[Any], str]] = {
    "refused": ([bad_record()], "warm-up record 1"),
    "no log": ([b"\xff\xff"], "warm-up record 1"),
    "streamed, no request": ([streamed_record()], "warm-up record 1"),
    "streamed, two requests": ([streamed_record(1.0, 2.0)], "warm-up record 1"),
    "streamed, refused": ([streamed_record(1.0)], "warm-up record 1"),
    "too many": ([b""] * (MAX_RECORDS + 1), "more than 1000"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_tell_the_number_and_nothing_else(name: str, model: Path, tmp_path: Path) -> None:
    records, message = FAULTS[name]
    made = copy(model, tmp_path / "1")
    if name == "too many":
        ok = serving("PredictionLog")
        to_proto(rows((1.0,)), ok.predict_log.request.inputs["x"])
        records = [ok.SerializeToString()] * len(records)
    write(made, *records)
    servable = Servable("m", 1, made)
    with pytest.raises(ServingError, match=message) as caught:
        replay(servable)
    servable.close()
    assert "secret" not in str(caught.value) and caught.value.__cause__ is None


def test_a_damaged_file_is_data_loss(model: Path, tmp_path: Path) -> None:
    made = copy(model, tmp_path / "1")
    write(made, b"abc")
    data = bytearray((made / WARMUP_FILE).read_bytes())
    data[13] ^= 1
    (made / WARMUP_FILE).write_bytes(bytes(data))
    with pytest.raises(ServingError) as caught:
        list(read_records(made / WARMUP_FILE))
    assert caught.value.code == "DATA_LOSS"
