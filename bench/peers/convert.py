"""A frozen GraphDef as an ONNX file, by tf2onnx, in an interpreter that has it.

    python bench/peers/convert.py MODEL.pb MODEL.json OUT.onnx

Inputs keep the model's names and unknown dims; the outputs are in the order of MODEL.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

OPSET = 18


def erfc(ctx: Any, node: Any, name: str, args: Any) -> Any:
    """1 - erf(x): tf2onnx knows no Erfc, ONNX has none."""
    import numpy as np

    one = ctx.make_const(f"{node.name}/one", np.float32(1))
    erf = ctx.make_node("Erf", [node.input[0]])
    shape, dtype = ctx.get_shape(node.output[0]), ctx.get_dtype(node.output[0])
    ctx.remove_node(node.name)
    return ctx.make_node("Sub", [one.output[0], erf.output[0]], outputs=node.output, name=node.name, shapes=[shape], dtypes=[dtype])


def convert(graph: Path, description: Path, output: Path) -> None:
    import tensorflow as tf
    import tf2onnx

    info = json.loads(description.read_text())
    graph_def = tf.compat.v1.GraphDef()
    graph_def.ParseFromString(graph.read_bytes())
    model, _ = tf2onnx.convert.from_graph_def(
        graph_def,
        input_names=[f"{i['name']}:0" for i in info["inputs"]],
        output_names=list(info["outputs"]),
        opset=OPSET,
        custom_op_handlers={"Erfc": (erfc, [])},
    )
    output.write_bytes(model.SerializeToString())


if __name__ == "__main__":
    convert(*map(Path, sys.argv[1:4]))
