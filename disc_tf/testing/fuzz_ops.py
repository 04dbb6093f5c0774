"""Generators of elementwise ops, reductions, products and the patterns of transformers."""

from __future__ import annotations

from typing import Any

import numpy as np

from disc_tf.ir.types import DType
from disc_tf.testing.fuzz_generator import FLOATS, INTS, Generator, generator, np_dtype
from disc_tf.testing.fuzz_program import Ref
from disc_tf.testing.tf_case import tensorflow

_UNARY_EXACT = ("Abs", "Neg", "Square", "Relu", "Relu6", "Identity", "StopGradient", "OnesLike", "ZerosLike")
_UNARY_ROUND = {
    "Exp": 8, "Expm1": 8, "Log": 8, "Log1p": 8, "Sqrt": 4, "Rsqrt": 8, "Tanh": 8, "Sigmoid": 8, "Erf": 8, "Erfc": 64, "Sin": 8,
    "Cos": 8, "Tan": 32, "Asin": 16, "Acos": 16, "Atan": 16, "Sinh": 16, "Cosh": 16, "Asinh": 16, "Acosh": 64, "Atanh": 32,
    "Softplus": 16, "Softsign": 8, "Elu": 8,
    "Selu": 16, "Reciprocal": 4, "Lgamma": 128, "Digamma": 128,
}  # fmt: skip
_UNARY_STEEP = ("Floor", "Ceil", "Round", "Rint", "Sign")


@generator(5)
def unary(g: Generator) -> None:
    x = g.pick("fi")
    if x is None:
        return
    if g.kind(x) == "i" or g.flip(0.4):
        op = g.choice(_UNARY_EXACT if g.kind(x) == "f" else (*_UNARY_EXACT, "Invert", "Sign"))
        key = {"Relu": "features", "Relu6": "features", "Identity": "input", "StopGradient": "input"}.get(op, "x")
        g.add(op, {key: x})
        return
    op = g.choice(list(_UNARY_ROUND))
    if DType.from_np(g.value(x).dtype).bits == 16 and op in ("Lgamma", "Digamma", "Erfc", "Elu", "Selu", "Softplus"):
        return
    if op == "Erf" and g.value(x).dtype == np.float64 and not g.all_within(x, -1e100, 1e100):
        return  # TensorFlow's vectors give NaN for an infinity
    key = {"Softplus": "features", "Softsign": "features", "Elu": "features", "Selu": "features"}.get(op, "x")
    floor = 1.0 if op in ("Elu", "Selu", "Lgamma", "Digamma") else 0.0  # where TensorFlow itself is inexact: near zeros of the result
    g.add(op, {key: x}, ulps=_UNARY_ROUND[op], floor=floor)


@generator()
def steep_unary(g: Generator) -> None:
    x = g.pick("f", exact=True)
    g.add(g.choice((*_UNARY_STEEP, "IsNan", "IsInf", "IsFinite")), {"x": x}) if x else None


_INT_BINARY = (
    "FloorDiv", "FloorMod", "TruncateDiv", "TruncateMod", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "LeftShift", "RightShift",
)  # fmt: skip
_BINARY = ("AddV2", "Sub", "Mul", "Maximum", "Minimum", "SquaredDifference")


@generator(6)
def binary(g: Generator) -> None:
    x = g.pick("fi")
    y = g.pick("fi", like=x) if x else None
    if x is None or y is None:
        return
    if g.flip(0.2):
        y = g.const(g.choice([0, 1, 2, 3]), g.value(x).dtype)
    if g.kind(x) == "f" and g.flip(0.25):
        op = g.choice(("RealDiv", "DivNoNan", "Pow", "Atan2", "MulNoNan", "Xlogy"))
        if op == "Pow" and (g.has_denormals(x) or g.has_denormals(y)):
            return  # zeros in TensorFlow's vectors, numbers in its single elements
        g.add(op, {"y": x, "x": y} if g.flip() else {"x": x, "y": y}, ulps={"RealDiv": 1, "DivNoNan": 1, "MulNoNan": 0}.get(op, 16))
    elif g.kind(x) == "i" and g.flip(0.3):
        g.add(g.choice(_INT_BINARY),
              {"x": x, "y": y})  # fmt: skip
    else:
        g.add(g.choice(_BINARY), {"x": x, "y": y} if g.flip() else {"x": y, "y": x})


@generator(2)
def comparison(g: Generator) -> None:
    x = g.pick("fi", exact=True)
    y = g.pick("fi", exact=True, like=x) if x else None
    if x is None or y is None:
        return
    if g.flip(0.3):
        y = g.const(1, g.value(x).dtype)
    found = g.add(g.choice(("Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual")), {"x": x, "y": y})
    if found and g.flip():
        a = g.pick("fib")
        b = g.pick("fib", like=a) if a else None
        if a and b:
            g.add("SelectV2", {"condition": found[0], "t": a, "e": b})


@generator()
def logic(g: Generator) -> None:
    x, y = g.pick("b"), g.pick("b")
    if x and y:
        if g.flip(0.3):
            g.add("LogicalNot", {"x": x})
        elif g.flip(0.6):
            g.add(g.choice(("LogicalAnd", "LogicalOr")), {"x": x, "y": y})
        else:
            reduction(g, x, g.choice(("All", "Any")))


