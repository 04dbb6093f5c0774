"""Crops, projective transforms, colours, patches, LRN and dilation: TF against the rules."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.lowering.registry import NUMBERS
from disc_tf.testing.tf_case import Tolerance, array, check_op

NEAR = Tolerance(ulps=8, relative_floor=1.0)
SUM = Tolerance(ulps=32, relative_floor=1.0)
#: TF rounds every step of its gradient of LRN to the type
LOSSY = Tolerance(ulps=64, relative_floor=1.0)
FLOATS = [d for d in DType if d.is_float]

# ---- CropAndResize -----------------------------------------------------------------------------------------------------

BOXES = np.array(
    [[0, 0, 1, 1], [0.1, 0.2, 0.7, 0.9], [0.8, 0.9, 0.1, 0.0], [-0.5, 0, 0.5, 1.5], [0.5, 0.5, 0.5, 0.5], [2, 2, 3, 3]], np.float32
)  # fmt: skip
PICKS = np.array([0, 1, 1, 0, 1, 0], np.int32)


def crop(image: np.ndarray, boxes: np.ndarray, picks: np.ndarray, size: tuple[int, ...], **more) -> None:
    check_op("CropAndResize", image=image, boxes=boxes, box_ind=picks, crop_size=np.array(size, np.int32),
             known_dims=["crop_size"], tol=NEAR, **more)  # fmt: skip


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
def test_crop(method) -> None:
    more = {"method": method, "extrapolation_value": -7.0}
    for size in ((3, 4), (1, 5), (1, 1), (9, 2)):
        crop(array((2, 5, 7, 3), "f32"), BOXES, PICKS, size, const=[], **more)
    crop(array((2, 1, 1, 17), "f32"), BOXES, PICKS, (2, 3), const=[], **more)
    crop(array((2, 5, 7, 3), "f32"), BOXES[:0], PICKS[:0], (2, 3), const=[], **more)


@pytest.mark.parametrize("dtype", sorted(NUMBERS - {DType.BF16, DType.U32, DType.U64}, key=str), ids=str)
def test_crop_dtypes(dtype) -> None:
    crop(array((2, 4, 5, 2), dtype, 1, -100, 100), BOXES, PICKS, (3, 3), const=["crop_size"])


def test_crop_misfits() -> None:
    image = array((2, 4, 5, 2), "f32")
    crop(image, BOXES, PICKS + 1, (2, 2), const=[])
    crop(image, BOXES, PICKS - 1, (2, 2), const=[])
    crop(image, np.where(BOXES == 2, np.nan, BOXES), PICKS, (2, 2), const=[])
    crop(image, BOXES, PICKS, (0, 2), const=[])
    crop(image[:, :0], BOXES, PICKS, (2, 2), const=[])
    crop(image, BOXES[:5], PICKS, (2, 2), const=[])
    crop(image[:0], BOXES, PICKS, (2, 2), const=[])


#: the gradients do not look for what is not finite; TF's kernels read foreign memory then
GRAD_PICKS = np.array([0, 1, 1, 0, 1, 0], np.int32)


def crop_grads(image: np.ndarray, boxes: np.ndarray, picks: np.ndarray, grads: np.ndarray, *, size: tuple[int, ...] = (), **more) -> None:
    """Both gradients of one crop; ``image`` gives the dtype and, without ``size``, the shape."""
    extents = np.array(size or image.shape, np.int32)
    if image.dtype.kind == "f":
        for method in ("bilinear", "nearest"):
            check_op(
                "CropAndResizeGradImage", grads=grads, boxes=boxes, box_ind=picks, image_size=extents, T=image.dtype, method=method,
                known_dims=["image_size"], tol=SUM, **more,
            )  # fmt: skip
    if not size:
        more["const"] = [name for name in more.get("const", ()) if name != "image_size"]
        check_op("CropAndResizeGradBoxes", grads=grads, image=image, boxes=boxes, box_ind=picks, tol=LOSSY, **more)


def test_crop_grads() -> None:
    for rows, columns in ((3, 4), (1, 5), (1, 1), (9, 2), (17, 1)):
        crop_grads(array((2, 5, 7, 3), "f32"), BOXES, GRAD_PICKS, array((6, rows, columns, 3), "f32", 1), const=[])
    crop_grads(array((2, 1, 1, 17), "f32"), BOXES, GRAD_PICKS, array((6, 2, 3, 17), "f32", 1), const=[])
    crop_grads(array((2, 5, 7, 3), "f32"), BOXES[:0], GRAD_PICKS[:0], array((0, 2, 3, 3), "f32"), const=[])
    crop_grads(array((0, 5, 7, 3), "f32"), BOXES[:0], GRAD_PICKS[:0], array((0, 2, 3, 3), "f32"), const=[])
    crop_grads(array((2, 5, 7, 0), "f32"), BOXES, GRAD_PICKS, array((6, 2, 3, 0), "f32"), const=[])


@pytest.mark.parametrize("dtype", sorted(NUMBERS - {DType.BF16, DType.U32, DType.U64}, key=str), ids=str)
def test_crop_grads_dtypes(dtype) -> None:
    for const in (["image_size"], []):
        crop_grads(array((2, 4, 5, 2), dtype, 1, -100, 100), BOXES, GRAD_PICKS, array((6, 3, 3, 2), "f32", 1), const=const)


def test_crop_grads_specials() -> None:
    grads, image = array((6, 3, 4, 3), "f32", 1), array((2, 5, 7, 3), "f32")
    grads[0, 0, 0], grads[1, 2, 1], grads[5, 0, 0] = np.inf, np.nan, np.nan
    crop_grads(image, BOXES, GRAD_PICKS, grads, const=[])
    image[0, 2, 3], image[1, 4, 6] = np.inf, np.nan
    crop_grads(image, BOXES, GRAD_PICKS, array((6, 3, 4, 3), "f32", 1), const=[])


def test_crop_grads_misfits() -> None:
    image, grads = array((2, 4, 5, 2), "f32"), array((6, 2, 2, 2), "f32", 1)
    for picks in (GRAD_PICKS + 1, GRAD_PICKS - 1):
        crop_grads(image, BOXES, picks, grads, const=[])
    crop_grads(image, BOXES, GRAD_PICKS, grads[:, :0], const=[])
    crop_grads(image, BOXES, GRAD_PICKS, grads[:5], const=[])
    crop_grads(image, BOXES[:5], GRAD_PICKS, grads, const=[])
    crop_grads(image, BOXES[:, :3], GRAD_PICKS, grads, const=[])
    crop_grads(image, BOXES, GRAD_PICKS, grads[..., :1], const=[])
    crop_grads(image[:, :0], BOXES, GRAD_PICKS, grads, const=[])
    crop_grads(image[:0], BOXES, GRAD_PICKS, grads, const=[])
    for size in ((2, 4, 5), (2, -4, 5, 2), (-2, 4, 5, 2), (2, 4, 0, 2)):
        crop_grads(image, BOXES, GRAD_PICKS, grads, size=size, const=[])


# ---- ImageProjectiveTransform ------------------------------------------------------------------------------------------

TRANSFORMS = np.array(
    [[1, 0, 0.25, 0, 1, -0.5, 0, 0], [0.7, 0.4, -1.3, -0.3, 0.8, 2.2, 0, 0], [1.1, 0.1, -7, 0.2, 0.9, 9.5, 0.05, -0.02]], np.float32
)  # fmt: skip


def transform(image: np.ndarray, transforms: np.ndarray, size: tuple[int, int], **more) -> None:
    more.setdefault("const", ["output_shape"])
    check_op("ImageProjectiveTransformV3", images=image, transforms=transforms, output_shape=np.array(size, np.int32),
             fill_value=np.array(-3.5, np.float32), known_dims=["output_shape"], tol=NEAR, **more)  # fmt: skip


@pytest.mark.parametrize("mode", ["CONSTANT", "REFLECT", "WRAP", "NEAREST"])
@pytest.mark.parametrize("interpolation", ["NEAREST", "BILINEAR"])
def test_transform(mode, interpolation) -> None:
    more = {"fill_mode": mode, "interpolation": interpolation}
    transform(array((3, 5, 6, 2), "f32"), TRANSFORMS, (4, 7), const=[], **more)
    transform(array((3, 5, 6, 2), "f32"), TRANSFORMS[1:2], (6, 5), const=[], **more)
    transform(array((0, 5, 6, 2), "f32"), TRANSFORMS[:1], (2, 2), const=[], **more)


def test_transform_edges() -> None:
    transform(array((2, 0, 6, 2), "f32"), TRANSFORMS[:1], (2, 2), interpolation="BILINEAR")
    transform(array((2, 1, 1, 2), "f32"), TRANSFORMS[1:], (3, 2), interpolation="NEAREST", fill_mode="REFLECT")
    transform(array((2, 3, 3, 2), "f32"), TRANSFORMS, (3, 2), interpolation="NEAREST")
    transform(array((2, 3, 3, 2), "f32"), TRANSFORMS[:1], (0, 2), interpolation="NEAREST")
    transform(array((1, 3, 3, 1), "f32"), np.array([[1, 0, 0, 0, 1, 0, -1, 0]], np.float32), (2, 3), interpolation="NEAREST")
    check_op(
        "ImageProjectiveTransformV2", images=array((3, 5, 6, 2), "f32"), transforms=TRANSFORMS, interpolation="BILINEAR",
        output_shape=np.array([4, 4], np.int32), const=["output_shape"], tol=NEAR,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [*FLOATS, DType.U8, DType.I32, DType.I64], ids=str)
def test_transform_dtypes(dtype) -> None:
    if dtype is DType.U8:
        # A negative fill value is not defined for unsigned integers.
        check_op(
            "ImageProjectiveTransformV2", images=array((3, 5, 6, 2), dtype, 0, 0, 200), transforms=TRANSFORMS, interpolation="BILINEAR",
            output_shape=np.array([4, 4], np.int32), const=["output_shape"],
        )  # fmt: skip
    else:
        transform(array((3, 5, 6, 2), dtype, 0, -50, 50), TRANSFORMS, (4, 4), interpolation="BILINEAR")


# ---- colours -----------------------------------------------------------------------------------------------------------


def colours(shape: tuple[int, ...], dtype: DType | str = "f32") -> np.ndarray:
    x = array(shape, dtype, 1, 0.0, 1.0)
    flat = x.reshape(-1, shape[-1])
    if len(flat) > 6:
        for i, row in enumerate(([0, 0, 0], [1, 0, 0], [0.5, 0.5, 0.5], [0, 1, 1], [0.25, 0.25, 0.75], [1, 0, 1])):
            flat[i] = row
    return flat.reshape(shape)


@pytest.mark.parametrize("op", ["RGBToHSV", "HSVToRGB"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_hsv(op, dtype) -> None:
    for shape in ((7, 5, 3), (2, 4, 3, 3), (3,), (0, 3)):
        check_op(op, images=colours(shape, dtype), tol=Tolerance(ulps=32, relative_floor=1.0))


def test_hsv_misfits() -> None:
    for op in ("RGBToHSV", "HSVToRGB"):
        check_op(op, images=array((2, 4), "f32"))
        check_op(op, images=array((), "f32"))


@pytest.mark.parametrize("amount", [0.0, 0.3, -0.45, 2.7, -1.0])
def test_hue_and_saturation(amount) -> None:
    for shape in ((5, 4, 3), (2, 3, 7, 3), (0, 2, 3)):
        x = colours(shape)
        check_op("AdjustHue", images=x, delta=np.array(amount, np.float32), tol=SUM)
        check_op("AdjustSaturation", images=x, scale=np.array(amount, np.float32), tol=SUM)


def test_contrast() -> None:
    for shape in ((5, 4, 3), (2, 3, 7, 1), (2, 0, 2, 3), (2, 2, 9, 1, 4)):
        check_op("AdjustContrastv2", images=array(shape, "f32"), contrast_factor=np.array(1.75, np.float32), tol=SUM)


def test_adjust_misfits() -> None:
    half = np.array(0.5, np.float32)
    for x in (array((4, 3), "f32"), array((2, 2, 4), "f32")):
        check_op("AdjustHue", images=x, delta=half)
        check_op("AdjustSaturation", images=x, scale=half)
    check_op("AdjustContrastv2", images=array((4, 3), "f32"), contrast_factor=half)


# ---- windows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_patches(padding) -> None:
    for window, strides, rates in (((2, 3), (1, 2), (1, 1)), ((3, 2), (2, 2), (2, 1)), ((1, 1), (3, 2), (1, 1))):
        for shape in ((2, 7, 8, 3), (0, 5, 4, 2), (1, 5, 3, 1)):
            check_op(
                "ExtractImagePatches", images=array(shape, "f32"), ksizes=[1, *window, 1], strides=[1, *strides, 1], rates=[1, *rates, 1],
                padding=padding,
            )  # fmt: skip
    check_op("ExtractVolumePatches", input=array((2, 4, 5, 4, 2), "f32"), ksizes=[1, 2, 3, 2, 1], strides=[1, 1, 2, 2, 1], padding=padding)


@pytest.mark.parametrize("dtype", sorted(NUMBERS, key=str), ids=str)
def test_patches_dtypes(dtype) -> None:
    x = array((2, 4, 5, 2), dtype)
    check_op("ExtractImagePatches", images=x, ksizes=[1, 2, 2, 1], strides=[1, 1, 1, 1], rates=[1, 1, 1, 1], padding="SAME")


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_dilation(padding) -> None:
    x = array((2, 6, 7, 3), "f32")
    x[0, 1, 1, 0], x[0, 2, 2, 1], x[1, 3, 3, 2] = np.nan, -np.inf, np.inf
    for window, strides, rates in (((2, 3), (1, 1), (1, 1)), ((3, 2), (2, 1), (1, 2)), ((1, 1), (3, 2), (1, 1))):
        for image in (x, x[:0]):
            check_op(
                "Dilation2D", input=image, filter=array((*window, 3), "f32", 2), strides=[1, *strides, 1], rates=[1, *rates, 1],
                padding=padding, known_dims=["filter"],
            )  # fmt: skip


@pytest.mark.parametrize("dtype", sorted(NUMBERS - {DType.U64}, key=str), ids=str)
def test_dilation_dtypes(dtype) -> None:
    x, w = array((1, 4, 5, 2), dtype, 1, -128, 100), array((2, 2, 2), dtype, 2, -100, 100)
    check_op("Dilation2D", input=x, filter=w, strides=[1] * 4, rates=[1] * 4, padding="SAME", const=["filter"])


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_lrn(dtype) -> None:
    for beta in (0.5, 1.0, 0.75) if dtype == "f32" else (0.75,):
        for shape in ((2, 3, 4, 7), (1, 2, 2, 1), (0, 2, 2, 5), (1, 1, 3, 40)):
            check_op("LRN", input=array(shape, dtype), depth_radius=2, bias=1.5, alpha=0.3, beta=beta, tol=SUM)
    check_op("LRN", input=array((2, 3, 16), dtype))


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_lrn_grad(dtype) -> None:
    for beta in (0.5, 0.75) if dtype == "f32" else (0.5,):
        for shape in ((2, 3, 4, 7), (1, 2, 2, 1), (0, 2, 2, 5), (1, 1, 3, 40)):
            x = array(shape, dtype, 1)
            more = {"depth_radius": 2, "bias": 1.5, "alpha": 0.3, "beta": beta}
            y = (x * 0.5).astype(x.dtype)
            check_op("LRNGrad", input_grads=array(shape, dtype, 2), input_image=x, output_image=y, tol=LOSSY, **more)
    x = array((1, 2, 3, 4), dtype)
    check_op("LRNGrad", input_grads=x[:, :1], input_image=x, output_image=x)


def test_lrn_specials() -> None:
    x = array((1, 1, 3, 6), "f32")
    x[0, 0, 0, 2], x[0, 0, 1, 3] = np.nan, np.inf
    check_op("LRN", input=x, depth_radius=1, tol=SUM)


@pytest.mark.parametrize("dtype", [DType.F32, DType.U8, DType.I64, DType.BF16], ids=str)
def test_old_blocks(dtype) -> None:
    for const in (True, False):
        check_op(
            "SpaceToBatch", input=array((2, 3, 5, 3), dtype), paddings=np.array([[1, 0], [0, 1]], np.int32), block_size=2,
            const=["paddings"] if const else [], known_dims=["paddings"],
        )  # fmt: skip
        check_op(
            "BatchToSpace", input=array((8, 2, 3, 3), dtype), crops=np.array([[1, 0], [0, 2]], np.int32), block_size=2,
            const=["crops"] if const else [], known_dims=["crops"],
        )  # fmt: skip


def test_old_blocks_misfits() -> None:
    x = array((2, 3, 5, 3), "f32")
    check_op("SpaceToBatch", input=x, paddings=np.array([[0, 0], [0, 1]], np.int32), block_size=2, const=["paddings"])
    check_op("BatchToSpace", input=x, crops=np.array([[0, 0], [0, 1]], np.int32), block_size=2, const=["crops"])
