"""Whether the rows of a signature are independent: then requests may share a batch, and no answer changes.

    verdict = rows_independent("models/m/1", "serving_default")
    if not verdict: print(verdict.reason)

A proof on the graph, not a guess from shapes. Every input has the unknown batch size B as its first extent. Every tensor is shown to be
*free* (it hangs neither on the data nor on B), a *shape* (integers computed from extents, B among them), or *rows*: of extent `B * m`
along dim 0, with `m` and all other extents free of B, where block i of m rows hangs on row i of the inputs only. Every output must be
rows with m = 1. An op without a rule, a random number, a side effect: refused, with the reason. Optimised models are judged by the
functions that their clusters were made from.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from disc_tf.serving.servable import DEFAULT_SIGNATURE
from disc_tf.serving.tensors import DT_STRING

log = logging.getLogger("disc_tf.serving")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """True if rows are independent; ``reason`` says why not."""

    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason


class _Refused(Exception):
    pass


def rows_independent(directory: str | Path, signature: str = DEFAULT_SIGNATURE) -> Verdict:
    """The verdict on a signature of a SavedModel. Never raises: a model that cannot be read or understood is refused."""
    from disc_tf.frontend.errors import GraphError
    from disc_tf.frontend.saved_model import choose_meta_graph, read_saved_model

    try:
        _Proof(choose_meta_graph(read_saved_model(directory), TAGS), signature).run()
    except _Refused as e:
        return Verdict(str(e))
    except Exception as e:  # whatever the graph does to the analysis: the server answers without batches
        if not isinstance(e, (OSError, GraphError)):
            log.exception("%s signature %s: whether its rows are independent cannot be analysed", directory, signature)
        return Verdict(f"the graph cannot be analysed: {e if str(e) else type(e).__name__}")
    return Verdict()


#: the graph that the server's session loads (`Servable`)
TAGS = ("serve",)
_INT64 = 9
#: what a tensor is: rows, or one of these
ROWS, FREE, SHAPE = "rows", "free", "shape"


class _Proof:
    """State of the walk. Rules get this and the node, and return the state of the outputs (one for all)."""

    def __init__(self, meta: Any, signature: str) -> None:
        from disc_tf.frontend.graph import parse_tensor
        from disc_tf.saved_model_rewrite import originals_again

        if signature not in meta.signature_def:
            raise _Refused(f"there is no signature {signature}")
        self.definition = meta.signature_def[signature]
        self.outputs = [parse_tensor(info.name) for info in self.definition.outputs.values()]
        self.inputs = [parse_tensor(info.name) for info in self.definition.inputs.values()]
        originals_again(meta)
        self.graph_def = meta.graph_def
        self.state: dict[tuple[str, int], str] = {}
        #: symbols that hang neither on the data nor on B
        self.known: set[str] = set()

    def run(self) -> None:
        from disc_tf.frontend.analysis import analyse
        from disc_tf.frontend.graph import Graph
        from disc_tf.frontend.load import expand
        from disc_tf.frontend.resource_gather import read_first

        self._check_inputs()
        roots = [name for name, _ in self.outputs]
        graph, _, _ = expand(Graph(self.graph_def), roots, ())
        graph_def = read_first(graph.graph_def)
        _describe_variables(graph_def)
        graph = Graph(graph_def)
        self.analysis = analyse(graph, roots, use_tf_shapes=False)
        self.graph = graph
        leads = [self.dims((name, 0))[0] for name, _ in self.inputs]
        self.batch = leads[0]
        for other in leads[1:]:
            self.analysis.ctx.env.assume_eq(self.batch, other)
        self.analysis.ctx.env.set_range(self.batch, 1)  # a batch is never empty
        self.batch = self.analysis.ctx.env.simplify(self.batch)
        for name, _ in self.inputs:
            self._know(self.dims((name, 0)))
        self.fed = {name for name, _ in self.inputs}
        needed = self._needed(roots)
        for node in self.analysis.order:
            if node.name in needed:
                self._visit(node)
            else:  # a check: one that fails for a batch is tried again for each request
                self._check_effect(node)
        for ref, alias in zip(self.outputs, self.definition.outputs, strict=True):
            if self.state.get(ref) != ROWS or self.lead(ref) != self.batch:
                raise _Refused(f"output {alias!r} has not one row for each of the inputs")

    def _needed(self, roots: Iterable[str]) -> set[str]:
        """The nodes whose values the outputs are computed from."""
        found: set[str] = set()
        work = list(roots)
        while work:
            name = work.pop()
            if name not in found:
                found.add(name)
                if name not in self.fed:
                    work += [source for source, _ in self.graph.nodes[name].inputs]
        return found

    def _check_inputs(self) -> None:
        nodes = {n.name: n for n in self.graph_def.node}
        if not self.inputs or not self.outputs:
            raise _Refused("the signature has no inputs or no outputs")
        for (name, port), (alias, info) in zip(list(self.inputs), self.definition.inputs.items(), strict=True):
            dims = info.tensor_shape.dim
            if info.tensor_shape.unknown_rank or not dims or dims[0].size >= 0:
                raise _Refused(f"the first extent of input {alias!r} is fixed or its rank is unknown")
            if port or name not in nodes or nodes[name].op != "Placeholder":
                raise _Refused(f"input {alias!r} is no placeholder")
            nodes[name].attr["shape"].shape.ParseFromString(info.tensor_shape.SerializeToString())
            if nodes[name].attr["dtype"].type == DT_STRING:
                _number_strings(self.graph_def, nodes[name])
                self.inputs[self.inputs.index((name, port))] = (f"{name}/values", 0)

    # ---- what rules ask ----

    def dims(self, ref: tuple[str, int]) -> list[Any]:
        """Extents of a tensor; an unknown one refuses."""
        from disc_tf.ir.dims import Dim

        found = self.analysis.type_of(ref)
        raw: Sequence[Any] | None = found.dims if found is not None else self.analysis.shapes.get(ref)
        known = [Dim.of(d) for d in raw or () if d is not None]
        if raw is None or len(known) < len(raw):
            raise _Refused(f"the shape of {ref[0]} is not known")
        return [self.analysis.ctx.env.simplify(d) for d in known]

    def rank(self, ref: tuple[str, int]) -> int:
        return len(self.dims(ref))

    def lead(self, ref: tuple[str, int]) -> Any:
        """The first extent, which must be a multiple of the batch size."""
        from disc_tf.ir.dims import exact_div

        dims = self.dims(ref)
        if not dims:
            raise _Refused(f"{ref[0]} is a scalar made of rows")
        times = exact_div(dims[0], self.batch)
        if times is None or self.varies(times):
            raise _Refused(f"the first extent of {ref[0]}, {dims[0]}, is no multiple of the batch size")
        return dims[0]

    def varies(self, dim: Any) -> bool:
        """Whether an extent may differ from batch to batch: it has B in it, or a symbol that stands for a value of the run."""
        return not self.analysis.ctx.behind(dim.symbols()) <= self.known

    def _know(self, dims: Iterable[Any]) -> None:
        self.known |= {s for d in dims for s in d.symbols()} - self.batch.symbols()

    def fixed_values(self, node: Any, at: int, first: int = 1) -> None:
        """Refuses if operand ``at``, a list of integers, hangs on B beyond its first ``first`` elements."""
        if self.kind(node.inputs[at]) == FREE:
            return
        contents = self.analysis.contents(node.inputs[at])
        if contents is None or any(self.varies(d) for d in contents[first:]):
            raise _Refused(f"{node.name} ({node.op}) computes with the batch size")

    def constant(self, ref: tuple[str, int]) -> np.ndarray:
        """The value of a small constant; refuses if it is not known."""
        node = self.graph.nodes[ref[0]]
        while node.op in ("Identity", "Snapshot") and node.inputs:
            node = self.graph.nodes[node.inputs[0][0]]
        if node.op == "Const":
            found = self.graph.constant(node.name)
            array = found.array() if found is not None and found.present else None
            if array is not None:
                return np.asarray(array)
        contents = self.analysis.contents(ref)
        if contents is None or not all(d.is_static for d in contents):
            raise _Refused(f"the value of {ref[0]} is not known")
        return np.array([int(d) for d in contents])

    def kind(self, ref: tuple[str, int]) -> str:
        return self.state[ref]

    def data(self, node: Any, count: int | None = None) -> list[tuple[str, int]]:
        """The operands that hold rows or free values; a shape among the first ``count`` refuses."""
        refs = list(node.inputs if count is None else node.inputs[:count])
        for ref in refs:
            if self.kind(ref) == SHAPE:
                raise _Refused(f"{node.name} ({node.op}) computes with the batch size")
        return refs

    # ---- the walk ----

    def _visit(self, node: Any) -> None:
        kinds = [self.state[ref] for ref in node.inputs]
        ports = range(len(node.output_types or []))
        if node.name in self.fed:
            self._set(node, ports, ROWS)
            return
        self._check_effect(node)
        if all(k == FREE for k in kinds):
            self._set(node, ports, FREE)
            return
        contents = [c for p in ports if (c := self.analysis.contents((node.name, p))) is not None]
        if ports and len(contents) == len(ports):
            self._set(node, ports, [SHAPE if any(self.varies(d) for d in c) else FREE for c in contents])
            return
        rule = RULES.get(node.op)
        if rule is None:
            raise _Refused(f"nothing is known of the op {node.op} ({node.name})")
        self._set(node, ports, rule(self, node))

    def _set(self, node: Any, ports: Sequence[int], state: str | list[str]) -> None:
        """``state``: of every output, or a list of one each."""
        for p, found in zip(ports, [state] * len(ports) if isinstance(state, str) else state, strict=True):
            self.state[node.name, p] = found
            if found == ROWS:
                self.lead((node.name, p))
                if any(self.varies(d) for d in self.dims((node.name, p))[1:]):
                    raise _Refused(f"an extent of {node.name} ({node.op}) besides the first hangs on the batch size or the data")
            elif found == FREE:
                self._know(self._free_dims((node.name, p)))

    def _free_dims(self, ref: tuple[str, int]) -> list[Any]:
        try:
            return [*self.dims(ref), *(self.analysis.contents(ref) or ())]
        except _Refused:
            return []

    def _check_effect(self, node: Any) -> None:
        from disc_tf.frontend.opdefs import op_info

        info = op_info(node.op)
        if info is None and node.op != "DiscWeight":
            raise _Refused(f"nothing is known of the op {node.op} ({node.name})")
        if info is not None and info.is_stateful and node.op not in _HARMLESS:
            raise _Refused(f"{node.name} ({node.op}) has a state or an effect")


#: stateful by declaration, yet they only read what requests do not change
_HARMLESS = frozenset(
    "VarHandleOp ReadVariableOp ResourceGather Placeholder HashTableV2 MutableHashTableV2 LookupTableFindV2 LookupTableSizeV2 Assert "
    "StatefulPartitionedCall VarIsInitializedOp".split()
)


def _number_strings(graph_def: Any, node: Any) -> None:
    """Make a string input the text of numbers: extents of strings have no symbols, and which strings they are plays no part."""
    fresh = graph_def.node.add(name=f"{node.name}/values", op="Placeholder")
    fresh.attr["dtype"].type = _INT64
    fresh.attr["shape"].CopyFrom(node.attr["shape"])
    for name in list(node.attr):
        del node.attr[name]
    node.op = "AsString"
    node.input.append(fresh.name)
    node.attr["T"].type = _INT64


def _describe_variables(graph_def: Any) -> None:
    """Reads of variables get the shape that the variable declares."""
    nodes = {n.name: n for n in graph_def.node}
    for node in graph_def.node:
        if node.op == "ReadVariableOp" and node.input and "_output_shapes" not in node.attr:
            handle = nodes.get(node.input[0].partition(":")[0])
            if handle is not None and handle.op == "VarHandleOp" and "shape" in handle.attr:
                node.attr["_output_shapes"].list.shape.add().CopyFrom(handle.attr["shape"].shape)


# ---- rules ----

Rule = Callable[[_Proof, Any], str | list[str]]
RULES: dict[str, Rule] = {}


def _rule(*ops: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(" ".join(ops).split(), rule))
        return rule

    return register


def _same_lead(p: _Proof, node: Any, refs: Iterable[tuple[str, int]]) -> None:
    leads = [p.lead(r) for r in refs if p.kind(r) == ROWS]
    if not leads or any(d != leads[0] for d in leads):
        raise _Refused(f"{node.name} ({node.op}) combines different numbers of rows")


def _check_axes(p: _Proof, node: Any, at: int, rank: int) -> None:
    """Refuses if operand ``at`` lists axis 0."""
    _not_first(node, map(int, p.constant(node.inputs[at]).reshape(-1)), rank)


def _not_first(node: Any, axes: Iterable[int], rank: int) -> None:
    """Refuses if axis 0 of ``rank`` is among ``axes``; negative ones count from the end."""
    if any(a + (rank if a < 0 else 0) <= 0 for a in axes):
        raise _Refused(f"{node.name} ({node.op}) combines rows")


@_rule(
    "Abs Acos Acosh Asin Asinh Atan Atanh Cast Ceil Conj Cos Cosh Digamma Elu Erf Erfc Exp Expm1 Floor Identity Inv Invert IsFinite",
    "IsInf IsNan LeakyRelu Lgamma Log Log1p LogicalNot Neg OnesLike PreventGradient Reciprocal Relu Relu6 Rint Round Rsqrt Selu",
    "Sigmoid Sign Sin Sinh Snapshot Softplus Softsign Sqrt Square StopGradient Tan Tanh ZerosLike EnsureShape CheckNumerics",
    "FakeQuantWithMinMaxArgs StringLower StringUpper StringStrip StringLength StringToNumber StringToHashBucketFast",
    "StaticRegexReplace StaticRegexFullMatch AsString DecodeBase64 EncodeBase64 Bucketize Erfinv Ndtri Real Imag",
)
def _elementwise(p: _Proof, node: Any) -> str:
    p.data(node)
    return ROWS


@_rule(
    "Add AddV2 Sub Mul Div RealDiv DivNoNan FloorDiv FloorMod Mod Pow Maximum Minimum SquaredDifference Atan2 Xdivy Xlogy MulNoNan Equal",
    "NotEqual Less LessEqual Greater GreaterEqual LogicalAnd LogicalOr LogicalXor BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift",
    "TruncateDiv TruncateMod SelectV2 ClipByValue AddN NextAfter",
)
def _broadcast(p: _Proof, node: Any) -> str:
    refs = p.data(node)
    _same_lead(p, node, refs)
    ranks = {p.rank(r) for r in refs if p.kind(r) == ROWS}
    if len(ranks) > 1:
        raise _Refused(f"{node.name} ({node.op}) lines rows up with another axis")
    rank = ranks.pop()
    for r in refs:
        if p.kind(r) == FREE:
            dims = p.dims(r)
            if len(dims) > rank or (len(dims) == rank and not (dims[0].is_static and int(dims[0]) == 1)):
                raise _Refused(f"{node.name} ({node.op}) lines rows up with a fixed tensor")
    return ROWS


@_rule("Select")
def _select(p: _Proof, node: Any) -> str:
    refs = p.data(node)
    _same_lead(p, node, refs)
    if any(p.kind(r) != ROWS for r in refs):
        raise _Refused(f"{node.name} (Select) lines rows up with a fixed tensor")
    return ROWS


@_rule("BiasAdd")
def _bias(p: _Proof, node: Any) -> str:
    x, bias = p.data(node)
    if p.kind(x) != ROWS or p.kind(bias) != FREE or (p.rank(x) < 2):
        raise _Refused(f"{node.name} (BiasAdd) adds rows to rows")
    return ROWS


@_rule("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3")
def _matmul(p: _Proof, node: Any) -> str:
    a, b = p.data(node)
    rank_a, rank_b = p.rank(a), p.rank(b)
    if p.kind(a) == ROWS and p.kind(b) == FREE:
        transposed = node.attr["transpose_a"].b if node.op == "MatMul" else node.attr["adj_x"].b
        if (rank_a == 2 and transposed) or rank_b > max(rank_a, 2) or (rank_b == rank_a > 2 and p.dims(b)[0] != 1):
            raise _Refused(f"{node.name} ({node.op}) combines rows")
        return ROWS
    if p.kind(b) == ROWS and p.kind(a) == FREE and rank_b > 2 and rank_a < rank_b:
        return ROWS
    if p.kind(a) == p.kind(b) == ROWS and rank_a == rank_b > 2:
        _same_lead(p, node, (a, b))
        return ROWS
    raise _Refused(f"{node.name} ({node.op}) multiplies rows by rows")


@_rule("Einsum")
def _einsum(p: _Proof, node: Any) -> str:
    refs = p.data(node)
    left, _, right = node.attr["equation"].s.decode().replace(" ", "").partition("->")
    terms = left.split(",")
    if "." in left + right or not right:
        raise _Refused(f"{node.name} (Einsum) has an ellipsis")
    _same_lead(p, node, refs)
    for ref, term in zip(refs, terms, strict=True):
        count = term.count(right[0])
        if p.kind(ref) == ROWS and (term[:1] != right[0] or count != 1):
            raise _Refused(f"{node.name} (Einsum) combines rows")
        if p.kind(ref) == FREE and count:
            raise _Refused(f"{node.name} (Einsum) lines rows up with a fixed tensor")
    return ROWS


@_rule("Mean Sum Max Min Prod All Any EuclideanNorm", "ArgMax ArgMin Cumsum Cumprod ReverseV2")
def _along(p: _Proof, node: Any) -> str:
    p.data(node, 1)
    _check_axes(p, node, 1, p.rank(node.inputs[0]))
    return ROWS


@_rule("Softmax LogSoftmax TopKV2 TopK MatrixBandPart")
def _last_axis(p: _Proof, node: Any) -> str:
    p.data(node, 1)
    least = 3 if node.op.startswith("Matrix") else 2
    if p.rank(node.inputs[0]) < least or any(p.kind(r) != FREE for r in node.inputs[1:]):
        raise _Refused(f"{node.name} ({node.op}) combines rows")
    return ROWS


@_rule("Reshape BroadcastTo")
def _reshape(p: _Proof, node: Any) -> str:
    # row-major: a first extent of B * m cuts the elements into B equal blocks, as it did before
    if p.kind(node.inputs[0]) != ROWS or p.kind(node.inputs[1]) == ROWS:
        raise _Refused(f"{node.name} ({node.op}) takes its shape from the data")
    if node.op == "BroadcastTo" and (p.rank(node.inputs[0]) != p.rank((node.name, 0)) or p.lead(node.inputs[0]) != p.lead((node.name, 0))):
        raise _Refused(f"{node.name} ({node.op}) repeats rows")
    return ROWS


@_rule("Fill")
def _fill(p: _Proof, node: Any) -> str:
    if p.kind(node.inputs[0]) == ROWS or p.kind(node.inputs[1]) != FREE:
        raise _Refused(f"{node.name} (Fill) takes its shape or value from the data")
    return ROWS


@_rule("ExpandDims")
def _expand(p: _Proof, node: Any) -> str:
    p.data(node, 1)
    _check_axes(p, node, 1, p.rank(node.inputs[0]) + 1)
    return ROWS


@_rule("Squeeze")
def _squeeze(p: _Proof, node: Any) -> str:
    p.data(node)
    rank = p.rank(node.inputs[0])
    axes = list(node.attr["squeeze_dims"].list.i)
    if not axes:
        raise _Refused(f"{node.name} (Squeeze) names no axes: a batch of one would lose its first")
    _not_first(node, axes, rank)
    return ROWS


@_rule("Transpose")
def _transpose(p: _Proof, node: Any) -> str:
    p.data(node, 1)
    order = p.constant(node.inputs[1]).reshape(-1)
    if order.size == 0 or order[0] != 0:
        raise _Refused(f"{node.name} (Transpose) moves the rows to another axis")
    return ROWS


@_rule("ConcatV2 Concat Pack")
def _join(p: _Proof, node: Any) -> str:
    refs = list(node.inputs)
    if node.op == "Pack":
        axis = int(node.attr["axis"].i)
        rank = p.rank(refs[0]) + 1
    else:
        at = refs.pop(-1 if node.op == "ConcatV2" else 0)
        axis, rank = int(p.constant(at).reshape(-1)[0]), p.rank(refs[0])
    _not_first(node, [axis], rank)
    if any(p.kind(r) != ROWS for r in refs):
        raise _Refused(f"{node.name} ({node.op}) joins rows and a fixed tensor")
    _same_lead(p, node, refs)
    return ROWS


@_rule("Split SplitV Unpack")
def _split(p: _Proof, node: Any) -> str:
    x = node.inputs[1] if node.op == "Split" else node.inputs[0]
    if p.kind(x) != ROWS or (node.op == "SplitV" and p.kind(node.inputs[1]) == ROWS):
        raise _Refused(f"{node.name} ({node.op}) splits along an axis or at places that the data gives")
    if node.op == "Unpack":
        axis = int(node.attr["axis"].i)
    else:
        axis = int(p.constant(node.inputs[0 if node.op == "Split" else 2]).reshape(-1)[0])
    _not_first(node, [axis], p.rank(x))
    return ROWS


@_rule("Slice")
def _slice(p: _Proof, node: Any) -> str:
    if p.kind(node.inputs[0]) != ROWS or any(p.kind(r) == ROWS for r in node.inputs[1:]):
        raise _Refused(f"{node.name} (Slice) starts where the data says")
    contents = p.analysis.contents(node.inputs[1])
    if not contents or not (contents[0].is_static and int(contents[0]) == 0) or p.lead((node.name, 0)) != p.lead(node.inputs[0]):
        raise _Refused(f"{node.name} (Slice) takes some of the rows")
    p.fixed_values(node, 1)
    p.fixed_values(node, 2)
    return ROWS


@_rule("StridedSlice")
def _strided_slice(p: _Proof, node: Any) -> str:
    if p.kind(node.inputs[0]) != ROWS or any(p.kind(r) == ROWS for r in node.inputs[1:]):
        raise _Refused(f"{node.name} (StridedSlice) starts where the data says")
    masks = {m: int(node.attr[f"{m}_mask"].i) for m in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    strides = p.constant(node.inputs[3]).reshape(-1)
    if strides.size == 0:
        return ROWS
    first = masks["begin"] & 1 and masks["end"] & 1 and not (masks["new_axis"] | masks["shrink_axis"]) & 1 and strides[0] == 1
    # a leading ellipsis spans the first axis unless the other items name all axes
    named = sum(1 for i in range(1, strides.size) if not masks["new_axis"] >> i & 1)
    spanned = masks["ellipsis"] & 1 and named < p.rank(node.inputs[0])
    if not (first or spanned):
        raise _Refused(f"{node.name} (StridedSlice) takes some of the rows")
    for at in (1, 2):
        p.fixed_values(node, at)
    return ROWS


@_rule("Tile")
def _tile(p: _Proof, node: Any) -> str:
    if p.kind(node.inputs[0]) != ROWS or p.kind(node.inputs[1]) == ROWS:
        raise _Refused(f"{node.name} (Tile) repeats as often as the data says")
    times = p.analysis.contents(node.inputs[1])
    if not times or not (times[0].is_static and int(times[0]) == 1):
        raise _Refused(f"{node.name} (Tile) repeats rows")
    p.fixed_values(node, 1)
    return ROWS


@_rule("Pad PadV2 MirrorPad")
def _pad(p: _Proof, node: Any) -> str:
    p.data(node)
    if p.kind(node.inputs[0]) != ROWS or any(p.kind(r) == ROWS for r in node.inputs[1:]) or p.constant(node.inputs[1])[0].any():
        raise _Refused(f"{node.name} ({node.op}) adds rows")
    return ROWS


@_rule("GatherV2 Gather")
def _gather(p: _Proof, node: Any) -> str:
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
    raise _Refused(f"{node.name} ({node.op}) picks rows")


@_rule("OneHot")
def _one_hot(p: _Proof, node: Any) -> str:
    refs = p.data(node)
    if p.kind(refs[0]) != ROWS or any(p.kind(r) != FREE for r in refs[1:]) or node.attr["axis"].i == 0:
        raise _Refused(f"{node.name} (OneHot) combines rows")
    return ROWS


@_rule("Conv2D Conv3D DepthwiseConv2dNative")
def _convolution(p: _Proof, node: Any) -> str:
    x, weights = p.data(node)
    if p.kind(x) != ROWS or p.kind(weights) != FREE:
        raise _Refused(f"{node.name} ({node.op}) takes its filter from the data")
    return ROWS


@_rule("MaxPool AvgPool MaxPool3D AvgPool3D")
def _pool(p: _Proof, node: Any) -> str:
    p.data(node)
    if node.attr["ksize"].list.i[0] != 1 or node.attr["strides"].list.i[0] != 1:
        raise _Refused(f"{node.name} ({node.op}) combines rows")
    return ROWS


@_rule("ResizeBilinear ResizeNearestNeighbor DepthToSpace SpaceToDepth LRN")
def _per_image(p: _Proof, node: Any) -> str:
    refs = p.data(node)
    if p.kind(refs[0]) != ROWS or any(p.kind(r) == ROWS for r in refs[1:]):
        raise _Refused(f"{node.name} ({node.op}) takes its size from the data")
    return ROWS


@_rule("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3")
def _batch_norm(p: _Proof, node: Any) -> list[str]:
    refs = p.data(node)
    if not ("is_training" in node.attr and not node.attr["is_training"].b):
        raise _Refused(f"{node.name} ({node.op}) averages over the batch")
    if p.kind(refs[0]) != ROWS or any(p.kind(r) != FREE for r in refs[1:]):
        raise _Refused(f"{node.name} ({node.op}) takes its statistics from the data")
    return [ROWS, *(FREE for _ in (node.output_types or [])[1:])]


@_rule("LookupTableFindV2 LookupTableFind")
def _lookup(p: _Proof, node: Any) -> str:
    table, _, default = p.data(node)
    if p.kind(table) != FREE or p.kind(default) != FREE:
        raise _Refused(f"{node.name} ({node.op}) takes its table from the data")
    return ROWS


@_rule("IdentityN")
def _identities(p: _Proof, node: Any) -> list[str]:
    return [p.kind(ref) for ref in node.inputs]


@_rule("While StatelessWhile If StatelessIf Case StatelessCase")
def _control_flow(p: _Proof, node: Any) -> str:
    raise _Refused(f"{node.name} ({node.op}) hangs on the data")
