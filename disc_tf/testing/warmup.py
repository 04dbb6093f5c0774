"""The warm-up file of a SavedModel (`assets.extra/tf_serving_warmup_requests`): requests as TensorFlow Serving replays them at loading.

A TFRecord file of tensorflow.serving.PredictionLog messages (prediction_log.proto), read field by field: the package with their classes is
not needed. The records are somebody's data: nothing of their content goes into messages.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.tensor_proto import to_numpy
from disc_tf.frontend.tfproto import parse

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
    found: list[Request] = []
    for number, record in enumerate(_records(path.read_bytes())):
        if number >= MAX_RECORDS:
            raise WarmupError(f"{FILE}: more than {MAX_RECORDS} records; TensorFlow Serving refuses such a file")
        try:
            found += _requests(record)
        except (ValueError, GraphError, struct.error, IndexError):
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


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of the fields of a message: bytes, or an int of a varint or fixed field. ValueError."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _varint(data, at)
        elif kind == 2:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise ValueError("truncated")
            value, at = data[at : at + size], at + size
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            if at + size > len(data):
                raise ValueError("truncated")
            value, at = int.from_bytes(data[at : at + size], "little"), at + size
        else:
            raise ValueError("a field of an unknown kind")
        yield number, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a bad number")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _get(data: bytes, number: int) -> list[bytes]:
    """All values of a field that holds bytes or messages."""
    return [value for n, value in _fields(data) if n == number and isinstance(value, bytes)]


def _merged(data: bytes, number: int) -> bytes:
    """A message field: several occurrences in a row are their merge."""
    return b"".join(_get(data, number))


# 5, a SessionRunLog, feeds tensors and not the inputs of a signature: not replayed
_PREDICT, _STREAMED, _CLASSIFY, _REGRESS, _MULTI = 6, 7, 2, 3, 4


def _requests(record: bytes) -> list[Request]:
    for number, log in _fields(record):
        if not isinstance(log, bytes):
            continue
        if number in (_PREDICT, _STREAMED):
            return [_predict(request) for request in _get(log, 1)]
        if number in (_CLASSIFY, _REGRESS):
            request = _merged(log, 1)
            kind = "classify" if number == _CLASSIFY else "regress"
            return [Request(kind, _signature(_merged(request, 1)), {EXAMPLES_INPUT: _examples(_merged(request, 2))})]
        if number == _MULTI:
            request = _merged(log, 1)
            feeds = {EXAMPLES_INPUT: _examples(_merged(request, 2))}
            return [Request("multi_inference", _signature(_merged(task, 1)), feeds) for task in _get(request, 1)]
    return []


def _predict(request: bytes) -> Request:
    feeds: dict[str, np.ndarray] = {}
    for entry in _get(request, 2):
        feeds[_merged(entry, 1).decode()] = np.array(to_numpy(parse("TensorProto", _merged(entry, 2))))
    return Request("predict", _signature(_merged(request, 1)), feeds)


def _signature(model_spec: bytes) -> str:
    names = _get(model_spec, 3)
    return names[-1].decode() if names and names[-1] else DEFAULT_SIGNATURE


def _examples(data: bytes) -> np.ndarray:
    """An Input's examples, serialized; a context's features come first in each (two messages in a row are their merge)."""
    with_context = _merged(data, 2)
    context = _merged(with_context, 2) if with_context else b""
    found = [context + e for e in _get(with_context or _merged(data, 1), 1)]
    out = np.empty(len(found), object)
    out[:] = found
    return out
