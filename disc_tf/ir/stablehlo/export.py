"""IR to StableHLO.

Ops are written in MLIR's generic form, then parsed and verified by jaxlib. Dims whose symbols are given values become static; the
others are dynamic, and ops whose result shape is theirs to choose become StableHLO's dynamic ones, with the shape computed from
argument dimensions.  `disc.dim` becomes that computation, `disc.scan` a reduce_window where the extent is static.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxlib.mlir import ir

from disc_tf.ir.core import Block, Function, Module, Op, Value
from disc_tf.ir.dims import Dim
from disc_tf.ir.opset import IRError, op_def
from disc_tf.ir.opset.reductions import scan_identity
from disc_tf.ir.stablehlo.shape_math import I64, ShapeMath
from disc_tf.ir.stablehlo.text import array, dense, integers, pairs, quoted, tensor
from disc_tf.ir.types import DType, TensorType, Type

TOKEN_TYPE = "!stablehlo.token"
CHECKS = ("custom_call", "results", "drop")


class StableHLOError(IRError):
    """The module has no StableHLO form under the given options, or jaxlib's verifier rejects it (a defect of the IR)."""


def context() -> ir.Context:
    """An MLIR context with the dialects func, stablehlo and chlo."""
    from jax.interpreters import mlir  # slow to import: only where needed

    return mlir.make_ir_context()


def to_stablehlo(
    target: Module | Function, dims: Mapping[str, int] | None = None, checks: str = "custom_call"
) -> str:
    """The StableHLO text of a module, verified.

    dims: values for symbols (all of them for a static module). checks: `disc.check` as side-effecting `custom_call`s
    with tokens; or, for execution by XLA, as additional bool "results" of the public function after its own (those inside regions are
    left out); or "drop". Raises StableHLOError.
    """
    if checks not in CHECKS:
        raise ValueError(f"checks must be one of {', '.join(CHECKS)}, is {checks!r}")
    functions = list(target.functions.values()) if isinstance(target, Module) else [target]
    text = (
        "module {\n" + "".join(_FunctionExporter(fn, dims or {}, checks).text() for fn in functions) + "}\n"
    )
    with context():
        try:
            module = ir.Module.parse(text)
            module.operation.verify()
        except (ir.MLIRError, ValueError) as e:
            raise StableHLOError(f"invalid StableHLO: {e}") from e
        return str(module)


