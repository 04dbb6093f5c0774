"""Dim: canonical form, text, and agreement with plain integer arithmetic."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disc_tf.ir import dims as D
from disc_tf.ir.dims import Dim, DimTooComplex, bcast, ceildiv, dmax, dmin, exact_div, parse_dim, sym

n, m, k = sym("n"), sym("m"), sym("k")
NAMES = ("n", "m", "k")


class Ref:
    """An expression as a Python function next to its Dim."""

    def __init__(self, dim, fn):
        self.dim, self.fn = dim, fn


def _binary(op, a: Ref, b: Ref) -> Ref:
    make = {
        "+": (lambda x, y: x + y, lambda x, y: x + y),
        "-": (lambda x, y: x - y, lambda x, y: x - y),
        "*": (lambda x, y: x * y, lambda x, y: x * y),
        "//": (lambda x, y: x // y, lambda x, y: x // y),
        "%": (lambda x, y: x % y, lambda x, y: x % y),
        "min": (dmin, min),
        "max": (dmax, max),
    }[op]
    try:
        dim = make[0](a.dim, b.dim)
    except (DimTooComplex, ZeroDivisionError):
        return a
    return Ref(dim, lambda v: make[1](a.fn(v), b.fn(v)))


leaves = st.one_of(
    st.integers(-6, 12).map(lambda c: Ref(Dim.of(c), lambda v: c)),
    st.sampled_from(NAMES).map(lambda s: Ref(sym(s), lambda v: v[s])),
)
exprs = st.recursive(
    leaves,
    lambda inner: st.builds(_binary, st.sampled_from(["+", "-", "*", "//", "%", "min", "max"]), inner, inner),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(exprs)
def test_arithmetic_agrees_with_integers(e):
    text = parse_dim(str(e.dim))
    assert text == e.dim and hash(text) == hash(e.dim) and str(text) == str(e.dim)
    for values in itertools.product((0, 1, 2, 3, 7), repeat=3):
        v = dict(zip(NAMES, values, strict=True))
        try:
            expected = e.fn(v)
        except ZeroDivisionError:
            continue  # undefined there
        assert e.dim.evaluate(v) == expected
        assert e.dim.substitute(v) == expected


@settings(max_examples=200, deadline=None)
@given(exprs, exprs, exprs)
def test_ring_laws_are_canonical(a, b, c):
    a, b, c = a.dim, b.dim, c.dim
    try:
        pairs = [(a + b, b + a), (a * b, b * a), ((a + b) + c, a + (b + c)), ((a + b) * c, a * c + b * c)]
    except DimTooComplex:
        return
    for x, y in pairs:
        assert x == y and hash(x) == hash(y)
    assert a - a == 0
    assert dmin(a, b) == dmin(b, a) and dmax(a, dmax(b, a)) == dmax(a, b)


@settings(max_examples=200, deadline=None)
@given(exprs, exprs)
def test_exact_div(a, b):
    a, b = a.dim, b.dim
    if b == 0:
        return
    try:
        product = a * b
    except DimTooComplex:
        return
    assert exact_div(product, b) == a
    q = exact_div(a, b)
    assert q is None or q * b == a


@settings(max_examples=200, deadline=None)
@given(exprs, exprs, exprs)
def test_substitute_then_evaluate(e, x, y):
    try:
        dim = e.dim.substitute({"n": x.dim, "m": y.dim})
    except (DimTooComplex, ZeroDivisionError):
        return
    for values in itertools.product((0, 1, 3), repeat=3):
        v = dict(zip(NAMES, values, strict=True))
        try:
            expected = e.dim.evaluate(v | {"n": x.dim.evaluate(v), "m": y.dim.evaluate(v)})
        except ZeroDivisionError:
            continue
        assert dim.evaluate(v) == expected


@pytest.mark.parametrize(
    "dim, text",
    [
        (n * m * 6 + 0, "6*m*n"),
        (n * n - m * m, "-m^2 + n^2"),
        (ceildiv(n, 4), "floordiv(n + 3, 4)"),
        ((n * 6 + 3) // 4, "n + floordiv(n + 1, 2)"),
        ((5 * n - 7) % 4, "mod(n + 1, 4)"),
        ((n // 3 + 1) // 5, "floordiv(n + 3, 15)"),
        ((2 * n + 1) // 4, "floordiv(n, 2)"),
        ((2 * n) % 4, "2*mod(n, 2)"),
        ((6 * n) // (4 * m), "floordiv(3*n, 2*m)"),
        (dmin(n, n + 1), "n"),
        (dmax(dmax(n, 3), 5), "max(5, n)"),
        (n * 12 * 64 // 768, "n"),
        (Dim.of(0), "0"),
        (-n + 1, "-n + 1"),
    ],
)
def test_canonical_text(dim, text):
    assert str(dim) == text
    assert parse_dim(text) == dim


def test_product_over_symbolic_divisor_is_not_cancelled():
    # B*S*768 // (B*768) is S only where B != 0, which this module does not know.
    assert str((n * m * 768) // (n * 768)) == "floordiv(m*n, n)"


def test_bcast():
    assert bcast(1, n) == n and bcast(n, 1) == n and bcast(n, n) == n
    assert bcast(1, 0) == 0 and bcast(0, 1) == 0 and bcast(1, 1) == 1
    assert bcast(768, n) == 768 and bcast(n, 0) == 0
    assert bcast(n, bcast(m, n)) == bcast(m, n) == bcast(bcast(1, m), n)
    with pytest.raises(ValueError, match="do not broadcast"):
        bcast(2, 3)
    for a, b in [(1, 0), (0, 1), (1, 5), (5, 1), (4, 4), (0, 0)]:
        assert bcast(n, m).evaluate({"n": a, "m": b}) == np.broadcast_shapes((a,), (b,))[0]


def test_static():
    assert Dim.of(np.int64(5)) == 5 == np.int32(5) and hash(Dim.of(5)) == hash(5)
    assert int(n - n + 3) == 3 and list(range(Dim.of(2))) == [0, 1]
    assert not Dim.of(0) and n.symbol == "n" and (n + 1).symbol is None
    for bad in (lambda: int(n), lambda: bool(n), lambda: Dim.of(1.5), lambda: Dim.of(True)):
        with pytest.raises(TypeError):
            bad()
    with pytest.raises(ZeroDivisionError):
        n // 0
    with pytest.raises(KeyError):
        n.evaluate({})


@pytest.mark.parametrize(
    "text", ["", "n +", "2n", "n n", "min(n)", "n^-1", "n/2", "foo(n, 2)", "n^999999999", "(" * 90]
)
def test_parse_errors(text):
    with pytest.raises(ValueError):
        parse_dim(text)


@pytest.mark.parametrize("text", ["a // b // c", "a % 3 * 2", "-a // 2", "((a))", "a^2*b"])
def test_parse_operators(text):
    v = {"a": 7, "b": 2, "c": 3}
    assert parse_dim(text).evaluate(v) == eval(text.replace("^", "**"), {}, v)


def test_budget():
    total = Dim.of(1)
    with pytest.raises(DimTooComplex):
        for i in range(20):
            total = total * (sym(f"s{i}") + 1)
    nested = n
    with pytest.raises(DimTooComplex):
        for i in range(100):
            nested = (nested * 3 + 1) // (m + i)
    with pytest.raises(DimTooComplex):
        power = n * 10**10
        for _ in range(3):
            power = power * power
    assert D.MAX_TERMS >= 16
