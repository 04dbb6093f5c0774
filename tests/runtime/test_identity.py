"""The identity of code: what a client fills in does not change it, everything else does."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from disc_tf.runtime.artifact import (
    ArgSpec,
    Artifact,
    CheckSpec,
    PreparedSpec,
    ResultSpec,
    SegmentSpec,
    SignedStatement,
    StepSpec,
    TargetCode,
    pack,
    unpack,
)
from disc_tf.runtime.identity import code_identity

ARTIFACT = Artifact(
    args=(ArgSpec("n1", "const", "f32", (4, -1)), ArgSpec("n2", "device", "f32", (-1, 0))),
    results=(ResultSpec("n3", "f32", (-1,)), ResultSpec("n4", "i64", (), host=True)),
    segments=(SegmentSpec((0, 1), (), (0,)), SegmentSpec((1,), (0,), (1,))),
    checks=(CheckSpec(3, "message", "n5"),),
    prepared=(PreparedSpec((0,), "panels", b"h" * 32, optional=True),),
    targets=(TargetCode("x86-64-v2", ("sse4_2",), b"image"), TargetCode("x86-64-v3", (), b"other")),
    kernels={"k": ("n6",)},
    name="cluster",
    compiler_version="1",
)


def change(path: str, value: Any, of: Any = ARTIFACT) -> Any:
    """With the field at a path such as "args.0.name" changed."""
    head, _, rest = path.partition(".")
    if isinstance(of, tuple):
        return (*of[: int(head)], change(rest, value, of[int(head)]) if rest else value, *of[int(head) + 1 :])
    return dataclasses.replace(of, **{head: change(rest, value, getattr(of, head)) if rest else value})


FILLED_IN: dict[str, Any] = {
    "name": "mine", "args.0.name": "kernel", "args.1.name": "x:0", "args.0.digest": b"d" * 32, "results.0.name": "y",
    "checks.0.message": "argument kernel", "checks.0.node": "kernel", "kernels": {},
    "steps": {"x86-64-v2": (StepSpec("gemm", ("n6",), (("k",),)),)},
    "signed": SignedStatement(b"statement", b"signature"),
    "unused": ("z",),
}  # fmt: skip
SIGNED: dict[str, Any] = {
    "args.0.kind": "host", "args.0.dtype": "f16", "args.0.dims": (4, 0), "args": ARTIFACT.args[:1], "results.0.dtype": "f64",
    "results.0.dims": (), "results.1.host": False, "checks.0.code": 9, "checks": (), "results": (),
    "segments.0.inputs": (0,), "segments.1.dependences": (),
    "segments.0.outputs": (1,), "segments": ARTIFACT.segments[:1], "prepared": (), "prepared.0.args": (), "prepared.0.layout": "plain",
    "prepared.0.code_hash": b"", "prepared.0.optional": False, "targets.0.isa": "x86-64-v4", "targets.0.features": (),
    "targets.0.image": b"imagf", "targets": ARTIFACT.targets[::-1], "compiler_version": "2", "abi_version": 2,
}  # fmt: skip


@pytest.mark.parametrize("path", FILLED_IN)
def test_what_a_client_fills_in_is_not_in_it(path: str) -> None:
    assert change(path, FILLED_IN[path]) != ARTIFACT
    assert code_identity(change(path, FILLED_IN[path])) == code_identity(ARTIFACT)


def test_everything_else_is_in_it() -> None:
    found = {path: code_identity(change(path, value)) for path, value in SIGNED.items()}
    assert len({*found.values(), code_identity(ARTIFACT)}) == len(SIGNED) + 1
    # every field of the format stands in one of the tables: a new one must be put into one
    tables = {p.split(".")[-1] for p in (*FILLED_IN, *SIGNED)} | {"constants"}
    parts = (Artifact, ArgSpec, ResultSpec, CheckSpec, SegmentSpec, PreparedSpec, TargetCode)
    assert {f.name for part in parts for f in dataclasses.fields(part)} <= tables


def test_it_survives_the_format_and_stays() -> None:
    assert code_identity(unpack(pack(ARTIFACT))) == code_identity(ARTIFACT)
    # signatures of older versions are verified with it
    assert code_identity(ARTIFACT).hex() == "a8e0f47daff7786d51606f4a39a993bbe462f3bd3ddfd5c716377c3ef76bf467"
