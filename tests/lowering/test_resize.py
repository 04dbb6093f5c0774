"""Resize ops and their gradients: TF against the rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.testing.tf_case import Tolerance, array, check_op

NEAR = Tolerance(ulps=8, relative_floor=1.0)
OPS = ("ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic", "ResizeArea")
CENTERS = ("", "align_corners", "half_pixel_centers")
#: (image, size): up, down, both, to and from 1, the same, empty
CASES = [
    ((2, 5, 7, 3), (11, 3)), ((1, 6, 4, 1), (6, 8)), ((1, 1, 1, 2), (4, 3)), ((2, 9, 8, 17), (1, 1)), ((1, 4, 5, 3), (4, 5)),
    ((0, 4, 5, 3), (2, 9)), ((1, 13, 3, 4), (5, 29)),
]  # fmt: skip


def flags(op: str, centers: str) -> dict[str, bool]:
    if centers == "half_pixel_centers" and op.startswith("ResizeArea"):
        pytest.skip("ResizeArea has no half_pixel_centers")
    return {centers: True} if centers else {}


def resize(op: str, images: np.ndarray, size: tuple[int, ...], const: list[str], **more: Any) -> None:
    check_op(op, images=images, size=np.array(size, np.int32), const=const, tol=NEAR, known_dims=["size"], **more)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("centers", CENTERS)
def test_resize(op, centers) -> None:
    more = flags(op, centers)
    for shape, size in CASES:
        resize(op, array(shape, "f32"), size, [], **more)
    resize(op, array((2, 5, 7, 3), "f32"), (10, 4), ["size"], **more)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [d for d in DType if (d.is_float or d.is_int) and d not in (DType.U32, DType.U64)], ids=str)
def test_dtypes(op, dtype) -> None:
    resize(op, array((2, 5, 4, 3), dtype, 1, -100, 100), (7, 3), [])


@pytest.mark.parametrize("op", OPS)
def test_misfits(op) -> None:
    x = array((1, 3, 4, 2), "f32")
    for size in ((0, 2), (2, -1), (2, 2, 2)):
        resize(op, x, size, [])
    for image in (x[:, :0], x[..., :0], x[:0, :, :0], x[0]):
        resize(op, image, (2, 3), [])


@pytest.mark.parametrize("op", ["ResizeBilinear", "ResizeBicubic"])
def test_specials(op) -> None:
    x = array((1, 4, 5, 2), "f32")
    x[0, 1, 2, 0], x[0, 3, 4, 1], x[0, 0, 0, 1] = np.inf, np.nan, -np.inf
    for size in ((4, 5), (4, 7), (2, 3)):
        resize(op, x, size, [])


def test_every_small_size() -> None:
    """Nearest neighbours hang on the last bit of a position."""
    for centers in CENTERS:
        more = {centers: True} if centers else {}
        for height, width in ((1, 9), (2, 11), (3, 10), (7, 5), (8, 6)):
            x = np.arange(height * width, dtype=np.float32).reshape(1, height, width, 1)
            for size in ((1, 2), (6, 5), (7, 10), (13, 8)):
                check_op(
                    "ResizeNearestNeighbor", images=x, size=np.array(size, np.int32), const=[], known_dims=["size"],
                    modes=["dynamic"], **more,
                )  # fmt: skip


@pytest.mark.parametrize("centers", CENTERS)
def test_bilinear_grad(centers) -> None:
    for shape, size in CASES:
        grads = array((shape[0], *size, shape[3]), "f32")
        check_op("ResizeBilinearGrad", grads=grads, original_image=array(shape, "f32"), tol=NEAR, **flags("", centers))


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_float], ids=str)
def test_bilinear_grad_dtypes(dtype) -> None:
    grads = array((2, 7, 3, 2), "f32")
    check_op("ResizeBilinearGrad", grads=grads, original_image=array((2, 5, 4, 2), dtype), tol=NEAR)


@pytest.mark.parametrize("centers", CENTERS)
def test_nearest_grad(centers) -> None:
    for shape, size in CASES:
        grads = array((shape[0], *size, shape[3]), "f32")
        check_op(
            "ResizeNearestNeighborGrad", grads=grads, size=np.array(shape[1:3], np.int32), const=[], known_dims=["size"], tol=NEAR,
            **flags("", centers),
        )  # fmt: skip


@pytest.mark.parametrize("shape", [(2, 0, 3, 2), (2, 3, 0, 2), (0, 3, 2, 2), (2, 3, 2, 0), (1, 0, 0, 1)], ids=str)
@pytest.mark.parametrize("centers", CENTERS)
def test_nearest_grad_of_nothing(shape, centers) -> None:
    for const in ([], ["size"]):
        given = {"grads": array(shape, "f32"), "size": np.array([4, 5], np.int32)}
        check_op("ResizeNearestNeighborGrad", **given, const=const, known_dims=["size"], tol=NEAR, **flags("", centers))


@pytest.mark.parametrize("dtype", [*(d for d in DType if d.is_float), DType.I8, DType.U8, DType.I32], ids=str)
def test_nearest_grad_dtypes(dtype) -> None:
    check_op("ResizeNearestNeighborGrad", grads=array((2, 7, 3, 2), dtype), size=np.array([4, 5], np.int32), const=["size"], tol=NEAR)
