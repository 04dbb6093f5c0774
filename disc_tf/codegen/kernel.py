"""What kernel emitters give to the program builder: kernels, their arguments, and the guards that choose among them.

Machine signature of every kernel: ``void k(const disc_kernel_args*, i64 begin, i64 end, ptr scratch)`` with
``disc_kernel_args {bufs, scalars, err}`` (docs/architecture.md, sections 5 and 6).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from disc_tf.fusion.types import PrepareEntry
from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim

#: comparison of two dims in a guard
GUARD_OPS = ("eq", "ne", "lt", "le", "gt", "ge")


@dataclasses.dataclass(frozen=True)
class Guard:
    """All of ``(a, op, b)`` hold, op in `GUARD_OPS`; evaluated by the host from run-time dims."""

    terms: tuple[tuple[Dim, str, Dim], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Temp:
    """Memory that lives only between the kernels of one variant (partial sums, packed operands). ``bytes`` is symbolic."""

    name: str
    bytes: Dim


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One kernel launch.

    symbol: LLVM name, made of the op names. llvm: the definition(s), self-contained but for `declarations` and `helpers`.
    helpers: symbols of shared helper functions (name -> definition text). buffers: in order of ``args->bufs``. scalars: in order of
    ``args->scalars`` (i64). tasks: the kernel runs ``[begin, end)`` of ``[0, tasks)``. grain: least tasks in a chunk (fewer run on the
    caller). scratch: bytes per worker.
    """

    symbol: str
    llvm: str
    buffers: tuple[Value | Temp | PrepareEntry, ...]
    scalars: tuple[Dim, ...]
    tasks: Dim
    grain: Dim = dataclasses.field(default_factory=lambda: Dim.of(1))
    scratch: Dim = dataclasses.field(default_factory=lambda: Dim.of(0))
    declarations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    globals: Mapping[str, str] = dataclasses.field(default_factory=dict)
    helpers: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class LibraryCall:
    """A call of a RAL library function (``dispatch``) in the place of a kernel."""

    name: str
    buffers: tuple[Value | Temp | PrepareEntry, ...]
    scalars: tuple[Dim, ...]


@dataclasses.dataclass(frozen=True)
class Variant:
    """One version of a fusion: run if ``guard`` holds; the last variant's guard is None."""

    guard: Guard | None
    kernels: tuple[Kernel | LibraryCall, ...]