class _FunctionExporter:
    def __init__(self, fn: Function, dims: Mapping[str, int], checks: str) -> None:
        self.fn = fn
        self.given = dims
        self.checks = checks
        self.lines: list[str] = []
        self.depth = 1
        self.count = 0
        self.names: dict[Value, str] = {}
        self.symbols: list[dict[str, str]] = [{}]  # symbol -> i64 scalar, by region scope
        self.predicates: list[str] = []
        self.math = ShapeMath(self.emit, self.symbol)

    # ---- text ----------------------------------------------------------------------------------------------

    def text(self) -> str:
        fn = self.fn
        params = ", ".join(f"{self.define(p)}: {self.type(p.type)}" for p in fn.params)
        self.bind_params()
        self.block_ops(fn.body)
        results = [v for v in fn.results if self.checks == "custom_call" or isinstance(v.type, TensorType)]
        names = [self.names[v] for v in results] + self.predicates
        types = [self.type(v.type) for v in results] + ["tensor<i1>"] * len(self.predicates)
        ending = f"  func.return {', '.join(names)} : {', '.join(types)}" if names else "  func.return"
        head = f"  func.func public @{fn.name}({params}) -> ({', '.join(types)}) {{"
        return "\n".join([head, *self.lines, "  " + ending, "  }", ""])

    def emit_line(self, text: str) -> None:
        self.lines.append("  " * (self.depth + 1) + text)

    def emit(self, text: str, _type: str = "") -> str:
        name = f"%v{self.count}"
        self.count += 1
        self.emit_line(f"{name} = {text}")
        return name

    def define(self, v: Value) -> str:
        name = f"%v{self.count}"
        self.count += 1
        self.names[v] = name
        return name

    # ---- dims ------------------------------------------------------------------------------------------------

    def known(self, dim: Dim) -> int | None:
        """The dim's value, None if it is dynamic."""
        try:
            value = dim.substitute(self.given)
        except ZeroDivisionError as e:
            raise StableHLOError(f"dimension {dim}: {e}") from None
        return int(value) if value.is_static else None

    def static(self, dims: Sequence[Dim], op: Op) -> list[int] | None:
        """All values, None if one is dynamic."""
        values = [self.known(d) for d in dims]
        return None if any(v is None for v in values) else [v for v in values if v is not None]

    def type(self, t: Type) -> str:
        return tensor(t.dtype, [self.known(d) for d in t.dims]) if isinstance(t, TensorType) else TOKEN_TYPE

    def types(self, values: Sequence[Value]) -> str:
        return ", ".join(self.type(v.type) for v in values)

    def symbol(self, name: str) -> str:
        if name in self.given:
            return self.math.constant(self.given[name])
        for scope in reversed(self.symbols):
            if name in scope:
                return scope[name]
        raise StableHLOError(f"symbol {name!r} has no value in function {self.fn.name}")

    def bind_params(self) -> None:
        """Take the symbols from the extents of the arguments."""
        for p in self.fn.params:
            for axis, d in enumerate(p.dims):
                symbols = {s for s in d.symbols() if s not in self.given and s not in self.symbols[0]}
                if len(symbols) == 1:
                    self.solve(p, axis, d, symbols.pop())

    def solve(self, p: Value, axis: int, d: Dim, name: str) -> None:
        """Bind `name` where `d` is `c * name + offset`."""
        offset = d.substitute({name: 0})
        slope = d - offset
        coefficient = slope.substitute({name: 1})
        if not coefficient.is_static or slope != coefficient * Dim.of(name):
            return
        attr = f"{{dimension = {axis} : i64}}"
        extent = self.emit(
            f'"stablehlo.get_dimension_size"({self.names[p]}) {attr} : ({self.type(p.type)}) -> tensor<i32>'
        )
        value = self.emit(f'"stablehlo.convert"({extent}) : (tensor<i32>) -> {I64}')
        if offset != 0:
            value = self.math.binary("subtract", value, self.math.value(offset))
        if coefficient != 1:
            value = self.math.binary("divide", value, self.math.constant(int(coefficient)))
        self.symbols[0][name] = value

    def shape(self, dims: Sequence[Dim]) -> tuple[str, str]:
        """A `tensor<rxi64>` of dims: its name and type."""
        kind = f"tensor<{len(dims)}xi64>"
        values = [self.known(d) for d in dims]
        if all(v is not None for v in values):
            attr = dense(np.array(values, np.int64))
            return self.emit(f'"stablehlo.constant"() {{value = {attr}}} : () -> {kind}'), kind
        parts = []
        for d in dims:
            scalar = self.math.value(d.substitute(self.given))
            parts.append(self.emit(f'"stablehlo.reshape"({scalar}) : ({I64}) -> tensor<1xi64>'))
        if len(parts) == 1:
            return parts[0], kind
        operands = ", ".join(["tensor<1xi64>"] * len(parts))
        return self.emit(
            f'"stablehlo.concatenate"({", ".join(parts)}) {{dimension = 0 : i64}} : ({operands}) -> {kind}'
        ), kind

    # ---- ops -------------------------------------------------------------------------------------------------

    def block_ops(self, block: Block) -> None:
        for op in block.ops:
            if op.name == "return":
                return
            handler = _HANDLERS.get(op.name)
            try:
                if handler is not None:
                    handler(self, op)
                else:
                    self.plain(op, op_def(op.name).stablehlo or "", "")
            except StableHLOError as e:
                raise StableHLOError(f"{op!r}: {e}") from None

    def plain(
        self,
        op: Op,
        name: str,
        attrs: str,
        extra: Sequence[tuple[str, str]] = (),
        operands: Sequence[Value] | None = None,
    ) -> None:
        """One op with attributes, regions, and `extra` operands (name, type) after its own."""
        values = op.operands if operands is None else operands
        inputs = [(self.names[v], self.type(v.type)) for v in values] + list(extra)
        head = f'"{name}"({", ".join(n for n, _ in inputs)})'
        tail = f": ({', '.join(t for _, t in inputs)}) -> ({self.types(op.results)})"
        middle = f" {{{attrs}}}" if attrs else ""
        if not op.regions:
            self.finish(op, f"{head}{middle} {tail}")
            return
        start = len(self.lines)
        regions = [self.region(r) for r in op.regions]
        body = "({\n" + "\n}, {\n".join(regions) + "\n})"
        del self.lines[start:]
        self.finish(op, f"{head} {body}{middle} {tail}")

    def finish(self, op: Op, text: str) -> None:
        if not op.results:
            self.emit_line(text)
        elif len(op.results) == 1:
            name = self.define(op.result)
            self.emit_line(f"{name} = {text}")
        else:
            base = f"%v{self.count}"
            self.count += 1
            for i, r in enumerate(op.results):
                self.names[r] = f"{base}#{i}"
            self.emit_line(f"{base}:{len(op.results)} = {text}")

    def region(self, block: Block) -> str:
        """The text of a region (a block with its return)."""
        outer, self.lines = self.lines, []
        checks, self.checks = self.checks, "drop" if self.checks == "results" else self.checks
        self.symbols.append({})
        params = ", ".join(f"{self.define(p)}: {self.type(p.type)}" for p in block.params)
        if params:
            self.emit_line(f"^bb0({params}):")
        self.block_ops(block)
        names = ", ".join(self.names[v] for v in block.results)
        self.emit_line(f'"stablehlo.return"({names}) : ({self.types(block.results)}) -> ()')
        self.symbols.pop()
        self.checks = checks
        lines, self.lines = self.lines, outer
        return "\n".join(lines)

    def custom_call(self, op: Op, effect: bool = False) -> None:
        """An op that StableHLO cannot say, by name with its attributes in text."""
        config = "; ".join(f"{k} = {v}" for k, v in op.attrs.items())
        attrs = f"call_target_name = {quoted(op.name if op.name.startswith('disc.') else 'disc.' + op.name)}"
        attrs += f", has_side_effect = {'true' if effect else 'false'}, backend_config = {quoted(config)}, api_version = 1 : i32"
        bare = Op(op.name, (), [r.type for r in op.results])
        inputs = [(self.names[v], self.type(v.type)) for v in op.operands]
        self.plain(bare, "stablehlo.custom_call", attrs, inputs)
        for mine, made in zip(op.results, bare.results, strict=True):
            self.names[mine] = self.names[made]


