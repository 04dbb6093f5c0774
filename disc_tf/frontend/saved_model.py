"""A SavedModel's `saved_model.pb`: read, which functions are worth compiling, written.

Nothing here imports TensorFlow. A SavedModel of TensorFlow 2 has an object graph, and its computation lies in library functions; one of
TensorFlow 1 has its computation in the main graph. See TensorFlow's saved_model.proto and saved_object_graph.proto.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.function_graph import Dims
from disc_tf.frontend.functions import Library
from disc_tf.frontend.graph import parse_tensor
from disc_tf.frontend.opaque import shape_attr
from disc_tf.frontend.opdefs import DT_RESOURCE
from disc_tf.frontend.tfproto import message_class, parse, serialized

FILE = "saved_model.pb"
TEXT_FILE = "saved_model.pbtxt"
#: names of version directories
_NUMBER = re.compile(r"[0-9]{1,19}")
_MAX_VERSION = (1 << 63) - 1
#: bytes that protobuf can write
MAX_GRAPH = 1 << 31
TOO_LARGE = f"the graph is larger than the 2 GB that {FILE} can hold: keep the weights in variables (no --freeze)"
#: signatures that TensorFlow itself adds
HIDDEN_SIGNATURES = frozenset({"__saved_model_init_op", "__saved_model_train_op"})
#: tag of MetaGraphs that estimators and builders save for training; how the methods of signatures for serving begin
_TRAIN_TAG = "train"
_SERVING_METHOD = "tensorflow/serving/"
#: words in the names of methods that are there for training
_TRAINING = frozenset(
    {"train", "training", "fit", "backward", "grad", "gradient", "gradients", "optimizer", "loss", "losses", "checkpoint"}
)
#: functions that create, save, restore and initialise what the model owns: never touched
_KEEPING = re.compile(
    r"^_*(inference_+)?(traced_)?(save|restore|creator|initializer|destroyer|create_resource|initialize|destroy_resource|default_save_signature)"
    r"(_fn)?(_\d+)?$"
)


class SavedModelError(GraphError):
    """A directory that holds no SavedModel that can be read. The message says what is wrong and the way out."""


def is_saved_model(path: str | Path) -> bool:
    """Whether the directory looks like a SavedModel."""
    directory = Path(path)
    return directory.is_dir() and any((directory / name).exists() for name in (FILE, TEXT_FILE, "saved_model.cpb"))


def version_number(name: str) -> int | None:
    """The version that TensorFlow Serving takes a directory's name for, None for other directories."""
    if not _NUMBER.fullmatch(name) or int(name) > _MAX_VERSION:
        return None
    return int(name)


def version_hint(directory: str | Path) -> str:
    """What to give instead of a base path, for the end of a message; nothing for other directories."""
    try:
        versions = {n: p for p in sorted(Path(directory).iterdir()) if (n := version_number(p.name)) is not None and is_saved_model(p)}
    except OSError:
        return ""
    return f"; it holds versions of one: give {versions[max(versions)]}" if versions else ""


def not_a_saved_model(directory: str | Path) -> str:
    """The message of a directory that is none."""
    return f"{directory}: no {FILE} in this directory, it is not a SavedModel{version_hint(directory)}"


def read_saved_model(path: str | Path) -> Any:
    """The SavedModel message of a directory. `SavedModelError`."""
    directory = Path(path)
    if not directory.is_dir():
        raise SavedModelError(f"{directory} is not a directory")
    try:
        if (directory / FILE).is_file():
            message = parse("SavedModel", (directory / FILE).read_bytes())
        elif (directory / TEXT_FILE).is_file():
            message = _from_text((directory / TEXT_FILE).read_text())
        elif (directory / "saved_model.cpb").exists():
            raise SavedModelError(
                f"{directory}: the model is split into chunks (saved_model.cpb), which is not supported; save it again without"
                " tf.saved_model.SaveOptions(experimental_image_format=True)"
            )
        else:
            raise SavedModelError(not_a_saved_model(directory))
    except OSError as e:
        raise SavedModelError(f"cannot read {directory}: {e.strerror or e}") from e
    except SavedModelError:
        raise
    except (GraphError, ValueError) as e:
        raise SavedModelError(f"{directory}: {FILE} cannot be read: {e}") from e
    if not message.meta_graphs:
        raise SavedModelError(f"{directory}: the SavedModel holds no graph")
    return message


def _from_text(text: str) -> Any:
    from google.protobuf import text_format

    try:
        return text_format.Parse(text, message_class("SavedModel")())
    except text_format.ParseError as e:
        raise ValueError(str(e)) from e


