"""A SavedModel without variables: their values become constants of the main graph. What is left are the signatures.

Tables, assets and the op that initialises them stay. Source: TensorFlow's `convert_to_constants`.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from disc_tf.frontend.errors import telling_line
from disc_tf.frontend.external import OUTPUT_SHAPES
from disc_tf.frontend.function_graph import function_graph, function_of
from disc_tf.frontend.functions import called_functions, every_node, mentioned_functions
from disc_tf.frontend.graph import parse_tensor
from disc_tf.frontend.opdefs import DT_STRING
from disc_tf.frontend.resource_gather import read_first
from disc_tf.frontend.saved_model import (
    MAX_GRAPH,
    TOO_LARGE,
    SavedModelError,
    choose_meta_graphs,
    reached_nodes,
    read_saved_model,
    signature_calls,
    signature_tensors,
    write_saved_model,
)
from disc_tf.frontend.state import writes_variables

_INIT_SIGNATURE = "__saved_model_init_op"
#: collections that name the op which initialises tables, and the assets
_KEPT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op", "saved_model_assets")


def freeze_saved_model(src: Path, dst: Path, *, signatures: Sequence[str] | None = None, tags: Sequence[str] | None = None) -> None:
    """Write the frozen model to the new directory ``dst``: every MetaGraph that `choose_meta_graphs` looks at, the others are left out.
    `SavedModelError` if a signature changes variables, or TensorFlow cannot."""
    message = read_saved_model(src)
    new = type(message)()
    new.saved_model_schema_version = message.saved_model_schema_version
    for choice in sorted(choose_meta_graphs(message, tags, signatures), key=lambda c: c.index):
        if choice.names and not choice.reason:
            _freeze(src, choice.meta, choice.names, new.meta_graphs.add())
    if not new.meta_graphs:
        raise SavedModelError(f"{src} has no signature: nothing would be left of it")
    if new.ByteSize() >= MAX_GRAPH:
        raise SavedModelError(f"cannot freeze {src}: {TOO_LARGE}")
    dst.mkdir(parents=True)
    for folder in ("assets", "assets.extra"):
        if (src / folder).is_dir():
            shutil.copytree(src / folder, dst / folder)
    write_saved_model(dst, new)


def _freeze(src: Path, meta: Any, names: Sequence[str], frozen: Any) -> None:
    """Fill ``frozen`` with what is left of a MetaGraph."""
    outputs = [parse_tensor(t)[0] for n in names for t in signature_tensors(meta.signature_def[n], "outputs").values()]
    inputs = [parse_tensor(t)[0] for n in names for t in signature_tensors(meta.signature_def[n], "inputs").values()]
    assets = [a.tensor_info.name.partition(":")[0] for a in meta.asset_file_def]
    kept = list(dict.fromkeys([*outputs, *inputs, *_initialiser(meta), *assets]))
    _check_reads_only(meta, names, outputs)
    graph_def = _constants(src, meta, kept)
    if graph_def.ByteSize() >= MAX_GRAPH:
        raise SavedModelError(f"cannot freeze {src}: {TOO_LARGE}")
    frozen.meta_info_def.CopyFrom(meta.meta_info_def)
    frozen.graph_def.MergeFromString(graph_def.SerializeToString())
    _drop_unused(frozen.graph_def)
    _drop_stale_shapes(frozen.graph_def)
    frozen.asset_file_def.extend(meta.asset_file_def)
    for name in names:
        frozen.signature_def[name].CopyFrom(meta.signature_def[name])
    for name in _KEPT_COLLECTIONS:
        if name in meta.collection_def:
            frozen.collection_def[name].CopyFrom(meta.collection_def[name])
    if _INIT_SIGNATURE in meta.signature_def and not any(k in frozen.collection_def for k in _KEPT_COLLECTIONS[:2]):
        frozen.collection_def[_KEPT_COLLECTIONS[0]].node_list.value.extend(_initialiser(meta))


def _drop_unused(graph_def: Any) -> None:
    """Functions that saved, restored and created what is gone."""
    library = graph_def.library
    called = set(called_functions(list(graph_def.node), {f.signature.name: f for f in library.function}, library.gradient))
    kept = [f for f in library.function if f.signature.name in called]
    gradients = [g for g in library.gradient if g.function_name in called]
    library.Clear()
    library.function.extend(kept)
    library.gradient.extend(gradients)


def _drop_stale_shapes(graph_def: Any) -> None:
    """What loops, branches and calls, and the functions that they run, say of their shapes: some carried variables and carry values now.

    `tf.saved_model.load` refuses a graph whose nodes state other shapes than it infers.
    """
    functions = {f.signature.name for f in graph_def.library.function}
    for node in every_node(graph_def):
        if functions.isdisjoint(mentioned_functions(node)):
            continue
        for key in ("output_shapes", OUTPUT_SHAPES):
            if key in node.attr:
                del node.attr[key]
    for f in graph_def.library.function:
        for attrs in f.arg_attr.values():
            if OUTPUT_SHAPES in attrs.attr:
                del attrs.attr[OUTPUT_SHAPES]


def _initialiser(meta: Any) -> list[str]:
    """Nodes that set up tables."""
    lists = [meta.collection_def[k].node_list.value for k in _KEPT_COLLECTIONS[:2] if k in meta.collection_def]
    found = [v.lstrip("^").partition(":")[0] for values in lists for v in values]
    if _INIT_SIGNATURE in meta.signature_def:
        found += [parse_tensor(t)[0] for t in signature_tensors(meta.signature_def[_INIT_SIGNATURE], "outputs").values()]
    return found


def _check_reads_only(meta: Any, names: Sequence[str], outputs: Sequence[str]) -> None:
    functions = {f.signature.name: f for f in meta.graph_def.library.function}
    live = reached_nodes(meta, outputs)
    for node in chain(live, *(functions[f].node_def for f in called_functions(live, functions))):
        if writes_variables(node.op):
            what = f"{node.name} ({node.op}) changes a variable when {', '.join(names)} runs"
            raise SavedModelError(f"cannot freeze: {what}; leave out --freeze")


def _read_tables_first(graph_def: Any) -> None:
    """Lookups in variables made dense, in all functions: TensorFlow's conversion misses them there."""
    library = graph_def.library
    functions = {f.signature.name: f for f in library.function}
    for f in library.function:
        if any(n.op.startswith("ResourceGather") for n in f.node_def):
            body = function_graph(f, functions)
            f.CopyFrom(function_of(body, read_first(body.graph_def), functions))


