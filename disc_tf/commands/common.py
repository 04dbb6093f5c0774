"""What the verbs share: exit codes, reading and writing graphs, choosing inputs and shapes."""

from __future__ import annotations

import argparse
import json
import mmap
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from disc_tf.atomic import replacing
from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.external import EXTERNAL_OP
from disc_tf.frontend.tfproto import graph_from_bytes, graph_from_text, serialized
from disc_tf.publish import unwritable
from disc_tf.runtime.artifact import PREFIX
from disc_tf.testing.inputs import InputSpec, dim_names, specs_from_graph, specs_from_json

OK = 0
INTERNAL_ERROR = 1
#: the environment lacks something
MISSING_PACKAGES = 1
USAGE = 2  # argparse's own
BAD_INPUT = 3
NOTHING_COMPILED = 4
VERIFY_FAILED = 5
NOT_BUILT = 6
#: how the names of stand-alone files end
STANDALONE_SUFFIX = ".disc"

_NO_SAVED_MODEL = "give a GraphDef (.pb or .pbtxt)"
#: how a SavedModel starts: its schema version (field 1, a number, where a GraphDef has nodes), then a meta graph (field 2)
_SAVED_MODEL = re.compile(rb"\x08[\x00-\x7f]\x12")
_SAVED_MODEL_TEXT = re.compile(rb"\s*saved_model_schema_version\s*:")


class CommandError(Exception):
    """Ends the command with a message and an exit code."""

    def __init__(self, message: str, code: int = BAD_INPUT) -> None:
        super().__init__(message)
        self.code = code


def add_packs_argument(parser: Any) -> None:
    """``--packs``: an argparse parser or group gets it."""
    what = "share packed weights with other processes of this host through files in DIR (default: DISC_TF_PACKS)"
    parser.add_argument("--packs", metavar="DIR", help=what)


def share_packs(directory: str | None, limit_mb: int = 0) -> None:
    """What ``--packs`` asks for; None: nothing. `CommandError` if the directory cannot be used."""
    if directory is None:
        return
    from disc_tf.runtime import DiscError
    from disc_tf.runtime import share_packs as share

    try:
        share(directory, limit_bytes=limit_mb << 20)
    except DiscError as e:
        raise CommandError(f"--packs {directory}: {e.message}") from e


def read_graph(path: str) -> Any:
    """A GraphDef from `.pb` (wire format) or `.pbtxt` (text format). `CommandError` with the reason."""
    file = Path(path)
    if file.is_dir():
        raise CommandError(f"{path} is a directory: {_NO_SAVED_MODEL}")
    try:
        data = file.read_bytes()
    except OSError as e:
        raise CommandError(f"cannot read {path}: {e.strerror or e}") from e
    if not data:
        raise CommandError(f"{path}: the file is empty")
    if data.startswith(PREFIX):
        raise CommandError(f"{path} is a stand-alone file, not a graph: `disc-tf run` runs it, `disc-tf inspect` describes it")
    if _SAVED_MODEL.match(data) or _SAVED_MODEL_TEXT.match(data):
        raise CommandError(f"{path}: this is a SavedModel: give its directory")
    try:
        if file.suffix in (".pbtxt", ".txt"):
            return graph_from_text(data.decode())
        return graph_from_bytes(data)
    except (GraphError, UnicodeDecodeError) as e:
        raise CommandError(f"{path}: {e}") from e


def read_whole_graph(path: str) -> Any:
    """`read_graph`, with weights that lie in files of their own brought back into the graph."""
    from disc_tf.frontend.external import internalize

    try:
        return internalize(read_graph(path))
    except GraphError as e:
        raise CommandError(f"{path}: {e}") from e


def check_output(path: str) -> Path:
    """The file that ``path`` stands for, links followed: a regular file, or none yet in a directory that can be written.

    `CommandError` for anything else (a rename would replace a device or a pipe by a file). Called before any work is done.
    """
    target = Path(os.path.realpath(path))
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        mode = None
    except OSError as e:
        raise CommandError(f"cannot write {path}: {e.strerror or e}") from e
    if mode is not None and not stat.S_ISREG(mode):
        what = "a directory" if stat.S_ISDIR(mode) else _SPECIAL.get(stat.S_IFMT(mode), "not a regular file")
        raise CommandError(f"cannot write {path}: it is {what}, give the name of a regular file")
    if path.endswith(os.sep):
        raise CommandError(f"cannot write {path}: give the name of a file")
    _check_directory(path, target.parent)
    return target


_SPECIAL = {
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symbolic link that leads nowhere",
}


def _check_directory(path: str, directory: Path) -> None:
    if why := unwritable(directory):
        raise CommandError(f"cannot write {path}: {why}")


def check_output_directory(path: str) -> None:
    """``path`` is a directory that can be written, or one that can be made. `CommandError` else."""
    target = Path(os.path.realpath(path))
    _check_directory(path, target if os.path.lexists(target) else target.parent)


