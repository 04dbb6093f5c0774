"""Weights outside of the GraphDef: large constants become ``DiscWeight`` nodes that map files.

TensorFlow copies a GraphDef many times between import and the first run, constants included (ten times the weights were measured on a
440 MB model). Weights in files of their own are mapped, read once and shared by all processes on a host. (TensorFlow's own ImmutableConst
maps files too, but constant folding evaluates it and copies the content back into the graph.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from disc_tf.atomic import replacing
from disc_tf.frontend.errors import GraphError

OUTPUT_SHAPES = "_output_shapes"
_MARK = "_disc_output_shapes"
EXTERNAL_OP = "DiscWeight"
#: smaller constants stay in the graph
MIN_BYTES = 64 << 10
#: element types that TensorFlow maps: those whose memory is the tensor's content (not strings, resources, variants)
_TYPES = frozenset({1, 2, 3, 4, 5, 6, 9, 14, 17, 19, 22, 23})


@dataclasses.dataclass(frozen=True)
class External:
    """The graph, the directory, the names of the files that it uses, and their bytes in all."""

    graph_def: Any
    directory: Path
    files: tuple[str, ...]
    bytes: int


def externalize(
    graph_def: Any, directory: str | Path, min_bytes: int = MIN_BYTES, *, known: dict[str, bool] | None = None
) -> External:
    """A copy of the graph whose large constants are stored in files of ``directory``.

    Files are named after their content: those that are there already stay if they have it, so a graph written before stays valid; equal
    contents share one. Only constants stored as raw ``tensor_content`` move. The nodes name the files by absolute path. known: files
    that need not be looked at again -> whether they were made here; filled. ``OSError`` if files cannot be written.
    """
    target = Path(directory).absolute()
    known = {} if known is None else known
    target.mkdir(parents=True, exist_ok=True)
    result = _empty_like(graph_def)
    written: dict[str, int] = {}
    for node in graph_def.node:
        tensor = node.attr["value"].tensor if node.op == "Const" else None
        if tensor is None or tensor.dtype not in _TYPES or len(tensor.tensor_content) < min_bytes:
            result.node.add().CopyFrom(node)
            continue
        name = _file_name(tensor.tensor_content)
        if name not in known:
            known[name] = _write(target / name, tensor.tensor_content)
        written[name] = len(tensor.tensor_content)
        _add_external(result, node, target / name)
    return External(result, target, tuple(written), sum(written.values()))


def prune(external: External) -> None:
    """Remove files of our naming that the graph does not use: only once the graph itself is published."""
    for path in external.directory.iterdir():
        if _is_ours(path) and path.name not in external.files:
            path.unlink(missing_ok=True)


def withdraw(directory: str | Path, names: Collection[str]) -> None:
    """Remove files that `externalize` made for a graph that is not published after all, and the directory if nothing else is in it."""
    target = Path(directory)
    for name in names:
        (target / name).unlink(missing_ok=True)
    if names:
        with contextlib.suppress(OSError):
            target.rmdir()


def _file_name(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32] + ".bin"


def _is_ours(path: Path) -> bool:
    return path.suffix == ".bin" and len(path.stem) == 32 and set(path.stem) <= set("0123456789abcdef")


def _write(path: Path, content: bytes) -> bool:
    """Whether the file is new. One that is there counts only with the right content: it may have been damaged."""
    there = path.exists()
    if there and path.stat().st_size == len(content) and path.read_bytes() == content:
        return False
    with replacing(path, prefix=".weight.") as f:
        f.write(content)
    return not there


def _empty_like(graph_def: Any) -> Any:
    result = type(graph_def)()
    for field in ("versions", "library"):
        if graph_def.HasField(field):
            getattr(result, field).CopyFrom(getattr(graph_def, field))
    return result


def _add_external(graph_def: Any, node: Any, path: Path) -> None:
    new = graph_def.node.add()
    new.name, new.op, new.device = node.name, EXTERNAL_OP, node.device
    new.input.extend(node.input)
    tensor = node.attr["value"].tensor
    for key, value in node.attr.items():
        if key not in ("value", "dtype"):
            new.attr[key].CopyFrom(value)
    new.attr["dtype"].type = tensor.dtype
    new.attr["dims"].list.i.extend(d.size for d in tensor.tensor_shape.dim)
    new.attr["bytes"].i = len(tensor.tensor_content)
    new.attr["path"].s = str(path).encode()
    if OUTPUT_SHAPES not in new.attr:
        new.attr[OUTPUT_SHAPES].list.shape.add().CopyFrom(tensor.tensor_shape)
        new.attr[_MARK].b = True  # added here: taken away again when the content comes back


def internalize(graph_def: Any) -> Any:
    """The graph with the contents of `externalize` back in it; the argument itself if there is nothing to read.

    Raises `GraphError` for a file that is missing or has another size or content than when it was written.
    """
    if not any(n.op == EXTERNAL_OP for n in graph_def.node):
        return graph_def
    result = _empty_like(graph_def)
    for node in graph_def.node:
        new = result.node.add()
        if node.op != EXTERNAL_OP:
            new.CopyFrom(node)
            continue
        path = Path(node.attr["path"].s.decode())
        try:
            content = path.read_bytes()
        except OSError as e:
            raise GraphError(f"its weights are in {path}, which cannot be read: {e.strerror or e}", node.name) from e
        if _is_ours(path) and _file_name(content) != path.name:
            raise GraphError(f"the content of {path} is not what was written: restore the file, or optimize again", node.name)
        new.name, new.op, new.device = node.name, "Const", node.device
        new.input.extend(node.input)
        for key, value in node.attr.items():
            if key in ("dtype", "dims", "bytes", "path", _MARK) or (key == OUTPUT_SHAPES and _MARK in node.attr):
                continue
            new.attr[key].CopyFrom(value)
        new.attr["dtype"].type = node.attr["dtype"].type
        tensor = new.attr["value"].tensor
        tensor.dtype = node.attr["dtype"].type
        for size in node.attr["dims"].list.i:
            tensor.tensor_shape.dim.add().size = size
        tensor.tensor_content = content
    return result
