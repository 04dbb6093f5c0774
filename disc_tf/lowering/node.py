"""A read-only, typed view of a NodeDef. Duck-typed: any protobuf class with TensorFlow's fields, or plain dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from disc_tf.ir.types import DType, tf_type_name
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.tensor_proto import tensor_to_numpy

_MISSING = object()
#: of a Const node without content: see `frontend.graph`
ORDINAL_ATTR = "_disc_ordinal"


def split_input(text: str) -> tuple[str, int]:
    """``"x" -> ("x", 0)``, ``"x:1" -> ("x", 1)``. Function-body names (``x:out:0``) are resolved by the frontend."""
    name, colon, port = text.rpartition(":")
    return (name, int(port)) if colon and port.isdigit() else (text, 0)


class NodeView:
    """One node: ``name``, ``op``, data ``inputs`` as ``(node, port)``, ``control_inputs`` and typed attributes.

    Attributes absent from the node give the default that the rule names (TF strips defaults when it saves a model).
    """

    __slots__ = ("_attrs", "control_inputs", "device", "inputs", "name", "op")

    def __init__(
        self,
        name: str,
        op: str,
        inputs: Sequence[tuple[str, int] | str] = (),
        attrs: Mapping[str, Any] | None = None,
        control_inputs: Sequence[str] = (),
        device: str = "",
    ) -> None:
        self.name = name
        self.op = op
        self.inputs: tuple[tuple[str, int], ...] = tuple(
            split_input(i) if isinstance(i, str) else (i[0], int(i[1])) for i in inputs
        )
        self.control_inputs = tuple(control_inputs)
        self.device = device
        self._attrs: Mapping[str, Any] = attrs if attrs is not None else {}

    @staticmethod
    def from_proto(node: Any, inputs: Sequence[tuple[str, int]] | None = None) -> NodeView:
        """View of a NodeDef; ``inputs`` overrides the node's own (already resolved by the frontend)."""
        data = [i for i in node.input if not i.startswith("^")]
        control = [i[1:] for i in node.input if i.startswith("^")]
        return NodeView(node.name, node.op, data if inputs is None else inputs, node.attr, control, node.device)

    @staticmethod
    def from_dict(d: Mapping[str, Any]) -> NodeView:
        """View of ``{"name", "op", "inputs": [...], "attrs": {...}}`` with plain Python attribute values."""
        return NodeView(
            d.get("name", d["op"]), d["op"], d.get("inputs", ()), d.get("attrs", {}), d.get("control_inputs", ())
        )

    def has(self, name: str) -> bool:
        """True if the node carries the attribute itself."""
        return name in self._attrs

    def attr(self, name: str, default: Any = _MISSING) -> Any:
        """The attribute as a Python value: int, float, bool, str (bytes if not UTF-8), DataType number, shape (tuple with
        -1 for unknown, None for unknown rank), TensorProto, function name, or a list of these.

        Raises ``Unsupported(ATTR)`` if absent without a default.
        """
        if name not in self._attrs:
            if default is _MISSING:
                raise Unsupported("ATTR", f"attribute {name!r} is missing")
            return default
        return _python_value(self._attrs[name])

    def dtype(self, name: str = "T", default: Any = _MISSING) -> DType:
        """A type attribute as ``DType``; ``Unsupported(DTYPE)`` for strings, complex numbers, resources ..."""
        value = self.attr(name, default)
        if isinstance(value, DType):
            return value
        number = int(getattr(value, "as_datatype_enum", value))  # tf.DType, in tests
        found = DType.from_tf(number)
        if found is None:
            raise Unsupported("DTYPE", f"attribute {name!r}: type {tf_type_name(number)} is not compiled")
        return found

    def dtypes(self, name: str) -> list[DType]:
        """A list(type) attribute."""
        out: list[DType] = []
        for value in self.attr(name):
            if isinstance(value, DType):
                out.append(value)
                continue
            found = DType.from_tf(int(value))
            if found is None:
                raise Unsupported("DTYPE", f"attribute {name!r}: type {tf_type_name(int(value))} is not compiled")
            out.append(found)
        return out

    def ints(self, name: str, default: Sequence[int] = ()) -> list[int]:
        """A list(int) attribute."""
        return [int(i) for i in self.attr(name, default)]

    def tensor(self, name: str = "value") -> np.ndarray:
        """A tensor attribute as an array (a splat has stride 0; do not write to it)."""
        if ORDINAL_ATTR in self._attrs:
            raise Unsupported("NOT_CONSTANT", "the content of this constant is not in the graph (a skeleton)", self.name, self.op)
        value = self.attr(name)
        if isinstance(value, (np.ndarray, np.generic)):
            return np.asarray(value)
        return tensor_to_numpy(value)

    def __repr__(self) -> str:
        return f"NodeView({self.name!r}, {self.op!r})"


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return value
    return value


def _shape(value: Any) -> tuple[int, ...] | None:
    return None if value.unknown_rank else tuple(int(d.size) for d in value.dim)


def _python_value(value: Any) -> Any:
    which = getattr(value, "WhichOneof", None)
    if which is None:
        return _text(value)
    kind = which("value") if "AttrValue" in type(value).__name__ else None
    if kind is None:
        return value
    if kind == "s":
        return _text(value.s)
    if kind == "shape":
        return _shape(value.shape)
    if kind == "func":
        return value.func.name
    if kind == "list":
        items = value.list
        for field in ("s", "i", "f", "b", "type", "shape", "tensor", "func"):
            content = getattr(items, field)
            if len(content):
                if field == "s":
                    return [_text(x) for x in content]
                if field == "shape":
                    return [_shape(x) for x in content]
                if field == "func":
                    return [x.name for x in content]
                return list(content)
        return []
    return getattr(value, kind)
