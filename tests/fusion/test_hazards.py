"""Reads that only a check keeps inside their operand run after it; others need not wait."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from disc_tf.compiler import compile_module
from disc_tf.fusion.hazards import may_read_outside
from disc_tf.fusion.plan import make_plan
from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Module, Value
from disc_tf.ir.types import DType, TensorType
from disc_tf.runtime import DiscError, Executable
from disc_tf.runtime.cpu import native_target

F32, I32 = DType.F32, DType.I32
OUT_OF_RANGE = 3


def lookup(rows: int | str) -> Function:
    """``tanh(x) + table[i]`` with a check of the indices, which a kernel computes; the check comes after tanh in the program."""
    fn = Function("main")
    for name, dtype, dims in (("x", F32, ["m", 4]), ("table", F32, [rows, 4]), ("i", I32, ["m"])):
        fn.add_arg(TensorType.of(dtype, dims), ArgInfo(name))
    x, table, i = fn.params
    b = Builder(fn.body, fn.env)
    token = b.create_token()
    t = b.tanh(x)
    limit = b.broadcast_in_dim(b.dim(table.dims[0], I32), i.dims, ())
    zero = b.broadcast_in_dim(b.constant(np.int32(0)), i.dims, ())
    inside: Value = b.and_(b.compare(i, zero, "GE"), b.compare(i, limit, "LT"))
    token = b.check(b.reduce(inside, [0], "and"), token, OUT_OF_RANGE, "index out of range", "lookup")
    row = b.gather(
        table, i, offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), index_vector_dim=1, slice_sizes=(1, 4)
    )
    b.return_([b.add(t, row), token])
    return fn


@pytest.mark.parametrize(("rows", "waits"), [("n", True), (7, False)])
def test_gather_waits_for_its_check_where_the_table_may_be_empty(rows: int | str, waits: bool) -> None:
    fn = lookup(rows)
    (gather,) = (op for op in fn.body.ops if op.name == "gather")
    assert may_read_outside(gather, fn.env) is waits
    names = [[op.name for op in f.ops] for f in make_plan(fn).fusions]
    check = next(k for k, ops in enumerate(names) if "disc.check" in ops)
    read = next(k for k, ops in enumerate(names) if "gather" in ops)
    assert (check < read) or not waits
    assert any({"gather", "add"} <= set(ops) for ops in names)  # still one kernel with what reads it


@pytest.mark.parametrize("extent", [0, 2])
def test_an_empty_table_is_an_error_and_not_a_crash(extent: int) -> None:
    module = Module()
    module.add(lookup("n"))
    executable = Executable.from_bytes(compile_module(module, [native_target()]).executable)
    table = np.arange(extent * 4, dtype=np.float32).reshape(extent, 4)
    if not extent:  # TensorFlow gives a null pointer; numpy cannot, but this address may not be read either
        table = np.ndarray((0, 4), np.float32, mmap.mmap(-1, mmap.PAGESIZE, prot=0))
    x = np.ones((3, 4), np.float32)
    with pytest.raises(DiscError) as raised:
        executable.run([x, table, np.array([0, 1, 2], np.int32)])
    assert raised.value.code == OUT_OF_RANGE and raised.value.node == "lookup"
    if extent:
        (out,) = executable.run([x, table, np.array([0, 1, 1], np.int32)])
        np.testing.assert_allclose(out, np.tanh(x) + table[[0, 1, 1]], rtol=1e-6)
