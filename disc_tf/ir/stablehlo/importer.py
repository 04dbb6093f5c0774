"""StableHLO (with chlo and dynamic shapes, as `jax.export` writes it) to IR.

Calls and composites are inlined, `shape_assertion` calls dropped. Shape operands are followed symbolically (`contents`); a shape that
depends on data binds a fresh symbol. Dims of a loop that change over its iterations become symbols of the loop.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Block, Function, Module, Value
from disc_tf.ir.dims import Dim, DimLike
from disc_tf.ir.opset import OPS
from disc_tf.ir.shape_env import ShapeEnv
from disc_tf.ir.stablehlo.contents import Contents
from disc_tf.ir.stablehlo.export import StableHLOError, context
from disc_tf.ir.stablehlo.text import DTYPE_OF
from disc_tf.ir.types import DType, TensorType, Type

_MAX_CALLS = 64  # nesting of calls and regions


def from_stablehlo(text: str, arg_dims: Sequence[Sequence[DimLike] | None] | None = None) -> Module:
    """A module with one function `main` from StableHLO text.

    arg_dims: dims of each argument (None: fresh symbols `a<i>d<j>` for its dynamic dims); static extents must agree.
    Raises StableHLOError for text that does not parse and for ops that the IR lacks.
    """
    with context():
        module = _parse(text)
        entry = _functions(module)["main"]
        fn = Function("main")
        for i, argument in enumerate(entry.arguments):
            given = arg_dims[i] if arg_dims is not None else None
            fn.add_arg(_argument_type(argument, i, given), ArgInfo(f"arg{i}"))
        names = (f"h{k}" for k in itertools.count())
        b = Builder(fn.body, fn.env)
        b.return_(_Importer(module, b, fn.env, names).call(entry, fn.params))
    return Module({"main": fn})


def inline_stablehlo(
    b: Builder, env: ShapeEnv, text: str, args: Sequence[Value], fresh: Iterator[str]
) -> list[Value]:
    """The results of a StableHLO module's `main` applied to `args`, as ops appended by `b`.

    `fresh` yields names for symbols of shapes that depend on data. Raises StableHLOError; ops may then have been appended.
    """
    with context():
        module = _parse(text)
        return _Importer(module, b, env, fresh).call(_functions(module)["main"], args)


def _parse(text: str) -> ir.Module:
    try:
        return ir.Module.parse(text)
    except (ir.MLIRError, ValueError) as e:
        raise StableHLOError(f"not StableHLO text: {e}") from e


def _functions(module: ir.Module) -> dict[str, Any]:
    found = {
        ir.StringAttr(f.attributes["sym_name"]).value: f
        for f in module.body.operations
        if hasattr(f, "arguments")
    }
    if "main" not in found:
        raise StableHLOError("the module has no function main")
    return found


def _extents(type: ir.Type) -> tuple[DType, list[int | None]]:
    """Dtype and extents (None: dynamic) of a ranked tensor type."""
    if not isinstance(type, ir.RankedTensorType):
        raise StableHLOError(f"type {type} is not a ranked tensor")
    element = str(type.element_type)
    if element not in DTYPE_OF:
        raise StableHLOError(f"element type {element} is not supported")
    return DTYPE_OF[element], [
        None if type.is_dynamic_dim(k) else type.get_dim_size(k) for k in range(type.rank)
    ]


def _argument_type(argument: ir.Value, index: int, given: Sequence[DimLike] | None) -> TensorType:
    dtype, extents = _extents(argument.type)
    if given is None:
        return TensorType.of(dtype, [f"a{index}d{k}" if e is None else e for k, e in enumerate(extents)])
    dims = [Dim.of(d) for d in given]
    if len(dims) != len(extents) or any(
        e is not None and d.is_static and d != e for e, d in zip(extents, dims, strict=True)
    ):
        raise StableHLOError(f"argument {index} has type {argument.type}, not dims {[str(d) for d in dims]}")
    return TensorType.of(dtype, [d if e is None else e for e, d in zip(extents, dims, strict=True)])


class _Importer:
    def __init__(self, module: ir.Module, b: Builder, env: ShapeEnv, fresh: Iterator[str]) -> None:
        self.functions = _functions(module)
        self.b = b
        self.env = env
        self.fresh = fresh
        self.contents = Contents(env)
        self.values: dict[ir.Value, Value] = {}
        self.depth = 0

    # ---- structure ---------------------------------------------------------------------------------------------

    def call(self, function: Any, args: Sequence[Value]) -> list[Value]:
        """Inline a function."""
        if len(function.arguments) != len(args):
            raise StableHLOError(f"takes {len(function.arguments)} arguments, not {len(args)}")
        saved, self.values = self.values, {}
        for parameter, value in zip(function.arguments, args, strict=True):
            dtype, extents = _extents(parameter.type)
            if dtype != value.dtype or len(extents) != value.rank:
                raise StableHLOError(f"argument {parameter.type} is given {value.type}")
            self.values[parameter] = self.refine(value, extents)
        results = self.ops(function.entry_block)
        self.values = saved
        return results

    def ops(self, block: ir.Block) -> list[Value]:
        """Import a block's ops; gives the values that it returns."""
        self.depth += 1
        if self.depth > _MAX_CALLS:
            raise StableHLOError(f"calls and regions nest more than {_MAX_CALLS} levels")
        for op in block.operations:
            name = op.operation.name
            operands = [self.values[v] for v in op.operation.operands]
            if name in ("func.return", "stablehlo.return"):
                self.depth -= 1
                return operands
            results = self.op(name, op.operation, operands)
            for target, value in zip(op.operation.results, results, strict=True):
                self.values[target] = self.finish(target, value)
        raise StableHLOError("block has no return")

    def finish(self, target: ir.Value, value: Value) -> Value:
        if isinstance(target.type, ir.RankedTensorType):
            value = self.refine(value, _extents(target.type)[1])
            self.contents.of(value)
        return value

    def refine(self, value: Value, extents: Sequence[int | None]) -> Value:
        """Static extents that MLIR knows and we do not."""
        dims = tuple(d if e is None else Dim.of(e) for d, e in zip(value.dims, extents, strict=True))
        return self.b.broadcast_in_dim(value, dims, range(value.rank))

    def op(self, name: str, op: Any, operands: list[Value]) -> list[Value]:
        handler = _HANDLERS.get(name)
        if handler is not None:
            return handler(self, op, operands)
        ours = _ELEMENTWISE.get(name)
        if ours is None:
            raise StableHLOError(f"op {name} is not supported")
        return [self.b.create1(ours, operands)]

    def region(self, block: ir.Block, types: Sequence[Type] | None = None) -> Block:
        """A region's block; `types` are the parameter types where MLIR's do not say the dims."""
        if types is None:
            types = [
                TensorType.of(dtype, [self.static(e) for e in extents])
                for dtype, extents in map(_type_of, block.arguments)
            ]
        made = Block(types)
        outer, self.b = self.b, Builder(made, self.env, self.b.loc)
        self.values.update(zip(block.arguments, made.params, strict=True))
        self.b.return_(self.ops(block))
        self.b = outer
        return made

    def static(self, extent: int | None) -> int:
        if extent is None:
            raise StableHLOError("dynamic extent in a region's parameter")
        return extent

    # ---- shapes ----------------------------------------------------------------------------------------------------

    def scalar(self, v: Value, k: int | None) -> Dim:
        """Element `k` of an integer vector (None: a scalar) as a dim; a fresh symbol if its content is unknown."""
        known = self.contents.of(v)
        if known is not None:
            return self.env.simplify(known[k or 0])
        scalar = v if k is None else self.b.reshape(self.b.slice(v, [k], [k + 1]), [])
        return self.b.bind_dim(scalar, next(self.fresh))

    def vector(self, v: Value, extents: Sequence[int | None] | None = None) -> list[Dim]:
        """All elements; known static `extents` win."""
        count = int(v.dims[0])
        fixed = extents if extents is not None else [None] * count
        return [self.scalar(v, k) if e is None else Dim.of(e) for k, e in enumerate(fixed)]


