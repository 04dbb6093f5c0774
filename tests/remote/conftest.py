"""Fixtures of the tests of the remote client's parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from disc_tf.remote.compile import compile_skeleton
from disc_tf.remote.messages import new

MODELS = Path(__file__).parents[2] / "bench" / "models"


@pytest.fixture(scope="session")
def compiled() -> bytes:
    """A serialized CompileResult: micro_chain for two targets."""
    outputs = json.loads((MODELS / "micro_chain.json").read_text())["outputs"]
    options = new("CompileOptions", targets=["x86-64-v2", "x86-64-v3"])
    result = compile_skeleton((MODELS / "micro_chain.pb").read_bytes(), outputs, (), options)
    return result.SerializeToString(deterministic=True)
