"""Bincount and its kin, histograms, searches, InTopK, NthElement: TF against the rules on the interpreter."""

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.testing.tf_case import Tolerance, array, check_op, specials

NUMBERS = [d for d in DType if not d.is_bool]
SUMS = [np.int32, np.int64, np.float32, np.float64]
SUM = Tolerance(ulps=8, relative_floor=1)
NAN, INF = np.nan, np.inf


def ids(shape, dtype=np.int32, high=6.0):
    return array(shape, DType.I32, 3, low=0, high=high).astype(dtype)


def size(n, dtype=np.int32):
    return np.array(n, dtype)


def both(values, bins, weights, **more):
    check_op("DenseBincount", input=values, size=size(bins, values.dtype), weights=weights, tol=SUM, **more)
    if values.dtype == np.int32 and not more.get("binary_output"):
        check_op("Bincount", arr=values, size=size(bins), weights=weights, tol=SUM)


@pytest.mark.parametrize("weights", SUMS)
def test_bincount(weights):
    none = np.zeros(0, weights)
    many = [ids(17), ids((3, 5)), ids(()), ids(0), ids((0, 4)), ids((4, 0)), ids((1, 1))]
    for values in many if weights is np.float32 else many[:2]:
        for bins in (5, 0):
            both(values, bins, none)
            both(values, bins, array(values.shape, DType.from_np(weights), 1))


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_bincount_types(index, binary):
    for values in (ids(9, index), ids((3, 5), index)):
        for weights in (np.zeros(0, np.float32), array(values.shape, DType.F32, 1)):
            both(values, 5, weights, binary_output=binary)


def test_bincount_errors():
    f32 = np.zeros(0, np.float32)
    for values in (np.array([0, -1, 1], np.int32), np.array([[0, 1], [-3, 1]], np.int32)):
        for weights in (f32, np.ones(values.shape, np.float32)):
            both(values, 4, weights)
    both(ids(4), -3, f32)
    both(ids(4), [4], f32)
    both(ids(4), 3, np.ones(2, np.float32))
    both(ids(4), 3, np.ones((2, 2), np.float32))
    both(ids((2, 1, 2)), 3, f32)


@pytest.mark.parametrize("dtype", SUMS)
@pytest.mark.parametrize("out", [np.int32, np.int64])
def test_histogram(dtype, out):
    x = array((500,), DType.from_np(dtype), 2, low=-9, high=9)
    for values in (x, x[:0], x[:1], x.reshape(5, 100)):
        for low, high in ((-5, 7), (0, 3), (-100, 100), (8, 9)):
            for bins in (1, 3, 10):
                limits = np.array([low, high], dtype)
                check_op("HistogramFixedWidth", values=values, value_range=limits, nbins=size(bins), dtype=out, modes=["dynamic"])
    check_op("HistogramFixedWidth", values=x, value_range=np.array([-3, 3], dtype), nbins=size(7), dtype=out)


def test_histogram_special():
    def check(values, limits, bins=3, dtype=np.float32):
        check_op("HistogramFixedWidth", values=np.array(values, dtype), value_range=np.array(limits, dtype), nbins=np.array(bins, np.int32))

    check([-1, 0, 0.1, 0.5, 0.99, 1, 2], [0, 1])
    check([INF, -INF, 0.5], [0, 1])
    check([NAN, 0.5], [0, 1])
    check([0.5], [1, 1])
    check([0.5], [2, 1])
    check([0.5], [NAN, 1])
    check([0.5, 0], [0, INF])
    check([0.5], [0, 1, 2])
    check([0.5], [[0, 1]])
    check([0.5], [0, 1], 0)
    check([0.5], [0, 1], -2)
    check([0.5], [0, 1], [2])
    check([-(2**31), 2**31 - 1, 0], [-(2**31), 2**31 - 1], dtype=np.int32)


@pytest.mark.parametrize("dtype", SUMS)
def test_bucketize(dtype):
    some = array((3, 7), DType.from_np(dtype), 1, low=-9, high=40)
    for boundaries in ([], [1.0, 3.0, 3.0, 5.5], list(range(-5, 40))):
        for x in (some, some[:0], specials(DType.from_np(dtype)), some[0, 0].reshape(())):
            check_op("Bucketize", input=x, boundaries=[float(v) for v in boundaries])


