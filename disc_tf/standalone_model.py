"""A SavedModel's signature as one file that runs without TensorFlow: `compile_saved_model`. TensorFlow freezes it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from disc_tf.extras import COMPILING, require
from disc_tf.frontend.rewrite import OPTIMIZED, launch_nodes
from disc_tf.frontend.saved_model import SavedModelError, choose_meta_graph, read_saved_model, signature_names, signature_tensors
from disc_tf.options import Options
from disc_tf.saved_model_source import as_directory, frozen
from disc_tf.standalone import Standalone, compile_graph_def


@dataclasses.dataclass
class FrozenSignature:
    """A signature as a graph without variables. outputs: its tensors; names: tensor of an input or output -> its key."""

    graph_def: Any
    outputs: list[str]
    names: dict[str, str]


def freeze_signature(
    src: Any,
    signature: str = "serving_default",
    progress: Callable[[str], None] = lambda _text: None,
    tags: Sequence[str] | None = None,
) -> FrozenSignature:
    """The graph of one signature of a SavedModel directory, a Keras file or a model object, variables baked in. tags: of its MetaGraph
    (default: ``serve``). `SavedModelError`."""
    with as_directory(src, progress=progress) as given:
        message = read_saved_model(given)
        if any(launch_nodes(message)):
            raise SavedModelError(f"{given} {OPTIMIZED}")
        chosen = choose_meta_graph(message, tags)
        there = signature_names(chosen)
        if signature not in there:
            raise SavedModelError(f"there is no signature {signature!r}; there are {', '.join(there) or 'none'}")
        tags = sorted(chosen.meta_info_def.tags)
        with frozen(given, signatures=[signature], tags=tags, progress=progress) as directory:
            meta = choose_meta_graph(read_saved_model(directory), tags)
    inputs, outputs = (signature_tensors(meta.signature_def[signature], part) for part in ("inputs", "outputs"))
    names: dict[str, str] = {}
    for key, tensor in (*inputs.items(), *outputs.items()):
        if tensor in names:
            raise SavedModelError(f"{names[tensor]!r} and {key!r} of signature {signature} are one tensor: a file has one name for each")
        names[tensor] = key
    return FrozenSignature(meta.graph_def, list(outputs.values()), names)


def compile_saved_model(
    src: Any,
    path: str | os.PathLike[str],
    signature: str = "serving_default",
    options: Options | Mapping[str, Any] | None = None,
    *,
    progress: Callable[[str], None] = lambda _text: None,
    **overrides: Any,
) -> Standalone:
    """Compile one signature of a SavedModel (a directory, a Keras file, or a model object) and write it to ``path``, inputs and outputs
    called by the signature's keys. Raises `SavedModelError`, and what `compile_graph_def` raises."""
    require("compiling", "compiler", (*COMPILING, "tensorflow"))
    found = freeze_signature(src, signature, progress)
    return compile_graph_def(found.graph_def, found.outputs, path, None, options, names=found.names, progress=progress, **overrides)


__all__ = ["FrozenSignature", "compile_saved_model", "freeze_signature"]
