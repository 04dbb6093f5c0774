"""Loops and branches compiled into the host program, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from disc_tf.compiler import compile_module
from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Block, Function, Module, Value
from disc_tf.ir.interp import evaluate
from disc_tf.ir.types import DType, TensorType
from disc_tf.ir.verifier import verify
from disc_tf.passes.specialize import clone_function
from disc_tf.testing.native_case import load, run_executable
from disc_tf.testing.tf_case import Failure, Tolerance, difference

TARGETS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
I32 = TensorType(DType.I32, ())
BOOL = TensorType(DType.BOOL, ())
Body = Callable[[Builder, Sequence[Value]], Sequence[Value]]


def f32(*dims: object) -> TensorType:
    return TensorType.of(DType.F32, dims)


def scalar(b: Builder, n: int) -> Value:
    return b.constant(np.int32(n))


def loop(b: Builder, inits: Sequence[Value], cond: Body, body: Body) -> list[Value]:
    types = [v.type for v in inits]
    c = b.region(types, lambda inner, *p: cond(inner, p))
    return list(b.while_(inits, c, b.region(types, lambda inner, *p: body(inner, p))))


def count(limit: Value | int) -> Body:
    """The condition ``carried[0] < limit``."""

    def cond(b: Builder, p: Sequence[Value]) -> Sequence[Value]:
        return [b.compare(p[0], limit if isinstance(limit, Value) else scalar(b, limit), "LT")]

    return cond


def dense(b: Builder, x: Value, w: Value) -> Value:
    numbers = {"lhs_batching": (), "rhs_batching": (), "lhs_contracting": (1,), "rhs_contracting": (0,)}
    return b.create1("dot_general", [x, w], TensorType(x.dtype, (x.dims[0], w.dims[1])), **numbers)


def power(b: Builder, a: Sequence[Value]) -> Sequence[Value]:
    """``x W W ...``, as often as an argument says."""
    x, w, n = a
    return loop(b, [scalar(b, 0), x], count(n), lambda b, p: [b.add(p[0], scalar(b, 1)), b.tanh(dense(b, p[1], w))])[1:]


def swap(b: Builder, a: Sequence[Value]) -> Sequence[Value]:
    x, y, n = a

    def body(b: Builder, p: Sequence[Value]) -> Sequence[Value]:
        return [b.add(p[0], scalar(b, 1)), p[2], b.add(p[1], p[1]), p[3]]

    out = loop(b, [scalar(b, 0), x, y, x], count(n), body)
    return [*out[1:], b.multiply(out[1], out[2]), out[0]]


def recurrent(b: Builder, a: Sequence[Value]) -> Sequence[Value]:
    """A plain recurrent layer over the rows of a stack."""
    xs, w, u, h = a
    t = b.dim(xs.dims[0], DType.I32)
    ys = b.zeros(DType.F32, (xs.dims[0], *h.dims))

    def body(b: Builder, p: Sequence[Value]) -> Sequence[Value]:
        i, ys, h = p
        zero = scalar(b, 0)
        row = b.reshape(b.dynamic_slice(xs, [i, zero, zero], (1, *xs.dims[1:])), xs.dims[1:])
        h = b.tanh(b.add(dense(b, row, w), dense(b, h, u)))
        ys = b.dynamic_update_slice(ys, b.reshape(h, (1, *h.dims)), [i, zero, zero])
        return [b.add(i, scalar(b, 1)), ys, h]

    return loop(b, [scalar(b, 0), ys, h], count(t), body)


def data_dependent(b: Builder, a: Sequence[Value]) -> Sequence[Value]:
    """Halve until the sum is small; the sum is made by a kernel."""
    x, limit = a

    def total(b: Builder, v: Value) -> Value:
        return b.reduce(v, [0], "add")

    def cond(b: Builder, p: Sequence[Value]) -> Sequence[Value]:
        return [b.compare(total(b, p[1]), limit, "GT")]

    def body(b: Builder, p: Sequence[Value]) -> Sequence[Value]:
        return [b.add(p[0], scalar(b, 1)), b.multiply(p[1], b.broadcast_in_dim(b.constant(np.float32(0.5)), p[1].dims, ()))]

    return loop(b, [scalar(b, 0), x], cond, body)


def nested(b: Builder, a: Sequence[Value]) -> Sequence[Value]:
    x, n = a

    def inner(b: Builder, p: Sequence[Value]) -> Sequence[Value]:
        return [b.add(p[0], scalar(b, 1)), b.add(p[1], b.sine(x))]

    def outer(b: Builder, p: Sequence[Value]) -> Sequence[Value]:
        out = loop(b, [scalar(b, 0), p[1]], count(p[0]), inner)
        return [b.add(p[0], scalar(b, 1)), b.multiply(out[1], x)]

    return loop(b, [scalar(b, 0), x], count(n), outer)


def branch(b: Builder, a: Sequence[Value]) -> Sequence[Value]:
    x, w, which = a

    def block(f: Callable[[Builder], Sequence[Value]]) -> Block:
        return b.region([], f)

    out = b.case(
        which,
        [
            block(lambda b: [dense(b, x, w), scalar(b, 5)]),
            block(lambda b: [x, b.add(which, scalar(b, 1))]),
            block(lambda b: [b.zeros(DType.F32, x.dims), which]),
        ],
    )
    return [b.add(out[0], x), out[1]]


def branch_in_loop(b: Builder, a: Sequence[Value]) -> Sequence[Value]:
    x, n = a

    def body(b: Builder, p: Sequence[Value]) -> Sequence[Value]:
        odd = b.and_(p[0], scalar(b, 1))
        even = b.region([], lambda b: [b.add(p[1], x)])
        (y,) = b.case(odd, [even, b.region([], lambda b: [b.multiply(p[1], p[1])])])
        return [b.add(p[0], scalar(b, 1)), y]

    return loop(b, [scalar(b, 0), x], count(n), body)


def read_and_write(b: Builder, a: Sequence[Value]) -> Sequence[Value]:
    """A stack that is read and written in the same iteration: not in place."""
    (xs,) = a
    t = b.dim(xs.dims[0], DType.I32)

    def body(b: Builder, p: Sequence[Value]) -> Sequence[Value]:
        i, xs = p
        before = b.maximum(b.subtract(i, scalar(b, 1)), scalar(b, 0))
        row = b.dynamic_slice(xs, [before, scalar(b, 0)], (1, xs.dims[1]))
        here = b.dynamic_slice(xs, [i, scalar(b, 0)], (1, xs.dims[1]))
        return [b.add(i, scalar(b, 1)), b.dynamic_update_slice(xs, b.add(row, here), [i, scalar(b, 0)])]

    return loop(b, [scalar(b, 0), xs], count(t), body)


def x(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def n(value: int) -> np.ndarray:
    return np.int32(value)


CASES = [
    ("power", power, [f32("b", 7), f32(7, 7), I32], ["device", "const", "host"],
     [[x(3, 7), x(7, 7, seed=1), n(k)] for k in (0, 1, 2, 5)] + [[x(0, 7), x(7, 7, seed=1), n(2)]]),
    ("swap", swap, [f32("b"), f32("b"), I32], (), [[x(5), x(5, seed=1), n(k)] for k in (0, 1, 2, 3)] + [[x(0), x(0), n(3)]]),
    ("recurrent", recurrent, [f32("t", "b", 8), f32(8, 16), f32(16, 16), f32("b", 16)], ["device", "const", "const", "device"],
     [[x(t, b, 8), x(8, 16, seed=1), x(16, 16, seed=2) / 4, x(b, 16, seed=3)] for t, b in ((0, 2), (1, 1), (5, 3), (4, 0), (7, 33))]),
    ("data_dependent", data_dependent, [f32("n"), f32()], (), [[abs(x(m)), np.float32(0.01)] for m in (0, 1, 7, 100)]),
    ("nested", nested, [f32("n"), I32], (), [[x(m), n(k)] for m, k in ((5, 0), (5, 1), (5, 4), (0, 3), (1, 2))]),
    ("branch", branch, [f32("b", 7), f32(7, 7), I32], ["device", "const", "host"],
     [[x(3, 7), x(7, 7, seed=1), n(k)] for k in (0, 1, 2, 3, -1)]),
    ("branch_in_loop", branch_in_loop, [f32("n"), I32], (), [[x(m), n(k)] for m, k in ((5, 0), (5, 3), (5, 4), (0, 3))]),
    ("read_and_write", read_and_write, [f32("t", "n")], (), [[x(*s)] for s in ((1, 3), (5, 7), (4, 1), (3, 0))]),
]  # fmt: skip


def build(build_body: Body, types: Sequence[TensorType], kinds: Sequence[str]) -> Function:
    fn = Function("main")
    b = Builder(fn.body, fn.env)
    args = [fn.add_arg(t, ArgInfo(f"a{i}", kinds[i] if kinds else "device")) for i, t in enumerate(types)]
    results = build_body(b, args)
    b.return_(results)
    fn.result_names = [f"r{i}" for i in range(len(results))]
    verify(fn)
    return fn


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "make", "types", "kinds", "inputs"), CASES, ids=[c[0] for c in CASES])
def test_against_interpreter(name, make, types, kinds, inputs, target):
    fn = build(make, types, kinds)
    module = Module()
    module.add(clone_function(fn))
    compiled = compile_module(module, [target])
    executable = load(compiled.executable, target)
    try:
        for arrays in inputs:
            expected = evaluate(fn, arrays)
            for threads in (1, 2):
                answer = run_executable(executable, arrays, max_threads=threads)
                assert not isinstance(answer, Failure), answer
                for i, (a, e) in enumerate(zip(answer, expected, strict=True)):
                    problem = difference(np.asarray(e), a, Tolerance(ulps=64, relative_floor=1.0))
                    assert not problem, f"result {i} of {[v.shape for v in arrays]}: {problem}"
    finally:
        executable.close()


def test_weights_in_a_loop_are_packed():
    fn = build(recurrent, CASES[2][2], CASES[2][3])
    module = Module()
    module.add(fn)
    assert compile_module(module, ["x86-64-v3"]).prepared >= 2


def test_a_check_in_a_loop_fails_the_run():
    def make(b: Builder, a: Sequence[Value]) -> Sequence[Value]:
        def body(b: Builder, p: Sequence[Value]) -> Sequence[Value]:
            token = b.create_token()
            b.check(b.compare(p[0], scalar(b, 3), "NE"), token, code=3, message="three", node="here")
            return [b.add(p[0], scalar(b, 1)), b.add(p[1], p[1])]

        return loop(b, [scalar(b, 0), a[0]], count(a[1]), body)[1:]

    fn = build(make, [f32("n"), I32], ())
    module = Module()
    module.add(fn)
    executable = load(compile_module(module, ["x86-64-v3"]).executable, "x86-64-v3")
    try:
        good = run_executable(executable, [x(5), n(3)])
        assert not isinstance(good, Failure)
        np.testing.assert_array_equal(good[0], x(5) * 8)
        bad = run_executable(executable, [x(5), n(4)])
        assert isinstance(bad, Failure)
        assert bad.code == 3
        assert "three" in bad.message
    finally:
        executable.close()


def test_changing_dims_are_refused():
    def make(b: Builder, a: Sequence[Value]) -> Sequence[Value]:
        types = [I32, f32("m")]
        cond = b.region(types, lambda b, i, v: [b.compare(i, scalar(b, 3), "LT")])
        body = b.region(types, lambda b, i, v: [b.add(i, scalar(b, 1)), b.concatenate([v, v], 0)])
        return b.while_([scalar(b, 0), a[0]], cond, body, [I32, f32("k")])

    fn = build(make, [f32("n")], ())
    module = Module()
    module.add(fn)
    with pytest.raises(ValueError, match="changes the dims"):
        compile_module(module, ["x86-64-v3"])

