"""What the fusion plan hands to buffer assignment and code generation.

The kinds of `Fusion` and what each guarantees are in docs/architecture.md, section 4.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from disc_tf.fusion.views import View
from disc_tf.ir.core import Function, Op, Value
from disc_tf.ir.dims import Dim

KINDS = ("loop", "rows", "reduce", "gemm", "conv", "attention", "library", "while", "case", "update", "view", "constant", "host")


@dataclasses.dataclass(eq=False)
class Region:
    """Pointwise ops (and, for rows, reductions of the minor axes) over one iteration space, all data accesses resolved.

    space: extents of the iteration axes, outermost first. The last ``inner`` axes are those that reductions run over (0: none).
    ops: only computation, in order: elementwise ops and ``reduce``. Each yields one value per point of the space, or one
    per row where ``level[value] == "row"`` (results of a reduce and whatever is computed from row values alone).
    reads: values that are not computed here -> where they lie, a `View` whose axes are those of ``space`` (stride 0 where the
    value does not depend on an axis). ``View.source`` is an input of the fusion.
    iotas: values that are an affine function of the indices: a `View` without source; its "address" is the value.
    gathers: values that are rows of a table picked by an index (see `GatherRead`).
    scalars: rank-0 ops in order (splat constants, ``disc.dim``, arithmetic on these) whose results are the same at every point.
    alias: values that are others under another shape (reshape, transpose, broadcast of a row value) -> the computed value, the
    read, the scalar, or the seed (the gemm's or attention's product) that they equal point by point. Never chains: resolve once.
    A splat constant of rank > 0 is a scalar too (its one content).
    writes: outputs with the place of each point (``View.source`` is the output itself, row-major).
    """

    space: tuple[Dim, ...]
    inner: int = 0
    ops: list[Op] = dataclasses.field(default_factory=list)
    scalars: list[Op] = dataclasses.field(default_factory=list)
    level: dict[Value, str] = dataclasses.field(default_factory=dict)
    reads: dict[Value, View] = dataclasses.field(default_factory=dict)
    iotas: dict[Value, View] = dataclasses.field(default_factory=dict)
    gathers: dict[Value, GatherRead] = dataclasses.field(default_factory=dict)
    alias: dict[Value, Value] = dataclasses.field(default_factory=dict)
    writes: list[tuple[Value, View]] = dataclasses.field(default_factory=list)

    def resolve(self, v: Value) -> Value:
        """The value that ``v`` equals point by point: a read, an iota, a gather, the seed or the result of one of ``ops``."""
        return self.alias.get(v, v)


@dataclasses.dataclass(frozen=True, eq=False)
class GatherRead:
    """``table[clamp(index), ...]``: one row of a table per value of the index (an embedding lookup).

    table: a view over (rows, then the space's axes; stride 0 for axes that only pick the row), so its axes number one more than
    the space's. index: the value that holds the row numbers: resolve it in the region as any operand (row level, integer). limit: number
    of rows; StableHLO clamps the index to ``[0, limit - 1]`` (an earlier check has raised where TF raises). op: the gather, which also
    stands in ``Region.ops``.
    """

    op: Op
    table: View
    index: Value
    limit: Dim


@dataclasses.dataclass(eq=False)
class Fusion:
    """A group of ops that becomes one kernel (or a view, a constant, or host code).

    kind: one of `KINDS`. ops: in program order; cheap producers (broadcast, iota, splat constant, reshape ...) may be in several
    fusions. inputs: values made outside, in order of first use. outputs: values used outside the group (or returned), in program order.
    attrs, by kind (docs/architecture.md has the details):
      loop: ``space`` (dims of the iteration, its element count is that of every output).
      rows: ``region`` (`Region`, or absent where an access is not affine), ``outer``, ``inner`` (dims).
      reduce: ``reduce`` (the op), ``outer``, ``inner``.
      gemm: ``dot``, ``axes`` = (batch, m, n, k) numbers of axes, ``lhs`` (`View` over batch+m+k), ``rhs`` (`View` over batch+k+n),
        ``region`` over batch+m+n with the seed ``dot.result``; ``pack``: operand "rhs"/"lhs" that is constant, or None.
      conv: ``conv``, ``lhs`` (`View` over batch, spatial..., channels; the last stride is 1), ``rhs`` (`View` over spatial..., channels,
        features), ``region`` over the result's dims with the seed ``conv.result``; ``pack`` as for gemm; perhaps ``before``: attrs of
        a gemm whose result is the data and has no buffer, with ``bands`` (`fusion.conv.Bands`).
      attention: ``qk``, ``pv``, ``q`` (batch+m+d), ``k`` (batch+n+d), ``v`` (batch+n+dv) views, ``score`` (`Region` over batch+m+n with
        ``inner`` 1, seed ``qk.result``), ``probs`` (the resolved value that multiplies v), ``region`` over batch+m+dv, seed ``pv.result``.
      view: ``view`` (`View` of the input, contiguous, that the output aliases).
      library: ``call`` (the op).
      while, case: ``call`` (the op), ``regions``: `RegionFunction` and `Plan` of each region; ``beside``: the loop may run at the same
        time as the one before it (`side_by_side`). update: an update in place (`outline`).
    """

    kind: str
    ops: list[Op]
    inputs: list[Value]
    outputs: list[Value]
    attrs: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Original TF node names, in order, without repeats."""
        return tuple(dict.fromkeys(n for op in self.ops for n in op.loc))

    @property
    def name(self) -> str:
        """A readable name made of the kind and the ops that do the work."""
        work = [op.name for op in self.ops if op.name not in _QUIET] or [op.name for op in self.ops]
        short = list(dict.fromkeys(n.removeprefix("disc.") for n in work))
        return "_".join([self.kind, *short[:5]])


_QUIET = {"constant", "broadcast_in_dim", "reshape", "transpose", "slice", "iota", "convert", "return"}


@dataclasses.dataclass(eq=False)
class PrepareEntry:
    """One entry of the prepared constants: what ``disc_api.prepared(index)`` gives to kernels.

    index: position in the artefact's table. view: where the content comes from: ``View.source`` is a parameter of kind ``const`` or
    ``variable`` of "main", or a parameter of kind ``prepared`` (the result of function "prepare" with the same position among
    the prepared parameters). layout: ``("plain",)``, row-major over the view's axes, or ``("panel", NR)``: axes (k, n) cut into ceil(n /
    NR) panels of k x NR, zero filled; or ``("words", NR, G)``: such panels of words of 32 bits, each with G elements of successive k. A
    prepared parameter that only feeds panel entries is temporary: it gets no plain entry.
    """

    index: int
    view: View
    layout: tuple[str] | tuple[str, int] | tuple[str, int, int] = ("plain",)


@dataclasses.dataclass(eq=False)
class Plan:
    """The fusions of a function in execution order."""

    function: Function
    fusions: list[Fusion]

    def kernels(self) -> list[Fusion]:
        """The fusions that launch code (all but views, constants and host code)."""
        return [f for f in self.fusions if f.kind not in ("view", "constant", "host")]

    def __iter__(self) -> Iterator[Fusion]:
        return iter(self.fusions)

    def describe(self) -> str:
        """One line per fusion: kind, name, outputs, inputs, original nodes."""
        lines = []
        for i, f in enumerate(self.fusions):
            outs = ", ".join(map(repr, f.outputs))
            ins = ", ".join(f"%{v.hint or v.uid}" for v in f.inputs)
            nodes = ", ".join(f.nodes[:6]) + (f", ... ({len(f.nodes)})" if len(f.nodes) > 6 else "")
            lines.append(f"{i:4d} {f.kind:9s} {f.name} ({ins}) -> {outs}  ops={len(f.ops)}" + (f"  [{nodes}]" if nodes else ""))
        return "\n".join(lines)
