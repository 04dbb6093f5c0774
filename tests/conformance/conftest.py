"""The reference settings of TensorFlow (docs/numerics.md) must be there before anything imports it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the tables of `test_lowered_ops` the first case of every op, dtype and other parameter value stays in the fast part."""
    seen: dict[str, set[str]] = {}
    for item in items:
        callspec = getattr(item, "callspec", None)
        if Path(item.path).name != "test_lowered_ops.py" or callspec is None or item.get_closest_marker("slow"):
            continue
        known = seen.setdefault(item.originalname, set())  # type: ignore[attr-defined]
        new = {f"{k}={v!s}" for k, v in callspec.params.items()} - known
        if not new:
            item.add_marker(pytest.mark.slow)
        known |= new
