"""Measures again what the cost model was made from (`disc_tf/costs.py`): lane operations of each op, rates, and what a hand-over costs.

    python -m bench.costs [--target x86-64-v3] [--only weights|rates|handover]

Nothing reads what it prints: who changes the constants for a good reason compares, on an idle machine.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Iterator, Sequence
from unittest import mock

import numpy as np

from disc_tf import costs
from disc_tf.codegen.cpu.target import CpuTarget, target_named
from disc_tf.ir.builder import new_function
from disc_tf.ir.core import Function
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType
from disc_tf.runtime.cpu import native_target
from disc_tf.testing.kernel_runner import CompiledFusion, fusion_of

#: elements: two or three arrays of them lie in the second-level cache
SIZE = 16384
ROUNDS = 60
_BINARY = ("add", "divide", "remainder", "power", "atan2")
#: kernels of a run in which hand-overs are measured
_KERNELS = 16


def chain(names: Sequence[str], operands: int) -> Function:
    """Each op on the result of the one before, and on a second parameter where it takes two."""
    fn, b = new_function("f", {f"x{i}": (DType.F32, ["n"]) for i in range(operands)})
    v = fn.params[0]
    for name in names:
        v = b.create1(name, [v, fn.params[-1]] if operands == 2 else [v])
    b.return_([v])
    return fn


def element_ps(fn: Function, target: CpuTarget, size: int = SIZE, rounds: int = ROUNDS) -> float:
    """Picoseconds an element of a loop kernel on one thread: the best of some calls."""
    compiled = CompiledFusion(fusion_of(fn, "loop", space=(Dim.of("n"),)), fn, target)
    rng = np.random.default_rng(0)
    arrays: dict[object, np.ndarray] = {v: rng.uniform(0.1, 0.9, size).astype(np.float32) for v in (*fn.params, *fn.results)}
    address, args = compiled.bind(0, 0, arrays, {"n": size})
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(address)
    kernel = compiled.variants[0].kernels[0]
    tasks = kernel.tasks.evaluate({"n": size})  # type: ignore[union-attr]
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter_ns()
        call(ctypes.addressof(args), 0, tasks, None)
        best = min(best, time.perf_counter_ns() - start)
    return best / size * 1e3


def weights(target: CpuTarget, size: int = SIZE, rounds: int = ROUNDS) -> Iterator[tuple[str, float, float]]:
    """(op, lane operations found, those in the table) of the elementwise ops that have a weight."""
    lane = costs.NOMINAL[target.name].lane_ps
    for name in sorted(costs.WEIGHTS.keys() - {"gather", "pad", "dynamic_update_slice", "dynamic_slice", "reverse", "reduce"}):
        found = element_ps(chain([name], 2 if name in _BINARY else 1), target, size, rounds)
        yield name, found / lane, costs.WEIGHTS[name]


def rates(target: CpuTarget, size: int = SIZE, rounds: int = ROUNDS) -> costs.Rates:
    """Of one thread; ``mac_ps`` is left as it is in the table (`bench.products` times products)."""
    many = element_ps(chain(["add", "multiply", "maximum", "subtract"] * 4, 2), target, size, rounds)
    few = element_ps(chain(["add"], 2), target, size, rounds)
    return costs.Rates(max(many - few, 0.0) / 15, costs.NOMINAL[target.name].mac_ps, few / 12)


def handover(target: CpuTarget, sizes: Sequence[int], seconds: float = 1.0) -> Iterator[tuple[int, float, float]]:
    """(elements, microseconds a kernel on one thread, on two) of loops of `exponential`, wall clock; Python's part of a call is in both."""
    from disc_tf.runtime.executable import Executable, set_num_threads
    from disc_tf.testing.native_case import compile_function

    def build(grain: int) -> Executable:
        fn, b = new_function("main", {f"x{i}": (DType.F32, ["n"]) for i in range(_KERNELS)})
        b.return_([b.create1("exponential", [x]) for x in fn.params])
        with mock.patch("disc_tf.codegen.cpu.loops.grain", lambda *_: Dim.of(grain)):
            return Executable.from_bytes(compile_function(fn, target.name).executable)

    set_num_threads(2)
    try:
        with build(1 << 40) as alone, build(1) as shared:
            for size in sizes:
                inputs, results = [np.full(size, 0.3, np.float32)] * _KERNELS, [np.empty(size, np.float32)] * _KERNELS
                spent: list[list[float]] = [[], []]
                stop = time.perf_counter() + seconds
                while time.perf_counter() < stop or not spent[1]:
                    for side, times in zip((alone, shared), spent, strict=True):
                        start = time.perf_counter_ns()
                        side.run(inputs, results)
                        times.append((time.perf_counter_ns() - start) / 1e3 / _KERNELS)
                yield size, statistics.median(spent[0]), statistics.median(spent[1])
    finally:
        set_num_threads(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=native_target())
    parser.add_argument("--only", choices=("weights", "rates", "handover"))
    args = parser.parse_args()
    target = target_named(args.target)
    if args.only in (None, "rates"):
        print("found", rates(target), "table", costs.NOMINAL[target.name])
    if args.only in (None, "weights"):
        for name, found, table in weights(target):
            print(f"{name:24s} {found:7.1f} lane operations, table {table:g}")
    if args.only in (None, "handover"):
        for size, one, two in handover(target, [8192 << k for k in range(1, 6)]):
            print(f"{size:8d} elements of exponential: {one:7.2f} us on one thread, {two:7.2f} us on two")


if __name__ == "__main__":
    main()
