"""The files of a SavedModel that we write: what is copied, the graph file, its op list and its fingerprint."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from disc_tf.frontend.functions import every_node
from disc_tf.frontend.rewrite import LAUNCH_OP
from disc_tf.frontend.saved_model import FILE, TEXT_FILE, write_saved_model
from disc_tf.frontend.tfproto import message_class
from disc_tf.publish import make_writable

EXTRA = "assets.extra"
FINGERPRINT = "fingerprint.pb"


def graph_file(directory: Path) -> Path:
    """`saved_model.pb`, or its form in text."""
    return directory / FILE if (directory / FILE).exists() else directory / TEXT_FILE


def digest_of(directory: Path) -> str:
    """sha256 of the graph file."""
    return hashlib.sha256(graph_file(directory).read_bytes()).hexdigest()


def copy_rest(source: Path, directory: Path) -> None:
    """Everything but the graph itself, its fingerprint and what an earlier optimisation left."""

    def ignore(where: str, names: list[str]) -> list[str]:
        at = Path(where)
        if at == source:
            return [n for n in names if n in (FILE, TEXT_FILE, FINGERPRINT)]
        return ["disc_tf"] if at == source / EXTRA and "disc_tf" in names else []

    shutil.copytree(source, directory, ignore=ignore, ignore_dangling_symlinks=True, dirs_exist_ok=True)
    make_writable(directory)  # the source may be read-only


def op_list(skeleton: bytes) -> bytes | None:
    """The serialized `stripped_op_list` that TensorFlow makes for a graph, our op included; None if it does not know an op."""
    import tensorflow as tf
    from tensorflow.python.framework.meta_graph import stripped_op_list_for_graph

    from disc_tf.ops import load_op_library

    load_op_library()
    try:
        return stripped_op_list_for_graph(tf.compat.v1.GraphDef.FromString(skeleton)).SerializeToString()
    except Exception:  # TensorFlow's reasons are many
        return None


def fingerprint(directory: Path) -> bytes | None:
    """TensorFlow's fingerprint of the files of a model; None where an older TensorFlow cannot make one."""
    try:
        from tensorflow.python.saved_model.pywrap_saved_model import fingerprinting

        return fingerprinting.CreateFingerprintDef(str(directory))
    except Exception:
        return None


@dataclasses.dataclass(frozen=True)
class Tools:
    """What TensorFlow says of graphs and files: in this process, or where somebody else has imported it."""

    op_list: Callable[[bytes], bytes | None] = op_list
    fingerprint: Callable[[Path], bytes | None] = fingerprint


def write_message(source: Path, directory: Path, message: Any, tools: Tools) -> None:
    """`saved_model.pb`, and the fingerprint of it if the source has one: the original's where there is none of the new files."""
    write_saved_model(directory, message)
    if (source / FINGERPRINT).exists():
        (directory / FINGERPRINT).write_bytes(tools.fingerprint(directory) or (source / FINGERPRINT).read_bytes())


def set_op_list(meta: Any, tools: Tools) -> None:
    """`stripped_op_list` as TensorFlow makes it for the new graph (our op included)."""
    listed = meta.meta_info_def.stripped_op_list
    found = tools.op_list(_skeleton(meta.graph_def).SerializeToString())
    if found is not None:
        listed.Clear()
        listed.MergeFromString(found)
    elif LAUNCH_OP not in {op.name for op in listed.op} and any(n.op == LAUNCH_OP for n in every_node(meta.graph_def)):
        ours = message_class("GraphDef")()
        ours.node.add(name="launch", op=LAUNCH_OP)
        listed.MergeFromString(tools.op_list(ours.SerializeToString()) or b"")  # added to what the file says


def _skeleton(graph_def: Any) -> Any:
    """The graph with what its op list depends on: op types, and which functions are called."""
    skeleton = message_class("GraphDef")()

    def copy(nodes: Any, target: Any) -> None:
        for node in nodes:
            new = target.add(name=node.name, op=node.op)
            for key, value in node.attr.items():
                if value.WhichOneof("value") in ("func", "list"):
                    if value.WhichOneof("value") == "func":
                        new.attr[key].func.name = value.func.name
                    for f in value.list.func:
                        new.attr[key].list.func.add().name = f.name

    copy(graph_def.node, skeleton.node)
    for f in graph_def.library.function:
        new = skeleton.library.function.add()
        new.signature.name = f.signature.name
        copy(f.node_def, new.node_def)
    return skeleton
