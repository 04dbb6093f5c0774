"""What the emitters may know about a CPU target: vector width, FMA, registers, LLVM's names for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from disc_tf.tuning import Table, shipped

#: CPU features of dot products of narrow types, by the names of /proc/cpuinfo
VNNI, BF16_DOT = "avx512_vnni", "avx512_bf16"


@dataclass(frozen=True)
class CpuTarget:
    """One x86-64 micro-architecture level, perhaps with more instructions.

    `width_bytes` is the vector register size; `registers` how many there are. `masked_memory` says whether masked
    loads and stores are instructions (else LLVM expands them into branches), `f16c` whether half <-> float
    conversions are. `tuning` is the table that schedules are chosen from. `dots` are features beyond the level (`VNNI`,
    `BF16_DOT`), for which an artefact has code of its own where the program gains by it; `extension` ends the name of that
    code's instruction set.
    """

    name: str
    width_bytes: int
    registers: int
    fma: bool
    f16c: bool
    masked_memory: bool
    cpu: str
    tuning: Table
    features: str = ""
    triple: str = "x86_64-unknown-linux-gnu"
    dots: frozenset[str] = frozenset()
    extension: str = ""

    @property
    def isa(self) -> str:
        """What artefacts call its code: the level's name, or that of its extension."""
        return self.name + self.extension

    def width(self, dtype_bytes: int) -> int:
        """Lanes of one register for elements of `dtype_bytes` bytes."""
        return self.width_bytes // dtype_bytes

    @property
    def fn_attrs(self) -> str:
        """Function attributes: without the width preference LLVM keeps to 256 bits on x86-64-v4."""
        bits = self.width_bytes * 8
        return f'"prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}" "frame-pointer"="none"'


V2 = CpuTarget("x86-64-v2", 16, 16, fma=False, f16c=False, masked_memory=False, cpu="x86-64-v2", tuning=shipped("x86-64-v2"))
V3 = CpuTarget("x86-64-v3", 32, 16, fma=True, f16c=True, masked_memory=True, cpu="x86-64-v3", tuning=shipped("x86-64-v3"))
V4 = CpuTarget("x86-64-v4", 64, 32, fma=True, f16c=True, masked_memory=True, cpu="x86-64-v4", tuning=shipped("x86-64-v4"),
               features="-prefer-256-bit")

V4_VNNI = replace(V4, features=f"{V4.features},+avx512vnni", dots=frozenset({VNNI}), extension="-vnni")
V4_VNNI_BF16 = replace(V4, features=f"{V4_VNNI.features},+avx512bf16", dots=frozenset({VNNI, BF16_DOT}), extension="-vnni-bf16")
_EXTENDED = {V4.name: (V4_VNNI, V4_VNNI_BF16)}

TARGETS: dict[str, CpuTarget] = {t.name: t for t in (V2, V3, V4)}


def target_named(name: str, tables: Iterable[Table] = ()) -> CpuTarget:
    """The target of that name, with the one of ``tables`` that is its own, if any; ValueError lists the names there are."""
    try:
        target = TARGETS[name]
    except KeyError:
        raise ValueError(f"unknown target {name!r}; known: {', '.join(TARGETS)}") from None
    return next((replace(target, tuning=t) for t in tables if t.isa == name), target)


def extended(target: CpuTarget, wanted: frozenset[str]) -> list[CpuTarget]:
    """The extensions of a level that a program gains by which has products for the features ``wanted``, weakest first: each has one of
    these that those before it lack."""
    out: list[CpuTarget] = []
    have: frozenset[str] = frozenset()
    for more in _EXTENDED.get(target.name, ()):
        if more.dots & wanted > have:
            have = more.dots & wanted
            out.append(replace(more, tuning=target.tuning))
    return out
