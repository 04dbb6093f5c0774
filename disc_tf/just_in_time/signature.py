"""Arguments of a call -> its rank signature: nesting, dtypes, ranks and Python values; the tensors, flat.

Shapes are no part of it. What cannot be told apart by a key (an unhashable Python object, a tensor of unknown rank) raises `NotKeyed`:
such calls are TensorFlow's.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from disc_tf.just_in_time.identity import Identity

#: what of a shape is kept static in a trace: nothing, the last dims (where there are two or more), all but the first dims
LEVELS = 3


class NotKeyed(TypeError):
    """The call has no rank signature; the message says which argument and why."""


@dataclasses.dataclass(frozen=True)
class Slot:
    """The place of a tensor (or of a composite tensor's ``count`` components) in the arguments."""

    start: int
    count: int
    spec: Any


@dataclasses.dataclass
class Call:
    """A call: ``key`` of its rank signature, flat ``tensors``, and ``bound`` = (args, kwargs) as the function takes them."""

    key: Hashable
    tensors: list[Any]
    bound: tuple[tuple[Any, ...], dict[str, Any]]


class Binder:
    """Keys calls of one function. ``parameters``: its signature, None if Python has none; positional and keyword spellings are equal."""

    def __init__(self, fn: Callable[..., Any], fixed: Sequence[Any] | None) -> None:
        import tensorflow as tf

        self._tf = tf
        #: flat specs of an `input_signature`
        self.fixed = fixed
        try:
            self.parameters = inspect.signature(fn)
        except (TypeError, ValueError):
            self.parameters = None
        self._plain = _plain_count(self.parameters)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Raises TypeError, as Python does, for arguments that the function does not take."""
        if self.parameters is None or (not kwargs and len(args) == self._plain):
            return args, kwargs
        bound = self.parameters.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Raises `NotKeyed`, and TypeError for arguments that do not fit the function."""
        bound = self.bind(args, kwargs)
        tensors: list[Any] = []
        if self.fixed is not None:
            return Call("input_signature", self._fixed_tensors(bound), bound)
        key: list[Hashable] = [self._token(a, tensors) for a in bound[0]]
        for name, value in sorted(bound[1].items()):
            key.append((name, self._token(value, tensors)))
        return Call(tuple(key), tensors, bound)

    def _fixed_tensors(self, bound: tuple[Any, ...]) -> list[Any]:
        tf = self._tf
        assert self.fixed is not None
        values = [v for v in tf.nest.flatten(bound) if v is not None]
        if len(values) != len(self.fixed):
            raise NotKeyed(f"{len(values)} arguments for an input_signature of {len(self.fixed)}")
        try:
            tensors = [tf.convert_to_tensor(v, s.dtype) for v, s in zip(values, self.fixed, strict=True)]
        except (TypeError, ValueError) as e:
            raise NotKeyed(f"arguments do not fit the input_signature: {e}") from e
        if not all(s.is_compatible_with(t) for t, s in zip(tensors, self.fixed, strict=True)):
            raise NotKeyed("shapes do not fit the input_signature")
        return tensors

    def _token(self, value: Any, tensors: list[Any]) -> Hashable:
        """The part of the key of one argument; its tensors are appended."""
        tf = self._tf
        if isinstance(value, tf.Tensor):
            return _tensor_token(value, tensors)
        kind = type(value)
        if kind in (tuple, list):
            return kind, tuple(self._token(v, tensors) for v in value)
        if kind is dict:
            try:
                names = sorted(value)
            except TypeError as e:
                raise NotKeyed(f"the keys of a dict argument have no order: {e}") from e
            return kind, tuple((k, self._token(value[k], tensors)) for k in names)
        if isinstance(value, (tf.Variable, tf.TypeSpec)):
            return "object", Identity(value)
        if isinstance(value, tf.__internal__.CompositeTensor):
            return self._composite_token(value, tensors)
        if tf.nest.is_nested(value):
            shape = getattr(value, "_fields", None) or (tuple(sorted(value)) if isinstance(value, dict) else None)
            return kind, shape, tuple(self._token(v, tensors) for v in _children(tf, value))
        if _is_array(value):
            try:
                tensor = tf.convert_to_tensor(value)
            except (TypeError, ValueError) as e:
                raise NotKeyed(f"an array argument is no tensor: {e}") from e
            return _tensor_token(tensor, tensors)
        return _value_token(value)

    def _composite_token(self, value: Any, tensors: list[Any]) -> Hashable:
        spec = relaxed_composite(self._tf, value)
        tensors.extend(self._tf.nest.flatten(value, expand_composites=True))
        return "composite", spec

    def skeleton(self, call: Call, level: int) -> tuple[Any, list[Any]]:
        """The arguments with `Slot`s for tensors and `Identity`s for objects, and the flat specs of a trace at ``level``."""
        tf = self._tf
        specs: list[Any] = []
        at = 0

        def leaf(value: Any) -> Any:
            nonlocal at
            start = at
            if isinstance(value, tf.__internal__.CompositeTensor) and not isinstance(value, (tf.Variable, tf.Tensor)):
                spec = relaxed_composite(tf, value)
                parts = tf.nest.flatten(spec, expand_composites=True)
                specs.extend(tf.TensorSpec(p.shape, p.dtype) for p in parts)
                at += len(parts)
                return Slot(start, len(parts), spec)
            if isinstance(value, tf.Tensor) or (_is_array(value) and not isinstance(value, tf.Variable)):
                tensor = call.tensors[at]
                specs.append(tf.TensorSpec(kept_dims(tensor.shape, level), tensor.dtype, name=f"arg{at}"))
                at += 1
                return Slot(start, 1, None)
            try:
                weakref.ref(value)
            except TypeError:
                return value
            return Identity(value)

        if self.fixed is not None:
            specs = [tf.TensorSpec(s.shape, s.dtype, name=f"arg{i}") for i, s in enumerate(self.fixed)]
            slots = iter(range(len(specs)))
            return tf.nest.map_structure(lambda v: None if v is None else Slot(next(slots), 1, None), call.bound), specs
        return tf.nest.map_structure(leaf, call.bound), specs

    def rebuild(self, skeleton: Any, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) of a trace."""
        tf = self._tf

        def leaf(value: Any) -> Any:
            if isinstance(value, Slot):
                if value.spec is None:
                    return tensors[value.start]
                parts = list(tensors[value.start : value.start + value.count])
                return tf.nest.pack_sequence_as(value.spec, parts, expand_composites=True)
            return value.get() if isinstance(value, Identity) else value

        return tf.nest.map_structure(leaf, skeleton)


def kept_dims(shape: Any, level: int) -> list[int | None]:
    """The static shape of a trace: see `LEVELS`."""
    rank = len(shape)
    if level == 0 or rank == 0:
        return [None] * rank
    if level == 1:
        return [*[None] * (rank - 1), shape[-1] if rank > 1 else None]
    return [None, *shape[1:]]


def statics(tensors: Sequence[Any], level: int) -> Hashable:
    """What of the shapes is part of the key at a level."""
    return tuple(tuple(kept_dims(t.shape, level)) for t in tensors) if level else None


def describe(call: Call, level: int) -> str:
    """For people: ``(float32[?,?], training=False)``."""
    parts = [_describe(a) for a in call.bound[0]] + [f"{k}={_describe(v)}" for k, v in sorted(call.bound[1].items())]
    return f"({', '.join(parts)})" + (f" with {('the last dims', 'all but the first dims')[level - 1]} fixed" if level else "")


def _describe(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        inner = ", ".join(_describe(v) for v in value)
        return f"({inner})" if isinstance(value, tuple) else f"[{inner}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_describe(v)}" for k, v in value.items()) + "}"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        name = getattr(value.dtype, "name", str(value.dtype))
        try:
            text = f"{name}[{','.join('?' * len(value.shape))}]"
        except (TypeError, ValueError):
            text = f"{name}[...]"
        return text if hasattr(value, "__array__") else f"{type(value).__name__} {text}"
    text = repr(value)
    return text if len(text) <= 40 else f"<{type(value).__name__}>"


def relaxed_composite(tf: Any, value: Any) -> Any:
    """The type of a composite tensor with all dims unknown. Raises `NotKeyed` for kinds without one."""
    rank = value.shape.rank
    if rank is not None:
        dims = [None] * rank
        if isinstance(value, tf.RaggedTensor):
            if value.flat_values.shape.rank is not None:
                return tf.RaggedTensorSpec(dims, value.dtype, value.ragged_rank, value.row_splits.dtype)
        elif isinstance(value, tf.SparseTensor):
            return tf.SparseTensorSpec(dims, value.dtype)
    raise NotKeyed(f"an argument of type {type(value).__name__} has no relaxed type")


def _plain_count(parameters: inspect.Signature | None) -> int:
    """Number of positional arguments of a call that needs no binding, -1 if there is none."""
    if parameters is None:
        return -1
    kinds = [p.kind for p in parameters.parameters.values()]
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len(kinds) if all(k in plain for k in kinds) else -1


def _children(tf: Any, value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [value[k] for k in sorted(value)]
    if isinstance(value, (list, tuple)):
        return list(value)
    return tf.nest.flatten(value)


def _is_array(value: Any) -> bool:
    """What TensorFlow takes as a tensor; not a variable of another library, which is an object."""
    return hasattr(value, "__array__") and not hasattr(value, "assign") and not isinstance(value, type)


def _tensor_token(tensor: Any, tensors: list[Any]) -> Hashable:
    rank = tensor.shape.rank
    if rank is None:
        raise NotKeyed("a tensor of unknown rank")
    tensors.append(tensor)
    return tensor.dtype.as_datatype_enum, rank


_PLAIN = frozenset({int, bool, str, bytes, complex, type(None), type(Ellipsis)})


def _value_token(value: Any) -> Hashable:
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind is float:
        return kind, value.hex()  # -0.0 is not 0.0, NaN is itself
    if isinstance(value, enum.Enum):
        return kind, value.name
    if isinstance(value, type) or (kind.__hash__ is not None and kind.__eq__ is not object.__eq__):
        try:
            hash(value)
        except TypeError:
            pass
        else:
            return kind, value
    try:
        return "object", Identity(value)
    except TypeError as e:
        raise NotKeyed(f"an argument of type {kind.__name__} can be neither hashed nor referred to weakly") from e
