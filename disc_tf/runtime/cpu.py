"""This machine's CPU as a compilation target."""

from __future__ import annotations

import functools
from pathlib import Path

#: CPU features (names of /proc/cpuinfo) that each target needs, strongest first
TARGET_FEATURES: dict[str, tuple[str, ...]] = {
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "x86-64-v3": ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"),
    "x86-64-v2": ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"),
}


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
