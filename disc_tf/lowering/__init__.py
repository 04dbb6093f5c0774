"""TF ops -> IR. One module per op family, one registry; see ``registry.lowering``."""

from __future__ import annotations

import functools
import importlib
import pkgutil

_NOT_RULES = {
    "bodies", "content", "context", "errors", "fold", "left_out", "lower", "node", "numerics", "registry", "shapes", "symbolic",
    "tensor_proto",
}  # fmt: skip


@functools.cache
def all_rules() -> None:
    """Import every rule module of this package (once), so that ``registry.RULES`` is complete."""
    for info in pkgutil.iter_modules(__path__):
        if info.name not in _NOT_RULES and not info.name.startswith("_"):
            importlib.import_module(f"{__name__}.{info.name}")
