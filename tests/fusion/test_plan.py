"""Plans of small functions: kinds and counts of kernels, borders, order, and execution through the resolved accesses."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.fusion.cluster_graph import ClusterGraph
from disc_tf.fusion.plan import make_plan
from disc_tf.fusion.types import Plan
from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function
from disc_tf.ir.dims import sym
from disc_tf.ir.interp import evaluate
from disc_tf.ir.types import DType, TensorType
from tests.fusion.plan_interp import run_plan
from tests.fusion.transformer import Layer

F32, I32 = DType.F32, DType.I32


def function(args, body) -> Function:
    fn = Function("main")
    for i, (dtype, dims, *kind) in enumerate(args):
        fn.add_arg(TensorType.of(dtype, dims), ArgInfo(f"a{i}", *kind))
    b = Builder(fn.body, fn.env)
    out = body(b, *fn.params)
    b.return_(list(out) if isinstance(out, (list, tuple)) else [out])
    return fn


def kinds(plan: Plan) -> list[str]:
    return [f.kind for f in plan.kernels()]


def check(fn: Function, *shapes: tuple[int, ...], ints: int = 4) -> Plan:
    """Plan, run and compare with the interpreter."""
    rng = np.random.default_rng(0)
    inputs = []
    for p, shape in zip(fn.params, shapes, strict=True):
        data = rng.standard_normal(shape) if p.dtype.is_float else rng.integers(0, ints, shape)
        inputs.append(data.astype(p.dtype.np))
    plan = make_plan(fn)
    for got, want in zip(run_plan(plan, inputs), evaluate(fn, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    return plan


X = (F32, ("m", "n"))


def rows_of(b: Builder, r, x):
    return b.broadcast_in_dim(r, x.dims, range(x.rank - 1))


def softmax(b: Builder, x):
    e = b.exponential(b.subtract(x, rows_of(b, b.reduce(x, [x.rank - 1], "max"), x)))
    return b.divide(e, rows_of(b, b.reduce(e, [x.rank - 1], "add"), e))


def log_softmax(b: Builder, x):
    d = b.subtract(x, rows_of(b, b.reduce(x, [x.rank - 1], "max"), x))
    total = b.reduce(b.exponential(d), [x.rank - 1], "add")
    return b.subtract(d, rows_of(b, b.log(total), d))


def masked_softmax(b: Builder, x, mask):
    return softmax(b, b.add(b.multiply(x, 0.125), b.broadcast_in_dim(mask, x.dims, (1,))))


ROWS = {
    "softmax": ([X], softmax),
    "log-softmax": ([X], log_softmax),
    "masked softmax": ([X, (F32, ("n",))], masked_softmax),
    "softmax of rank 3": ([(F32, (2, "m", "n"))], softmax),
    "mean of squares": ([X], lambda b, x: b.reduce(b.multiply(x, x), [1], "add")),
    "two reductions": ([X], lambda b, x: [b.reduce(x, [1], "add"), b.reduce(b.abs(x), [1], "max")]),
    "reduction over two minor dims": ([(F32, ("m", "n", 3))], lambda b, x: b.reduce(b.tanh(x), [1, 2], "add")),
}


@pytest.mark.parametrize("case", ROWS)
@pytest.mark.parametrize("m,n", [(3, 7), (1, 1), (0, 3), (2, 1)])
def test_rows_are_one_kernel(case: str, m: int, n: int) -> None:
    args, body = ROWS[case]
    fn = function(args, body)
    shapes = [[d.evaluate({"m": m, "n": n}) for d in p.dims] for p in fn.params]
    plan = check(fn, *map(tuple, shapes))
    assert kinds(plan) == ["rows"], plan.describe()
    assert "region" in plan.fusions[-1].attrs


def test_layernorm_after_embedding_is_one_kernel() -> None:
    t = Layer()
    ids = t.arg("ids", ("b", "s"), I32)
    types = t.arg("types", ("b", "s"), I32)
    numbers = {"offset_dims": (2,), "collapsed_slice_dims": (0,), "start_index_map": (0,), "index_vector_dim": 2}
    words = t.b.gather(t.weight("words", 7, 8), ids, [1, 8], **numbers)
    kind = t.b.gather(t.weight("kinds", 4, 8), types, [1, 8], **numbers)
    fn = t.finish(t.layernorm("ln", t.b.add(words, kind), 8)).main
    plan = check(fn, *[tuple(d.evaluate({"b": 2, "s": 3}) for d in p.dims) for p in fn.params])
    assert kinds(plan) == ["rows"], plan.describe()
    assert len(plan.fusions[-1].attrs["region"].gathers) == 2


def test_reductions_of_major_dims_take_their_producers() -> None:
    plan = check(function([X], lambda b, x: b.reduce(b.exponential(x), [0], "add")), (3, 5))
    assert kinds(plan) == ["reduce"]


def test_dot_takes_bias_activation_residual_and_transposed_store() -> None:
    def body(b, x, w, bias, r):
        y = b.dot_general(x, w, [1], [0])
        y = b.tanh(b.add(y, b.broadcast_in_dim(bias, y.dims, (1,))))
        return b.transpose(b.add(y, r), (1, 0))

    fn = function([(F32, ("m", 4)), (F32, (4, 6), "const"), (F32, (6,)), (F32, ("m", 6))], body)
    plan = check(fn, (3, 4), (4, 6), (6,), (3, 6))
    assert kinds(plan) == ["gemm"], plan.describe()
    gemm = plan.fusions[-1]
    assert [str(s) for s in gemm.attrs["region"].writes[0][1].strides] == ["1", "m"]
    assert gemm.attrs["pack"] == "rhs"


@pytest.mark.parametrize("rows", [1, 3])
def test_epilogue_reads_a_run_time_broadcast_by_stride(rows: int) -> None:
    def body(b, x, w, r):
        y = b.dot_general(x, w, [1], [0])
        return b.add(y, b.broadcast_in_dim(r, y.dims, (0, 1)))

    fn = function([(F32, ("m", 4)), (F32, (4, 6)), (F32, ("k", 6))], body)
    assert kinds(check(fn, (3, 4), (4, 6), (rows, 6))) == ["gemm"]


def test_no_kernel_reads_what_it_stores_elsewhere() -> None:
    def body(b, x):
        y = softmax(b, x)
        t = b.transpose(y, (1, 0))
        return [y, t, b.multiply(t, t), b.tanh(y)]

    plan = check(function([X], body), (3, 5))
    for fusion in plan:
        region = fusion.attrs.get("region")
        if region is not None:
            assert not {v.source for v in region.reads.values()} & set(fusion.outputs)


def test_scores_that_are_needed_elsewhere_keep_their_kernels() -> None:
    def body(b, q, k, v):
        p = softmax(b, b.dot_general(q, k, [1], [1]))
        return [b.dot_general(p, v, [1], [0]), p]

    fn = function([(F32, ("m", 4)), (F32, ("n", 4)), (F32, ("n", 5))], body)
    assert kinds(check(fn, (3, 4), (6, 4), (6, 5))) == ["gemm", "rows", "gemm"]


def test_loops_store_values_of_one_element_count() -> None:
    def body(b, x):
        y, z = b.tanh(x), b.sine(x)
        return [b.concatenate([b.exponential(y), z], 0), y, b.multiply(z, 2.0)]

    plan = check(function([X], body), (3, 5))
    for fusion in plan:
        assert len({v.tensor.num_elements() for v in fusion.outputs}) == 1


def test_dear_producers_are_not_computed_for_every_row_again() -> None:
    def body(b, x, y):
        return b.add(x, b.broadcast_in_dim(b.exponential(y), x.dims, (1,)))

    assert kinds(check(function([X, (F32, ("n",))], body), (3, 5), (5,))) == ["loop", "loop"]


def test_a_returned_reshape_is_a_view() -> None:
    plan = check(function([X], lambda b, x: b.reshape(b.tanh(x), (sym("m") * sym("n"),))), (3, 5))
    assert [f.kind for f in plan] == ["loop", "view"] or [f.kind for f in plan] == ["loop"]


def test_bound_dims_and_checks_run_before_the_kernels_that_use_them() -> None:
    def body(b, n, x):
        token = b.check(b.compare(n, 0, "GE"), message="negative")
        d = b.bind_dim(n, "k")
        wide = b.broadcast_in_dim(x, (d, *x.dims), (1, 2))
        token = b.check(b.compare(b.dim(d), b.dim("m"), "EQ"), token, message="unequal")
        return [b.tanh(wide), token]

    plan = make_plan(function([(I32, (), "host"), X], body))
    assert [f.kind for f in plan] == ["host", "loop"]
    assert sum(op.name == "disc.check" for f in plan for op in f.ops) == 2


def test_library_calls_get_buffers() -> None:
    fn = function([X], lambda b, x: b.sort([b.transpose(b.tanh(x), (1, 0))], 1, "LT"))
    assert kinds(check(fn, (3, 5))) == ["loop", "library"]


def test_describe_names_kernels_and_nodes() -> None:
    fn = function([X], softmax)
    for op in fn.body.ops:
        op.loc = ("model/softmax",)
    text = make_plan(fn).describe()
    assert "rows_reduce" in text and "[model/softmax]" in text


def test_cluster_graph_refuses_exactly_the_merges_that_close_a_cycle() -> None:
    rng = np.random.default_rng(0)
    for _ in range(150):
        n = int(rng.integers(2, 12))
        edges = [(i, j) for i in range(n) for j in range(i + 1, n) if rng.random() < 0.3]
        graph, label = ClusterGraph(n, edges), list(range(n))
        for _ in range(12):
            a, b = (int(x) for x in rng.choice(n, 2, replace=False))
            merged = [label[a] if x == label[b] else x for x in label]
            assert graph.try_merge(a, b) == _acyclic(merged, edges)
            if _acyclic(merged, edges):
                label = merged
            order = {c: i for i, c in enumerate(graph.clusters())}
            assert all(
                graph.find(x) == graph.find(y) or order[graph.find(x)] < order[graph.find(y)] for x, y in edges
            )


def _acyclic(label: list[int], edges: list[tuple[int, int]]) -> bool:
    import graphlib

    successors: dict[int, set[int]] = {}
    for a, b in edges:
        if label[a] != label[b]:
            successors.setdefault(label[a], set()).add(label[b])
    try:
        graphlib.TopologicalSorter(successors).prepare()
    except graphlib.CycleError:
        return False
    return True



@pytest.mark.parametrize(
    ("dims", "shape", "want"),
    [
        (("m", "n"), (40, 30), ["loop", "rows"]),
        ((40, "n"), (40, 30), ["loop", "rows"]),
        ((4, "n"), (4, 30), ["rows"]),  # rows too short for a copy
    ],
)
def test_rows_across_what_they_read(dims, shape, want):
    """The softmax of another axis than the last: transposed in tiles before, and not gathered in each pass."""
    fn = function([(F32, dims)], lambda b, x: softmax(b, b.transpose(x, (1, 0))))
    assert kinds(check(fn, shape)) == want


def test_transposes_among_elementwise_ops_are_one_loop():
    """All of them over the space of the result, whichever side of a transpose they stand on."""
    fn = function([X, (F32, ("n", "m"))], lambda b, x, y: b.tanh(b.add(b.transpose(b.exponential(x), (1, 0)), y)))
    plan = check(fn, (5, 7), (7, 5))
    (loop,) = plan.kernels()
    region = loop.attrs["region"]
    assert [op.name for op in region.ops] == ["exponential", "add", "tanh"]
    assert [tuple(str(a.stride) for a in view.axes) for view in region.reads.values()] == [("1", "n"), ("m", "1")]
