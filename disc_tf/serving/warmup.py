"""Warm-up records: `assets.extra/tf_serving_warmup_requests`, a TFRecord file of PredictionLogs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from disc_tf.serving.errors import ServingError
from disc_tf.serving.handlers import Handlers
from disc_tf.serving.protos import message_class
from disc_tf.serving.servable import Servable
from disc_tf.serving.tensors import to_numpy

WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
#: ModelServer refuses a file with more
MAX_RECORDS = 1000


def read_records(path: str | Path) -> Iterator[bytes]:
    """The records of a TFRecord file, checksums checked.

    `ServingError` (DATA_LOSS) for a damaged file, INVALID_ARGUMENT for too many records.
    """
    import tensorflow as tf

    records = tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    count = 0
    while True:
        try:
            record = next(records)
        except StopIteration:
            return
        except tf.errors.OpError as e:
            raise ServingError("DATA_LOSS", f"{path}: {e.message}") from e
        count += 1
        if count > MAX_RECORDS:
            raise ServingError("INVALID_ARGUMENT", f"{path}: more than {MAX_RECORDS} warm-up records")
        yield bytes(record)


def parse_record(record: bytes) -> Any:
    """A PredictionLog. `ServingError` (INVALID_ARGUMENT), without the record's content, for anything else."""
    from google.protobuf.message import DecodeError

    try:
        return message_class("serving.PredictionLog").FromString(record)
    except DecodeError as e:
        raise ServingError("INVALID_ARGUMENT", "a warm-up record is no PredictionLog") from e


def replay(servable: Servable) -> int:
    """Run every warm-up record of a servable's directory.

    How many there were. `ServingError` with the number of the first record that fails.
    """
    path = servable.path / WARMUP_FILE
    if not path.exists():
        return 0
    handlers = Handlers(_Only(servable))  # type: ignore[arg-type]
    count = 0
    for count, record in enumerate(read_records(path), 1):
        try:
            _run(handlers, servable, parse_record(record))
        except ServingError as e:
            # the number only: what is in a record is the customer's
            raise ServingError(e.code, f"warm-up record {count} of {path} fails with {e.code}") from None
    return count


def _run(handlers: Handlers, servable: Servable, entry: Any) -> None:
    kind = entry.WhichOneof("log_type")
    if kind == "predict_log":
        handlers.predict_on(servable, entry.predict_log.request)
    elif kind == "classify_log":
        handlers.classify(entry.classify_log.request)
    elif kind == "regress_log":
        handlers.regress(entry.regress_log.request)
    elif kind == "multi_inference_log":
        handlers.multi_inference(entry.multi_inference_log.request)
    elif kind == "predict_streamed_log":
        requests = entry.predict_streamed_log.request
        if len(requests) != 1:
            raise ServingError("INVALID_ARGUMENT", f"a record of a streamed Predict with {len(requests)} requests")
        for _ in handlers.predict_streamed_on(servable, requests[0]):
            pass
    elif kind == "session_run_log":
        request = entry.session_run_log.request
        servable.session_run({f.name: to_numpy(f.tensor) for f in request.feed}, list(request.fetch), list(request.target))
    else:
        raise ServingError("UNIMPLEMENTED", f"a warm-up record of type {kind}")


class _Only:
    """A manager of one servable, whatever name and version a record gives."""

    def __init__(self, servable: Servable) -> None:
        self._servable = servable

    def lease(self, name: str, version: int | None = None, label: str = "") -> Any:
        import contextlib

        return contextlib.nullcontext(self._servable)
