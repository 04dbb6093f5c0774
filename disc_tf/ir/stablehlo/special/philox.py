"""Random numbers with the bits of TensorFlow's stateless kernels: Philox 4x32-10 in counter mode (Salmon et al., SC 2011).

All functions are elementwise over u64 arrays of one shape: ``key``, the halves ``low`` and ``high`` of the counter, and ``index``, the
position in the result. One block of the generator serves four 32-bit results or two 64-bit ones, and each element computes its own block.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import lax

from disc_tf.ir.stablehlo.special.poly import Array

_WEYL = (0x9E3779B9, 0xBB67AE85)
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_LOW = 0xFFFFFFFF
#: samples that a truncated normal may take for each result before it runs into its neighbour's
_RESERVED = 256

Block = tuple[Array, Array, Array, Array]


def _u32(x: Array) -> Array:
    return x.astype(jnp.uint32)


def _u64(x: Array) -> Array:
    return x.astype(jnp.uint64)


def block(key: Array, low: Array, high: Array, skip: Array) -> Block:
    """The four u32 of the counter's block ``skip`` blocks later."""
    low1 = low + skip
    high1 = high + _u64(low1 < low)
    k = [_u32(key & _LOW), _u32(key >> 32)]
    c = [_u32(low1 & _LOW), _u32(low1 >> 32), _u32(high1 & _LOW), _u32(high1 >> 32)]
    for round_ in range(10):
        a = _u64(c[0]) * _MULTIPLIERS[0]
        b = _u64(c[2]) * _MULTIPLIERS[1]
        c = [_u32(b >> 32) ^ c[1] ^ k[0], _u32(b & _LOW), _u32(a >> 32) ^ c[3] ^ k[1], _u32(a & _LOW)]
        if round_ < 9:
            k = [x + jnp.uint32(w) for x, w in zip(k, _WEYL, strict=True)]
    return c[0], c[1], c[2], c[3]


def _word(key: Array, low: Array, high: Array, index: Array) -> Array:
    """The 32-bit sample ``index``."""
    x = block(key, low, high, index >> 2)
    lane = index & 3
    return jnp.where(lane == 0, x[0], jnp.where(lane == 1, x[1], jnp.where(lane == 2, x[2], x[3])))


def _words(key: Array, low: Array, high: Array, index: Array) -> tuple[Array, Array]:
    """The two 32-bit samples of the 64-bit sample ``index``, the first one first."""
    x = block(key, low, high, index >> 1)
    first = (index & 1) == 0
    return jnp.where(first, x[0], x[2]), jnp.where(first, x[1], x[3])


def _unit_f32(x: Array) -> Array:
    """[0, 1) from the low 23 bits."""
    return lax.bitcast_convert_type((x & 0x7FFFFF) | 0x3F800000, jnp.float32) - 1.0


def _unit_f64(x0: Array, x1: Array) -> Array:
    """[0, 1) from 20 bits of ``x0`` and all of ``x1``."""
    bits = (_u64(x0 & 0xFFFFF) << 32) | _u64(x1) | 0x3FF0000000000000
    return lax.bitcast_convert_type(bits, jnp.float64) - 1.0


def full_u32(key: Array, low: Array, high: Array, index: Array) -> Array:
    """Uniform over u32."""
    return _word(key, low, high, index)


def full_u64(key: Array, low: Array, high: Array, index: Array) -> Array:
    """Uniform over u64."""
    x0, x1 = _words(key, low, high, index)
    return _u64(x0) | (_u64(x1) << 32)


def uniform_f32(key: Array, low: Array, high: Array, index: Array) -> Array:
    """Uniform over [0, 1)."""
    return _unit_f32(_word(key, low, high, index))


def uniform_f64(key: Array, low: Array, high: Array, index: Array) -> Array:
    """Uniform over [0, 1)."""
    return _unit_f64(*_words(key, low, high, index))


def uniform_f16(key: Array, low: Array, high: Array, index: Array) -> Array:
    """Uniform over the multiples of 2^-10 in [0, 1), as f32."""
    return (_word(key, low, high, index) & 0x3FF).astype(jnp.float32) * 2.0**-10