def write_saved_model(path: str | Path, message: Any) -> None:
    """Write `saved_model.pb` into a directory. `SavedModelError` beyond the two gigabytes that protobuf allows."""
    if message.ByteSize() >= MAX_GRAPH:
        raise SavedModelError(TOO_LARGE)
    (Path(path) / FILE).write_bytes(serialized(message))


def choose_meta_graph(message: Any, tags: Sequence[str] | None) -> Any:
    """The MetaGraph of exactly these tags; None: the one tagged ``serve``, or the only one. `SavedModelError` names what there is."""
    wanted = set(tags) if tags is not None else {"serve"}
    there = [sorted(m.meta_info_def.tags) for m in message.meta_graphs]
    for meta in message.meta_graphs:
        if set(meta.meta_info_def.tags) == wanted:
            return meta
    if tags is None and len(there) == 1:
        return message.meta_graphs[0]
    listed = "; ".join(", ".join(t) or "(none)" for t in there)
    raise SavedModelError(f"no graph is tagged {', '.join(sorted(wanted))}; there are: {listed}")


@dataclasses.dataclass(frozen=True)
class Choice:
    """A MetaGraph of a file. ``signatures``: those to look at (None: all, and methods). ``reason``: why it is left as it is, "" if it is
    looked at."""

    index: int
    meta: Any
    signatures: list[str] | None
    reason: str = ""

    @property
    def tags(self) -> list[str]:
        return sorted(self.meta.meta_info_def.tags)

    @property
    def names(self) -> list[str]:
        """The signatures to look at, by name: those asked for, else all."""
        return self.signatures if self.signatures is not None else signature_names(self.meta)

    @property
    def title(self) -> str:
        """The tags, in words."""
        return title_of(self.tags)


def title_of(tags: Sequence[str]) -> str:
    """How a MetaGraph is called in texts: by its tags."""
    return ", ".join(tags) or "(no tags)"


def choose_meta_graphs(message: Any, tags: Sequence[str] | None = None, signatures: Sequence[str] | None = None) -> list[Choice]:
    """Every MetaGraph of the file, those to look at first (the one tagged ``serve`` before all).

    tags: look only at the one that has exactly these. signatures: look only at graphs that have one of these. Otherwise all are looked at
    but those for training: tagged ``train``, without a signature for serving. A lone graph is never left for its tags. `SavedModelError`
    for tags or signatures that no graph has.
    """
    if tags is not None:
        choose_meta_graph(message, tags)  # raises
    found: list[Choice] = []
    seen: set[frozenset[str]] = set()
    for index, meta in enumerate(message.meta_graphs):
        there, names = frozenset(meta.meta_info_def.tags), signature_names(meta)
        asked = None if signatures is None else [s for s in dict.fromkeys(signatures) if s in names]
        reason = ""
        if there in seen:
            reason = "another graph of the file has the same tags: nothing loads this one"
        elif tags is not None and there != set(tags):
            reason = "it has other tags than those asked for (--tag)"
        elif asked is not None and not asked and len(message.meta_graphs) > 1:
            reason = "it has none of the signatures asked for"
        elif tags is None and signatures is None and len(message.meta_graphs) > 1 and _for_training(meta):
            reason = f"it is for training (tagged train, no signature for serving); --tag {' --tag '.join(sorted(there))} compiles it"
        seen.add(there)
        found.append(Choice(index, meta, asked, reason))
    if signatures is not None:
        looked = [c for c in found if tags is None or set(c.tags) == set(tags)]
        has = dict.fromkeys(name for c in looked for name in signature_names(c.meta))
        if unknown := [s for s in signatures if s not in has]:
            raise SavedModelError(f"no signature {', '.join(unknown)}; there are: {', '.join(has) or 'none'}")
    return sorted(found, key=lambda c: (bool(c.reason), c.tags != ["serve"]))


def _for_training(meta: Any) -> bool:
    serving = any(meta.signature_def[n].method_name.startswith(_SERVING_METHOD) for n in signature_names(meta))
    return _TRAIN_TAG in meta.meta_info_def.tags and not serving


def is_tf2(meta: Any) -> bool:
    """Whether the computation lies in functions that an object graph owns."""
    return len(meta.object_graph_def.nodes) > 0


def signature_names(meta: Any) -> list[str]:
    """The signatures that users call, `serving_default` first."""
    names = [n for n in meta.signature_def if n not in HIDDEN_SIGNATURES]
    return sorted(names, key=lambda n: (n != "serving_default", n))


