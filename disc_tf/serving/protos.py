"""The messages of TensorFlow Serving's protocols, in a descriptor pool of their own.

The pool keeps them apart from those of the tensorflow-serving-api package and from TensorFlow's: all may be in one process, in any version.
There is no generated code, so only the protobuf runtime's own wire format counts. Written down in `proto/tensorflow_serving/serving.proto`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from disc_tf.frontend.tfproto import new_pool

if TYPE_CHECKING:
    from google.protobuf.descriptor_pool import DescriptorPool


@functools.cache
def pool() -> DescriptorPool:
    """The descriptor pool."""
    return new_pool("disc_tf.serving", "data/serving_protos.binpb")


@functools.cache
def message_class(name: str) -> Any:
    """The class of ``"serving.PredictRequest"``, ``"TensorProto"`` ....

    Names are relative to the package ``tensorflow``. KeyError if there is none.
    """
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(pool().FindMessageTypeByName(f"tensorflow.{name}"))


def serving(name: str, **fields: Any) -> Any:
    """A new message of package ``tensorflow.serving``."""
    return message_class(f"serving.{name}")(**fields)
