"""The helper library: functions that many kernels of a module share, generated per target on demand.

A helper's symbol says everything about it (`h_gemm_f32_f32`). A kernel calls helpers by symbol and carries
the text of those it reaches (`collect`) in `Kernel.helpers`; a module defines each once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping

from disc_tf.codegen.cpu.target import CpuTarget
from disc_tf.codegen.llvm import FnBuilder

#: makes the helper `symbol` for a target: its function, and the symbols of the helpers that it calls
Maker = Callable[[str, CpuTarget], tuple[FnBuilder, tuple[str, ...]]]

_MAKERS: dict[str, Maker] = {}


def helper(prefix: str) -> Callable[[Maker], Maker]:
    """Register the maker of every helper whose symbol is `prefix` or starts with `prefix_`."""

    def register(maker: Maker) -> Maker:
        if prefix in _MAKERS:
            raise ValueError(f"helper prefix {prefix!r} is already taken")
        _MAKERS[prefix] = maker
        return maker

    return register


@dataclasses.dataclass(frozen=True)
class _Helper:
    text: str
    declarations: Mapping[str, str]
    calls: tuple[str, ...]


@functools.cache
def _make(symbol: str, target: CpuTarget) -> _Helper:
    from disc_tf.codegen.cpu.helpers import conv, gemm, pack, words  # noqa: F401  (they register themselves)

    prefix = symbol
    while prefix not in _MAKERS:
        prefix, cut, _ = prefix.rpartition("_")
        if not cut:
            raise KeyError(f"no helper is called {symbol!r}; known prefixes: {', '.join(sorted(_MAKERS))}")
    fn, calls = _MAKERS[prefix](symbol, target)
    return _Helper(fn.text(), fn.declarations, calls)


def collect(symbols: Iterable[str], target: CpuTarget) -> tuple[dict[str, str], dict[str, str]]:
    """(symbol -> definition, symbol -> declaration) of the helpers `symbols` and of all that they call."""
    texts: dict[str, str] = {}
    declarations: dict[str, str] = {}
    work = sorted(symbols, reverse=True)
    while work:
        symbol = work.pop()
        if symbol in texts:
            continue
        made = _make(symbol, target)
        texts[symbol] = made.text
        declarations.update(made.declarations)
        work.extend(reversed(made.calls))
    return texts, declarations
