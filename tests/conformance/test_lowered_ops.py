"""Every table of one-op cases under tests/lowering, compiled and run natively instead of in the interpreter.

The fast part takes each test function's cases with unknown dims for one instruction set: all of its ops, and of its other parameters those
that no earlier case had. Everything else (all modes, all cases, the other instruction sets) is marked slow.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from disc_tf.testing.native_case import TARGETS, natively

_TABLES = Path(__file__).parents[1] / "lowering"
#: files whose tests compare results with TF's through `check_op`
_FILES = (
    "unary", "binary", "cast", "reductions", "matmul", "matrix_ops", "gather_ops", "shape_ops", "slicing_ops",
    "nodes_and_norms", "convolution", "pooling", "blocks", "resize", "grad_ops", "window_grads", "batch_norm_training",
    "image_ops", "fake_quant",
    "data_dependent", "nms", "partition_ops", "counting_ops", "sequence_ops", "ragged_ops", "segment_ops", "sparse_ops", "sparse_structure",
    "jax_rules", "random_ops", "linalg_ops", "quantized", "rnn_cells", "gradient_shapes",
)  # fmt: skip


def _load(stem: str) -> ModuleType:
    name = f"lowering_tables_{stem}"
    spec = importlib.util.spec_from_file_location(name, _TABLES / f"test_{stem}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _tests() -> Iterator[tuple[str, Callable[..., None]]]:
    for stem in _FILES:
        for name, fn in vars(_load(stem)).items():
            if name.startswith("test_") and inspect.isfunction(fn):
                yield f"{stem}_{name.removeprefix('test_')}", fn


def _native(fn: Callable[..., None], target: str, modes: tuple[str, ...]) -> Callable[..., None]:
    """The test with its parametrisation, run natively."""

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> None:
        with natively(target, modes):
            fn(*args, **kwargs)

    run.pytestmark = list(getattr(fn, "pytestmark", []))  # type: ignore[attr-defined]
    return run


for _name, _fn in _tests():
    globals()[f"test_{_name}"] = _native(_fn, TARGETS[0], ("dynamic",))
    for _target in TARGETS:
        _all = _native(_fn, _target, ("static", "partial", "dynamic"))
        globals()[f"test_{_name}_{_target.replace('-', '_')}"] = pytest.mark.slow(_all)
