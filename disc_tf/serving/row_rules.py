"""The rules of `rows`: which ops keep the rows of a batch apart.

Each rule gets the proof so far and a node of which some operand is rows or a shape, and says what its outputs are, or raises `Refused`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from disc_tf.serving.rows import Proof

#: what a tensor is: rows, or one of these
ROWS, FREE, SHAPE = "rows", "free", "shape"


class Refused(Exception):
    """The rows are not proved independent. The message says where."""


Rule = Callable[["Proof", Any], str | list[str]]
RULES: dict[str, Rule] = {}


def _rule(*ops: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(" ".join(ops).split(), rule))
        return rule

    return register


def _same_lead(p: Proof, node: Any, refs: Iterable[tuple[str, int]]) -> None:
    leads = [p.lead(r) for r in refs if p.kind(r) == ROWS]
    if not leads or any(d != leads[0] for d in leads):
        raise Refused(f"{node.name} ({node.op}) combines different numbers of rows")


def _check_axes(p: Proof, node: Any, at: int, rank: int) -> None:
    """Refuses if operand ``at`` lists axis 0."""
    _not_first(node, map(int, p.constant(node.inputs[at]).reshape(-1)), rank)


def _not_first(node: Any, axes: Iterable[int], rank: int) -> None:
    """Refuses if axis 0 of ``rank`` is among ``axes``; negative ones count from the end."""
    if any(a + (rank if a < 0 else 0) <= 0 for a in axes):
        raise Refused(f"{node.name} ({node.op}) combines rows")


@_rule(
    "Abs Acos Acosh Asin Asinh Atan Atanh Cast Ceil Conj Cos Cosh Digamma Elu Erf Erfc Exp Expm1 Floor Identity Inv Invert IsFinite",
    "IsInf IsNan LeakyRelu Lgamma Log Log1p LogicalNot Neg OnesLike PreventGradient Reciprocal Relu Relu6 Rint Round Rsqrt Selu",
    "Sigmoid Sign Sin Sinh Snapshot Softplus Softsign Sqrt Square StopGradient Tan Tanh ZerosLike EnsureShape CheckNumerics",
    "FakeQuantWithMinMaxArgs StringLower StringUpper StringStrip StringLength StringToNumber StringToHashBucketFast",
    "StaticRegexReplace StaticRegexFullMatch AsString DecodeBase64 EncodeBase64 Bucketize Erfinv Ndtri Real Imag",
)
def _elementwise(p: Proof, node: Any) -> str:
    p.data(node)
    return ROWS


@_rule(
    "Add AddV2 Sub Mul Div RealDiv DivNoNan FloorDiv FloorMod Mod Pow Maximum Minimum SquaredDifference Atan2 Xdivy Xlogy MulNoNan Equal",
    "NotEqual Less LessEqual Greater GreaterEqual LogicalAnd LogicalOr LogicalXor BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift",
    "TruncateDiv TruncateMod SelectV2 ClipByValue AddN NextAfter",
)
def _broadcast(p: Proof, node: Any) -> str:
    refs = p.data(node)
    _same_lead(p, node, refs)
    ranks = {p.rank(r) for r in refs if p.kind(r) == ROWS}
    if len(ranks) > 1:
        raise Refused(f"{node.name} ({node.op}) lines rows up with another axis")
    rank = ranks.pop()
    for r in refs:
        if p.kind(r) == FREE:
            dims = p.dims(r)
            if len(dims) > rank or (len(dims) == rank and not (dims[0].is_static and int(dims[0]) == 1)):
                raise Refused(f"{node.name} ({node.op}) lines rows up with a fixed tensor")
    return ROWS


@_rule("Select")
def _select(p: Proof, node: Any) -> str:
    refs = p.data(node)
    _same_lead(p, node, refs)
    if any(p.kind(r) != ROWS for r in refs):
        raise Refused(f"{node.name} (Select) lines rows up with a fixed tensor")
    return ROWS


@_rule("BiasAdd")
def _bias(p: Proof, node: Any) -> str:
    x, bias = p.data(node)
    if p.kind(x) != ROWS or p.kind(bias) != FREE or (p.rank(x) < 2):
        raise Refused(f"{node.name} (BiasAdd) adds rows to rows")
    return ROWS


@_rule("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3")
def _matmul(p: Proof, node: Any) -> str:
    a, b = p.data(node)
    rank_a, rank_b = p.rank(a), p.rank(b)
    if p.kind(a) == ROWS and p.kind(b) == FREE:
        transposed = node.attr["transpose_a"].b if node.op == "MatMul" else node.attr["adj_x"].b
        if (rank_a == 2 and transposed) or rank_b > max(rank_a, 2) or (rank_b == rank_a > 2 and p.dims(b)[0] != 1):
            raise Refused(f"{node.name} ({node.op}) combines rows")
        return ROWS
    if p.kind(b) == ROWS and p.kind(a) == FREE and rank_b > 2 and rank_a < rank_b:
        return ROWS
    if p.kind(a) == p.kind(b) == ROWS and rank_a == rank_b > 2:
        _same_lead(p, node, (a, b))
        return ROWS
    raise Refused(f"{node.name} ({node.op}) multiplies rows by rows")


@_rule("Einsum")
def _einsum(p: Proof, node: Any) -> str:
    refs = p.data(node)
    left, _, right = node.attr["equation"].s.decode().replace(" ", "").partition("->")
    terms = left.split(",")
    if "." in left + right or not right:
        raise Refused(f"{node.name} (Einsum) has an ellipsis")
    _same_lead(p, node, refs)
    for ref, term in zip(refs, terms, strict=True):
        count = term.count(right[0])
        if p.kind(ref) == ROWS and (term[:1] != right[0] or count != 1):
            raise Refused(f"{node.name} (Einsum) combines rows")
        if p.kind(ref) == FREE and count:
            raise Refused(f"{node.name} (Einsum) lines rows up with a fixed tensor")
    return ROWS


@_rule("Mean Sum Max Min Prod All Any EuclideanNorm", "ArgMax ArgMin Cumsum Cumprod ReverseV2")
def _along(p: Proof, node: Any) -> str:
    p.data(node, 1)
    _check_axes(p, node, 1, p.rank(node.inputs[0]))
    return ROWS


@_rule("Softmax LogSoftmax TopKV2 TopK MatrixBandPart")
def _last_axis(p: Proof, node: Any) -> str:
    p.data(node, 1)
    least = 3 if node.op.startswith("Matrix") else 2
    if p.rank(node.inputs[0]) < least or any(p.kind(r) != FREE for r in node.inputs[1:]):
        raise Refused(f"{node.name} ({node.op}) combines rows")
    return ROWS


@_rule("Reshape BroadcastTo")
def _reshape(p: Proof, node: Any) -> str:
    # row-major: a first extent of B * m cuts the elements into B equal blocks, as it did before
    if p.kind(node.inputs[0]) != ROWS or p.kind(node.inputs[1]) == ROWS:
        raise Refused(f"{node.name} ({node.op}) takes its shape from the data")
    if node.op == "BroadcastTo" and (p.rank(node.inputs[0]) != p.rank((node.name, 0)) or p.lead(node.inputs[0]) != p.lead((node.name, 0))):
        raise Refused(f"{node.name} ({node.op}) repeats rows")
    return ROWS


@_rule("Fill")
def _fill(p: Proof, node: Any) -> str:
    if p.kind(node.inputs[0]) == ROWS or p.kind(node.inputs[1]) != FREE:
        raise Refused(f"{node.name} (Fill) takes its shape or value from the data")
    return ROWS


@_rule("ExpandDims")
def _expand(p: Proof, node: Any) -> str:
    p.data(node, 1)
    _check_axes(p, node, 1, p.rank(node.inputs[0]) + 1)
    return ROWS


@_rule("Squeeze")
def _squeeze(p: Proof, node: Any) -> str:
    p.data(node)
    rank = p.rank(node.inputs[0])
    axes = list(node.attr["squeeze_dims"].list.i)
    if not axes:
        raise Refused(f"{node.name} (Squeeze) names no axes: a batch of one would lose its first")
    _not_first(node, axes, rank)
    return ROWS


@_rule("Transpose")
def _transpose(p: Proof, node: Any) -> str:
    p.data(node, 1)
    order = p.constant(node.inputs[1]).reshape(-1)
    if order.size == 0 or order[0] != 0:
        raise Refused(f"{node.name} (Transpose) moves the rows to another axis")
    return ROWS


@_rule("ConcatV2 Concat Pack")
def _join(p: Proof, node: Any) -> str:
    refs = list(node.inputs)
    if node.op == "Pack":
        axis = int(node.attr["axis"].i)
        rank = p.rank(refs[0]) + 1
    else:
        at = refs.pop(-1 if node.op == "ConcatV2" else 0)
        axis, rank = int(p.constant(at).reshape(-1)[0]), p.rank(refs[0])
    _not_first(node, [axis], rank)
    if any(p.kind(r) != ROWS for r in refs):
        raise Refused(f"{node.name} ({node.op}) joins rows and a fixed tensor")
    _same_lead(p, node, refs)
    return ROWS


@_rule("Split SplitV Unpack")
def _split(p: Proof, node: Any) -> str:
    x = node.inputs[1] if node.op == "Split" else node.inputs[0]
    if p.kind(x) != ROWS or (node.op == "SplitV" and p.kind(node.inputs[1]) == ROWS):
        raise Refused(f"{node.name} ({node.op}) splits along an axis or at places that the data gives")
    if node.op == "Unpack":
        axis = int(node.attr["axis"].i)
    else:
        axis = int(p.constant(node.inputs[0 if node.op == "Split" else 2]).reshape(-1)[0])
    _not_first(node, [axis], p.rank(x))
    return ROWS


@_rule("Slice")
def _slice(p: Proof, node: Any) -> str:
    if p.kind(node.inputs[0]) != ROWS or any(p.kind(r) == ROWS for r in node.inputs[1:]):
        raise Refused(f"{node.name} (Slice) starts where the data says")
    contents = p.analysis.contents(node.inputs[1])
    if not contents or not (contents[0].is_static and int(contents[0]) == 0) or p.lead((node.name, 0)) != p.lead(node.inputs[0]):
        raise Refused(f"{node.name} (Slice) takes some of the rows")
    p.fixed_values(node, 1)
    p.fixed_values(node, 2)
    return ROWS


@_rule("StridedSlice")
def _strided_slice(p: Proof, node: Any) -> str:
    if p.kind(node.inputs[0]) != ROWS or any(p.kind(r) == ROWS for r in node.inputs[1:]):
        raise Refused(f"{node.name} (StridedSlice) starts where the data says")
    masks = {m: int(node.attr[f"{m}_mask"].i) for m in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    strides = p.constant(node.inputs[3]).reshape(-1)
    if strides.size == 0:
        return ROWS
    first = masks["begin"] & 1 and masks["end"] & 1 and not (masks["new_axis"] | masks["shrink_axis"]) & 1 and strides[0] == 1
    # a leading ellipsis spans the first axis unless the other items name all axes
    named = sum(1 for i in range(1, strides.size) if not masks["new_axis"] >> i & 1)
    spanned = masks["ellipsis"] & 1 and named < p.rank(node.inputs[0])
    if not (first or spanned):
        raise Refused(f"{node.name} (StridedSlice) takes some of the rows")
    for at in (1, 2):
        p.fixed_values(node, at)
    return ROWS


@_rule("Tile")
def _tile(p: Proof, node: Any) -> str:
    if p.kind(node.inputs[0]) != ROWS or p.kind(node.inputs[1]) == ROWS:
        raise Refused(f"{node.name} (Tile) repeats as often as the data says")
    times = p.analysis.contents(node.inputs[1])
    if not times or not (times[0].is_static and int(times[0]) == 1):
        raise Refused(f"{node.name} (Tile) repeats rows")
    p.fixed_values(node, 1)
    return ROWS


@_rule("Pad PadV2 MirrorPad")
def _pad(p: Proof, node: Any) -> str:
    p.data(node)
    if p.kind(node.inputs[0]) != ROWS or any(p.kind(r) == ROWS for r in node.inputs[1:]) or p.constant(node.inputs[1])[0].any():
        raise Refused(f"{node.name} ({node.op}) adds rows")
    return ROWS


@_rule("GatherV2 Gather")
def _gather(p: Proof, node: Any) -> str:
    table, indices = p.data(node, 2)
    batch_dims = int(node.attr["batch_dims"].i)
    axis = int(p.constant(node.inputs[2]).reshape(-1)[0]) if node.op == "GatherV2" else 0
    if p.kind(table) == FREE and axis == 0 and not batch_dims and p.rank(indices) >= 1:
        return ROWS
    if p.kind(table) == ROWS and (axis + p.rank(table) if axis < 0 else axis) > 0:
        if p.kind(indices) == FREE and not batch_dims:
            return ROWS
        if p.kind(indices) == ROWS and batch_dims > 0:
            _same_lead(p, node, (table, indices))
            return ROWS
    raise Refused(f"{node.name} ({node.op}) picks rows")


@_rule("OneHot")
def _one_hot(p: Proof, node: Any) -> str:
    refs = p.data(node)
    if p.kind(refs[0]) != ROWS or any(p.kind(r) != FREE for r in refs[1:]) or node.attr["axis"].i == 0:
        raise Refused(f"{node.name} (OneHot) combines rows")
    return ROWS


@_rule("Conv2D Conv3D DepthwiseConv2dNative")
def _convolution(p: Proof, node: Any) -> str:
    x, weights = p.data(node)
    if p.kind(x) != ROWS or p.kind(weights) != FREE:
        raise Refused(f"{node.name} ({node.op}) takes its filter from the data")
    return ROWS


@_rule("MaxPool AvgPool MaxPool3D AvgPool3D")
def _pool(p: Proof, node: Any) -> str:
    p.data(node)
    if node.attr["ksize"].list.i[0] != 1 or node.attr["strides"].list.i[0] != 1:
        raise Refused(f"{node.name} ({node.op}) combines rows")
    return ROWS


@_rule("ResizeBilinear ResizeNearestNeighbor DepthToSpace SpaceToDepth LRN")
def _per_image(p: Proof, node: Any) -> str:
    refs = p.data(node)
    if p.kind(refs[0]) != ROWS or any(p.kind(r) == ROWS for r in refs[1:]):
        raise Refused(f"{node.name} ({node.op}) takes its size from the data")
    return ROWS


@_rule("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3")
def _batch_norm(p: Proof, node: Any) -> list[str]:
    refs = p.data(node)
    if not ("is_training" in node.attr and not node.attr["is_training"].b):
        raise Refused(f"{node.name} ({node.op}) averages over the batch")
    if p.kind(refs[0]) != ROWS or any(p.kind(r) != FREE for r in refs[1:]):
        raise Refused(f"{node.name} ({node.op}) takes its statistics from the data")
    return [ROWS, *(FREE for _ in (node.output_types or [])[1:])]


@_rule("LookupTableFindV2 LookupTableFind")
def _lookup(p: Proof, node: Any) -> str:
    table, _, default = p.data(node)
    if p.kind(table) != FREE or p.kind(default) != FREE:
        raise Refused(f"{node.name} ({node.op}) takes its table from the data")
    return ROWS


@_rule("IdentityN")
def _identities(p: Proof, node: Any) -> list[str]:
    return [p.kind(ref) for ref in node.inputs]


@_rule("While StatelessWhile If StatelessIf Case StatelessCase")
def _control_flow(p: Proof, node: Any) -> str:
    raise Refused(f"{node.name} ({node.op}) hangs on the data")
