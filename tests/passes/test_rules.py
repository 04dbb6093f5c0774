"""Structural tests of the rewriting rules: what each makes of a small function, and what it must leave alone."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Module
from disc_tf.ir.dims import sym
from disc_tf.ir.interp import CheckFailed, evaluate
from disc_tf.ir.pass_manager import PassContext, PassManager
from disc_tf.ir.types import DType, TensorType
from disc_tf.passes.pipeline import PASSES, optimize

F32, I8, I32, BOOL = DType.F32, DType.I8, DType.I32, DType.BOOL


def build(args, body) -> Module:
    """``args``: (dtype, dims[, kind]); ``body(b, *params) -> value or values``."""
    fn = Function("main")
    for i, (dtype, dims, *kind) in enumerate(args):
        fn.add_arg(TensorType.of(dtype, dims), ArgInfo(f"a{i}", *kind))
    b = Builder(fn.body, fn.env)
    out = body(b, *fn.params)
    b.return_(list(out) if isinstance(out, (list, tuple)) else [out])
    module = Module()
    module.add(fn)
    return module


def run(module: Module, *names: str) -> list[str]:
    """Run passes; names of the ops that are left in main, the return aside."""
    PassManager(tuple(PASSES[n]() for n in names), verify_each=True).run(module, PassContext())
    return [op.name for op in module.main.body.ops if op.name != "return"]


X = (F32, ("m", "n"))
XI = (I32, ("m", "n"))

GONE = {
    "multiply by one": ([X], lambda b, x: b.multiply(x, 1.0)),
    "add minus zero": ([X], lambda b, x: b.add(x, -0.0)),
    "subtract zero": ([X], lambda b, x: b.subtract(x, 0.0)),
    "divide by one": ([X], lambda b, x: b.divide(x, 1.0)),
    "integer add zero": ([XI], lambda b, x: b.add(x, 0)),
    "power one": ([X], lambda b, x: b.power(x, 1.0)),
    "and with all ones": ([XI], lambda b, x: b.and_(x, -1)),
    "double negation": ([X], lambda b, x: b.negate(b.negate(x))),
    "select of a constant": ([X, X], lambda b, x, y: b.select(b.full(True, BOOL, x.dims), x, y)),
    "exact convert and back": ([XI], lambda b, x: b.convert(b.convert(x, DType.I64), I32)),
    "transpose twice": ([X], lambda b, x: b.transpose(b.transpose(x, (1, 0)), (1, 0))),
    "reshape and back": ([X], lambda b, x: b.reshape(b.reshape(x, (sym("m") * sym("n"),)), ("m", "n"))),
    "full slice": ([X], lambda b, x: b.slice(x, [0, 0], x.dims, [1, 1])),
    "slice of a concatenation": (
        [X, (F32, ("m", 4))],
        lambda b, x, y: b.slice(b.concatenate([y, x], 1), [0, 4], ["m", sym("n") + 4], [1, 1]),
    ),
    "pad by nothing": ([X], lambda b, x: b.pad(x, b.constant(0.0, F32), [0, 0], [0, 0], [0, 0])),
    "reverse of a unit dim": ([(F32, ("m", 1))], lambda b, x: b.reverse(x, (1,))),
}


@pytest.mark.parametrize("case", GONE)
def test_identities_vanish(case: str) -> None:
    args, body = GONE[case]
    module = build(args, body)
    assert run(module, "canonicalize", "dce") == []
    assert module.main.results[0] in module.main.params


KEPT = {
    "add plus zero changes -0.0": ([X], lambda b, x: b.add(x, 0.0), "add"),
    "subtract minus zero changes -0.0": ([X], lambda b, x: b.subtract(x, -0.0), "subtract"),
    "multiply by zero loses NaN": ([X], lambda b, x: b.multiply(x, 0.0), "multiply"),
    "x - x is NaN at infinity": ([X], lambda b, x: b.subtract(x, x), "subtract"),
    "division by three": ([X], lambda b, x: b.divide(x, 3.0), "divide"),
    "i32 -> f32 -> i32 rounds": ([XI], lambda b, x: b.convert(b.convert(x, F32), I32), "convert"),
    "unordered compare of x with itself": ([X], lambda b, x: b.compare(x, x, "EQ"), "compare"),
    "run-time broadcast": ([(F32, ("n",)), X], lambda b, x, _: b.broadcast_in_dim(x, ("m",), (0,)), "broadcast_in_dim"),
}


@pytest.mark.parametrize("case", KEPT)
def test_inexact_identities_stay(case: str) -> None:
    args, body, name = KEPT[case]
    assert name in run(build(args, body), "canonicalize", "constant_folding", "dce")


@pytest.mark.parametrize(
    "c,power", [(8.0, True), (0.5, True), (-4.0, True), (3.0, False), (2.0**-127, False), (2.0**127, False)]
)
def test_division_by_power_of_two(c: float, power: bool) -> None:
    module = build([X], lambda b, x: b.divide(x, c))
    assert ("multiply" in run(module, "canonicalize", "dce")) == power


def test_unit_dims_leave_broadcasts() -> None:
    def body(b, x):
        mean = b.reshape(b.reduce(x, [1], "add"), ("m", 1))
        return b.subtract(x, b.broadcast_in_dim(mean, x.dims, (0, 1)))

    assert run(build([X], body), "canonicalize", "dce") == ["constant", "reduce", "broadcast_in_dim", "subtract"]


def test_elementwise_moves_before_a_broadcast() -> None:
    module = build([(F32, ("n",)), X], lambda b, x, _: b.multiply(b.broadcast_in_dim(x, ("m", "n"), (1,)), 3.0))
    run(module, "canonicalize", "dce")
    last = module.main.results[0].op
    assert last.name == "broadcast_in_dim"
    assert last.operands[0].op.name == "multiply"
    assert last.operands[0].rank == 1


def test_constants_fold_and_splats_stay_splats() -> None:
    module = build([X], lambda b, x: b.add(x, b.multiply(b.full(2.0, F32, x.dims), b.full(3.0, F32, x.dims))))
    assert run(module, "constant_folding", "dce") == ["constant", "broadcast_in_dim", "add"]
    assert float(module.main.body.ops[0].attrs["value"]) == 6.0


def test_a_constant_and_a_splat_fold() -> None:
    """``1 + scale`` as root-mean-square norms have it."""
    scale = np.arange(300, dtype=np.float32)
    module = build([], lambda b: b.add(b.full(1.0, F32, (300,)), b.constant(scale)))
    assert run(module, "constant_folding", "dce") == ["constant"]
    np.testing.assert_array_equal(evaluate(module, [])[0], scale + 1)


def test_large_results_do_not_fold() -> None:
    module = build([(F32, (1,))], lambda b, x: b.iota(I32, (100000,), 0))
    assert run(module, "constant_folding") == ["iota"]
    module = build([(F32, (1,))], lambda b, x: b.concatenate([b.constant(np.arange(20000)), b.constant(np.arange(5))], 0))
    assert "concatenate" in run(module, "constant_folding")


def test_cse_merges_equal_ops_constants_and_regions() -> None:
    def body(b, x):
        one = b.add(b.reduce(x, [1], "add"), b.full(1.0, F32, ("m",)))
        two = b.add(b.full(1.0, F32, ("m",)), b.reduce(x, [1], "add"))
        return [one, two, b.reduce(x, [1], "max")]

    module = build([X], body)
    run(module, "cse", "dce")
    a, b, c = module.main.results
    assert a is b and c is not a
    assert sum(op.name == "reduce" for op in module.main.body.ops) == 2


def test_cse_tells_constants_apart_by_bits() -> None:
    module = build([X], lambda b, x: [b.constant(0.0, F32), b.constant(-0.0, F32), b.constant(0, I32)])
    run(module, "cse")
    assert len({id(v) for v in module.main.results}) == 3


def test_dce_keeps_checks_and_bound_dims() -> None:
    def body(b, n, x):
        b.check(b.compare(n, 0, "GE"), code=3, message="negative")
        d = b.bind_dim(n, "k")
        b.add(x, x)
        return b.broadcast_in_dim(b.constant(1.0, F32), (d,), ())

    module = build([(I32, ()), X], body)
    names = run(module, "dce")
    assert "disc.check" in names and "disc.bind_dim" in names and "add" not in names


def test_proved_checks_go_and_others_stay() -> None:
    def body(b, x):
        t = b.check(b.compare(b.dim("n"), b.dim("n"), "EQ"), message="true")
        return [x, b.check(b.compare(b.dim("m"), b.dim("n"), "EQ"), t, message="unknown")]

    module = build([X], body)
    names = run(module, "shape_simplifier", "dce")
    assert names.count("disc.check") == 1


def test_transposes_fold_into_dots_where_the_order_of_results_allows() -> None:
    y = (F32, ("k", "n"))
    module = build([X, y], lambda b, x, w: b.dot_general(x, b.transpose(w, (1, 0)), [1], [0]))
    assert run(module, "dot_canonicalize", "dce") == ["dot_general"]
    three = (F32, ("a", "b", "n"))
    module = build([three, y], lambda b, x, w: b.dot_general(b.transpose(x, (1, 0, 2)), w, [2], [1]))
    assert run(module, "dot_canonicalize", "dce") == ["transpose", "dot_general"]


@pytest.mark.parametrize(
    ("lhs", "rhs", "result", "narrow"),
    [
        (I8, I8, I32, True), (DType.U8, I8, I32, True), (DType.U8, DType.U8, I32, True), (DType.BF16, DType.BF16, F32, True),
        (DType.I16, I8, I32, False), (DType.F16, DType.BF16, F32, False), (I32, I8, I32, False), (I8, I8, DType.I64, False),
    ],
)  # fmt: skip
def test_products_of_widened_operands_are_of_the_narrow_ones(lhs: DType, rhs: DType, result: DType, narrow: bool) -> None:
    """Through a reshape and a transpose too; the same numbers come out."""
    args = [(lhs, ("m", 6)), (rhs, (5, 3, 2), "const")]

    def body(b, x, w):
        wide = b.reshape(b.transpose(b.convert(w, result), (1, 2, 0)), (6, 5))
        return b.dot_general(b.convert(x, result), wide, [1], [0])

    module, before = build(args, body), build(args, body)
    names = run(module, "dot_canonicalize", "dce")
    assert names.count("convert") == (0 if narrow else sum(t is not result for t in (lhs, rhs)))
    (dot,) = (op for op in module.main.body.ops if op.name == "dot_general")
    assert dot.result.dtype is result and [v.dtype for v in dot.operands] == ([lhs, rhs] if narrow else [result, result])
    rng = np.random.default_rng(1)
    data = [rng.integers(-100, 100, shape).astype(t.np) for t, shape in ((lhs, (4, 6)), (rhs, (5, 3, 2)))]
    np.testing.assert_array_equal(evaluate(module.main, data)[0], evaluate(before.main, data)[0])


@pytest.mark.parametrize(("most", "narrow"), [(127, True), (-128, True), (128, False), (-129, False)])
def test_constants_that_are_bytes_are_no_hindrance(most: int, narrow: bool) -> None:
    content = np.array([[1, most], [0, -5]], np.int32)
    module = build([(DType.U8, ("m", 2))], lambda b, x: b.dot_general(b.convert(x, I32), b.constant(content), [1], [0]))
    assert ("convert" not in run(module, "dot_canonicalize", "dce")) is narrow
    x = np.array([[255, 3]], np.uint8)
    np.testing.assert_array_equal(evaluate(module.main, [x])[0], x.astype(np.int32) @ content)


def test_dots_of_one_operand_merge_with_their_biases() -> None:
    w, bias = (F32, (4, 6), "const"), (F32, (6,), "const")

    def body(b, x, *weights):
        out = []
        for i in range(0, 6, 2):
            y = b.dot_general(x, weights[i], [1], [0])
            out.append(b.tanh(b.add(y, b.broadcast_in_dim(weights[i + 1], y.dims, (1,)))))
        return out

    module = build([(F32, ("m", 4)), w, bias, w, bias, w, bias], body)
    inputs = [np.random.default_rng(0).standard_normal(s).astype(np.float32) for s in [(3, 4)] + [(4, 6), (6,)] * 3]
    want = evaluate(module, inputs)
    names = run(module, "dot_merge", "dce")
    assert names.count("dot_general") == 1 and names.count("add") == 1 and names.count("slice") == 3
    for g, e in zip(evaluate(module, inputs), want, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-6)
    names = run(module, "outline_prepare")
    assert "concatenate" not in names
    assert [a.kind for a in module.main.args[-2:]] == ["prepared", "prepared"]
    assert [op.name for op in module.functions["prepare"].body.ops] == ["concatenate", "concatenate", "return"]


def test_dots_with_weights_of_many_dims_merge_along_the_first() -> None:
    """Keras's attention: one weight [hidden, heads, size] each for query, key and value."""
    w, bias = (F32, (4, 2, 3), "const"), (F32, (2, 3), "const")

    def body(b, x, *weights):
        out = []
        for i in range(0, 6, 2):
            y = b.dot_general(x, weights[i], [2], [0])
            out.append(b.tanh(b.add(y, b.broadcast_in_dim(weights[i + 1], y.dims, (2, 3)))))
        return out

    module = build([(F32, ("b", "s", 4)), w, bias, w, bias, w, bias], body)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(s).astype(np.float32) for s in [(2, 5, 4)] + [(4, 2, 3), (2, 3)] * 3]
    want = evaluate(module, inputs)
    names = run(module, "dot_merge", "dce")
    assert names.count("dot_general") == 1 and names.count("add") == 1 and names.count("slice") == 3
    for g, e in zip(evaluate(module, inputs), want, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-6)


