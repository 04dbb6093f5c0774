"""A transformer layer whose products and attentions run as native kernels, the rest by reference: the plan's views, regions and
prepared weights as the emitters meet them in practice."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.codegen.cpu.target import CpuTarget
from disc_tf.fusion.plan import make_plan
from disc_tf.fusion.types import Fusion
from disc_tf.ir.interp import evaluate
from disc_tf.ir.types import DType
from disc_tf.passes.pipeline import optimize
from disc_tf.testing.kernel_runner import CompiledFusion
from tests.codegen.cpu.products import host_targets, prepared
from tests.fusion.plan_interp import PlanRunner
from tests.fusion.transformer import bert, random_inputs


class NativeRunner(PlanRunner):
    """Runs fusions of kind gemm and attention through their kernels."""

    compiled: dict[Fusion, CompiledFusion]
    target: CpuTarget

    def _native(self, fusion: Fusion) -> None:
        f = self.compiled.get(fusion)
        if f is None:
            f = self.compiled[fusion] = CompiledFusion(fusion, self.plan.function, self.target)
        arrays = {v: self.buffers[v] for v in fusion.inputs}
        arrays.update(prepared(f, arrays))
        results = f(arrays, self.ctx.symbols, split=1)
        self.buffers.update(zip(fusion.outputs, results, strict=True))

    _gemm = _attention = _native


@pytest.mark.parametrize("target", host_targets(), ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=str)
@pytest.mark.parametrize("optimised", [False, True])
def test_layer(target, dtype, optimised):
    original, module = (bert(1, h=3, d=26, ffn=100, dtype=dtype) for _ in range(2))
    if optimised:
        module = optimize(module).uniform
    plan = make_plan(module.main)
    compiled: dict[Fusion, CompiledFusion] = {}
    for b, s in ((2, 9), (1, 1), (0, 4), (2, 0), (1, 60)):
        inputs = random_inputs(original.main, {"b": b, "s": s})
        want = evaluate(original, inputs)
        if optimised and "prepare" in module.functions:
            by_name = {a.name: x for a, x in zip(module.main.args, inputs, strict=False)}
            prepare = module.functions["prepare"]
            inputs = [*inputs, *evaluate(prepare, [by_name[a.name] for a in prepare.args])]
        runner = NativeRunner(plan, inputs)
        runner.compiled, runner.target = compiled, target
        tolerance = 3e-4 if dtype is DType.F32 else 1e-10
        for got, expected in zip(runner.run(), want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance, err_msg=f"b={b} s={s}")
    assert {f.kind for f in compiled} == {"gemm", "attention"}
