"""What users say of input shapes: ``ids: [b<=32, s%8==0, s~128]``, ``image: [?, 224, 224, 3]``.

A hint gives the rank of an input whose rank the graph does not know (the launch fails clearly if a run has another one) and likely
values of its dims. It is never a fact: code is right for every shape.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from disc_tf.frontend.errors import GraphError

_ITEM = re.compile(
    r"\s*(?:(?P<int>-?\d+)|(?P<any>\?|None)|(?P<name>[A-Za-z_]\w*)\s*(?P<rest>(?:(?:<=|>=|~|%)[^,]*)?))\s*\Z"
)


@dataclasses.dataclass
class DimHint:
    """One dim: a name to speak of it, likely values, bounds and a divisor that usually holds."""

    name: str = ""
    size: int | None = None
    likely: tuple[int, ...] = ()
    low: int | None = None
    high: int | None = None
    multiple: int | None = None


def parse_hint(text: str) -> tuple[str, list[DimHint]]:
    """``"name: [item, ...]"`` -> the input's name and its dims. ``GraphError`` quotes the item that is wrong.

    An item is an int, ``?``, a name, or a name with ``<=N``, ``>=N``, ``%N==0`` or ``~N`` (likely values: ``~64~128``). An item with a
    condition on the name of the dim just before it adds to that dim.
    """
    name, colon, rest = text.partition(":")
    while colon and rest[:1].isdigit():  # a port: "x:1: [..]"
        port, colon, rest = rest.partition(":")
        name = f"{name}:{port}"
    rest = rest.strip()
    if not name.strip() or not (rest.startswith("[") and rest.endswith("]")):
        raise GraphError(f"hint {text!r}: write it as `input: [dim, ...]`")
    if (long := re.search(r"\d{19,}", rest)) is not None:
        raise GraphError(f"hint {text[:60]!r}...: {long[0][:12]}... has {len(long[0])} digits; a dim has 18 at most")
    dims: list[DimHint] = []
    for item in [i for i in rest[1:-1].split(",") if i.strip()]:
        m = _ITEM.match(item)
        if m is None:
            raise GraphError(f"hint {text!r}: {item.strip()!r} is not a dim; use 7, ?, name, name<=N, name>=N, name%N==0 or name~N")
        if m["int"]:
            if int(m["int"]) < 0:
                raise GraphError(f"hint {text!r}: negative dim {m['int']}")
            dims.append(DimHint(size=int(m["int"])))
        elif m["any"]:
            dims.append(DimHint())
        else:
            if not (m["rest"] and dims and dims[-1].name == m["name"]):
                dims.append(DimHint(m["name"]))
            _condition(dims[-1], m["rest"].replace(" ", ""), text)
    return name.strip().removesuffix(":0"), dims


def _condition(dim: DimHint, text: str, hint: str) -> None:
    if not text:
        return
    if m := re.fullmatch(r"<=(\d+)", text):
        dim.high = int(m[1])
    elif m := re.fullmatch(r">=(\d+)", text):
        dim.low = int(m[1])
    elif m := re.fullmatch(r"%(\d+)==0", text):
        dim.multiple = int(m[1])
    elif re.fullmatch(r"(~\d+)+", text):
        dim.likely = tuple(int(v) for v in text[1:].split("~"))
    else:
        raise GraphError(f"hint {hint!r}: {dim.name}{text} is not a condition; use <=N, >=N, %N==0 or ~N")
    if dim.multiple == 0:
        raise GraphError(f"hint {hint!r}: nothing is a multiple of 0 but 0")


def parse_hints(texts: Iterable[str]) -> dict[str, list[DimHint]]:
    """All hints by input. ``GraphError`` for two hints on one input."""
    found: dict[str, list[DimHint]] = {}
    for text in texts:
        name, dims = parse_hint(text)
        if name in found:
            raise GraphError(f"two hints for input {name!r}")
        found[name] = dims
    return found