def uniform_bf16(key: Array, low: Array, high: Array, index: Array) -> Array:
    """Uniform over the multiples of 2^-7 in [0, 1), as f32."""
    return (_word(key, low, high, index) & 0x7F).astype(jnp.float32) * 2.0**-7


def _box_muller_f32(x0: Array, x1: Array) -> tuple[Array, Array]:
    angle = (2.0 * math.pi * _unit_f32(x1).astype(jnp.float64)).astype(jnp.float32)
    radius = jnp.sqrt(-2.0 * jnp.log(jnp.maximum(_unit_f32(x0), 1.0e-7)))
    return jnp.sin(angle) * radius, jnp.cos(angle) * radius


def _box_muller_f64(x: Block) -> tuple[Array, Array]:
    angle = 2.0 * math.pi * _unit_f64(x[2], x[3])
    radius = jnp.sqrt(-2.0 * jnp.log(jnp.maximum(_unit_f64(x[0], x[1]), 1.0e-7)))
    return jnp.sin(angle) * radius, jnp.cos(angle) * radius


def normal_f32(key: Array, low: Array, high: Array, index: Array) -> Array:
    """The standard normal distribution, by Box and Muller's transform of pairs."""
    x = block(key, low, high, index >> 2)
    first = (index & 2) == 0
    sine, cosine = _box_muller_f32(jnp.where(first, x[0], x[2]), jnp.where(first, x[1], x[3]))
    return jnp.where((index & 1) == 0, sine, cosine)


def normal_f64(key: Array, low: Array, high: Array, index: Array) -> Array:
    """The standard normal distribution, by Box and Muller's transform of pairs."""
    sine, cosine = _box_muller_f64(block(key, low, high, index >> 1))
    return jnp.where((index & 1) == 0, sine, cosine)


def _truncated(key: Array, low: Array, high: Array, index: Array, per_block: int) -> Array:
    """Element ``lane`` of a group takes the candidate after ``lane`` accepted ones; a group has its own stretch of the stream."""
    group = index // per_block
    lane = (index % per_block).astype(jnp.int32)
    start = group * (per_block * _RESERVED // 4)
    dtype = jnp.float32 if per_block == 4 else jnp.float64

    def step(state):
        drawn, accepted, result = state
        x = block(key, low, high, start + _u64(drawn))
        candidates = [*_box_muller_f32(x[0], x[1]), *_box_muller_f32(x[2], x[3])] if per_block == 4 else _box_muller_f64(x)
        for c in candidates:
            inside = jnp.abs(c) < 2.0
            result = jnp.where(inside & (accepted == lane), c, result)
            accepted = accepted + inside.astype(jnp.int32)
        return drawn + 1, accepted, result

    first = (jnp.zeros_like(lane), jnp.zeros_like(lane), jnp.zeros_like(index, dtype=dtype))
    return lax.while_loop(lambda s: jnp.any(s[1] <= lane), step, first)[2]


def truncated_f32(key: Array, low: Array, high: Array, index: Array) -> Array:
    """The standard normal distribution without what lies beyond 2."""
    return _truncated(key, low, high, index, 4)


def truncated_f64(key: Array, low: Array, high: Array, index: Array) -> Array:
    """The standard normal distribution without what lies beyond 2."""
    return _truncated(key, low, high, index, 2)


def _mixed(low: Array, high: Array) -> Block:
    """A seed stirred: TensorFlow's scrambling, so that any pair of integers is a good seed."""
    zero = jnp.zeros_like(low)
    return block(jnp.full_like(low, 0x02461E293EC8F720), low, high, zero)


def seed_key(low: Array, high: Array) -> Array:
    """The key of the seed ``[low, high]``; its counter starts at 0."""
    x = _mixed(low, high)
    return _u64(x[0]) | (_u64(x[1]) << 32)


def seed_counter(low: Array, high: Array) -> Array:
    """The upper half of the counter of the seed ``[low, high]``."""
    x = _mixed(low, high)
    return _u64(x[2]) | (_u64(x[3]) << 32)
