"""A SavedModel without variables: their values become constants of the main graph. What is left are the signatures.

Tables, assets and the op that initialises them stay. Source: TensorFlow's `convert_to_constants`.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from disc_tf.frontend.function_graph import function_graph, function_of
from disc_tf.frontend.functions import called_functions
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
            # paths of assets lie in variables of strings, which the initialiser sets and TensorFlow's conversion cannot take
            strings = [n.name for n in graph_def.node if n.op == "VarHandleOp" and n.attr["dtype"].type == DT_STRING]
            return convert_variables_to_constants_from_session_graph(session, graph_def, list(kept), variable_names_denylist=strings)
        except Exception as e:  # TensorFlow's reasons are many
            line = (str(e).strip().splitlines() or [type(e).__name__])[0]
            raise SavedModelError(f"TensorFlow cannot freeze {src}: {line}; leave out --freeze") from e
