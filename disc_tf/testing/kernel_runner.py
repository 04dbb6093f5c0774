"""Runs emitted kernels on numpy arrays through ctypes: no runtime, no TensorFlow. For tests of code generation."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Mapping, Sequence

import numpy as np

from disc_tf.codegen.compile import compile_image
from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu.emit import emit_fusion
from disc_tf.codegen.cpu.target import CpuTarget
from disc_tf.codegen.kernel import Guard, Kernel, Temp, Variant
from disc_tf.codegen.llvm import ModuleText
from disc_tf.fusion.types import Fusion
from disc_tf.ir.core import Function, Value
from disc_tf.ir.dims import Dim

_OPS = {"eq": int.__eq__, "ne": int.__ne__, "lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__}


class _Args(ctypes.Structure):
    _fields_ = [("bufs", ctypes.POINTER(ctypes.c_void_p)), ("scalars", ctypes.POINTER(ctypes.c_int64)),
                ("err", ctypes.POINTER(ctypes.c_uint64))]


def load_image(image: bytes) -> ctypes.CDLL:
    """Load a compiled image from a temporary file."""
    with tempfile.NamedTemporaryFile(suffix=".so", delete=False) as f:
        f.write(image)
    lib = ctypes.CDLL(f.name)
    os.unlink(f.name)
    return lib


class CompiledFusion:
    """The variants of one fusion, compiled for a target."""

    def __init__(self, fusion: Fusion, fn: Function, target: CpuTarget) -> None:
        self.fusion = fusion
        params = {p: i for i, p in enumerate(fn.params)}
        self.variants: list[Variant] = emit_fusion(fusion, target, EmitContext(target, fn.env, params))
        module, self._names = ModuleText(), {}
        for v, variant in enumerate(self.variants):
            for k, kernel in enumerate(variant.kernels):
                assert isinstance(kernel, Kernel)
                symbol = f"{kernel.symbol}_{v}_{k}"
                self._names[kernel.symbol, v, k] = symbol
                text = kernel.llvm.replace(f"@{kernel.symbol}(", f"@{symbol}(")
                module.add_text(symbol, text, kernel.declarations)
                for name, helper in kernel.helpers.items():
                    module.add_text(name, helper)
                for name, line in kernel.globals.items():
                    module.add_global(name, line)
        self.text = module.text()
        self._lib = load_image(compile_image(self.text, target, list(self._names.values())))

    def __call__(self, inputs: Mapping[Value, np.ndarray], symbols: Mapping[str, int], *, variant: int | None = None,
                 split: int | None = None) -> list[np.ndarray]:
        """Run on arrays. `variant` forces one (its guard must hold); `split`: tasks per call (default all at once)."""
        outputs = {}
        for v in self.fusion.outputs:
            shape = [d.evaluate(symbols) for d in v.dims]
            outputs[v] = np.full(shape, 77).astype(v.dtype.np)
        chosen = variant if variant is not None else self._choose(symbols)
        arrays: dict[object, np.ndarray] = {k: np.ascontiguousarray(a) for k, a in inputs.items()}
        arrays.update(outputs)
        for k, kernel in enumerate(self.variants[chosen].kernels):
            assert isinstance(kernel, Kernel)
            self._run(kernel, self._names[kernel.symbol, chosen, k], arrays, symbols, split)
        return list(outputs.values())

    def _choose(self, symbols: Mapping[str, int]) -> int:
        return next(i for i, v in enumerate(self.variants) if v.guard is None or holds(v.guard, symbols))

    def bind(self, variant: int, index: int, arrays: Mapping[object, np.ndarray], symbols: Mapping[str, int]) -> tuple[int, _Args]:
        """The address of a kernel and its arguments over `arrays` (kept alive by the caller): for benchmarks."""
        kernel = self.variants[variant].kernels[index]
        assert isinstance(kernel, Kernel)
        fn = getattr(self._lib, self._names[kernel.symbol, variant, index])
        return ctypes.cast(fn, ctypes.c_void_p).value or 0, self._arguments(kernel, dict(arrays), symbols)

    def _arguments(self, kernel: Kernel, arrays: dict[object, np.ndarray], symbols: Mapping[str, int]) -> _Args:
        pointers = []
        for buffer in kernel.buffers:
            if isinstance(buffer, Temp) and buffer not in arrays:
                arrays[buffer] = np.full(buffer.bytes.evaluate(symbols), 0xA5, np.uint8)
            pointers.append(arrays[buffer].ctypes.data)
        scalars = [d.evaluate(symbols) for d in kernel.scalars]
        error = ctypes.c_uint64(2**63 - 1)
        return _Args((ctypes.c_void_p * max(len(pointers), 1))(*pointers), (ctypes.c_int64 * max(len(scalars), 1))(*scalars),
                     ctypes.pointer(error))

    def _run(self, kernel: Kernel, symbol: str, arrays: dict[object, np.ndarray], symbols: Mapping[str, int],
             split: int | None) -> None:
        args = self._arguments(kernel, arrays, symbols)
        scratch = np.full(kernel.scratch.evaluate(symbols) + 64, 0x5A, np.uint8)
        base = scratch.ctypes.data + (-scratch.ctypes.data % 64)
        tasks = kernel.tasks.evaluate(symbols)
        step = split or max(tasks, 1)
        for begin in range(0, tasks, step):
            getattr(self._lib, symbol)(ctypes.byref(args), ctypes.c_int64(begin), ctypes.c_int64(min(begin + step, tasks)),
                                       ctypes.c_void_p(base))


def holds(guard: Guard, symbols: Mapping[str, int]) -> bool:
    return all(_OPS[op](Dim.of(a).evaluate(symbols), Dim.of(c).evaluate(symbols)) for a, op, c in guard.terms)


def fusion_of(fn: Function, kind: str, inputs: Sequence[Value] | None = None, **attrs: object) -> Fusion:
    """A fusion of a whole function: everything but its return."""
    ops = [op for op in fn.body.ops if op.name != "return"]
    outputs = list(dict.fromkeys(fn.results))
    return Fusion(kind, ops, list(inputs if inputs is not None else fn.params), outputs, dict(attrs))
