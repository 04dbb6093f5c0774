"""ShapeEnv: named cases, and soundness of every answer against all small integer assignments."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disc_tf.ir.dims import Dim, DimTooComplex, bcast, dmax, dmin, exact_div, sym
from disc_tf.ir.shape_env import ShapeEnv

B, S, T, n, m = (sym(x) for x in ("B", "S", "T", "n", "m"))


def test_zero_divisor_is_respected():
    env = ShapeEnv()
    whole = (B * S * 768) // (B * 768)
    assert env.simplify(whole) == whole
    assert env.is_equal(whole, S) is None
    inner = env.child()
    assert inner.set_range(B, 1)
    assert inner.simplify(whole) == S and inner.is_equal(whole, S) is True
    assert env.is_equal(whole, S) is None, "facts of a child stay in the child"


def test_equalities_chain_and_contradict():
    env = ShapeEnv()
    assert env.assume_eq(n, m) and env.assume_eq(m, S) and env.assume_eq(T, n + 1)
    assert env.is_equal(n, S) is True and env.is_equal(T, S + 1) is True and env.is_equal(T, S) is False
    assert env.simplify(T - m) == 1
    assert not env.assume_eq(T, n)
    assert env.assume_eq(S, 7) and env.bounds(T) == (8, 8) and env.is_equal(n, 7) is True
    assert not env.assume_eq(m, 8)


def test_products():
    env = ShapeEnv()
    env.assume_eq(n * m, B * S)
    assert env.is_equal(n * m * 12, B * S * 12) is True
    assert env.is_equal(n * m * T + 3, T * B * S + 3) is True
    assert env.is_equal(n * m + 1, B * S) is None or env.is_equal(n * m + 1, B * S) is False
    assert env.same_elements([n, m, 64], [B, S * 64]) is True
    env.assume_eq(n, B)
    assert env.is_equal(m, S) is None  # B may be 0
    env.set_range(B, 1)
    env.assume_eq(n * m, B * S)
    assert env.is_equal(m, S) is True


def test_same_elements_by_cancelling():
    env = ShapeEnv()
    many = [sym(f"x{i}") + 1 for i in range(6)]
    assert env.same_elements([*many, 6, n], [2, *reversed(many), 3 * n]) is True
    assert env.same_elements([n, 2], [n, 3]) is None  # equal at n == 0
    assert env.same_elements([2, 3], [6]) is True and env.same_elements([2, 3], [5]) is False
    assert env.same_elements([], [1, 1]) is True


def test_divisibility():
    env = ShapeEnv()
    assert env.divides(8, n) is None and env.divides(4, 8 * n) is True and env.divides(2, 2 * n + 1) is False
    assert env.assume_divides(8, n)
    assert env.divides(4, n) is True and env.divides(16, n * n) is True and env.divides(16, n) is None
    assert (
        env.simplify((n // 8) * 8) == n and env.simplify(n % 4) == 0 and env.simplify(n // 2 * 2 + 1) == n + 1
    )
    assert env.is_equal(n, 3) is False and env.divides(0, n) is None and env.divides(0, n + 1) is False
    assert env.assume_divides(S, T)
    assert env.divides(S, T * 5) is True and env.divides(T, S) is None
    env.assume_eq(n, m)
    assert env.divides(8, m) is True


def test_ranges_and_bounds():
    env = ShapeEnv()
    assert env.bounds(n) == (0, None) and env.is_nonneg(n - 1) is None and env.is_nonneg(-n - 1) is False
    assert env.set_range(n, 2, 10)
    assert env.bounds(3 * n + 1) == (7, 31) and env.bounds(n * m) == (0, None)
    assert env.is_nonneg(n * m - m) is True, "m * (n - 1)"
    assert env.bounds(n // 4) == (0, 2) and env.bounds(m % 5) == (0, 4) and env.bounds(dmin(n, m)) == (0, 10)
    assert env.simplify(dmax(n, 1)) == n and env.simplify(bcast(n, m)) == n
    assert env.set_range(m - S, 0, None) and env.is_nonneg(m - S) is True and env.is_nonneg(2 * m - 2 * S + 1)
    assert env.simplify(dmin(m, S)) == S
    assert not env.set_range(n, 11, 12)
    assert env.set_range(n, 10, None) and env.is_equal(n, 10) is True


def test_relaxed_functions():
    env = ShapeEnv()
    assert env.is_nonneg(n - dmin(n, m)) is True and env.is_nonneg(dmax(n, m) - m) is True
    assert env.is_nonneg(n - (n // 3) * 3) is True and env.is_nonneg((n + 2) // 3 * 3 - n) is True
    assert env.is_equal(n % 4 + (n // 4) * 4, n) is True
    assert env.is_nonneg(dmin(n, 8) - 9) is False


def test_likely():
    env = ShapeEnv()
    env.set_likely("S", [128, 64])
    assert env.likely(S * 2 + 1) == (257, 129) and env.likely(S * n) == () and env.likely(3) == (3,)
    env.assume_eq(n, S)
    assert env.likely(n + 1) == (129, 65) and env.is_equal(S, 128) is None
    with pytest.raises(ValueError):
        env.set_likely("S + 1", [1])


def test_facts_text():
    env = ShapeEnv()
    env.assume_eq(n, m)
    env.assume_divides(8, S)
    env.set_range(B, 1, 32)
    assert env.facts() == ["n == m", "8 divides S", "1 <= B <= 32"] or env.facts()[0] in ("n == m", "m == n")


# ---- soundness ----------------------------------------------------------------------------------------------------

NAMES = ("a", "b", "c")


def _apply(op, x: Dim, y: Dim) -> Dim:
    try:
        if op == "+":
            return x + y
        if op == "-":
            return x - y
        if op == "*":
            return x * y
        if op == "//":
            return x // y
        if op == "%":
            return x % y
        return {"min": dmin, "max": dmax}[op](x, y)
    except (ZeroDivisionError, DimTooComplex):
        return x


leaves = st.one_of(st.integers(-2, 4).map(Dim.of), st.sampled_from(NAMES).map(sym))
dims = st.recursive(
    leaves,
    lambda inner: st.builds(
        _apply, st.sampled_from(["+", "-", "*", "//", "%", "min", "max", "*", "+"]), inner, inner
    ),
    max_leaves=6,
)
facts = st.lists(
    st.one_of(
        st.tuples(st.just("eq"), dims, dims),
        st.tuples(st.just("divides"), st.integers(1, 4).map(Dim.of) | st.sampled_from(NAMES).map(sym), dims),
        st.tuples(st.just("range"), dims, st.tuples(st.integers(-2, 3), st.none() | st.integers(0, 5))),
    ),
    max_size=3,
)


def _value(dim: Dim, v) -> int | None:
    try:
        return dim.evaluate(v)
    except ZeroDivisionError:
        return None


def _is_multiple(d: int, x: int) -> bool:
    return x == 0 if d == 0 else x % d == 0


def _holds(fact, v) -> bool:
    kind, x, y = fact
    xv = _value(x, v)
    if kind == "range":
        return xv is not None and xv >= y[0] and (y[1] is None or xv <= y[1])
    yv = _value(y, v)
    if xv is None or yv is None:
        return False
    return xv == yv if kind == "eq" else _is_multiple(xv, yv)


@settings(max_examples=600, deadline=None)
@given(facts, dims, dims)
def test_every_answer_is_sound(assumed, x, y):
    env = ShapeEnv()
    consistent = True
    for kind, a, b in assumed:
        if kind == "eq":
            consistent &= env.assume_eq(a, b)
        elif kind == "divides":
            consistent &= env.assume_divides(a, b)
        else:
            consistent &= env.set_range(a, *b)
    equal, divides, nonneg, (low, high) = (
        env.is_equal(x, y),
        env.divides(x, y),
        env.is_nonneg(x),
        env.bounds(x),
    )
    same = env.same_elements([x, y, 2], [y, 2 * x])
    simple = env.simplify(x)
    assert env.simplify(simple) == simple
    for values in itertools.product((0, 1, 2, 3, 6), repeat=3):
        v = dict(zip(NAMES, values, strict=True))
        if not all(_holds(f, v) for f in assumed):
            continue
        assert consistent, "a contradiction was reported, but these values satisfy all facts"
        xv, yv = _value(x, v), _value(y, v)
        if xv is None:
            continue
        assert _value(simple, v) == xv
        assert low is None or low <= xv
        assert high is None or xv <= high
        assert nonneg is None or nonneg == (xv >= 0)
        if yv is None:
            continue
        assert equal is None or equal == (xv == yv)
        assert divides is None or divides == _is_multiple(xv, yv)
        assert same is not False
        try:
            q = exact_div(x, y)
        except ZeroDivisionError:
            continue
        assert q is None or q.evaluate(v) * yv == xv


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from((*NAMES, "1", "4")), min_size=1, max_size=5), st.integers(0, 6))
def test_bcast_simplification_on_legal_shapes(names, size):
    """Whatever the order and facts, on extents that do broadcast the answer is the common one."""
    whole = Dim.of(1)
    for name in names:
        whole = bcast(whole, name)
    env = ShapeEnv()
    if "b" in names and size >= 2:
        env.set_range("b", size)
    simple = env.simplify(whole)
    for values in itertools.product((1, size), repeat=3):
        v = dict(zip(NAMES, values, strict=True))
        extents = {sym(x).evaluate(v) if x in NAMES else int(x) for x in names} - {1}
        if len(extents) > 1 or ("b" in names and size >= 2 and v["b"] < size):
            continue
        expected = extents.pop() if extents else 1
        assert whole.evaluate(v) == expected == simple.evaluate(v)


def test_work_is_bounded():
    """A long fight with many facts and big expressions stays quick (the budgets, not luck)."""
    env = ShapeEnv()
    symbols = [sym(f"s{i}") for i in range(60)]
    for i in range(59):
        env.assume_eq(symbols[i] * symbols[i + 1], symbols[(i * 7 + 3) % 60] * symbols[(i * 11 + 5) % 60] + i)
    big = Dim.of(0)
    for i in range(12):
        big = big + dmin(symbols[i], (symbols[i + 1] * 3 + 1) // (i + 2)) * (-1) ** i
    env.is_equal(big, symbols[20] * symbols[21])
    env.is_nonneg(big)
    env.simplify(big)
