"""`OpDef`: everything the compiler knows about one op, and the registry `OPS`.

An op's definition holds its arity, attributes, type inference, verifier and numpy reference.  Inference takes operand
*types* (and, for ops whose result type is a choice of the creator such as `reshape` and `convert`, that type), so that it serves
the builder, the parser and the verifier alike.  The verifier runs inference again and compares.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from disc_tf.ir.core import Block, Op
from disc_tf.ir.dims import Dim
from disc_tf.ir.shape_env import ShapeEnv
from disc_tf.ir.types import TOKEN, DType, TensorType, TokenType, Type


class IRError(ValueError):
    """Ill-formed IR: the message names the op and what is wrong."""


class EvalContext(Protocol):
    """What a numpy reference may ask of the interpreter."""

    def dim(self, dim: Dim) -> int:
        """The value of a dim under the symbols bound so far."""
        ...

    def bind(self, symbol: str, value: int) -> None:
        """Give a symbol its value."""
        ...

    def run(self, block: Block, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Evaluate a region."""
        ...


#: attribute types: value -> is it well-typed
_ATTR_CHECKS: dict[str, Callable[[Any], bool]] = {
    "int": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "bool": lambda v: isinstance(v, bool),
    "str": lambda v: isinstance(v, str),
    "ints": lambda v: isinstance(v, tuple) and all(isinstance(x, int) and not isinstance(x, bool) for x in v),
    "dim": lambda v: isinstance(v, Dim),
    "dims": lambda v: isinstance(v, tuple) and all(isinstance(x, Dim) for x in v),
    "array": lambda v: isinstance(v, np.ndarray),
}


@dataclasses.dataclass(frozen=True)
class Attr:
    """An attribute: `type` is one of int, bool, str, ints, dim, dims, array; `choices` restricts a str; a `default` makes it optional."""

    type: str
    choices: tuple[str, ...] = ()
    default: Any = dataclasses.field(default_factory=lambda: REQUIRED)

    def problem(self, value: Any) -> str | None:
        if not _ATTR_CHECKS[self.type](value):
            return f"must be of type {self.type}, is {value!r}"
        if self.choices and value not in self.choices:
            return f"must be one of {', '.join(self.choices)}, is {value!r}"
        return None


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()

InferFn = Callable[["InferInput"], list[Type]]
ReferenceFn = Callable[[Op, Sequence[Any], EvalContext], Sequence[Any]]


@dataclasses.dataclass(frozen=True)
class InferInput:
    """The arguments of type inference. `result` is the creator's choice where the op has one."""

    name: str
    types: tuple[Type, ...]
    attrs: Mapping[str, Any]
    regions: Sequence[Block]
    result: Sequence[Type] | None
    env: ShapeEnv | None = None

    def fail(self, message: str) -> IRError:
        operands = ", ".join(map(str, self.types))
        return IRError(f"{self.name}({operands}): {message}")

    def tensor(self, i: int) -> TensorType:
        t = self.types[i]
        if not isinstance(t, TensorType):
            raise self.fail(f"operand {i} must be a tensor")
        return t

    def tensors(self) -> list[TensorType]:
        return [self.tensor(i) for i in range(len(self.types))]

    def scalar(self, i: int, kinds: str = "iu") -> TensorType:
        t = self.tensor(i)
        if t.rank or t.dtype.kind not in kinds:
            raise self.fail(f"operand {i} must be a scalar of kind {kinds!r}")
        return t

    def chosen(self) -> TensorType:
        if self.result is None or len(self.result) != 1 or not isinstance(self.result[0], TensorType):
            raise self.fail("the result type must be given")
        return self.result[0]

    def differ(self, a: Dim, b: Dim) -> bool:
        """Whether two dims are known to differ (by the environment, when there is one)."""
        if a == b:
            return False
        if self.env is not None:
            return self.env.is_equal(a, b) is False
        return (a - b).is_static

    def merge(self, *shapes: Sequence[Dim]) -> tuple[Dim, ...]:
        """The common shape of operands whose shapes must be equal; static dims win. Unprovable equality is allowed."""
        first = shapes[0]
        if all(s == first for s in shapes[1:]):
            return tuple(first)
        if any(len(s) != len(first) for s in shapes):
            raise self.fail("operands must have the same rank")
        out = []
        for i, column in enumerate(zip(*shapes, strict=True)):
            best = next((d for d in column if d.is_static), column[0])
            for d in column:
                if self.differ(d, best):
                    raise self.fail(f"dimension {i} differs: {d} against {best}")
            out.append(best)
        return tuple(out)

    def same_dtype(self, types: Sequence[TensorType]) -> DType:
        dtype = types[0].dtype
        for t in types[1:]:
            if t.dtype != dtype:
                raise self.fail(f"operands must have the same dtype, not {dtype} and {t.dtype}")
        return dtype

    def axis(self, value: int, rank: int, what: str = "dimension") -> int:
        if not 0 <= value < rank:
            raise self.fail(f"{what} {value} is out of range for rank {rank}")
        return value

    def axes(self, values: Sequence[int], rank: int, what: str, *, ordered: bool = False) -> tuple[int, ...]:
        for v in values:
            self.axis(v, rank, what)
        if len(set(values)) != len(values):
            raise self.fail(f"{what} {tuple(values)} repeats a dimension")
        if ordered and list(values) != sorted(values):
            raise self.fail(f"{what} {tuple(values)} must be ascending")
        return tuple(values)


