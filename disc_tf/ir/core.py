"""Values, operations, blocks, functions and modules.

A small SSA graph. An ``Op`` owns its results and its regions; a region is one ``Block`` (single-block regions, as
StableHLO has). ``Value.uses`` is maintained by ``Op``; rewriting is done through ``replace_all_uses`` and ``Op.erase``.
Nothing here recurses over graph depth, only over region nesting.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from disc_tf.ir.dims import Dim
from disc_tf.ir.types import TensorType, Type

_ids = itertools.count()


class Value:
    """An SSA value: a block parameter or the result of an op. ``hint`` is a readable name for dumps."""

    __slots__ = ("hint", "index", "owner", "type", "uid", "uses")

    def __init__(self, type: Type, owner: Op | Block, index: int, hint: str = "") -> None:
        self.type = type
        self.owner = owner
        self.index = index
        self.hint = hint
        self.uid = next(_ids)
        #: users in order of insertion: (op, operand index)
        self.uses: dict[tuple[Op, int], None] = {}

    @property
    def tensor(self) -> TensorType:
        """The type as a tensor type; ``TypeError`` for a token."""
        if not isinstance(self.type, TensorType):
            raise TypeError(f"{self!r} is a token, not a tensor")
        return self.type

    @property
    def dims(self) -> tuple[Dim, ...]:
        return self.tensor.dims

    @property
    def dtype(self):
        return self.tensor.dtype

    @property
    def rank(self) -> int:
        return len(self.tensor.dims)

    @property
    def op(self) -> Op | None:
        """The defining op, or None for a block parameter."""
        return self.owner if isinstance(self.owner, Op) else None

    def users(self) -> list[Op]:
        """Distinct users in order."""
        return list(dict.fromkeys(op for op, _ in self.uses))

    def __repr__(self) -> str:
        return f"%{self.hint or self.uid}:{self.type}"


class Op:
    """An operation. ``loc`` names the TF nodes that it came from."""

    __slots__ = ("_operands", "attrs", "loc", "name", "parent", "regions", "results", "uid")

    def __init__(
        self,
        name: str,
        operands: Sequence[Value] = (),
        result_types: Sequence[Type] = (),
        attrs: Mapping[str, Any] | None = None,
        regions: Sequence[Block] = (),
        loc: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.uid = next(_ids)
        self._operands: list[Value] = []
        self.attrs: dict[str, Any] = dict(attrs or {})
        self.results = [Value(t, self, i) for i, t in enumerate(result_types)]
        self.regions = list(regions)
        for r in self.regions:
            r.parent_op = self
        self.loc = loc
        self.parent: Block | None = None
        self.set_operands(operands)

    @property
    def operands(self) -> tuple[Value, ...]:
        return tuple(self._operands)

    def set_operand(self, i: int, v: Value) -> None:
        del self._operands[i].uses[(self, i)]
        self._operands[i] = v
        v.uses[(self, i)] = None

    def set_operands(self, values: Sequence[Value]) -> None:
        for i, v in enumerate(self._operands):
            del v.uses[(self, i)]
        self._operands = list(values)
        for i, v in enumerate(self._operands):
            v.uses[(self, i)] = None

    @property
    def result(self) -> Value:
        """The only result; ``ValueError`` if there is not exactly one."""
        (r,) = self.results
        return r

    def erase(self) -> None:
        """Remove from its block and drop operand uses. The results must be unused."""
        for r in self.results:
            if r.uses:
                raise ValueError(f"cannot erase {self.name}: {r!r} is still used by {r.users()[0].name}")
        for region in self.regions:
            for op in reversed(region.ops):
                op.drop()
        self.drop()
        if self.parent is not None:
            self.parent.ops.remove(self)
            self.parent = None

    def drop(self) -> None:
        """Let go of all operands, those of the regions included; the op stays where it is (the caller rebuilds the list)."""
        for region in self.regions:
            for op in reversed(region.ops):
                op.drop()
        self.set_operands(())

    def __hash__(self) -> int:
        return self.uid

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return f"<{self.name} {', '.join(map(repr, self.results))}>"


class Block:
    """Parameters and a list of ops; the last op is a ``return``. The body of a function or of a region."""

    __slots__ = ("ops", "params", "parent_op")

    def __init__(self, param_types: Sequence[Type] = (), hints: Sequence[str] = ()) -> None:
        self.params = [Value(t, self, i, hints[i] if i < len(hints) else "") for i, t in enumerate(param_types)]
        self.ops: list[Op] = []
        self.parent_op: Op | None = None

    def append(self, op: Op) -> Op:
        op.parent = self
        self.ops.append(op)
        return op

    def insert_before(self, anchor: Op, op: Op) -> Op:
        op.parent = self
        self.ops.insert(self.ops.index(anchor), op)
        return op

    def add_param(self, type: Type, hint: str = "") -> Value:
        v = Value(type, self, len(self.params), hint)
        self.params.append(v)
        return v

    @property
    def terminator(self) -> Op:
        if not self.ops or self.ops[-1].name != "return":
            raise ValueError("block has no return")
        return self.ops[-1]

    @property
    def results(self) -> tuple[Value, ...]:
        return self.terminator.operands

    def set_ops(self, ops: Iterable[Op]) -> None:
        """Replace the op list (order only; ops must keep their uses valid)."""
        self.ops = list(ops)
        for op in self.ops:
            op.parent = self


@dataclasses.dataclass
class ArgInfo:
    """What a function parameter is.

    kind: ``const`` (a graph constant kept outside; ``digest`` is its content's sha256), ``variable`` (read from a
    variable: content may change between runs), ``host`` (small integers in host memory), ``device``, or made inside of the program:
    ``prepared`` (a result of "prepare"), ``kept`` (by an earlier segment).
    tensor: the TF tensor name that feeds it. ``value``: the constant's content when the compiler has it (never exported).
    """

    name: str
    kind: str = "device"
    digest: bytes = b""
    tensor: str = ""
    value: Any = None


class Function:
    """A function: a body block, per-parameter info, result names and the shape environment of its scope."""

    def __init__(self, name: str, body: Block | None = None, args: Sequence[ArgInfo] = ()) -> None:
        from disc_tf.ir.shape_env import ShapeEnv  # the environment's module needs Dim only; kept lazy for tests

        self.name = name
        self.body = body or Block()
        self.args = list(args)
        self.result_names: list[str] = []
        #: dims that would make shapes simpler if they were known to be at least 1 (the uniform body assumes them)
        self.wanted_positive: list[Dim] = []
        self.env = ShapeEnv()
        #: positions of parameters that are not there, and not used: this is one segment of a program
        self.absent: frozenset[int] = frozenset()

    def add_arg(self, type: TensorType, info: ArgInfo) -> Value:
        self.args.append(info)
        self.env.prefer(s for d in type.dims for s in d.symbols())
        return self.body.add_param(type, info.name)

    @property
    def params(self) -> list[Value]:
        return self.body.params

    @property
    def results(self) -> tuple[Value, ...]:
        return self.body.results

    def entry_symbols(self) -> set[str]:
        """The symbols of dims that are known where the function is entered: those of its arguments."""
        args = self.args or [ArgInfo("") for _ in self.params]
        there = [p for i, p in enumerate(self.params) if i not in self.absent and args[i].kind != "kept"]
        return {s for p in there if isinstance(p.type, TensorType) for d in p.dims for s in d.symbols()}


@dataclasses.dataclass
class Module:
    """A compilation unit: ``main`` and, after outlining, ``prepare``."""

    functions: dict[str, Function] = dataclasses.field(default_factory=dict)

    @property
    def main(self) -> Function:
        return self.functions["main"]

    def add(self, fn: Function) -> Function:
        self.functions[fn.name] = fn
        return fn


def replace_all_uses(old: Value, new: Value) -> None:
    """Make every user of ``old`` use ``new``."""
    if old is new:
        return
    for op, i in list(old.uses):
        op.set_operand(i, new)


def walk(block: Block) -> Iterator[Op]:
    """All ops of a block and of its nested regions, outer first."""
    for op in list(block.ops):
        yield op
        for region in op.regions:
            yield from walk(region)


def outer_values(block: Block) -> list[Value]:
    """The values defined outside of a region that it reads, in order of first use."""
    inside = set(block.params)
    for op in walk(block):
        inside.update(op.results)
        for region in op.regions:
            inside.update(region.params)
    return list(dict.fromkeys(v for op in walk(block) for v in op.operands if v not in inside))


#: monoid of a reduce/reduce_window/scatter region by the name of its single combining op
_MONOID_OPS = {"add": "add", "multiply": "mul", "maximum": "max", "minimum": "min", "and": "and", "or": "or"}


def reduce_kind(op: Op) -> str | None:
    """The monoid of a ``reduce``: ``add mul max min and or``, ``argmax``/``argmin`` (attr ``arg``), else None."""
    if "arg" in op.attrs:
        return op.attrs["arg"]
    region = op.regions[0]
    if len(region.ops) != 2 or len(region.params) != 2:
        return None
    combine, ret = region.ops
    if combine.name not in _MONOID_OPS or ret.operands != (combine.result,):
        return None
    return _MONOID_OPS[combine.name] if set(combine.operands) == set(region.params) else None


def may_fail(op: Op) -> bool:
    """Whether the op, or one inside of its regions, is a check."""
    return op.name == "disc.check" or any(inner.name == "disc.check" for r in op.regions for inner in walk(r))


def clone_op(
    op: Op,
    mapping: dict[Value, Value],
    retype: Callable[[Type], Type] = lambda t: t,
    remap_attr: Callable[[str, Any], Any] = lambda _k, v: v,
) -> Op:
    """A deep copy that stands nowhere yet. ``mapping`` gives the new values of operands and is extended with the results."""
    copy = Op(
        op.name,
        [mapping.get(v, v) for v in op.operands],
        [retype(r.type) for r in op.results],
        {k: remap_attr(k, v) for k, v in op.attrs.items()},
        [clone_block(r, mapping, retype, remap_attr) for r in op.regions],
        op.loc,
    )
    for a, b in zip(op.results, copy.results, strict=True):
        b.hint = a.hint
        mapping[a] = b
    return copy


def clone_block(
    block: Block,
    mapping: dict[Value, Value],
    retype: Callable[[Type], Type] = lambda t: t,
    remap_attr: Callable[[str, Any], Any] = lambda _k, v: v,
) -> Block:
    """A deep copy. ``mapping`` gives the new values of outer ones and is extended with every value of the block."""
    new = Block([retype(p.type) for p in block.params], [p.hint for p in block.params])
    for old, p in zip(block.params, new.params, strict=True):
        mapping[old] = p
    for op in block.ops:
        new.append(clone_op(op, mapping, retype, remap_attr))
    return new
