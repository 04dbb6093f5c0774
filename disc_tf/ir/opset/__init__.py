"""The op set: one `OpDef` per op, by family. Importing this package fills `OPS`."""

from disc_tf.ir.opset import (  # noqa: F401  (they register)
    control,
    convolution,
    data_dependent,
    elementwise,
    indexing,
    linalg,
    nms,
    reductions,
    segments,
    shaping,
)
from disc_tf.ir.opset.base import OPS, Attr, EvalContext, IRError, OpDef, compatible, op_def
from disc_tf.ir.opset.control import CheckFailed

__all__ = ["OPS", "Attr", "CheckFailed", "EvalContext", "IRError", "OpDef", "compatible", "op_def"]
