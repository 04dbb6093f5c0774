"""Small GraphDefs for the frontend's tests, without TensorFlow."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from disc_tf.frontend.analysis import analyse
from disc_tf.frontend.cluster import Clustering, make_clusters
from disc_tf.frontend.graph import Graph, resolve_outputs
from disc_tf.frontend.hints import parse_hints
from disc_tf.frontend.importer import import_cluster
from disc_tf.frontend.rewrite import Launch
from disc_tf.frontend.tensor_proto import fill_tensor
from disc_tf.frontend.tfproto import graph_from_bytes, message_class
from disc_tf.ir.types import DType

MODELS = pathlib.Path(__file__).parents[2] / "bench" / "models"
F32, I32, I64, BOOL, STRING = 1, 3, 9, 10, 7


def set_attr(attr: Any, value: Any) -> None:
    """Set an AttrValue from a Python value; types as ``DType``, shapes as ``("shape", dims)``, functions as ``("func", name)``."""
    if isinstance(value, DType):
        attr.type = value.tf_enum
    elif isinstance(value, tuple) and value[0] == "type":
        attr.type = value[1]
    elif isinstance(value, tuple) and value[0] == "types":
        attr.list.SetInParent()
        attr.list.type.extend(value[1])
    elif isinstance(value, tuple) and value[0] == "shape":
        attr.shape.SetInParent()
        if value[1] is None:
            attr.shape.unknown_rank = True
        else:
            for d in value[1]:
                attr.shape.dim.add().size = -1 if d is None else d
    elif isinstance(value, tuple) and value[0] == "shapes":
        attr.list.SetInParent()
        for dims in value[1]:
            shape = attr.list.shape.add()
            for d in dims:
                shape.dim.add().size = -1 if d is None else d
    elif isinstance(value, tuple) and value[0] == "func":
        attr.func.name = value[1]
    elif isinstance(value, bool):
        attr.b = value
    elif isinstance(value, int):
        attr.i = value
    elif isinstance(value, float):
        attr.f = value
    elif isinstance(value, bytes):
        attr.s = value
    elif isinstance(value, np.ndarray):
        fill_tensor(attr.tensor, value)
    else:
        raise TypeError(value)


class G:
    """Builds a GraphDef: methods add a node and return its name."""

    def __init__(self) -> None:
        self.proto = message_class("GraphDef")()
        self.proto.versions.producer = 2000

    def node(self, name: str, op: str, inputs: list[str] = [], /, device: str = "", **attrs: Any) -> str:  # noqa: B006
        node = self.proto.node.add(name=name, op=op, device=device)
        node.input.extend(inputs)
        for key, value in attrs.items():
            set_attr(node.attr[key], value)
        return name

    def placeholder(self, name: str, shape: list[int | None] | None, dtype: int = F32) -> str:
        return self.node(name, "Placeholder", dtype=("type", dtype), shape=("shape", shape))

    def const(self, name: str, value: Any, dtype: Any = np.float32, inputs: list[str] = []) -> str:  # noqa: B006
        array = np.array(value, dtype)
        number = STRING if array.dtype == object else DType.from_np(array.dtype).tf_enum
        return self.node(name, "Const", inputs, dtype=("type", number), value=array)

    def unary(self, name: str, x: str, op: str = "Tanh", controls: list[str] = [], t: int = F32) -> str:  # noqa: B006
        return self.node(name, op, [x, *(f"^{c}" for c in controls)], T=("type", t))

    def binary(self, name: str, a: str, b: str, op: str = "AddV2", t: int = F32) -> str:
        return self.node(name, op, [a, b], T=("type", t))

    def matmul(self, name: str, a: str, b: str) -> str:
        return self.node(name, "MatMul", [a, b], T=("type", F32), transpose_a=False, transpose_b=False)

    def chain(self, prefix: str, x: str, n: int) -> str:
        for i in range(n):
            x = self.unary(f"{prefix}{i}", x)
        return x

    def string_work(self, name: str, x: str) -> str:
        """A float tensor that went through slow host ops."""
        self.node(f"{name}_s", "AsString", [x], T=("type", F32))
        return self.node(name, "StringToNumber", [f"{name}_s"], out_type=("type", F32))

    def function(self, name: str, args: dict[str, int], outs: dict[str, tuple[str, int]]) -> Any:
        f = self.proto.library.function.add()
        f.signature.name = name
        for arg, t in args.items():
            f.signature.input_arg.add(name=arg, type=t)
        for out, (value, t) in outs.items():
            f.signature.output_arg.add(name=out, type=t)
            f.ret[out] = value
        return f


def body_node(fn: Any, name: str, op: str, inputs: list[str], /, **attrs: Any) -> None:
    node = fn.node_def.add(name=name, op=op)
    node.input.extend(inputs)
    for key, value in attrs.items():
        set_attr(node.attr[key], value)


def cluster(graph_def: Any, outputs: list[str] | None = None, hints: list[str] | None = None, **options: Any) -> Clustering:
    """Graph, analysis and clusters in one."""
    graph = Graph(graph_def)
    fetches, targets = resolve_outputs(graph, outputs)
    names = [*(n for n, _ in fetches), *targets]
    analysis = analyse(graph, names, hints=parse_hints(hints or []), use_tf_shapes=False)
    return make_clusters(analysis, fetches, targets, **options)


def launches(clustering: Clustering) -> list[Launch]:
    """A launch with made-up code for every cluster."""
    return [Launch.of(import_cluster(clustering, c), f"code of {c.name}".encode()) for c in clustering.clusters]


def groups(clustering: Clustering) -> list[set[str]]:
    return [set(c.node_names) for c in clustering.clusters]


def model(name: str) -> Any:
    """A skeleton (or whole graph) of ``bench/models``."""
    path = MODELS / f"{name}.pb"
    return graph_from_bytes((path if path.exists() else MODELS / f"{name}.skel.pb").read_bytes())
