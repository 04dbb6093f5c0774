"""The reference settings of TensorFlow (docs/numerics.md) must be there before anything imports it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

#: dtypes that are computed like another one of the fast part
_ALIKE = {"i8", "i16", "u16", "u32", "u64"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the tables of `test_lowered_ops` the first case of every op, dtype and other parameter value stays in the fast part; of the dtypes
    those that differ in how they are computed."""
    seen: dict[str, set[str]] = {}
    for item in items:
        callspec = getattr(item, "callspec", None)
        if Path(item.path).name != "test_lowered_ops.py" or callspec is None or item.get_closest_marker("slow"):
            continue
        known = seen.setdefault(item.originalname, set())  # type: ignore[attr-defined]
        new = {f"{k}={v!s}" for k, v in callspec.params.items()} - known
        if not new or not {str(v) for v in callspec.params.values()}.isdisjoint(_ALIKE):
            item.add_marker(pytest.mark.slow)
        else:
            known |= new
