"""Stateless random numbers: the bits of TF's CPU kernels (normal deviates to a few ULP).

Seeds, keys and counters are run-time values. What keeps state (RandomUniform ...) stays in TensorFlow.
"""

from __future__ import annotations

from disc_tf.ir.core import Value
from disc_tf.ir.dims import Dim, product
from disc_tf.ir.types import DType
from disc_tf.lowering.content import element
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.jax_rules import call_jax
from disc_tf.lowering.node import NodeView
from disc_tf.lowering.numerics import convert
from disc_tf.lowering.plain import plain
from disc_tf.lowering.registry import FLOATS, lowering
from disc_tf.lowering.shape_ops import shape_operand
from disc_tf.lowering.shapes import invalid

_PHILOX, _AUTO = 1, 3
_LIMITS = "the rank of the result is known"
_V2_LIMITS = f"{_LIMITS}; the algorithm is Philox (which auto_select is on the CPU)"
Stream = tuple[Value, Value, Value]  # key, low and high half of the counter: u64 scalars


def _seeded(ctx: LoweringContext, seed: Value) -> tuple[Value, Value]:
    """The key and the upper half of the counter that TF makes of a seed of two integers."""
    if seed.rank != 1:
        raise invalid(f"seed must have shape [2], not {seed.type}")
    ctx.check_dims_eq(seed.dims[0], 2, message=f"seed must have shape [2], not {plain(seed.type)}")
    if seed.dtype not in (DType.I32, DType.I64):
        raise invalid(f"Invalid seed type: {seed.dtype}")
    seed = ctx.cast_dims(seed, [2])
    halves = [convert(ctx, element(ctx, seed, i), DType.U64) for i in range(2)]
    return call_jax(ctx, "philox.seed_key", *halves), call_jax(ctx, "philox.seed_counter", *halves)


def _stream_of_seed(ctx: LoweringContext, seed: Value) -> Stream:
    key, high = _seeded(ctx, seed)
    return key, ctx.scalar(0, DType.U64), high


def _stream_of_key(ctx: LoweringContext, key: Value, counter: Value, alg: Value) -> Stream:
    if key.rank != 1 or counter.rank != 1 or alg.rank:
        raise invalid("key and counter must be vectors, alg a scalar")
    algorithm = ctx.constant(alg)
    if algorithm is None:
        raise Unsupported("NOT_CONSTANT", "the algorithm of a random generator is not known at compile time")
    if int(algorithm) not in (_PHILOX, _AUTO):
        raise Unsupported("ATTR", f"random algorithm {int(algorithm)}: TensorFlow's CPU kernels have Philox only")
    ctx.check_dims_eq(key.dims[0], 1, message=f"key must have shape [1], not {plain(key.type)}")
    ctx.check_dim_cond(counter.dims[0], "GE", 2, message=f"counter must be a vector with length at least 2; got {plain(counter.type)}")
    halves = [ctx.b.reshape(ctx.b.slice(counter, [i], [i + 1]), []) for i in range(2)]
    return ctx.b.reshape(ctx.cast_dims(key, [1]), []), halves[0], halves[1]


def _draw(ctx: LoweringContext, function: str, stream: Stream, dims: list[Dim]) -> Value:
    """A function of `philox` at every position of a result."""
    count = product(dims)
    index = ctx.b.convert(ctx.b.iota(DType.I64, [count], 0), DType.U64)
    flat = call_jax(ctx, f"philox.{function}", *(ctx.broadcast_to(v, [count]) for v in stream), index)
    return ctx.b.reshape(flat, dims)


def _floats(ctx: LoweringContext, node: NodeView, shape: Value, stream: Stream) -> Value:
    dtype = node.dtype("dtype", DType.F32)
    dims = shape_operand(ctx, shape, f"the shape of {node.op}")
    if "Uniform" in node.op:
        return convert(ctx, _draw(ctx, f"uniform_{dtype.ir_name}", stream, dims), dtype)
    kind = "truncated" if "Truncated" in node.op else "normal"
    wide = DType.F64 if dtype == DType.F64 else DType.F32
    return convert(ctx, _draw(ctx, f"{kind}_{wide.ir_name}", stream, dims), dtype)


@lowering("StatelessRandomUniform", "StatelessRandomNormal", "StatelessTruncatedNormal", dtypes={"dtype": FLOATS}, limits=_LIMITS)
def random_floats(ctx: LoweringContext, node: NodeView, shape: Value, seed: Value) -> Value:
    """Of a seed."""
    return _floats(ctx, node, shape, _stream_of_seed(ctx, seed))


