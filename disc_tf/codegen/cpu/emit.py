"""`emit_fusion`: from a fusion to kernels. Each kind registers its emitter from its own file."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable

from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu.target import CpuTarget
from disc_tf.codegen.kernel import Variant
from disc_tf.fusion.types import Fusion

Emitter = Callable[[Fusion, EmitContext], list[Variant]]
EMITTERS: dict[str, Emitter] = {}

#: modules that register emitters when imported
_MODULES = ("loops", "rows", "reduce", "gemm", "conv", "attention", "library")


def emitter(kind: str) -> Callable[[Emitter], Emitter]:
    """Register the emitter of a fusion kind."""
    def add(fn: Emitter) -> Emitter:
        if kind in EMITTERS:
            raise ValueError(f"two emitters for fusions of kind {kind}")
        EMITTERS[kind] = fn
        return fn

    return add


def emit_fusion(fusion: Fusion, target: CpuTarget, ctx: EmitContext) -> list[Variant]:
    """The kernels of a fusion, as variants of which the host runs the first whose guard holds (the last has none).

    `ctx.target` and `target` are the same. Raises ValueError for a kind that has no emitter.
    """
    if target is not ctx.target:
        raise ValueError(f"the context is for {ctx.target.name}, not {target.name}")
    _load()
    if fusion.kind not in EMITTERS:
        raise ValueError(f"no emitter for fusions of kind {fusion.kind!r} ({', '.join(fusion.nodes[:3])})")
    return EMITTERS[fusion.kind](fusion, ctx)


@functools.cache
def _load() -> None:
    """Import the emitters once: they register themselves."""
    for name in _MODULES:
        module = f"disc_tf.codegen.cpu.{name}"
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module)
