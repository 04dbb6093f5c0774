"""Code for extensions of a target: made where a program multiplies what they are for, picked where the machine has them, left out else."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from disc_tf.codegen.cpu.target import TARGETS, V4, V4_VNNI
from disc_tf.codegen.images import MAX_ARTIFACT_BYTES, within_bounds
from disc_tf.compiler import compile_module
from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Module, Value
from disc_tf.ir.interp import evaluate
from disc_tf.ir.types import DType, TensorType
from disc_tf.passes.specialize import clone_function
from disc_tf.runtime.artifact import Artifact, PreparedSpec, pack, unpack
from disc_tf.runtime.cpu import cpu_flags, features_of, native_extension, native_target, with_extensions
from disc_tf.runtime.executable import Executable, host_isa, set_target

BF16, F32, I8, U8, I32 = DType.BF16, DType.F32, DType.I8, DType.U8, DType.I32
VNNI, BOTH = "x86-64-v4-vnni", "x86-64-v4-vnni-bf16"
#: isas by strength
ORDER = ("x86-64-v2", "x86-64-v3", "x86-64-v4", VNNI, BOTH)


@pytest.fixture(autouse=True)
def _any_target():
    yield
    set_target(None)


def module_of(*products: tuple[DType, DType, DType], widened: bool = False) -> Module:
    """A product [m, 33] x [33, 50] with a constant for each (left, right, result); operands converted to the result's type first."""
    fn = Function("main")
    b = Builder(fn.body, fn.env)
    out: list[Value] = []
    for lhs, rhs, result in products:
        x = fn.add_arg(TensorType.of(lhs, ("m", 33)), ArgInfo(f"x{len(out)}", "device"))
        w = fn.add_arg(TensorType.of(rhs, (33, 50)), ArgInfo(f"w{len(out)}", "const"))
        operands = (b.convert(v, result) for v in (x, w)) if widened else (x, w)
        out.append(b.dot_general(*operands, [1], [0], dtype=result))
    b.return_(out)
    module = Module()
    module.add(fn)
    return module


def isas(module: Module, *targets: str) -> list[str]:
    return [t.isa for t in unpack(compile_module(module, targets or ("x86-64-v4",)).executable).targets]


@pytest.mark.parametrize(
    ("products", "extensions"),
    [
        ([(F32, F32, F32)], []), ([(I32, I32, I32)], []), ([(BF16, BF16, BF16)], [BOTH]), ([(I8, I8, I32)], [VNNI]),
        ([(U8, I8, I32), (F32, F32, F32)], [VNNI]), ([(BF16, BF16, F32), (I8, U8, I32)], [VNNI, BOTH]),
    ],
)  # fmt: skip
def test_code_is_made_for_what_a_program_multiplies(products, extensions) -> None:
    assert isas(module_of(*products), "x86-64-v2", "x86-64-v4") == ["x86-64-v2", "x86-64-v4", *extensions]
    assert isas(module_of(*products), "x86-64-v3") == ["x86-64-v3"]


def test_products_in_loops_count() -> None:
    fn = Function("main")
    b = Builder(fn.body, fn.env)
    x = fn.add_arg(TensorType.of(BF16, ("m", 16)), ArgInfo("x", "device"))
    w = fn.add_arg(TensorType.of(BF16, (16, 16)), ArgInfo("w", "const"))
    n = fn.add_arg(TensorType.of(I32, ()), ArgInfo("n", "host"))
    kinds = [TensorType.of(I32, ()), x.tensor]
    cond = b.region(kinds, lambda c, i, _: c.compare(i, n, "LT"))
    body = b.region(kinds, lambda c, i, y: [c.add(i, c.constant(1, I32)), c.dot_general(y, w, [1], [0])])
    b.return_([b.while_([b.constant(0, I32), x], cond, body)[1]])
    module = Module()
    module.add(fn)
    assert isas(module) == ["x86-64-v4", BOTH]