@dataclasses.dataclass(frozen=True)
class OpDef:
    """The definition of an op.

    arity: the number of operands, None if it varies. regions: the number of regions, None if it varies.
    infer: result types from `InferInput`; raises IRError for illegal operands or attributes.
    reference: `(op, inputs, ctx) -> outputs` on numpy arrays of the exact dtypes (tokens are None).
    elementwise: result element i depends on operand elements i only (scalar `select` predicates and `clamp` bounds aside).
    effect: must not be removed, duplicated or reordered against others of its kind.
    stablehlo: the StableHLO or chlo op it is exported as, None for an export by decomposition.
    """

    name: str
    arity: int | None
    infer: InferFn
    reference: ReferenceFn
    attrs: Mapping[str, Attr] = dataclasses.field(default_factory=dict)
    regions: int | None = 0
    elementwise: bool = False
    effect: bool = False
    typed: bool = False  # the creator chooses the result type
    stablehlo: str | None = None

    def attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """`given` checked and completed by defaults. Raises IRError."""
        for key in given:
            if key not in self.attrs:
                known = ", ".join(self.attrs) or "none"
                raise IRError(f"{self.name}: unknown attribute {key!r} (known: {known})")
        out: dict[str, Any] = {}
        for key, spec in self.attrs.items():
            value = given.get(key, spec.default)
            if value is REQUIRED:
                raise IRError(f"{self.name}: attribute {key!r} is missing")
            if value is None and spec.default is None:
                continue
            problem = spec.problem(value)
            if problem:
                raise IRError(f"{self.name}: attribute {key!r} {problem}")
            out[key] = value
        return out

    def infer_types(
        self,
        types: Sequence[Type],
        attrs: Mapping[str, Any],
        regions: Sequence[Block] = (),
        result: Sequence[Type] | None = None,
        env: ShapeEnv | None = None,
    ) -> list[Type]:
        """Result types. `result` is needed where `typed`. Raises IRError."""
        if self.arity is not None and len(types) != self.arity:
            raise IRError(f"{self.name}: takes {self.arity} operands, not {len(types)}")
        if self.regions is not None and len(regions) != self.regions:
            raise IRError(f"{self.name}: takes {self.regions} regions, not {len(regions)}")
        return self.infer(InferInput(self.name, tuple(types), attrs, regions, result, env))

    def verify(self, op: Op, env: ShapeEnv | None = None) -> None:
        """Check attributes, operands and result types of `op`. Raises IRError."""
        attrs = self.attributes(op.attrs)
        given = [r.type for r in op.results]
        inferred = self.infer_types(
            [v.type for v in op.operands], attrs, op.regions, given if self.typed else None, env
        )
        if len(given) != len(inferred):
            raise IRError(f"{self.name}: has {len(given)} results, should have {len(inferred)}")
        for i, (have, want) in enumerate(zip(given, inferred, strict=True)):
            if not compatible(have, want, env):
                raise IRError(f"{self.name}: result {i} has type {have}, should have {want}")


def compatible(a: Type, b: Type, env: ShapeEnv | None = None) -> bool:
    """Whether a value of type `a` may stand where `b` is wanted: same dtype and rank, no dims known to differ."""
    if isinstance(a, TokenType) or isinstance(b, TokenType):
        return a == b
    if a.dtype != b.dtype or a.rank != b.rank:
        return False
    for x, y in zip(a.dims, b.dims, strict=True):
        if x == y:
            continue
        if env is not None:
            if env.is_equal(x, y) is False:
                return False
        elif (x - y).is_static:
            return False
    return True


OPS: dict[str, OpDef] = {}


def register(definition: OpDef) -> OpDef:
    """Add a definition to `OPS`; a name may be defined once."""
    if definition.name in OPS:
        raise ValueError(f"op {definition.name} is defined twice")
    OPS[definition.name] = definition
    return definition


def op_def(name: str) -> OpDef:
    """The definition of an op name. Raises IRError for an unknown one."""
    found = OPS.get(name)
    if found is None:
        raise IRError(f"unknown op {name!r}")
    return found


__all__ = [
    "OPS",
    "REQUIRED",
    "TOKEN",
    "Attr",
    "EvalContext",
    "IRError",
    "InferInput",
    "OpDef",
    "compatible",
    "op_def",
    "register",
]
