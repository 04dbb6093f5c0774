"""`disc-tf run MODEL --input x=x.npy`: a stand-alone file without TensorFlow; a GraphDef or SavedModel in it, with the op library."""

from __future__ import annotations

import argparse
import io
import json
import pickle
import sys
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from disc_tf.commands.common import (
    BAD_INPUT,
    OK,
    USAGE,
    CommandError,
    add_packs_argument,
    check_distinct,
    check_output,
    read_whole_graph,
    share_packs,
    write_atomically,
)
from disc_tf.commands.signers import add_trust_argument, set_trust
from disc_tf.commands.unused import refuse
from disc_tf.runtime.artifact import PREFIX

#: what is printed of a long array
_EDGE = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a stand-alone file (.disc), a SavedModel directory, or a frozen GraphDef (.pb, .pbtxt)")
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE.npy", help="an input's value (repeatable)"
    )
    parser.add_argument("--inputs", metavar="FILE.npz", help="values of several inputs, by their names")
    parser.add_argument("--outputs", nargs="+", default=[], metavar="NAME", help="only these outputs (default: all)")
    parser.add_argument("--signature", metavar="KEY", help="of a SavedModel (default: serving_default)")
    parser.add_argument("-o", "--output", metavar="FILE.npz", help="write the outputs, by their names; without it they are printed")
    add_packs_argument(parser)
    add_trust_argument(parser, loads=True)
    parser.add_argument("--json", action="store_true", help="print name, dtype, shape and values as JSON")


def run(args: argparse.Namespace) -> int:
    check_distinct({"model": args.model, "inputs": args.inputs or None, "output": args.output or None})
    if args.output:
        check_output(args.output)
    given = read_inputs(args.input, args.inputs)
    share_packs(args.packs)
    set_trust(args.trust_file)
    start = time.perf_counter()
    model = _open(args)
    loaded = time.perf_counter()
    outputs = _select(model(given), args.outputs)
    end = time.perf_counter()
    if args.output:
        write_atomically(args.output, _npz(outputs))
        times = f"{(end - loaded) * 1e3:.1f} ms, loaded in {(loaded - start) * 1e3:.0f} ms"
        print(f"wrote {args.output}: {', '.join(outputs)} ({times})", file=sys.stderr)
    if args.json:
        shown = {n: {"dtype": str(v.dtype), "shape": list(v.shape), "values": _listed(v)} for n, v in outputs.items()}
        print(json.dumps(shown, indent=2))
    elif not args.output:
        for name, value in outputs.items():
            print(f"{name} {value.dtype}{list(value.shape)}")
            print(np.array2string(value, threshold=64, edgeitems=_EDGE, max_line_width=120))
    return OK


def read_inputs(single: list[str], file: str | None) -> dict[str, np.ndarray]:
    """The arrays of ``NAME=FILE.npy`` and of an ``.npz``. `CommandError` naming the file."""
    given: dict[str, np.ndarray] = {}
    if file:
        arrays = _read(file)
        if isinstance(arrays, np.ndarray):
            raise CommandError(f"{file} holds one array without a name: give it as --input NAME={file}", USAGE)
        given |= arrays
    for text in single:
        name, sep, path = text.partition("=")
        if not sep or not name or not path:
            raise CommandError(f"--input {text!r}: write it as NAME=FILE.npy", USAGE)
        if name in given:
            raise CommandError(f"input {name} is given twice", USAGE)
        value = _read(path)
        if not isinstance(value, np.ndarray):
            raise CommandError(f"{path} holds several arrays: give it as --inputs {path}", USAGE)
        given[name] = value
    return given


def _read(path: str) -> np.ndarray | dict[str, np.ndarray]:
    """The array of an `.npy`, those of an `.npz` by name."""
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        with found:
            return {name: found[name] for name in found.files}
    except (OSError, ValueError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile) as e:
        raise CommandError(f"cannot read {path}: {e}") from e


Model = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


def _open(args: argparse.Namespace) -> Model:
    path = Path(args.model)
    if path.is_dir():
        return _saved_model(args.model, args.signature or "serving_default")
    refuse(args, ["signature"], "is for SavedModels: name what you want by --outputs")
    try:
        with open(path, "rb") as f:
            head = f.read(len(PREFIX))
    except OSError as e:
        raise CommandError(f"cannot read {args.model}: {e.strerror or e}") from e
    return _standalone(args.model) if head == PREFIX else _graph(args.model, args.outputs)


