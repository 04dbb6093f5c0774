"""Generators of the long tail, so that every op that is compiled is met: special functions, old and rare forms, sparse tensors, lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from disc_tf.testing.fuzz_data_ops import finite, small_ints
from disc_tf.testing.fuzz_generator import Generator, generator
from disc_tf.testing.fuzz_image_ops import image, weights
from disc_tf.testing.fuzz_program import STRUCTURED, Ref
from disc_tf.testing.tf_case import tensorflow

# ---- special functions ------------------------------------------------------------------------------------------------------

_OF_POSITIVE = (
    "BesselI0", "BesselI0e", "BesselI1", "BesselI1e", "BesselJ0", "BesselJ1", "BesselK0", "BesselK0e", "BesselK1", "BesselK1e",
    "BesselY0", "BesselY1", "Dawsn", "Expint", "FresnelCos", "FresnelSin", "Spence",
)  # fmt: skip


def _positive(g: Generator, least: float) -> Ref | None:
    x = g.pick("f")
    if x is None or str(g.value(x).dtype) not in ("float32", "float64") or not finite(g, x):
        return None
    bounded = g.add("ClipByValue", {"t": g.add("Abs", {"x": x})[0], "clip_value_min": g.const(0, g.value(x).dtype),
                                    "clip_value_max": g.const(9, g.value(x).dtype)})  # fmt: skip
    found = g.add("AddV2", {"x": bounded[0], "y": g.const(least, g.value(x).dtype)}) if bounded else []
    return found[0] if found else None


@generator()
def special_of_positive(g: Generator) -> None:
    x = _positive(g, 0.5)
    if x is not None:
        g.add(g.choice(_OF_POSITIVE), {"x": x}, ulps=1024, floor=1.0)


@generator()
def special_of_several(g: Generator) -> None:
    a = _positive(g, 1.5)
    if a is None:
        return
    t = g.value(a).dtype
    which = int(g.rng.integers(4))
    if which == 0:
        g.add("Polygamma", {"a": g.const(float(g.rng.integers(1, 4)), t), "x": a}, ulps=4096, floor=1.0)
    elif which == 1:
        g.add("Zeta", {"x": a, "q": g.const(1.25, t)}, ulps=4096, floor=1.0)
    elif which == 2:
        unit = g.add("Sigmoid", {"x": a}, ulps=8)
        g.add("Betainc", {"a": a, "b": a, "x": unit[0]}, ulps=8192, floor=1.0)
    else:
        g.add(g.choice(("IgammaGradA", "Igamma")), {"a": a, "x": a}, ulps=8192, floor=1.0)


# ---- vectors, matrices ---------------------------------------------------------------------------------------------------------


@generator()
def vectors(g: Generator) -> None:
    t = g.choice(("float32", "float64", "int32"))
    x, y = (g.placeholder(t, ("b", "s", 3), special=False) for _ in range(2))
    g.add("Cross", {"a": x, "b": y}, ulps=4, sums=True)


@generator()
def log_sums(g: Generator) -> None:
    x = g.pick("f", min_rank=1, max_rank=3)
    if x is not None and finite(g, x):
        axis = g.const(g.axis(g.rank(x)), np.int32)
        g.add("CumulativeLogsumexp", {"x": x, "axis": axis}, exclusive=g.flip(), reverse=g.flip(), ulps=256, floor=2.0)


@generator()
def factored(g: Generator) -> None:
    t, n = g.choice(("float32", "float64")), int(g.rng.integers(1, 5))
    base = g.placeholder(t, ("b", n, n), special=False)
    a = g.add("AddV2", {"x": base, "y": g.const(np.eye(n) * 9, g.value(base).dtype)})[0]
    which = int(g.rng.integers(4))
    if which == 0:
        g.add("MatrixDeterminant", {"input": a}, ulps=4096, floor=100.0)
    elif which == 1:
        g.add("LogMatrixDeterminant", {"input": a}, ulps=4096, floor=4.0)
    elif which == 2:
        g.add("Lu", {"input": a}, output_idx_type=tensorflow().int32, ulps=4096, floor=16.0)
    else:
        diagonals = {k: g.placeholder(t, ("b", 1, n), special=False) for k in ("superdiag", "maindiag", "subdiag")}
        g.add("TridiagonalMatMul", {**diagonals, "rhs": base}, ulps=8, sums=True)


@generator()
def older_diagonals(g: Generator) -> None:
    x = g.pick("fi", min_rank=2, max_rank=3)
    if x is None:
        return
    zero = g.const(0, g.value(x).dtype)
    which = int(g.rng.integers(4))
    # TensorFlow's shape function of MatrixDiag gives 0 for a square of unknown size beside the main diagonal
    k, none = g.const(0 if which < 2 else int(g.rng.integers(-1, 2)), np.int32), g.const(-1, np.int32)
    part = g.add("MatrixDiagPartV2", {"input": x, "k": k, "padding_value": zero})
    if not part:
        return
    if which == 0:
        g.add("MatrixDiagV2", {"diagonal": part[0], "k": k, "num_rows": none, "num_cols": none, "padding_value": zero})
    elif which == 1:
        g.add("MatrixDiagV3", {"diagonal": part[0], "k": k, "num_rows": none, "num_cols": none, "padding_value": zero}, align="LEFT_RIGHT")
    else:
        op = g.choice(("MatrixSetDiagV2", "MatrixSetDiagV3"))
        g.add(op, {"input": x, "diagonal": part[0], "k": k})


@generator()
def diagonal_of_tensor(g: Generator) -> None:
    x = g.pick("fi", min_rank=1, max_rank=2)
    if x is not None and g.value(x).size < 30:
        whole = g.add("Diag", {"diagonal": x})
        if whole:
            g.add("DiagPart", {"input": whole[0]})


# ---- images --------------------------------------------------------------------------------------------------------------------


@generator()
def pool_positions(g: Generator) -> None:
    x = image(g, 4, "float32")
    if x is None or not g.exact(x) or not finite(g, x) or str(g.value(x).dtype) not in ("float32", "float64"):
        return
    how: dict[str, Any] = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 1, 1], "padding": g.choice(("SAME", "VALID"))}
    if g.flip():
        how["include_batch_in_index"] = g.flip()
        found = g.add("MaxPoolWithArgmax", {"input": x}, **how)
        if found and not any(0 in shape for shapes in g.shapes_of(x, found[0]) for shape in shapes):
            g.add("MaxPoolGradWithArgmax", {"input": x, "grad": found[0], "argmax": found[1]}, **how, ulps=4, sums=True)
        return
    ints = {k: g.const(how[k], np.int32) for k in ("ksize", "strides")}
    y = g.add("MaxPoolV2", {"input": x, **ints}, padding=how["padding"])
    if y and not any(0 in shape for shapes in g.shapes_of(x, y[0]) for shape in shapes):  # TensorFlow leaves memory as it was then
        g.add("MaxPoolGradV2", {"orig_input": x, "orig_output": y[0], "grad": y[0], **ints}, padding=how["padding"], ulps=4, sums=True)


@generator()
def volume_gradients(g: Generator) -> None:
    x = image(g, 5, "float32")
    if x is None or not finite(g, x):
        return
    w = weights(g, x, 2, 1, 2, g.shape(x)[-1], 3)
    how: dict[str, Any] = {"strides": [1, 1, 2, 1, 1], "padding": g.choice(("SAME", "VALID")), "ulps": 2, "sums": True}
    y = g.add("Conv3D", {"input": x, "filter": w}, **how)
    if not y or any(0 in shape for shapes in g.shapes_of(x, y[0]) for shape in shapes):
        return
    if g.flip():
        size = g.add("Shape", {"input": x}, out_type=tensorflow().int32)[0]
        g.add("Conv3DBackpropInputV2", {"input_sizes": size, "filter": w, "out_backprop": y[0]}, **how)
    else:
        g.add("Conv3DBackpropFilterV2", {"input": x, "filter_sizes": g.const(g.shape(w), np.int32), "out_backprop": y[0]}, **how)


@generator()
def volume_pool_gradient(g: Generator) -> None:
    x = image(g, 5, "float32")
    if x is None or not finite(g, x) or str(g.value(x).dtype) != "float32":
        return
    how: dict[str, Any] = {"ksize": [1, 2, 2, 1, 1], "strides": [1, 1, 2, 1, 1], "padding": g.choice(("SAME", "VALID"))}
    y = g.add("AvgPool3D", {"input": x}, **how, ulps=2, sums=True)
    if y and not any(0 in shape for shapes in g.shapes_of(x, y[0]) for shape in shapes):
        size = g.add("Shape", {"input": x}, out_type=tensorflow().int32)[0]
        g.add("AvgPool3DGrad", {"orig_input_shape": size, "grad": y[0]}, **how, ulps=4, sums=True)


@generator()
def resize_gradient(g: Generator) -> None:
    x = image(g, 4, "float32")
    if x is None or not finite(g, x) or str(g.value(x).dtype) not in ("float32", "float64"):
        return
    how: dict[str, Any] = {"align_corners": g.flip(0.3), "half_pixel_centers": False}
    if g.flip():
        # TensorFlow's kernel takes any batch and channels of the image, its shape function takes them for the result's
        size = g.const(g.rng.integers(1, 6, 2), np.int32)
        like = g.add("ResizeNearestNeighbor", {"images": x, "size": size})
        if like and str(g.value(x).dtype) == "float32":
            g.add("ResizeBilinearGrad", {"grads": x, "original_image": like[0]}, **how, ulps=64, sums=True)
    else:
        size = g.const(g.rng.integers(1, 6, 2), np.int32)
        g.add("ResizeNearestNeighborGrad", {"grads": x, "size": size}, **how, ulps=16, sums=True)


@generator()
def norm_gradient(g: Generator) -> None:
    x = image(g, 4, "float32")
    if x is None or str(g.value(x).dtype) != "float32" or not finite(g, x):
        return
    c = g.shape(x)[-1]
    scale = g.const(g.data("float32", (c,), False))
    mean, variance = g.const(g.data("float32", (c,), False)), g.const(np.abs(g.data("float32", (c,), False)) + np.float32(0.1))
    dy = g.add("Tanh", {"x": x}, ulps=8)
    operands = {"y_backprop": dy[0], "x": x, "scale": scale, "reserve_space_1": mean, "reserve_space_2": variance}
    how: dict[str, Any] = {"is_training": g.flip(), "epsilon": 0.1, "ulps": 4096, "floor": 64.0, "undefined": (3, 4)}
    which = g.choice(("", "V2", "V3"))
    if which == "V3":
        operands["reserve_space_3"] = g.const(np.zeros(0, np.float32))
    g.add(f"FusedBatchNormGrad{which}", operands, **how)


@generator()
def mirror_gradient(g: Generator) -> None:
    x = g.pick("f", min_rank=1, max_rank=3)
    if x is None or g.value(x).dtype.itemsize == 2:  # sums of two bytes are rounded in TensorFlow's own order
        return
    paddings, mode = g.const([[1, 1]] * g.rank(x), np.int32), g.choice(("REFLECT", "SYMMETRIC"))
    y = g.add("MirrorPad", {"input": x, "paddings": paddings}, mode=mode)
    if y:
        g.add("MirrorPadGrad", {"input": y[0], "paddings": paddings}, mode=mode, ulps=8, sums=True)


# ---- recurrent cells ------------------------------------------------------------------------------------------------------------


@generator()
def cells(g: Generator) -> None:
    n, k = int(g.choice((1, 3, 4))), int(g.choice((1, 2, 5)))
    which = int(g.rng.integers(3))

    def const(*dims: int) -> Ref:
        return g.const(g.data("float32", dims, False) * np.float32(0.5))

    loose: dict[str, Any] = {"ulps": 512, "floor": 4.0}
    x = g.placeholder("float32", (4, "b", k) if which == 2 else ("b", k), special=False)
    h = g.placeholder("float32", ("b", n), special=False)
    if which == 0:
        operands = {"x": x, "h_prev": h, "w_ru": const(k + n, 2 * n), "w_c": const(k + n, n), "b_ru": const(2 * n), "b_c": const(n)}
        g.add("GRUBlockCell", operands, **loose)
        return
    peephole = {name: const(n) for name in ("wci", "wcf", "wco")}
    operands = {"x": x, "cs_prev": h, "h_prev": h, "w": const(k + n, 4 * n), "b": const(4 * n), **peephole}
    if which == 1:
        g.add("LSTMBlockCell", operands, use_peephole=g.flip(), **loose)
    else:
        g.add("BlockLSTMV2", {"seq_len_max": g.const(4, np.int64), **operands}, use_peephole=g.flip(), **loose)


# ---- sparse, ragged ---------------------------------------------------------------------------------------------------------------


@generator()
def sparse(g: Generator) -> None:
    """A sparse matrix of constant positions with values from data."""
    x = g.pick("f", min_rank=1, max_rank=1)
    if x is None or not finite(g, x) or str(g.value(x).dtype) not in ("float32", "float64") or not 0 < g.shape(x)[0] < 12:
        return
    n = g.shape(x)[0]
    flat = np.sort(g.rng.permutation(24)[:n])
    at, shape = g.const(np.stack([flat // 4, flat % 4], -1), np.int64), g.const([6, 4], np.int64)
    which = int(g.rng.integers(7))
    if which == 0:
        dense = g.const(g.data("float64", (4, int(g.choice((1, 5)))), False).astype(g.value(x).dtype))
        g.add("SparseTensorDenseMatMul", {"a_indices": at, "a_values": x, "a_shape": shape, "b": dense}, ulps=4, sums=True)
    elif which == 1:
        g.add("SparseReshape", {"input_indices": at, "input_shape": shape, "new_shape": g.const([3, -1], np.int64)})
    elif which == 2:
        found = g.add("SparseFillEmptyRows",
                      {"indices": at, "values": x, "dense_shape": shape, "default_value": g.const(7, g.value(x).dtype)})  # fmt: skip
        if found:
            g.add("SparseFillEmptyRowsGrad", {"reverse_index_map": found[3], "grad_values": found[1]}, ulps=4, sums=True)
    elif which == 3:
        mixed = g.const(g.rng.permutation(np.stack([flat // 4, flat % 4], -1)), np.int64)
        g.add("SparseReorder", {"input_indices": mixed, "input_values": x, "input_shape": shape})
    elif which == 4:
        one = g.const(1, g.value(x).dtype)
        g.add("SparseToDense", {"sparse_indices": at, "output_shape": shape, "sparse_values": x, "default_value": one})
    elif which == 5:
        dense = g.const(g.data("float64", (6, 4), False).astype(g.value(x).dtype))
        g.add("SparseTensorDenseAdd", {"a_indices": at, "a_values": x, "a_shape": shape, "b": dense}, ulps=2)
    else:
        op, more = g.choice((("SparseReduceSum", {"ulps": 4, "sums": True}), ("SparseReduceMax", {})))
        axes = g.const([int(g.rng.integers(2))], np.int32)
        g.add(op, {"input_indices": at, "input_values": x, "input_shape": shape, "reduction_axes": axes}, keep_dims=g.flip(), **more)


@generator()
def sparse_gradients(g: Generator) -> None:
    x = g.pick("f", min_rank=2, max_rank=2)
    if x is None or str(g.value(x).dtype) not in ("float32", "float64") or not finite(g, x) or not g.shape(x)[0]:
        return
    n = int(g.rng.integers(1, 6))
    at, ids = g.const(g.rng.integers(0, 5, n), np.int32), g.const(np.sort(g.rng.integers(0, g.shape(x)[0], n)), np.int32)
    op = g.choice(("SparseSegmentSumGrad", "SparseSegmentMeanGrad", "SparseSegmentSqrtNGrad"))
    g.add(op, {"grad": x, "indices": at, "segment_ids": ids, "output_dim0": g.const(5, np.int32)}, ulps=8, sums=True)


@generator()
def ragged(g: Generator) -> None:
    splits = np.cumsum([0, *g.rng.integers(0, 4, int(g.rng.integers(1, 5)))]).astype(np.int64)
    if g.flip(0.4):
        starts, limits = (g.const(g.rng.integers(0, 6, 3), np.int32) for _ in range(2))
        g.add("RaggedRange", {"starts": starts, "limits": limits, "deltas": g.const(1, np.int32)}, Tsplits=tensorflow().int64)
        return
    values = g.const(g.data("float32", (int(splits[-1]),), False))
    if g.flip():
        rows = g.const(g.rng.integers(0, len(splits) - 1, int(g.rng.integers(0, 4))), np.int32)
        operands: dict[str, Any] = {"params_nested_splits": [g.const(splits)], "params_dense_values": values, "indices": rows}
        g.add("RaggedGather", operands, OUTPUT_RAGGED_RANK=1)
    else:
        operands = {"shape": g.const([-1, -1], np.int64), "values": values, "default_value": g.const(0, np.float32),
                    "row_partition_tensors": [g.const(splits)]}  # fmt: skip
        g.add("RaggedTensorToTensor", operands, row_partition_types=["ROW_SPLITS"])


# ---- ranking, random, others --------------------------------------------------------------------------------------------------------


@generator()
def ranking(g: Generator) -> None:
    x = g.pick("f", min_rank=2, max_rank=2, exact=True)
    if x is None or str(g.value(x).dtype) != "float32" or not finite(g, x) or g.shape(x)[1] < 2:
        return
    if g.flip():
        g.add("NthElement", {"input": x, "n": g.const(int(g.rng.integers(g.shape(x)[1])), np.int32)}, reverse=g.flip())
        return
    targets = small_ints(g, g.shape(x)[1], like=x)
    if targets is not None:
        k = g.const(int(g.rng.integers(1, 3)), g.value(targets).dtype)
        g.add("InTopKV2", {"predictions": x, "targets": targets, "k": k})


@generator()
def random_keys(g: Generator) -> None:
    """The newer stateless random ops: a key and a counter from a seed."""
    x = g.pick("fib", min_rank=1, max_rank=3)
    if x is None:
        return
    tf = tensorflow()
    shape = g.add("Shape", {"input": x}, out_type=tf.int32)[0]
    seed = g.const(g.rng.integers(0, 100, 2), np.int64)
    state = g.add("StatelessRandomGetKeyCounter", {"seed": seed})
    alg = g.const(1, np.int32)
    if not state:
        return
    operands = {"shape": shape, "key": state[0], "counter": state[1], "alg": alg}
    which = int(g.rng.integers(6))
    if which == 0:
        g.add("StatelessRandomUniformV2", operands, dtype=tf.float32)
    elif which == 1:
        g.add("StatelessRandomNormalV2", operands, dtype=tf.float32, ulps=64, floor=1.0)
    elif which == 2:
        g.add("StatelessRandomUniformFullIntV2", operands, dtype=tf.int32)
    elif which == 3:
        g.add("StatelessRandomUniformIntV2", {**operands, "minval": g.const(0, np.int32), "maxval": g.const(9, np.int32)})
    elif which == 4:
        g.add("StatelessTruncatedNormalV2", operands, dtype=tf.float32, ulps=64, floor=1.0)
    else:
        g.add("StatelessRandomUniformFullInt", {"shape": shape, "seed": seed}, dtype=tf.int64)


@generator()
def integer_misc(g: Generator) -> None:
    x = g.pick("i", min_rank=1)
    y = g.pick("i", like=x) if x else None
    if x is None or y is None:
        return
    if g.flip():
        g.add("Mod", {"x": x, "y": g.const(3, g.value(x).dtype)})
    else:
        g.add("RightShift", {"x": x, "y": g.const(2, g.value(x).dtype)})


# ---- lists -----------------------------------------------------------------------------------------------------------------------


def _lists(given: dict[str, Any], attrs: dict[str, Any]) -> Any:
    """A list of the rows of a tensor, changed by a plan, and what is read from it."""
    tf = tensorflow()
    raw, x = tf.raw_ops, given["x"]
    shape = tf.shape(x)[1:]
    handle = raw.TensorListFromTensor(tensor=x, element_shape=shape)
    read = []
    for what in attrs["plan"]:
        if what == "push":
            handle = raw.TensorListPushBack(input_handle=handle, tensor=x[0] * 2)
        elif what == "pop":
            handle, last = raw.TensorListPopBack(input_handle=handle, element_shape=shape, element_dtype=x.dtype)
            read.append(last)
        elif what == "set":
            handle = raw.TensorListSetItem(input_handle=handle, index=0, item=x[0] + x[0])
        elif what == "get":
            read.append(raw.TensorListGetItem(input_handle=handle, index=0, element_shape=shape, element_dtype=x.dtype))
        elif what == "length":
            read.append(raw.TensorListLength(input_handle=handle))
        elif what == "gather":
            read.append(raw.TensorListGather(input_handle=handle, indices=[0, 0], element_shape=shape, element_dtype=x.dtype))
    return [raw.TensorListStack(input_handle=handle, element_shape=shape, element_dtype=x.dtype), *read]


STRUCTURED["tensor_list"] = _lists


@generator()
def lists(g: Generator) -> None:
    x = g.pick("f", min_rank=1, max_rank=3)
    if x is None or not g.shape(x)[0]:
        return
    steps = ["push", "pop", "set", "get", "length"]
    # of elements of size 0 TensorFlow's eager kernel takes any number, its graph's does not
    if all(shape[0] for (shape,) in g.shapes_of(x)):
        steps.append("gather")
    plan = [str(g.choice(steps)) for _ in range(int(g.rng.integers(1, 5)))]
    g.add("tensor_list", {"x": x}, plan=plan)
