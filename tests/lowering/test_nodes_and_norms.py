"""Identities, checks, constants, batch norm, and the fused private ops of grappler and oneDNN."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.testing.tf_case import (
    MODES,
    Failure,
    Graph,
    Tolerance,
    array,
    check_op,
    difference,
    lower_graph,
    our_answer,
    specials,
    tensorflow,
)

FLOATS = ["f32", "f64", "f16", "bf16"]
SUM = Tolerance(16.0, relative_floor=1.0)


# ---- identities and checks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [str(d) for d in DType])
def test_identities(dtype: str) -> None:
    x = array((2, 0, 3), dtype)
    check_op("Identity", input=array((3, 2), dtype))
    check_op("StopGradient", input=x)
    check_op("Snapshot", input=x)
    check_op("PreventGradient", input=x)
    check_op("IdentityN", input=[x, array((4,), "i64")])


@pytest.mark.parametrize("shape", [[2, 3], [None, 3], [None, None], None, [2, 4], [None], [0, 3]])
def test_ensure_shape(shape) -> None:
    tf = tensorflow()
    check_op("EnsureShape", input=array((2, 3), "f32"), shape=tf.TensorShape(shape))


def test_ensure_shape_sharpens_the_type() -> None:
    nodes = [NodeView("tested", "EnsureShape", ["x"], {"T": 1, "shape": (-1, 3)})]
    fn = lower_graph(Graph(nodes, ["x"], [array((2, 3), "f32")], "tested"), "dynamic")
    assert [str(d) for d in fn.results[0].dims] == ["a0d0", "3"]


@pytest.mark.parametrize("condition", [True, False])
def test_assert(condition: bool) -> None:
    check_op("Assert", condition=np.array(condition), data=[array((2,), "f32")], const=())
    check_op("Assert", condition=np.array(condition), data=[array((2,), "f32")], const=("condition",))


@pytest.mark.parametrize("op", ["CheckNumerics", "CheckNumericsV2"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_check_numerics(op: str, dtype: str) -> None:
    for x in (array((2, 3), dtype), array((0,), dtype), specials(DType.from_name(dtype))):
        check_op(op, tensor=x, message="look here")


@pytest.mark.parametrize("dtype", [str(d) for d in DType])
def test_const(dtype: str) -> None:
    tf = tensorflow()
    for value in (array((2, 3), dtype), array((0, 2), dtype), np.full((3, 50), 1, DType.from_name(dtype).np)):
        check_op("Identity", input=value, const=("input",), modes=["static"])
    with tf.Graph().as_default() as g:
        tf.constant("text", name="c")
    with pytest.raises(Unsupported) as e:
        lower_graph(Graph([NodeView.from_proto(n) for n in g.as_graph_def().node], [], [], "c"), "static")
    assert e.value.code == "DTYPE"


# ---- batch norm --------------------------------------------------------------------------------------------------------

_LAYOUTS = [("NHWC", (2, 3, 1, 5)), ("NCHW", (2, 5, 3, 1)), ("NDHWC", (1, 2, 3, 1, 5)), ("NCDHW", (1, 5, 2, 1, 3)), ("NHWC", (0, 2, 2, 5))]


def _norm_arguments(channels: int, dtype: str = "f32") -> dict[str, np.ndarray]:
    one = {name: array((channels,), dtype, i) for i, name in enumerate(("scale", "offset", "mean"))}
    return {**one, "variance": array((channels,), dtype, 9, 0.0, 4.0)}


@pytest.mark.parametrize(("layout", "shape"), _LAYOUTS)
@pytest.mark.parametrize(("op", "dtype"), [("FusedBatchNorm", "f32"), ("FusedBatchNormV2", "f32"), ("FusedBatchNormV3", "f32"),
                                           ("FusedBatchNormV3", "f16"), ("FusedBatchNormV3", "bf16")])  # fmt: skip
def test_batch_norm(op: str, dtype: str, layout: str, shape: tuple) -> None:
    if op != "FusedBatchNormV3" and len(shape) == 5:
        return
    channels = shape[1] if layout.startswith("NC") else shape[-1]
    # results 3 and 4 are without content in TF at inference
    check_op(op, x=array(shape, dtype), **_norm_arguments(channels), is_training=False, data_format=layout, epsilon=0.01,
             outputs=[0, 1, 2], tol=Tolerance(8.0, floor=1.0))  # fmt: skip


def test_batch_norm_misfits() -> None:
    given = _norm_arguments(5)
    check_op("FusedBatchNormV3", x=array((2, 2, 2, 4), "f32"), **given, is_training=False)
    check_op("FusedBatchNormV3", x=array((2, 2, 5), "f32"), **given, is_training=False)


# ---- fused private ops -------------------------------------------------------------------------------------------------


def _compare(op: str, attrs: dict, arrays: list[np.ndarray], reference: list[np.ndarray], tol: Tolerance = SUM) -> None:
    """Our lowering of one private op against ``reference``, in all modes."""
    names = [f"x{i}" for i in range(len(arrays))]
    node = NodeView("tested", op, names, attrs)
    for mode in MODES:
        fn = lower_graph(Graph([node], names, arrays, "tested"), mode)
        ours = our_answer(fn, arrays)
        assert not isinstance(ours, Failure), ours
        for r, o in zip(reference, ours, strict=False):
            assert not difference(r, o, tol), f"{op} {attrs} [{mode}]: {difference(r, o, tol)}"


_ACTIVATIONS = ["Relu", "Relu6", "Elu", "LeakyRelu", "Tanh", "Sigmoid", "GeluExact", "GeluApproximate"]


def _activate(name: str, x):
    tf = tensorflow()
    if name == "LeakyRelu":
        return tf.nn.leaky_relu(x, 0.3)
    functions = {"Relu": tf.nn.relu, "Relu6": tf.nn.relu6, "Elu": tf.nn.elu, "Tanh": tf.tanh, "Sigmoid": tf.sigmoid}
    if name in functions:
        return functions[name](x)
    return tf.nn.gelu(x, approximate=name == "GeluApproximate")


@pytest.mark.parametrize("op", ["_FusedMatMul", "_MklFusedMatMul", "_MklNativeFusedMatMul"])
@pytest.mark.parametrize("activation", ["", *_ACTIVATIONS])
def test_fused_matmul(op: str, activation: str) -> None:
    tf = tensorflow()
    a, b, bias = array((5, 4), "f32", 1), array((3, 4), "f32", 2), array((3,), "f32", 3)
    out = tf.nn.bias_add(tf.matmul(a, b, transpose_b=True), bias)
    expected = (_activate(activation, out) if activation else out).numpy()
    fused = ["BiasAdd", *([activation] if activation else [])]
    attrs = {"T": 1, "transpose_b": True, "fused_ops": fused, "num_args": 1, "leakyrelu_alpha": 0.3}
    _compare(op, attrs, [a, b, bias], [expected])


@pytest.mark.parametrize("fused", [["BiasAdd"], ["BiasAdd", "Relu"], ["BiasAdd", "Tanh"], ["BiasAdd", "LeakyRelu"]])
def test_fused_matmul_against_the_kernel(fused: list[str]) -> None:
    """TF's own `_FusedMatMul`, which raw_ops does not have."""
    tf = tensorflow()
    arrays = [array((2, 4), "f32", 1), array((4, 3), "f32", 2), array((3,), "f32", 3)]
    pb = tf.compat.v1
    with tf.Graph().as_default() as g:
        inputs = [pb.placeholder(tf.float32, None) for _ in arrays]
        attrs = {
            "T": pb.AttrValue(type=1), "num_args": pb.AttrValue(i=1), "leakyrelu_alpha": pb.AttrValue(f=0.3),
            "fused_ops": pb.AttrValue(list=pb.AttrValue.ListValue(s=[f.encode() for f in fused])),
        }  # fmt: skip
        out = g.create_op("_FusedMatMul", inputs, [tf.float32], name="fused", attrs=attrs).outputs[0]
        config = pb.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with pb.Session(config=config) as session:
            expected = session.run(out, dict(zip(inputs, arrays, strict=True)))
    _compare("_FusedMatMul", {"T": 1, "fused_ops": fused, "num_args": 1, "leakyrelu_alpha": 0.3}, arrays, [expected])


