"""Valid inputs for a graph at chosen shapes: from a model's description, or learned from the graph itself."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from disc_tf.ir.types import DType, tf_type_name

#: ops whose first output holds the same integers as their first input
_SAME_VALUES = frozenset(
    "Identity Cast Reshape ExpandDims Squeeze StopGradient Snapshot EnsureShape PreventGradient Transpose".split()
)
#: op -> (input that is an index, input whose rows it picks)
_INDEXERS = {"GatherV2": (1, 0), "Gather": (1, 0), "ResourceGather": (1, 0)}


@dataclasses.dataclass(frozen=True)
class InputSpec:
    """One graph input. dims: an int, a name (equal names are equal extents) or None. low/high bound integer values."""

    name: str
    dtype: np.dtype
    dims: tuple[int | str, ...]
    low: int = 0
    high: int = 2
    kind: str = "auto"

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(sizes[d] if isinstance(d, str) else d for d in self.dims)

    def make(self, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
        """Random values of this input at ``shape``."""
        if self.kind == "mask":
            length = shape[-1] if shape else 1
            keep = rng.integers(max(1, (length + 1) // 2), length + 1, size=tuple(shape[:-1])) if length else 0
            mask = np.arange(length) < np.asarray(keep)[..., None]
            return np.broadcast_to(mask, shape).astype(self.dtype)
        if self.dtype.kind == "b":
            return rng.integers(0, 2, shape).astype(self.dtype)
        if self.dtype.kind in "iu":
            return rng.integers(self.low, max(self.high, self.low + 1), shape).astype(self.dtype)
        return rng.standard_normal(shape).astype(np.float32).astype(self.dtype)


def specs_from_json(path: str | Path) -> tuple[list[InputSpec], list[str], list[dict[str, int]]]:
    """(inputs, output tensor names, trace of dims) of a model description in ``bench/models``."""
    meta: dict[str, Any] = json.loads(Path(path).read_text())
    specs = []
    for entry in meta["inputs"]:
        gen = entry.get("gen", {})
        specs.append(
            InputSpec(
                entry["name"],
                np.dtype(entry["dtype"]),
                tuple(entry["shape"]),
                int(gen.get("lo", 0)),
                int(gen.get("hi", 2)),
                gen.get("kind", "auto"),
            )
        )
    return specs, list(meta["outputs"]), [p["dims"] for p in meta["points"]]


def specs_from_graph(
    graph_def: Any, equal: Sequence[tuple[str, str]] = (), outputs: Sequence[str] | None = None
) -> list[InputSpec]:
    """Inputs of a GraphDef: the placeholders that ``outputs`` need (None: all), integer ranges learned from the tables they index.

    Unknown dims get the name ``<input>/<axis>``. ``equal`` are pairs of such names that must be equal; without any, dims at the same axis
    of inputs of the same rank are taken to be equal, and axis 0 of all. ValueError, with the way out, for an input that cannot be made up.
    """
    consumers: dict[str, list[tuple[Any, int]]] = {}
    nodes = {}
    for node in graph_def.node:
        nodes[node.name] = node
        for i, name in enumerate(node.input):
            if not name.startswith("^"):
                consumers.setdefault(name.split(":")[0], []).append((node, i))
    needed = nodes.keys() if outputs is None else _needed(nodes, outputs)
    placeholders = [n for n in graph_def.node if n.op == "Placeholder" and n.name in needed]
    names: dict[str, str] = {}
    raw: list[tuple[Any, DType, list[int | str]]] = []
    for node in placeholders:
        dtype = DType.from_tf(node.attr["dtype"].type)
        shape = node.attr["shape"].shape
        if dtype is None or shape.unknown_rank:
            raise ValueError(f"input {node.name}: {_why_not(node)}")
        dims: list[int | str] = [d.size if d.size >= 0 else f"{node.name}/{i}" for i, d in enumerate(shape.dim)]
        raw.append((node, dtype, dims))
    for a, b in equal or _guess_equal([dims for _, _, dims in raw]):
        names[_find(names, a)] = _find(names, b)
    specs = []
    for node, dtype, dims in raw:
        high = _index_limit(node.name, consumers, nodes) if dtype.is_int else None
        merged = tuple(_find(names, d) if isinstance(d, str) else d for d in dims)
        specs.append(InputSpec(node.name, dtype.np, merged, 0, high if high is not None else 2))
    return specs


def _needed(nodes: Mapping[str, Any], outputs: Sequence[str]) -> set[str]:
    """The names of the nodes that run when ``outputs`` (tensors, ops or ``^control`` names) are fetched."""
    work = [name.lstrip("^").split(":")[0] for name in outputs]
    seen: set[str] = set()
    while work:
        name = work.pop()
        if name in nodes and name not in seen:
            seen.add(name)
            work += [source.lstrip("^").split(":")[0] for source in nodes[name].input]
    return seen


def _why_not(node: Any) -> str:
    """Why no values can be made up for a placeholder, and what helps."""
    attr = node.attr["dtype"]
    without = "--no-verify compiles without a run"
    if attr.type and DType.from_tf(attr.type) is None:
        return f"values of type {tf_type_name(attr.type)} cannot be made up, so the graph cannot be run here; {without}"
    what = "rank" if attr.type else "dtype"
    return f"its {what} is not known; describe the inputs with --inputs-json FILE ({without})"


def _find(names: dict[str, str], a: str) -> str:
    while a in names and names[a] != a:
        a = names[a]
    return a


def _guess_equal(all_dims: Sequence[Sequence[int | str]]) -> list[tuple[str, str]]:
    pairs = []
    for x, y in itertools.pairwise(all_dims):
        for axis, (a, b) in enumerate(zip(x, y, strict=False)):
            if isinstance(a, str) and isinstance(b, str) and (axis == 0 or len(x) == len(y)):
                pairs.append((a, b))
    return pairs


def _index_limit(name: str, consumers: Mapping[str, list[tuple[Any, int]]], nodes: Mapping[str, Any]) -> int | None:
    """The smallest table that the values of ``name`` index, or None."""
    limit: int | None = None
    seen, work = {name}, deque([name])
    while work:
        for node, i in consumers.get(work.popleft(), ()):
            if node.op in _SAME_VALUES and i == 0 and node.name not in seen:
                seen.add(node.name)
                work.append(node.name)
            elif node.op in _INDEXERS and _INDEXERS[node.op][0] == i:
                rows = _rows(nodes, node.input[_INDEXERS[node.op][1]])
                if rows is not None and rows > 0:
                    limit = rows if limit is None else min(limit, rows)
    return limit


def _rows(nodes: Mapping[str, Any], name: str) -> int | None:
    for _ in range(8):
        node = nodes.get(name.split(":")[0])
        if node is None:
            return None
        if node.op == "Const":
            dims = node.attr["value"].tensor.tensor_shape.dim
            return dims[0].size if dims else None
        if node.op not in _SAME_VALUES or not node.input:
            return None
        name = node.input[0]
    return None


def sample_sizes(specs: Sequence[InputSpec], count: int, seed: int = 0) -> list[dict[str, int]]:
    """``count`` assignments of extents to the dim names: ones, small, primes, larger; axis-0 dims stay small."""
    names = list(dict.fromkeys(d for s in specs for d in s.dims if isinstance(d, str)))
    batch = {s.dims[0] for s in specs if s.dims and isinstance(s.dims[0], str)}
    ladder = [(1, 1), (1, 7), (2, 16), (3, 31), (1, 64), (4, 25), (8, 13), (1, 128)]
    rng = np.random.default_rng(seed)
    out = []
    for i in range(count):
        b, s = ladder[i] if i < len(ladder) else (int(rng.integers(1, 9)), int(rng.integers(1, 130)))
        out.append({n: b if n in batch else s for n in names})
    return out


def make_feeds(specs: Sequence[InputSpec], sizes: Mapping[str, int], seed: int = 0) -> list[np.ndarray]:
    """One array per input."""
    rng = np.random.default_rng(seed)
    return [s.make(s.shape(sizes), rng) for s in specs]


def broadcast_feeds(specs: Sequence[InputSpec], seed: int = 0, limit: int = 3) -> list[list[np.ndarray]]:
    """Feeds in which one input has extent 1 along its first dim where others have 3: TensorFlow broadcasts, or refuses.

    One list for each input that shares the name of its first dim with another, at most ``limit``.
    """
    names = {d for s in specs for d in s.dims if isinstance(d, str)}
    batch = [s.dims[0] for s in specs if s.dims and isinstance(s.dims[0], str)]
    sizes = {n: 3 if n in batch else 7 for n in names}
    out = []
    for i, spec in enumerate(specs):
        if spec.dims and isinstance(spec.dims[0], str) and batch.count(spec.dims[0]) > 1 and len(out) < limit:
            feeds = make_feeds(specs, sizes, seed + i)
            feeds[i] = feeds[i][:1]
            out.append(feeds)
    return out
