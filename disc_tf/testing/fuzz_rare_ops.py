"""Generators of rare image ops, quantisation, sparse tensors and lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from disc_tf.testing.fuzz_data_ops import finite
from disc_tf.testing.fuzz_generator import Generator, generator
from disc_tf.testing.fuzz_image_ops import image, weights
from disc_tf.testing.fuzz_program import STRUCTURED, Ref
from disc_tf.testing.tf_case import tensorflow

# ---- images ---------------------------------------------------------------------------------------------------------------


def _picture(g: Generator, channels: int | None = None) -> Ref | None:
    """Finite f32 pixels; with ``channels`` in [0, 1)."""
    if channels:
        x = g.placeholder("float32", ("b", "s", "h", channels), special=False)
        return g.add("Sigmoid", {"x": x}, ulps=8)[0]
    x = image(g, 4, "float32")
    return x if x is not None and str(g.value(x).dtype) == "float32" and finite(g, x) else None


@generator()
def colours(g: Generator) -> None:
    x = _picture(g, 3)
    if x is None:
        return
    # where two channels are nearly equal, the hue is anything: only what was given exactly is compared closely
    which = int(g.rng.integers(5))
    amount = g.const(float(g.rng.uniform(0.2, 1.5)), np.float32)
    loose: dict[str, Any] = {"ulps": 4096, "floor": 4.0}
    if which == 0:
        g.add("AdjustContrastv2", {"images": x, "contrast_factor": amount}, **loose)
    elif which == 1:
        g.add("AdjustHue", {"images": x, "delta": g.const(0.2, np.float32)}, **loose)
    elif which == 2:
        g.add("AdjustSaturation", {"images": x, "scale": amount}, **loose)
    else:
        hsv = g.add("RGBToHSV", {"images": x}, ulps=65536, floor=4.0)
        if hsv and which == 3:
            g.add("HSVToRGB", {"images": hsv[0]}, **loose)


@generator()
def patches(g: Generator) -> None:
    x = _picture(g)
    if x is None:
        return
    which = int(g.rng.integers(4))
    window, steps, padding = [1, 2, 3, 1], [1, 1, 2, 1], g.choice(("SAME", "VALID"))
    if which == 0:
        g.add("ExtractImagePatches", {"images": x}, ksizes=window, strides=steps, rates=[1, 1, 1, 1], padding=padding)
    elif which == 1:
        volume = image(g, 5, "float32")
        if volume is not None:
            g.add("ExtractVolumePatches", {"input": volume}, ksizes=[1, 2, 1, 2, 1], strides=[1, 1, 2, 1, 1], padding=padding)
    elif which == 2:
        w = weights(g, x, 2, 2, g.shape(x)[-1])
        g.add("Dilation2D", {"input": x, "filter": w}, strides=steps, rates=[1, 1, 1, 1], padding=padding, ulps=2)
    else:
        more = {"depth_radius": int(g.choice((1, 2, 5))), "bias": 1.0, "alpha": 0.5, "beta": 0.75}
        y = g.add("LRN", {"input": x}, **more, ulps=256, floor=1.0)
        if y and g.flip():
            g.add("LRNGrad", {"input_grads": x, "input_image": x, "output_image": y[0]}, **more, ulps=1024, floor=4.0)


@generator()
def warps(g: Generator) -> None:
    x = _picture(g)
    if x is None or not g.shape(x)[0]:
        return
    size = g.const(g.rng.integers(1, 6, 2), np.int32)
    if g.flip():
        n = int(g.rng.integers(1, 4))
        corners = g.rng.uniform(0, 1, (n, 4)).astype(np.float32)
        which = g.const(g.rng.integers(0, g.shape(x)[0], n), np.int32)
        operands = {"image": x, "boxes": g.const(corners), "box_ind": which, "crop_size": size}
        g.add("CropAndResize", operands, method="bilinear", extrapolation_value=0.5, ulps=4096, floor=4.0)
        return
    shift = np.array([[1, 0, g.rng.integers(-1, 2), 0, 1, g.rng.integers(-1, 2), 0, 0]], np.float32)
    operands = {"images": x, "transforms": g.const(shift), "output_shape": size}
    if g.flip():
        g.add("ImageProjectiveTransformV2", operands, interpolation=g.choice(("BILINEAR", "NEAREST")), ulps=64, floor=4.0)
    else:
        g.add("ImageProjectiveTransformV3", {**operands, "fill_value": g.const(0.5, np.float32)}, interpolation="BILINEAR",
              fill_mode=g.choice(("CONSTANT", "NEAREST")), ulps=64, floor=4.0)  # fmt: skip


@generator()
def old_blocks(g: Generator) -> None:
    x = _picture(g)
    if x is None:
        return
    if g.flip():
        room = g.const([[0, g.shape(x)[1] % 2], [0, g.shape(x)[2] % 2]], np.int32)
        g.add("SpaceToBatch", {"input": x, "paddings": room}, block_size=2)
    else:
        four = g.add("Tile", {"input": x, "multiples": g.const([4, 1, 1, 1], np.int32)})
        if four:
            g.add("BatchToSpace", {"input": four[0], "crops": g.const([[0, 1], [1, 0]], np.int32)}, block_size=2)


@generator()
def combined_suppression(g: Generator) -> None:
    n = int(g.rng.integers(1, 5))
    corners = g.rng.uniform(0, 0.6, (1, n, 1, 2))
    boxes = g.const(np.concatenate([corners, corners + g.rng.uniform(0.1, 0.4, (1, n, 1, 2))], -1), np.float32)
    scores = g.placeholder("float32", (1, n, 2), special=False)
    ints = {"max_output_size_per_class": 2, "max_total_size": 3}
    operands = {"boxes": boxes, "scores": scores, **{k: g.const(v, np.int32) for k, v in ints.items()},
                "iou_threshold": g.const(0.4, np.float32), "score_threshold": g.const(-1.0, np.float32)}  # fmt: skip
    g.add("CombinedNonMaxSuppression", operands, pad_per_class=g.flip(), clip_boxes=g.flip())


# ---- quantisation -----------------------------------------------------------------------------------------------------------


@generator()
def fake_quantisation(g: Generator) -> None:
    x = g.pick("f", min_rank=1, exact=True)
    if x is None or str(g.value(x).dtype) != "float32" or not finite(g, x):
        return
    how: dict[str, Any] = {"num_bits": int(g.choice((4, 8, 16))), "narrow_range": g.flip()}
    low, high = g.const(-1.3, np.float32), g.const(1.7, np.float32)
    gradient = g.flip(0.4)
    which = int(g.rng.integers(3))
    if which == 0:
        if gradient:
            g.add("FakeQuantWithMinMaxArgsGradient", {"gradients": x, "inputs": x}, min=-1.3, max=1.7, **how)
        else:
            g.add("FakeQuantWithMinMaxArgs", {"inputs": x}, min=-1.3, max=1.7, **how, ulps=4, floor=2.0)
        return
    name = "FakeQuantWithMinMaxVars"
    if which == 2:
        d = g.shape(x)[-1]
        low, high = g.const(np.full(d, -1.3, np.float32)), g.const(np.full(d, 1.7, np.float32))
        name += "PerChannel"
    if gradient:
        # sums of what lies outside of the range, which the same op on absolute values says nothing of
        size = max(float(np.abs(v.astype(np.float64)).sum()) for v in g.values(x))
        g.add(f"{name}Gradient", {"gradients": x, "inputs": x, "min": low, "max": high}, **how, ulps=8, floor=size)
    else:
        g.add(name, {"inputs": x, "min": low, "max": high}, **how, ulps=4, floor=2.0)


@generator()
def quantise_and_back(g: Generator) -> None:
    x = g.pick("f", min_rank=1, exact=True)
    if x is None or str(g.value(x).dtype) != "float32" or not finite(g, x):
        return
    low, high = g.const(-2.0, np.float32), g.const(2.0, np.float32)
    which = int(g.rng.integers(4))
    if which == 0:
        g.add("QuantizeAndDequantizeV2", {"input": x, "input_min": low, "input_max": high}, range_given=True, ulps=4, floor=2.0)
    elif which == 1:
        operands = {"input": x, "input_min": low, "input_max": high, "num_bits": g.const(8, np.int32)}
        g.add("QuantizeAndDequantizeV3", operands, range_given=True, ulps=4, floor=2.0)
    elif which == 2:
        y = g.add("QuantizeAndDequantizeV4", {"input": x, "input_min": low, "input_max": high}, range_given=True, ulps=4, floor=2.0)
        if y:
            g.add("QuantizeAndDequantizeV4Grad", {"gradients": x, "input": x, "input_min": low, "input_max": high}, ulps=4, sums=True)
    else:
        g.add("quantize", {"x": x}, dtype=g.choice(("qint8", "quint8")), mode=g.choice(("MIN_COMBINED", "SCALED")), ulps=8, floor=4.0)


def _quantize(given: dict[str, Any], attrs: dict[str, Any]) -> Any:
    """Through a quantised type and back: such tensors have no array."""
    tf = tensorflow()
    q = tf.raw_ops.QuantizeV2(input=given["x"], min_range=-2.0, max_range=2.0, T=getattr(tf, attrs["dtype"]), mode=attrs["mode"])
    return [tf.raw_ops.Dequantize(input=q.output, min_range=q.output_min, max_range=q.output_max, mode=attrs["mode"]), q.output_max]


STRUCTURED["quantize"] = _quantize

# ---- sparse -----------------------------------------------------------------------------------------------------------------


@generator()
def more_sparse(g: Generator) -> None:
    x = g.pick("f", min_rank=1, max_rank=1)
    if x is None or not finite(g, x) or str(g.value(x).dtype) not in ("float32", "float64") or not 0 < g.shape(x)[0] < 12:
        return
    n, t = g.shape(x)[0], g.value(x).dtype
    flat = np.sort(g.rng.permutation(24)[:n])
    at, shape = g.const(np.stack([flat // 4, flat % 4], -1), np.int64), g.const([6, 4], np.int64)
    which = int(g.rng.integers(5))
    if which == 0:
        g.add("SparseConcat", {"indices": [at, at], "values": [x, x], "shapes": [shape, shape]}, concat_dim=int(g.rng.integers(2)))
    elif which == 1:
        op = g.choice(("SparseDenseCwiseAdd", "SparseDenseCwiseMul", "SparseDenseCwiseDiv"))
        dense = g.const(g.rng.uniform(1, 2, (6, 4)).astype(t))
        g.add(op, {"sp_indices": at, "sp_values": x, "sp_shape": shape, "dense": dense}, ulps=2)
    elif which == 2:
        start, size = g.const([1, 0], np.int64), g.const([3, 3], np.int64)
        g.add("SparseSlice", {"indices": at, "values": x, "shape": shape, "start": start, "size": size})
    elif which == 3:
        g.add("SparseSoftmax", {"sp_indices": at, "sp_values": x, "sp_shape": shape}, ulps=64, floor=1.0)
    else:
        operands = {"split_dim": g.const(int(g.rng.integers(2)), np.int64), "indices": at, "values": x, "shape": shape}
        g.add("SparseSplit", operands, num_split=2)


# ---- lists ------------------------------------------------------------------------------------------------------------------


def _list_forms(given: dict[str, Any], attrs: dict[str, Any]) -> Any:
    tf = tensorflow()
    raw, x = tf.raw_ops, given["x"]
    n, shape, form = attrs["rows"], tf.shape(x)[1:], attrs["form"]
    if form == "scatter":
        handle = raw.TensorListScatterV2(tensor=x, indices=list(range(n)), element_shape=shape, num_elements=-1)
    elif form == "resize":
        handle = raw.TensorListResize(input_handle=raw.TensorListFromTensor(tensor=x, element_shape=shape), size=n - 1)
    elif form == "empty":
        handle = raw.EmptyTensorList(element_shape=shape, max_num_elements=-1, element_dtype=x.dtype)
        for i in range(n):
            handle = raw.TensorListPushBack(input_handle=handle, tensor=x[i])
    elif form == "into":
        handle = raw.TensorListFromTensor(tensor=x, element_shape=shape)
        handle = raw.TensorListScatterIntoExistingList(input_handle=handle, tensor=x[:1], indices=[n - 1])
    else:
        two = [raw.TensorListFromTensor(tensor=x, element_shape=shape) for _ in range(2)]
        handle = raw.TensorListConcatLists(input_a=two[0], input_b=two[1], element_dtype=x.dtype)
    return [raw.TensorListStack(input_handle=handle, element_shape=shape, element_dtype=x.dtype)]


STRUCTURED["list_form"] = _list_forms


@generator()
def list_forms(g: Generator) -> None:
    n = int(g.rng.integers(1, 5))
    x = g.placeholder("float32", (n, "b", "s"), special=False)
    g.add("list_form", {"x": x}, rows=n, form=str(g.choice(("scatter", "resize", "empty", "into", "concat"))))
