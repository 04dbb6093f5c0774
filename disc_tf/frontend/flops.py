"""Floating-point operations of the nodes of an analysed graph, for the report.

Two a multiply-add of contractions and convolutions, one an element of every other floating-point result (of the operand, for reductions);
moving data counts nothing. Unknown dims are taken at their likely value (hints), else at `NOMINAL`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disc_tf.frontend.analysis import SOURCES, Analysis
from disc_tf.frontend.cluster import is_heavy
from disc_tf.frontend.graph import Node
from disc_tf.ir.core import Op, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import TensorType

#: the size of a dim that nothing is known about
NOMINAL = 64
#: HLO ops that compute nothing
_MOVES = frozenset({
    "constant", "iota", "broadcast_in_dim", "reshape", "transpose", "concatenate", "slice", "dynamic_slice", "dynamic_update_slice", "pad",
    "reverse", "gather", "scatter", "convert", "bitcast_convert", "select", "return",
})  # fmt: skip
_MATMULS = frozenset({"MatMul", "_FusedMatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"})


def node_flops(analysis: Analysis) -> dict[str, float | None]:
    """Operations of each live node; None for a contraction or convolution whose shapes are not known."""
    count = _Counter(analysis)
    found: dict[str, float | None] = {node.name: 0.0 for node in analysis.order}
    for op in analysis.function.body.ops:
        for name in op.loc[:1]:
            found[name] = (found.get(name) or 0.0) + count.hlo(op)
    for node in analysis.order:
        if node.name not in analysis.lowered and node.op not in SOURCES:
            found[node.name] = count.opaque(node)
    return found


def share(flops: Mapping[str, float | None], inside: Sequence[str]) -> float | None:
    """The part of all operations that ``inside`` does; None if there are none, or if some are not known."""
    if any(f is None for f in flops.values()):
        return None
    total = sum(f or 0.0 for f in flops.values())
    return sum(flops[name] or 0.0 for name in inside) / total if total else None


class _Counter:
    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.sizes: dict[str, int] = {}
        library = analysis.graph.graph_def.library.function
        self.heavy_functions = {f.signature.name for f in library if any(is_heavy(n.op) for n in f.node_def)}

    def size(self, dim: Dim) -> int:
        env = self.analysis.ctx.env
        dim = env.simplify(dim)
        for s in dim.symbols() - self.sizes.keys():
            self.sizes[s] = next(iter(env.likely(s)), NOMINAL)
        try:
            return max(dim.evaluate(self.sizes), 0)
        except ZeroDivisionError:
            return 0

    def elements(self, value: Value | None) -> float:
        if value is None or not isinstance(value.type, TensorType):
            return 0.0
        out = 1.0
        for d in value.dims:
            out *= self.size(d)
        return out

    def hlo(self, op: Op) -> float:
        if op.name == "while":
            return self.trips(op) * sum(self.hlo(inner) for region in op.regions for inner in region.ops)
        if op.name == "case":
            return max(sum(map(self.hlo, region.ops)) for region in op.regions)
        floats = [v for v in op.results if isinstance(v.type, TensorType) and v.dtype.is_float]
        if op.name in _MOVES or not floats:
            return 0.0
        if op.name == "dot_general":
            out = 2 * self.elements(op.result)
            for axis in op.attrs["lhs_contracting"]:
                out *= self.size(op.operands[0].dims[axis])
            return out
        if op.name == "convolution":
            out = 2 * self.elements(op.result)
            for d in op.operands[1].dims[:-1]:
                out *= self.size(d)
            return out
        if op.name in ("reduce", "reduce_window"):
            return self.elements(op.operands[0])
        return sum(map(self.elements, floats))

    def trips(self, loop: Op) -> int:
        """Iterations of a loop that counts up to a dim or a number, else `NOMINAL`."""
        for op in loop.regions[0].ops:
            if op.name == "compare" and op.attrs["direction"] == "LT":
                limit = self.analysis.ctx.dims_of(op.operands[1])
                if limit is not None:
                    return self.size(limit[0])
        return NOMINAL

    def functions(self, node: Node) -> list[str]:
        """The names of the functions that a node's attributes name."""
        found = []
        for key in node.attr:
            value = node.attr[key]
            if value.WhichOneof("value") == "func":
                found.append(value.func.name)
            found += [f.name for f in value.list.func]
        return found

    def opaque(self, node: Node) -> float | None:
        """By the type of op; the operands' shapes are those that the analysis found or was told."""
        values = self.analysis.values
        result = values.get((node.name, 0))
        if not is_heavy(node.op):
            if any(name in self.heavy_functions for name in self.functions(node)):
                return None  # a loop, say: nobody knows how often it runs
            return self.elements(result) if result is not None and result.dtype.is_float else 0.0
        operands = [values.get(ref) for ref in node.inputs]
        first, second = (*operands, None, None)[:2]
        if node.op in _MATMULS and first is not None and result is not None and first.rank >= 2:
            flag = "transpose_a" if "transpose_a" in node.attr else "adj_x"
            transposed = flag in node.attr and node.attr[flag].b
            return 2 * self.elements(result) * self.size(first.dims[-2 if transposed else -1])
        if "Conv" in node.op and second is not None and second.rank >= 2:
            depthwise = "Depthwise" in node.op
            output = (*operands, None, None, None)[2] if "Backprop" in node.op else result
            taps = 1.0
            for d in second.dims[: -2 if depthwise else -1]:
                taps *= self.size(d)
            return None if output is None or "BackpropFilter" in node.op else 2 * self.elements(output) * taps
        return None
