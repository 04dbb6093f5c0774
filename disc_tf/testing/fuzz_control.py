"""Generators of branches and loops: `tf.cond`, `tf.switch_case`, `tf.while_loop`, `tf.scan` and `tf.map_fn` with random bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from disc_tf.testing.fuzz_generator import Generator, generator
from disc_tf.testing.fuzz_program import STRUCTURED, Body, Ref, Step
from disc_tf.testing.tf_case import tensorflow


def _cond(given: dict[str, Any], attrs: dict[str, Any]) -> Any:
    then, other = attrs["branches"]
    return tensorflow().cond(given["pred"], lambda: then(*given["inputs"]), lambda: other(*given["inputs"]))


def _switch_case(given: dict[str, Any], attrs: dict[str, Any]) -> Any:
    branches = [lambda body=body: body(*given["inputs"]) for body in attrs["branches"]]
    return tensorflow().switch_case(given["index"], branches)


def _while(given: dict[str, Any], attrs: dict[str, Any]) -> Any:
    """``count`` rounds over the values; the first parameter of the body is the round."""
    tf = tensorflow()
    count, body = given["count"], attrs["body"]

    def step(i: Any, *values: Any) -> list[Any]:
        return [i + 1, *body(i, *values)]

    start = [tf.constant(0), *given["inputs"]]
    try:
        return tf.while_loop(lambda i, *_: i < count, step, start)
    except ValueError:  # TensorFlow sees an extent before the loop that it does not see behind the body
        unknown = [tf.TensorShape([None] * v.shape.rank) for v in start]
        return tf.while_loop(lambda i, *_: i < count, step, start, shape_invariants=unknown)


def _scan(given: dict[str, Any], attrs: dict[str, Any]) -> Any:
    body = attrs["body"]
    return tensorflow().scan(lambda state, x: body(state, x)[0], given["elems"], initializer=given["init"])


def _map_fn(given: dict[str, Any], attrs: dict[str, Any]) -> Any:
    body = attrs["body"]
    return tensorflow().map_fn(lambda x: body(x)[0], given["elems"])


STRUCTURED.update(cond=_cond, switch_case=_switch_case, while_loop=_while, scan=_scan, map_fn=_map_fn)

#: what rounding a body may do, in units of 1 or of the value
_ROUNDING: dict[str, Any] = {"ulps": 32, "floor": 1.0}
#: elementwise ops whose rounding a loop does not blow up: results stay in [-1, 1]
_CALM = (("Tanh", "x"), ("Sin", "x"), ("Sigmoid", "x"), ("Erf", "x"))
_PLAIN = (("Neg", "x"), ("Abs", "x"), ("Relu", "features"), ("Identity", "input"))


class _Grower:
    """Grows a `Body` over parameters of known shapes and one dtype; keeps the results' shapes those of ``like``."""

    def __init__(self, g: Generator, params: int) -> None:
        self.g, self.params, self.steps = g, params, []

    def add(self, op: str, operands: dict[str, Ref], ulps: float = 0.0, sums: bool = False, **attrs: Any) -> Ref:
        self.steps.append(Step(op, dict(operands), attrs, ulps, sums))
        return (self.params + len(self.steps) - 1, 0)

    def calm(self, x: Ref, others: Sequence[Ref], width: int | None, dtype: np.dtype) -> Ref:
        """A bounded float of the shape of ``x``: ``others`` have that shape too; ``width`` its known last extent, for a product."""
        g = self.g
        for _ in range(int(g.rng.integers(0, 3))):
            if others and g.flip():
                x = self.add(g.choice(("AddV2", "Mul", "Maximum", "Sub")), {"x": x, "y": g.choice(list(others))})
            else:
                op, key = g.choice(_PLAIN)
                x = self.add(op, {key: x})
        if width and g.flip():
            w = self.add("Const", {}, value=(g.data("float64", (width, width), False) / width).astype(dtype))
            x = self.add("MatMul", {"a": x, "b": w}, ulps=2, sums=True)
        # TensorFlow's vectors of f64 give NaN for erf of an infinity
        op, key = g.choice([c for c in _CALM if c[0] != "Erf" or dtype != np.float64])
        return self.add(op, {key: x}, ulps=8)

    def exact(self, x: Ref, others: Sequence[Ref]) -> Ref:
        """An integer of the shape of ``x``."""
        g = self.g
        for _ in range(int(g.rng.integers(1, 4))):
            op = g.choice(("AddV2", "Mul", "Sub", "Maximum"))
            x = self.add(op, {"x": x, "y": g.choice([x, *others])})
        return x

    def body(self, *results: Ref) -> Body:
        return Body(self.params, self.steps, list(results))


