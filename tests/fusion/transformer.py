"""A transformer layer in HLO, op for op as TensorFlow exports lower: Tensordot reshapes, Mean/SquaredDifference layernorm, erfc GELU."""

from __future__ import annotations

import math

import numpy as np

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Module, Value
from disc_tf.ir.dims import Dim, sym
from disc_tf.ir.types import DType, TensorType


class Layer:
    """Builds into function "main"; ``weights`` become parameters of kind const, added on the way."""

    def __init__(self, dtype: DType = DType.F32, batch: Dim | str = "b", length: Dim | str = "s") -> None:
        self.fn = Function("main")
        self.b = Builder(self.fn.body, self.fn.env)
        self.dtype = dtype
        self.B, self.S = Dim.of(batch), Dim.of(length)

    def arg(self, name: str, dims, dtype: DType | None = None, kind: str = "device") -> Value:
        return self.fn.add_arg(TensorType.of(dtype or self.dtype, dims), ArgInfo(name, kind))

    def weight(self, name: str, *dims: int) -> Value:
        return self.arg(name, dims, kind="const")

    def like(self, x: Value, y: Value) -> Value:
        """``x`` aligned on the right of ``y``'s dims."""
        return self.b.broadcast_in_dim(x, y.dims, range(y.rank - x.rank, y.rank))

    def dense(self, name: str, x: Value, k: int, n: int) -> Value:
        """Keras Dense on [B, S, K] by Tensordot: transpose (identity), reshape, MatMul, reshape, BiasAdd."""
        b = self.b
        flat = b.reshape(b.transpose(x, (0, 1, 2)), (self.B * self.S, k))
        y = b.dot_general(flat, self.weight(f"{name}/kernel", k, n), [1], [0])
        y = b.reshape(y, (self.B, self.S, n))
        return b.add(y, self.like(self.weight(f"{name}/bias", n), y))

    def mean(self, x: Value) -> Value:
        b, last = self.b, x.rank - 1
        total = b.reduce(x, [last], "add")
        count = b.convert(b.dim(x.dims[last]), self.dtype)
        mean = b.divide(total, self.like(count, total))
        return b.reshape(mean, (*x.dims[:last], 1))

    def layernorm(self, name: str, x: Value, n: int) -> Value:
        b = self.b
        mean = self.mean(x)
        d = b.subtract(x, self.like(mean, x))
        variance = self.mean(b.multiply(d, d))
        r = b.rsqrt(b.add(variance, 1e-12))
        gamma, beta = self.weight(f"{name}/gamma", n), self.weight(f"{name}/beta", n)
        scale = b.multiply(self.like(r, x), self.like(gamma, x))
        left = b.multiply(x, scale)
        shift = b.subtract(self.like(beta, x), b.multiply(self.like(mean, x), scale))
        return b.add(left, shift)

    def gelu(self, x: Value) -> Value:
        b = self.b
        half = b.multiply(0.5, x)
        return b.multiply(half, b.erfc(b.multiply(b.negate(x), math.sqrt(0.5))))

    def softmax(self, x: Value) -> Value:
        b, last = self.b, x.rank - 1
        top = b.reduce(x, [last], "max")
        e = b.exponential(b.subtract(x, b.broadcast_in_dim(top, x.dims, range(last))))
        total = b.reduce(e, [last], "add")
        return b.divide(e, b.broadcast_in_dim(total, x.dims, range(last)))

    def heads(self, x: Value, h: int, d: int) -> Value:
        return self.b.transpose(self.b.reshape(x, (self.B, self.S, h, d)), (0, 2, 1, 3))

    def attention(self, name: str, x: Value, mask: Value, h: int, d: int) -> Value:
        b, n = self.b, h * d
        q = self.heads(self.dense(f"{name}/query", x, n, n), h, d)
        k = self.heads(self.dense(f"{name}/key", x, n, n), h, d)
        scores = b.dot_general(q, k, [3], [3], [0, 1], [0, 1])
        scores = b.divide(scores, b.full(math.sqrt(d), self.dtype, scores.dims))
        scores = b.add(scores, b.broadcast_in_dim(mask, scores.dims, range(4)))
        probs = self.softmax(scores)
        v = self.heads(self.dense(f"{name}/value", x, n, n), h, d)
        context = b.transpose(b.dot_general(probs, v, [3], [2], [0, 1], [0, 1]), (0, 2, 1, 3))
        return b.reshape(context, (self.B, self.S, n))

    def layer(self, name: str, x: Value, mask: Value, h: int, d: int, ffn: int) -> Value:
        b, n = self.b, h * d
        context = self.attention(f"{name}/attention", x, mask, h, d)
        x = self.layernorm(f"{name}/ln1", b.add(self.dense(f"{name}/out", context, n, n), x), n)
        y = self.gelu(self.dense(f"{name}/ffn1", x, n, ffn))
        return self.layernorm(f"{name}/ln2", b.add(self.dense(f"{name}/ffn2", y, ffn, n), x), n)

    def mask(self) -> Value:
        """``(1 - cast(mask[B, S])) * -10000`` as [B, 1, 1, S]."""
        b = self.b
        m = self.arg("mask", (self.B, self.S), DType.I32)
        m = b.convert(b.reshape(m, (self.B, 1, 1, self.S)), self.dtype)
        return b.multiply(b.subtract(1.0, m), -10000.0)

    def finish(self, *values: Value) -> Module:
        self.b.return_(values)
        module = Module()
        module.add(self.fn)
        return module


def bert(layers: int = 1, h: int = 2, d: int = 8, ffn: int = 24, dtype: DType = DType.F32) -> Module:
    """``layers`` layers on x[b, s, h*d] and mask[b, s]."""
    t = Layer(dtype)
    x, mask = t.arg("x", ("b", "s", h * d)), t.mask()
    for i in range(layers):
        x = t.layer(f"layer{i}", x, mask, h, d, ffn)
    return t.finish(x)


def random_inputs(fn: Function, symbols: dict[str, int], seed: int = 0) -> list[np.ndarray]:
    """Inputs for the parameters: normal floats, integers 0/1, bools."""
    rng = np.random.default_rng(seed)
    out = []
    for p in fn.params:
        shape = [d.evaluate(symbols) for d in p.dims]
        if p.dtype.is_float:
            out.append((rng.standard_normal(shape) * 0.5).astype(p.dtype.np))
        else:
            out.append(rng.integers(0, 2, shape).astype(p.dtype.np))
    return out


__all__ = ["Layer", "bert", "random_inputs", "sym"]
