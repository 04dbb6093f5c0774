"""Gathers, scatters, OneHot, scans, TopK: TF against the rules on the interpreter."""

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.testing.tf_case import Tolerance, array, check_op

ALL_DTYPES = list(DType)
NUMBERS = [d for d in DType if not d.is_bool]
F32 = DType.F32


def i32(*values):
    return np.array(values, np.int32)


def scalar(v, dtype=np.int32):
    return np.array(v, dtype)


INDEX_TYPES = [np.int32, np.int64]


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_every_dtype(dtype):
    x = array((4, 3), dtype)
    check_op("GatherV2", params=x, indices=i32(3, 0, 0), axis=scalar(0), const=["axis"])
    check_op("Gather", params=x, indices=i32(3, 0))
    check_op("GatherNd", params=x, indices=np.array([[3, 1], [0, 0]], np.int32), known_dims=["indices"])
    rows = np.array([[3], [0], [3]], np.int32)
    check_op(
        "TensorScatterUpdate", tensor=x, indices=rows, updates=array((3, 3), dtype, 1), known_dims=["indices"]
    )
    flat = x.reshape(-1)
    check_op(
        "OneHot", indices=i32(0, 2, -1, 5), depth=scalar(3), on_value=flat[0].reshape(()), off_value=flat[1].reshape(()),
        const=["depth"],
    )  # fmt: skip
    if dtype.is_bool:
        return
    for op in ("TensorScatterAdd", "TensorScatterSub"):
        check_op(
            op,
            tensor=x,
            indices=rows[:2],
            updates=array((2, 3), dtype, 1),
            known_dims=["indices"],
            tol=Tolerance(ulps=1),
        )
    check_op("TopKV2", input=x, k=scalar(2), const=["k"])


@pytest.mark.parametrize("index", INDEX_TYPES)
@pytest.mark.parametrize(
    ("shape", "indices", "axis"),
    [((5,), [0, 4, 2], 0), ((5,), 3, 0), ((5, 3), [[1, 0], [4, 4]], 0), ((5, 3), [2, 0], 1), ((5, 3), [1], -1), ((2, 5, 3), 1, 1),
     ((5, 3), [], 0), ((0, 3), [], 0), ((5, 0), [1, 2], 0), ((1,), [0], 0), ((2, 2), [[0, 1]], 1),
     ((5,), [5], 0), ((5,), [-1], 0), ((0, 3), [0], 0), ((5, 3), [0], 2), ((), [0], 0),
     ((5, 0), [7], 0), ((0, 3), [7], 1), ((0, 0), [0], 0), ((3, 0, 2), [-7, 1], 0), ((2, 3), [7], 1), ((0, 3), [[-1, 5]], 1)],
)  # fmt: skip
def test_gather(shape, indices, axis, index):
    x, i = array(shape, F32), np.array(indices, index)
    for const in (["axis"], ["axis", "indices"]):
        check_op("GatherV2", params=x, indices=i, axis=scalar(axis), const=const)
    if axis == 0:
        check_op("Gather", params=x, indices=i)


@pytest.mark.parametrize(
    ("shape", "indices_shape", "axis", "batch"),
    [((2, 5), (2, 3), 1, 1), ((2, 5, 3), (2, 4), 1, 1), ((2, 5, 3), (2,), 2, 1), ((2, 3, 4), (2, 3, 2), 2, 2), ((2, 3, 4), (2, 2), -1, -1),
     ((0, 5), (0, 3), 1, 1), ((1, 5), (1, 0), 1, 1), ((2, 5), (3, 3), 1, 1), ((2, 5), (2, 3), 0, 1), ((2, 5), (2,), 1, 2)],
)  # fmt: skip
def test_gather_with_batch(shape, indices_shape, axis, batch):
    i = array(indices_shape, DType.I32, low=0, high=1)
    check_op(
        "GatherV2", params=array(shape, F32), indices=i, axis=scalar(axis), batch_dims=batch, const=["axis"]
    )


