"""Whole models through the rules: the sample BERT lowered once, evaluated at many shapes against TensorFlow."""

import importlib.util
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function
from disc_tf.ir.interp import CheckFailed, evaluate
from disc_tf.ir.types import DType, TensorType
from disc_tf.ir.verifier import verify
from disc_tf.lowering.context import LoweringContext
from disc_tf.lowering.lower import lower_nodes
from disc_tf.lowering.node import NodeView, split_input
from disc_tf.testing.tf_case import tensorflow

MODELS = Path(__file__).parents[2] / "bench" / "models"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS = ("Identity:0", "Identity_1:0")


@pytest.fixture(scope="module")
def graph():
    tf = tensorflow()
    spec = importlib.util.spec_from_file_location("materialize", MODELS / "materialize.py")
    materialize = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(materialize)
    proto = tf.compat.v1.GraphDef.FromString((MODELS / "tiny_bert.skel.pb").read_bytes())
    materialize.fill(proto)
    assert {i["name"] for i in json.loads((MODELS / "tiny_bert.json").read_text())["inputs"]} == set(INPUTS)
    return proto


@pytest.fixture(scope="module")
def session(graph):
    tf = tensorflow()
    with tf.Graph().as_default() as loaded:
        tf.import_graph_def(graph, name="")
        config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with tf.compat.v1.Session(graph=loaded, config=config) as session:
            yield session


def needed(graph):
    """The nodes that the outputs hang on, in topological order."""
    nodes = {n.name: NodeView.from_proto(n) for n in graph.node}
    order, seen = [], set()
    work = [(split_input(o)[0], False) for o in OUTPUTS]
    while work:
        name, done = work.pop()
        if done:
            order.append(nodes[name])
        elif name not in seen:
            seen.add(name)
            work.append((name, True))
            work += [(source, False) for source, _ in nodes[name].inputs]
    return order


def lowered(graph, uniform):
    fn = Function("main")
    ctx = LoweringContext(Builder(fn.body, fn.env), fn.env)
    feeds = {}
    for i, name in enumerate(INPUTS):
        feeds[name, 0] = fn.add_arg(TensorType.of(DType.I32, [f"a{i}d0", f"a{i}d1"]), ArgInfo(name))
    if uniform:
        for axis in range(2):
            fn.env.set_range(f"a0d{axis}", 1)
            for i in (1, 2):
                fn.env.assume_eq(f"a{i}d{axis}", f"a0d{axis}")
    found = lower_nodes(ctx, needed(graph), feeds)
    ctx.b.return_([*(found[split_input(o)] for o in OUTPUTS), ctx.token])
    verify(fn)
    return fn


@pytest.fixture(scope="module")
def general(graph):
    return lowered(graph, uniform=False)


@pytest.fixture(scope="module")
def uniform(graph):
    return lowered(graph, uniform=True)


def live_ops(fn):
    """Ops that results or checks hang on."""
    live = set()
    for op in reversed(fn.body.ops):
        if op in live or op.name in ("return", "disc.check", "disc.bind_dim"):
            live.add(op)
            live |= {v.op for v in op.operands if v.op is not None}
    return live


def feed(rng, *shapes):
    ids, mask, types = shapes if len(shapes) == 3 else shapes * 3
    values = rng.integers(1, 30522, ids), rng.integers(0, 2, mask), rng.integers(0, 2, types)
    return [v.astype(np.int32) for v in values]


def agree(fn, session, arrays):
    tf = tensorflow()
    try:
        expected = session.run(OUTPUTS, dict(zip((f"{n}:0" for n in INPUTS), arrays, strict=True)))
    except tf.errors.OpError as e:
        with pytest.raises(CheckFailed) as failed:
            evaluate(fn, arrays)
        assert failed.value.code == e.error_code
        return
    for got, want in zip(evaluate(fn, arrays), expected, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


def test_no_shape_arithmetic_is_left(uniform):
    ops = live_ops(uniform)
    names = Counter(op.name for op in ops)
    assert names["dot_general"] == 33
    assert names["disc.bind_dim"] == 0
    # One check for each table: two look at indices, the positions are compared by their extent.
    assert names["disc.check"] == 3
    assert names["disc.dim"] == 1
    assert {op.name for op in ops if any(getattr(v.type, "dtype", None) is DType.I32 for v in op.results)} <= {
        "constant", "broadcast_in_dim", "iota", "reshape", "disc.dim",
    }  # fmt: skip
    dims = {d for op in ops for v in op.results for d in getattr(v.type, "dims", ()) if not d.is_static}
    assert {str(s) for d in dims for s in d.symbols()} <= {f"a{i}d{k}" for i in range(3) for k in range(2)}
    assert not [d for d in dims if any(a.kind != "sym" for a in d.atoms())]


@pytest.mark.parametrize("shape", [(1, 1), (2, 7), (3, 16)], ids=str)
def test_uniform_body(uniform, session, shape):
    agree(uniform, session, feed(np.random.default_rng(0), shape))


@pytest.mark.parametrize(
    "shapes",
    [
        [(2, 7)],
        [(1, 1)],
        [(0, 5)],
        [(2, 0)],
        [(0, 0)],
        [(3, 5), (3, 5), (1, 5)],  # types broadcast over the batch
        [(3, 5), (1, 5), (3, 5)],  # mask broadcast over the batch
        [(1, 5), (1, 5), (3, 5)],
        [(3, 1), (3, 1), (3, 4)],
        [(3, 5), (2, 5), (3, 5)],  # error
        [(3, 5), (3, 5), (3, 4)],  # error
        [(1, 5), (3, 5), (1, 5)],
    ],
    ids=str,
)
def test_general_body(general, session, shapes):
    agree(general, session, feed(np.random.default_rng(1), *shapes))


def test_index_out_of_range(general, session):
    arrays = feed(np.random.default_rng(2), (2, 3))
    arrays[0][1, 1] = 30522
    agree(general, session, arrays)
    arrays = feed(np.random.default_rng(3), (1, 513))
    agree(general, session, arrays)
