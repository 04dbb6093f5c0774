"""HTML and SVG as text. Whatever is not `Markup` is escaped, so that no name of a graph can become markup."""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterable
from pathlib import Path

#: characters that HTML does not have: most control characters, surrogates, noncharacters
_NOT_HTML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_VOID = frozenset({"meta", "input", "br", "link"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]


def text(value: object) -> Markup:
    """A value as HTML text, safe between tags and in quoted attributes."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(_NOT_HTML.sub("\ufffd", str(value)), quote=True))


def join(children: Iterable[Child]) -> Markup:
    """All children one after the other; None is nothing, iterables are flattened."""
    parts: list[str] = []
    for c in children:
        if c is None:
            continue
        if isinstance(c, str | int | float):
            parts.append(text(c))
        else:
            parts.append(join(c))
    return Markup("".join(parts))


def tag(name: str, /, *children: Child, **attributes: object) -> Markup:
    """An element. Attributes: ``class_`` is ``class``, ``stroke_width`` is ``stroke-width``; None and False are left out, True is bare."""
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        if key == "viewbox":
            key = "viewBox"
        parts.append(key if value is True else f'{key}="{text(value)}"')
    opened = f"<{' '.join(parts)}>"
    return Markup(opened) if name in _VOID else Markup(f"{opened}{join(children)}</{name}>")


@functools.cache
def asset(name: str) -> Markup:
    """A style sheet or script of ours."""
    return Markup((Path(__file__).parent / name).read_text(encoding="utf-8"))


def number(value: float) -> str:
    """Coordinates: at most two digits after the point."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def table(head: Iterable[Child], rows: Iterable[Iterable[Child]], *, class_: str = "sortable") -> Markup:
    """A table; numbers are put to the right, and by them the columns are sorted."""

    def cell(value: Child) -> Markup:
        if isinstance(value, int | float) and not isinstance(value, bool):
            shown = f"{value:,}" if isinstance(value, int) else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
            return tag("td", shown, class_="n", data_v=repr(value))
        return tag("td", value)

    return tag(
        "div",
        tag(
            "table",
            tag("thead", tag("tr", (tag("th", h, scope="col") for h in head))),
            tag("tbody", (tag("tr", map(cell, row)) for row in rows)),
            class_=class_,
        ),
        class_="wide",
    )


def bytes_text(n: float) -> str:
    """``1536 -> 1.5 KiB``."""
    for unit in ("bytes", "KiB", "MiB"):
        if abs(n) < 1024:
            return f"{n:.0f} {unit}" if unit == "bytes" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} GiB"


def short(name: str, length: int) -> str:
    """The end of a long name, where names of graphs differ."""
    return name if len(name) <= length else "…" + name[-(length - 1) :]
