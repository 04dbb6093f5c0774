"""A model of 2.5 GB: its weights stay variables, and are never in the graph file."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import tensorflow as tf

import disc_tf.ops  # noqa: F401  registers the op
from disc_tf.frontend.saved_model import SavedModelError
from disc_tf.saved_model import optimize_saved_model, restore_saved_model

WIDTH, LAYERS = 8192, 10  # 268 MB each


class Large(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        row = rng.normal(size=(1, WIDTH)).astype("f") / WIDTH**0.5
        self.w = [tf.Variable(np.roll(np.broadcast_to(row, (WIDTH, WIDTH)), i, 1), name=f"w{i}") for i in range(LAYERS)]

    @tf.function(input_signature=[tf.TensorSpec((None, WIDTH), tf.float32, name="x")])
    def serve(self, x):
        for w in self.w:
            x = tf.tanh(x @ w) + 0.1 * x
        return {"y": x}


@pytest.mark.slow
def test_a_model_over_two_gigabytes(tmp_path):
    m = Large()
    tf.saved_model.save(m, str(tmp_path / "in"), signatures={"serving_default": m.serve})
    del m
    gc.collect()
    size = sum(f.stat().st_size for f in (tmp_path / "in").rglob("*") if f.is_file())
    assert size > 2.5e9
    result = optimize_saved_model(tmp_path / "in", tmp_path / "out", targets=("native",), verify=False)
    assert result.report.coverage == 1.0 and len(result.report.compiled_clusters) == 1
    assert (tmp_path / "out" / "saved_model.pb").stat().st_size < 4 << 20
    a = tf.saved_model.load(str(tmp_path / "in"))
    xs = [np.random.default_rng(n).normal(size=(n, WIDTH)).astype("f") for n in (1, 3)]
    wanted = [a.signatures["serving_default"](x=tf.constant(x))["y"].numpy() for x in xs]
    del a
    gc.collect()
    b = tf.saved_model.load(str(tmp_path / "out"))
    for x, y in zip(xs, wanted, strict=True):
        np.testing.assert_allclose(b.signatures["serving_default"](x=tf.constant(x))["y"], y, rtol=2e-3, atol=2e-3)
    del b
    gc.collect()
    restored = restore_saved_model(tmp_path / "out", tmp_path / "back")
    assert restored.exact
    with pytest.raises(SavedModelError, match="freeze"):
        optimize_saved_model(tmp_path / "in", tmp_path / "frozen", freeze=True, verify=False)
    assert not (tmp_path / "frozen").exists()
