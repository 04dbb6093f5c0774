"""Kernels that make prepared constants: a weight into the panels that the product kernels read."""

from __future__ import annotations

from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu import lanes
from disc_tf.codegen.cpu.helpers.pack import pack_symbol
from disc_tf.codegen.cpu.helpers.words import panel_words, word_pack_symbol
from disc_tf.codegen.cpu.product_frame import ProductFrame
from disc_tf.codegen.kernel import Kernel
from disc_tf.codegen.llvm import I32
from disc_tf.costs import grain, point_ps
from disc_tf.fusion.views import View
from disc_tf.ir.core import Value
from disc_tf.ir.dims import ceildiv


def emit_pack(view: View, out: Value, layout: tuple, ctx: EmitContext) -> Kernel:
    """The kernel that makes a prepared constant in the ``("panel", NR)`` or ``("words", NR, elements of a word)`` layout.

    view: axes (k, n) over the source, any strides, any dtype. out: the packed value, ceil(n / NR) panels. One task a panel.
    """
    kind, nr, *words = layout
    if kind not in ("panel", "words") or len(view.axes) != 2:
        raise ValueError(f"no packing kernel for layout {layout} of {view}")
    frame = ProductFrame(ctx)
    b = frame.b
    assert view.source is not None
    stored = view.source.dtype
    elem = lanes.mem_elem(stored)
    start, target = frame.view_start(view, elem), frame.buffer(out)
    k, n = (frame.dim(a.extent) for a in view.axes)
    stride_k, stride_n = (frame.dim(a.stride) for a in view.axes)
    j0 = b.mul(frame.begin, nr)
    columns = b.sub(b.smin(n, b.mul(frame.end, nr)), j0)
    if words:
        (group,) = words
        symbol, to = word_pack_symbol(stored, group, nr), b.gep(target, b.mul(j0, panel_words(b, k, group)), I32)
    else:
        symbol, to = pack_symbol(elem.bits, nr), b.gep(target, b.mul(j0, k), elem)
    frame.call(symbol, [b.gep(start, b.mul(j0, stride_n), elem), stride_k, stride_n, to, k, columns])
    tasks = ceildiv(view.axes[1].extent, nr)
    ps = point_ps(ctx.target.name, (), 2 * elem.bytes)
    return frame.kernel(f"pack_{out.dtype}_{nr}", tasks, grain(view.axes[0].extent * nr, ps))