def test_bucketize_rounds_as_tensorflow_does():
    check_op("Bucketize", input=np.array([0.1, 0.10000000149011612]), boundaries=[0.1])
    check_op("Bucketize", input=np.array([0, 1, 3, 2**24 + 1], np.int32), boundaries=[1.0, 2.5, 2.0**24])
    check_op("Bucketize", input=np.array([0, 2**53 + 1]), boundaries=[1.0, 2.5, 2.0**53])
    check_op("Bucketize", input=np.zeros(1, np.float32), boundaries=[3.0, 1.0])


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_bounds(dtype):
    lines = np.sort(array((3, 11), DType.I32, 1, low=0, high=9), axis=1).astype(dtype.np)
    values = array((3, 7), DType.I32, 2, low=0, high=10).astype(dtype.np)
    special = specials(dtype)[None]
    cases = [(lines, values), (special, special), (lines[:, :0], values), (lines, values[:, :0]), (lines[:0], values[:0])]
    for op in ("LowerBound", "UpperBound"):
        for a, v in cases if dtype is DType.F32 else cases[:2]:
            check_op(op, sorted_inputs=a, values=v, modes=["static", "dynamic"] if dtype is DType.F32 else ["dynamic"])
        if dtype is DType.F32:
            check_op(op, sorted_inputs=lines, values=values, out_type=np.int64)


def test_bounds_of_what_is_not_sorted():
    x = np.array([0, 1, 2, 3, 4, 5, 6, NAN, -INF, INF, -0.0], np.float32)[None]
    for line in ([1, 3, 3, 5], [1, NAN, 2, NAN, 3], [5, 1, 4, 2, 3], [-0.0, 0.0, 0.0]):
        for op in ("LowerBound", "UpperBound"):
            check_op(op, sorted_inputs=np.array(line, np.float32)[None], values=x)
    one = np.zeros((1, 3), np.float32)
    for a, v in ((one[0], one[0]), (np.tile(one, (2, 1)), one), (one[None], one[None])):
        check_op("UpperBound", sorted_inputs=a, values=v)


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_in_top_k(index):
    p = np.array([[0.1, 0.5, 0.5, 0.2], [0.1, 0.9, NAN, 0.3], [0.4, 0.3, 0.2, INF], [0.3, 0.2, 0.1, 0.0]], np.float32)
    for k in (-1, 0, 1, 2, 3, 9):
        for targets in ([1, 1, 0, 0], [2, 4, -1, 3]):
            t = np.array(targets, index)
            check_op("InTopKV2", predictions=p, targets=t, k=np.array(k, index))
            check_op("InTopK", predictions=p, targets=t, k=k, modes=["dynamic"])
            check_op("InTopKV2", predictions=p[:, :0], targets=t, k=np.array(k, index), modes=["dynamic"])
    t = np.zeros(4, index)
    for predictions, targets, k in ((p, t[:3], 1), (p, t[None], 1), (p[0], t, 1), (p, t, [1]), (p[:0], t[:0], 1)):
        check_op("InTopKV2", predictions=predictions, targets=targets, k=np.array(k, index))
    many = array((31, 257), DType.F32, 5)
    check_op("InTopKV2", predictions=many, targets=ids(31, index, 256.0), k=np.array(100, index))


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_nth_element(dtype):
    for shape in ((3, 5), (0, 3), (2, 1), (7,), (2, 3, 4))[: 5 if dtype is DType.F32 else 1]:
        x = array(shape, dtype, 1)
        for n in (0, 1, 2):
            check_op("NthElement", input=x, n=size(n), modes=["dynamic"])
    for reverse in (False, True):
        modes = ["static", "partial", "dynamic"] if dtype is DType.F32 else ["dynamic"]
        check_op("NthElement", input=array((3, 5), dtype, 2), n=size(3), reverse=reverse, modes=modes)
        if dtype is DType.F32:
            check_op("NthElement", input=array((3, 5), dtype, 2), n=size(3), reverse=reverse, const=["n"])


@pytest.mark.parametrize(("shape", "n"), [((4,), 4), ((4,), -1), ((), 0), ((2, 0), 0), ((4,), [1]), ((2, 3), 7)])
def test_nth_element_errors(shape, n):
    for const in ([], ["n"]):
        check_op("NthElement", input=array(shape, DType.F32), n=size(n), const=const)
