"""Warm-up records: all kinds of requests are read, broken files are named without a word of their content."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disc_tf.frontend.tensor_proto import fill_tensor
from disc_tf.serving.protos import message_class
from disc_tf.testing.warmup import FILE, WarmupError, read_requests


def log(**fields: Any) -> Any:
    return message_class("serving.PredictionLog")(**fields)


def tensor(array: np.ndarray) -> Any:
    proto = message_class("TensorProto")()
    fill_tensor(proto, array)
    return proto


def fill_spec(spec: Any, signature: str) -> None:
    spec.name = "model"
    spec.version.value = 300
    if signature:
        spec.signature_name = signature


def predict_log(signature: str, **feeds: np.ndarray) -> Any:
    made = log()
    request = made.predict_log.request
    fill_spec(request.model_spec, signature)
    for name, value in feeds.items():
        request.inputs[name].CopyFrom(tensor(value))
    return made


def example(**features: float) -> Any:
    made = message_class("Example")()
    for name, value in features.items():
        made.features.feature[name].float_list.value.append(value)
    return made


def write(directory: Path, records: list[bytes]) -> None:
    path = directory / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(struct.pack("<QI", len(r), 0) + r + bytes(4) for r in records))


def test_predict(tmp_path: Path) -> None:
    x, words = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([b"a", b"bc"], object)
    logs = [predict_log("", x=x, words=words), predict_log("other", x=x[:0])]
    streamed = log()
    for _ in range(2):
        streamed.predict_streamed_log.request.add().CopyFrom(logs[0].predict_log.request)
    write(tmp_path, [m.SerializeToString() for m in (*logs, streamed)])
    found = read_requests(tmp_path)
    assert [r.signature for r in found] == ["serving_default", "other", "serving_default", "serving_default"]
    assert {r.kind for r in found} == {"predict"}
    assert (found[0].feeds["x"] == x).all() and found[0].feeds["x"].dtype == np.float32
    assert found[0].feeds["words"].tolist() == [b"a", b"bc"]
    assert found[1].feeds["x"].shape == (0, 3)
    assert "bc" not in repr(found)


def test_examples(tmp_path: Path) -> None:
    """Classify, regress and multi-inference feed serialized examples; a context is merged into each."""
    classify, regress, multi = log(), log(), log()
    request = classify.classify_log.request
    fill_spec(request.model_spec, "classes")
    request.input.example_list.examples.extend([example(a=1.0), example(a=2.0)])
    request = regress.regress_log.request
    fill_spec(request.model_spec, "")
    request.input.example_list_with_context.examples.extend([example(a=1.0)])
    request.input.example_list_with_context.context.CopyFrom(example(b=5.0))
    request = multi.multi_inference_log.request
    for name in ("classes", "price"):
        task = request.tasks.add(method_name="tensorflow/serving/classify")
        fill_spec(task.model_spec, name)
    request.input.example_list.examples.extend([example(a=3.0)])
    session = log()
    session.session_run_log.request.feed.add(name="x:0")
    write(tmp_path, [m.SerializeToString() for m in (classify, regress, multi, session)])
    found = read_requests(tmp_path)
    assert [(r.kind, r.signature) for r in found] == [
        ("classify", "classes"), ("regress", "serving_default"), ("multi_inference", "classes"), ("multi_inference", "price")
    ]  # fmt: skip
    parsed = message_class("Example")
    assert [parsed.FromString(e).features.feature["a"].float_list.value[0] for e in found[0].feeds["inputs"]] == [1.0, 2.0]
    (merged,) = (parsed.FromString(e).features.feature for e in found[1].feeds["inputs"])
    assert sorted(merged) == ["a", "b"]


def test_no_file(tmp_path: Path) -> None:
    assert read_requests(tmp_path) == []


SECRET = b"somebody's secret"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"12345", "truncated in record 0"),
        (struct.pack("<QI", 1 << 40, 0) + SECRET, "truncated in record 0, or not a TFRecord file"),
        (struct.pack("<QI", len(SECRET), 0) + SECRET + bytes(4), "record 0 is not a PredictionLog"),
        (struct.pack("<QI", 4, 0) + b"\x32\xff\xff\x7f" + bytes(4), "record 0 is not a PredictionLog"),
    ],
)
def test_broken_files(tmp_path: Path, data: bytes, said: str) -> None:
    write(tmp_path, [])
    (tmp_path / FILE).write_bytes(data)
    with pytest.raises(WarmupError, match=said) as raised:
        read_requests(tmp_path)
    assert "secret" not in str(raised.value) and raised.value.__cause__ is None


def test_too_many(tmp_path: Path) -> None:
    write(tmp_path, [predict_log("", x=np.zeros(1, np.float32)).SerializeToString()] * 1001)
    with pytest.raises(WarmupError, match="more than 1000"):
        read_requests(tmp_path)
