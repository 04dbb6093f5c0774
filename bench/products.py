"""Times the product kernels alone: BERT's matrix products and attention against the FMA peak measured beside them.

    python -m bench.products [--target x86-64-v4] [--threads 1 2] [--numpy]

No runtime and no TensorFlow: kernels are called through ctypes, on N threads each with its share of the tasks.
The peak is measured around each timing (clocks and neighbours change); a figure is the best of several.
"""

from __future__ import annotations

import argparse
import ctypes
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from disc_tf.codegen.compile import compile_image
from disc_tf.codegen.cpu.target import TARGETS, CpuTarget
from disc_tf.codegen.kernel import Kernel
from disc_tf.codegen.llvm import F32, I64, PTR, VOID, FnBuilder, ModuleText, vec
from disc_tf.fusion.plan import make_plan
from disc_tf.fusion.types import PrepareEntry
from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Value
from disc_tf.ir.types import DType, TensorType
from disc_tf.testing.kernel_runner import CompiledFusion, load_image
from disc_tf.testing.panels import panels_of

PRODUCTS = [(768, 768), (2304, 768), (3072, 768), (768, 3072), (312, 312), (1200, 312), (312, 1200)]
ROWS = [1, 7, 16, 64, 128, 384, 1024]
LENGTHS = [(1, 7), (1, 64), (1, 128), (1, 384), (8, 128), (1, 1024)]
_UNROLL = 4


