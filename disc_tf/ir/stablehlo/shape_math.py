"""Dims as StableHLO arithmetic on `tensor<i64>`, with the rounding of `disc_tf.ir.dims`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from disc_tf.ir.dims import Atom, Dim
from disc_tf.ir.stablehlo.text import dense

I64 = "tensor<i64>"
I1 = "tensor<i1>"


class ShapeMath:
    """Emits the value of dims through `emit(op text, result type) -> name`. `lookup(symbol)` gives a symbol's i64 scalar."""

    def __init__(self, emit: Callable[[str, str], str], lookup: Callable[[str], str]) -> None:
        self.emit = emit
        self.lookup = lookup

    def constant(self, value: int) -> str:
        return self.emit(
            f'"stablehlo.constant"() {{value = {dense(np.array(value, np.int64))}}} : () -> {I64}', I64
        )

    def binary(self, op: str, a: str, b: str) -> str:
        return self.emit(f'"stablehlo.{op}"({a}, {b}) : ({I64}, {I64}) -> {I64}', I64)

    def compare(self, a: str, b: str, direction: str) -> str:
        attr = f"{{comparison_direction = #stablehlo<comparison_direction {direction}>}}"
        return self.emit(f'"stablehlo.compare"({a}, {b}) {attr} : ({I64}, {I64}) -> {I1}', I1)

    def logical(self, op: str, a: str, b: str) -> str:
        return self.emit(f'"stablehlo.{op}"({a}, {b}) : ({I1}, {I1}) -> {I1}', I1)

    def select(self, p: str, a: str, b: str) -> str:
        return self.emit(f'"stablehlo.select"({p}, {a}, {b}) : ({I1}, {I64}, {I64}) -> {I64}', I64)

    def value(self, dim: Dim) -> str:
        """The name of an i64 scalar with the dim's value."""
        total = ""
        for coefficient, mono in dim.terms:
            factors = [self.atom(atom) for atom, power in mono for _ in range(power)]
            if coefficient != 1 or not factors:
                factors.append(self.constant(coefficient))
            term = factors[0]
            for factor in factors[1:]:
                term = self.binary("multiply", term, factor)
            total = self.binary("add", total, term) if total else term
        return total or self.constant(0)

    def atom(self, atom: Atom) -> str:
        if atom.kind == "sym":
            return self.lookup(atom.name)
        a, b = (self.value(arg) for arg in atom.args)
        if atom.kind in ("min", "max"):
            return self.binary(f"{atom.kind}imum", a, b)
        if atom.kind == "bcast":
            return self.select(self.compare(a, self.constant(1), "EQ"), b, a)
        # StableHLO truncates: bring the remainder to the divisor's sign.
        zero = self.constant(0)
        rest = self.binary("remainder", a, b)
        other_sign = self.logical("xor", self.compare(rest, zero, "LT"), self.compare(b, zero, "LT"))
        adjust = self.logical("and", self.compare(rest, zero, "NE"), other_sign)
        rest = self.select(adjust, self.binary("add", rest, b), rest)
        return rest if atom.kind == "mod" else self.binary("divide", self.binary("subtract", a, rest), b)
