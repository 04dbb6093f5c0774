"""The recipe of a rewritten graph: how to get the original back, bit for bit.

It names, for each node of the original in order, where it is found: in the rewritten graph as it stands, there with other inputs, or in the
recipe itself. Likewise for library functions; a large constant inside a function that was inlined is found in the rewritten graph. The
*plan* says which clusters were made, so that some of them can be put back without compiling again.

Format: zlib of  u32 length of a JSON text, the JSON text, a serialized GraphDef with the stored nodes and functions.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from typing import Any

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.tensor_proto import SMALL_BYTES
from disc_tf.frontend.tfproto import serialized

VERSION = 1
_MAX_UNPACKED = 1 << 31


@dataclasses.dataclass
class ClusterPlan:
    """A launched cluster: see `cluster.Cluster` and `rewrite.Launch`; tensors by name. ``through``: pairs of tensor names."""

    name: str
    nodes: list[str]
    constants: list[str]
    args: list[str]
    kinds: list[str]
    results: list[str]
    host_results: list[bool]
    controls: list[str]
    through: list[list[str]]


@dataclasses.dataclass
class Plan:
    """What was asked (`outputs`; targets as ``^name``), the clusters, and the compilable nodes that are in none of them."""

    outputs: list[str]
    clusters: list[ClusterPlan]
    compiled: list[str]
    #: see `load.expand`; None in graphs of versions that left legacy control flow alone
    keep_legacy: list[str] | None = None
    #: (function, constant): see `body_constants`
    hoisted: list[list[str]] = dataclasses.field(default_factory=list)


def make(original: Any, rewritten: Any, plan: Plan) -> bytes:
    """The recipe that gives ``original`` back from ``rewritten`` (before the recipe itself is added)."""
    store = type(original)()
    _copy_rest(original, store)
    by_name = {node.name: node for node in rewritten.node}
    nodes = [_find_node(node, by_name, store) for node in original.node]
    kept = {f.signature.name: f for f in rewritten.library.function}
    functions: list[Any] = []
    holders = None
    for f in original.library.function:
        found = kept.get(f.signature.name)
        if found is not None and found == f:
            functions.append(f.signature.name)
            continue
        holders = _holders(rewritten) if holders is None else holders
        functions.append([len(store.library.function), _store_function(f, store, holders)])
    head = {
        "version": VERSION,
        "plan": dataclasses.asdict(plan),
        "nodes": nodes,
        "functions": functions,
        "library": original.HasField("library"),
    }
    text = json.dumps(head, separators=(",", ":")).encode()
    return zlib.compress(len(text).to_bytes(4, "little") + text + serialized(store), 6)


def _copy_rest(source: Any, target: Any) -> None:
    """All of a GraphDef but its nodes and functions."""
    for descriptor, value in source.ListFields():
        if descriptor.name == "node":
            continue
        if descriptor.name == "library":
            target.library.SetInParent()
            for g in source.library.gradient:
                target.library.gradient.add().CopyFrom(g)
        elif descriptor.message_type is not None:
            getattr(target, descriptor.name).CopyFrom(value)
        else:
            setattr(target, descriptor.name, value)


def _find_node(node: Any, by_name: dict[str, Any], store: Any) -> Any:
    """A name (as it stands), ``[name, inputs]`` (other inputs), or the index of the stored copy."""
    found = by_name.get(node.name)
    if found is not None and found.op == node.op:
        if found == node:
            return node.name
        if node.op != "Const":
            probe = type(node)()
            probe.CopyFrom(found)
            _set_inputs(probe, node.input)
            if probe == node:
                return [node.name, list(node.input)]
    store.node.add().CopyFrom(node)
    return len(store.node) - 1


def _set_inputs(node: Any, inputs: Any) -> None:
    values = list(inputs)
    del node.input[:]
    node.input.extend(values)


def _holders(rewritten: Any) -> dict[int, list[Any]]:
    """Large Const nodes of the rewritten graph by size."""
    found: dict[int, list[Any]] = {}
    for node in rewritten.node:
        if node.op == "Const" and (size := node.attr["value"].tensor.ByteSize()) > SMALL_BYTES:
            found.setdefault(size, []).append(node)
    return found


def _store_function(f: Any, store: Any, holders: dict[int, list[Any]]) -> list[list[Any]]:
    """Store a function; large constants that the graph has are left out: ``[node index, holder's name]``."""
    new = store.library.function.add()
    references: list[list[Any]] = []
    # node by node, so that weights are not copied only to be cleared
    for descriptor, value in f.ListFields():
        if descriptor.name == "node_def":
            continue
        if descriptor.name == "signature":
            new.signature.CopyFrom(value)
        else:
            _copy_field(new, f, descriptor)
    for i, node in enumerate(f.node_def):
        holder = None
        if node.op == "Const" and "value" in node.attr:
            tensor = node.attr["value"].tensor
            size = tensor.ByteSize()
            holder = next((h for h in holders.get(size, ()) if h.attr["value"].tensor == tensor), None)
        copy = new.node_def.add()
        if holder is None:
            copy.CopyFrom(node)
            continue
        references.append([i, holder.name])
        copy.name, copy.op, copy.device = node.name, node.op, node.device
        copy.input.extend(node.input)
        for key in node.attr:
            if key != "value":
                copy.attr[key].CopyFrom(node.attr[key])
        for descriptor, value in node.ListFields():
            if descriptor.name not in ("name", "op", "device", "input", "attr") and descriptor.message_type is not None:
                getattr(copy, descriptor.name).CopyFrom(value)
    return references


def _copy_field(target: Any, source: Any, descriptor: Any) -> None:
    """Copy one field of any kind (maps and lists included) by way of a message that has only this field."""
    value = getattr(source, descriptor.name)
    if hasattr(value, "MergeFrom"):
        getattr(target, descriptor.name).MergeFrom(value)
    elif hasattr(value, "extend"):
        getattr(target, descriptor.name).extend(value)
    elif hasattr(value, "update"):
        getattr(target, descriptor.name).update(value)
    else:
        setattr(target, descriptor.name, value)


def _unpack(data: bytes) -> tuple[dict[str, Any], bytes]:
    try:
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(data, _MAX_UNPACKED)
        if not unpacker.eof:
            raise ValueError("incomplete or too large")
        size = int.from_bytes(raw[:4], "little")
        head = json.loads(raw[4 : 4 + size])
        if head["version"] != VERSION:
            raise GraphError(
                f"the graph was optimized by another disc_tf: its restore recipe has version {head['version']}, this one reads {VERSION}; "
                "upgrade disc-tf here, or take the original"
            )
        return head, raw[4 + size :]
    except GraphError:
        raise
    except (ValueError, KeyError, TypeError, zlib.error, RecursionError) as e:
        raise GraphError(f"the graph's restore recipe is damaged: {e}") from e


def read_plan(data: bytes) -> Plan:
    """The plan inside a recipe. ``GraphError`` if it is damaged."""
    head, _ = _unpack(data)
    try:
        plan = head["plan"]
        clusters = [ClusterPlan(**c) for c in plan["clusters"]]
        return Plan(plan["outputs"], clusters, plan["compiled"], plan.get("keep_legacy"), plan.get("hoisted", []))
    except (KeyError, TypeError) as e:
        raise GraphError(f"the graph's restore recipe is damaged: {e}") from e


def restore(rewritten: Any, data: bytes) -> Any:
    """The original graph. ``GraphError`` if the recipe is damaged or a node that it needs is gone."""
    head, stored = _unpack(data)
    try:
        store = type(rewritten).FromString(stored)
        out = type(rewritten)()
        _copy_rest(store, out)
        if head["library"]:
            out.library.SetInParent()
        by_name = {node.name: node for node in rewritten.node}
        for where in head["nodes"]:
            new = out.node.add()
            if isinstance(where, int):
                new.CopyFrom(store.node[where])
                continue
            name = where if isinstance(where, str) else where[0]
            if name not in by_name:
                raise GraphError("this node of the original is gone from the graph: it cannot be restored", name)
            new.CopyFrom(by_name[name])
            if not isinstance(where, str):
                _set_inputs(new, where[1])
        functions = {f.signature.name: f for f in rewritten.library.function}
        for where in head["functions"]:
            f = out.library.function.add()
            if isinstance(where, str):
                if where not in functions:
                    raise GraphError(f"function {where!r} of the original is gone from the graph: it cannot be restored")
                f.CopyFrom(functions[where])
                continue
            f.CopyFrom(store.library.function[where[0]])
            for i, holder in where[1]:
                f.node_def[i].attr["value"].CopyFrom(by_name[holder].attr["value"])
        return out
    except GraphError:
        raise
    except Exception as e:
        raise GraphError(f"the graph's restore recipe is damaged: {type(e).__name__}: {e}") from e
