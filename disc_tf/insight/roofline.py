"""What this machine can do at most: multiply-adds a second, and bytes a second from each level of its memory.

Measured by a few dozen lines of LLVM text, one copy a thread, with working sets that follow from the sizes of the caches. What becomes of
the numbers is `costs`: `Machine.least_us` is the roofline model (Williams, Waterman, Patterson 2009), the time below which nothing can be
done that needs so many operations and bytes.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from disc_tf.codegen.cpu.target import CpuTarget, target_named
from disc_tf.costs import Machine
from disc_tf.runtime.cpu import native_target

#: bytes of caches where the system says nothing: first and second level of a core, third level
_CACHES = (32 << 10, 1 << 20, 32 << 20)
#: bytes that a thread has of the third level at most, as far as is counted on here: others use it too
_THIRD = 32 << 20
#: bytes of a thread's working set in memory
_MEMORY = 128 << 20
_ACCUMULATORS = 12
#: what a thread does in a round, about
_ROUND_NS = 5_000_000


@functools.cache
def measure(threads: int) -> Machine:
    """The limits of this machine for ``threads`` threads; takes about half a second, once a process."""
    target = target_named(native_target())
    engine, fma, copy = _code(target)
    lanes = target.width(4)
    per_step = _ACCUMULATORS * lanes * 2
    flops = _rate([functools.partial(fma, 1 << 14)] * threads, per_step * (1 << 14))
    caches = cache_sizes()
    bandwidth = []
    for size, limit in working_sets(caches or _CACHES):
        arrays = [(np.zeros(size // 8, np.float32), np.ones(size // 8, np.float32)) for _ in range(threads)]
        repeats = max(1, (4 << 20) // size)

        def move(pair: tuple[np.ndarray, np.ndarray], repeats: int = repeats) -> None:
            target_array, source = pair
            copy(target_array.ctypes.data, source.ctypes.data, source.nbytes // target.width_bytes, repeats)

        moved = _rate([functools.partial(move, pair) for pair in arrays], size * repeats)
        bandwidth.append((limit * threads, moved))
    del engine
    return Machine(target.name, threads, flops, tuple(bandwidth), caches)


def cache_sizes(directory: str = "/sys/devices/system/cpu/cpu0/cache") -> tuple[int, ...]:
    """Bytes of the caches that hold data, nearest first, as Linux says; nothing where it does not."""
    found: dict[int, int] = {}
    for index in Path(directory).glob("index*"):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            if kind in ("Data", "Unified"):
                found[int(level)] = int(size[:-1]) << {"K": 10, "M": 20, "G": 30}[size[-1]]
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return tuple(found[level] for level in sorted(found))


def working_sets(caches: Sequence[int]) -> list[tuple[int, int]]:
    """(bytes that a thread works on while bandwidth is measured, bytes up to which it is taken to hold) of each cache, and of memory."""
    near = [(size // 2, size) for size in caches[:2]]
    third = [(min(size, _THIRD) // 4, min(size, _THIRD)) for size in caches[2:3]]
    return [(max(size // 4096, 1) * 4096, limit) for size, limit in (*near, *third)] + [(_MEMORY, _MEMORY)]


def _rate(work: Sequence[Callable[[], None]], amount: float) -> float:
    """``amount`` a nanosecond, all threads together: the best of some rounds after a first one that counts for nothing.

    A round is timed from where all threads stand ready, and is long beside what it takes to let them go.
    """
    start = time.perf_counter_ns()
    work[0]()
    times = max(4, _ROUND_NS // max(time.perf_counter_ns() - start, 1))
    gate = threading.Barrier(len(work))
    rounds = 4
    spans: list[list[tuple[int, int]]] = [[] for _ in range(rounds)]

    def run(one: Callable[[], None]) -> None:
        for found in spans:
            gate.wait()
            begin = time.perf_counter_ns()
            for _ in range(times):
                one()
            found.append((begin, time.perf_counter_ns()))

    threads = [threading.Thread(target=run, args=(w,)) for w in work[1:]]
    for t in threads:
        t.start()
    run(work[0])
    for t in threads:
        t.join()
    return max(amount * times * len(work) / (max(e for _, e in found) - min(b for b, _ in found)) for found in spans[1:])


def _code(target: CpuTarget) -> tuple[Any, Any, Any]:
    """(what keeps the code alive, ``fma(steps)``, ``copy(to, from, vectors, repeats)``)."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(cpu=target.cpu, features=target.features, opt=2)
    module = llvm.parse_assembly(_text(target))
    module.verify()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    fma = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64)(engine.get_function_address("fma"))
    copy = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(engine.get_function_address("copy"))
    return engine, fma, copy


def _text(target: CpuTarget) -> str:
    lanes = target.width(4)
    vector = f"<{lanes} x float>"
    lines = [f"define float @fma(i64 %n) {target.fn_attrs} {{", "entry:", "  br label %loop", "loop:"]
    lines.append("  %i = phi i64 [ 0, %entry ], [ %next, %loop ]")
    names = range(_ACCUMULATORS)
    lines += [f"  %a{k} = phi {vector} [ {_splat(lanes, 1.0 + k)}, %entry ], [ %b{k}, %loop ]" for k in names]
    scale, step = _splat(lanes, 0.999), _splat(lanes, 0.001)
    for k in names:
        if target.fma:
            lines.append(f"  %b{k} = call {vector} @llvm.fma.v{lanes}f32({vector} %a{k}, {vector} {scale}, {vector} {step})")
        else:
            lines += [f"  %m{k} = fmul {vector} %a{k}, {scale}", f"  %b{k} = fadd {vector} %m{k}, {step}"]
    lines += ["  %next = add i64 %i, 1", "  %more = icmp slt i64 %next, %n", "  br i1 %more, label %loop, label %done", "done:"]
    total = "%b0"
    for k in names[1:]:
        lines.append(f"  %s{k} = fadd {vector} {total}, %b{k}")
        total = f"%s{k}"
    lines += [f"  %r = extractelement {vector} {total}, i32 0", "  ret float %r", "}"]
    lines += [
        f"define void @copy(ptr %to, ptr %from, i64 %n, i64 %repeats) {target.fn_attrs} {{",
        "entry:", "  br label %round", "round:", "  %r = phi i64 [ 0, %entry ], [ %rn, %end ]", "  br label %loop", "loop:",
        "  %i = phi i64 [ 0, %round ], [ %next, %loop ]",
        f"  %p = getelementptr {vector}, ptr %from, i64 %i",
        f"  %q = getelementptr {vector}, ptr %to, i64 %i",
        f"  %v = load {vector}, ptr %p, align 16",
        f"  store {vector} %v, ptr %q, align 16",
        "  %next = add i64 %i, 1", "  %more = icmp slt i64 %next, %n", "  br i1 %more, label %loop, label %end",
        "end:", "  %rn = add i64 %r, 1", "  %again = icmp slt i64 %rn, %repeats", "  br i1 %again, label %round, label %done",
        "done:", "  ret void", "}",
    ]  # fmt: skip
    if target.fma:
        lines.append(f"declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})")
    return "\n".join(lines)


def _hex(value: float) -> str:
    """LLVM writes float constants as the bits of the double."""
    return f"0x{np.float64(np.float32(value)).view(np.uint64):016X}"


def _splat(lanes: int, value: float) -> str:
    return "<" + ", ".join([f"float {_hex(value)}"] * lanes) + ">"