@pytest.mark.parametrize("index", INDEX_TYPES)
@pytest.mark.parametrize(
    ("shape", "indices"),
    [((5,), [[1], [4]]), ((5, 3), [[1, 2], [4, 0]]), ((5, 3), [[1], [0]]), ((2, 3, 4), [[[1, 2], [0, 0]]]), ((5, 3), [4, 2]),
     ((5, 3), np.zeros((0, 2))), ((5, 3), np.zeros((2, 0))), ((0, 3), np.zeros((0, 1))), ((5, 0), [[1], [2]]),
     ((5, 3), [[5, 0]]), ((5, 3), [[0, -1]]), ((0, 3), [[0]]), ((5,), [[0, 0]])],
)  # fmt: skip
def test_gather_nd(shape, indices, index):
    i = np.array(indices, index)
    check_op("GatherNd", params=array(shape, F32), indices=i, modes=["static"])
    check_op("GatherNd", params=array(shape, F32), indices=i, known_dims=["indices"])
    check_op("GatherNd", params=array(shape, F32), indices=i, const=["indices"])


SCATTERS = [
    ((5,), [[1], [4], [1]], (3,)),
    ((5, 3), [[1, 2], [4, 0]], (2,)),
    ((5, 3), [[1], [1]], (2, 3)),
    ((2, 3), np.zeros((0, 1)), (0, 3)),
    ((5, 0), [[1]], (1, 0)),
    ((5,), [[5]], (1,)),
    ((5,), [[-1]], (1,)),
    ((5, 3), [[1], [2]], (2, 2)),
]


@pytest.mark.parametrize("op", ["Update", "Add", "Sub", "Max", "Min"])
@pytest.mark.parametrize(("shape", "indices", "updates"), SCATTERS, ids=str)
def test_tensor_scatter(op, shape, indices, updates):
    args = {
        "tensor": array(shape, F32),
        "indices": np.array(indices, np.int32),
        "updates": array(updates, F32, 1),
    }
    check_op(f"TensorScatter{op}", **args, known_dims=["indices"], tol=Tolerance(ulps=1))


@pytest.mark.parametrize(("shape", "indices", "updates"), SCATTERS, ids=str)
@pytest.mark.parametrize("const", [["shape"], []], ids=str)
def test_scatter_nd(shape, indices, updates, const):
    for dtype in (F32, DType.I32):
        check_op(
            "ScatterNd", indices=np.array(indices, np.int32), updates=array(updates, dtype), shape=np.array(shape, np.int32),
            const=const, known_dims=["indices", "shape"],
        )  # fmt: skip


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("axis", [-1, 0, 1, 2])
@pytest.mark.parametrize("depth", [0, 1, 5, -1])
def test_one_hot(shape, axis, depth):
    for dtype in (np.uint8, np.int32, np.int64):
        indices = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
        for const in (["depth"], []):
            check_op(
                "OneHot", indices=indices, depth=scalar(depth), on_value=np.float32(1).reshape(()),
                off_value=np.float32(-2).reshape(()), axis=axis, const=const,
            )  # fmt: skip


def test_one_hot_of_bytes_deeper_than_a_byte():
    check_op(
        "OneHot", indices=np.array([255, 0, 44], np.uint8), depth=scalar(300), on_value=i32(1).reshape(()),
        off_value=i32(0).reshape(()), const=["depth"],
    )  # fmt: skip


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(7,), (0,), (1,), (3, 4), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("op", ["Cumsum", "Cumprod"])
def test_cumulative(op, shape, reverse, exclusive):
    for dtype in (F32, DType.F64, DType.I32, DType.I64):
        for axis in range(-len(shape), len(shape)):
            check_op(
                op, x=array(shape, dtype), axis=scalar(axis), exclusive=exclusive, reverse=reverse, const=["axis"],
                tol=Tolerance(ulps=8, relative_floor=1),
            )  # fmt: skip


@pytest.mark.parametrize("dtype", [d for d in NUMBERS], ids=str)
def test_cumulative_dtypes(dtype):
    from disc_tf.testing.tf_case import tf_answer

    x = array((5,), dtype)
    for op in ("Cumsum", "Cumprod"):
        if not isinstance(tf_answer(op, {"x": x, "axis": scalar(0)}), list):
            continue  # TF has no kernel
        check_op(op, x=x, axis=scalar(0), const=["axis"], tol=Tolerance(ulps=8, relative_floor=1))
    check_op("Cumsum", x=x, axis=scalar(1), const=["axis"])


