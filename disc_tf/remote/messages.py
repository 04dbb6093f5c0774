"""The messages of `proto/disc_tf/v1`, in a descriptor pool of their own (there is no generated code)."""

from __future__ import annotations

import functools
from typing import Any

from google.protobuf import descriptor_pool, message_factory

from disc_tf.frontend.tfproto import new_pool

PACKAGE = "disc_tf.v1"


@functools.cache
def pool() -> descriptor_pool.DescriptorPool:
    """The descriptor pool."""
    return new_pool("disc_tf.remote", "data/disc_tf_v1.binpb")


@functools.cache
def message_class(name: str) -> Any:
    """The class of ``"OptimizeRequest"``, ``"CompiledCluster.Shape"`` .... KeyError if there is none."""
    return message_factory.GetMessageClass(pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))


def new(name: str, **fields: Any) -> Any:
    """A new message."""
    return message_class(name)(**fields)
