"""Ops whose results' size depends on data, all by functions of the runtime's library (library_data.cc, library_nms.cc)."""

from __future__ import annotations

from collections.abc import Sequence

from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu.sorting import dtype_code, targets_of
from disc_tf.codegen.kernel import LibraryCall, Temp
from disc_tf.fusion.types import Fusion
from disc_tf.ir.core import Op
from disc_tf.ir.dims import Dim, DimLike, ceildiv, dmin, product

CHUNK = 65536  # kChunk of library_data.cc


def _call(ctx: EmitContext, name: str, buffers: Sequence, scalars: Sequence[DimLike]) -> list[LibraryCall]:
    return [LibraryCall(name, tuple(buffers), tuple(ctx.env.simplify(Dim.of(s)) for s in scalars))]


def emit_nms(fusion: Fusion, op: Op, ctx: EmitContext) -> list[LibraryCall]:
    """Library function ``nms``."""
    n, room = op.operands[1].dims[0], op.results[0].dims[0]
    limit = Dim.of(op.attrs["limit"])
    heap, boxes = Temp("nms_heap", n * 12), Temp("nms_boxes", dmin(n, room) * 20)
    scalars = [dtype_code(op.operands[1]), n, limit, room, int(op.attrs["overlaps"])]
    return _call(ctx, "nms", [*op.operands, *targets_of(fusion, op), heap, boxes], scalars)


def emit_combined_nms(fusion: Fusion, op: Op, ctx: EmitContext) -> list[LibraryCall]:
    """Library function ``combined_nms``."""
    batch, n, classes = op.operands[1].dims
    per_class, room = Dim.of(op.attrs["per_class"]), Dim.of(op.attrs["room"])
    counts, kept = Temp("nms_counts", batch * classes * 8), Temp("nms_kept", batch * classes * dmin(per_class, n) * 8)
    scalars = [batch, n, op.operands[0].dims[2], classes, per_class, room, int(op.attrs["clip"])]
    return _call(ctx, "combined_nms", [*op.operands, *targets_of(fusion, op), counts, kept], scalars)


def emit_nonzero(fusion: Fusion, op: Op, ctx: EmitContext) -> list[LibraryCall]:
    """Library function ``nonzero``."""
    (x,) = op.operands
    total = product(x.dims)
    work = Temp("nonzero_starts", (ceildiv(total, CHUNK) + 1) * 8)
    return _call(ctx, "nonzero", [x, *targets_of(fusion, op), work], [total, x.rank, *x.dims])


def emit_partition(fusion: Fusion, op: Op, ctx: EmitContext) -> list[LibraryCall]:
    """Library function ``partition``."""
    (ids,) = op.operands
    parts = op.attrs["parts"]
    work = Temp("partition_next", Dim.of(parts * 8))
    return _call(ctx, "partition", [ids, *targets_of(fusion, op), work], [ids.dims[0], parts])


def emit_search(fusion: Fusion, op: Op, ctx: EmitContext) -> list[LibraryCall]:
    """Library function ``search``."""
    line, values = op.operands
    upper = int(op.attrs["side"] == "upper")
    scalars = [dtype_code(line), *line.dims, values.dims[1], upper, op.result.dtype.bytes]
    return _call(ctx, "search", [line, values, *targets_of(fusion, op)], scalars)


def emit_unique(fusion: Fusion, op: Op, ctx: EmitContext) -> list[LibraryCall]:
    """Library function ``unique``."""
    (x,) = op.operands
    rows, width = x.dims
    work = Temp("unique_table", rows * 16)
    scalars = [dtype_code(x), rows, width, op.results[1].dtype.bytes, int(op.attrs["distinct_zeros"])]
    return _call(ctx, "unique", [x, *targets_of(fusion, op), work], scalars)
