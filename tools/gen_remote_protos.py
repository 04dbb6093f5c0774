"""Write `disc_tf/remote/data/disc_tf_v1.binpb` from `proto/disc_tf/v1` (run by maintainers after a change).

usage: python tools/gen_remote_protos.py [--check]

The file is a FileDescriptorSet of the service's messages and of what they contain. Needs grpcio-tools (for protoc) and
googleapis-common-protos. --check: exit with 1 if the file is not what the declarations give.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile

from descriptors import closure
from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2
from google.rpc import status_pb2
from grpc_tools import protoc

ROOT = pathlib.Path(__file__).parent.parent
OUT = ROOT / "disc_tf" / "remote" / "data" / "disc_tf_v1.binpb"
PROTOS = ROOT / "proto"


def descriptor_set() -> bytes:
    """What `proto/disc_tf/v1/*.proto` declare, with all that they import."""
    files = closure(module.DESCRIPTOR for module in (duration_pb2, timestamp_pb2, status_pb2))
    names = sorted(str(p.relative_to(PROTOS)) for p in (PROTOS / "disc_tf" / "v1").glob("*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        known, made = pathlib.Path(scratch, "known.binpb"), pathlib.Path(scratch, "made.binpb")
        known.write_bytes(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString())
        arguments = [f"--descriptor_set_in={known}", f"--proto_path={PROTOS}", f"--descriptor_set_out={made}"]
        if protoc.main(["protoc", *arguments, *names]):
            sys.exit(1)
        ours = descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file
    return descriptor_pb2.FileDescriptorSet(file=[*files, *ours]).SerializeToString(deterministic=True)


def main() -> int:
    data = descriptor_set()
    if "--check" in sys.argv[1:]:
        return 0 if OUT.exists() and OUT.read_bytes() == data else 1
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_bytes(data)
    print(OUT.relative_to(ROOT), len(data), "bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
