"""Nets of `bench.peers.nets` as ONNX files, channels first and of static shapes, as these engines like them best.

python -m bench.peers.layer_onnx DIRECTORY     # NAME.json there becomes NAME.onnx; in an interpreter that has onnx
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.peers.nets import Net, from_json


def model(net: Net) -> Any:
    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(name: str, value: np.ndarray) -> str:
        constants.append(numpy_helper.from_array(value, name))
        return name

    names = ["x"]
    for i, (conv, (w, bias), size) in enumerate(zip(net.convs, net.weights(), net.sizes, strict=False), 1):
        order = (3, 2, 0, 1)  # features, channels of a group, window
        kernel = w.transpose(order) if not conv.depthwise else w.transpose(3, 2, 0, 1)
        (top, bottom), (left, right) = conv.pads(size)
        nodes.append(
            helper.make_node(
                "Conv", [names[-1], constant(f"w{i}", np.ascontiguousarray(kernel)), constant(f"b{i}", bias)], [f"c{i}"],
                kernel_shape=conv.window, strides=conv.stride, dilations=conv.dilation, pads=[top, left, bottom, right],
                group=conv.channels if conv.depthwise else 1,
            )
        )  # fmt: skip
        at = f"c{i}"
        if conv.add is not None:
            nodes.append(helper.make_node("Add", [at, "r" if conv.add < 0 else names[conv.add]], [f"a{i}"]))
            at = f"a{i}"
        if conv.activation == "relu":
            nodes.append(helper.make_node("Relu", [at], [f"y{i}"]))
        elif conv.activation == "relu6":
            low, high = constant(f"low{i}", np.float32(0).reshape(())), constant(f"high{i}", np.float32(6).reshape(()))
            nodes.append(helper.make_node("Clip", [at, low, high], [f"y{i}"]))
        names.append(f"y{i}" if conv.activation else at)

    def tensor(name: str, shape: tuple[int, ...]) -> Any:
        n, h, w, c = shape
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [n, c, h, w])

    inputs = [tensor(n, s) for n, s in zip("xr", net.inputs, strict=False)]
    out = tensor(names[-1], (net.batch, *net.sizes[-1], net.convs[-1].features))
    graph = helper.make_graph(nodes, "net", inputs, [out], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return made


if __name__ == "__main__":
    for path in sorted(Path(sys.argv[1]).glob("*.json")):
        path.with_suffix(".onnx").write_bytes(model(from_json(path.read_text())).SerializeToString())
