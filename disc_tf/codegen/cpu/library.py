"""Kernels of kind `library`: ops that are neither elementwise nor a reduction of a tensor's axes.

Each op has its own emitter here or in a file of its own (`scan`, `scatter`, `window`, `sorting`); those that a loop of
generated code serves badly are calls of the runtime's library functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu.data_dependent import emit_combined_nms, emit_nms, emit_nonzero, emit_partition, emit_search, emit_unique
from disc_tf.codegen.cpu.emit import emitter
from disc_tf.codegen.cpu.linalg import emit_linalg
from disc_tf.codegen.cpu.scan import emit_scan
from disc_tf.codegen.cpu.scatter import emit_scatter
from disc_tf.codegen.cpu.segments import emit_fill_rows, emit_segment
from disc_tf.codegen.cpu.sorting import emit_sort, emit_topk
from disc_tf.codegen.cpu.window import emit_reduce_window
from disc_tf.codegen.kernel import Kernel, LibraryCall, Variant
from disc_tf.fusion.types import Fusion
from disc_tf.ir.core import Op

OpEmitter = Callable[[Fusion, Op, EmitContext], Sequence[Kernel | LibraryCall]]
OP_EMITTERS: dict[str, OpEmitter] = {
    "disc.cholesky": emit_linalg,
    "disc.combined_nms": emit_combined_nms,
    "disc.fill_rows": emit_fill_rows,
    "disc.lu": emit_linalg,
    "disc.lu_solve": emit_linalg,
    "disc.nms": emit_nms,
    "disc.nonzero": emit_nonzero,
    "disc.partition": emit_partition,
    "disc.scan": emit_scan,
    "disc.search": emit_search,
    "disc.segment": emit_segment,
    "disc.topk": emit_topk,
    "disc.triangular_solve": emit_linalg,
    "disc.unique": emit_unique,
    "reduce_window": emit_reduce_window,
    "scatter": emit_scatter,
    "sort": emit_sort,
}


@emitter("library")
def emit_library(fusion: Fusion, ctx: EmitContext) -> list[Variant]:
    """One variant; ValueError for an op that has no code."""
    op: Op = fusion.attrs["call"]
    found = OP_EMITTERS.get(op.name)
    if found is None:
        raise ValueError(f"{op.name} has no CPU code (nodes {', '.join(fusion.nodes[:3]) or 'none'})")
    return [Variant(None, tuple(found(fusion, op, ctx)))]
