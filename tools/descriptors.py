"""What the scripts beside this share: message declarations and all that they need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf import descriptor_pb2


def closure(files: Iterable[Any]) -> list[descriptor_pb2.FileDescriptorProto]:
    """The files (FileDescriptors) and all that they import, dependencies first."""
    found: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    work = [(file, False) for file in files]
    while work:
        file, ready = work.pop()
        if file.name in found:
            continue
        if not ready:
            work.append((file, True))
            work.extend((dependency, False) for dependency in file.dependencies)
            continue
        proto = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(proto)
        proto.ClearField("source_code_info")
        found[file.name] = proto
    return list(found.values())
