"""Kernels that make prepared constants: a weight into the panels that the product kernels read."""

from __future__ import annotations

from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu import lanes
from disc_tf.codegen.cpu.helpers.pack import pack_symbol
from disc_tf.codegen.cpu.product_frame import ProductFrame
from disc_tf.codegen.kernel import Kernel
from disc_tf.costs import grain, point_ps
from disc_tf.fusion.views import View
from disc_tf.ir.core import Value
from disc_tf.ir.dims import ceildiv


def emit_pack(view: View, out: Value, layout: tuple, ctx: EmitContext) -> Kernel:
    """The kernel that makes a prepared constant in the ``("panel", NR)`` layout.

    view: axes (k, n) over the source, any strides, any dtype. out: the packed value (ceil(n / NR) * NR * k
    elements). One task a panel.
    """
    kind, nr = layout
    if kind != "panel" or len(view.axes) != 2:
        raise ValueError(f"no packing kernel for layout {layout} of {view}")
    frame = ProductFrame(ctx)
    b = frame.b
    elem = lanes.mem_elem(out.dtype)
    start, target = frame.view_start(view, elem), frame.buffer(out)
    k, n = (frame.dim(a.extent) for a in view.axes)
    stride_k, stride_n = (frame.dim(a.stride) for a in view.axes)
    j0 = b.mul(frame.begin, nr)
    columns = b.sub(b.smin(n, b.mul(frame.end, nr)), j0)
    frame.call(
        pack_symbol(elem.bits, nr),
        [
            b.gep(start, b.mul(j0, stride_n), elem),
            stride_k,
            stride_n,
            b.gep(target, b.mul(j0, k), elem),
            k,
            columns,
        ],
    )
    tasks = ceildiv(view.axes[1].extent, nr)
    ps = point_ps(ctx.target.name, (), 2 * elem.bytes)
    return frame.kernel(f"pack_{out.dtype}_{nr}", tasks, grain(view.axes[0].extent * nr, ps))