def test_unknown_fused_op_is_left_to_tf() -> None:
    with pytest.raises(Unsupported) as e:
        _compare("_FusedMatMul", {"T": 1, "fused_ops": ["Mystery"]}, [array((2, 2), "f32")] * 2, [])
    assert e.value.code == "ATTR"


@pytest.mark.parametrize("op", ["_FusedBatchMatMulV2", "_MklFusedBatchMatMulV2"])
def test_fused_batch_matmul(op: str) -> None:
    x, y = array((2, 3, 5, 4), "f32", 1), array((2, 3, 6, 4), "f32", 2)
    scale, mask = np.array(0.25, np.float32), array((2, 1, 1, 6), "f32", 3)
    product = x @ np.swapaxes(y, -1, -2)
    attrs = {"T": 1, "adj_y": True, "num_args": 2, "fused_ops": ["Mul", "Add"]}
    _compare(op, attrs, [x, y, scale, mask], [product * scale + mask])
    _compare(op, {**attrs, "fused_ops": ["Mul"], "num_args": 1}, [x, y, scale], [product * scale])


def test_onednn_plain_forms() -> None:
    x, y = array((2, 5, 4), "f32", 1), array((2, 4, 3), "f32", 2)
    _compare("_MklBatchMatMulV2", {"T": 1}, [x, y], [x @ y])
    _compare("_MklMatMul", {"T": 1}, [x[0], y[0]], [x[0] @ y[0]])
    _compare("_MklEinsum", {"T": 1, "equation": "bij,bjk->bki"}, [x, y], [np.swapaxes(x @ y, 1, 2).copy()])
    tf = tensorflow()
    _compare("_MklSoftmax", {"T": 1}, [x], [tf.nn.softmax(x).numpy()])
    _compare("_MklSwish", {"T": 1}, [x], [tf.nn.silu(x).numpy()], Tolerance(16.0))
    mish = x * np.tanh(np.log1p(np.exp(x.astype(np.float64))))
    _compare("_MklFusedMish", {"T": 1}, [x], [mish.astype(np.float32)], Tolerance(16.0))


