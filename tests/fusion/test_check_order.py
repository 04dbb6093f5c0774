"""Checks come before what they guard, whatever other checks wait for."""

from __future__ import annotations

from disc_tf.fusion.plan import make_plan
from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType, TensorType

KERNELS = ("loop", "rows", "reduce", "gemm", "library")


def test_a_check_of_dims_does_not_wait_for_a_check_of_data() -> None:
    fn = Function("main")
    b = Builder(fn.body, fn.env)
    x = fn.add_arg(TensorType.of(DType.F32, [Dim.of("n")]), ArgInfo("x"))
    token = b.create("disc.create_token").result
    positive = b.reduce(b.compare(x, b.broadcast_in_dim(b.constant(0, DType.F32), x.dims, []), "GT"), [0], "and")
    token = b.create("disc.check", [positive, token], {"code": 3, "message": "data", "node": ""}).result
    enough = b.compare(b.dim("n", DType.I64), b.constant(3, DType.I64), "GE")
    token = b.create("disc.check", [enough, token], {"code": 3, "message": "dims", "node": ""}).result
    b.return_([b.exponential(b.slice(x, [0], [3])), token])
    order = [(f.kind, op.attrs.get("message")) for f in make_plan(fn) for op in f.ops]
    kinds = [kind for kind, _ in order]
    assert order.index(("host", "dims")) < min(i for i, k in enumerate(kinds) if k in KERNELS) < order.index(("host", "data"))


def test_a_symbol_is_bound_after_the_checks_before_it() -> None:
    fn = Function("main")
    b = Builder(fn.body, fn.env)
    x = fn.add_arg(TensorType.of(DType.F32, [Dim.of("n")]), ArgInfo("x"))
    size = fn.add_arg(TensorType.of(DType.I64, []), ArgInfo("size"))
    token = b.create("disc.create_token").result
    positive = b.reduce(b.compare(x, b.broadcast_in_dim(b.constant(0, DType.F32), x.dims, []), "GT"), [0], "and")
    b.create("disc.check", [positive, token], {"code": 3, "message": "data", "node": ""})
    b.create("disc.bind_dim", [size], {"symbol": "m"})
    b.return_([b.exponential(b.slice(x, [0], [Dim.of("m")]))])
    names = [op.attrs.get("message") or op.name for f in make_plan(fn) for op in f.ops]
    assert names.index("data") < names.index("disc.bind_dim")
