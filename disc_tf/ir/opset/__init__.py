"""The op set: one `OpDef` per op, by family. Importing this package fills `OPS`."""

from disc_tf.ir.opset import control, convolution, data_dependent, elementwise, indexing, reductions, segments, shaping  # noqa: F401  (they register)
from disc_tf.ir.opset.base import OPS, Attr, EvalContext, IRError, OpDef, compatible, op_def
from disc_tf.ir.opset.control import CheckFailed

__all__ = ["OPS", "Attr", "CheckFailed", "EvalContext", "IRError", "OpDef", "compatible", "op_def"]