def test_dots_whose_weights_differ_in_the_later_dims_do_not_merge() -> None:
    args = [(F32, ("m", 4)), (F32, (4, 2, 3), "const"), (F32, (4, 3, 2), "const")]
    module = build(args, lambda b, x, v, w: [b.dot_general(x, y, [1], [0]) for y in (v, w)])
    assert run(module, "dot_merge") == ["dot_general", "dot_general"]


@pytest.mark.parametrize("order", [(0, 1, 3, 2), (1, 0, 3, 2), (0, 3, 1, 2), (1, 0, 2, 3)])
def test_a_transposed_product_is_the_product_of_exchanged_operands(order: tuple[int, ...]) -> None:
    """``K @ Q`` with rows and columns exchanged; other orders of the result stay transposes."""
    args = [(F32, (2, "s", 3, 4)), (F32, (2, "t", 3, 4))]

    def body(b, k, q):
        return b.transpose(b.dot_general(k, q, [3], [3], [0, 2], [0, 2]), order)

    module = build(args, body)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((2, n, 3, 4)).astype(np.float32) for n in (5, 7)]
    (want,) = evaluate(module, inputs)
    names = run(module, "dot_canonicalize", "dce")
    assert names == (["dot_general"] if order[2:] == (3, 2) else ["dot_general", "transpose"])
    (got,) = evaluate(module, inputs)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_query_heads_that_share_a_key_head_are_a_batch() -> None:
    """``btkgh,bskh->bkgts``, a softmax, ``bkgts,bskh->bkgth``: two products without transposes of the scores."""
    args = [(F32, ("b", "t", 2, 3, 4)), (F32, ("b", "s", 2, 4)), (F32, ("b", "s", 2, 4))]

    def body(b, q, k, v):
        scores = b.transpose(b.dot_general(q, k, [4], [3], [0, 2], [0, 2]), (0, 1, 3, 2, 4))
        e = b.exponential(scores)
        total = b.reduce(e, [4], "add")
        probs = b.divide(e, b.broadcast_in_dim(total, e.dims, (0, 1, 2, 3)))
        return b.dot_general(probs, v, [4], [1], [0, 1], [0, 2])

    module = build(args, body)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(s).astype(np.float32) for s in [(2, 5, 2, 3, 4), (2, 7, 2, 4), (2, 7, 2, 4)]]
    (want,) = evaluate(module, inputs)
    names = run(module, "dot_canonicalize", "dce")
    assert names.count("dot_general") == 2 and "transpose" not in names
    assert all(len(op.attrs["lhs_batching"]) == 3 for op in module.main.body.ops if op.name == "dot_general")
    np.testing.assert_allclose(evaluate(module, inputs)[0], want, rtol=1e-6)


