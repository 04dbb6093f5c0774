"""Helpers of the product tests: build a function, plan it, compile its one kernel, run it, and compare with
numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from disc_tf.codegen.cpu.target import TARGETS, V4_VNNI, V4_VNNI_BF16, CpuTarget
from disc_tf.fusion.plan import make_plan
from disc_tf.fusion.types import PrepareEntry
from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Value
from disc_tf.ir.types import DType, TensorType
from disc_tf.runtime.cpu import cpu_flags
from disc_tf.testing.kernel_runner import CompiledFusion
from disc_tf.testing.panels import panels_of


def host_targets() -> list[CpuTarget]:
    """The targets that this machine can run."""
    with open("/proc/cpuinfo") as f:
        flags = next(set(line.split()) for line in f if line.startswith("flags"))
    needed = {"x86-64-v2": "sse4_2", "x86-64-v3": "avx2", "x86-64-v4": "avx512dq"}
    return [t for name, t in TARGETS.items() if needed[name] in flags]


#: extensions of v4, whether this machine has them or not
DOT_TARGETS = (V4_VNNI, V4_VNNI_BF16)


def lacks(target: CpuTarget) -> list[str]:
    """The features of an extension that this machine does not have."""
    return sorted({"avx512dq", *target.dots} - cpu_flags())


class Case:
    """A function under construction and its compiled kernel."""

    def __init__(self) -> None:
        self.fn = Function("main")
        self.b = Builder(self.fn.body, self.fn.env)

    def arg(self, dtype: DType, dims: Sequence, kind: str = "device") -> Value:
        return self.fn.add_arg(TensorType.of(dtype, dims), ArgInfo(f"x{len(self.fn.args)}", kind))

    def compile(self, target: CpuTarget, kind: str, results: Sequence[Value]) -> CompiledFusion:
        """The only kernel of the function; it must be of that kind."""
        self.b.return_(list(results))
        fusions = make_plan(self.fn).kernels()
        assert [f.kind for f in fusions] == [kind], make_plan(self.fn).describe()
        return CompiledFusion(fusions[0], self.fn, target)


def prepared(compiled: CompiledFusion, arrays: Mapping[Value, np.ndarray]) -> dict[PrepareEntry, np.ndarray]:
    """The content of the prepared entries of the kernel."""
    out = {}
    for variant in compiled.variants:
        for kernel in variant.kernels:
            for buffer in kernel.buffers:
                if isinstance(buffer, PrepareEntry):
                    flat = arrays[buffer.view.source].reshape(-1)
                    k, n = buffer.view.axes
                    index = (
                        int(buffer.view.offset)
                        + int(k.stride) * np.arange(int(k.extent))[:, None]
                        + int(n.stride) * np.arange(int(n.extent))
                    )
                    out[buffer] = aligned(panels_of(flat[index], buffer.layout))
    return out


def aligned(x: np.ndarray) -> np.ndarray:
    """A copy at a 64-byte boundary."""
    raw = np.zeros(x.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    out = raw[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    out[...] = x
    return out


def random(rng: np.random.Generator, dtype: DType, shape: Sequence[int]) -> np.ndarray:
    """Numbers of either sign; integers small or large enough to wrap."""
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.np)
    info = np.iinfo(dtype.np)
    return rng.integers(info.min, info.max, shape, dtype=dtype.np, endpoint=True)


def epsilon(dtype: DType) -> float:
    return {DType.F16: 2.0**-10, DType.BF16: 2.0**-7, DType.F32: 2.0**-23, DType.F64: 2.0**-52}[dtype]


def assert_product(
    got: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    dtype: DType,
    after: Callable[[np.ndarray], np.ndarray] = lambda x: x,
    slope: float = 1.0,
) -> None:
    """`got` against a @ b in float64 within the bound of a reordered sum: K rounding errors of the
    accumulator on sum |a||b|, one of the result. Integers: equal modulo 2^bits. `after`: the epilogue in
    float64, with derivative at most `slope`."""
    if dtype.is_int:
        np.testing.assert_array_equal(got, after(a @ b))
        return
    x, y = a.astype(np.float64), b.astype(np.float64)
    want, scale, k = after(x @ y), np.abs(x) @ np.abs(y), x.shape[-1]
    accumulate = 2.0**-52 if dtype is DType.F64 else 2.0**-23
    bound = (
        slope * (k + 2) * accumulate * scale + (4 * np.abs(want) + slope * scale * 2 + 4) * epsilon(dtype)
        if dtype.bits == 16
        else slope * (k + 2) * accumulate * scale + 8 * epsilon(dtype) * (np.abs(want) + 1)
    )
    worst = np.max(np.abs(got.astype(np.float64) - want) - bound, initial=-1.0)
    assert worst <= 0, f"off by {worst} beyond the bound"
