"""MatMul, BatchMatMul, Einsum, BiasAdd against TensorFlow."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from disc_tf.testing.tf_case import Tolerance, array, check_op, tensorflow

FLOATS = ["f32", "f64", "f16", "bf16"]
DOT = Tolerance(16.0, relative_floor=1.0)
_FLAGS = list(itertools.product([False, True], repeat=2))


def _t(x: np.ndarray, flag: bool) -> np.ndarray:
    return np.ascontiguousarray(np.swapaxes(x, -1, -2)) if flag else x


@pytest.mark.parametrize("dtype", [*FLOATS, "i32", "i64"])
def test_matmul(dtype: str) -> None:
    for m, k, n in [(3, 5, 7), (1, 1, 1), (0, 4, 2), (2, 0, 3), (2, 3, 0), (1, 17, 5)]:
        a, b = array((m, k), dtype, 1), array((k, n), dtype, 2)
        for ta, tb in _FLAGS:
            check_op("MatMul", a=_t(a, ta), b=_t(b, tb), transpose_a=ta, transpose_b=tb, tol=DOT)


def test_matmul_misfits() -> None:
    check_op("MatMul", a=array((2, 1), "f32"), b=array((2, 3), "f32"))
    check_op("MatMul", a=array((2, 3), "f32"), b=array((2, 3), "f32"))
    check_op("MatMul", a=array((0, 3), "f32"), b=array((4, 0), "f32"))


BATCHES = [((), ()), ((2,), (2,)), ((1,), (3,)), ((3,), (1,)), ((), (2,)), ((2,), ()), ((2, 1), (1, 3)), ((0,), (1,)), ((2, 3), (3,)),
           ((1, 1), (2, 3)), ((4, 1, 2), (3, 2))]  # fmt: skip


@pytest.mark.parametrize("dtype", [*FLOATS, "i32"])
def test_batch_matmul_v2(dtype: str) -> None:
    for (bx, by), (ax, ay) in itertools.product(BATCHES, _FLAGS if dtype == "f32" else _FLAGS[::3]):
        x, y = array((*bx, 3, 4), dtype, 1), array((*by, 4, 5), dtype, 2)
        check_op("BatchMatMulV2", x=_t(x, ax), y=_t(y, ay), adj_x=ax, adj_y=ay, tol=DOT)


def test_batch_matmul_extents() -> None:
    for m, k, n in [(0, 3, 2), (1, 1, 1), (2, 0, 3), (13, 7, 1)]:
        check_op("BatchMatMulV2", x=array((2, m, k), "f32"), y=array((2, k, n), "f32"), tol=DOT)
        check_op("BatchMatMul", x=array((2, m, k), "f32"), y=array((2, k, n), "f32"), tol=DOT)


def test_batch_matmul_v3() -> None:
    tf = tensorflow()
    x, y = array((2, 3, 4), "i8", 1, -128, 127), array((2, 4, 5), "i8", 2, -128, 127)
    check_op("BatchMatMulV3", x=x, y=y, Tout=tf.int32)
    check_op("BatchMatMulV3", x=array((2, 3, 4), "f32"), y=array((4, 5), "f32"), Tout=tf.float32, tol=DOT)


def test_batch_matmul_misfits() -> None:
    for op in ("BatchMatMul", "BatchMatMulV2"):
        for x, y in [((2, 2, 3), (3, 3, 2)), ((1, 2, 3), (2, 3, 2)), ((3,), (2, 3, 2)), ((2, 3), (2, 3)), ((2, 2, 3), (3, 2))]:
            check_op(op, x=array(x, "f32"), y=array(y, "f32"), tol=DOT)


@pytest.mark.parametrize("dtype", [*FLOATS, "i32", "u8", "i64"])
def test_bias_add(dtype: str) -> None:
    for shape in ((2, 3), (4, 5, 3), (0, 3), (2, 2, 2, 2, 3)):
        check_op("BiasAdd", value=array(shape, dtype), bias=array(shape[-1:], dtype, 3), tol=Tolerance(0.0))
        check_op("BiasAdd", value=array(shape, dtype), bias=array(shape[1:2], dtype, 3), data_format="NCHW", tol=Tolerance(0.0))


def test_bias_add_misfits() -> None:
    for shape, bias in [((2, 3), (1,)), ((3,), (3,)), ((2, 3), (1, 3)), ((2, 3), (4,))]:
        check_op("BiasAdd", value=array(shape, "f32"), bias=array(bias, "f32"))


# ---- Einsum ------------------------------------------------------------------------------------------------------------

TWO = [
    ("ij,jk->ik", (3, 4), (4, 5)), ("ij,jk->ki", (3, 4), (4, 5)), ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("abc,cde->abde", (2, 3, 4), (4, 5, 6)), ("BTNH,BSNH->BNTS", (2, 3, 4, 5), (2, 6, 4, 5)), ("i,j->ij", (3,), (4,)),
    ("BNTS,BSNH->BTNH", (2, 4, 3, 6), (2, 6, 4, 5)), ("ij,ij->", (3, 4), (3, 4)), ("ij,ij->ij", (3, 4), (3, 4)), ("i,i->", (3,), (3,)),
    ("ij,kl->ik", (3, 4), (5, 6)), ("iij,jk->ik", (3, 3, 4), (4, 5)), ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 5)),
    ("...ij,...jk->...ik", (7, 1, 3, 4), (2, 4, 5)), ("...ij,jk->...ik", (2, 5, 3, 4), (4, 5)), ("ij,...jk->...ik", (3, 4), (2, 4, 5)),
    ("...ij,...jk->...ik", (3, 4), (4, 5)), ("i...,i...->...", (3, 4), (3, 1)), ("b...d,d...e->be...", (2, 7, 3), (3, 7, 4)),
    ("abcd,cdef->abef", (1, 2, 3, 4), (3, 4, 5, 2)), ("ij,jk->i", (3, 4), (4, 5)), (",ij->ji", (), (3, 4)), ("ij,j->i", (0, 4), (4,)),
    ("ij,jk->ik", (3, 0), (0, 5)), ("ijk,kji->", (2, 3, 4), (4, 3, 2)), ("ab,bc->bac", (2, 3), (3, 4)), ("aa,a->a", (3, 3), (3,)),
]  # fmt: skip
ONE = [("ij->ji", (3, 4)), ("ij->", (3, 4)), ("ij->j", (3, 4)), ("ii->i", (3, 3)), ("ii->", (4, 4)), ("iji->j", (3, 2, 3)),
       ("...ij->...ji", (2, 3, 4)), ("i->ii", (3,)), ("ij->iij", (2, 3)), ("iii->i", (3, 3, 3)), ("ab...->...ba", (2, 3, 4, 5)),
       ("...->...", (2, 3)), ("i...i->...", (3, 2, 3)), ("ii->i", (0, 0))]  # fmt: skip


@pytest.mark.parametrize(("equation", "a", "b"), TWO)
def test_einsum_two(equation: str, a: tuple, b: tuple) -> None:
    check_op("Einsum", inputs=[array(a, "f32", 1), array(b, "f32", 2)], equation=equation, tol=DOT)


@pytest.mark.parametrize(("equation", "a"), ONE)
def test_einsum_one(equation: str, a: tuple) -> None:
    check_op("Einsum", inputs=[array(a, "f32", 1)], equation=equation, tol=DOT)


@pytest.mark.parametrize("dtype", ["f64", "bf16", "i32", "i64"])
def test_einsum_dtypes(dtype: str) -> None:
    for equation, a, b in TWO[:6]:
        check_op("Einsum", inputs=[array(a, dtype, 1), array(b, dtype, 2)], equation=equation, modes=["dynamic"], tol=DOT)
    for equation, a in ONE[:5]:
        check_op("Einsum", inputs=[array(a, dtype, 1)], equation=equation, modes=["dynamic"], tol=DOT)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [("ij,jk->ik", [(3, 4), (5, 6)]), ("ij,jk->ik", [(3, 1), (4, 6)]), ("ii->i", [(3, 4)]), ("ij->i", [(3,)]),
     ("...i,...i->...", [(2, 3), (4, 3)])],
)  # fmt: skip
def test_einsum_misfits(equation: str, shapes: list[tuple]) -> None:
    check_op("Einsum", inputs=[array(s, "f32") for s in shapes], equation=equation)