# ---- one function per op that is not plain -----------------------------------------------------------------------

Handler = Callable[[_FunctionExporter, Op], None]
_HANDLERS: dict[str, Handler] = {}


def _handles(*names: str) -> Callable[[Handler], Handler]:
    def add(fn: Handler) -> Handler:
        for name in names:
            _HANDLERS[name] = fn
        return fn

    return add


@_handles("constant")
def _constant(x: _FunctionExporter, op: Op) -> None:
    x.plain(op, "stablehlo.constant", f"value = {dense(op.attrs['value'])}")


@_handles("compare")
def _compare(x: _FunctionExporter, op: Op) -> None:
    direction = f"#stablehlo<comparison_direction {op.attrs['direction']}>"
    x.plain(op, "stablehlo.compare", f"comparison_direction = {direction}")


@_handles("iota")
def _iota(x: _FunctionExporter, op: Op) -> None:
    attr = f"iota_dimension = {op.attrs['dimension']} : i64"
    if x.static(op.result.dims, op) is not None:
        x.plain(op, "stablehlo.iota", attr)
    else:
        x.plain(op, "stablehlo.dynamic_iota", attr, [x.shape(op.result.dims)])


@_handles("broadcast_in_dim")
def _broadcast(x: _FunctionExporter, op: Op) -> None:
    attr = f"broadcast_dimensions = {array(op.attrs['broadcast_dimensions'])}"
    if x.static((*op.operands[0].dims, *op.result.dims), op) is not None:
        x.plain(op, "stablehlo.broadcast_in_dim", attr)
    else:
        x.plain(op, "stablehlo.dynamic_broadcast_in_dim", attr, [x.shape(op.result.dims)])


@_handles("reshape")
def _reshape(x: _FunctionExporter, op: Op) -> None:
    if x.static(op.result.dims, op) is not None:
        x.plain(op, "stablehlo.reshape", "")
    else:
        x.plain(op, "stablehlo.dynamic_reshape", "", [x.shape(op.result.dims)])


