"""What reports tell of a body: the memory that it holds step by step, and what a fusion has to move and to compute."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Container, Sequence

from disc_tf.buffers.bufferize import byte_size
from disc_tf.buffers.types import Buffers
from disc_tf.codegen.host import Launch
from disc_tf.costs import LANE_PER_MAC, op_weight
from disc_tf.fusion.types import Fusion
from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim, DimTooComplex, dmin
from disc_tf.ir.types import TensorType

#: ops that read no more of their first operand than they give
_PICKS = frozenset({"gather", "dynamic_slice", "slice"})


@dataclasses.dataclass(frozen=True)
class ArenaBuffer:
    """``bytes`` that live from step ``first`` to step ``last`` (inclusive) in slot ``slot`` of the arena."""

    bytes: Dim
    first: int
    last: int
    slot: int


@dataclasses.dataclass(frozen=True)
class MemoryUse:
    """The arena over the program order of the uniform body: what each step is called, buffers, sizes of the slots."""

    steps: tuple[str, ...] = ()
    buffers: tuple[ArenaBuffer, ...] = ()
    slots: tuple[Dim, ...] = ()


def memory_use(launches: Sequence[Launch], buffers: Buffers) -> MemoryUse:
    """The memory plan of a body. Loops and branches are one step here: what their regions allocate is theirs."""
    plan = buffers.memory
    found = [ArenaBuffer(b.bytes, *plan.live[b], slot) for b, slot in plan.slot_of.items()]
    return MemoryUse(tuple(x.step.fusion.name for x in launches), tuple(found), tuple(plan.slots))


def traffic(fusion: Fusion) -> tuple[Dim, ...]:
    """Bytes that must move at least, a term for each input and output; what is only picked from counts as far as it is read."""
    return (*(byte_size(v) for v in fusion.outputs if isinstance(v.type, TensorType)), *_read(fusion, fusion.inputs))


def weights(fusion: Fusion, of: Container[Value]) -> tuple[Dim, ...]:
    """Those terms of `traffic` that are inputs in ``of``, beside those of `picked`."""
    return _read(fusion, [v for v in fusion.inputs if v in of and not _scattered(fusion, v)])


def picked(fusion: Fusion) -> tuple[Dim, ...]:
    """Those terms of `traffic` that are rows or elements which other data pick."""
    return _read(fusion, [v for v in fusion.inputs if _scattered(fusion, v)])


def _pickers(fusion: Fusion, v: Value) -> list[Op]:
    """The ops that read ``v``, if all of them read only a part of it."""
    users = [op for op in fusion.ops if v in op.operands]
    return users if all(op.name in _PICKS and op.operands[0] is v and v not in op.operands[1:] for op in users) else []


def _scattered(fusion: Fusion, v: Value) -> bool:
    return any(op.name == "gather" for op in _pickers(fusion, v))


def _read(fusion: Fusion, inputs: Sequence[Value]) -> tuple[Dim, ...]:
    terms = []
    for v in inputs:
        if not isinstance(v.type, TensorType):
            continue
        whole = byte_size(v)
        if pickers := _pickers(fusion, v):
            try:
                read = Dim.of(0)
                for op in pickers:
                    read = read + byte_size(op.result)
                whole = dmin(whole, read)
            except DimTooComplex:
                pass
        terms.append(whole)
    return tuple(terms)


def operations(fusion: Fusion, lanes: int) -> tuple[Dim, ...]:
    """Lane operations (`costs`) beside those of products, a term for each size; none of what a library function does. A product of fewer
    features than vectors have ``lanes`` counts what the others do for nothing."""
    if fusion.kind == "library":
        return ()
    found: dict[Dim, float] = {}
    for op in fusion.ops:
        if op.name in _PRODUCTS:
            weight = _idle(op, lanes)
        else:
            weight = 1.0 if _copies_rows(op) else op_weight(op)
        whole = op.operands[0] if op.name == "reduce" else op.results[0] if op.results else None
        if not weight or whole is None or not isinstance(whole.type, TensorType):
            continue
        size = whole.tensor.num_elements()
        found[size] = found.get(size, 0.0) + weight
    out = []
    for size, weight in found.items():
        with contextlib.suppress(DimTooComplex):
            out.append(size * round(weight))
    return tuple(out)


_PRODUCTS = frozenset({"dot_general", "convolution"})
#: lanes that are idle for one that works, at most: very few features are summed along another axis
_MOST_IDLE = 7


def _idle(op: Op, lanes: int) -> float:
    """Lane operations for each element of a convolution that its missing features would have taken."""
    if op.name != "convolution" or op.attrs["feature_group_count"] != 1:
        return 0.0
    features, *window = (op.result.dims[-1], *op.operands[1].dims[:-1])
    if not features.is_static or not all(d.is_static for d in window) or not int(features):
        return 0.0
    unused = -(-int(features) // lanes) * lanes / int(features) - 1
    return min(unused, _MOST_IDLE) * math.prod(int(d) for d in window) / LANE_PER_MAC


def _copies_rows(op: Op) -> bool:
    """Whether a gather picks runs of elements, which are read as fast as if they followed each other."""
    return op.name == "gather" and bool(op.attrs["offset_dims"])
