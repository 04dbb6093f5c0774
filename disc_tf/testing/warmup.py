"""The warm-up file of a SavedModel (`assets.extra/tf_serving_warmup_requests`): requests as TensorFlow Serving replays them at loading.

A TFRecord file of tensorflow.serving.PredictionLog messages (prediction_log.proto), read without TensorFlow. The records are somebody's
data: nothing of their content goes into messages.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from disc_tf.frontend.tensor_proto import to_numpy
from disc_tf.serving.protos import message_class

FILE = Path("assets.extra") / "tf_serving_warmup_requests"
#: TensorFlow Serving refuses a file with more
MAX_RECORDS = 1000
DEFAULT_SIGNATURE = "serving_default"
#: the name that classify and regress signatures give their one input
EXAMPLES_INPUT = "inputs"


class WarmupError(Exception):
    """A file that is not what it should be. The message has the record's number, nothing of its content."""


@dataclasses.dataclass(frozen=True)
class Request:
    """One request: feeds by the names of the signature's inputs. kind: ``predict``, ``classify``, ``regress`` or ``multi_inference``."""

    kind: str
    signature: str
    feeds: Mapping[str, np.ndarray] = dataclasses.field(repr=False)


def read_requests(directory: str | Path) -> list[Request]:
    """The requests of a model's warm-up file; empty without a file. `WarmupError`."""
    path = Path(directory) / FILE
    if not path.is_file():
        return []
    from google.protobuf.message import DecodeError

    found: list[Request] = []
    for number, record in enumerate(_records(path.read_bytes())):
        if number >= MAX_RECORDS:
            raise WarmupError(f"{FILE}: more than {MAX_RECORDS} records; TensorFlow Serving refuses such a file")
        try:
            found += _requests(record)
        except (DecodeError, RecursionError, ValueError, IndexError):
            raise WarmupError(f"{FILE}: record {number} is not a PredictionLog that can be replayed") from None
    return found


def _records(data: bytes) -> Iterator[bytes]:
    """The records of a TFRecord file: length (u64), checksum, data, checksum."""
    at, number = 0, 0
    while at < len(data):
        if at + 12 > len(data):
            raise WarmupError(f"{FILE}: truncated in record {number}")
        (size,) = struct.unpack_from("<Q", data, at)
        if at + 16 + size > len(data):
            raise WarmupError(f"{FILE}: truncated in record {number}, or not a TFRecord file")
        yield data[at + 12 : at + 12 + size]
        at += 16 + size
        number += 1


# ---- the messages ------------------------------------------------------------------------------------------------


def _requests(record: bytes) -> list[Request]:
    entry = message_class("serving.PredictionLog").FromString(record)
    kind = entry.WhichOneof("log_type")
    if kind == "predict_log":
        return [_predict(entry.predict_log.request)] if entry.predict_log.HasField("request") else []
    if kind == "predict_streamed_log":
        return [_predict(request) for request in entry.predict_streamed_log.request]
    if kind in ("classify_log", "regress_log"):
        request = getattr(entry, kind).request
        return [Request(kind.removesuffix("_log"), _signature(request.model_spec), {EXAMPLES_INPUT: _examples(request.input)})]
    if kind == "multi_inference_log":
        request = entry.multi_inference_log.request
        feeds = {EXAMPLES_INPUT: _examples(request.input)}
        return [Request("multi_inference", _signature(task.model_spec), feeds) for task in request.tasks]
    return []  # a SessionRunLog feeds tensors and not the inputs of a signature: not replayed


def _predict(request: Any) -> Request:
    feeds = {name: np.array(to_numpy(tensor)) for name, tensor in request.inputs.items()}
    return Request("predict", _signature(request.model_spec), feeds)


def _signature(model_spec: Any) -> str:
    return model_spec.signature_name or DEFAULT_SIGNATURE


def _examples(message: Any) -> np.ndarray:
    """An Input's examples, serialized; a context's features come first in each (two messages in a row are their merge)."""
    kind = message.WhichOneof("kind")
    examples = getattr(message, kind).examples if kind is not None else []
    context = message.example_list_with_context.context.SerializeToString() if kind == "example_list_with_context" else b""
    out = np.empty(len(examples), object)
    out[:] = [context + e.SerializeToString() for e in examples]
    return out