@_handles("transpose", "reverse")
def _permute(x: _FunctionExporter, op: Op) -> None:
    key = "permutation" if op.name == "transpose" else "dimensions"
    x.plain(op, f"stablehlo.{op.name}", f"{key} = {array(op.attrs[key])}")


@_handles("concatenate")
def _concatenate(x: _FunctionExporter, op: Op) -> None:
    x.plain(op, "stablehlo.concatenate", f"dimension = {op.attrs['dimension']} : i64")


@_handles("slice")
def _slice(x: _FunctionExporter, op: Op) -> None:
    starts, limits, strides = (op.attrs[k] for k in ("starts", "limits", "strides"))
    values = [x.static(d, op) for d in (starts, limits, strides)]
    if x.static(op.operands[0].dims, op) is not None and all(v is not None for v in values):
        names = ("start_indices", "limit_indices", "strides")
        x.plain(
            op,
            "stablehlo.slice",
            ", ".join(f"{n} = {array(v or ())}" for n, v in zip(names, values, strict=True)),
        )
    else:
        x.plain(op, "stablehlo.real_dynamic_slice", "", [x.shape(d) for d in (starts, limits, strides)])


@_handles("dynamic_slice")
def _dynamic_slice(x: _FunctionExporter, op: Op) -> None:
    sizes = x.static(op.attrs["sizes"], op)
    if sizes is not None:
        x.plain(op, "stablehlo.dynamic_slice", f"slice_sizes = {array(sizes)}")
        return
    # Clamp the starts and slice.
    low, high = [], []
    for start, extent, size in zip(op.operands[1:], op.operands[0].dims, op.attrs["sizes"], strict=True):
        wide = x.emit(f'"stablehlo.convert"({x.names[start]}) : ({x.type(start.type)}) -> {I64}')
        room = x.math.value((extent - size).substitute(x.given))
        clamped = x.math.binary("maximum", x.math.binary("minimum", wide, room), x.math.constant(0))
        low.append(clamped)
        high.append(x.math.binary("add", clamped, x.math.value(size.substitute(x.given))))
    operands = []
    rank = len(low)
    for scalars in (low, high):
        parts = [x.emit(f'"stablehlo.reshape"({s}) : ({I64}) -> tensor<1xi64>') for s in scalars]
        types = ", ".join(["tensor<1xi64>"] * rank)
        joined = x.emit(
            f'"stablehlo.concatenate"({", ".join(parts)}) {{dimension = 0 : i64}} : ({types}) -> tensor<{rank}xi64>'
        )
        operands.append((joined, f"tensor<{rank}xi64>"))
    operands.append(x.shape([Dim.of(1)] * rank))
    x.plain(op, "stablehlo.real_dynamic_slice", "", operands, op.operands[:1])


@_handles("pad")
def _pad(x: _FunctionExporter, op: Op) -> None:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    dims = [op.attrs[k] for k in ("low", "high", "interior")]
    values = [x.static(d, op) for d in dims]
    if all(v is not None for v in values):
        x.plain(
            op,
            "stablehlo.pad",
            ", ".join(f"{n} = {array(v or ())}" for n, v in zip(names, values, strict=True)),
        )
    else:
        x.plain(op, "stablehlo.dynamic_pad", "", [x.shape(d) for d in dims])


_GATHER_NUMBERS = (
    "offset_dims", "collapsed_slice_dims", "operand_batching_dims", "start_indices_batching_dims", "start_index_map",
)  # fmt: skip


@_handles("gather")
def _gather(x: _FunctionExporter, op: Op) -> None:
    a = op.attrs
    numbers = ", ".join(f"{k} = {integers(a.get(k, ()))}" for k in _GATHER_NUMBERS)
    attrs = f"dimension_numbers = #stablehlo.gather<{numbers}, index_vector_dim = {a['index_vector_dim']}>"
    attrs += ", indices_are_sorted = false"
    sizes = x.static(a["slice_sizes"], op)
    shape = x.static(op.result.dims, op)
    if shape is not None and 0 in shape:
        # Nothing from an empty table is legal for us; StableHLO wants the slice to fit the operand even so.
        x.plain(
            op, "stablehlo.constant", f"value = {dense(np.empty(shape, op.result.dtype.np))}", operands=()
        )
    elif sizes is not None:
        x.plain(op, "stablehlo.gather", f"{attrs}, slice_sizes = {array(sizes)}")
    else:
        x.plain(op, "stablehlo.dynamic_gather", attrs, [x.shape(a["slice_sizes"])])


