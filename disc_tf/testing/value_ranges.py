"""What the values of an input may be, learned from the ops that read them: rows of tables, keys of vocabularies, serialized examples.

A limit that cannot be learned is not an error: the values are then small, and the graph may refuse them, as it may refuse the original's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from disc_tf.testing.value_flow import Flow, Ref, Scope, Use

#: keys of a vocabulary that are looked at
MAX_KEYS = 1000
_MAX_FEATURE_DEPTH = 3


@dataclasses.dataclass
class Learned:
    """What was found about the values of one tensor.

    high: they index a table of rows, ``low <= value < high`` (None: nothing indexes). size: they are extents of something. sorted: they are
    segment numbers. keys: of the vocabularies that they are looked up in (bytes or ints). texts: what strings are parsed as: "sentence",
    "number", "image", "audio", "base64" (around the others). features: strings are serialized Examples with these.
    """

    low: int = 0
    high: int | None = None
    size: bool = False
    sorted: bool = False
    keys: tuple[Any, ...] = ()
    texts: frozenset[str] = frozenset()
    features: tuple[Feature, ...] = ()

    def below(self, rows: int, use: Use) -> None:
        """The values, after the use's change, index ``rows`` rows."""
        change = use.change
        if change.cap is not None:
            rows = min(rows, change.cap + 1)
        high = rows - change.offset
        if rows <= 0 or high <= 0:
            return
        self.high = high if self.high is None else min(self.high, high)
        self.low = max(self.low, -change.offset)


@dataclasses.dataclass(frozen=True)
class Feature:
    """A feature of an Example. dtype: a DataType number; shape: of a dense one (-1: any length), None for a sparse or ragged one."""

    name: bytes
    dtype: int
    shape: tuple[int, ...] | None
    learned: Learned = dataclasses.field(default_factory=Learned, compare=False, hash=False)


_Reader = Callable[[Flow, Use, Learned, int], None]
_READERS: dict[str, _Reader] = {}


def _reads(*ops: str) -> Callable[[_Reader], _Reader]:
    def register(reader: _Reader) -> _Reader:
        for op in ops:
            _READERS[op] = reader
        return reader

    return register


def learn(flow: Flow, scope: Scope, ref: Ref, depth: int = 0) -> Learned:
    """What the graph says about the values of a tensor."""
    learned = Learned()
    for use in flow.uses(scope, ref):
        reader = _READERS.get(use.node.op)
        if reader is not None:
            reader(flow, use, learned, depth)
        if use.change.split:
            learned.texts |= {"sentence"}
        if use.change.base64:
            learned.texts |= {"base64"}
    if learned.high is not None and learned.low >= learned.high:
        learned.low = 0
    return learned


def _axis(flow: Flow, use: Use, index: int) -> int | None:
    axis = flow.scalar(use.scope, use.input(index)) if use.count() > index else 0
    return axis


@_reads("Gather", "GatherV2", "ResourceGather")
def _gather(flow: Flow, use: Use, learned: Learned, depth: int) -> None:
    if use.index != 1:
        return
    shape = flow.shape(use.scope, use.input(0))
    axis = _axis(flow, use, 2)
    if shape is not None and axis is not None and -len(shape) <= axis < len(shape):
        learned.below(shape[axis], use)


@_reads("GatherNd", "ResourceGatherNd")
def _gather_nd(flow: Flow, use: Use, learned: Learned, depth: int) -> None:
    if use.index != 1 or not (shape := flow.shape(use.scope, use.input(0))):
        return
    columns = flow.shape(use.scope, use.input(1))
    width = columns[-1] if columns and columns[-1] > 0 else 1
    if known := [d for d in shape[:width] if d > 0]:
        learned.below(min(known), use)


@_reads("OneHot", "UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd")
def _by_operand(flow: Flow, use: Use, learned: Learned, depth: int) -> None:
    index, rows = (0, 1) if use.node.op == "OneHot" else (1, 2)
    if use.index == index and (limit := flow.scalar(use.scope, use.input(rows))) is not None:
        learned.below(limit, use)


@_reads("Bincount", "DenseBincount")
def _bincount(flow: Flow, use: Use, learned: Learned, depth: int) -> None:
    if use.index == 0 and (limit := flow.scalar(use.scope, use.input(1))) is not None:
        learned.below(limit, use)


@_reads(*(f"SparseSegment{kind}{more}" for kind in ("Sum", "Mean", "SqrtN") for more in ("", "WithNumSegments")))
def _sparse_segment(flow: Flow, use: Use, learned: Learned, depth: int) -> None:
    if use.index == 1 and (shape := flow.shape(use.scope, use.input(0))):
        learned.below(shape[0], use)
    if use.index == 2:
        learned.sorted = True
        if use.count() > 3 and (limit := flow.scalar(use.scope, use.input(3))) is not None:
            learned.below(limit, use)


@_reads("SegmentSum", "SegmentMean", "SegmentMax", "SegmentMin", "SegmentProd")
def _segment(flow: Flow, use: Use, learned: Learned, depth: int) -> None:
    learned.sorted |= use.index == 1


@_reads("ScatterNd", "TensorScatterUpdate", "TensorScatterAdd")
def _scatter(flow: Flow, use: Use, learned: Learned, depth: int) -> None:
    of_shape = use.node.op == "ScatterNd"
    if use.index != (0 if of_shape else 1):
        return
    if of_shape:
        array = flow.constant(use.scope, use.input(2))
        shape = [int(d) for d in array] if array is not None and array.ndim == 1 else None
    else:
        shape = flow.shape(use.scope, use.input(0))
    if shape and (known := [d for d in shape[:1] if d > 0]):
        learned.below(min(known), use)


