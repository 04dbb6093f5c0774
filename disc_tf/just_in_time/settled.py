"""Whether a function has made the variables and layers that it makes on its first call.

Layers that are built with unknown dims fail, or are never usable again. So a function that may still have some to make is called once at
its caller's own shapes before it is traced with unknown ones. Where it cannot be told, it may have some.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

#: how far functions that call functions are followed
DEPTH = 4
_VALUES = (int, float, complex, str, bytes, type(None), types.ModuleType, types.BuiltinFunctionType)


def settled(fn: Any) -> bool:
    """True only if certain. fn: what was given to `disc_tf.jit`."""
    traced = getattr(fn, "experimental_get_tracing_count", None)
    if traced is not None and traced() > 0:
        return True
    return _settled(getattr(fn, "python_function", fn), DEPTH, set())


def _settled(value: Any, depth: int, seen: set[int]) -> bool:
    import numpy as np
    import tensorflow as tf

    if isinstance(value, (*_VALUES, tf.Tensor, tf.Variable, tf.DType, np.ndarray, np.generic)) or id(value) in seen:
        return True
    seen.add(id(value))
    built = getattr(value, "built", None)
    if isinstance(built, bool) and not isinstance(value, type):
        return built
    if depth == 0:
        return False
    if isinstance(value, types.MethodType):
        return _settled(value.__self__, depth - 1, seen) and _settled(value.__func__, depth - 1, seen)
    if isinstance(value, types.FunctionType):
        if (getattr(value, "__module__", None) or "").partition(".")[0] in ("tensorflow", "keras", "numpy"):
            return True  # their functions keep nothing
        used = inspect.getclosurevars(value)
        inner = [*used.nonlocals.values(), *used.globals.values(), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        # what a global object of a module is, as in `module.layer`, cannot be told from here; attributes are names that were not found
        own = [v for v in used.globals.values() if isinstance(v, types.ModuleType) and not _library(v)]
        return not own and all(_settled(v, depth - 1, seen) for v in inner)
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(_settled(v, depth - 1, seen) for v in value)
    if isinstance(value, dict):
        return all(_settled(v, depth - 1, seen) for v in value.values())
    return False


def _library(module: types.ModuleType) -> bool:
    import sys

    top = module.__name__.partition(".")[0]
    return top in ("tensorflow", "keras", "numpy") or top in sys.stdlib_module_names
