"""JAX functions as StableHLO text of unknown extents: what lowering rules that are written with JAX import (`inline_stablehlo`).

Importing this module does not import JAX; tracing does. A trace is made once for each function, dtype of every operand and rank, and
holds for all extents, zero included.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable
from typing import Any

from disc_tf.ir.types import DType

_PACKAGE = "disc_tf.ir.stablehlo.special"


@functools.lru_cache(maxsize=512)
def trace(function: str, dtypes: tuple[DType, ...], rank: int) -> str:
    """StableHLO text whose `main` is an elementwise function of tensors of one shape of ``rank`` unknown extents.

    function: ``"bessel.j0"``, a function of a module of `disc_tf.ir.stablehlo.special`, or ``"lax.digamma"``, one of `jax.lax`.
    Raises ValueError if there is no such function.
    """
    import jax
    from jax import export

    fn = _function(function)
    dims = export.symbolic_shape(",".join(f"d{i}" for i in range(rank))) if rank else ()
    with _wide_types(jax):
        arguments = [jax.ShapeDtypeStruct(dims, d.np) for d in dtypes]
        return export.export(jax.jit(fn), platforms=["cpu"])(*arguments).mlir_module()


def _function(name: str) -> Callable[..., Any]:
    module, _, attribute = name.rpartition(".")
    try:
        found = importlib.import_module("jax.lax" if module == "lax" else f"{_PACKAGE}.{module}")
        return getattr(found, attribute)
    except (ImportError, AttributeError) as e:
        raise ValueError(f"there is no function {name!r} to trace") from e


def _wide_types(jax: Any) -> contextlib.AbstractContextManager[Any]:
    """64-bit types, whatever the process has set; the name moved between versions of JAX."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax import experimental

    return getattr(experimental, "enable_x64")(True)  # noqa: B009 (not in every version's stubs)