def _standalone(path: str) -> Model:
    from disc_tf.runtime.artifact import ArtifactError
    from disc_tf.runtime.executable import DiscError
    from disc_tf.runtime.runner import load

    try:
        runner = load(path)
    except (DiscError, ArtifactError) as e:
        raise CommandError(f"{path}: {e}" if path not in str(e) else str(e)) from e

    def call(given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            return runner.run(given)
        except (DiscError, ValueError, TypeError) as e:
            raise CommandError(f"{path}: {e}") from e

    return call


def _select(outputs: dict[str, np.ndarray], wanted: list[str]) -> dict[str, np.ndarray]:
    wanted = [name if name in outputs else name.removesuffix(":0") for name in wanted]
    if unknown := [name for name in wanted if name not in outputs]:
        raise CommandError(f"no output {', '.join(unknown)}; the outputs are {', '.join(outputs)}")
    return {name: outputs[name] for name in wanted} if wanted else outputs


# ---- in TensorFlow ------------------------------------------------------------------------------------------------------


def _graph(path: str, outputs: list[str]) -> Model:
    """A GraphDef in a session; optimised ones need the op library, which is loaded first."""
    from disc_tf.commands.common import default_outputs
    from disc_tf.frontend.errors import GraphError
    from disc_tf.frontend.tfproto import serialized

    graph_def = read_whole_graph(path)
    placeholders = [n.name for n in graph_def.node if n.op == "Placeholder"]
    try:
        fetches = {name.removesuffix(":0"): name if ":" in name else f"{name}:0" for name in outputs}
        fetches = fetches or {n.removesuffix(":0"): n for n in default_outputs(graph_def)}
    except GraphError as e:
        raise CommandError(f"{path}: {e}") from e
    tf = _tensorflow()
    graph = tf.Graph()
    message = tf.compat.v1.GraphDef.FromString(serialized(graph_def))
    with graph.as_default():
        guarded(path, lambda: tf.import_graph_def(message, name=""))
    session = tf.compat.v1.Session(graph=graph)

    def call(given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        known = {n: f"{n}:0" for n in placeholders} | {f"{n}:0": f"{n}:0" for n in placeholders}
        if unknown := [n for n in given if n not in known]:
            raise CommandError(f"{path}: unknown input {', '.join(unknown)}; the inputs are {', '.join(placeholders) or 'none'}")
        feeds = {known[n]: v for n, v in given.items()}
        return guarded(path, lambda: {k: np.asarray(v) for k, v in session.run(fetches, feeds).items()})

    return call


def _saved_model(path: str, signature: str) -> Model:
    from disc_tf.frontend.saved_model import is_saved_model, not_a_saved_model

    if not is_saved_model(path):
        raise CommandError(not_a_saved_model(path))
    tf = _tensorflow()
    loaded = guarded(path, lambda: tf.saved_model.load(path))
    if signature not in loaded.signatures:
        raise CommandError(f"{path} has no signature {signature!r}; there are {', '.join(loaded.signatures) or 'none'}")
    function = loaded.signatures[signature]
    specs = function.structured_input_signature[1]

    def call(given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if unknown := [n for n in given if n not in specs]:
            raise CommandError(f"{path}: unknown input {', '.join(unknown)}; the inputs are {', '.join(specs)}")
        if missing := [n for n in specs if n not in given]:
            raise CommandError(f"{path}: no value for input {', '.join(missing)}; the inputs are {', '.join(specs)}")
        for name, value in given.items():
            wanted = specs[name].dtype
            if value.dtype != wanted.as_numpy_dtype and wanted != tf.string:
                raise CommandError(f"{path}: input {name}: {wanted.name} is needed, {value.dtype} was given")

        def answer() -> dict[str, np.ndarray]:
            results = function(**{n: tf.constant(v, specs[n].dtype) for n, v in given.items()})
            return {n: v.numpy() for n, v in results.items()}

        answers = guarded(path, answer)
        assert loaded is not None  # variables live as long as what was loaded
        return answers

    return call


def _tensorflow() -> Any:
    import tensorflow as tf

    import disc_tf.ops

    disc_tf.ops.load_op_library()
    return tf


def guarded(path: str, action: Callable[[], Any]) -> Any:
    """TensorFlow's errors as ours, in one line."""
    import tensorflow as tf

    from disc_tf.frontend.errors import telling_line

    try:
        return action()
    except (tf.errors.OpError, ValueError, TypeError, OSError) as e:
        raise CommandError(f"{path}: {telling_line(str(e))[:500] or type(e).__name__}", BAD_INPUT) from e


def _npz(outputs: Mapping[str, np.ndarray]) -> bytes:
    """An .npz; unlike `numpy.savez` it takes any name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, value in outputs.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(_plain(value), order="C"), allow_pickle=False)
    return buffer.getvalue()


def _plain(value: np.ndarray) -> np.ndarray:
    """What an .npz can hold without pickles: strings as fixed-width bytes, bfloat16 as its bits."""
    if value.dtype == object:
        return value.astype(np.bytes_)
    return value.view(np.uint16) if value.dtype.name == "bfloat16" else value


def _listed(value: np.ndarray) -> Any:
    if value.dtype == object:
        return [v.decode(errors="replace") if isinstance(v, bytes) else str(v) for v in value.reshape(-1)]
    return (value.astype(np.float32) if value.dtype.kind == "V" or value.dtype.name == "bfloat16" else value).tolist()