def test_dots_with_run_time_operands_do_not_merge() -> None:
    w = (F32, (4, 6))
    args = [(F32, ("m", 4)), w, w]
    module = build(args, lambda b, x, v, w: [b.dot_general(x, y, [1], [0]) for y in (v, w)])
    assert run(module, "dot_merge") == ["dot_general", "dot_general"]


def test_views_of_weights_are_not_prepared() -> None:
    args = [(F32, ("m", 4)), (F32, (5, 4), "const")]
    module = build(args, lambda b, x, w: b.dot_general(x, b.transpose(w, (1, 0)), [1], [0]))
    run(module, "outline_prepare")
    assert "prepare" not in module.functions


def test_arithmetic_on_weights_is_prepared_once() -> None:
    def body(b, x, gamma, var):
        scale = b.multiply(gamma, b.rsqrt(b.add(var, 1e-3)))
        return b.multiply(x, b.broadcast_in_dim(scale, x.dims, (1,)))

    module = build([(F32, ("m", 4)), (F32, (4,), "const"), (F32, (4,), "const")], body)
    names = run(module, "outline_prepare")
    assert names == ["broadcast_in_dim", "multiply"]
    assert {"rsqrt", "multiply", "add"} <= {op.name for op in module.functions["prepare"].body.ops}


