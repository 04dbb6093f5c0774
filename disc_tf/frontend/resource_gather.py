"""Lookups in variables as lookups in what is read of them, so that they can be part of a cluster.

``ResourceGather(handle, ids)`` becomes ``GatherV2(ReadVariableOp(handle), ids, 0)``, ``ResourceGatherNd`` ``GatherNd``. A read costs
nothing as long as nobody updates the variable sparsely: afterwards TensorFlow copies the whole table for each read. The caller must know
that nobody does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from disc_tf.frontend.earlier_writes import EarlierWrites
from disc_tf.frontend.graph import fresh_name
from disc_tf.frontend.state import SPARSE_UPDATES

_INT32 = 3
_DENSE = {"ResourceGather": "GatherV2", "ResourceGatherNd": "GatherNd"}


def updates_sparsely(nodes: Iterable[Any]) -> bool:
    """Whether one of the nodes updates parts of a variable."""
    return any(n.op.startswith(SPARSE_UPDATES) for n in nodes)


def read_first(graph_def: Any) -> Any:
    """The graph with lookups in variables made dense, or the argument itself if it has none."""
    if not any(n.op in _DENSE for n in graph_def.node):
        return graph_def
    new = type(graph_def)()
    new.CopyFrom(graph_def)
    taken = {n.name for n in graph_def.node}
    earlier = EarlierWrites(graph_def)
    made = []
    for node in new.node:
        if node.op in _DENSE:
            made += _make_dense(node, taken, earlier)
    new.node.extend(made)
    return new


def _make_dense(node: Any, taken: set[str], earlier: EarlierWrites) -> list[Any]:
    def named(suffix: str, op: str) -> Any:
        return type(node)(name=fresh_name(f"{node.name}/{suffix}", taken), op=op, device=node.device)

    dtype, indices = node.attr["dtype"].type, node.attr["Tindices"].type
    data = [i for i in node.input if not i.startswith("^")]
    controls = [i for i in node.input if i.startswith("^")]
    read = named("read", "ReadVariableOp")
    read.input.extend(dict.fromkeys([data[0], *controls, *earlier.before(node.name, data[0])]))
    read.attr["dtype"].type = dtype
    made = [read]
    inputs = [read.name, data[1]]
    kept = {key: node.attr[key] for key in ("_output_shapes", "batch_dims") if key in node.attr}
    new = type(node)(name=node.name, op=_DENSE[node.op], device=node.device)
    new.attr["Tparams"].type, new.attr["Tindices"].type = dtype, indices
    if new.op == "GatherV2":
        axis = named("axis", "Const")
        axis.attr["dtype"].type = _INT32
        tensor = axis.attr["value"].tensor
        tensor.dtype = _INT32
        tensor.tensor_shape.SetInParent()
        batch = int(kept["batch_dims"].i) if "batch_dims" in kept else 0
        tensor.int_val.append(batch)
        new.attr["Taxis"].type = _INT32
        made.append(axis)
        inputs.append(axis.name)
    else:
        kept.pop("batch_dims", None)
    for key, value in kept.items():
        new.attr[key].CopyFrom(value)
    new.input.extend([*inputs, *controls])
    node.CopyFrom(new)
    return made
