"""Whole programs without TensorFlow: modules from the builder, compiled, run on numpy, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from disc_tf.compiler import compile_module
from disc_tf.ir.builder import Builder, new_function
from disc_tf.ir.core import Function, Module, Value
from disc_tf.ir.dims import Dim, bcast, dmax, sym
from disc_tf.ir.interp import evaluate
from disc_tf.ir.opset.control import CheckFailed
from disc_tf.ir.types import DType
from disc_tf.passes.specialize import clone_function
from disc_tf.runtime.artifact import unpack
from disc_tf.runtime.cpu import native_target
from disc_tf.runtime.executable import DiscError, Executable

F32 = DType.F32
A, S = sym("a"), sym("s")


def program(fn: Function) -> tuple[Executable, Function]:
    """The executable of a function and a copy for the interpreter."""
    copy = clone_function(fn)
    module = Module()
    module.add(fn)
    return Executable.from_bytes(compile_module(module, [native_target()], verify_passes=True).executable), copy


def check(fn: Function, *inputs: np.ndarray) -> list[np.ndarray]:
    executable, copy = program(fn)
    got = executable.run(list(inputs))
    want = evaluate(copy, list(inputs))
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=2e-6, atol=1e-6)
    return got


def ramp(*shape: int) -> np.ndarray:
    return (np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape) % 17 - 8) / 4


def two_args() -> tuple[Function, Builder, Value, Value]:
    fn, b = new_function("main", {"x": (F32, [A, 5]), "y": (F32, [A, 5])})
    return fn, b, fn.params[0], fn.params[1]


def result_forms() -> dict[str, Callable[[Builder, Value, Value], list[Value]]]:
    """Every way in which a result can lie in memory."""
    return {
        "direct": lambda b, x, y: [b.add(x, y)],
        "argument": lambda b, x, y: [x],
        "argument twice": lambda b, x, y: [x, x, y],
        "view of an argument": lambda b, x, y: [b.reshape(x, [A * 5])],
        "constant": lambda b, x, y: [b.constant(np.arange(12, dtype=np.float32).reshape(3, 4)), b.add(x, y)],
        "splat": lambda b, x, y: [b.full(2.5, F32, [3])],
        "same value twice": lambda b, x, y: [v := b.exponential(x), v],
        "value and its view": lambda b, x, y: [v := b.exponential(x), b.reshape(v, [A * 5])],
        "view first": lambda b, x, y: [b.reshape(v := b.exponential(x), [A * 5]), v],
        "value used further": lambda b, x, y: [v := b.exponential(x), b.add(v, y)],
        "slice of a result": lambda b, x, y: [v := b.exponential(x), b.slice(v, [0, 1], [A, 3], [1, 1])],
        "row of sums": lambda b, x, y: [b.reduce(b.multiply(x, y), [1], "add"), b.reduce(x, [0, 1], "maximum")],
        "dim": lambda b, x, y: [b.dim(A * 5, DType.I64), b.dim(A + 1, DType.I32)],
        "empty": lambda b, x, y: [b.slice(x, [0, 2], [A, 2], [1, 1])],
    }


@pytest.mark.parametrize("form", result_forms())
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_results(form: str, rows: int) -> None:
    fn, b, x, y = two_args()
    b.return_(result_forms()[form](b, x, y))
    check(fn, ramp(rows, 5), ramp(rows, 5) + 1)


def test_results_are_not_shared_with_later_runs() -> None:
    """A result stays what it was when the executable runs again (constants and arena memory are copied out)."""
    fn, b, x, y = two_args()
    b.return_([b.constant(np.ones((3, 4), np.float32)), b.tanh(b.add(x, y))])
    executable, _ = program(fn)
    first = executable.run([ramp(2, 5), ramp(2, 5)])
    first[0][:] = 7
    kept = first[1].copy()
    second = executable.run([ramp(2, 5) + 3, ramp(2, 5)])
    assert np.all(second[0] == 1) and np.array_equal(first[1], kept)


@pytest.mark.parametrize(("rows", "other"), [(3, 3), (3, 1), (1, 3), (0, 0), (0, 1), (1, 1)])
def test_both_bodies(rows: int, other: int) -> None:
    """x[a,4] + y[b,4] with a run-time broadcast, and the error where it is none."""
    fn, b = new_function("main", {"x": (F32, [A, 4]), "y": (F32, [sym("b"), 4])})
    x, y = fn.params
    dims = [bcast(A, sym("b")), 4]
    da, db = b.dim(A), b.dim(sym("b"))
    one = b.constant(np.int64(1))
    ok = b.or_(b.compare(da, db, "EQ"), b.or_(b.compare(da, one, "EQ"), b.compare(db, one, "EQ")))
    token = b.check(ok, b.create_token(), code=3, message="Incompatible shapes", node="add")
    total = b.add(b.broadcast_in_dim(x, dims, [0, 1]), b.broadcast_in_dim(y, dims, [0, 1]))
    b.return_([b.exponential(total), token])
    executable, copy = program(fn)
    args = [ramp(rows, 4), ramp(other, 4)]
    np.testing.assert_allclose(executable.run(args)[0], evaluate(copy, args)[0], rtol=2e-6)
    with pytest.raises(DiscError) as e:
        executable.run([ramp(3, 4), ramp(2, 4)])
    assert (e.value.code, e.value.node) == (3, "add") and "Incompatible" in str(e.value)
    with pytest.raises(CheckFailed):
        evaluate(copy, [ramp(3, 4), ramp(2, 4)])


@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_a_dim_that_data_decides(count: int) -> None:
    """A scalar argument binds a dim: memory behind it is sized at run time."""
    fn, b = new_function("main", {"n": (DType.I64, []), "x": (F32, [A])})
    n, x = fn.params
    token = b.check(b.compare(n, b.constant(np.int64(0)), "GE"), b.create_token(), code=3, message="negative size", node="fill")
    size = b.bind_dim(n, "n0")
    wide = b.broadcast_in_dim(x, [A, size], [0])
    index = b.convert(b.iota(DType.I64, [A, size], 1), F32)
    total = b.multiply(wide, b.tanh(index))
    sums = b.reduce(total, [1], "add")
    b.return_([total, sums, token])
    check(fn, np.int64(count), ramp(3))
    with pytest.raises(DiscError) as e:
        program(_negative_size())[0].run([np.int64(-1), ramp(3)])
    assert e.value.code == 3 and e.value.node == "fill"


def _negative_size() -> Function:
    fn, b = new_function("main", {"n": (DType.I64, []), "x": (F32, [A])})
    n, x = fn.params
    token = b.check(b.compare(n, b.constant(np.int64(0)), "GE"), b.create_token(), code=3, message="negative size", node="fill")
    size = b.bind_dim(n, "n0")
    b.return_([b.broadcast_in_dim(x, [A, size], [0]), token])
    return fn


def test_arguments_are_checked() -> None:
    fn, b, x, y = two_args()
    b.return_([b.add(x, y)])
    executable, _ = program(fn)
    for bad in ([ramp(2, 4), ramp(2, 4)], [ramp(2, 5), ramp(3, 5)], [ramp(10), ramp(2, 5)]):
        with pytest.raises((DiscError, ValueError)) as e:
            executable.run(bad)
        assert "y" in str(e.value) or "x" in str(e.value)


def test_the_first_failing_check_wins() -> None:
    fn, b, x, y = two_args()
    token = b.create_token()
    for i, limit in enumerate((100.0, 0.5, 0.25)):
        ok = b.reduce(b.compare(x, b.full(limit, F32, [A, 5]), "LT"), [0, 1], "and")
        token = b.check(ok, token, code=3 + 8 * (i % 2), message=f"limit {limit}", node=f"check{i}")
    b.return_([b.add(x, y), token])
    executable, _ = program(fn)
    executable.run([ramp(1, 5) * 0, ramp(1, 5)])
    with pytest.raises(DiscError) as e:
        executable.run([np.full((1, 5), 0.75, np.float32), ramp(1, 5)])
    assert e.value.node == "check1" and e.value.code == 11


def test_a_size_that_overflows_is_refused() -> None:
    """x[a], y[b] with a*b*b elements beyond any memory: RESOURCE_EXHAUSTED, never a wild allocation."""
    fn, b = new_function("main", {"x": (DType.U8, [A]), "n": (DType.I64, [])})
    x, n = fn.params
    size = b.bind_dim(n, "n0")
    wide = b.broadcast_in_dim(x, [A, size, size], [0])
    total = b.reduce(b.convert(wide, F32), [0], "add")
    b.return_([b.reduce(total, [0, 1], "maximum"), total])
    executable, _ = program(fn)
    with pytest.raises(DiscError) as e:
        executable.run([np.ones(3, np.uint8), np.int64(1 << 40)])
    assert e.value.code == 8


def test_deterministic_and_small() -> None:
    def build() -> bytes:
        fn, b, x, y = two_args()
        b.return_([b.tanh(b.add(x, y))])
        module = Module()
        module.add(fn)
        return compile_module(module, ["x86-64-v2", "x86-64-v3", "x86-64-v4"]).executable

    first = build()
    assert first == build() and len(first) < 64 << 10
    assert [t.isa for t in unpack(first).targets] == ["x86-64-v2", "x86-64-v3", "x86-64-v4"]


def test_dims_in_max_and_floordiv() -> None:
    """Compound dims are evaluated by the host as the interpreter does, at zero too."""
    fn, b = new_function("main", {"x": (F32, [A, S])})
    (x,) = fn.params
    dims = [b.dim(d, DType.I64) for d in (dmax(S, 1 - A), (A * S) // 3, (A * 7) % 4, Dim.of(5) - A)]
    b.return_([*dims, b.negate(x)])
    for rows, columns in ((0, 0), (0, 4), (3, 0), (2, 5), (7, 3)):
        check(clone_function(fn), ramp(rows, columns))
