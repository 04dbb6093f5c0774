"""A cluster becomes `ir.Function` "main": its nodes are lowered again on parameters typed by the whole-graph analysis.

A dim of a parameter is an int or a symbol ``a<i>d<k>``; dims that the analysis proved equal share a symbol (the host program checks that
at entry). A small integer input whose content the analysis knows, as numbers or in terms of these symbols, is not read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from disc_tf.frontend.asserts import lower_assert
from disc_tf.frontend.cluster import Cluster, Clustering
from disc_tf.frontend.errors import LOWERING_CODES, Reason
from disc_tf.frontend.graph import TensorRef, tensor_name
from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Module, Value
from disc_tf.ir.dims import Dim, DimTooComplex
from disc_tf.ir.types import DType, TensorType
from disc_tf.lowering.context import DimRequest, LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.lower import lower_node

#: an integer input of at most this many elements is a host argument
HOST_ELEMENTS = 64
#: A reference variable (TF1) is none: Assign writes into its buffer, whoever else holds that.
_VARIABLE_READS = frozenset({"ReadVariableOp"})


@dataclasses.dataclass
class Imported:
    """A cluster in the IR.

    ``args[i]`` and ``results[j]``: the TF tensors of main's parameters and (tensor) results, in order of kind const, host, device;
    ``host_results``: which results are small integers. ``requests``: the equalities that rules needed and could not decide, in program
    order.
    """

    cluster: Cluster
    module: Module
    args: list[TensorRef]
    results: list[TensorRef]
    host_results: list[bool]
    requests: list[DimRequest]

    @property
    def main(self) -> Function:
        return self.module.main


class ImportFailed(Exception):
    """The cluster does not lower with what is known of its inputs; it stays in TensorFlow with this reason."""

    def __init__(self, node: str, reason: Reason) -> None:
        super().__init__(f"{node}: {reason}")
        self.node = node
        self.reason = reason


def import_cluster(clustering: Clustering, cluster: Cluster) -> Imported:
    """Lower a cluster. Raises `ImportFailed`; never changes the clustering."""
    return _Import(clustering, cluster).run()


class _Import:
    def __init__(self, clustering: Clustering, cluster: Cluster) -> None:
        self.clustering = clustering
        assert clustering.analysis is not None
        self.analysis = clustering.analysis
        self.cluster = cluster
        self.fn = Function("main")
        self.ctx = LoweringContext(Builder(self.fn.body, self.fn.env), self.fn.env, "n")
        self.ctx.functions = self.analysis.ctx.functions
        #: canonical dim of the analysis -> our symbol
        self.symbols: dict[Dim, Dim] = {}
        #: symbol of the analysis -> our symbol, where a whole dim is that symbol
        self.plain: dict[str, Dim] = {}
        self.values: dict[TensorRef, Value] = {}

    def run(self) -> Imported:
        types: dict[TensorRef, TensorType] = {}
        for ref in self.cluster.inputs:
            type_ = self.analysis.type_of(ref)
            if type_ is None:
                raise ImportFailed(ref[0], Reason("DTYPE", "an operand has no type"))
            types[ref] = type_
        for name in self.cluster.constants:
            self._constant(name)
        rank = {"const": 0, "variable": 0, "host": 1, "device": 2}
        args = sorted(types, key=lambda ref: rank[self._kind(ref, types[ref])])
        for i, ref in enumerate(args):
            self._parameter(ref, TensorType(types[ref].dtype, tuple(self._dim(d, i, k) for k, d in enumerate(types[ref].dims))))
        self._use_contents(types)
        for ref, source in self.cluster.through.items():
            self.values[ref] = self.values[source]
        for node in self.cluster.nodes:
            self._lower(node.name)
        results = sorted(self.cluster.outputs, key=lambda ref: not self._is_host_result(ref))
        returned = [self.values[ref] for ref in results]
        self.fn.result_names = [tensor_name(ref) for ref in results]
        self.fn.wanted_positive = [r.a for r in self.ctx.requests if r.kind == "positive"]
        if self.ctx.token is not None:
            returned.append(self.ctx.token)
        self.ctx.b.return_(returned)
        module = Module()
        module.add(self.fn)
        host = [self._is_host_result(ref) for ref in results]
        return Imported(self.cluster, module, args, results, host, list(self.ctx.requests))

    # ---- parameters ---------------------------------------------------------------------------------------------

    def _dim(self, d: Dim, i: int, k: int) -> Dim:
        """The dim of parameter i, axis k: an int, or the symbol that all equal dims share."""
        if d.is_static:
            return d
        found = self.symbols.get(d)
        if found is None:
            found = self.symbols[d] = Dim.of(f"a{i}d{k}")
            if d.symbol is not None:
                self.plain[d.symbol] = found
            likely = self.analysis.ctx.env.likely(d)
            if likely:
                self.fn.env.set_likely(found, likely)
        return found

    def _use_contents(self, types: Mapping[TensorRef, TensorType]) -> None:
        """Integer arguments whose content is known, as numbers or in our symbols, are read as that; the argument itself stays,
        since `original` has it."""
        for ref, type_ in types.items():
            contents = self._known_contents(ref)
            if contents is not None and self._kind(ref, type_) not in ("const", "variable"):
                dtype = type_.dtype
                self.values[ref] = self.ctx.dim(contents[0], dtype) if type_.rank == 0 else self.ctx.from_dims(contents, dtype)

    def _parameter(self, ref: TensorRef, type_: TensorType) -> None:
        node = self.clustering.graph[ref[0]]
        kind = self._kind(ref, type_)
        info = ArgInfo(tensor_name(ref), kind, tensor=tensor_name(ref))
        constant = self.clustering.graph.constant(node.name)
        if kind == "const" and constant is not None:
            info.digest = constant.digest()
        value = self.fn.add_arg(type_, info)
        known = self.analysis.ctx.constant(self.analysis.values[ref])
        if kind == "const" and known is not None:
            self.ctx.set_constant(value, known)
            info.value = known
        elif constant is not None:
            constant.release()
        self.values[ref] = value

    def _kind(self, ref: TensorRef, type_: TensorType) -> str:
        op = self.clustering.graph[ref[0]].op
        if op == "Const":
            return "const"
        if op in _VARIABLE_READS:
            return "variable"
        small = type_.dtype in (DType.I32, DType.I64) and type_.is_static and type_.rank <= 1
        return "host" if small and int(type_.num_elements()) <= HOST_ELEMENTS else "device"

    def _is_host_result(self, ref: TensorRef) -> bool:
        """Small integers that are known as dims are made by the host program."""
        return self.analysis.contents(ref) is not None

    # ---- contents -----------------------------------------------------------------------------------------------

    def _known_contents(self, ref: TensorRef) -> list[Dim] | None:
        """The content in our symbols, None if unknown or not expressible."""
        contents = self.analysis.contents(ref)
        if contents is None:
            return None
        out: list[Dim] = []
        for d in contents:
            mapped = self._translate(d)
            if mapped is None:
                return None
            out.append(mapped)
        return out

    def _translate(self, d: Dim) -> Dim | None:
        if d.is_static:
            return d
        if d in self.symbols:
            return self.symbols[d]
        if not d.symbols() <= set(self.plain):
            return None
        try:
            return d.substitute(self.plain)
        except (DimTooComplex, ZeroDivisionError):
            return None

    # ---- nodes --------------------------------------------------------------------------------------------------

    def _constant(self, name: str) -> None:
        constant = self.clustering.graph.constant(name)
        assert constant is not None
        if constant.dtype is not None and constant.present:  # a skeleton's: only an Assert reads it
            self.values[(name, 0)] = self.ctx.b.constant(constant.array())

    def _lower(self, name: str) -> None:
        graph = self.clustering.graph
        node = graph[name]
        args = [self.values.get(ref) for ref in node.inputs]
        try:
            if node.op == "Assert":
                lower_assert(self.ctx, graph, node, args[0])
                return
            if any(a is None for a in args):
                raise Unsupported("INTERNAL", "an operand has no value in the cluster", name, node.op)
            results = lower_node(self.ctx, node.view, [a for a in args if a is not None])
        except Unsupported as e:
            raise ImportFailed(name, Reason(LOWERING_CODES.get(e.code, e.code), e.message)) from e
        for port, value in enumerate(results):
            self.values[(name, port)] = value
