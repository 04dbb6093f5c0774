"""Write `disc_tf/frontend/data/` from an installed TensorFlow (run by maintainers, rarely).

usage: python tools/extract_tf_protos.py

* `tf_protos.binpb`: a FileDescriptorSet of the messages that are read and written (GraphDef, SavedModel, its fingerprint, a checkpoint's
  object graph, Example, and what they contain), so that graphs and SavedModels are handled without importing TensorFlow.
* `tf_ops.binpb.z`: zlib of an OpList of all registered ops without documentation: argument names and types, attributes,
  statefulness. Needed to count outputs and to write function bodies.

Run with the newest TensorFlow supported; messages are read with unknown fields kept, so older and newer graphs survive.
"""

from __future__ import annotations

import pathlib
import zlib

import tensorflow as tf
from descriptors import closure
from google.protobuf import descriptor_pb2
from tensorflow.core.example import example_pb2
from tensorflow.core.framework import graph_pb2, op_def_pb2
from tensorflow.core.protobuf import fingerprint_pb2, saved_model_pb2, trackable_object_graph_pb2
from tensorflow.python.client import pywrap_tf_session

OUT = pathlib.Path(__file__).parent.parent / "disc_tf" / "frontend" / "data"


def descriptor_set() -> bytes:
    """The files of the messages and all that they import, dependencies first."""
    roots = (graph_pb2, saved_model_pb2, fingerprint_pb2, trackable_object_graph_pb2, example_pb2)
    files = closure(root.DESCRIPTOR for root in roots)
    return descriptor_pb2.FileDescriptorSet(file=files).SerializeToString(deterministic=True)


def op_list() -> bytes:
    ops = op_def_pb2.OpList.FromString(
        pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())
    )
    for op in ops.op:
        op.summary = op.description = ""
        if op.HasField("deprecation"):
            op.deprecation.explanation = ""
        for arg in [*op.input_arg, *op.output_arg]:
            arg.description = ""
            arg.ClearField("experimental_full_type")
            arg.ClearField("handle_data")
        for attr in op.attr:
            attr.description = ""
    kept = sorted((op for op in ops.op), key=lambda op: op.name)
    del ops.op[:]
    ops.op.extend(kept)
    return zlib.compress(ops.SerializeToString(deterministic=True), 9)


def main() -> None:
    OUT.mkdir(exist_ok=True)
    for name, data in (("tf_protos.binpb", descriptor_set()), ("tf_ops.binpb.z", op_list())):
        (OUT / name).write_bytes(data)
        print(name, len(data), "from TensorFlow", tf.__version__)


if __name__ == "__main__":
    main()
