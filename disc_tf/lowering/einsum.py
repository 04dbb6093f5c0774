"""Einsum of one or two operands: diagonals, sums, broadcast ellipsis, then one ``dot_general`` (or a product) and a transpose."""

from __future__ import annotations

import dataclasses
import string

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import convert, widen
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import NUMBERS, lowering

#: labels of ellipsis dims, from the right: dim -1 of the ellipsis is ``~0``
_ELLIPSIS = "~"


@dataclasses.dataclass
class Term:
    """An operand and the label of each of its dims."""

    value: Value
    labels: list[str]

    def dim(self, label: str) -> Dim:
        return self.value.dims[self.labels.index(label)]


def parse_equation(equation: str, ranks: list[int]) -> tuple[list[list[str]], list[str]]:
    """Labels of every operand and of the result. Raises ``Unsupported(INVALID)`` for what TF rejects."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    if not arrow:
        raise Unsupported("INVALID", f"Expecting exactly one '->' in einsum equation: {equation}")
    parts = left.split(",")
    if len(parts) != len(ranks):
        raise Unsupported("INVALID", f"Expected {len(ranks)} inputs in equation {equation} but got {len(parts)}")
    spread = 0
    for part, rank in zip(parts, ranks, strict=True):
        named = len(part.replace("...", ""))
        if ("..." in part and rank < named) or ("..." not in part and rank != named):
            raise Unsupported("INVALID", f"equation {equation} does not fit an operand of rank {rank}")
        if "..." in part:
            spread = max(spread, rank - named)
    inputs = [_labels(part, rank - len(part.replace("...", "")), equation) for part, rank in zip(parts, ranks, strict=True)]
    output = _labels(right, spread if "..." in right else 0, equation)
    if spread and "..." not in right:
        raise Unsupported("INVALID", f"equation {equation}: the result lacks the ellipsis of the operands")
    known = {label for labels in inputs for label in labels}
    for label in output:
        if label not in known:
            raise Unsupported("INVALID", f"Einsum output subscripts {right} has label {label!r} of no operand")
    return inputs, output


def _labels(text: str, ellipsis: int, equation: str) -> list[str]:
    before, dots, after = text.partition("...")
    for c in before + after:
        if c not in string.ascii_letters:
            raise Unsupported("INVALID", f"Subscripts must be letters, got {c!r} in equation {equation}")
    middle = [f"{_ELLIPSIS}{i}" for i in range(ellipsis - 1, -1, -1)] if dots else []
    return [*before, *middle, *after]


@lowering("Einsum", "_MklEinsum", dtypes=NUMBERS, limits="one or two operands (as TF's kernel)")
def einsum(ctx: LoweringContext, node: NodeView, *args: Value) -> Value:
    """Named labels must have equal extents (checked); ellipsis dims broadcast. 16-bit floats accumulate in f32."""
    if len(args) not in (1, 2):
        raise Unsupported("INVALID", f"Einsum of {len(args)} operands")
    equation = str(node.attr("equation"))
    inputs, output = parse_equation(equation, [a.rank for a in args])
    terms = [Term(a, labels) for a, labels in zip(args, inputs, strict=True)]
    _check_labels(ctx, terms, equation)
    wanted = list(dict.fromkeys(output))
    for i, term in enumerate(terms):
        others = {label for j, t in enumerate(terms) if j != i for label in t.labels}
        terms[i] = _sum_out(ctx, _diagonal(ctx, term), {*wanted, *others})
    dtype = args[0].dtype
    result = _contract(ctx, terms[0], terms[1], wanted) if len(terms) == 2 else terms[0]
    order = [result.labels.index(label) for label in wanted]
    moved = Term(ctx.b.transpose(result.value, order), wanted)
    return convert(ctx, _inflate(ctx, moved, output).value, dtype)


def _check_labels(ctx: LoweringContext, terms: list[Term], equation: str) -> None:
    seen: dict[str, Dim] = {}
    for term in terms:
        for label, d in zip(term.labels, term.value.dims, strict=True):
            if label.startswith(_ELLIPSIS):
                continue
            if label in seen:
                message = f"Expected dimension {plain(seen[label])} for label {label!r} of {equation} but got dimension {plain(d)}"
                ctx.check_dims_eq(seen[label], d, message=message)
            else:
                seen[label] = d


def _equal_positions(ctx: LoweringContext, dims: tuple[Dim, ...], first: int, second: int) -> Value:
    """True where the indices along two dims are the same."""
    return ctx.b.compare(ctx.b.iota(DType.I64, dims, first), ctx.b.iota(DType.I64, dims, second), "EQ")


def _diagonal(ctx: LoweringContext, term: Term) -> Term:
    """Keep the elements whose indices under a repeated label agree, and the label once."""
    value, labels = term.value, list(term.labels)
    at = 0
    while at < len(labels):
        later = next((j for j in range(at + 1, len(labels)) if labels[j] == labels[at]), None)
        if later is None:
            at += 1
            continue
        # both dims are equal (checked); give them one name so that the mask is square
        dims = list(value.dims)
        dims[later] = dims[at]
        value = ctx.cast_dims(value, dims)
        masked = ctx.b.select(_equal_positions(ctx, value.dims, at, later), value, ctx.splat(0, value))
        value = ctx.reduce(masked, [later], "add")
        del labels[later]
    return Term(value, labels)


def _sum_out(ctx: LoweringContext, term: Term, needed: set[str]) -> Term:
    """Sum over the labels that nothing else uses."""
    gone = [i for i, label in enumerate(term.labels) if label not in needed]
    if not gone:
        return term
    value = ctx.reduce(widen(ctx, term.value), gone, "add")
    return Term(convert(ctx, value, term.value.dtype), [label for label in term.labels if label in needed])


def _contract(ctx: LoweringContext, a: Term, b: Term, wanted: list[str]) -> Term:
    a, b = _join_ellipsis(ctx, a, b)
    shared = [label for label in a.labels if label in b.labels]
    batch = [label for label in shared if label in wanted]
    contracted = [label for label in shared if label not in wanted]
    free = [label for label in a.labels if label not in shared] + [label for label in b.labels if label not in shared]
    labels = batch + free
    if not contracted:
        dims = [a.dim(label) if label in a.labels else b.dim(label) for label in labels]
        return Term(ctx.b.multiply(*(_place(ctx, t, labels, dims) for t in (a, b))), labels)

    def at(t: Term, which: list[str]) -> tuple[int, ...]:
        return tuple(t.labels.index(label) for label in which)

    product = ctx.b.dot_general(a.value, b.value, at(a, contracted), at(b, contracted), at(a, batch), at(b, batch))
    return Term(product, labels)


def _place(ctx: LoweringContext, t: Term, labels: list[str], dims: list[Dim]) -> Value:
    """The operand spread over the dims of ``labels``."""
    order = sorted(range(len(t.labels)), key=lambda i: labels.index(t.labels[i]))
    value = ctx.b.transpose(t.value, order)
    return ctx.b.broadcast_in_dim(value, dims, tuple(labels.index(t.labels[i]) for i in order))


def _join_ellipsis(ctx: LoweringContext, a: Term, b: Term) -> tuple[Term, Term]:
    """Give shared ellipsis labels one extent; a dim known to be 1 is dropped, so that it need not be repeated."""
    for label in [x for x in a.labels if x.startswith(_ELLIPSIS) and x in b.labels]:
        da, db = a.dim(label), b.dim(label)
        if db == 1:
            b = _drop(ctx, b, label)
        elif da == 1:
            a = _drop(ctx, a, label)
        else:
            d = ctx.bcast_dim(da, db)
            a, b = _stretch(ctx, a, label, d), _stretch(ctx, b, label, d)
    return a, b


def _drop(ctx: LoweringContext, t: Term, label: str) -> Term:
    i = t.labels.index(label)
    dims = [d for j, d in enumerate(t.value.dims) if j != i]
    return Term(ctx.b.reshape(t.value, dims), t.labels[:i] + t.labels[i + 1 :])


def _stretch(ctx: LoweringContext, t: Term, label: str, d: Dim) -> Term:
    dims = list(t.value.dims)
    dims[t.labels.index(label)] = d
    return Term(ctx.broadcast_to(t.value, dims), t.labels)


def _inflate(ctx: LoweringContext, t: Term, output: list[str]) -> Term:
    """Put a label that the result repeats on a diagonal of zeros."""
    if len(output) == len(t.labels):
        return t
    dims = tuple(t.dim(label) for label in output)
    first = [output.index(label) for label in t.labels]
    value = ctx.b.broadcast_in_dim(t.value, dims, first)
    for i, label in enumerate(output):
        if output.index(label) != i:
            keep = _equal_positions(ctx, dims, output.index(label), i)
            value = ctx.b.select(keep, value, ctx.splat(0, value))
    return Term(value, output)