_SCATTER_NUMBERS = (
    "update_window_dims", "inserted_window_dims", "input_batching_dims", "scatter_indices_batching_dims",
    "scatter_dims_to_operand_dims",
)  # fmt: skip


@_handles("scatter")
def _scatter(x: _FunctionExporter, op: Op) -> None:
    a = op.attrs
    numbers = ", ".join(f"{k} = {integers(a.get(k, ()))}" for k in _SCATTER_NUMBERS)
    unique = "true" if a.get("unique_indices") else "false"
    attrs = f"scatter_dimension_numbers = #stablehlo.scatter<{numbers}, index_vector_dim = {a['index_vector_dim']}>"
    x.plain(op, "stablehlo.scatter", f"{attrs}, indices_are_sorted = false, unique_indices = {unique}")


@_handles("reduce")
def _reduce(x: _FunctionExporter, op: Op) -> None:
    x.plain(op, "stablehlo.reduce", f"dimensions = {array(op.attrs['dimensions'])}")


@_handles("reduce_window")
def _reduce_window(x: _FunctionExporter, op: Op) -> None:
    a = op.attrs
    low, high = x.static(a["padding_low"], op), x.static(a["padding_high"], op)
    if low is None or high is None:
        x.custom_call(op)
        return
    names = ("window_dimensions", "window_strides", "base_dilations", "window_dilations")
    attrs = ", ".join(f"{n} = {array(a[n])}" for n in names)
    x.plain(op, "stablehlo.reduce_window", f"{attrs}, padding = {pairs(low, high)}")


@_handles("sort")
def _sort(x: _FunctionExporter, op: Op) -> None:
    stable = "true" if op.attrs.get("stable", True) else "false"
    x.plain(op, "stablehlo.sort", f"dimension = {op.attrs['dimension']} : i64, is_stable = {stable}")


@_handles("dot_general")
def _dot_general(x: _FunctionExporter, op: Op) -> None:
    keys = ("lhs_batching", "rhs_batching", "lhs_contracting", "rhs_contracting")
    numbers = ", ".join(f"{k}_dimensions = {integers(op.attrs[k])}" for k in keys)
    precision = "[#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]"
    attrs = f"dot_dimension_numbers = #stablehlo.dot<{numbers}>, precision_config = {precision}"
    if all(v.dtype.kind == op.result.dtype.kind for v in op.operands):
        x.plain(op, "stablehlo.dot_general", attrs)
        return
    # StableHLO has no product of signed by unsigned bytes: they are converted first.
    wide = [(v, x.type(v.tensor.with_dtype(op.result.dtype))) for v in op.operands]
    inputs = [(x.emit(f'"stablehlo.convert"({x.names[v]}) : ({x.type(v.type)}) -> {kind}'), kind) for v, kind in wide]
    x.plain(op, "stablehlo.dot_general", attrs, inputs, ())


@_handles("convolution")
def _convolution(x: _FunctionExporter, op: Op) -> None:
    a = op.attrs
    low, high = x.static(a["padding_low"], op), x.static(a["padding_high"], op)
    if low is None or high is None:
        x.custom_call(op)
        return
    window = [str(k) for k in range(len(low))]
    data, kernel = ", ".join(["b", *window, "f"]), ", ".join([*window, "i", "o"])
    strides, lhs, rhs = (f"{n} = {array(a[n])}" for n in ("window_strides", "lhs_dilation", "rhs_dilation"))
    x.plain(
        op,
        "stablehlo.convolution",
        f"dimension_numbers = #stablehlo.conv<[{data}]x[{kernel}]->[{data}]>, {strides}, {lhs}, {rhs}, padding = {pairs(low, high)}, "
        f"feature_group_count = {a['feature_group_count']} : i64, batch_group_count = 1 : i64, "
        "precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]",
    )


