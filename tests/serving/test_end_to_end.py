"""The whole way: a model is prepared by the command, with the optimiser and its proof, warmed up, served, batched, rolled back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disc_tf.cli import main
from disc_tf.serving.batching import BatchSettings
from disc_tf.serving.config import ModelSettings
from disc_tf.serving.protos import serving
from disc_tf.serving.rows import rows_independent
from disc_tf.serving.tensors import to_numpy, to_proto
from disc_tf.serving.warmup import WARMUP_FILE, read_records
from tests.serving.conftest import start


def save(path: Path) -> Any:
    import tensorflow as tf

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            rng = np.random.default_rng(0)
            self.table = tf.Variable(rng.standard_normal((40, 16)).astype(np.float32))
            self.w = tf.Variable(rng.standard_normal((16, 16)).astype(np.float32))

        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32, name="ids")])
        def __call__(self, ids: Any) -> dict[str, Any]:
            x = tf.gather(self.table, ids)
            x = tf.nn.gelu(tf.tensordot(x, self.w, [[2], [0]])) + x
            x = x - tf.reduce_mean(x, -1, keepdims=True)
            return {"y": tf.nn.softmax(tf.reduce_sum(x, 1))}

    model = Model()
    tf.saved_model.save(model, str(path), signatures={"serving_default": model.__call__})
    return model


@pytest.mark.slow
def test_prepare_and_serve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save(tmp_path / "in" / "m" / "4")
    fast = tmp_path / "out" / "m"
    fast.parent.mkdir()
    given = ["serving", "prepare", str(tmp_path / "in" / "m"), "--to", str(fast), "--quiet-seconds", "0", "--json"]
    assert main([*given, "--target", "native", "--no-timing", "--warmup-shapes", "4"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["result"] == "optimized" and "clusters compiled" in outcome["reason"] and "warm-up records written" in outcome["reason"]
    records = list(read_records(fast / "4" / WARMUP_FILE))
    assert 1 <= len(records) <= 4
    assert rows_independent(fast / "4").reason == ""  # judged by what the cluster was made from

    running = start([ModelSettings("m", str(fast))], batching=BatchSettings(16, 0.05))
    try:
        for batch, length in ((1, 1), (3, 7), (0, 4)):
            ids = np.random.default_rng(batch).integers(0, 40, (batch, length)).astype(np.int32)
            request = serving("PredictRequest")
            request.model_spec.name = "m"
            to_proto(ids, request.inputs["ids"])
            found = to_numpy(running.call("Predict", request).outputs["y"])
            np.testing.assert_allclose(found, model(ids)["y"].numpy(), rtol=1e-5, atol=1e-6)
        futures = []
        stub = running.channel.unary_unary("/tensorflow.serving.PredictionService/Predict", lambda m: m.SerializeToString(), lambda b: b)
        for i in range(8):
            request = serving("PredictRequest")
            request.model_spec.name = "m"
            to_proto(np.full((1, 5), i, np.int32), request.inputs["ids"])
            futures.append(stub.future(request, timeout=60))
        answers = [serving("PredictResponse").FromString(f.result()) for f in futures]
        for i, answer in enumerate(answers):
            np.testing.assert_allclose(
                to_numpy(answer.outputs["y"]), model(np.full((1, 5), i, np.int32))["y"].numpy(), rtol=1e-5, atol=1e-6
            )
        text = running.rest("/monitoring/prometheus/metrics")[1]
        batches = float(text.split('disc_serve_batch_rows_count{model="m"} ')[1].split()[0])
        assert batches < 10  # the eight shared some
    finally:
        running.channel.close()
        assert running.server.stop(10.0)
    assert main([*given, "--rollback", "4"]) == 0
    assert (fast / "4" / "saved_model.pb").read_bytes() == (tmp_path / "in" / "m" / "4" / "saved_model.pb").read_bytes()