def check_distinct(files: Mapping[str, str | None]) -> None:
    """What a command reads and writes are different files. ``files``: what each is -> its path, if given. `CommandError` (usage) else."""
    seen: dict[str, str] = {}
    for what, path in files.items():
        if path is None:
            continue
        real = os.path.realpath(path)
        if real in seen:
            lost = ": the original would be lost" if seen[real] == "input" else ""
            raise CommandError(f"{seen[real]} and {what} are the same file{lost}", USAGE)
        seen[real] = what


def write_atomically(path: str, data: bytes) -> None:
    """Write next to the target, sync, rename: a reader sees the old file or the new one, never a half. Links are followed."""
    target = check_output(path)
    try:
        with replacing(target) as f:
            f.write(data)
    except OSError as e:
        raise CommandError(f"cannot write {path}: {e.strerror or e}") from e


def graph_bytes(graph_def: Any, path: str) -> bytes:
    """The file's content for ``path``: text for `.pbtxt`, else the wire format."""
    if Path(path).suffix in (".pbtxt", ".txt"):
        from google.protobuf import text_format

        return text_format.MessageToString(graph_def).encode()
    return serialized(graph_def)


def description_beside(path: str) -> str | None:
    """``<name>.json`` beside a model, if that is a description of one."""
    beside = Path(path).with_suffix(".json")
    try:
        content = json.loads(beside.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return str(beside) if isinstance(content, dict) and {"inputs", "outputs", "points"} <= content.keys() else None


def model_specs(
    path: str, graph_def: Any, description: str | None, outputs: Sequence[str]
) -> tuple[list[InputSpec], list[str], list[dict[str, int]]]:
    """(inputs, outputs, trace) from a description file: the one given, or ``<name>.json`` beside the graph; else from the graph itself."""
    description = description or description_beside(path)
    if description is not None:
        try:
            specs, found, trace = specs_from_json(description)
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise CommandError(f"{description} is not a model description (inputs, outputs, points): {e!r}") from e
        nodes = {node.name for node in graph_def.node}
        if unknown := [s.name for s in specs if s.name.partition(":")[0] not in nodes]:
            raise CommandError(f"{description} describes input {', '.join(unknown)}, which is not in {path}")
        return specs, list(outputs) or found, trace
    try:
        found_outputs = list(outputs) or default_outputs(graph_def)
        return specs_from_graph(graph_def, outputs=found_outputs), list(outputs), []
    except ValueError as e:  # GraphErrors too
        raise CommandError(f"{path}: {e}") from e


def default_outputs(graph_def: Any) -> list[str]:
    """The first output of every data sink: what is compared where no outputs are given. ``GraphError`` for a malformed graph."""
    from disc_tf.frontend.graph import Graph

    return [f"{name}:0" for name in Graph(graph_def).sinks()[0]]


def shape_text(text: str) -> str:
    """The type of ``--shape``: what `parse_sizes` takes, as it is (a configuration file has it so, too)."""
    pairs = [[x.strip() for x in part.partition("=")] for part in text.split(",")]
    names = [name for name, _, _ in pairs]
    if not all(names) or len(set(names)) < len(names) or not all(map(_is_extent, (value for _, _, value in pairs))):
        raise argparse.ArgumentTypeError(f"{text!r}: write it as NAME=EXTENT,NAME=EXTENT")
    return text


def _is_extent(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 30


def parse_sizes(texts: Sequence[str]) -> list[dict[str, int]]:
    """``"B=1,S=7"`` -> {"B": 1, "S": 7}, of texts that `shape_text` took."""
    return [{name.strip(): int(value) for name, _, value in (part.partition("=") for part in text.split(","))} for text in texts]


def check_sizes(specs: Sequence[InputSpec], sizes: Sequence[dict[str, int]], own_names: str = "") -> None:
    """Every dim name of the inputs has an extent, and no other name is given. ``own_names``: how dims get names of one's own."""
    names = set(dim_names(specs))
    for size in sizes:
        wrong = [f"unknown dim {', '.join(extra)}"] if (extra := sorted(size.keys() - names)) else []
        wrong += [f"no extent for {', '.join(missing)}"] if (missing := sorted(names - size.keys())) else []
        if wrong:
            way_out = own_names if extra else "; one --shape has all of them, as in NAME=1,NAME=2" if size else ""
            raise CommandError(f"--shape: {', '.join(wrong)}; dims: {', '.join(sorted(names)) or 'none'}{way_out}", USAGE)


def own_names(path: str, description: str | None) -> str:
    """The end of a message on a GraphDef's dims: who wants other names describes the model."""
    beside = Path(path).with_suffix(".json").name
    return "" if description else f" ({beside} beside the graph, or --inputs-json, gives them names of your own)"


def binary_form(path: str, graph_def: Any, directory: str | Path, *, original: bool = False) -> str:
    """The path of the graph in wire format: the file itself, or a copy in ``directory`` of one in text format. Of an ``original`` also if
    its weights were in files of their own: TensorFlow alone does not load that."""
    if Path(path).suffix not in (".pbtxt", ".txt") and not (original and _mentions(path, EXTERNAL_OP.encode())):
        return path
    target = Path(directory) / (Path(path).stem + ".pb")
    target.write_bytes(serialized(graph_def))
    return str(target)


def _mentions(path: str, word: bytes) -> bool:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(word) >= 0