def _constants(src: Path, meta: Any, kept: Sequence[str]) -> Any:
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_from_session_graph

    v1 = tf.compat.v1
    with v1.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        try:
            v1.saved_model.load(session, sorted(meta.meta_info_def.tags), str(src))
            graph_def = graph.as_graph_def()
            _read_tables_first(graph_def)
            # Paths of assets are in variables of strings, which the initializer sets and TensorFlow's conversion cannot take. Variables
            # that nothing kept reads may have no value.
            read = {n.name for n in reached_nodes(meta, kept)}
            handles = [n for n in graph_def.node if n.op == "VarHandleOp"]
            _fill_missing(session, src, meta, [n for n in handles if n.name in read and n.attr["dtype"].type != DT_STRING])
            left = [n.name for n in handles if n.attr["dtype"].type == DT_STRING or n.name not in read]
            return convert_variables_to_constants_from_session_graph(session, graph_def, list(kept), variable_names_denylist=left)
        except SavedModelError:
            raise
        except Exception as e:  # TensorFlow's reasons are many
            raise SavedModelError(f"TensorFlow cannot freeze {src}: {telling_line(str(e) or type(e).__name__)}; leave out --freeze") from e


def _fill_missing(session: Any, src: Path, meta: Any, handles: Sequence[Any]) -> None:
    """Give the variables that the restore op of the model leaves without a value the one that `tf.saved_model.load` finds.

    Where a `tf.Module` holds a Keras 3 model, the main graph restores other handles than its signatures read.
    """
    import tensorflow as tf

    raw, graph = tf.raw_ops, session.graph
    tensors = [graph.get_tensor_by_name(f"{n.name}:0") for n in handles]
    there = session.run([raw.VarIsInitializedOp(resource=t) for t in tensors])
    missing = {n.name: t for n, t, known in zip(handles, tensors, there, strict=True) if not known}
    if not missing:
        return
    values = _values_of_captures(src, meta, missing)
    if unknown := [name for name in missing if name not in values]:
        raise SavedModelError(f"cannot freeze {src}: variable {unknown[0]} has no value; leave out --freeze")
    for name, tensor in missing.items():
        value = tf.compat.v1.placeholder(values[name].dtype)
        session.run(raw.AssignVariableOp(resource=tensor, value=value), {value: values[name]})


def _values_of_captures(src: Path, meta: Any, names: Collection[str]) -> dict[str, Any]:
    """Handle in the main graph -> the value of the variable, from the functions of signatures as `tf.saved_model.load` binds them."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    nodes = {n.name: n for n in meta.graph_def.node}
    found: dict[str, Any] = {}
    with context.eager_mode():
        functions = tf.saved_model.load(str(src), tags=sorted(meta.meta_info_def.tags)).signatures
        for key, function in functions.items():
            for call in signature_calls(meta.signature_def[key], nodes):
                inputs = [parse_tensor(t)[0] for t in nodes[call].input if not t.startswith("^")]
                captures = function.captured_inputs
                for name, tensor in zip(inputs[len(inputs) - len(captures) :], captures, strict=True):
                    if name in names and tensor.dtype == tf.resource:
                        found[name] = tf.raw_ops.ReadVariableOp(resource=tensor, dtype=nodes[name].attr["dtype"].type).numpy()
    return found
