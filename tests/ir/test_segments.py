"""`disc.segment` and `disc.fill_rows`: inference, references on hand-made values, text form."""

import numpy as np
import pytest

from disc_tf.ir.builder import new_function
from disc_tf.ir.interp import evaluate
from disc_tf.ir.opset import IRError
from disc_tf.ir.parser import parse_function
from disc_tf.ir.printer import print_function
from disc_tf.ir.stablehlo import to_stablehlo
from disc_tf.ir.types import DType, TensorType
from disc_tf.ir.verifier import verify

F32, F16, I32, I64 = DType.F32, DType.F16, DType.I32, DType.I64
ROWS = np.array([[1.0, 2], [3, 4], [-5, 6], [7, -8]], np.float32)


def segment(data, ids, segments, kind, *rest, **attrs):
    """The op on arrays, printed and parsed again on the way."""
    arrays = [data, ids, *rest]
    params = {f"p{i}": TensorType.of(DType.from_np(x.dtype), [f"d{i}_{k}" for k in range(x.ndim)]) for i, x in enumerate(arrays)}
    fn, b = new_function("main", params)
    b.return_([b.segment(*fn.params[:2], segments, kind, *fn.params[2:], **attrs)])
    verify(fn)
    assert 'custom_call' in to_stablehlo(fn)
    return evaluate(parse_function(print_function(fn)), arrays)[0]


def test_sorted_sums_means_and_gaps():
    ids = np.array([0, 0, 2, 2], np.int32)
    np.testing.assert_array_equal(segment(ROWS, ids, 4, "add"), [[4, 6], [0, 0], [2, -2], [0, 0]])
    np.testing.assert_array_equal(segment(ROWS, ids, 4, "add", scale="mean"), [[2, 3], [0, 0], [1, -1], [0, 0]])
    np.testing.assert_array_equal(segment(ROWS, ids, 3, "mul", empty="identity"), [[3, 8], [1, 1], [-35, -48]])
    np.testing.assert_array_equal(segment(ROWS, ids, 3, "max"), [[3, 4], [0, 0], [7, 6]])
    np.testing.assert_array_equal(segment(ROWS, ids, 1, "min"), [[1, 2]])
    root = segment(ROWS, np.zeros(4, np.int64), 1, "add", scale="sqrtn")
    np.testing.assert_allclose(root, [[3, 2]])


def test_any_order_drops_ids_out_of_range():
    ids = np.array([1, -1, 1, 5], np.int64)
    np.testing.assert_array_equal(segment(ROWS, ids, 2, "add", sorted=False), [[0, 0], [-4, 8]])
    low = np.finfo(np.float32).min
    np.testing.assert_array_equal(segment(ROWS, ids, 2, "max", sorted=False, empty="identity"), [[low, low], [1, 6]])


def test_indices_are_clamped_and_rows_weighted():
    ids, indices = np.array([0, 0, 1], np.int32), np.array([9, 0, -3], np.int64)
    weights = np.array([1, 10, 100], np.float32)
    np.testing.assert_array_equal(segment(ROWS, ids, 2, "add", indices, weights), [[17, 12], [100, 200]])
    empty = np.zeros((0, 2), np.float32)
    np.testing.assert_array_equal(segment(empty, ids, 2, "add", indices), [[0, 0], [0, 0]])


def test_narrow_sums_are_wide_where_asked():
    ones, ids = np.ones((4096, 1), np.float16), np.zeros(4096, np.int32)
    assert segment(ones, ids, 1, "add").item() == 2048
    assert segment(ones, ids, 1, "add", wide=True).item() == 4096


def test_ill_formed():
    fn, b = new_function("main", {"x": TensorType.of(F32, [4, 2]), "i": TensorType.of(I32, [3]), "j": TensorType.of(I32, [4])})
    x, i, j = fn.params
    for args, attrs, message in (
        ((x, i), {}, "differs"), ((x, x), {}, "ids must be a vector"), ((x, j, i), {}, "differs"),
        ((x, j), {"scale": "mean", "sorted": False}, "only sums"), ((x, j), {"wide": True, "sorted": False}, "only sorted"),
    ):  # fmt: skip
        with pytest.raises(IRError, match=message):
            b.segment(args[0], args[1], 3, "add", *args[2:], **attrs)


def test_fill_rows():
    fn, b = new_function(
        "main", {"i": TensorType.of(I64, ["n", 2]), "v": TensorType.of(F16, ["n"]), "d": TensorType.of(F16, [])}
    )  # fmt: skip
    b.return_(b.fill_rows(*fn.params, 4))
    verify(fn)
    indices = np.array([[2, 1], [0, 3], [2, 0]], np.int64)
    out, values, empty, reverse, count = evaluate(
        parse_function(print_function(fn)), [indices, np.array([1, 2, 3], np.float16), np.array(9, np.float16)]
    )
    assert count == 5 and out.shape == (7, 2)
    np.testing.assert_array_equal(out[:5], [[0, 3], [1, 0], [2, 1], [2, 0], [3, 0]])
    np.testing.assert_array_equal(values[:5], [2, 9, 1, 3, 9])
    np.testing.assert_array_equal(empty, [False, True, False, True])
    np.testing.assert_array_equal(reverse, [2, 0, 3])