@_reads("SparseSoftmaxCrossEntropyWithLogits", "InTopKV2", "InTopK")
def _classes(flow: Flow, use: Use, learned: Learned, depth: int) -> None:
    if use.index == 1 and (shape := flow.shape(use.scope, use.input(0))):
        learned.below(shape[-1], use)


#: op -> inputs that are extents or counts
_SIZES = {
    "Reshape": 1, "Fill": 0, "Tile": 1, "BroadcastTo": 1, "Range": 1, "TopKV2": 1, "RandomUniform": 0, "RandomStandardNormal": 0,
    "StatelessRandomUniformV2": 0, "StatelessRandomNormalV2": 0, "ResizeBilinear": 1, "ResizeNearestNeighbor": 1, "ResizeBicubic": 1,
}  # fmt: skip


@_reads(*_SIZES)
def _size(flow: Flow, use: Use, learned: Learned, depth: int) -> None:
    learned.size |= use.index == _SIZES[use.node.op]


# ---- strings and vocabularies ---------------------------------------------------------------------------------


@_reads("LookupTableFindV2", "LookupTableFind")
def _lookup(flow: Flow, use: Use, learned: Learned, depth: int) -> None:
    if use.index != 1 or (found := flow.source(use.scope, use.input(0))) is None:
        return
    scope, node, port = found
    keys: list[Any] = []
    for other in flow.uses(scope, (node.name, port)):
        if other.index != 0:
            continue
        if other.node.op in ("InitializeTableV2", "InitializeTable", "LookupTableImportV2", "LookupTableImport"):
            array = flow.constant(other.scope, other.input(1))
            if array is not None:
                keys += array.reshape(-1)[:MAX_KEYS].tolist()
        elif other.node.op in ("InitializeTableFromTextFileV2", "InitializeTableFromTextFile"):
            keys += _keys_of_file(flow, other)
    keys = [k for k in keys if k != b""]
    if keys:
        learned.keys = (*learned.keys, *keys)[:MAX_KEYS]


def _keys_of_file(flow: Flow, use: Use) -> Sequence[Any]:
    """The keys of a vocabulary file as far as it can be read here; none for tables whose keys are line numbers."""
    found = flow.assigned(use.scope, use.input(1))
    if found is None:
        return []
    scope, node, port = found
    path = flow.assets.get(node.name) if scope.parent is None else None
    if path is None:
        array = flow.constant(scope, (node.name, port))
        path = array.flat[0] if array is not None and array.dtype == object and array.size == 1 else None
    attrs = use.node.attr
    column = attrs["key_index"].i if "key_index" in attrs else -2
    delimiter = attrs["delimiter"].s if "delimiter" in attrs else b"\t"
    if path is None or column < -2:
        return []
    try:
        with open(path, "rb") as f:
            lines = [line.rstrip(b"\r\n") for _, line in zip(range(MAX_KEYS), f, strict=False)]
    except OSError:
        return []
    if column == -1:
        return list(range(len(lines)))
    if column == -2:
        return lines
    rows = [line.split(delimiter) for line in lines]
    return [row[column] for row in rows if column < len(row)]


_PARSED = {
    "StringToNumber": "number", "DecodeJpeg": "image", "DecodePng": "image", "DecodeImage": "image", "DecodeWav": "audio",
}  # fmt: skip


@_reads(*_PARSED)
def _parsed(flow: Flow, use: Use, learned: Learned, depth: int) -> None:
    learned.texts |= {_PARSED[use.node.op]}


def _names(flow: Flow, use: Use, index: int) -> list[bytes]:
    array = flow.constant(use.scope, use.input(index))
    return [bytes(v) for v in array.reshape(-1)] if array is not None and array.dtype == object else []


@_reads("ParseExample", "ParseExampleV2", "ParseSingleExample")
def _parse_example(flow: Flow, use: Use, learned: Learned, depth: int) -> None:
    """The features that the op asks for; what each may be is learned from the readers of the op's results."""
    if use.index != 0 or depth >= _MAX_FEATURE_DEPTH:
        return
    node, attrs = use.node, use.node.attr
    ragged: list[bytes] = []
    if node.op == "ParseExample":
        n_sparse, n_dense = int(attrs["Nsparse"].i), int(attrs["Ndense"].i)
        sparse = [name for i in range(n_sparse) for name in _names(flow, use, 2 + i)]
        dense = [name for i in range(n_dense) for name in _names(flow, use, 2 + n_sparse + i)]
    elif node.op == "ParseExampleV2":
        sparse, dense, ragged = (_names(flow, use, i) for i in (2, 3, 4))
    else:
        sparse, dense = list(attrs["sparse_keys"].list.s), list(attrs["dense_keys"].list.s)
    features = []
    for i, (name, dtype) in enumerate(zip(sparse, attrs["sparse_types"].list.type, strict=False)):
        values = learn(flow, use.scope, (node.name, len(sparse) + i), depth + 1)
        features.append(Feature(name, int(dtype), None, values))
    shapes = attrs["dense_shapes"].list.shape
    for i, (name, dtype, shape) in enumerate(zip(dense, attrs["Tdense"].list.type, shapes, strict=False)):
        values = learn(flow, use.scope, (node.name, 3 * len(sparse) + i), depth + 1)
        features.append(Feature(name, int(dtype), tuple(int(d.size) for d in shape.dim), values))
    first = 3 * len(sparse) + len(dense)
    for i, (name, dtype) in enumerate(zip(ragged, attrs["ragged_value_types"].list.type if ragged else (), strict=False)):
        features.append(Feature(name, int(dtype), None, learn(flow, use.scope, (node.name, first + i), depth + 1)))
    known = {f.name for f in learned.features}
    learned.features = (*learned.features, *(f for f in features if f.name not in known))


