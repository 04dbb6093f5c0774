"""The graphs of ``bench/models``: frozen by others' code, with a trace of realistic shapes."""

from __future__ import annotations

import json
from pathlib import Path

from bench.zoo.model import Model

DIRECTORY = Path(__file__).parents[1] / "models"
FAMILY = "bench/models"

#: extents of random shapes where the name of the dim does not say enough
_RANGES = {"B": (1, 8), "S": (1, 160), "T": (1, 160), "H": (32, 200), "W": (32, 200)}
#: graphs that take long at every shape
_SMALLER = {"bert_base": {"B": (1, 4), "S": (1, 130)}, "basic_pitch": {"B": (1, 3)}}


def models() -> list[Model]:
    out = []
    for path in sorted(DIRECTORY.glob("*.json")):
        meta = json.loads(path.read_text())
        names = {d for i in meta["inputs"] for d in i["shape"] if isinstance(d, str)}
        ranges = {n: _SMALLER.get(path.stem, {}).get(n, _RANGES.get(n, (1, 64))) for n in sorted(names)}
        points = tuple(p["dims"] for p in meta["points"])
        out.append(Model(path.stem, FAMILY, meta.get("note", ""), None, points=points, ranges=ranges))
    return out