def _type_of(v: ir.Value) -> tuple[DType, list[int | None]]:
    return _extents(v.type)


# ---- ops ----------------------------------------------------------------------------------------------------------

Handler = Callable[[_Importer, Any, list[Value]], list[Value]]
_HANDLERS: dict[str, Handler] = {}
#: StableHLO name -> ours, for ops without attributes
_ELEMENTWISE = {
    d.stablehlo: name for name, d in OPS.items() if d.elementwise and not d.attrs and not d.typed and d.stablehlo is not None
}  # fmt: skip


def _handles(*names: str) -> Callable[[Handler], Handler]:
    def add(fn: Handler) -> Handler:
        for name in names:
            _HANDLERS[name] = fn
        return fn

    return add


def _ints(op: Any, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
    """An integer array attribute."""
    if name not in op.attributes:
        return tuple(default)
    return tuple(int(x) for x in op.attributes[name])


def _int(op: Any, name: str) -> int:
    return ir.IntegerAttr(op.attributes[name]).value


def _padding(op: Any, rank: int) -> tuple[list[int], list[int]]:
    if "padding" not in op.attributes:
        return [0] * rank, [0] * rank
    values = np.array(op.attributes["padding"]).reshape(rank, 2)
    return values[:, 0].tolist(), values[:, 1].tolist()


@_handles("stablehlo.constant")
def _constant(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    return [x.b.constant(_array(op.attributes["value"]))]


def _array(attr: Any) -> np.ndarray:
    dtype, extents = _extents(attr.type)
    shape = [e or 0 for e in extents]
    if attr.is_splat:
        value = attr.get_splat_value().value
        return np.broadcast_to(
            np.asarray(value, np.float64 if dtype.is_float else None).astype(dtype.np), shape
        )
    if dtype == DType.BF16:  # no buffer of this type: read the text
        return _bf16(str(attr)).reshape(shape)
    return np.array(attr).astype(dtype.np).reshape(shape)


def _bf16(text: str) -> np.ndarray:
    """The elements of `dense<...> : tensor<...xbf16>`: numbers, 0x and four digits for what has no number, or one hex string."""
    body = text[text.index("<") + 1 : text.rindex("> :")]
    if body.startswith('"0x'):
        return np.frombuffer(bytes.fromhex(body[3:-1]), DType.BF16.np)
    tokens = re.findall(r"0x[0-9A-Fa-f]{4}|[-+.0-9eE]+", body)
    words = [
        np.uint16(int(t, 16)) if t.startswith("0x") else DType.BF16.np.type(float(t)).view(np.uint16)
        for t in tokens
    ]
    return np.array(words, np.uint16).view(DType.BF16.np)


@_handles("stablehlo.compare")
def _compare(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    direction = hlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value
    kind = (
        hlo.ComparisonTypeAttr(op.attributes["compare_type"]).value if "compare_type" in op.attributes else ""
    )
    if kind == "TOTALORDER":
        operands = [_total_order(x.b, v) for v in operands]
    return [x.b.compare(operands[0], operands[1], direction)]


def _total_order(b: Builder, v: Value) -> Value:
    """Signed integers that order like IEEE 754's totalOrder: -NaN < -inf < ... < -0 < +0 < ... < NaN."""
    signed = {16: DType.I16, 32: DType.I32, 64: DType.I64}[v.dtype.bits]
    bits = b.bitcast_convert(v, signed)
    sign = b.shift_right_arithmetic(bits, v.dtype.bits - 1)
    return b.xor(bits, b.and_(sign, int(np.iinfo(signed.np).max)))


@_handles("stablehlo.convert")
def _convert(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    return [x.b.convert(operands[0], _type_of(op.results[0])[0])]


@_handles("stablehlo.bitcast_convert")
def _bitcast(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    return [x.b.bitcast_convert(operands[0], _type_of(op.results[0])[0])]


@_handles("stablehlo.optimization_barrier")
def _identity(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    return operands


@_handles("chlo.square")
def _square(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    return [x.b.multiply(operands[0], operands[0])]


@_handles("chlo.is_inf", "chlo.is_pos_inf", "chlo.is_neg_inf")
def _is_inf(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    v = x.b.abs(operands[0]) if op.name == "chlo.is_inf" else operands[0]
    return [x.b.compare(v, -np.inf if op.name == "chlo.is_neg_inf" else np.inf, "EQ")]


@_handles("stablehlo.get_dimension_size")
def _get_dimension_size(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    value = x.b.dim(operands[0].dims[_int(op, "dimension")], DType.I32)
    return [value]


@_handles("stablehlo.iota", "stablehlo.dynamic_iota")
def _iota(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    dtype, extents = _type_of(op.results[0])
    dims = x.vector(operands[0], extents) if operands else [x.static(e) for e in extents]
    return [x.b.iota(dtype, dims, _int(op, "iota_dimension"))]


@_handles("stablehlo.broadcast_in_dim", "stablehlo.dynamic_broadcast_in_dim")
def _broadcast(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    extents = _type_of(op.results[0])[1]
    dims = x.vector(operands[1], extents) if len(operands) > 1 else [x.static(e) for e in extents]
    return [x.b.broadcast_in_dim(operands[0], dims, _ints(op, "broadcast_dimensions"))]


@_handles("stablehlo.reshape", "stablehlo.dynamic_reshape")
def _reshape(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    extents = _type_of(op.results[0])[1]
    dims = x.vector(operands[1], extents) if len(operands) > 1 else [x.static(e) for e in extents]
    return [x.b.reshape(operands[0], dims)]


@_handles("stablehlo.transpose")
def _transpose(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    return [x.b.transpose(operands[0], _ints(op, "permutation"))]


@_handles("stablehlo.reverse")
def _reverse(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    return [x.b.reverse(operands[0], _ints(op, "dimensions"))]


@_handles("stablehlo.concatenate")
def _concatenate(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    return [x.b.concatenate(operands, _int(op, "dimension"))]


@_handles("stablehlo.slice")
def _slice(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    return [x.b.slice(operands[0], *(_ints(op, k) for k in ("start_indices", "limit_indices", "strides")))]


@_handles("stablehlo.real_dynamic_slice")
def _real_dynamic_slice(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    starts, limits, strides = (x.vector(v) for v in operands[1:])
    return [x.b.slice(operands[0], starts, limits, strides)]


@_handles("stablehlo.dynamic_slice")
def _dynamic_slice(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    return [x.b.dynamic_slice(operands[0], operands[1:], _ints(op, "slice_sizes"))]


@_handles("stablehlo.dynamic_update_slice")
def _dynamic_update_slice(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    return [x.b.dynamic_update_slice(operands[0], operands[1], operands[2:])]


@_handles("stablehlo.pad")
def _pad(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    edges = (_ints(op, k) for k in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    return [x.b.pad(operands[0], operands[1], *edges)]


@_handles("stablehlo.dynamic_pad")
def _dynamic_pad(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    return [x.b.pad(operands[0], operands[1], *(x.vector(v) for v in operands[2:]))]


@_handles("stablehlo.gather", "stablehlo.dynamic_gather")
def _gather(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    numbers = hlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    sizes = x.vector(operands[2]) if len(operands) > 2 else _ints(op, "slice_sizes")
    keys = (
        "offset_dims",
        "collapsed_slice_dims",
        "operand_batching_dims",
        "start_indices_batching_dims",
        "start_index_map",
    )
    attrs = {k: tuple(getattr(numbers, k)) for k in keys}
    return [x.b.gather(operands[0], operands[1], sizes, index_vector_dim=numbers.index_vector_dim, **attrs)]


@_handles("stablehlo.scatter")
def _scatter(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    numbers = hlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    keys = (
        "update_window_dims",
        "inserted_window_dims",
        "input_batching_dims",
        "scatter_indices_batching_dims",
    )
    attrs: dict[str, Any] = {k: tuple(getattr(numbers, k)) for k in keys}
    attrs["scatter_dims_to_operand_dims"] = tuple(numbers.scattered_dims_to_operand_dims)
    attrs["index_vector_dim"] = numbers.index_vector_dim
    if "unique_indices" in op.attributes:
        attrs["unique_indices"] = ir.BoolAttr(op.attributes["unique_indices"]).value
    count = len(operands) // 2
    region = x.region(op.regions[0].blocks[0])
    return x.b.scatter(operands[:count], operands[count], operands[count + 1 :], region, **attrs)


@_handles("stablehlo.reduce")
def _reduce(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    count = len(operands) // 2
    region = x.region(op.regions[0].blocks[0])
    return x.b.reduce(operands[:count], operands[count:], _ints(op, "dimensions"), region)


@_handles("stablehlo.reduce_window")
def _reduce_window(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    count, rank = len(operands) // 2, operands[0].rank
    low, high = _padding(op, rank)
    ones = (1,) * rank
    return x.b.reduce_window(
        operands[:count], operands[count:], x.region(op.regions[0].blocks[0]), _ints(op, "window_dimensions"),
        _ints(op, "window_strides", ones), low, high, _ints(op, "base_dilations", ones), _ints(op, "window_dilations", ones),
    )  # fmt: skip


@_handles("stablehlo.sort")
def _sort(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    stable = "is_stable" in op.attributes and ir.BoolAttr(op.attributes["is_stable"]).value
    dimension = _int(op, "dimension") if "dimension" in op.attributes else -1
    region = x.region(op.regions[0].blocks[0])
    return x.b.sort(operands, dimension % operands[0].rank, region, stable)


@_handles("chlo.top_k")
def _top_k(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    return list(x.b.topk(operands[0], _int(op, "k")))


@_handles("stablehlo.dot_general")
def _dot_general(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    n = hlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    return [
        x.b.dot_general(
            operands[0], operands[1], n.lhs_contracting_dimensions, n.rhs_contracting_dimensions,
            n.lhs_batching_dimensions, n.rhs_batching_dimensions, _type_of(op.results[0])[0],
        )
    ]  # fmt: skip


@_handles("stablehlo.convolution")
def _convolution(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    """Any dimension numbers: transposes bring operands and result to channels last."""
    n = hlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    spatial = tuple(n.input_spatial_dimensions)
    if "batch_group_count" in op.attributes and _int(op, "batch_group_count") != 1:
        raise StableHLOError("convolution with batch_group_count other than 1")
    if any(np.array(op.attributes["window_reversal"]).tolist() if "window_reversal" in op.attributes else ()):
        operands = [operands[0], x.b.reverse(operands[1], tuple(n.kernel_spatial_dimensions))]
    lhs = _permuted(x, operands[0], (n.input_batch_dimension, *spatial, n.input_feature_dimension))
    kernel = (*n.kernel_spatial_dimensions, n.kernel_input_feature_dimension, n.kernel_output_feature_dimension)
    rhs = _permuted(x, operands[1], kernel)
    ones = (1,) * len(spatial)
    low, high = _padding(op, len(spatial))
    out = x.b.convolution(
        lhs, rhs, strides=_ints(op, "window_strides", ones), padding_low=low, padding_high=high,
        lhs_dilation=_ints(op, "lhs_dilation", ones), rhs_dilation=_ints(op, "rhs_dilation", ones),
        groups=_int(op, "feature_group_count"),
    )  # fmt: skip
    placed = (n.output_batch_dimension, *n.output_spatial_dimensions, n.output_feature_dimension)
    return [_permuted(x, out, tuple(placed.index(k) for k in range(len(placed))))]


def _permuted(x: _Importer, v: Value, order: tuple[int, ...]) -> Value:
    return v if order == tuple(range(len(order))) else x.b.transpose(v, order)


# ---- control ---------------------------------------------------------------------------------------------------------


@_handles("func.call")
def _call(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    return x.call(x.functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value], operands)


@_handles("stablehlo.composite")
def _composite(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    if ir.StringAttr(op.attributes["name"]).value == "chlo.top_k" and operands[0].rank:
        k = ir.DictAttr(op.attributes["composite_attributes"])["k"]
        return list(x.b.topk(operands[0], ir.IntegerAttr(k).value))
    return x.call(x.functions[ir.FlatSymbolRefAttr(op.attributes["decomposition"]).value], operands)


@_handles("stablehlo.custom_call")
def _custom_call(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    target = ir.StringAttr(op.attributes["call_target_name"]).value
    if target != "shape_assertion":
        raise StableHLOError(f"custom call {target!r} is not supported")
    return []


@_handles("stablehlo.case")
def _case(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    return _branches(x, op, operands[0], [r.blocks[0] for r in op.regions])


@_handles("stablehlo.if")
def _if(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    on_true, on_false = (r.blocks[0] for r in op.regions)
    return _branches(x, op, x.b.convert(operands[0], DType.I32), [on_false, on_true])


def _branches(x: _Importer, op: Any, index: Value, blocks: Sequence[ir.Block]) -> list[Value]:
    """Dims that differ between branches become symbols of the results."""
    regions = [x.region(b, []) for b in blocks]
    types: list[Type] = []
    for columns in zip(*(r.results for r in regions), strict=True):
        dims = [_common(x, [v.dims[k] for v in columns]) for k in range(columns[0].rank)]
        types.append(TensorType(columns[0].dtype, tuple(dims)))
    return x.b.case(index, regions, types)


def _common(x: _Importer, dims: Sequence[Dim]) -> Dim:
    visible = all(x.env.is_equal(d, dims[0]) for d in dims[1:])
    return dims[0] if visible else Dim.of(next(x.fresh))


@_handles("stablehlo.while")
def _while(x: _Importer, op: Any, operands: list[Value]) -> list[Value]:
    """First as if all dims were invariant; those that the body changes become symbols of the loop."""
    cond, body = (r.blocks[0] for r in op.regions)
    types = [v.tensor for v in operands]
    for _ in range(1 + sum(t.rank for t in types)):
        made = x.region(body, types)
        changed = [_changed(x, t, v.tensor) for t, v in zip(types, made.results, strict=True)]
        if changed == types:
            break
        for inner in reversed(made.ops):
            inner.set_operands(())
        types = changed
    else:
        raise StableHLOError("the dims of a loop do not settle")
    results = [
        t.with_dims([d if d in v.dims else next(x.fresh) for d in t.dims])
        for t, v in zip(types, operands, strict=True)
    ]
    return x.b.while_(operands, x.region(cond, types), made, results)


def _changed(x: _Importer, before: TensorType, after: TensorType) -> TensorType:
    """`before` with a fresh symbol for each dim that the body does not keep (a symbol of the loop may change freely)."""
    dims = []
    for a, b in zip(before.dims, after.dims, strict=True):
        keeps = x.env.is_equal(a, b) is True or (a.symbol or "").startswith("loop_")
        dims.append(a if keeps else Dim.of(f"loop_{next(x.fresh)}"))
    return before.with_dims(dims)
