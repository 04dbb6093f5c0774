"""A cluster with the arguments of one run, as one file that reproduces a fault.

A zip file: ``manifest.json`` (versions, names, how arguments are stored), ``graph.pb`` (the cluster's original nodes as a GraphDef: an
argument is a Const where the compiler knew its content, else a Placeholder), ``launch.pb`` (the same arguments and the `DiscLaunch`
node with its code), ``inputs/<i>.npy``. It holds the cluster's weights and the values
that flowed into it, and native code: nothing to send around unasked, or to run unless its source is trusted.
"""

from __future__ import annotations

import dataclasses
import io
import json
import platform
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.functions import called_functions, read_body
from disc_tf.frontend.rewrite import LAUNCH_OP, RECIPE_ATTR
from disc_tf.frontend.tensor_proto import fill_tensor
from disc_tf.frontend.tfproto import graph_from_bytes, serialized
from disc_tf.ir.types import DType
from disc_tf.runtime.artifact import ArtifactError, unpack
from disc_tf.version import __version__, installed

FORMAT = 1
SUFFIX = ".replay"


class ReplayError(ValueError):
    """The file is not a replay file, or is damaged."""


@dataclasses.dataclass
class Replay:
    """``graph``, ``launch``: see the module's docstring. ``feeds``: placeholder -> array. ``results``: the tensors of ``graph`` that the
    launch gives, in order; ``asserts``: nodes that only check; ``names``: placeholder or constant -> the tensor that it was."""

    cluster: str
    graph: Any
    launch: Any
    feeds: dict[str, np.ndarray]
    results: list[str]
    asserts: list[str]
    names: dict[str, str]
    versions: dict[str, str]
    note: str = ""


def make_replay(graph_def: Any, cluster: str, arguments: Sequence[np.ndarray], *, note: str = "") -> Replay:
    """The cluster ``cluster`` (a launch of the optimised ``graph_def``) with its arguments. ``GraphError`` if there is no such launch."""
    node = next((n for n in graph_def.node if n.name == cluster and n.op == LAUNCH_OP), None)
    if node is None:
        raise GraphError(f"the graph has no cluster {cluster!r}")
    functions = {f.signature.name: f for f in graph_def.library.function}
    original = functions[node.attr["original"].func.name]
    try:
        specs = unpack(node.attr["executable"].s).args
    except ArtifactError as e:
        raise GraphError(f"its code cannot be read: {e}", cluster) from e
    graph, feeds, names = type(graph_def)(), {}, {}
    graph.versions.CopyFrom(graph_def.versions)
    for arg, spec, value in zip(original.signature.input_arg, specs, arguments, strict=True):
        names[arg.name] = spec.name
        new = graph.node.add(name=arg.name, op="Const" if spec.digest else "Placeholder")
        new.attr["dtype"].type = arg.type
        if spec.digest:
            fill_tensor(new.attr["value"].tensor, value)
            new.attr["value"].tensor.dtype = arg.type
            continue
        feeds[arg.name] = value
        new.attr["shape"].shape.SetInParent()
        for d in spec.dims:
            new.attr["shape"].shape.dim.add().size = d
    launch = type(graph_def)()
    launch.CopyFrom(graph)
    moved = launch.node.add()
    moved.CopyFrom(node)
    del moved.input[:]
    moved.input.extend(arg.name for arg in original.signature.input_arg)
    moved.attr.pop(RECIPE_ATTR, None)
    launch.library.function.add().CopyFrom(original)
    for name in called_functions(original.node_def, functions):
        for to in (launch, graph):
            to.library.function.add().CopyFrom(functions[name])
    results = _add_body(graph, original, functions)
    asserts = list(original.control_ret.values())
    return Replay(cluster, graph, launch, feeds, results, asserts, names, versions(), note)


def versions() -> dict[str, str]:
    found = {"disc_tf": __version__, "python": platform.python_version(), "numpy": np.__version__}
    if (tensorflow := installed("tensorflow")) is not None:
        found["tensorflow"] = tensorflow
    return found


def _add_body(graph: Any, function: Any, functions: Mapping[str, Any]) -> list[str]:
    """Add the nodes of a function to a graph that has its arguments as nodes; the tensors that it returns."""
    arguments = [a.name for a in function.signature.input_arg]
    body = read_body(function, functions)

    def tensor(ref: tuple[str | None, int]) -> str:
        name, port = ref
        return f"{arguments[port]}:0" if name is None else f"{name}:{port}"

    for node, inputs in zip(body.nodes, body.inputs, strict=True):
        new = graph.node.add()
        new.CopyFrom(node)
        del new.input[:]
        new.input.extend([*map(tensor, inputs), *(t for t in node.input if t.startswith("^"))])
    return [*map(tensor, body.returns)]


def write_replay(replay: Replay) -> bytes:
    """The file's content."""
    manifest = {
        "format": FORMAT,
        "cluster": replay.cluster,
        "versions": replay.versions,
        "results": replay.results,
        "asserts": replay.asserts,
        "names": replay.names,
        "note": replay.note,
        "inputs": [{"name": k, "dtype": DType.from_np(v.dtype).ir_name, "shape": list(v.shape)} for k, v in replay.feeds.items()],
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        def add(name: str, data: bytes) -> None:
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)

        add("manifest.json", json.dumps(manifest, indent=2).encode())
        add("graph.pb", serialized(replay.graph))
        add("launch.pb", serialized(replay.launch))
        for i, value in enumerate(replay.feeds.values()):
            stored = io.BytesIO()
            bits = value.view(np.uint16) if value.dtype.name == "bfloat16" else value
            np.save(stored, np.asarray(bits, order="C"), allow_pickle=False)
            add(f"inputs/{i}.npy", stored.getvalue())
    return out.getvalue()


def read_replay(path: str | Path) -> Replay:
    """`ReplayError` with the reason; ``OSError`` if the file cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read("manifest.json"))
            if manifest["format"] != FORMAT:
                made_by = dict(manifest.get("versions", {})).get("disc_tf", "another version")
                raise ReplayError(
                    f"{path}: disc_tf {made_by} made it: its replay format is {manifest['format']}, this version reads {FORMAT}; "
                    "upgrade disc-tf here, or capture it again with this version"
                )
            feeds = {}
            for i, entry in enumerate(manifest["inputs"]):
                value = np.load(io.BytesIO(archive.read(f"inputs/{i}.npy")), allow_pickle=False)
                if entry["dtype"] == "bf16":
                    value = value.view(DType.BF16.np)
                if DType.from_np(value.dtype).ir_name != entry["dtype"] or list(value.shape) != entry["shape"]:
                    raise ReplayError(f"{path}: inputs/{i}.npy is not what the manifest says")
                feeds[str(entry["name"])] = value
            graph, launch = graph_from_bytes(archive.read("graph.pb")), graph_from_bytes(archive.read("launch.pb"))
            return Replay(
                str(manifest["cluster"]), graph, launch, feeds, [*map(str, manifest["results"])], [*map(str, manifest["asserts"])],
                dict(manifest["names"]), dict(manifest["versions"]), str(manifest.get("note", "")),
            )  # fmt: skip
    except zipfile.BadZipFile as e:
        raise ReplayError(f"{path}: not a replay file (a zip file is wanted): {e}") from e
    except (KeyError, ValueError, TypeError, EOFError, NotImplementedError, RecursionError) as e:
        if isinstance(e, ReplayError):
            raise
        raise ReplayError(f"{path}: the replay file is damaged: {type(e).__name__}: {e}") from e
