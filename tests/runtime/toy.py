"""The hand-written executable of cpp/toy.cc, compiled with the system's C++ compiler, as an Artifact."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from disc_tf.runtime.artifact import (
    ArgSpec,
    Artifact,
    CheckSpec,
    PreparedSpec,
    ResultSpec,
    SegmentSpec,
    TargetCode,
    tensor_digest,
)

_HERE = Path(__file__).resolve().parent
_INCLUDE = _HERE.parents[1] / "disc_tf" / "runtime" / "ral" / "include"
FLAGS = (
    "-std=c++17", "-O1", "-fPIC", "-shared", "-nostdlib", "-fno-exceptions", "-fno-rtti", "-fno-asynchronous-unwind-tables",
    "-fvisibility=hidden", "-fno-tree-loop-distribute-patterns", "-fno-stack-protector", "-fcf-protection=none",
    "-Wl,--hash-style=sysv", "-Wl,-z,separate-code", "-Wl,-z,max-page-size=4096", "-Wl,--build-id=none", "-Wl,-z,norelro",
)  # fmt: skip


@functools.cache
def image(*defines: str) -> bytes:
    """toy.cc as a shared object."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or "c++"
    with tempfile.TemporaryDirectory() as d:
        out = Path(d) / "toy.so"
        command = [compiler, *FLAGS, *(f"-D{x}" for x in defines), f"-I{_INCLUDE}", str(_HERE / "cpp" / "toy.cc"), "-o", str(out)]
        subprocess.run(command, check=True)
        return out.read_bytes()


def artifact(
    w: np.ndarray | None = None,
    *,
    isas: tuple[str, ...] = ("x86-64-v2",),
    features: tuple[str, ...] = (),
    name: str = "toy",
    code_hash: bytes = b"",
    optional: bool = False,
) -> Artifact:
    """The toy's artifact; with `w` the constant's content is known (its digest is in the signature)."""
    digest = b"" if w is None else tensor_digest(w, "f32")
    return Artifact(
        args=(ArgSpec("w", "const", "f32", (-1,), digest), ArgSpec("x", "device", "f32", (-1, -1)), ArgSpec("n", "host", "i64", ())),
        results=(ResultSpec("y", "f32", (-1, -1)), ResultSpec("flat", "f32", (-1,)), ResultSpec("filled", "f32", (-1,), host=True)),
        checks=(
            CheckSpec(3, "w and x do not fit", "scale/Mul"),
            CheckSpec(11, "666 is not allowed", "scale/Assert"),
            CheckSpec(3, "777 is not allowed", "scale/Assert_1"),
            CheckSpec(3, "n must not be negative", "fill/Fill"),
        ),
        segments=(SegmentSpec((0, 1), (), (0, 1)), SegmentSpec((2,), (0,), (2,))),
        prepared=(PreparedSpec((0,), "double", code_hash, optional),),
        targets=tuple(TargetCode(isa, features, image()) for isa in isas),
        kernels={"scale_kernel": ("scale/Mul",)},
        name=name,
        compiler_version="test",
    )


def expected(w: np.ndarray, x: np.ndarray, n: int) -> list[np.ndarray]:
    """What the toy computes, in numpy; denormals flushed."""
    first = np.float32(0) if x.size == 0 else x.flat[0] * np.float32(0.1)
    first = np.float32(0) if abs(first) < np.finfo(np.float32).tiny else first
    return [x * (np.float32(2) * w), x.reshape(-1), np.full(n, first, np.float32)]
