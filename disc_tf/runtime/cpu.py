"""This machine's CPU as a compilation target."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

#: CPU features (names of /proc/cpuinfo) that each target needs, strongest first
TARGET_FEATURES: dict[str, tuple[str, ...]] = {
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "x86-64-v3": ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"),
    "x86-64-v2": ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"),
}

#: the same of extensions of a target, for which an artefact has code of its own where products of narrow types profit from it
EXTENSIONS: dict[str, tuple[str, ...]] = {"x86-64-v4-vnni-bf16": ("avx512_bf16",), "x86-64-v4-vnni": ("avx512_vnni",)}

#: of all that an artefact may have code for; each needs the features of those below it too
ISA_FEATURES: dict[str, tuple[str, ...]] = {**EXTENSIONS, **TARGET_FEATURES}


def features_of(isa: str) -> tuple[str, ...]:
    """All CPU features that code for an instruction set needs, its own and those below it."""
    names = list(ISA_FEATURES)
    below = names[names.index(isa) :]
    return tuple(f for t in reversed(below) for f in ISA_FEATURES[t])


def with_extensions(targets: Iterable[str]) -> list[str]:
    """The targets, and the extensions of them that an artefact may have code for."""
    given = list(targets)
    return [*given, *(isa for isa in reversed(EXTENSIONS) if any(isa.startswith(f"{t}-") for t in given))]


@functools.cache
def cpu_flags() -> frozenset[str]:
    """The feature names that the kernel reports for the first CPU; empty where there is no /proc/cpuinfo."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return frozenset(line.split(":", 1)[1].split())
    except OSError:
        pass
    return frozenset()


def native_target() -> str:
    """The strongest target that this machine runs. ``RuntimeError`` if it runs none."""
    flags = cpu_flags()
    need: set[str] = set()
    best = ""
    for target in reversed(TARGET_FEATURES):
        need |= set(TARGET_FEATURES[target])
        if need <= flags:
            best = target
    if not best:
        raise RuntimeError("this CPU has no x86-64-v2 (SSE4.2): disc_tf has no code for it")
    return best


def native_extension() -> str:
    """The strongest extension of a target that this machine runs, "" if it runs none."""
    return next((isa for isa in EXTENSIONS if set(features_of(isa)) <= cpu_flags()), "")
