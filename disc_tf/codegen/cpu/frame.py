"""The frame of a kernel function: its arguments, lazily loaded in the entry block, and the `Kernel` record.

    frame = KernelFrame("k_add", target, env)
    p = frame.buffer(value)      # pointer; the buffer is added to the kernel's list
    n = frame.dim(dim)           # i64; a symbolic dim becomes a scalar argument
    ... frame.b, frame.begin, frame.end, frame.scratch ...
    kernel = frame.finish(tasks=..., grain=...)
"""

from __future__ import annotations

from collections.abc import Iterable

from disc_tf.codegen.cpu.target import CpuTarget
from disc_tf.codegen.kernel import Kernel, Temp
from disc_tf.codegen.llvm import I64, PTR, FnBuilder, V, const
from disc_tf.fusion.types import PrepareEntry
from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, DimLike
from disc_tf.ir.shape_env import ShapeEnv

Buffer = Value | Temp | PrepareEntry


class KernelFrame:
    """Builds one kernel of the machine signature `void k(args, begin, end, scratch)`."""

    def __init__(self, symbol: str, target: CpuTarget, env: ShapeEnv, buffers: Iterable[Buffer] = ()) -> None:
        self.symbol = symbol
        self.target = target
        self.env = env
        self.b = FnBuilder(
            symbol, [("args", PTR), ("begin", I64), ("end", I64), ("scratch", PTR)], fma=target.fma,
            f16c=target.f16c, attrs=target.fn_attrs, hoist=True, noalias=("scratch",))
        self._args, self.begin, self.end, self.scratch = self.b.params
        self._buffers: dict[Buffer, int] = {}
        self._scalars: dict[Dim, int] = {}
        for buffer in buffers:
            self._slot(buffer)

    def _slot(self, buffer: Buffer) -> int:
        return self._buffers.setdefault(buffer, len(self._buffers))

    def _field(self, offset: int) -> V:
        b = self.b
        p = b.in_entry(PTR, f"getelementptr i8, ptr {self._args.name}, i64 {offset}") if offset else self._args
        return b.in_entry(PTR, f"load ptr, ptr {p.name}, align 8")

    def buffer(self, buffer: Buffer) -> V:
        """The buffer's address."""
        b, table = self.b, self._field(0)
        slot = self._slot(buffer)
        p = b.in_entry(PTR, f"getelementptr ptr, ptr {table.name}, i64 {slot}")
        return b.in_entry(PTR, f"load ptr, ptr {p.name}, align 8")

    def dim(self, d: DimLike) -> V:
        """The run-time value of a dim."""
        d = self.env.simplify(Dim.of(d))
        if d.is_static:
            return const(int(d), I64)
        b, table = self.b, self._field(8)
        slot = self._scalars.setdefault(d, len(self._scalars))
        p = b.in_entry(PTR, f"getelementptr i64, ptr {table.name}, i64 {slot}")
        return b.in_entry(I64, f"load i64, ptr {p.name}, align 8")

    def finish(self, tasks: DimLike, grain: DimLike = 1, scratch: DimLike = 0) -> Kernel:
        """Close the function."""
        self.b.ret()
        simplify = self.env.simplify
        return Kernel(
            symbol=self.symbol, llvm=self.b.text(), buffers=tuple(self._buffers), scalars=tuple(self._scalars),
            tasks=simplify(Dim.of(tasks)), grain=Dim.of(grain), scratch=simplify(Dim.of(scratch)),
            declarations=dict(self.b.declarations))