@_handles(
    "disc.cholesky", "disc.combined_nms", "disc.fill_rows", "disc.lu", "disc.lu_solve", "disc.nms", "disc.nonzero", "disc.partition",
    "disc.search", "disc.segment", "disc.triangular_solve", "disc.unique",
)  # fmt: skip
def _custom(x: _FunctionExporter, op: Op) -> None:
    """What StableHLO has nothing for."""
    x.custom_call(op)


@_handles("disc.topk")
def _topk(x: _FunctionExporter, op: Op) -> None:
    k = x.known(op.attrs["k"])
    if k is None:
        x.custom_call(op)
    else:
        x.plain(op, "chlo.top_k", f"k = {k} : i64")


@_handles("disc.scan")
def _scan(x: _FunctionExporter, op: Op) -> None:
    """A scan over n elements: windows of n that end (exclusive: just before) each element."""
    operand, axis = op.operands[0], op.attrs["dimension"]
    n = x.known(operand.dims[axis])
    if n is None or op.attrs["kind"] == "logaddexp":
        x.custom_call(op)
        return
    if n == 0:
        x.names[op.result] = x.names[operand]
        return
    dtype = operand.dtype
    # Narrow floats accumulate in f32, as everywhere.
    wide = DType.F32 if dtype in (DType.F16, DType.BF16) else dtype
    extents = [x.known(d) for d in operand.dims]
    wide_type, scalar = tensor(wide, extents), tensor(wide, [])
    name = x.names[operand]
    if wide != dtype:
        name = x.emit(f'"stablehlo.convert"({name}) : ({x.type(operand.type)}) -> {wide_type}')
    init = x.emit(
        f'"stablehlo.constant"() {{value = {dense(scan_identity(op.attrs["kind"], wide.np))}}} : () -> {scalar}'
    )
    shift = 1 if op.attrs.get("exclusive") else 0
    before, after = n - 1 + shift, -shift
    if op.attrs.get("reverse"):
        before, after = after, before
    rank = operand.rank
    low, high = [0] * rank, [0] * rank
    low[axis], high[axis] = before, after
    window = [n if k == axis else 1 for k in range(rank)]
    combine = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}[op.attrs["kind"]]
    body = (
        f"^bb0(%a{x.count}: {scalar}, %b{x.count}: {scalar}):\n"
        f'%c{x.count} = "stablehlo.{combine}"(%a{x.count}, %b{x.count}) : ({scalar}, {scalar}) -> {scalar}\n'
        f'"stablehlo.return"(%c{x.count}) : ({scalar}) -> ()'
    )
    attrs = f"window_dimensions = {array(window)}, padding = {pairs(low, high)}"
    name = x.emit(
        f'"stablehlo.reduce_window"({name}, {init}) ({{\n{body}\n}}) {{{attrs}}} : ({wide_type}, {scalar}) -> {wide_type}'
    )
    if wide != dtype:
        name = x.emit(f'"stablehlo.convert"({name}) : ({wide_type}) -> {x.type(op.result.type)}')
    x.names[op.result] = name


@_handles("disc.dim")
def _dim(x: _FunctionExporter, op: Op) -> None:
    value = x.known(op.attrs["dim"])
    name = x.math.value(op.attrs["dim"].substitute(x.given)) if value is None else x.math.constant(value)
    if op.result.dtype != DType.I64:
        name = x.emit(f'"stablehlo.convert"({name}) : ({I64}) -> {x.type(op.result.type)}')
    x.names[op.result] = name


@_handles("disc.bind_dim")
def _bind_dim(x: _FunctionExporter, op: Op) -> None:
    symbol, scalar = op.attrs["symbol"], op.operands[0]
    if symbol in x.given:
        return
    name = x.names[scalar]
    if scalar.dtype != DType.I64:
        name = x.emit(f'"stablehlo.convert"({name}) : ({x.type(scalar.type)}) -> {I64}')
    x.symbols[-1][symbol] = name


@_handles("disc.check")
def _check(x: _FunctionExporter, op: Op) -> None:
    if x.checks == "custom_call":
        x.custom_call(op, effect=True)
    elif x.checks == "results":
        x.predicates.append(x.names[op.operands[0]])


@_handles("disc.create_token", "disc.after_all")
def _token(x: _FunctionExporter, op: Op) -> None:
    if x.checks == "custom_call":
        x.plain(op, f"stablehlo.{op.name.removeprefix('disc.')}", "")
