"""What optimising must not change: small graphs in TensorFlow, clusters of any size, grappler on and off."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from disc_tf.testing.session_case import GraphSession, SessionCase, assert_same_answer
from disc_tf.testing.tf_case import Failure, tensorflow

RNG = np.random.default_rng(0)


def ph(tf, name="x", shape=(None, None), dtype="float32"):
    return tf.compat.v1.placeholder(dtype, shape, name=name)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


SHAPES = [(3, 5), (1, 1), (0, 4), (4, 0), (0, 0), (1, 17), (33, 7)]


# ---- outputs ------------------------------------------------------------------------------------------------------------


def several_outputs(tf):
    x = ph(tf)
    y = tf.nn.relu(x * 2.0, name="y")
    tf.identity(y, name="same")
    tf.identity(x, name="input")
    tf.reshape(y, [-1], name="view")
    tf.transpose(y, name="turned")
    tf.constant([[1.0, 2.0]], name="fixed")
    tf.shape(y, name="shape")
    tf.size(y, name="size")
    tf.zeros_like(y, name="zeros")
    tf.reduce_sum(y, name="total")


SEVERAL = ["y", "same", "input", "view", "turned", "fixed", "shape", "size", "zeros", "total"]


def test_several_outputs() -> None:
    case = SessionCase(several_outputs, [f"{n}:0" for n in SEVERAL])
    for shape in SHAPES:
        case.check({"x:0": f32(*shape)})


def test_duplicate_outputs() -> None:
    case = SessionCase(several_outputs, ["y:0", "y:0", "view:0", "y:0"])
    for shape in SHAPES:
        case.check({"x:0": f32(*shape)})


def test_fetch_some_of_the_outputs() -> None:
    case = SessionCase(several_outputs, [f"{n}:0" for n in SEVERAL])
    for name in SEVERAL:
        case.check({"x:0": f32(3, 4)}, [f"{name}:0"])


def test_default_outputs() -> None:
    case = SessionCase(several_outputs, None)
    case.check({"x:0": f32(3, 4)})


def views_only(tf):
    x = ph(tf)
    y = tf.expand_dims(x, 1, name="y")
    tf.reshape(y, [-1], name="flat")
    tf.squeeze(y, [1], name="back")


def test_outputs_that_are_views_of_the_input() -> None:
    case = SessionCase(views_only, ["y:0", "flat:0", "back:0"])
    x = f32(3, 4)
    kept = x.copy()
    for shape in SHAPES:
        case.check({"x:0": f32(*shape)})
    out = case.ours[0].run(["flat:0"], {"x:0": x})
    out[0][...] = 7
    assert np.array_equal(x, kept)


def multi_output_op(tf):
    x = ph(tf)
    parts = tf.raw_ops.Split(axis=1, value=x * 1.5, num_split=2, name="parts")
    tf.raw_ops.TopKV2(input=parts[0], k=1, name="best")


def test_ops_of_several_outputs() -> None:
    case = SessionCase(multi_output_op, ["parts:1", "best:1", "best:0"])
    for shape in [(3, 8), (1, 2), (0, 6)]:
        case.check({"x:0": f32(*shape)})
    case.check({"x:0": f32(2, 3)})  # odd: an error
    case.check({"x:0": f32(2, 0)})  # k beyond the end: an error


def one_input_many_times(tf):
    x = ph(tf)
    y = tf.raw_ops.AddN(inputs=[x, x, x])
    z = tf.raw_ops.ConcatV2(values=[x, y, x], axis=1)
    tf.matmul(z, z, transpose_b=True, name="out")


def test_the_same_tensor_as_several_inputs() -> None:
    case = SessionCase(one_input_many_times, ["out:0"])
    for shape in SHAPES:
        case.check({"x:0": f32(*shape)})


def constants_only(tf):
    a = tf.constant(f32(40, 40), name="a")
    b = tf.constant(f32(40, 3), name="b")
    tf.tanh(tf.matmul(a, b), name="out")
    tf.nn.softmax(a * 2.0, name="other")


def test_all_inputs_constant() -> None:
    """Grappler runs the op itself."""
    case = SessionCase(constants_only, ["out:0", "other:0"])
    case.check({})
    case.check({})


# ---- shapes -------------------------------------------------------------------------------------------------------------


def two_unrelated(tf):
    a, b = ph(tf, "a"), ph(tf, "b")
    c = tf.raw_ops.AddV2(x=a, y=b)
    tf.nn.softmax(tf.nn.relu(c) * a, name="out")
    tf.reduce_mean(c - b, axis=1, keepdims=True, name="mean")


@pytest.fixture(scope="module")
def unrelated_case() -> SessionCase:
    return SessionCase(two_unrelated, ["out:0", "mean:0"])


@pytest.mark.parametrize("shapes", [
    ((2, 3), (2, 3)), ((1, 3), (2, 3)), ((2, 3), (2, 1)), ((1, 1), (4, 5)), ((2, 1), (1, 3)), ((0, 3), (1, 3)), ((0, 1), (1, 0)),
    ((2, 0), (2, 1)), ((1, 1), (1, 1)), ((2, 3), (3, 3)), ((2, 3), (2, 0)), ((0, 3), (2, 3)), ((3, 4), (3, 1)),
])  # fmt: skip
def test_unrelated_dims(shapes, unrelated_case) -> None:
    unrelated_case.check({"a:0": f32(*shapes[0]), "b:0": f32(*shapes[1])})


def scalars(tf):
    x, n = ph(tf, "x", ()), ph(tf, "n", (), "int32")
    y = tf.exp(x) + tf.cast(n, tf.float32)
    tf.fill([n, 2], y, name="filled")
    tf.range(n, name="range")
    tf.add(tf.stack([n, n, tf.constant(3)]), 1, name="stack")
    tf.identity(y, name="y")


def test_scalars() -> None:
    case = SessionCase(scalars, ["filled:0", "range:0", "stack:0", "y:0"])
    for n in (0, 1, 5, -1):
        case.check({"x:0": np.float32(0.5), "n:0": np.int32(n)})


def fed_shape(tf):
    x, s = ph(tf, "x"), ph(tf, "s", (2,), "int32")
    y = tf.reshape(tf.tanh(x), s)
    tf.identity(y * 2.0, name="out")
    tf.identity(tf.broadcast_to(tf.reduce_sum(y), s), name="spread")


def test_reshape_by_a_fed_shape() -> None:
    case = SessionCase(fed_shape, ["out:0", "spread:0"])
    for s in ([6, 2], [1, 12], [-1, 3], [5, 5], [-1, -1], [-2, 6], [0, 0], [-1, 0]):
        case.check({"x:0": f32(3, 4), "s:0": np.array(s, np.int32)})
        case.check({"x:0": f32(0, 4), "s:0": np.array(s, np.int32)})


# ---- order and effects --------------------------------------------------------------------------------------------------


def asserts(tf):
    x = ph(tf)
    low = tf.compat.v1.Assert(tf.reduce_all(x > 0.0), ["low", x], name="low")
    high = tf.compat.v1.Assert(tf.reduce_all(x < 10.0), ["high", x], name="high")
    with tf.control_dependencies([low]):
        y = tf.sqrt(x)
        with tf.control_dependencies([high]):
            tf.identity(y + 1.0, name="out")


def test_asserts() -> None:
    case = SessionCase(asserts, ["out:0"])
    assert not isinstance(case.check({"x:0": np.full((2, 2), 3.0, np.float32)}), Failure)
    case.check({"x:0": np.full((0, 2), 3.0, np.float32)})
    assert isinstance(case.check({"x:0": np.full((2, 2), -1.0, np.float32)}), Failure)
    assert isinstance(case.check({"x:0": np.full((2, 2), 11.0, np.float32)}), Failure)
    message = case.ours[0].run(["out:0"], {"x:0": np.full((2, 2), -1.0, np.float32)}).message
    assert "low" in message


def variables(tf):
    x = ph(tf, "x", (None, 3))
    v = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[3], shared_name="v_sem", name="v")
    tf.raw_ops.AssignVariableOp(resource=v, value=tf.constant([1.0, 2.0, 3.0]), name="init")
    before = tf.raw_ops.ReadVariableOp(resource=v, dtype=tf.float32, name="before")
    y = tf.tanh(x * before)
    with tf.control_dependencies([y]):
        change = tf.raw_ops.AssignAddVariableOp(resource=v, value=tf.reduce_sum(y, 0), name="change")
    with tf.control_dependencies([change]):
        after = tf.raw_ops.ReadVariableOp(resource=v, dtype=tf.float32, name="after")
    tf.identity(tf.nn.relu(y) + after, name="out")


def test_variables_in_order() -> None:
    case = SessionCase(variables, ["out:0", "^init"], init=["init"])
    for _ in range(4):
        case.check({"x:0": f32(4, 3)})
    case.check({"x:0": f32(0, 3)})


def strings_and_tables(tf):
    words = ph(tf, "words", (None,), "string")
    table = tf.raw_ops.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64, shared_name="t_sem", name="table")
    tf.raw_ops.LookupTableImportV2(table_handle=table, keys=[b"a", b"b"], values=np.array([1, 2], np.int64), name="fill")
    ids = tf.raw_ops.LookupTableFindV2(table_handle=table, keys=words, default_value=np.int64(0))
    rows = tf.gather(tf.constant(f32(3, 600)), ids)
    y = tf.tanh(rows) * 2.0
    tf.strings.as_string(tf.reduce_sum(tf.cast(ids, tf.int32) * 3 + 1, keepdims=True), name="text")
    tf.identity(y, name="out")


def test_strings_and_tables() -> None:
    case = SessionCase(strings_and_tables, ["out:0", "text:0", "^fill"], init=["fill"])
    for words in ([b"a", b"b", b"zz"], [], [b"b"]):
        case.check({"words:0": np.array(words, object)})


def prints(tf):
    x = ph(tf)
    y = tf.tanh(x) + 1.0
    y = tf.compat.v1.Print(y, [tf.shape(y)], message="seen ", name="print")
    tf.identity(tf.exp(y), name="out")


def test_print_in_the_middle() -> None:
    case = SessionCase(prints, ["out:0"])
    assert "Print" in case.ops
    case.check({"x:0": f32(3, 4)})


def functional_flow(tf):
    x, n = ph(tf), ph(tf, "n", (), "int32")
    y = tf.tanh(x) * 0.5
    _, z = tf.while_loop(lambda i, _: i < n, lambda i, a: (i + 1, tf.nn.relu(a + y)), [tf.constant(0), y])
    w = tf.cond(n > 2, lambda: tf.exp(z), lambda: z - 1.0)
    tf.identity(tf.nn.softmax(w) + y, name="out")


def legacy_flow(tf):
    before = tf.compat.v1.control_flow_v2_enabled()
    tf.compat.v1.disable_control_flow_v2()
    try:
        functional_flow(tf)
    finally:
        if before:
            tf.compat.v1.enable_control_flow_v2()


@pytest.mark.parametrize("build", [functional_flow, legacy_flow])
def test_control_flow(build) -> None:
    case = SessionCase(build, ["out:0"])
    for n in (0, 1, 3):
        for shape in [(3, 4), (0, 4), (1, 1)]:
            case.check({"x:0": f32(*shape), "n:0": np.int32(n)})


def dead_branch(tf):
    """A tensor of a branch that was not taken is dead: what comes from it must not run."""
    x, p = ph(tf), ph(tf, "p", (), "bool")
    off, on = tf.raw_ops.Switch(data=x, pred=p)
    a = tf.sqrt(tf.exp(on)) + 1.0
    b = tf.tanh(off) * 3.0
    m = tf.raw_ops.Merge(inputs=[a, b])
    tf.identity(tf.nn.relu(m[0]) * 2.0, name="out")


def test_dead_tensors() -> None:
    case = SessionCase(dead_branch, ["out:0"])
    for p in (True, False):
        case.check({"x:0": f32(3, 4), "p:0": np.bool_(p)})


def devices(tf):
    x = ph(tf)
    with tf.device("/device:CPU:0"):
        y = tf.tanh(x)
        with tf.compat.v1.colocate_with(y.op):
            z = tf.exp(y)
    with tf.device("/job:localhost/replica:0/task:0/device:CPU:0"):
        tf.identity(tf.nn.relu(z) * 2.0, name="out")


def test_devices_and_colocation() -> None:
    case = SessionCase(devices, ["out:0"])
    case.check({"x:0": f32(3, 4)})


# ---- feeding and fetching in the middle ----------------------------------------------------------------------------------


def middle(tf):
    x = ph(tf)
    y = tf.tanh(x, name="y")
    z = tf.exp(y, name="z")
    tf.identity(z * 2.0, name="out")


def test_middle_tensors_that_are_named_outputs_can_be_fetched() -> None:
    case = SessionCase(middle, ["out:0", "z:0", "y:0"])
    case.check({"x:0": f32(3, 4)}, ["z:0"])
    case.check({"x:0": f32(3, 4)}, ["y:0", "out:0"])


def test_other_middle_tensors_are_gone() -> None:
    """As with TF-TRT: what was not named as an output is no node any more, and TensorFlow says so."""
    case = SessionCase(middle, ["out:0"])
    with pytest.raises(ValueError, match=r"z:0|KeyError|does not exist"):
        case.ours[0].session.run("z:0", {"x:0": f32(3, 4)})


def test_placeholder_with_default() -> None:
    def build(tf):
        k = tf.compat.v1.placeholder_with_default(tf.constant(2.0), (), name="k")
        tf.identity(tf.tanh(ph(tf)) * k + k, name="out")

    case = SessionCase(build, ["out:0"])
    case.check({"x:0": f32(3, 4)})
    case.check({"x:0": f32(3, 4), "k:0": np.float32(5)})


def test_unused_outputs_and_inputs() -> None:
    def build(tf):
        ph(tf, "unused")
        x = ph(tf)
        parts = tf.split(tf.tanh(x), 3, axis=1)
        tf.identity(parts[1] * 2.0, name="out")

    case = SessionCase(build, ["out:0"])
    case.check({"x:0": f32(3, 6)})
    case.check({"x:0": f32(3, 6), "unused:0": f32(1, 1)})


# ---- other ways to run it -----------------------------------------------------------------------------------------------


def block(tf):
    x = ph(tf, "x", (None, 8))
    w = tf.constant(f32(8, 64), name="w")
    h = tf.nn.relu(tf.matmul(x, w) + tf.constant(f32(64)))
    tf.nn.softmax(h - tf.reduce_mean(h, axis=-1, keepdims=True), name="out")


@pytest.fixture(scope="module")
def block_case() -> SessionCase:
    return SessionCase(block, ["out:0"])


def test_wrap_function(block_case) -> None:
    tf = tensorflow()
    graph_def = block_case.result.graph_def
    wrapped = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(graph_def, name=""), [])
    pruned = wrapped.prune("x:0", "out:0")
    for rows in (0, 1, 5):
        x = f32(rows, 8)
        assert_same_answer(block_case.reference.run(["out:0"], {"x:0": x}), [pruned(tf.constant(x)).numpy()])


def test_saved_model_round_trip(block_case, tmp_path) -> None:
    tf = tensorflow()
    graph_def = block_case.result.graph_def
    wrapped = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(graph_def, name=""), [])
    module = tf.Module()
    module.call = wrapped.prune("x:0", ["out:0"])
    tf.saved_model.save(module, str(tmp_path / "m"), signatures=module.call)
    loaded = tf.saved_model.load(str(tmp_path / "m")).signatures["serving_default"]
    x = f32(5, 8)
    got = next(iter(loaded(tf.constant(x)).values())).numpy()
    assert_same_answer(block_case.reference.run(["out:0"], {"x:0": x}), [got])


def test_gradient(block_case) -> None:
    tf = tensorflow()
    for rows in (0, 1, 5):
        answers = []
        for graph_def in (block_case.graph_def, block_case.result.graph_def):
            with tf.Graph().as_default() as graph:
                tf.import_graph_def(graph_def, name="")
                out, x = graph.get_tensor_by_name("out:0"), graph.get_tensor_by_name("x:0")
                inner = [graph.get_tensor_by_name("w:0")]
                grads = tf.gradients(tf.square(out), [x, *inner])
                with tf.compat.v1.Session(graph=graph) as session:
                    answers.append(session.run(grads, {"x:0": np.linspace(-1, 1, rows * 8, dtype=np.float32).reshape(rows, 8)}))
        assert_same_answer(*answers)


def test_two_sessions_at_once(block_case) -> None:
    sessions = [GraphSession(block_case.result.graph_def, grappler=False) for _ in range(2)]
    feeds = [f32(n, 8) for n in (1, 3, 0, 40)]
    want = [block_case.reference.run(["out:0"], {"x:0": x}) for x in feeds]
    problems: list[str] = []

    def work(session: GraphSession) -> None:
        try:
            for _ in range(50):
                for x, w in zip(feeds, want, strict=True):
                    assert_same_answer(w, session.run(["out:0"], {"x:0": x}))
        except AssertionError as e:
            problems.append(str(e))

    threads = [threading.Thread(target=work, args=(s,)) for s in sessions * 2]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not problems, problems[0]


# ---- broken launches: errors, never crashes -----------------------------------------------------------------------------


def _launch(graph_def):
    return next(n for n in graph_def.node if n.op == "DiscLaunch")


@pytest.mark.parametrize("what", ["empty", "noise", "cut", "flip", "abi 0", "abi 99"])
def test_corrupt_executable(block_case, what) -> None:
    tf = tensorflow()
    graph_def = type(block_case.result.graph_def)()
    graph_def.CopyFrom(block_case.result.graph_def)
    attr = _launch(graph_def).attr
    data = attr["executable"].s
    if what.startswith("abi"):
        attr["abi"].i = int(what.split()[1])
    else:
        attr["executable"].s = {
            "empty": b"", "noise": bytes(range(256)) * 40, "cut": data[: len(data) // 2],
            "flip": data[:3000] + bytes([data[3000] ^ 0x55]) + data[3001:],
        }[what]  # fmt: skip
    session = GraphSession(graph_def, grappler=False)
    with pytest.raises(tf.errors.OpError, match="DiscLaunch"):
        session.session.run("out:0", {"x:0": f32(2, 8)})


def test_launch_of_other_types(block_case) -> None:
    """An executable on a node whose arguments have other types and shapes than it was compiled for."""
    tf = tensorflow()
    attr = _launch(block_case.result.graph_def).attr
    disc_launch = __import__("disc_tf.ops", fromlist=["load_op_library"]).load_op_library().disc_launch

    @tf.function
    def original(*args):
        return args[0]

    concrete = original.get_concrete_function(tf.TensorSpec([None, 8], tf.float32))

    def run(constants, args, outs):
        return disc_launch(constants=constants, host_args=[], args=args, Thostout=[], Tout=outs, executable=attr["executable"].s,
                           original=concrete)  # fmt: skip

    w, x = np.zeros((8, 64), np.float32), np.zeros((2, 8), np.float32)
    n_const = len(attr["Tconst"].list.type)
    for constants, args, outs in [
        ([w] * n_const, [x.astype(np.float64)], [tf.float32]), ([w] * n_const, [x], [tf.float64]), ([w] * n_const, [x, x], [tf.float32]),
        ([w] * n_const, [], [tf.float32]), ([w] * n_const, [np.zeros((2, 9), np.float32)], [tf.float32]),
        ([w] * n_const, [np.zeros((2, 8, 1), np.float32)], [tf.float32]), ([w] * n_const, [np.float32(1)], [tf.float32]),
        ([np.zeros((7, 7), np.float32)] * n_const, [x], [tf.float32]), ([w] * n_const, [x], [tf.float32] * 2),
        ([], [], [tf.float32]),
    ]:  # fmt: skip
        with pytest.raises(tf.errors.OpError):
            run([tf.constant(c) for c in constants], [tf.constant(a) for a in args], outs)
