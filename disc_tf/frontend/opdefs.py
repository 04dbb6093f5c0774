"""What TensorFlow says of its own ops: arguments, attributes, statefulness (from a checked-in table, without TensorFlow).

An op that is not in the table (a custom op) has no `OpInfo`: nothing is assumed about it.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.tfproto import message_class, parse

DT_STRING, DT_RESOURCE, DT_VARIANT = 7, 20, 21
_REF_OFFSET = 100
#: a bound on list arguments, so that a hostile attribute does not become a long list
MAX_ARGS = 1 << 16

_KIND = {
    "int": "i", "float": "f", "bool": "b", "string": "s", "type": "type", "shape": "shape", "tensor": "tensor", "func": "func",
}  # fmt: skip


def base_type(number: int) -> int:
    """The DataType without its reference marker."""
    return number - _REF_OFFSET if number > _REF_OFFSET else number


class OpInfo:
    """One op type. Methods raise ``GraphError`` (without a node name) for attributes that do not fit the op."""

    __slots__ = ("attr_defaults", "attr_kinds", "inputs", "is_stateful", "name", "outputs", "words")

    def __init__(self, op: Any) -> None:
        self.name: str = op.name
        self.is_stateful: bool = op.is_stateful
        self.inputs = tuple(_Arg(a) for a in op.input_arg)
        self.outputs = tuple(_Arg(a) for a in op.output_arg)
        #: attribute -> field of AttrValue; lists as "list"
        self.attr_kinds = {a.name: "list" if a.type.startswith("list(") else _KIND.get(a.type, "") for a in op.attr}
        #: string attribute -> the values that it may have, where they are listed
        self.words = {
            a.name: frozenset(s.decode() for s in a.allowed_values.list.s) for a in op.attr if len(a.allowed_values.list.s)
        }
        self.attr_defaults = {a.name: a.default_value for a in op.attr if a.HasField("default_value")}

    def check_attrs(self, attrs: Mapping[str, Any]) -> None:
        """Raise ``GraphError`` for an attribute of the wrong kind or a required one that is missing."""
        for name, kind in self.attr_kinds.items():
            value = attrs.get(name) if name in attrs else None
            if value is None:
                if name not in self.attr_defaults:
                    raise GraphError(f"attribute {name!r} of {self.name} is missing")
                continue
            found = value.WhichOneof("value")
            if found != kind and found != "placeholder":
                raise GraphError(f"attribute {name!r} of {self.name} must be a {kind!r} value, found {found!r}")

    def _attr(self, attrs: Mapping[str, Any], name: str) -> Any:
        if name in attrs:
            return attrs[name]
        if name in self.attr_defaults:
            return self.attr_defaults[name]
        raise GraphError(f"attribute {name!r} of {self.name} is missing")

    def _types(self, args: tuple[_Arg, ...], attrs: Mapping[str, Any]) -> list[int]:
        out: list[int] = []
        for arg in args:
            if arg.type_list_attr:
                types = list(self._attr(attrs, arg.type_list_attr).list.type)
            else:
                number = self._attr(attrs, arg.type_attr).type if arg.type_attr else arg.type
                count = int(self._attr(attrs, arg.number_attr).i) if arg.number_attr else 1
                if not 0 <= count <= MAX_ARGS:
                    raise GraphError(f"attribute {arg.number_attr!r} of {self.name} is {count}")
                types = [number] * count
            if len(types) > MAX_ARGS:
                raise GraphError(f"{len(types)} values in one argument of {self.name}")
            out.extend(types)
        return out

    def input_types(self, attrs: Mapping[str, Any]) -> list[int]:
        """DataType numbers of all inputs of a node with these attributes (a map of AttrValue)."""
        return self._types(self.inputs, attrs)

    def output_types(self, attrs: Mapping[str, Any]) -> list[int]:
        """DataType numbers of all outputs, in port order."""
        return self._types(self.outputs, attrs)

    def output_offsets(self, attrs: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
        """Output argument -> (first port, number of ports), as the input syntax of function bodies needs it."""
        out: dict[str, tuple[int, int]] = {}
        at = 0
        for arg in self.outputs:
            n = len(self._types((arg,), attrs))
            out[arg.name] = (at, n)
            at += n
        return out


class _Arg:
    __slots__ = ("name", "number_attr", "type", "type_attr", "type_list_attr")

    def __init__(self, arg: Any) -> None:
        self.name: str = arg.name
        self.type: int = arg.type
        self.type_attr: str = arg.type_attr
        self.number_attr: str = arg.number_attr
        self.type_list_attr: str = arg.type_list_attr


#: our own ops, as `runtime/tf_op` registers them: (inputs, outputs, attributes, stateful), each argument and attribute as (name, type)
_OURS = {
    "DiscLaunch": (
        (("constants", "Tconst"), ("host_args", "Thost"), ("args", "Targs")),
        (("host_results", "Thostout"), ("results", "Tout")),
        (
            *((name, "list(type)") for name in ("Tconst", "Thost", "Targs", "Thostout", "Tout")),
            *(("executable", "string"), ("original", "func"), ("nodes", "string"), ("abi", "int")),
        ),
        False,
    ),
    "DiscWeight": ((), (("value", "dtype"),), (("dtype", "type"), ("dims", "list(int)"), ("bytes", "int"), ("path", "string")), True),
}


def _our_op(name: str) -> Any:
    inputs, outputs, attrs, stateful = _OURS[name]
    op = message_class("OpDef")(name=name, is_stateful=stateful)
    for key, kind in attrs:
        attr = op.attr.add(name=key, type=kind)
        if key in ("nodes", "abi"):  # a second save may strip attributes that have their defaults
            attr.default_value.MergeFrom(type(attr.default_value)(i=1) if key == "abi" else type(attr.default_value)(s=b""))
    lists = {key for key, kind in attrs if kind.startswith("list")}
    for to, args in ((op.input_arg, inputs), (op.output_arg, outputs)):
        for arg, of in args:
            to.add(name=arg, **{"type_list_attr" if of in lists else "type_attr": of})
    return op


@functools.cache
def _table() -> dict[str, Any]:
    data = resources.files("disc_tf.frontend").joinpath("data/tf_ops.binpb.z").read_bytes()
    return {op.name: op for op in parse("OpList", zlib.decompress(data)).op} | {name: _our_op(name) for name in _OURS}


@functools.cache
def op_info(op: str) -> OpInfo | None:
    """The op's definition, or None for an op that neither TensorFlow 2.21 nor we have."""
    found = _table().get(op)
    return OpInfo(found) if found is not None else None