@pytest.mark.parametrize("shape", [(7,), (3, 5), (0, 4), (2, 1), (2, 0)], ids=str)
@pytest.mark.parametrize("k", [0, 1, 3, 8, -1])
def test_topk(shape, k):
    for dtype in (F32, DType.I32):
        x = array(shape, dtype, high=2, low=-2)  # integers have ties
        for const in (["k"], []):
            check_op("TopKV2", input=x, k=scalar(k), const=const)


def test_topk_special_values():
    x = np.array([[0.0, -0.0, np.inf, -np.inf, 3.0, 3.0, -1.0]], np.float32)
    for k in range(8):
        check_op("TopKV2", input=x, k=scalar(k), const=["k"])


@pytest.mark.parametrize("index_type", [np.int16, np.int32, np.int64])
def test_topk_index_type(index_type):
    check_op("TopKV2", input=array((3, 5), F32), k=scalar(2), index_type=index_type, const=["k"])


@pytest.mark.parametrize(("count", "rows"), [(3, 5), (5, 5), (6, 5), (0, 5), (0, 0), (1, 0)])
def test_gather_of_positions_needs_no_look_at_them(count, rows):
    from disc_tf.ir.builder import Builder
    from disc_tf.ir.core import ArgInfo, Function
    from disc_tf.ir.interp import CheckFailed, evaluate
    from disc_tf.ir.types import TensorType
    from disc_tf.lowering.context import LoweringContext
    from disc_tf.lowering.lower import lower_nodes
    from disc_tf.lowering.node import NodeView

    fn = Function("main")
    ctx = LoweringContext(Builder(fn.body, fn.env), fn.env)
    feeds = {
        ("x", 0): fn.add_arg(TensorType.of(F32, ["r", 2]), ArgInfo("x")),
        ("like", 0): fn.add_arg(TensorType.of(F32, ["n"]), ArgInfo("like")),
    }
    ints = {"T": DType.I32, "Tidx": DType.I32, "Tparams": F32, "Tindices": DType.I32}
    nodes = [
        NodeView("zero", "Const", (), {"value": scalar(0)}),
        NodeView("one", "Const", (), {"value": scalar(1)}),
        NodeView("size", "Size", ["like"], {"T": F32}),
        NodeView("range", "Range", ["zero", "size", "one"], ints),
        NodeView("row", "ExpandDims", ["range", "zero"], ints),
        NodeView("out", "GatherV2", ["x", "row", "zero"], ints),
    ]
    found = lower_nodes(ctx, nodes, feeds)
    ctx.b.return_([found["out", 0], *([ctx.token] if ctx.token is not None else [])])
    assert not [op for op in fn.body.ops if op.name == "reduce"]
    x, like = array((rows, 2), F32), np.zeros(count, np.float32)
    if count > rows:
        with pytest.raises(CheckFailed):
            evaluate(fn, [x, like])
    else:
        np.testing.assert_array_equal(evaluate(fn, [x, like])[0], x[None, :count])


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.F16, DType.BF16], ids=str)
def test_cumulative_logsumexp(dtype: DType) -> None:
    """NaN counts for nothing, infinities as TensorFlow has them: inf - inf is NaN."""
    tol = Tolerance(16.0, floor=1.0)
    special = np.array(
        [[1, 2, 3, -np.inf, 5], [-np.inf, -np.inf, 1, 2, 2], [np.inf, 1, np.inf, 1, 1], [np.nan, 1, 2, np.nan, 3], [-700, 700, 0, 1, -1]]
    )
    for shape, axis in (((7,), 0), ((3, 5), 1), ((3, 5), -2), ((2, 0, 3), 1), ((2, 3, 33), 1)):
        for exclusive, reverse in ((False, False), (True, False), (False, True), (True, True)):
            options = {"exclusive": exclusive, "reverse": reverse, "modes": ["dynamic"], "const": ["axis"], "tol": tol}
            check_op("CumulativeLogsumexp", x=array(shape, dtype, 1), axis=scalar(axis), **options)
            check_op("CumulativeLogsumexp", x=special.astype(dtype.np), axis=scalar(1), **options)
    check_op("CumulativeLogsumexp", x=array((3,), dtype), axis=scalar(1), const=["axis"], modes=["dynamic"])