def signature_tensors(signature: Any, which: str) -> dict[str, str]:
    """Input or output name -> tensor of the main graph. Sparse and composite ones give their parts as ``name/part``."""
    found: dict[str, str] = {}
    table = getattr(signature, which)
    for name in sorted(table):
        info = table[name]
        kind = info.WhichOneof("encoding")
        if kind == "coo_sparse":
            parts = info.coo_sparse
            found |= {f"{name}/values": parts.values_tensor_name, f"{name}/indices": parts.indices_tensor_name}
            found[f"{name}/dense_shape"] = parts.dense_shape_tensor_name
        elif kind == "composite_tensor":
            found |= {f"{name}/{i}": c.name for i, c in enumerate(info.composite_tensor.components)}
        elif info.name:
            found[name] = info.name
    return found


_NUMPY_NAMES = {"float": "float32", "double": "float64", "half": "float16"}


def describe_signatures(message: Any) -> dict[str, dict[str, Any]]:
    """Signature -> ``method``, ``inputs`` and ``outputs`` (name -> ``dtype``, ``shape``; None for an extent that is not known, and for a
    rank that is not), of all MetaGraphs; with the tags before the name where there are several."""
    several = len(message.meta_graphs) > 1
    found = {}
    for meta in message.meta_graphs:
        where = f"[{title_of(sorted(meta.meta_info_def.tags))}] " if several else ""
        for name in signature_names(meta):
            signature = meta.signature_def[name]
            sides = {side: {k: _tensor_info(v) for k, v in sorted(getattr(signature, side).items())} for side in ("inputs", "outputs")}
            found[f"{where}{name}"] = {"method": signature.method_name, **sides}
    return found


def _tensor_info(info: Any) -> dict[str, Any]:
    kinds = info.DESCRIPTOR.fields_by_name["dtype"].enum_type.values_by_number
    number = info.dtype & 0xFF if info.dtype > 100 else info.dtype  # references
    name = kinds[number].name.removeprefix("DT_").lower() if number in kinds else f"dtype {info.dtype}"
    shape = None if info.tensor_shape.unknown_rank else [d.size if d.size >= 0 else None for d in info.tensor_shape.dim]
    entry: dict[str, Any] = {"dtype": _NUMPY_NAMES.get(name, name), "shape": shape}
    kind = info.WhichOneof("encoding")
    return entry if kind in ("name", None) else entry | {"kind": "sparse" if kind == "coo_sparse" else "composite"}


