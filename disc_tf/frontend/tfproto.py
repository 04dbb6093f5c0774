"""TensorFlow's graph messages without TensorFlow.

The message classes are made from a checked-in descriptor set in a descriptor pool of our own, so that they live beside TensorFlow's
in one process without a clash. Wire format and field names are TensorFlow's; fields that they do not know are kept on a round trip.
The rest of the frontend is duck-typed: TensorFlow's own message objects work as well. protobuf is imported with the first message: the
command's flags and stand-alone files need none.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import TYPE_CHECKING, Any

from disc_tf.frontend.errors import GraphError

if TYPE_CHECKING:
    from google.protobuf.descriptor_pool import DescriptorPool


def new_pool(package: str, file: str) -> DescriptorPool:
    """A descriptor pool with the messages of a descriptor set that lies in a package."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    data = resources.files(package).joinpath(file).read_bytes()
    pool = descriptor_pool.DescriptorPool()
    for declared in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.AddSerializedFile(declared.SerializeToString())
    return pool


@functools.cache
def _pool() -> DescriptorPool:
    return new_pool("disc_tf.frontend", "data/tf_protos.binpb")


@functools.cache
def message_class(name: str) -> Any:
    """The class of a message such as ``"GraphDef"`` (package ``tensorflow``). KeyError if there is none."""
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"tensorflow.{name}"))


def parse(name: str, data: bytes) -> Any:
    """Parse a serialized message. ``GraphError`` for bytes that are not one."""
    from google.protobuf.message import DecodeError

    try:
        return message_class(name).FromString(bytes(data))
    except (DecodeError, RecursionError, MemoryError) as e:
        raise GraphError(f"not a serialized {name} ({len(data)} bytes): {e}") from e


def graph_from_bytes(data: bytes) -> Any:
    """A GraphDef from its wire format. ``GraphError`` for truncated or foreign bytes."""
    return parse("GraphDef", data)


def graph_from_text(text: str) -> Any:
    """A GraphDef from protobuf text format (``.pbtxt``). ``GraphError`` if it does not parse."""
    from google.protobuf import text_format

    try:
        return text_format.Parse(text, message_class("GraphDef")())
    except (text_format.ParseError, RecursionError, UnicodeError) as e:
        raise GraphError(f"not a GraphDef in text format: {e}") from e


def serialized(message: Any) -> bytes:
    """The deterministic wire format (maps sorted by key): equal messages of equal classes give equal bytes."""
    try:
        return message.SerializeToString(deterministic=True)
    except ValueError as e:  # over 2 GiB
        raise GraphError(f"message cannot be serialized: {e}") from e


def field(message: Any, name: str, default: Any = None) -> Any:
    """A field that older TensorFlow versions lack."""
    return getattr(message, name, default)