# ---- implicit broadcast ---------------------------------------------------------------------------------------


def two_args() -> Module:
    from disc_tf.ir.dims import bcast

    def body(b, x, y):
        eq = b.compare(b.dim("a0"), b.dim("b0"), "EQ")
        one = b.or_(b.compare(b.dim("a0"), b.dim(1), "EQ"), b.compare(b.dim("b0"), b.dim(1), "EQ"))
        token = b.check(b.or_(eq, one), message="Incompatible shapes")
        dims = (bcast("a0", "b0"), 3)
        wide = [b.broadcast_in_dim(v, dims, (0, 1)) for v in (x, y)]
        return [b.add(*wide), token]

    return build([(F32, ("a0", 3)), (F32, ("b0", 3))], body)


def test_uniform_body_has_neither_broadcast_nor_check() -> None:
    special = optimize(two_args(), verify_each=True)
    assert [(str(a), str(b)) for a, b in special.predicate] == [("a0", "b0")]
    uniform = [op.name for op in special.uniform.main.body.ops]
    assert uniform == ["disc.create_token", "add", "return"]
    assert special.general is not None
    general = [op.name for op in special.general.main.body.ops]
    assert "disc.check" in general and "broadcast_in_dim" in general


@pytest.mark.parametrize("a,b", [(2, 2), (1, 2), (2, 1), (0, 1), (1, 1), (0, 0)])
def test_bodies_agree_with_numpy_on_both_sides_of_the_predicate(a: int, b: int) -> None:
    special = optimize(two_args())
    x, y = (np.arange(n * 3, dtype=np.float32).reshape(n, 3) for n in (a, b))
    assert special.general is not None
    np.testing.assert_array_equal(evaluate(special.general, [x, y])[0], x + y)
    if all(p.evaluate({"a0": a, "b0": b}) == q.evaluate({"a0": a, "b0": b}) for p, q in special.predicate):
        np.testing.assert_array_equal(evaluate(special.uniform, [x, y])[0], x + y)


