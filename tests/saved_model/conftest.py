from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def original(tmp_path_factory) -> Callable[[str], Path]:
    """The directory of a model of `tests.saved_model.models`, made once."""
    from tests.saved_model.models import MODELS

    base, made = tmp_path_factory.mktemp("models"), {}

    def get(name: str) -> Path:
        if name == "keras2":
            pytest.importorskip("tf_keras")
        if name not in made:
            MODELS[name](base / name)
            made[name] = base / name
        return made[name]

    return get


@pytest.fixture(scope="session")
def optimized(original, tmp_path_factory):
    """(directory, report) of an optimised model, made once for this machine."""
    import disc_tf.ops  # noqa: F401  registers the op
    from disc_tf.saved_model import optimize_saved_model

    base, made = tmp_path_factory.mktemp("optimized"), {}

    def get(name: str):
        if name not in made:
            result = optimize_saved_model(original(name), base / name, targets=("native",), verify=False)
            made[name] = (result.path, result.report)
        return made[name]

    return get


@pytest.fixture
def copy_of(tmp_path) -> Callable[[Path], Path]:
    """A copy of a directory that the test may change."""
    return lambda path: Path(shutil.copytree(path, tmp_path / f"copy_{path.name}"))
