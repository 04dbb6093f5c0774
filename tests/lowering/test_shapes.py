"""The symbolic shape rules against TensorFlow's own result, brute force over small extents."""

import itertools

import numpy as np
import pytest

from disc_tf.ir.dims import Dim, parse_dim
from disc_tf.ir.shape_env import ShapeEnv
from disc_tf.lowering.errors import Unsupported
from disc_tf.lowering.shapes import Masks, range_size, reshape_dims, strided_slice
from disc_tf.testing.tf_case import tensorflow

SMALL = range(4)


def tf_shape(op, **arguments):
    """The shape that TF computes, or None where it raises InvalidArgument."""
    tf = tensorflow()
    try:
        return tuple(getattr(tf.raw_ops, op)(**arguments).shape)
    except tf.errors.InvalidArgumentError:
        return None


def dims(texts):
    return [parse_dim(t) for t in texts]


def assignments(*groups):
    names = sorted(set().union(*(d.symbols() for d in itertools.chain(*groups))))
    for values in itertools.product(SMALL, repeat=len(names)):
        yield dict(zip(names, values, strict=True))


RESHAPES = [
    (["b", "s", "768"], ["b", "-1", "12", "64"]),
    (["b", "s", "768"], ["-1", "768"]),
    (["b", "s", "768"], ["b*s", "768"]),
    (["b", "s", "6"], ["b*s", "-1"]),
    (["b", "s", "6"], ["b", "s", "-1", "2"]),
    (["b", "s", "6"], ["b", "s", "4", "-1"]),
    (["b", "s", "6"], ["b", "-1"]),
    (["b", "s"], ["-1"]),
    (["b", "s"], ["s", "-1"]),
    (["b", "s"], ["s", "b"]),
    (["b", "s"], ["b", "b"]),
    (["b", "s"], ["0", "-1"]),
    (["b", "s", "3"], ["-1", "0"]),
    (["b"], ["2", "-1"]),
    (["b", "c", "s"], ["b", "s", "-1"]),
    (["b", "c"], ["b", "c", "-1"]),
    (["b", "c", "2"], ["c + 1", "-1"]),
    (["b", "b"], ["b", "-1"]),
    (["b", "b", "c"], ["b*b", "-1"]),
    ([], ["-1"]),
    (["b"], ["b", "-1", "1"]),
    (["2*b", "c"], ["b", "-1"]),
    (["2*b", "c"], ["2", "b", "-1", "c"]),
]


@pytest.mark.parametrize(("source", "target"), RESHAPES, ids=lambda t: ",".join(t))
def test_reshape_is_tf_rule_at_every_size(source, target):
    source, target = dims(source), dims(target)
    plan = reshape_dims(source, target, ShapeEnv())
    for values in assignments(source, target):
        given = [d.evaluate(values) for d in source]
        sizes = [d.evaluate(values) for d in target]
        expected = tf_shape("Reshape", tensor=np.zeros(given, np.int8), shape=sizes)
        got = tuple(d.evaluate(values) for d in plan.dims)
        consistent = int(np.prod(got)) == int(np.prod(given)) and min(got, default=0) >= 0
        if plan.exact:
            assert expected is not None
            assert consistent
        assert (got if consistent else None) == expected, (values, str(plan))


def test_reshape_of_attention_heads_is_plain_for_positive_sizes():
    env = ShapeEnv()
    plan = reshape_dims(dims(["b", "s", "768"]), dims(["b", "-1", "12", "64"]), env)
    assert plan.exact
    assert plan.positive == (parse_dim("b"),)
    for d in plan.positive:
        env.set_range(d, 1)
    assert env.simplify(plan.dims[1]) == parse_dim("s")
    assert reshape_dims(dims(["b", "s", "768"]), dims(["b", "-1", "12", "64"]), env).dims[1] == parse_dim("s")


@pytest.mark.parametrize(
    ("sizes", "message"), [(["-1", "-1"], "Only one input size may be -1"), (["-2"], "must be non-negative")]
)
def test_reshape_errors(sizes, message):
    with pytest.raises(Unsupported, match=message):
        reshape_dims(dims(["b"]), dims(sizes), ShapeEnv())


BOUNDS = [None, "0", "1", "2", "-1", "-2", "5", "-5", "n", "n - 1", "p - q", "-n", "m"]


@pytest.mark.parametrize("stride", [1, 2, 3, -1, -2])
@pytest.mark.parametrize("begin", BOUNDS)
def test_slice_axis_is_python_slice(begin, stride):
    n = parse_dim("n")
    for end in BOUNDS:
        masks = Masks(begin=begin is None, end=end is None)
        b, e = (parse_dim(x or "0") for x in (begin, end))
        (piece,) = (plan := strided_slice([n], [b], [e], [stride], masks, ShapeEnv())).axes
        for values in assignments([n], [b], [e]):
            extent = values["n"]
            first = None if begin is None else b.evaluate(values)
            last = None if end is None else e.evaluate(values)
            expected = list(range(extent))[first:last:stride]
            start, length = piece.start.evaluate(values), piece.length.evaluate(values)
            assert 0 <= start <= start + length <= extent, (values, str(piece))
            axis = list(range(extent))[:: -1 if piece.reverse else 1]
            assert axis[start : start + length : piece.stride] == expected, (values, str(piece))
            assert plan.dims[0].evaluate(values) == len(expected)


