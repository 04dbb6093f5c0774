"""What the command's way to a service puts on the wire: every byte that the server gets is searched for what is the owner's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from disc_tf.cli import main
from disc_tf.serving.protos import serving
from disc_tf.serving.tensors import to_proto
from disc_tf.serving.warmup import WARMUP_FILE
from tests.remote.test_client import Scripted, served
from tests.remote.test_skeleton import FLOAT, INT, WORD, is_in

pytestmark = pytest.mark.slow  # processes that run the model


class Recorder:
    """A service, and what it is sent: serialized requests, and the metadata of calls."""

    def __init__(self) -> None:
        self.service = Scripted()
        self.wire: list[bytes] = []

    def received(self) -> bytes:
        """All of it, content of uploads unpacked."""
        return b"\0".join([*self.wire, *self.service.blobs.values()])


class _Metadata(grpc.ServerInterceptor):
    def __init__(self, wire: list[bytes]) -> None:
        self._wire = wire

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        for key, value in details.invocation_metadata:
            self._wire += [key.encode(), value if isinstance(value, bytes) else value.encode()]
        return continuation(details)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    made = Recorder()
    with served(made.service, made.wire.append, [_Metadata(made.wire)]):
        yield made


def secret_model(path: Path) -> None:
    """A SavedModel with sentinels in variables, constants, scalars, tables, strings, names, attributes, an asset and a warm-up record."""
    import tensorflow as tf

    class Secret(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            (path.parent / f"{WORD}.txt").write_text(f"{WORD}\nother\n")
            file = self.file = tf.saved_model.Asset(str(path.parent / f"{WORD}.txt"))
            line, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
            self.table = tf.lookup.StaticHashTable(tf.lookup.TextFileInitializer(file, tf.string, line, tf.int64, number), INT)
            self.weights = tf.Variable(np.full((4, 4), FLOAT, np.float32), name=WORD)

        @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name=WORD), tf.TensorSpec([None], tf.string, name="words")])
        def serve(self, x: Any, words: Any) -> Any:
            bias = tf.constant(np.full(4, FLOAT, np.float32), name=f"{WORD}_bias")
            y = tf.debugging.check_numerics(tf.tanh(x @ self.weights + bias) * FLOAT, WORD)
            ids = tf.cast(self.table.lookup(words), tf.int32) % 2 + tf.constant(INT)
            return {WORD: tf.nn.softmax(y) + tf.cast(ids, tf.float32)[:, None] / INT, "text": tf.strings.join([words, WORD])}

    model = Secret()
    tf.saved_model.save(model, str(path), signatures={WORD: model.serve})
    log = serving("PredictionLog")
    request = log.predict_log.request
    request.model_spec.name, request.model_spec.signature_name = WORD, WORD
    request.inputs[WORD].CopyFrom(to_proto(np.full((3, 4), FLOAT, np.float32)))
    request.inputs["words"].CopyFrom(to_proto(np.array([WORD.encode()] * 3, object)))
    file = path / WARMUP_FILE
    file.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(file)) as writer:
        writer.write(log.SerializeToString())


def test_nothing_of_a_saved_model_travels(recorder: Recorder, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, made, report = tmp_path / WORD, tmp_path / "out", tmp_path / "report.json"
    secret_model(source)
    everything = b"".join(p.read_bytes() for p in source.rglob("*") if p.is_file())
    assert {"float", "int", "word"} <= set(is_in(everything)), "the search finds what is there"
    command = ["optimize", str(source), "-o", str(made), "--remote", recorder.service.address, "--target", "native", "--no-timing"]
    assert main([*command, "--report", str(report), "--min-cluster-size", "1"]) == 0, capfd.readouterr().err
    assert '"source": "warm' in report.read_text(), "the record was replayed at home"
    sent = recorder.received()
    assert recorder.service.calls and b"MatMul" in sent
    assert is_in(sent) == []