def aligned(x: np.ndarray) -> np.ndarray:
    raw = np.zeros(x.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    out = raw[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    out[...] = x
    return out


class Machine:
    """The peak and the repeating driver, compiled for a target."""

    def __init__(self, target: CpuTarget) -> None:
        self.lanes = target.width(4)
        self.chains = 24 if target.registers == 32 else 12
        driver = FnBuilder(
            "repeat", [("f", PTR), ("args", PTR), ("lo", I64), ("hi", I64), ("scratch", PTR), ("times", I64)]
        )
        f, args, lo, hi, scratch, times = driver.params
        driver.loop(0, times, 1, [], lambda _i, _: driver.call_ptr(f, VOID, [args, lo, hi, scratch]) and None)
        driver.ret()
        module = ModuleText()
        module.add(driver)
        module.add(self._peak_kernel(target))
        self.lib = load_image(compile_image(module.text(), target, ["repeat", "peak"]))
        self.data = [aligned(np.full(1024, 0.5, np.float32)) for _ in range(64)]

    def _peak_kernel(self, target: CpuTarget) -> FnBuilder:
        b = FnBuilder("peak", [("p", PTR), ("n", I64)], fma=target.fma, attrs=target.fn_attrs)
        p, n = b.params
        ty = vec(F32, self.lanes)
        x, y, *sums = (b.load(ty, b.gep(p, i * self.lanes, F32)) for i in range(self.chains + 2))

        def step(_i, accs):
            for _ in range(_UNROLL):
                accs = [b.fma(a, x, y) for a in accs]
            return accs

        sums = b.loop(0, n, 1, sums, step)
        total = sums[0]
        for s in sums[1:]:
            total = b.fadd(total, s)
        b.store(total, p)
        b.ret()
        return b

    def peak(self, threads: int, n: int = 60_000) -> float:
        """FLOP/s of all threads together."""
        jobs = [self._peak_job(i, n) for i in range(threads)]
        return n * _UNROLL * self.chains * self.lanes * 2 * threads / run_all(jobs)

    def _peak_job(self, i: int, n: int) -> Callable[[], None]:
        return lambda: self.lib.peak(ctypes.c_void_p(self.data[i].ctypes.data), ctypes.c_int64(n))


def run_all(jobs: Sequence[Callable[[], None]]) -> float:
    """Seconds until all jobs, each on a thread of its own, are done."""
    if len(jobs) == 1:
        start = time.perf_counter()
        jobs[0]()
        return time.perf_counter() - start
    threads = [threading.Thread(target=j) for j in jobs]
    start = time.perf_counter()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return time.perf_counter() - start


class Bound:
    """A compiled fusion bound to arrays."""

    def __init__(
        self, f: CompiledFusion, arrays: Mapping[object, np.ndarray], symbols: Mapping[str, int], variant: int = 0
    ) -> None:
        (self.kernel,) = f.variants[variant].kernels
        assert isinstance(self.kernel, Kernel)
        self.arrays = dict(arrays)
        for v in f.fusion.outputs:
            self.arrays[v] = aligned(np.zeros([d.evaluate(symbols) for d in v.dims], v.dtype.np))
        self.address, self.args = f.bind(variant, 0, self.arrays, symbols)
        self.tasks = self.kernel.tasks.evaluate(symbols)
        self.scratch = self.kernel.scratch.evaluate(symbols)

    def seconds(self, machine: Machine, threads: int, times: int) -> float:
        """One run of all tasks; every thread repeats its share `times` times."""
        share = -(-self.tasks // threads)
        jobs, keep = [], []
        for lo in range(0, self.tasks, share):
            scratch = aligned(np.zeros(self.scratch + 64, np.uint8))
            keep.append(scratch)
            jobs.append(self._job(machine, lo, min(lo + share, self.tasks), scratch, times))
        return run_all(jobs) / times

    def _job(self, machine: Machine, lo: int, hi: int, scratch: np.ndarray, times: int) -> Callable[[], None]:
        return lambda: machine.lib.repeat(
            ctypes.c_void_p(self.address), ctypes.byref(self.args), ctypes.c_int64(lo), ctypes.c_int64(hi),
            ctypes.c_void_p(scratch.ctypes.data), ctypes.c_int64(times))  # fmt: skip


def measure(machine: Machine, bound: Bound, flops: float, threads: int, samples: int = 6) -> str:
    times = max(1, int(2e8 * threads / flops))
    best = peak = 0.0
    bound.seconds(machine, threads, 1)
    for _ in range(samples):
        peak = max(peak, machine.peak(threads))
        best = max(best, flops / bound.seconds(machine, threads, times))
        peak = max(peak, machine.peak(threads))
    return f"{best / 1e9:.0f} GF ({100 * best / peak:.0f} %)"


def only_kernel(fn: Function, target: CpuTarget) -> CompiledFusion:
    (fusion,) = make_plan(fn).kernels()
    return CompiledFusion(fusion, fn, target)


def arg(fn: Function, dims: Sequence, kind: str = "device") -> Value:
    return fn.add_arg(TensorType.of(DType.F32, dims), ArgInfo(f"x{len(fn.args)}", kind))


def bench_products(machine: Machine, target: CpuTarget, threads: Sequence[int], with_numpy: bool) -> None:
    rng = np.random.default_rng(0)
    for n, k in PRODUCTS:
        fn = Function("main")
        b = Builder(fn.body, fn.env)
        x, w, bias = arg(fn, ("m", k)), arg(fn, (k, n), "const"), arg(fn, (n,), "const")
        y = b.dot_general(x, w, [1], [0])
        b.return_([b.add(y, b.broadcast_in_dim(bias, y.dims, (1,)))])
        f = only_kernel(fn, target)
        weight = aligned(rng.standard_normal((k, n)).astype(np.float32))
        for m in ROWS:
            a = aligned(rng.standard_normal((m, k)).astype(np.float32))
            arrays: dict[object, np.ndarray] = {x: a, w: weight, bias: aligned(np.zeros(n, np.float32))}
            for buffer in f.variants[0].kernels[0].buffers:
                if isinstance(buffer, PrepareEntry):
                    arrays[buffer] = aligned(panels_of(weight, buffer.layout))
            bound = Bound(f, arrays, {"m": m})
            flops = 2.0 * m * n * k
            cells = [f"{t} thr {measure(machine, bound, flops, t)}" for t in threads]
            if with_numpy:
                cells.append(f"numpy {flops / best_matmul(a, weight) / 1e9:.0f} GF")
            print(f"matmul M={m:5d} N={n} K={k}: " + "; ".join(cells), flush=True)


def best_matmul(a: np.ndarray, w: np.ndarray) -> float:
    """Seconds of numpy's product, best of 20."""
    out = np.empty((a.shape[0], w.shape[1]), np.float32)
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        np.matmul(a, w, out=out)
        best = min(best, time.perf_counter() - start)
    return best


def bench_attention(machine: Machine, target: CpuTarget, threads: Sequence[int]) -> None:
    rng = np.random.default_rng(0)
    for h, d in ((12, 64), (12, 26)):
        fn = Function("main")
        b = Builder(fn.body, fn.env)
        q, k, v = (arg(fn, ("b", "s", h, d)) for _ in range(3))
        mask = arg(fn, ("b", 1, 1, "s"))
        qt, kt, vt = (b.transpose(x, (0, 2, 1, 3)) for x in (q, k, v))
        s = b.dot_general(qt, kt, [3], [3], [0, 1], [0, 1])
        s = b.add(
            b.multiply(s, b.full(d**-0.5, DType.F32, s.dims)), b.broadcast_in_dim(mask, s.dims, range(4))
        )
        e = b.exponential(b.subtract(s, b.broadcast_in_dim(b.reduce(s, [3], "max"), s.dims, range(3))))
        p = b.divide(e, b.broadcast_in_dim(b.reduce(e, [3], "add"), s.dims, range(3)))
        b.return_([b.transpose(b.dot_general(p, vt, [3], [2], [0, 1], [0, 1]), (0, 2, 1, 3))])
        f = only_kernel(fn, target)
        for batch, length in LENGTHS:
            shape = (batch, length, h, d)
            arrays = {x: aligned(rng.standard_normal(shape).astype(np.float32)) for x in (q, k, v)}
            arrays[mask] = aligned(np.zeros((batch, 1, 1, length), np.float32))
            bound = Bound(f, arrays, {"b": batch, "s": length})
            flops = 4.0 * batch * h * length * length * d
            cells = [f"{t} thr {measure(machine, bound, flops, t)}" for t in threads]
            print(f"attention B={batch} S={length:5d} H={h} D={d}: " + "; ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="x86-64-v3", choices=list(TARGETS))
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument(
        "--numpy", action="store_true", help="time numpy.matmul too (set OPENBLAS_NUM_THREADS)"
    )
    options = parser.parse_args()
    target = TARGETS[options.target]
    machine = Machine(target)
    print(f"{target.name}: peak {machine.peak(1) / 1e9:.0f} GFLOP/s on one thread")
    bench_products(machine, target, options.threads, options.numpy)
    bench_attention(machine, target, options.threads)


if __name__ == "__main__":
    main()
