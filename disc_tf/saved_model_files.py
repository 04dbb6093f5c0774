"""The files of a SavedModel that we write: what is copied, the graph file, its op list and its fingerprint."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

from disc_tf.frontend.functions import every_node
from disc_tf.frontend.saved_model import FILE, TEXT_FILE, write_saved_model
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


def write_message(source: Path, directory: Path, message: Any) -> None:
    """`saved_model.pb`, and the fingerprint of it if the source has one."""
    write_saved_model(directory, message)
    if (source / FINGERPRINT).exists():
        (directory / FINGERPRINT).write_bytes(_fingerprint(directory, (source / FINGERPRINT).read_bytes()))


def set_op_list(meta: Any) -> None:
    """`stripped_op_list` as TensorFlow makes it for the new graph (our op included)."""
    import tensorflow as tf
    from tensorflow.python.framework.meta_graph import stripped_op_list_for_graph
    from tensorflow.python.framework.op_def_registry import get as find_op

    from disc_tf.ops import OP_NAME, load_op_library

    load_op_library()
    graph = tf.compat.v1.GraphDef.FromString(meta.graph_def.SerializeToString())
    try:
        found = stripped_op_list_for_graph(graph)
    except Exception:  # ops that this process does not know: ours is added to what the file says
        listed = meta.meta_info_def.stripped_op_list.op
        if OP_NAME not in {op.name for op in listed} and any(n.op == OP_NAME for n in every_node(meta.graph_def)):
            listed.add().MergeFromString(find_op(OP_NAME).SerializeToString())
        return
    meta.meta_info_def.stripped_op_list.Clear()
    meta.meta_info_def.stripped_op_list.MergeFromString(found.SerializeToString())


def _fingerprint(directory: Path, original: bytes) -> bytes:
    """TensorFlow's fingerprint of the new files; the original's where TensorFlow cannot make one."""
    try:
        from tensorflow.python.saved_model.pywrap_saved_model import fingerprinting

        return fingerprinting.CreateFingerprintDef(str(directory))
    except Exception:  # an older TensorFlow
        return original