def signature_lines(signatures: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """`describe_signatures` for a terminal."""

    def tensor(name: str, t: Mapping[str, Any]) -> str:
        dims = "of any rank" if t["shape"] is None else f"[{', '.join('?' if d is None else str(d) for d in t['shape'])}]"
        return f"{name} {t['dtype']}{' ' if t['shape'] is None else ''}{dims}" + (f" ({t['kind']})" if "kind" in t else "")

    lines = []
    for name, s in signatures.items():
        lines.append(f"signature {name}:")
        lines += [f"  takes {tensor(k, t)}" for k, t in s["inputs"].items()] or ["  takes nothing"]
        lines += [f"  gives {tensor(k, t)}" for k, t in s["outputs"].items()] or ["  gives nothing"]
    return lines


def reached_nodes(meta: Any, tensors: Iterable[str]) -> list[Any]:
    """The nodes of the main graph that these tensors need, through data and control edges, themselves included."""
    nodes = {n.name: n for n in meta.graph_def.node}
    work = [parse_tensor(t)[0] for t in tensors]
    found: dict[str, Any] = {}
    while work:
        name = work.pop()
        if name not in found and name in nodes:
            found[name] = nodes[name]
            work += [text.lstrip("^").partition(":")[0] for text in nodes[name].input]
    return list(found.values())


# ---- functions worth compiling -----------------------------------------------------------------------------------


@dataclasses.dataclass
class Roots:
    """``functions``: name -> what calls it (``signature serving_default``, ``__call__``). ``skipped``: name -> why it stays.
    ``variables``: function -> position of a handle among its arguments -> the variable's dims."""

    functions: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    variables: dict[str, dict[int, Dims]] = dataclasses.field(default_factory=dict)

    def add(self, name: str, who: str) -> None:
        self.functions.setdefault(name, [])
        if who not in self.functions[name]:
            self.functions[name].append(who)


def find_roots(meta: Any, signatures: Sequence[str] | None = None, all_functions: bool = False) -> Roots:
    """Functions that signatures and the root object's own methods call.

    signatures: only these (and no methods). all_functions: every concrete function of every object, but those that save and restore.
    """
    roots = Roots()
    library = Library(meta.graph_def)
    concrete = meta.object_graph_def.concrete_functions
    for name in concrete:
        if name in library.functions:
            roots.variables[name] = _bound_variables(meta, library.functions[name], concrete[name])
    names = signature_names(meta)
    unknown = set(signatures or ()) - set(names)
    if unknown:
        raise SavedModelError(f"no signature {', '.join(sorted(unknown))}; there are: {', '.join(names) or 'none'}")
    nodes = {n.name: n for n in meta.graph_def.node}
    for key in names if signatures is None else signatures:
        for node_name in signature_calls(meta.signature_def[key], nodes):
            call = library.called(nodes[node_name])
            if call is not None and call[0] in library.functions:
                roots.add(call[0], f"signature {key}")
    for who, name in _methods(meta, all_functions) if signatures is None else ():
        if name not in library.functions:
            continue
        if _KEEPING.match(name) or _KEEPING.match(who.rpartition(".")[2]):
            continue
        why = _why_not(concrete[name], _parameters(meta, name), who) if not all_functions else ""
        if why:
            roots.skipped[name] = why
        else:
            roots.add(name, who)
    for name in roots.functions:
        roots.skipped.pop(name, None)
    return roots


def signature_calls(signature: Any, nodes: Mapping[str, Any]) -> Iterable[str]:
    """The nodes that give a signature's outputs, identities seen through."""
    for tensor in signature_tensors(signature, "outputs").values():
        name = parse_tensor(tensor)[0]
        while name in nodes and nodes[name].op in ("Identity", "IdentityN") and nodes[name].input:
            port = parse_tensor(tensor)[1] if nodes[name].op == "IdentityN" else 0
            data = [i for i in nodes[name].input if not i.startswith("^")]
            name = parse_tensor(data[min(port, len(data) - 1)])[0]
        if name in nodes:
            yield name


def _methods(meta: Any, everywhere: bool) -> Iterable[tuple[str, str]]:
    """(method, concrete function) of the root object, or of every object."""
    objects = meta.object_graph_def.nodes
    for index, node in enumerate(objects) if everywhere else enumerate(objects[:1]):
        for child in node.children:
            target = objects[child.node_id] if child.node_id < len(objects) else None
            kind = target.WhichOneof("kind") if target is not None else None
            who = child.local_name if index == 0 else f"object {index}.{child.local_name}"
            if target is not None and kind == "function":
                for name in target.function.concrete_functions:
                    yield who, name
            elif target is not None and kind == "bare_concrete_function":
                yield who, target.bare_concrete_function.concrete_function_name


def root_methods(meta: Any) -> list[tuple[str, str]]:
    """(method, concrete function) of the root object, a method's functions in the order of the file."""
    return list(_methods(meta, False))


def _parameters(meta: Any, name: str) -> list[str]:
    """Parameter names of the Python function that a concrete function was traced from, if the model tells."""
    for node in meta.object_graph_def.nodes:
        if node.WhichOneof("kind") == "function" and name in node.function.concrete_functions:
            spec = node.function.function_spec.fullargspec
            fields = spec.named_tuple_value.values or ()
            for pair in fields:
                if pair.key == "args":
                    given = [v.string_value for v in pair.value.list_value.values]
                    return given[1:] if given[:1] == ["self"] or node.function.function_spec.is_method else given
    return []


def _why_not(concrete: Any, parameters: Sequence[str], who: str) -> str:
    """Why a method is left alone, "" if it is not."""
    if who.startswith(("_", "call_and_return")) and who != "__call__":
        return f"{who} is not meant to be called from outside; --all-functions compiles it too"
    if _TRAINING & set(who.lower().split("_")):
        return f"{who} is for training; --all-functions compiles it too"
    given = concrete.canonicalized_input_signature.tuple_value.values
    positional = list(given[0].tuple_value.values) if given else []
    named = dict(given[1].dict_value.fields) if len(given) > 1 else {}
    arguments = {**dict(zip(parameters, positional, strict=False)), **named}
    training = arguments.get("training")
    if training is not None and training.WhichOneof("kind") == "bool_value" and training.bool_value:
        return f"{who} with training=True; --all-functions compiles it too"
    return ""


def _bound_variables(meta: Any, function: Any, concrete: Any) -> dict[int, Dims]:
    """Dims of the variables whose handles a concrete function captures: its last arguments."""
    objects = meta.object_graph_def.nodes
    first = len(function.signature.input_arg) - len(concrete.bound_inputs)
    found: dict[int, Dims] = {}
    for i, node_id in enumerate(concrete.bound_inputs):
        if first + i < 0 or not 0 <= node_id < len(objects) or objects[node_id].WhichOneof("kind") != "variable":
            continue
        if function.signature.input_arg[first + i].type == DT_RESOURCE:
            found[first + i] = _known(objects[node_id].variable.shape)
    return found


def _known(shape: Any) -> Dims:
    dims = shape_attr(shape)
    return None if dims is None else tuple(d if isinstance(d, int) else -1 for d in dims)