def arrays(artifact: Artifact, rows: int) -> list[np.ndarray]:
    rng = np.random.default_rng(rows)
    out = []
    for a in artifact.args:
        dtype, shape = DType.from_name(a.dtype), [rows if d < 0 else d for d in a.dims]
        if dtype.is_float:
            out.append(rng.standard_normal(shape).astype(dtype.np))
        else:
            info = np.iinfo(dtype.np)
            out.append(rng.integers(info.min, info.max, shape, dtype=dtype.np, endpoint=True))
    return out


PRODUCTS = [(BF16, BF16, F32), (I8, I8, I32), (U8, I8, I32), (I8, U8, I32), (U8, U8, I32)]


@functools.cache
def all_products(widened: bool) -> tuple[Function, bytes]:
    """The function before the passes, its artefact."""
    module = module_of(*PRODUCTS, widened=widened)
    reference = clone_function(module.main)
    return reference, compile_module(module, ORDER[:3], verify_passes=True).executable


@pytest.mark.parametrize("cap", [*ORDER, None])
@pytest.mark.parametrize("widened", [False, True])
def test_every_image_gives_what_the_interpreter_gives(cap, widened) -> None:
    """All kinds of products in one program, weights packed by the image's own code; the strongest image that machine and limit allow."""
    reference, data = all_products(widened)
    artifact = unpack(data)
    assert [t.isa for t in artifact.targets] == list(ORDER)
    if cap is not None and ORDER.index(cap) > ORDER.index(host_isa()):
        pytest.skip(f"this machine runs {host_isa()}")
    set_target(cap)
    with Executable.from_bytes(data) as executable:
        assert executable.isa == (cap or host_isa())
        for rows in (0, 1, 5, 30):
            given = arrays(artifact, rows)
            for got, want, (_, _, result) in zip(executable.run(given), evaluate(reference, given), PRODUCTS, strict=True):
                if result.is_int:
                    np.testing.assert_array_equal(got, want)
                else:
                    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_without_the_instructions_the_targets_own_code_runs() -> None:
    """The same artefact where the machine lacks what the strongest code needs."""
    artifact = unpack(compile_module(module_of((I8, I8, I32)), ORDER[:3]).executable)
    lacking = [dataclasses.replace(t, features=(*t.features, "avx10000")) if t.isa == VNNI else t for t in artifact.targets]
    with Executable.from_bytes(pack(dataclasses.replace(artifact, targets=tuple(lacking)))) as executable:
        assert executable.isa == min("x86-64-v4", host_isa())


def test_features_are_those_of_all_below() -> None:
    assert features_of(BOTH)[-2:] == ("avx512_vnni", "avx512_bf16")
    assert set(features_of("x86-64-v4")) < set(features_of(VNNI)) < set(features_of(BOTH))
    assert with_extensions(["x86-64-v2", "x86-64-v4"]) == ["x86-64-v2", "x86-64-v4", VNNI, BOTH]
    assert with_extensions(["x86-64-v3"]) == ["x86-64-v3"]


def test_python_and_the_runtime_see_the_same_machine() -> None:
    assert host_isa() == (native_extension() or native_target())
    assert native_extension() in ("", VNNI, BOTH) and (native_extension() == BOTH) == (set(features_of(BOTH)) <= cpu_flags())


def test_what_would_be_too_large_or_prepares_other_constants_is_left_out() -> None:
    one, two = [PreparedSpec((0,), "panel", b"")], [PreparedSpec((0,), "panel", b""), PreparedSpec((0,), "words", b"")]
    v3 = TARGETS["x86-64-v3"]
    assert within_bounds([(v3, one, 10), (V4, one, 10), (V4_VNNI, one, 10)]) == [0, 1, 2]
    assert within_bounds([(v3, one, 10), (V4, one, 10), (V4_VNNI, two, 10)]) == [0, 1]
    assert within_bounds([(v3, one, 10), (V4, one, 10), (V4_VNNI, one, MAX_ARTIFACT_BYTES)]) == [0, 1]
