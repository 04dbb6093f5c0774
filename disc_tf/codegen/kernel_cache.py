"""Equal fusions are emitted once: a model of twelve equal layers costs one layer of emission a target.

Two fusions are equal if an emitter cannot tell them apart. What an emitter sees is the fusion itself (kind, ops with
attributes and wiring, types, views, regions, order of inputs and outputs), what its inputs are (a parameter, a known
splat), and the answers of the shape environment. The first two make the *key*: values are numbered in order of first use,
everything else enters as it is, dims included (equal layers share their symbols; a renaming would change the order of
terms, and with it the code). The answers are *replayed*: every question that the emitter asked is noted, and in another
environment the code is taken only if each has the same answer there. What the emitter cannot see (names of nodes, uses
outside) does not enter. Anything that has no place in a key makes the fusion one that is always emitted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu.monoids import known_splat
from disc_tf.codegen.kernel import Kernel, LibraryCall, Temp, Variant
from disc_tf.fusion.conv import Bands
from disc_tf.fusion.types import Fusion, GatherRead, PrepareEntry, Region
from disc_tf.fusion.views import Axis, View
from disc_tf.ir.core import Block, Op, Value
from disc_tf.ir.dims import Dim, DimLike
from disc_tf.ir.shape_bounds import Interval
from disc_tf.ir.shape_env import ShapeEnv
from disc_tf.ir.types import DType, TensorType

Emit = Callable[[Fusion, EmitContext], list[Variant]]

#: constants of more elements have no place in a key (no emitter inlines them)
_MAX_CONSTANT = 4096


class CacheMismatch(RuntimeError):
    """Emitting a fusion again gave other code than the cache: a defect of the key (verification only)."""


class _NoKey(Exception):
    """Something in the fusion has no place in a key."""


class AskedEnv(ShapeEnv):
    """Passes questions on to an environment and notes them with their answers. It has no facts of its own, and learns none."""

    def __init__(self, env: ShapeEnv) -> None:  # the state of a ShapeEnv is left out on purpose: nothing may be asked around the notes
        self._env = env
        self.asked: dict[tuple[str, tuple[Any, ...]], Any] = {}

    def _ask(self, question: str, *args: Any) -> Any:
        note = (question, args)
        if note not in self.asked:
            self.asked[note] = getattr(self._env, question)(*args)
        return self.asked[note]

    def is_equal(self, a: DimLike, b: DimLike) -> bool | None:
        return self._ask("is_equal", Dim.of(a), Dim.of(b))

    def divides(self, divisor: DimLike, dim: DimLike) -> bool | None:
        return self._ask("divides", Dim.of(divisor), Dim.of(dim))

    def is_nonneg(self, dim: DimLike) -> bool | None:
        return self._ask("is_nonneg", Dim.of(dim))

    def is_positive(self, dim: DimLike) -> bool:
        return self._ask("is_positive", Dim.of(dim))

    def low_bound(self, dim: Dim) -> int | None:
        return self._ask("low_bound", dim)

    def at_least(self, a: Dim, b: Dim) -> bool:
        return self._ask("at_least", a, b)

    def bounds(self, dim: DimLike) -> Interval:
        return self._ask("bounds", Dim.of(dim))

    def same_elements(self, a: Sequence[DimLike], b: Sequence[DimLike]) -> bool | None:
        return self._ask("same_elements", tuple(map(Dim.of, a)), tuple(map(Dim.of, b)))

    def likely(self, dim: DimLike) -> tuple[int, ...]:
        return self._ask("likely", Dim.of(dim))

    def representative(self, symbol: str) -> Dim:
        return self._ask("representative", symbol)

    def simplify(self, dim: DimLike) -> Dim:
        return self._ask("simplify", Dim.of(dim))


@dataclasses.dataclass
class _AskedContext(EmitContext):
    """An `EmitContext` that notes which prepared entries were asked for, in order."""

    requests: list[tuple[View, tuple, PrepareEntry]] = dataclasses.field(default_factory=list)

    def prepared(self, view: View, layout: tuple) -> PrepareEntry:
        entry = super().prepared(view, layout)
        self.requests.append((view, layout, entry))
        return entry


class _Key:
    """The key of one fusion, and its values by number."""

    def __init__(self, fusion: Fusion, ctx: EmitContext) -> None:
        self.ctx = ctx
        self.numbers: dict[Value, int] = {}
        self.values: list[Value] = []
        self._ops: dict[Op, int] = {}
        inside = {r for op in fusion.ops for r in op.results}
        inputs = [self._input(v) for v in fusion.inputs if v not in inside]
        ops = [self._op(op) for op in fusion.ops]
        self.key = (
            fusion.kind, tuple(inputs), tuple(ops), self._item(fusion.inputs), self._item(fusion.outputs), self._item(fusion.attrs)
        )

    def _number(self, v: Value) -> int:
        self.numbers[v] = len(self.values)
        self.values.append(v)
        return self.numbers[v]

    def _input(self, v: Value) -> tuple:
        """A value made outside: what emitters may ask about where it comes from."""
        splat = known_splat(v) if v.op is not None and v.type is not None else None
        return (self._number(v), v.type, v in self.ctx.params, v.op is None, _scalar(splat))

    def _value(self, v: Value) -> Any:
        if v in self.numbers:
            return self.numbers[v]
        return self._input(v)

    def _op(self, op: Op) -> tuple:
        operands = tuple(self._value(v) for v in op.operands)
        self._ops[op] = len(self._ops)
        regions = tuple(self._block(r) for r in op.regions)
        results = tuple((self._number(r), r.type) for r in op.results)
        return (op.name, operands, regions, results, self._item(op.attrs))

    def _block(self, block: Block) -> tuple:
        params = tuple((self._number(p), p.type, not p.uses) for p in block.params)
        return (params, tuple(self._op(op) for op in block.ops))

    def _item(self, x: Any) -> Any:
        """An attribute. Classes are in the key: True is not 1, nor -0.0 0.0."""
        if isinstance(x, Value):
            return ("value", self._value(x))
        if isinstance(x, (Dim, str, TensorType, DType)) or x is None:
            return x
        if isinstance(x, (bool, int, float, complex, np.generic)):
            return _scalar(x)
        if isinstance(x, (tuple, list)):
            return (type(x).__name__, *map(self._item, x))
        if isinstance(x, dict):
            return ("dict", *((self._item(k), self._item(v)) for k, v in x.items()))
        if isinstance(x, np.ndarray):
            return _array(x)
        if isinstance(x, Op):
            return ("op", self._ops[x]) if x in self._ops else ("outer", self._op(x))
        if isinstance(x, (View, Axis, Region, GatherRead, Bands)):
            return (type(x).__name__, *(self._item(getattr(x, f.name)) for f in dataclasses.fields(x)))
        raise _NoKey(type(x).__name__)


def _scalar(x: Any) -> tuple:
    return (type(x).__name__, repr(x))


def _array(x: np.ndarray) -> tuple:
    if x.size and not any(x.strides):
        x_bytes = x.reshape(-1)[:1].tobytes()
    elif x.size <= _MAX_CONSTANT:
        x_bytes = x.tobytes()
    else:
        raise _NoKey("large constant")
    return ("array", x.dtype.str, x.shape, not any(x.strides), x_bytes)


def structure_of(fusion: Fusion, ctx: EmitContext) -> tuple | None:
    """The key of a fusion; None if something in it has no place in a key."""
    try:
        key = _Key(fusion, ctx).key
        hash(key)
    except (_NoKey, TypeError):
        return None
    return key


@dataclasses.dataclass
class _Known:
    """An emitted fusion: the environment and the answers that its code holds for."""

    env: ShapeEnv
    asked: dict[tuple[str, tuple[Any, ...]], Any]
    requests: list[tuple[View, tuple, PrepareEntry]]
    numbers: dict[Value, int]
    variants: list[Variant]

    def holds_in(self, env: ShapeEnv) -> bool:
        if env is self.env:
            return True
        return all(getattr(env, question)(*args) == answer for (question, args), answer in self.asked.items())


class KernelCache:
    """The emitted fusions of one target.

    verify: emit on a hit too, and compare everything that the program builder uses. hits, misses: counts.
    """

    def __init__(self, verify: bool = False) -> None:
        self.verify = verify
        self.hits = 0
        self.misses = 0
        self._known: dict[tuple, list[_Known]] = {}

    def variants(self, fusion: Fusion, ctx: EmitContext, emit: Emit) -> list[Variant]:
        """``emit(fusion, ctx)``, or what it gave for an equal fusion with this one's values in the place of the other's.

        Raises `CacheMismatch` when verifying.
        """
        try:
            found = _Key(fusion, ctx)
            known = next((k for k in self._known.get(found.key, ()) if k.holds_in(ctx.env)), None)
        except (_NoKey, TypeError):  # TypeError: not hashable
            self.misses += 1
            return emit(fusion, ctx)
        if known is not None:
            self.hits += 1
            out = _mapped(known, found, ctx)
            if self.verify:
                _compare(fusion, out, emit(fusion, ctx))
            return out
        self.misses += 1
        env = AskedEnv(ctx.env)
        asked = _AskedContext(ctx.target, env, ctx.params, ctx.prepare)
        variants = emit(fusion, asked)
        entry = _Known(ctx.env, env.asked, asked.requests, found.numbers, variants)
        if _mappable(entry):
            self._known.setdefault(found.key, []).append(entry)
        return variants


def _mappable(known: _Known) -> bool:
    """Whether all that the kernels refer to is named in the key."""
    entries = {id(entry) for _, _, entry in known.requests}
    if any(view.source not in known.numbers for view, _, _ in known.requests):
        return False
    for variant in known.variants:
        for k in variant.kernels:
            for b in k.buffers:
                if isinstance(b, Value) and b not in known.numbers:
                    return False
                if isinstance(b, PrepareEntry) and id(b) not in entries:
                    return False
    return True


def _mapped(known: _Known, found: _Key, ctx: EmitContext) -> list[Variant]:
    entries: dict[int, PrepareEntry] = {}
    for view, layout, entry in known.requests:
        assert view.source is not None
        source = found.values[known.numbers[view.source]]
        entries[id(entry)] = ctx.prepared(dataclasses.replace(view, source=source), layout)
    temps: dict[Temp, Temp] = {}

    def buffer(b: Value | Temp | PrepareEntry) -> Value | Temp | PrepareEntry:
        if isinstance(b, Value):
            return found.values[known.numbers[b]]
        if isinstance(b, Temp):
            return temps.setdefault(b, Temp(b.name, b.bytes))
        return entries[id(b)]

    def kernel(k: Kernel | LibraryCall) -> Kernel | LibraryCall:
        return dataclasses.replace(k, buffers=tuple(map(buffer, k.buffers)))

    return [Variant(v.guard, tuple(map(kernel, v.kernels))) for v in known.variants]


def _compare(fusion: Fusion, ours: Sequence[Variant], again: Sequence[Variant]) -> None:
    if _plain(ours) != _plain(again):
        raise CacheMismatch(f"the kernel cache and the emitter disagree on {fusion.name} ({', '.join(fusion.nodes[:5])})")


def _plain(variants: Sequence[Variant]) -> list[Any]:
    """Everything in variants, with temporaries by name and size."""
    temps: dict[Temp, int] = {}

    def buffer(b: Value | Temp | PrepareEntry) -> Any:
        return (temps.setdefault(b, len(temps)), b.name, b.bytes) if isinstance(b, Temp) else b

    out: list[Any] = []
    for v in variants:
        for k in v.kernels:
            fields = {f.name: getattr(k, f.name) for f in dataclasses.fields(k)}
            fields["buffers"] = tuple(map(buffer, k.buffers))
            out.append((type(k).__name__, fields))
        out.append(v.guard)
    return out