def test_common_slices_have_plain_sizes():
    n, env = parse_dim("n"), ShapeEnv()

    def size(b, e, **masks):
        return str(strided_slice([n], [Dim.of(b)], [Dim.of(e)], [1], Masks(**masks), env).dims[0])

    assert size(0, 0, begin=1, end=1) == "n"
    assert size(0, -1) == "max(-1 + n, 0)" or size(0, -1) == "max(0, n - 1)"
    assert strided_slice([n], [Dim.of(0)], [n], [1], Masks(), env).dims[0] == n


def _spec(case):
    fields = {"n": 0, "e": 0, "b": 0, "end": 0, "s": 0}
    begin, end, strides = [], [], []
    for i, item in enumerate(case):
        b, e, st = 0, 0, 1
        if item == "new":
            fields["n"] |= 1 << i
        elif item == "...":
            fields["e"] |= 1 << i
        elif isinstance(item, int):
            fields["s"] |= 1 << i
            b = item
        else:
            b, e, st = (x if x is not None else d for x, d in zip(item, (0, 0, 1), strict=True))
            fields["b"] |= (item[0] is None) << i
            fields["end"] |= (item[1] is None) << i
        begin.append(b)
        end.append(e)
        strides.append(st)
    return begin, end, strides, fields


ALL = (None, None, None)
SPECS = [
    [ALL],
    ["..."],
    ["...", ALL],
    ["...", 0],
    [0],
    [-1],
    [1, "..."],
    ["new", ALL],
    ["new", "...", "new"],
    ["...", "new"],
    ["...", "new", ALL],
    ["new", 0, "new", (None, None, -1)],
    [(1, None, 2), "...", (None, -1, 1)],
    [ALL, ALL, 1],
    [ALL, 1, ALL],
    ["...", 1, "new", (2, 0, -1)],
    [0, 0, 0],
    [0, 0, 0, "new"],
    ["...", 0, 0, 0],
    [(0, 2, 1), "...", "new", 0],
    ["new", "new", "..."],
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_strided_slice_masks(spec):
    begin, end, strides, f = _spec(spec)
    source = [parse_dim("a"), parse_dim("b"), Dim.of(3)]
    masks = Masks(f["b"], f["end"], f["e"], f["n"], f["s"])
    plan = strided_slice(
        source, [Dim.of(x) for x in begin], [Dim.of(x) for x in end], strides, masks, ShapeEnv()
    )
    for values in assignments(source):
        x = np.zeros([d.evaluate(values) for d in source], np.int8)
        expected = tf_shape(
            "StridedSlice",
            input=x,
            begin=begin,
            end=end,
            strides=strides,
            begin_mask=f["b"],
            end_mask=f["end"],
            ellipsis_mask=f["e"],
            new_axis_mask=f["n"],
            shrink_axis_mask=f["s"],
        )
        ok = all(0 <= c.index.evaluate(values) < c.extent.evaluate(values) for c in plan.checks)
        assert (tuple(d.evaluate(values) for d in plan.dims) if ok else None) == expected, values


def test_strided_slice_errors():
    n, one = [parse_dim("n")], [Dim.of(0)]
    with pytest.raises(Unsupported, match="Index out of range using input dim 1"):
        strided_slice(n, one * 2, one * 2, [1, 1], Masks(), ShapeEnv())
    with pytest.raises(Unsupported, match="Multiple ellipses"):
        strided_slice(n, one * 2, one * 2, [1, 1], Masks(ellipsis=3), ShapeEnv())
    with pytest.raises(Unsupported, match="must be non-zero"):
        strided_slice(n, one, one, [0], Masks(), ShapeEnv())
    with pytest.raises(Unsupported, match="only stride 1"):
        strided_slice(n, one, one, [-1], Masks(shrink_axis=1), ShapeEnv())


@pytest.mark.parametrize("delta", [1, 2, 3, -1, -2])
@pytest.mark.parametrize(
    ("start", "limit"), [("0", "n"), ("n", "0"), ("n", "2*m"), ("1", "n + 1"), ("n", "n")]
)
def test_range_size(start, limit, delta):
    a, b = parse_dim(start), parse_dim(limit)
    try:
        size = range_size(a, b, delta, ShapeEnv())
    except Unsupported:
        size = None
    for values in assignments([a], [b]):
        first, last = a.evaluate(values), b.evaluate(values)
        expected = tf_shape("Range", start=first, limit=last, delta=delta)
        if (last - first) * delta < 0:
            assert expected is None  # the caller checks the direction
        else:
            assert size is not None
            assert (size.evaluate(values),) == expected, values