def test_nothing_ambiguous_gives_one_body() -> None:
    special = optimize(build([X, X], lambda b, x, y: b.add(x, y)))
    assert special.general is None and special.predicate == []


# ---- counting indices -----------------------------------------------------------------------------------------


def positions(limit: int = 5) -> Module:
    """``x + table[range(n)]`` with TF's check of the indices."""

    def body(b, x, table):
        index = b.reshape(b.iota(I32, ("n",), 0), (1, "n"))
        inside = b.and_(b.compare(index, 0, "GE"), b.compare(index, limit, "LT"))
        token = b.check(inside, message=f"indices: a value is not in [0, {limit})")
        rows = b.gather(
            table, index, [1, 4], offset_dims=(2,), collapsed_slice_dims=(0,), start_index_map=(0,), index_vector_dim=2
        )
        y = b.broadcast_in_dim(b.reshape(rows, ("n", 4)), x.dims, (1, 2))
        return [b.add(x, y), token]

    return build([(F32, ("m", "n", 4)), (F32, (limit, 4), "const")], body)


def test_a_check_of_counting_indices_is_a_check_of_their_number() -> None:
    module = positions()
    names = run(module, "canonicalize", "cse", "dce")
    assert "reduce" not in names and "iota" in names
    compare = next(op for op in module.main.body.ops if op.name == "compare")
    assert compare.attrs["direction"] == "LE" and compare.result.rank == 0
    assert "gather" in names  # nothing is known of n


@pytest.mark.parametrize("n,m", [(0, 1), (1, 0), (4, 2), (5, 2), (6, 2)])
def test_counting_indices_keep_their_error(n: int, m: int) -> None:
    inputs = [np.zeros((m, n, 4), np.float32), np.arange(20, dtype=np.float32).reshape(5, 4)]
    before = positions()
    after = positions()
    run(after, "canonicalize", "constant_folding", "cse", "dce")
    if n > 5:
        for module in (before, after):
            with pytest.raises(CheckFailed, match=r"not in \[0, 5\)"):
                evaluate(module, inputs)
    else:
        np.testing.assert_array_equal(evaluate(after, inputs)[0], evaluate(before, inputs)[0])


def test_gather_by_a_short_range_is_a_slice() -> None:
    module = positions()
    module.main.env.set_range("n", 0, 5)
    names = run(module, "canonicalize", "shape_simplifier", "canonicalize", "dce")
    assert "gather" not in names and "slice" in names and "disc.check" not in names


def test_dce_keeps_a_branch_that_checks() -> None:
    def body(b, i, x):
        def branch(good: bool):
            def fill(inner):
                if not good:
                    inner.check(inner.compare(i, 5, "EQ"), message="bad branch")
                return inner.constant(1.0, F32)

            return b.region([], fill)

        b.case(i, [branch(True), branch(False)])
        return x

    module = build([(I32, ()), X], body)
    assert "case" in run(module, "cse", "dce")