#: ops that call a function of the library through an attribute
CALL_OPS = {"PartitionedCall": "f", "StatefulPartitionedCall": "f"}
#: TF1 dataflow control
CONTROL_FLOW = frozenset(
    base
    for op in ("Enter", "Exit", "Switch", "Merge", "NextIteration", "LoopCond", "ControlTrigger")
    for base in (op, f"Ref{op}")
) | {"_SwitchN"}

#: Stateless ops that cannot fail once their inputs are there (whatever the values): an edge from one orders nothing.
CANNOT_FAIL = frozenset(
    [
        "Const", "Identity", "IdentityN", "NoOp", "Placeholder", "PlaceholderWithDefault", "StopGradient", "Snapshot",
        "PreventGradient", "Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike", "Cast", "Abs", "Neg", "Sign", "Exp", "Expm1",
        "Log", "Log1p", "Sqrt", "Rsqrt", "Square", "Reciprocal", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh",
        "Asinh", "Acosh", "Atanh", "Erf", "Erfc", "Sigmoid", "Softplus", "Softsign", "Relu", "Relu6", "Elu", "Selu", "LeakyRelu",
        "Floor", "Ceil", "Round", "Rint", "IsNan", "IsInf", "IsFinite", "LogicalNot", "Invert", "Softmax", "LogSoftmax",
    ]
)

#: Stateful by declaration, yet reading one twice or in another order among pure nodes changes nothing that a user sees.
READS = frozenset({"VarHandleOp", "ReadVariableOp", "Placeholder", "VarIsInitializedOp"})

#: Host ops that may take long or wait: inputs from them come late (see `cluster`).
SLOW_PREFIXES = (
    "String", "Regex", "Lookup", "Decode", "Parse", "Read", "Iterator", "PyFunc", "EagerPyFunc", "Queue", "Stage", "Unstage",
    "Unicode", "SparseToDense", "TensorArray", "Recv", "_Recv", "HostRecv", "OneShotIterator", "Model", "Dataset", "SdcaOptimizer",
    "Substr", "AsString", "WholeFileReader", "TextLine", "TFRecord", "MutableHashTable", "HashTable", "Example", "Sentencepiece",
    "StaticRegex", "WordPiece", "Tokenize", "Fingerprint", "Audio", "Extract", "Barrier", "FIFO", "RandomShuffleQueue",
)  # fmt: skip
_NOT_SLOW = frozenset({"ReadVariableOp", "ExtractImagePatches", "ExtractVolumePatches", "StringJoinStatic", "HashTableV2", "HashTable"})


def is_slow(op: str) -> bool:
    """Whether the op does string, table, file or network work, or waits for a producer."""
    if op in _NOT_SLOW:
        return False
    return op.startswith(SLOW_PREFIXES) or op in ("GetNext", "IteratorGetNext", "Print", "PrintV2")