@lowering("StatelessRandomUniformV2", "StatelessRandomNormalV2", "StatelessTruncatedNormalV2", dtypes={"dtype": FLOATS}, limits=_V2_LIMITS)
def random_floats_v2(ctx: LoweringContext, node: NodeView, shape: Value, key: Value, counter: Value, alg: Value) -> Value:
    """Of a key and a counter."""
    return _floats(ctx, node, shape, _stream_of_key(ctx, key, counter, alg))


def _full_int(ctx: LoweringContext, dtype: DType, stream: Stream, dims: list[Dim]) -> Value:
    unsigned = DType.U32 if dtype.bits == 32 else DType.U64
    return convert(ctx, _draw(ctx, f"full_{unsigned.ir_name}", stream, dims), dtype)


def _ints(ctx: LoweringContext, shape: Value, stream: Stream, low: Value, high: Value) -> Value:
    """``low + sample mod (high - low)`` in unsigned arithmetic: biased by less than range / 2^bits, as TF's are."""
    if low.rank or high.rank:
        raise invalid(f"minval and maxval must be 0-D, got shapes {low.type} and {high.type}")
    dims = shape_operand(ctx, shape, "the shape of StatelessRandomUniformInt")
    b, dtype = ctx.b, low.dtype
    unsigned = DType.U32 if dtype.bits == 32 else DType.U64
    empty = b.compare(ctx.dim(product(dims)), ctx.scalar(0, DType.I64), "EQ")
    ctx.check(b.or_(b.compare(low, high, "LT"), empty), message="Need minval < maxval")
    least = convert(ctx, low, unsigned)
    span = b.subtract(convert(ctx, high, unsigned), least)
    sample = _draw(ctx, f"full_{unsigned.ir_name}", stream, dims)
    offset = b.remainder(sample, ctx.broadcast_to(span, dims))
    return convert(ctx, b.add(offset, ctx.broadcast_to(least, dims)), dtype)


_INT_TYPES = {"dtype": frozenset({DType.I32, DType.I64})}
_FULL_TYPES = {"dtype": frozenset({DType.I32, DType.I64, DType.U32, DType.U64})}


@lowering("StatelessRandomUniformInt", dtypes=_INT_TYPES, limits=_LIMITS)
def random_ints(ctx: LoweringContext, _node: NodeView, shape: Value, seed: Value, low: Value, high: Value) -> Value:
    """Of a seed."""
    return _ints(ctx, shape, _stream_of_seed(ctx, seed), low, high)


@lowering("StatelessRandomUniformIntV2", dtypes=_INT_TYPES, limits=_V2_LIMITS)
def random_ints_v2(
    ctx: LoweringContext, _node: NodeView, shape: Value, key: Value, counter: Value, alg: Value, low: Value, high: Value
) -> Value:
    """Of a key and a counter."""
    return _ints(ctx, shape, _stream_of_key(ctx, key, counter, alg), low, high)


@lowering("StatelessRandomUniformFullInt", dtypes=_FULL_TYPES, limits=_LIMITS)
def random_full_ints(ctx: LoweringContext, node: NodeView, shape: Value, seed: Value) -> Value:
    """Of a seed, over the whole type."""
    dims = shape_operand(ctx, shape, "the shape of StatelessRandomUniformFullInt")
    return _full_int(ctx, node.dtype("dtype", DType.U64), _stream_of_seed(ctx, seed), dims)


@lowering("StatelessRandomUniformFullIntV2", dtypes=_FULL_TYPES, limits=_V2_LIMITS)
def random_full_ints_v2(ctx: LoweringContext, node: NodeView, shape: Value, key: Value, counter: Value, alg: Value) -> Value:
    """Of a key and a counter, over the whole type."""
    dims = shape_operand(ctx, shape, "the shape of StatelessRandomUniformFullIntV2")
    return _full_int(ctx, node.dtype("dtype", DType.U64), _stream_of_key(ctx, key, counter, alg), dims)


@lowering("StatelessRandomGetAlg")
def random_algorithm(ctx: LoweringContext, _node: NodeView) -> Value:
    """Philox, the CPU's."""
    return ctx.scalar(_PHILOX, DType.I32)


@lowering("StatelessRandomGetKeyCounter", "StatelessRandomGetKeyCounterAlg")
def random_key_counter(ctx: LoweringContext, node: NodeView, seed: Value) -> list[Value]:
    """The key ``u64[1]`` and the counter ``u64[2]`` of a seed."""
    key, high = _seeded(ctx, seed)
    halves = [ctx.b.reshape(v, [1]) for v in (ctx.scalar(0, DType.U64), high)]
    results = [ctx.b.reshape(key, [1]), ctx.b.concatenate(halves, 0)]
    return [*results, ctx.scalar(_PHILOX, DType.I32)] if node.op.endswith("Alg") else results