def _like(g: Generator, x: Ref) -> list[Ref]:
    """Other values of the dtype and, at every size, the shape of ``x``."""
    found = [
        r for r in g.refs()
        if r != x and g.value(r).dtype == g.value(x).dtype and all(a == b for a, b in g.shapes_of(r, x)) and g.shapes_of(r, x)
    ]  # fmt: skip
    return [g.choice(found)] if found else []


def _grow(g: Generator, params: int, x: Ref, at: Ref, others: Sequence[Ref]) -> Body:
    """A body that gives a value of the shape of its parameter ``at``, which ``x`` is passed for."""
    grower = _Grower(g, params)
    if g.kind(x) == "i":
        return grower.body(grower.exact(at, others))
    width = g.shape(x)[-1] if g.rank(x) == 2 and all(s[0][-1] == g.shape(x)[-1] for s in g.shapes_of(x)) else None
    return grower.body(grower.calm(at, others, width, g.value(x).dtype))


@generator()
def cond(g: Generator) -> None:
    x = g.pick("fi")
    if x is None:
        return
    inputs = [x, *_like(g, x)]
    others = [(i, 0) for i in range(1, len(inputs))]
    branches = [_grow(g, len(inputs), x, (0, 0), others) for _ in range(3)]
    if g.flip(0.7):
        pred = g.pick("b", max_rank=0)
        if pred is None:
            pred = g.const(g.flip(), np.bool_)
            if g.flip(0.8):
                some = g.add("Size", {"input": x}, out_type=tensorflow().int32)[0]
                pred = g.add("Greater", {"x": some, "y": g.const(int(g.choice((0, 3, 9))), np.int32)})[0]
        g.add("cond", {"pred": pred, "inputs": inputs}, branches=branches[:2], **_ROUNDING)
    else:
        some = g.add("Size", {"input": x}, out_type=tensorflow().int32)[0]
        index = g.add("Sub", {"x": some, "y": g.const(int(g.choice((3, 6, 12))), np.int32)})[0]
        g.add("switch_case", {"index": index, "inputs": inputs}, branches=branches, **_ROUNDING)


@generator()
def loop(g: Generator) -> None:
    x = g.pick("fi")
    if x is None:
        return
    inputs = [x, *_like(g, x)]
    others = [(i + 1, 0) for i in range(1, len(inputs))]
    grown = _grow(g, len(inputs) + 1, x, (1, 0), others)
    keep = [(i + 1, 0) for i in range(1, len(inputs))]
    if keep and g.flip(0.4):
        keep = [(1, 0)]  # the two change places
    body = Body(grown.params, grown.steps, [*grown.results, *keep])
    count = g.const(int(g.rng.integers(0, 4)), np.int32)
    if g.flip() and g.rank(x):
        count = g.add("Minimum", {"x": g.add("Size", {"input": x}, out_type=tensorflow().int32)[0], "y": g.const(5, np.int32)})[0]
    g.add("while_loop", {"count": count, "inputs": inputs}, body=body, **_ROUNDING)


@generator()
def scan(g: Generator) -> None:
    x = g.pick("fi", min_rank=2, max_rank=4)
    if x is None or any(s[0][0] == 0 for s in g.shapes_of(x)):
        return  # tf.scan looks at the first element
    if g.flip(0.4):
        g.add("map_fn", {"elems": x}, body=_element_body(g, x, 1, (0, 0), []), **_ROUNDING)
        return
    first = g.add("GatherV2", {"params": x, "indices": g.const(0, np.int32), "axis": g.const(0, np.int32)})
    if first:
        g.add("scan", {"elems": x, "init": first[0]}, body=_element_body(g, x, 2, (0, 0), [(1, 0)]), **_ROUNDING)


def _element_body(g: Generator, x: Ref, params: int, at: Ref, others: Sequence[Ref]) -> Body:
    grower = _Grower(g, params)
    if g.kind(x) == "i":
        return grower.body(grower.exact(at, others))
    static = g.rank(x) == 3 and all(s[0][-1] == g.shape(x)[-1] for s in g.shapes_of(x))
    return grower.body(grower.calm(at, others, g.shape(x)[-1] if static else None, g.value(x).dtype))
