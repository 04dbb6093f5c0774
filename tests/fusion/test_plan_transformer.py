"""The plan of transformer layers: kernel counts, kinds, and every access proved by executing the plan."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.fusion.plan import make_plan
from disc_tf.ir.core import walk
from disc_tf.ir.interp import evaluate
from disc_tf.ir.types import DType
from disc_tf.passes.pipeline import optimize
from tests.fusion.plan_interp import run_plan
from tests.fusion.transformer import bert, random_inputs

LAYER = ["gemm", "attention", "gemm", "rows", "gemm", "gemm", "rows"]


def with_prepared(special, inputs):
    """``inputs`` followed by what function prepare makes of them."""
    main = special.main
    prepare = special.functions.get("prepare")
    if prepare is None:
        return inputs
    by_name = {a.name: x for a, x in zip(main.args, inputs, strict=False)}
    return [*inputs, *evaluate(prepare, [by_name[a.name] for a in prepare.args])]


@pytest.mark.parametrize("layers", [1, 3])
def test_a_layer_is_seven_kernels(layers: int) -> None:
    special = optimize(bert(layers), verify_each=True)
    plan = make_plan(special.uniform.main)
    kinds = [f.kind for f in plan.kernels()]
    assert kinds == ["loop"] + LAYER * layers, plan.describe()
    assert special.general is None


def test_without_passes_the_attention_still_fuses() -> None:
    kinds = [f.kind for f in make_plan(bert(1).main).kernels()]
    assert kinds.count("attention") == 1
    assert len(kinds) <= 10


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
@pytest.mark.parametrize("b,s", [(1, 1), (2, 5), (3, 8), (0, 4), (2, 0)])
@pytest.mark.parametrize("optimised", [False, True])
def test_plan_computes_what_the_function_computes(dtype: DType, b: int, s: int, optimised: bool) -> None:
    module = bert(2, dtype=dtype)
    inputs = random_inputs(module.main, {"b": b, "s": s})
    want = evaluate(module, inputs)
    if optimised:
        module = optimize(module, verify_each=True).uniform
        inputs = with_prepared(module, inputs)
    got = run_plan(make_plan(module.main), inputs)
    tolerance = 2e-4 if dtype is DType.F32 else 1e-10
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance)


def test_every_computing_op_is_in_one_fusion() -> None:
    module = optimize(bert(2)).uniform
    plan = make_plan(module.main)
    seen: dict[object, int] = {}
    for fusion in plan:
        for op in fusion.ops:
            if op.name in ("dot_general", "reduce", "exponential", "erfc", "rsqrt", "add", "multiply"):
                seen[op] = seen.get(op, 0) + 1
    assert set(seen.values()) == {1}
    assert {op for op in walk(module.main.body) if op.name in ("dot_general", "exponential")} <= seen.keys()


def test_qkv_is_one_gemm_and_the_attention_reads_slices_of_it() -> None:
    plan = make_plan(optimize(bert(1)).uniform.main)
    attention = next(f for f in plan if f.kind == "attention")
    qkv = next(f for f in plan if f.kind == "gemm")
    views = [attention.attrs[x] for x in "qkv"]
    assert {v.source for v in views} == set(qkv.outputs)
    assert [int(v.offset) for v in views] == [0, 16, 32]
    assert [str(s) for s in views[0].strides] == ["48*s", "8", "48", "1"]  # batch, head, row, depth
    assert qkv.attrs["pack"] == "rhs"
    _, place = attention.attrs["region"].writes[0]
    assert [str(s) for s in place.strides] == ["16*s", "8", "16", "1"]  # stored as [B, S, H, D]
