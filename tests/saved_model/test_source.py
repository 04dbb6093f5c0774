"""Whatever a user calls a model; what is no model; destinations; marks of our own."""

from __future__ import annotations

import base64
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import disc_tf
from disc_tf.cli import main
from disc_tf.frontend.saved_model import SavedModelError
from disc_tf.publish import PublishError
from disc_tf.saved_model import optimize_saved_model, restore_saved_model
from tests.saved_model.models import Scorer

SPEC = tf.TensorSpec((None, 16), tf.float32, name="x")


def keras_model():
    import keras

    x = keras.Input((16,), name="x")
    return keras.Model(x, keras.layers.Dense(4, activation="softmax")(keras.layers.Dense(8, activation="relu")(x)))


def keras_file(suffix: str):
    def make(directory: Path):
        keras_model().save(directory / f"model{suffix}")
        return directory / f"model{suffix}"

    return make


W = tf.Variable(np.random.default_rng(0).normal(size=(16, 4)).astype("f"))


@tf.function(input_signature=[SPEC])
def function(x):
    return tf.nn.softmax(tf.nn.relu(x @ W) + 1.0)


SOURCES = {
    "keras model": lambda _d: keras_model(),
    "keras file": keras_file(".keras"),
    "h5 file": keras_file(".h5"),
    "module": lambda _d: Scorer(),
    "function": lambda _d: function,
    "concrete function": lambda _d: tf.function(lambda x: {"y": tf.nn.softmax(tf.nn.relu(x @ W) + 1.0)}).get_concrete_function(SPEC),
    "string path": lambda d: str(keras_file(".keras")(d)),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_sources(kind, tmp_path):
    source = SOURCES[kind](tmp_path)
    result = disc_tf.optimize_saved_model(source, tmp_path / "out", targets=("native",), verify=False)
    assert result.path == tmp_path / "out" and result.report.compiled_clusters, result.report.to_text()
    model = tf.saved_model.load(str(tmp_path / "out"))
    if kind == "module":  # TensorFlow makes no signature where several methods could be it
        assert not model.signatures and result.report.skipped
        assert model.serve(tf.ones((5, 16)), True)["y"].shape == (5, 4)
        return
    loaded = model.signatures["serving_default"]
    x = np.random.default_rng(1).normal(size=(5, 16)).astype("f")
    name = next(n for n, spec in loaded.structured_input_signature[1].items() if spec.dtype == tf.float32)
    found = next(iter(loaded(**{name: tf.constant(x)}).values()))
    if kind in ("function", "concrete function"):
        np.testing.assert_allclose(found, function(x), rtol=1e-5)
    elif "keras model" in kind:
        np.testing.assert_allclose(found, source(x), rtol=1e-5)
    assert len(found) == 5


BAD = {
    "number": (lambda _d: 7, "a int is no model"),
    "no such directory": (lambda d: d / "nothing", "is not a directory"),
    "empty directory": (lambda d: (d / "e").mkdir() or d / "e", "no saved_model.pb in this directory"),
    "split": (lambda d: (d / "e").mkdir() or (d / "e" / "saved_model.cpb").touch() or d / "e", "split into chunks"),
    "noise": (lambda d: (d / "e").mkdir() or ((d / "e" / "saved_model.pb").write_bytes(b"\xff" * 50) and d / "e"), "cannot be read"),
    "empty file": (lambda d: (d / "e").mkdir() or (d / "e" / "saved_model.pb").touch() or d / "e", "holds no graph"),
    "no keras file": (lambda d: d / "x.keras", "there is no such file"),
    "bad keras file": (lambda d: (d / "x.keras").write_bytes(b"zip?") and d / "x.keras", "Keras cannot load"),
    "function without signature": (lambda _d: tf.function(lambda x: x), "no input signature"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_sources(kind, tmp_path):
    make, text = BAD[kind]
    with pytest.raises(SavedModelError, match=text):
        optimize_saved_model(make(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_unknown_names(original, tmp_path):
    for more, text in (
        ({"signatures": ["serving"]}, "no signature serving; there are: serving_default"),
        ({"tags": ["gpu"]}, "no graph is tagged gpu; there are: serve"),
    ):
        with pytest.raises(SavedModelError, match=text):
            optimize_saved_model(original("module"), tmp_path / "out", **more)


def test_destinations(original, optimized, tmp_path):
    path, _ = optimized("tf1")
    with pytest.raises(PublishError):
        optimize_saved_model(original("tf1"), path)
    with pytest.raises(PublishError):
        restore_saved_model(path, path / "inside")
    with pytest.raises(SavedModelError, match="was optimised by disc_tf"):
        optimize_saved_model(path, tmp_path / "again")
    with pytest.raises(SavedModelError, match="not optimised by disc_tf"):
        restore_saved_model(original("tf1"), tmp_path / "again")
    assert os.listdir(tmp_path) == []


def test_a_name_that_tensorflow_does_not_take(original, copy_of, tmp_path):
    path = copy_of(original("tf1")).rename(tmp_path / os.fsdecode(b"\xff"))
    with pytest.raises(SavedModelError, match="names of UTF-8 text only"):
        optimize_saved_model(path, tmp_path / "out")


def test_freezing_onto_itself_is_refused(original, copy_of):
    path = copy_of(original("tf1"))
    with pytest.raises(PublishError):
        optimize_saved_model(path, path, freeze=True, overwrite=True, verify=False)
    assert (path / "variables").is_dir()


def test_a_read_only_original(original, copy_of, tmp_path):
    path = copy_of(original("tf1"))
    for at, _, files in os.walk(path):
        os.chmod(at, 0o555)
        for name in files:
            os.chmod(Path(at) / name, 0o444)
    result = optimize_saved_model(path, tmp_path / "out", targets=("native",), verify=False)
    assert result.path is not None and all(os.stat(at).st_mode & 0o700 == 0o700 for at, _, _ in os.walk(result.path))


def test_a_file_that_cannot_be_copied(original, copy_of, tmp_path):
    path = copy_of(original("tf1"))
    os.mkfifo(path / "assets.pipe")
    with pytest.raises(PublishError, match="cannot write"):
        optimize_saved_model(path, tmp_path / "out", targets=("native",), verify=False)
    assert not (tmp_path / "out").exists() and not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_a_damaged_original(optimized, copy_of, tmp_path):
    path = copy_of(optimized("tf1")[0])
    kept = next((path / "assets.extra" / "disc_tf").glob("original.saved_model.pb*"))
    kept.write_bytes(b"not xz")
    with pytest.raises(SavedModelError, match="is damaged"):
        restore_saved_model(path, tmp_path / "back")
    kept.unlink()
    assert restore_saved_model(path, tmp_path / "back").launches == 1


def test_only_some_signatures(original, tmp_path):
    report = optimize_saved_model(
        original("tf1_two"), tmp_path / "out", signatures="other", targets=("native",), verify=False
    ).report  # fmt: skip
    assert len(report.compiled_clusters) == 1 and report.compiled_clusters[0].node_names[-1] == "second"
    assert set(tf.saved_model.load(str(tmp_path / "out")).signatures) == {"serving_default", "scaled", "other", "bump"}


def test_all_functions(original):
    some = optimize_saved_model(original("module"), None, dry_run=True).report
    every = optimize_saved_model(original("module"), None, dry_run=True, all_functions=True).report
    assert any("training=True" in why for why in some.skipped.values()) and any("train_step" in name for name in some.skipped)
    assert not every.skipped and len(every.functions) > len(some.functions)
    assert not any("save" in f.name or "restore" in f.name for f in every.functions)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_standard_output_is_one_json_object(suffix, tmp_path, capsys):
    """Whatever Keras prints while it reads and saves the model."""
    source = keras_file(suffix)(tmp_path)
    capsys.readouterr()
    assert main(["optimize", str(source), "-o", str(tmp_path / "out"), "--target", "native", "--no-verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["functions"]


def test_the_commands(original, tmp_path, capsys):
    out, back = tmp_path / "out", tmp_path / "back"
    source = shutil.copytree(original("tf1"), tmp_path / "in")
    assert main(["inspect", str(source)]) == 0
    assert "1 of 1 clusters would be compiled" in capsys.readouterr().out
    assert main(["optimize", str(source), "-o", str(out), "--target", "native", "--no-verify", "--report", str(tmp_path / "r.json")]) == 0
    assert "(main graph) (signature serving_default): compiled" in capsys.readouterr().out
    assert '"kind": "saved_model"' in (tmp_path / "r.json").read_text()
    assert main(["optimize", str(source), "-o", str(out), "--no-verify"]) == 3 and "exists" in capsys.readouterr().err
    assert main(["optimize", str(source), "-o", str(out), "--no-verify", "--overwrite", "--target", "native", "-q"]) == 0
    assert main(["restore", str(out), "-o", str(back)]) == 0
    assert (back / "saved_model.pb").read_bytes() == (source / "saved_model.pb").read_bytes()
    assert main(["optimize", str(tmp_path), "-o", str(tmp_path / "x")]) == 3
    assert main(["optimize", str(source), "-o", str(tmp_path / "x"), "--outputs", "y"]) == 2


def test_inspect_says_what_an_optimised_model_holds(original, optimized, tmp_path, capsys):
    directory, report = optimized("module")
    assert main(["inspect", str(directory)]) == 0
    text = capsys.readouterr().out
    assert "native code" in text and "not signed" in text
    assert all(f"  {name}: " in text for name, c in report.clusters.items() if c.status == "compiled")
    trust = tmp_path / "trust.toml"
    trust.write_text('[[key]]\nid = "k"\npublic = "' + base64.b64encode(bytes(32)).decode() + '"\n')
    assert main(["inspect", str(directory), "--trust-file", str(trust)]) == 5
    assert "is not trusted" in capsys.readouterr().err
    assert main(["inspect", str(directory), "--report", str(tmp_path / "r.json")]) == 2
    assert main(["inspect", str(original("module")), "--trust-file", str(trust)]) == 2
    assert "there is no code in this one" in capsys.readouterr().err
