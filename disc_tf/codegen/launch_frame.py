"""What a launch hands to a kernel (`disc_kernel_args`), in the stack frame of the function that launches."""

from __future__ import annotations

from collections.abc import Sequence

from disc_tf.codegen.kernel import Kernel, LibraryCall
from disc_tf.codegen.llvm import I64, PTR, FnBuilder, V


class LaunchFrame:
    """Room for ``buffers`` addresses and ``scalars`` numbers, which all launches of a function share one after the other. ``args``: the
    address of the whole."""

    def __init__(self, b: FnBuilder, buffers: int, scalars: int) -> None:
        self._b = b
        self.buffers = b.alloca(PTR, max(buffers, 1), 16)
        self.scalars = b.alloca(I64, max(scalars, 1), 16)
        self.args = b.alloca(I64, 3, 16)
        b.store(self.buffers, self.args, 8)
        b.store(self.scalars, b.gep(self.args, 1, I64), 8)

    @staticmethod
    def of(b: FnBuilder, kernels: Sequence[Kernel | LibraryCall]) -> LaunchFrame:
        """Room for each of these."""
        return LaunchFrame(b, max((len(k.buffers) for k in kernels), default=0), max((len(k.scalars) for k in kernels), default=0))

    def report_to(self, cell: V) -> None:
        """Where kernels write the first error."""
        self._b.store(cell, self._b.gep(self.args, 2, I64), 8)

    def fill(self, buffers: Sequence[V], scalars: Sequence[V]) -> None:
        b = self._b
        for i, p in enumerate(buffers):
            b.store(p, b.gep(self.buffers, i, I64), 8)
        for i, v in enumerate(scalars):
            b.store(v, b.gep(self.scalars, i, I64), 8)