def test_onednn_layer_norm() -> None:
    x, scale, offset = array((2, 3, 7), "f32", 1), array((7,), "f32", 2), array((7,), "f32", 3)
    wide = x.astype(np.float64)
    normal = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 0.001)
    want = (normal * scale + offset).astype(np.float32)
    _compare("_MklLayerNorm", {"T": 1}, [x, scale, offset], [want], Tolerance(64.0, relative_floor=1.0))


@pytest.mark.parametrize(("side", "mode"), list(itertools.product([False, True], ["Identity", "Relu"])))
def test_fused_batch_norm_ex(side: bool, mode: str) -> None:
    tf = tensorflow()
    x, given = array((2, 3, 4, 5), "f32", 1), _norm_arguments(5)
    extra = [array((2, 3, 4, 5), "f32", 8)] if side else []
    y = tf.raw_ops.FusedBatchNormV3(x=x, **given, is_training=False, epsilon=0.01)[0]
    y = y + extra[0] if side else y
    expected = (tf.nn.relu(y) if mode == "Relu" else y).numpy()
    attrs = {"T": 1, "U": 1, "is_training": False, "epsilon": 0.01, "activation_mode": mode, "num_side_inputs": len(extra)}
    arrays = [x, given["scale"], given["offset"], given["mean"], given["variance"], *extra]
    _compare("_FusedBatchNormEx", attrs, arrays, [expected], Tolerance(8.0, floor=1.0))
