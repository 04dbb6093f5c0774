"""What the verbs share: exit codes, reading and writing graphs, choosing inputs and shapes."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.tfproto import graph_from_bytes, graph_from_text, serialized
from disc_tf.testing.inputs import InputSpec, specs_from_graph, specs_from_json

OK = 0
INTERNAL_ERROR = 1
USAGE = 2  # argparse's own
BAD_INPUT = 3
NOTHING_COMPILED = 4
VERIFY_FAILED = 5
NOT_BUILT = 6


class CommandError(Exception):
    """Ends the command with a message and an exit code."""

    def __init__(self, message: str, code: int = BAD_INPUT) -> None:
        super().__init__(message)
        self.code = code


def read_graph(path: str) -> Any:
    """A GraphDef from `.pb` (wire format) or `.pbtxt` (text format). `CommandError` with the reason."""
    file = Path(path)
    if file.is_dir():
        raise CommandError(f"{path} is a directory: SavedModels are not supported yet, give a frozen GraphDef (.pb or .pbtxt)")
    try:
        data = file.read_bytes()
    except OSError as e:
        raise CommandError(f"cannot read {path}: {e.strerror or e}") from e
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


def write_atomically(path: str, data: bytes) -> None:
    """Write next to the target, sync, rename: a reader sees the old file or the new one, never a half."""
    target = Path(path)
    try:
        handle, temp = tempfile.mkstemp(dir=target.parent or ".", prefix=f".{target.name}.")
    except OSError as e:
        raise CommandError(f"cannot write {path}: {e.strerror or e}") from e
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temp, 0o666 & ~umask)
        os.replace(temp, target)
    except BaseException as e:
        Path(temp).unlink(missing_ok=True)
        if isinstance(e, OSError):
            raise CommandError(f"cannot write {path}: {e.strerror or e}") from e
        raise


def graph_bytes(graph_def: Any, path: str) -> bytes:
    """The file's content for ``path``: text for `.pbtxt`, else the wire format."""
    if Path(path).suffix in (".pbtxt", ".txt"):
        from google.protobuf import text_format

        return text_format.MessageToString(graph_def).encode()
    return serialized(graph_def)


def model_specs(
    path: str, graph_def: Any, description: str | None, outputs: Sequence[str]
) -> tuple[list[InputSpec], list[str], list[dict[str, int]]]:
    """(inputs, outputs, trace) from a description file: the one given, or ``<name>.json`` beside the graph; else from the graph itself."""
    beside = Path(path).with_suffix(".json")
    if description is None and beside.exists():
        try:
            content = json.loads(beside.read_text())
            if isinstance(content, dict) and {"inputs", "outputs", "points"} <= content.keys():
                description = str(beside)
        except (OSError, ValueError):
            pass
    if description is not None:
        try:
            specs, found, trace = specs_from_json(description)
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise CommandError(f"{description} is not a model description (inputs, outputs, points): {e!r}") from e
        return specs, list(outputs) or found, trace
    try:
        return specs_from_graph(graph_def), list(outputs), []
    except ValueError as e:
        raise CommandError(str(e)) from e


def parse_sizes(texts: Sequence[str]) -> list[dict[str, int]]:
    """``"B=1,S=7"`` -> {"B": 1, "S": 7}."""
    out = []
    for text in texts:
        sizes: dict[str, int] = {}
        for part in text.split(","):
            name, sep, value = part.partition("=")
            if not sep or not value.strip().lstrip("-").isdigit() or int(value) < 0:
                raise CommandError(f"--shape {text!r}: write it as NAME=EXTENT,NAME=EXTENT", USAGE)
            sizes[name.strip()] = int(value)
        out.append(sizes)
    return out


def check_sizes(specs: Sequence[InputSpec], sizes: Sequence[dict[str, int]]) -> None:
    """Every dim name of the inputs has an extent, and no other name is given."""
    names = {d for s in specs for d in s.dims if isinstance(d, str)}
    for size in sizes:
        if missing := names - size.keys():
            raise CommandError(f"--shape: no extent for {', '.join(sorted(missing))}; dims: {', '.join(sorted(names))}", USAGE)
        if extra := size.keys() - names:
            raise CommandError(f"--shape: unknown dim {', '.join(sorted(extra))}; dims: {', '.join(sorted(names))}", USAGE)


def binary_form(path: str, graph_def: Any, directory: str | Path) -> str:
    """The path of the graph in wire format: the file itself, or a copy in ``directory`` of one in text format."""
    if Path(path).suffix not in (".pbtxt", ".txt"):
        return path
    target = Path(directory) / (Path(path).stem + ".pb")
    target.write_bytes(serialized(graph_def))
    return str(target)
