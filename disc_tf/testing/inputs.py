"""Valid inputs for a graph at chosen shapes: from a model's description, or learned from the graph itself."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from disc_tf.ir.types import DType, tf_type_name
from disc_tf.testing.strings import Strings, bounds, can_be_made
from disc_tf.testing.value_flow import Flow
from disc_tf.testing.value_ranges import Learned, learn


@dataclasses.dataclass(frozen=True)
class InputSpec:
    """One graph input. dims: an int or a name (equal names are equal extents). low/high bound integer values.

    kind: ``auto``, ``uniform`` (floats from 0 to 1), ``mask`` (ones, then zeros along the last axis), ``sorted`` (along the first axis) or
    ``whole`` (floats that are whole numbers in the bounds). choices: the integers to choose from. strings: how values of dtype object
    (bytes) are made. scale: the standard deviation of other floats.
    """

    name: str
    dtype: np.dtype
    dims: tuple[int | str, ...]
    low: int = 0
    high: int = 2
    kind: str = "auto"
    choices: tuple[int, ...] = ()
    strings: Strings | None = None
    scale: float = 1.0

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(sizes[d] if isinstance(d, str) else d for d in self.dims)

    def make(self, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
        """Random values of this input at ``shape``."""
        if self.kind == "mask":
            length = shape[-1] if shape else 1
            keep = rng.integers(max(1, (length + 1) // 2), length + 1, size=tuple(shape[:-1])) if length else 0
            mask = np.arange(length) < np.asarray(keep)[..., None]
            return np.broadcast_to(mask, shape).astype(self.dtype)
        if self.dtype == object:
            return (self.strings or Strings()).make(shape, rng)
        if self.choices:
            return np.array(self.choices)[rng.integers(0, len(self.choices), tuple(shape))].astype(self.dtype)
        if self.dtype.kind == "b":
            return rng.integers(0, 2, shape).astype(self.dtype)
        if self.dtype.kind in "iu" or self.kind == "whole":
            values = rng.integers(self.low, max(self._high(), self.low + 1), shape)
            if self.kind == "sorted" and values.ndim:
                values.sort(axis=0)
            return values.astype(self.dtype)
        if self.kind == "uniform":
            return rng.random(shape, np.float32).astype(self.dtype)
        return (rng.standard_normal(shape).astype(np.float32) * np.float32(self.scale)).astype(self.dtype)

    def _high(self) -> int:
        """The bound as far as the dtype holds it."""
        return min(self.high, int(np.iinfo(self.dtype).max) + 1) if self.dtype.kind in "iu" else self.high


#: how a description says that values are made; ``int``, ``hist`` and ``seqlen`` are integers in [``lo``, ``hi``), see `InputSpec`
GEN_KINDS = ("auto", "int", "hist", "seqlen", "normal", "uniform", "mask", "sorted", "whole")


def _check_gen(name: str, gen: Mapping[str, Any]) -> None:
    """``ValueError`` for a key or a kind that is not known: a typing error would give other values in silence."""
    for key in gen.keys() - {"kind", "lo", "hi", "scale"}:
        raise ValueError(f"input {name}: gen has no {key!r}; it takes kind, lo, hi, scale")
    kind = gen.get("kind", "auto")
    if kind not in GEN_KINDS:
        close = difflib.get_close_matches(str(kind), GEN_KINDS, 1)
        hint = f"did you mean {close[0]!r}" if close else f"known: {', '.join(GEN_KINDS)}"
        raise ValueError(f"input {name}: unknown gen kind {kind!r}; {hint}")


def specs_from_json(path: str | Path) -> tuple[list[InputSpec], list[str], list[dict[str, int]]]:
    """(inputs, output tensor names, trace of dims) of a model description in ``bench/models``. ``ValueError``, ``KeyError`` or
    ``TypeError`` for what is none."""
    try:
        meta: dict[str, Any] = json.loads(Path(path).read_text())
    except RecursionError as e:
        raise ValueError("too deeply nested") from e
    specs = [_described(entry) for entry in meta["inputs"]]
    outputs, trace = meta["outputs"], [point["dims"] for point in meta["points"]]
    if not isinstance(outputs, list) or not all(isinstance(name, str) for name in outputs):
        raise ValueError(f"outputs: a list of names is wanted, not {outputs!r}")
    for i, dims in enumerate(trace):
        if not isinstance(dims, dict):
            raise ValueError(f"points[{i}]: dims: an object is wanted, not {dims!r}")
        for name in {*dim_names(specs), *dims}:
            if not _is_extent(dims.get(name)):
                raise ValueError(f"points[{i}]: {name}: an extent is wanted, not {dims.get(name)!r}")
    return specs, outputs, trace


def _described(entry: Mapping[str, Any]) -> InputSpec:
    name, shape, gen = entry["name"], entry["shape"], entry.get("gen", {})
    if not isinstance(name, str):
        raise ValueError(f"the name of an input is text, not {name!r}")
    if not isinstance(shape, list) or not all(isinstance(d, str) or _is_extent(d) for d in shape):
        raise ValueError(f"input {name}: shape: a list of names and extents is wanted, not {shape!r}")
    if not isinstance(gen, dict):
        raise ValueError(f"input {name}: gen: an object is wanted, not {gen!r}")
    _check_gen(name, gen)
    dtype, low, high = np.dtype(entry["dtype"]), gen.get("lo", 0), gen.get("hi", 2)
    least, most = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind in "iu" else (-(1 << 63), (1 << 63) - 1)
    if not all(isinstance(x, int) for x in (low, high)) or not least <= low <= most:
        raise ValueError(f"input {name}: gen: lo and hi are whole numbers, lo one of {dtype}, not {low!r} and {high!r}")
    return InputSpec(name, dtype, tuple(shape), low, high, gen.get("kind", "auto"), scale=float(gen.get("scale", 1.0)))


def _is_extent(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and x >= 0


def specs_from_graph(
    graph_def: Any, equal: Sequence[tuple[str, str]] = (), outputs: Sequence[str] | None = None
) -> list[InputSpec]:
    """Inputs of a GraphDef: the placeholders that ``outputs`` need (None: all), with values learned from what reads them (`value_ranges`).

    Unknown dims get the name ``<input>/<axis>``. ``equal`` are pairs of such names that must be equal; without any, dims at the same axis
    of inputs of the same rank are taken to be equal, and axis 0 of all. ValueError, with the way out, for an input that cannot be made up.
    """
    nodes = {node.name: node for node in graph_def.node}
    needed = nodes.keys() if outputs is None else _needed(nodes, outputs)
    flow: Flow | None = None
    raw: list[InputSpec] = []
    for node in graph_def.node:
        if node.op != "Placeholder" or node.name not in needed:
            continue
        number, shape = node.attr["dtype"].type, node.attr["shape"].shape
        if not can_be_made(number) or shape.unknown_rank:
            raise ValueError(f"input {node.name}: {why_not(number, shape)}")
        flow = flow or Flow(graph_def)
        raw.append(make_spec(node.name, number, [d.size for d in shape.dim], learn(flow, flow.root, (node.name, 0))))
    return share_dims(raw, equal)


def make_spec(name: str, tf_type: int, dims: Sequence[int], learned: Learned) -> InputSpec:
    """The spec of an input; negative dims get the name ``<input>/<axis>``."""
    named = tuple(d if d >= 0 else f"{name}/{i}" for i, d in enumerate(dims))
    dtype = DType.from_tf(tf_type)
    if dtype is None:
        return InputSpec(name, np.dtype(object), named, strings=Strings.of(learned))
    low, high = bounds(learned)
    choices = tuple(k for k in learned.keys if isinstance(k, int))
    kind = "auto"
    if dtype.is_int and learned.sorted:
        kind = "sorted"
    elif dtype.is_float and learned.high is not None:
        kind = "whole"
    return InputSpec(name, dtype.np, named, low, high, kind, choices)


def share_dims(specs: Sequence[InputSpec], equal: Sequence[tuple[str, str]] = ()) -> list[InputSpec]:
    """The specs with one name for dims that are equal: the pairs ``equal``, or what is likely."""
    names: dict[str, str] = {}
    for a, b in equal or _guess_equal([s.dims for s in specs]):
        names[_find(names, a)] = _find(names, b)
    return [dataclasses.replace(s, dims=tuple(_find(names, d) if isinstance(d, str) else d for d in s.dims)) for s in specs]


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


def why_not(tf_type: int, shape: Any) -> str:
    """Why no values can be made up for an input, and what helps."""
    without = "--no-verify compiles without a run"
    if tf_type and not can_be_made(tf_type):
        return f"values of type {tf_type_name(tf_type)} cannot be made up, so the graph cannot be run here; {without}"
    what = "rank" if tf_type else "dtype"
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


def dim_names(specs: Sequence[InputSpec]) -> list[str]:
    """The names that dims have, in the order of the inputs."""
    return list(dict.fromkeys(d for s in specs for d in s.dims if isinstance(d, str)))


def sample_sizes(specs: Sequence[InputSpec], count: int, seed: int = 0) -> list[dict[str, int]]:
    """``count`` assignments of extents to the dim names: ones, small, primes, larger; axis-0 dims stay small."""
    names = dim_names(specs)
    batch = {s.dims[0] for s in specs if s.dims and isinstance(s.dims[0], str)}
    ladder = [(1, 1), (1, 7), (2, 16), (3, 31), (1, 64), (4, 25), (8, 13), (1, 128)]
    rng = np.random.default_rng(seed)
    out = []
    for i in range(count):
        b, s = ladder[i] if i < len(ladder) else (int(rng.integers(1, 9)), int(rng.integers(1, 130)))
        out.append({n: b if n in batch else s for n in names})
    return out


#: of an array, at most: numpy counts the bytes of wider elements in 63 bits
_MOST_ELEMENTS = 1 << 58


def make_feeds(specs: Sequence[InputSpec], sizes: Mapping[str, int], seed: int = 0) -> list[np.ndarray]:
    """One array per input. ``MemoryError``, with the input and its shape, where one does not fit."""
    rng = np.random.default_rng(seed)
    return [_made(s, s.shape(sizes), rng) for s in specs]


def _made(spec: InputSpec, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    try:
        if math.prod(max(d, 1) for d in shape) > _MOST_ELEMENTS:  # numpy has other errors for these
            raise MemoryError
        return spec.make(shape, rng)
    except MemoryError as e:
        raise MemoryError(f"input {spec.name} at {list(shape)} does not fit in memory") from e


def broadcast_feeds(specs: Sequence[InputSpec], seed: int = 0, limit: int = 3) -> list[list[np.ndarray]]:
    """Feeds in which one input has extent 1 along its first dim where others have 3: TensorFlow broadcasts, or refuses.

    One list for each input that shares the name of its first dim with another, at most ``limit``.
    """
    batch = [s.dims[0] for s in specs if s.dims and isinstance(s.dims[0], str)]
    sizes = {n: 3 if n in batch else 7 for n in dim_names(specs)}
    out = []
    for i, spec in enumerate(specs):
        if spec.dims and isinstance(spec.dims[0], str) and batch.count(spec.dims[0]) > 1 and len(out) < limit:
            feeds = make_feeds(specs, sizes, seed + i)
            feeds[i] = feeds[i][:1]
            out.append(feeds)
    return out
