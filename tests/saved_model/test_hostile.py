"""Models that change what they read: every read gives what it gave before."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import disc_tf.ops  # noqa: F401  registers the op
from disc_tf.saved_model import optimize_saved_model
from disc_tf.saved_model_files import copy_rest

pytestmark = pytest.mark.slow  # processes and models of their own: minutes on a busy machine

X = np.random.default_rng(0).normal(size=(3, 4)).astype("f")
SPEC = tf.TensorSpec((None, 4), tf.float32, name="x")


class Changing(tf.Module):
    """Functions that read and change variables, called one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(np.random.default_rng(1).normal(size=(4, 4)).astype("f"))
        self.count = tf.Variable(0.0)
        self.table = tf.Variable(np.random.default_rng(2).normal(size=(9, 4)).astype("f"))

    def layer(self, x):
        return tf.tanh(tf.nn.relu(x @ self.w)) * 2.0

    @tf.function
    def read(self, x):
        return self.layer(x) + self.count

    @tf.function
    def tick(self):
        self.count.assign_add(1.0)
        return self.count.read_value()

    @tf.function(input_signature=[SPEC])
    def assigned_after_call(self, x):
        y = self.read(x)
        self.w.assign(self.w * 0.5)
        return {"y": y}

    @tf.function(input_signature=[SPEC])
    def counted(self, x):
        return {"a": self.tick(), "b": self.tick() * self.layer(x), "c": self.tick() + self.count}

    @tf.function(input_signature=[SPEC])
    def looked_up(self, x):
        ids = tf.cast(tf.abs(x[:, 0]) * 2.0, tf.int32)
        a = tf.tanh(tf.gather(self.table, ids)) * 2.0
        self.table.assign(self.table * 2.0)
        return {"a": a, "b": tf.gather(self.table, ids) * 2.0}


NAMES = ("assigned_after_call", "counted", "looked_up")


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    base = tmp_path_factory.mktemp("changing")
    m = Changing()
    tf.saved_model.save(m, str(base / "in"), signatures={name: getattr(m, name) for name in NAMES})
    result = optimize_saved_model(base / "in", base / "out", targets=("native",), verify=False)
    assert len(result.report.compiled_clusters) >= len(NAMES)
    return str(base / "in"), str(base / "out")


@pytest.mark.parametrize("name", NAMES)
def test_reads_keep_their_place_among_assignments(name, paths):
    a, b = (tf.saved_model.load(path) for path in paths)
    for _ in range(3):
        x, y = (m.signatures[name](x=tf.constant(X)) for m in (a, b))
        for key in x:
            np.testing.assert_allclose(y[key], x[key], rtol=1e-5, atol=1e-6, err_msg=key)
    for x, y in zip((a.w, a.count, a.table), (b.w, b.count, b.table), strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-6)


def test_the_copy_of_a_read_only_directory_can_be_written(tmp_path):
    source, copy = tmp_path / "in", tmp_path / "out"
    (source / "assets.extra").mkdir(parents=True)
    (source / "dangling").symlink_to(tmp_path / "nowhere")
    folders = (source / "assets.extra", source)
    for folder in folders:
        folder.chmod(0o555)
    try:
        copy_rest(source, copy)
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert all(p.stat().st_mode & 0o200 for p in (copy, copy / "assets.extra"))
    assert not (copy / "dangling").exists()
