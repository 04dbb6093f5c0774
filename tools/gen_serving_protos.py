"""Write `disc_tf/serving/data/serving_protos.binpb` from `proto/tensorflow_serving/serving.proto` (run by maintainers after a change).

usage: python tools/gen_serving_protos.py

The file is a FileDescriptorSet of the serving messages and of all TensorFlow messages that they contain, so that clients and tools need no
TensorFlow. Needs an installed TensorFlow (for its own messages) and grpcio-tools (for protoc).
"""

from __future__ import annotations

import pathlib
import sys
import tempfile

from descriptors import closure
from google.protobuf import any_pb2, descriptor_pb2, wrappers_pb2
from grpc_tools import protoc
from tensorflow.core.example import example_pb2
from tensorflow.core.protobuf import meta_graph_pb2, named_tensor_pb2, saved_model_pb2

ROOT = pathlib.Path(__file__).parent.parent
OUT = ROOT / "disc_tf" / "serving" / "data" / "serving_protos.binpb"
PROTO = ROOT / "proto" / "tensorflow_serving" / "serving.proto"


def main() -> int:
    roots = [any_pb2, wrappers_pb2, example_pb2, meta_graph_pb2, named_tensor_pb2, saved_model_pb2]
    files = closure(module.DESCRIPTOR for module in reversed(roots))
    with tempfile.TemporaryDirectory() as scratch:
        known, made = pathlib.Path(scratch, "known.binpb"), pathlib.Path(scratch, "made.binpb")
        known.write_bytes(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString())
        code = protoc.main(
            ["protoc", f"--descriptor_set_in={known}", f"--proto_path={PROTO.parent}", f"--descriptor_set_out={made}", PROTO.name]
        )
        if code:
            return code
        ours = descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_bytes(descriptor_pb2.FileDescriptorSet(file=[*files, *ours]).SerializeToString(deterministic=True))
    print(OUT.relative_to(ROOT), OUT.stat().st_size, "bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