@generator(2)
def cast(g: Generator) -> None:
    x = g.pick("fib", exact=True) if g.flip() else g.pick("f")
    if x is None:
        return
    names = (*FLOATS, *INTS, "bool") if g.exact(x) else FLOATS
    target = g.choice(names)
    if target not in FLOATS and g.kind(x) == "f" and not g.all_within(x, 0 if target.startswith("u") else -100, 100):
        return  # out of range: what TensorFlow gives depends on its vector width
    g.add("Cast", {"x": x}, DstT=tensorflow().as_dtype(np_dtype(target)), ulps=1)


def reduction(g: Generator, x: Ref, op: str, **more: Any) -> list[Ref]:
    rank = g.rank(x)
    axes = [a for a in range(rank) if g.flip()] or ([] if g.flip(0.3) else list(range(rank))[-1:])
    if g.flip(0.3):
        axes = [a - rank for a in axes]
    return g.add(op, {"input": x, "axis": g.const(axes, np.int32)}, keep_dims=g.flip(), **more)


@generator(4)
def reduce(g: Generator) -> None:
    x = g.pick("fi", min_rank=1)
    if x is None:
        return
    op = g.choice(("Sum", "Sum", "Max", "Min", "Mean", "Prod"))
    if op == "Prod":
        if g.value(x).size > 40:
            return
        reduction(g, x, op, ulps=16, sums=True)
    elif op in ("Max", "Min"):
        reduction(g, x, op)
    else:
        reduction(g, x, op, ulps=2, sums=True)


@generator()
def arg_reduce(g: Generator) -> None:
    x = g.pick("fi", min_rank=1, exact=True)
    if x is not None and not g.has_nans(x):
        tf = tensorflow()
        axis = g.const(g.axis(g.rank(x)), np.int32)
        g.add(g.choice(("ArgMax", "ArgMin")), {"input": x, "dimension": axis}, output_type=g.choice((tf.int32, tf.int64)))


@generator(2)
def norms(g: Generator) -> None:
    x = g.pick("f", min_rank=1)
    if x is None:
        return
    if g.flip():
        op = g.choice(("Softmax", "LogSoftmax"))
        # the logarithm of a sum near one is as wrong as the sum
        g.add(op, {"logits": x}, ulps=64, floor=1.0 if op == "LogSoftmax" else 0.0)
        return
    axis = g.const([-1], np.int32)
    mean = g.add("Mean", {"input": x, "axis": axis}, keep_dims=True, ulps=2, sums=True)
    centred = g.add("Sub", {"x": x, "y": mean[0]}) if mean else []
    if centred:
        square = g.add("Square", {"x": centred[0]})
        var = g.add("Mean", {"input": square[0], "axis": axis}, keep_dims=True, ulps=2, sums=True)
        eps = g.const(1e-3, g.value(x).dtype)
        scale = g.add("Rsqrt", {"x": g.add("AddV2", {"x": var[0], "y": eps})[0]}, ulps=8)
        g.add("Mul", {"x": centred[0], "y": scale[0]})


@generator(3)
def product(g: Generator) -> None:
    x = g.pick("f", min_rank=2)
    if x is None:
        return
    k = g.shape(x)[-1]
    if g.rank(x) == 2 and g.flip(0.6):
        n = int(g.choice((1, 3, 8, 16, 33)))
        dims = (n, k) if g.flip(0.3) else (k, n)
        w = g.const(g.data("float64", dims, False).astype(g.value(x).dtype))
        found = g.add("MatMul", {"a": x, "b": w}, transpose_b=dims == (n, k), ulps=2, sums=True)
        if found and g.flip(0.6):
            bias = g.const(g.data("float64", (n,), False).astype(g.value(x).dtype))
            g.add("BiasAdd", {"value": found[0], "bias": bias})
        return
    y = g.pick("f", min_rank=2, like=x)
    if y is not None:
        if g.rank(x) == 2 and g.rank(y) == 2 and g.flip():
            g.add("MatMul", {"a": x, "b": y}, transpose_a=g.flip(0.3), transpose_b=g.flip(), ulps=2, sums=True)
        else:
            g.add("BatchMatMulV2", {"x": x, "y": y}, adj_x=g.flip(0.3), adj_y=g.flip(), ulps=2, sums=True)


@generator()
def attention(g: Generator) -> None:
    x = g.pick("f", min_rank=3)
    y = g.pick("f", min_rank=3, like=x) if x else None
    if x is None or y is None:
        return
    score = g.add("BatchMatMulV2", {"x": x, "y": y}, adj_y=True, ulps=2, sums=True)
    if score:
        scaled = g.add("Mul", {"x": score[0], "y": g.const(0.3, g.value(x).dtype)})
        mask = g.pick("f", like=x)
        if mask and g.flip():
            scaled = g.add("AddV2", {"x": scaled[0], "y": mask}) or scaled
        probs = g.add("Softmax", {"logits": scaled[0]}, ulps=64)
        g.add("BatchMatMulV2", {"x": probs[0], "y": y}, ulps=2, sums=True)
