"""Products of narrow types against f32, and with their dot instructions against without: one thread, kernels alone.

    python -m bench.narrow [--rows 1 8 64 512] [--weights const|device] [--only bf16 i8 ...]

Forms are timed in turn, round after round; a figure is the best of them, in GFLOP/s (10^9 operations of integers). Needs a CPU with
AVX512_BF16 and AVX512_VNNI.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

import numpy as np

from bench.products import Bound, Machine, aligned, only_kernel
from disc_tf.codegen.cpu.target import V4, V4_VNNI_BF16, CpuTarget
from disc_tf.fusion.types import PrepareEntry
from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Value
from disc_tf.ir.types import DType, TensorType
from disc_tf.testing.kernel_runner import CompiledFusion, holds
from disc_tf.testing.panels import panels_of

SIZES = ((768, 768), (3072, 768), (768, 3072))
_ROUNDS = 9


@dataclasses.dataclass(frozen=True)
class Form:
    """Types of the operands and the result, and the target whose code is timed."""

    lhs: DType
    rhs: DType
    result: DType
    target: CpuTarget

    def compile(self, k: int, n: int, weights: str) -> Compiled:
        fn = Function("main")
        b = Builder(fn.body, fn.env)
        x, w = (
            fn.add_arg(TensorType.of(t, dims), ArgInfo(name, kind))
            for t, dims, name, kind in ((self.lhs, ("m", k), "x", "device"), (self.rhs, (k, n), "w", weights))
        )
        b.return_([b.dot_general(x, w, [1], [0], dtype=self.result)])
        return Compiled(only_kernel(fn, self.target), x, w, _numbers(self.rhs, (k, n)))


FORMS = {
    "f32": Form(DType.F32, DType.F32, DType.F32, V4),
    "bf16": Form(DType.BF16, DType.BF16, DType.BF16, V4_VNNI_BF16),
    "bf16-v4": Form(DType.BF16, DType.BF16, DType.BF16, V4),
    "i8": Form(DType.I8, DType.I8, DType.I32, V4_VNNI_BF16),
    "u8i8": Form(DType.U8, DType.I8, DType.I32, V4_VNNI_BF16),
    "i8-v4": Form(DType.I8, DType.I8, DType.I32, V4),
    "i32": Form(DType.I32, DType.I32, DType.I32, V4),
}


@dataclasses.dataclass
class Compiled:
    """A product and its right operand's content."""

    kernel: CompiledFusion
    x: Value
    w: Value
    content: np.ndarray

    def bound(self, m: int) -> Bound:
        """With `m` rows of data: the variant that would run."""
        variants = self.kernel.variants
        chosen = next(i for i, v in enumerate(variants) if v.guard is None or holds(v.guard, {"m": m}))
        k = int(self.x.dims[1])
        arrays: dict[object, np.ndarray] = {self.x: aligned(_numbers(self.x.dtype, (m, k))), self.w: aligned(self.content)}
        for buffer in variants[chosen].kernels[0].buffers:
            if isinstance(buffer, PrepareEntry):
                arrays[buffer] = aligned(panels_of(self.content, buffer.layout))
        return Bound(self.kernel, arrays, {"m": m}, chosen)


def _numbers(dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(0)
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.np)
    return rng.integers(-100 if dtype.is_signed else 0, 100, shape).astype(dtype.np)


def measure(machine: Machine, forms: Sequence[str], rows: Sequence[int], weights: str) -> None:
    for n, k in SIZES:
        compiled = {name: FORMS[name].compile(k, n, weights) for name in forms}
        for m in rows:
            flops = 2.0 * m * n * k
            bounds = {name: c.bound(m) for name, c in compiled.items()}
            best = dict.fromkeys(bounds, 0.0)
            for _ in range(_ROUNDS):
                for name, bound in bounds.items():
                    best[name] = max(best[name], flops / bound.seconds(machine, 1, max(1, int(1e8 / flops))))
            print(f"N={n} K={k} M={m:4d}: " + "; ".join(f"{name} {x / 1e9:.0f}" for name, x in best.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("--weights", choices=("const", "device"), default="const")
    parser.add_argument("--only", nargs="+", default=list(FORMS), choices=list(FORMS))
    options = parser.parse_args()
    measure(Machine(V4), options.only, options.rows, options.weights)


if __name__ == "__main__":
    main()
