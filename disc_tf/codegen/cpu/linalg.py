"""Dense linear algebra, all by functions of the runtime's library (library_linalg.cc)."""

from __future__ import annotations

from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu.sorting import dtype_code, targets_of
from disc_tf.codegen.kernel import LibraryCall
from disc_tf.fusion.types import Fusion
from disc_tf.ir.core import Op
from disc_tf.ir.dims import Dim


def emit_linalg(fusion: Fusion, op: Op, ctx: EmitContext) -> list[LibraryCall]:
    """The library function of the op's name: operands, results; dtype, batch, n, right sides, flags."""
    a, b = op.operands[0], op.operands[-1]
    flags = [int(op.attrs.get(name, False)) for name in ("lower", "transpose")]
    scalars = [dtype_code(a), a.dims[0], a.dims[1], b.dims[2], *map(Dim.of, flags)]
    name = op.name.removeprefix("disc.")
    return [LibraryCall(name, (*op.operands, *targets_of(fusion, op)), tuple(map(ctx.env.simplify, scalars)))]
