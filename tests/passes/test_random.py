"""Passes and plan on random modules mean what the module meant: at empty, unit and ordinary extents."""

from __future__ import annotations

import numpy as np
import pytest

from disc_tf.fusion.plan import make_plan
from disc_tf.ir.interp import evaluate
from disc_tf.ir.pass_manager import PassContext, PassManager
from disc_tf.passes.pipeline import PASSES, optimize
from tests.fusion.plan_interp import run_plan
from tests.passes.random_module import inputs_for, random_module

EXTENTS = ({"m": 3, "n": 5}, {"m": 1, "n": 1}, {"m": 0, "n": 2}, {"m": 7, "n": 1})


def same(got, want) -> None:
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", sorted(set(PASSES) - {"outline_prepare"}))
@pytest.mark.parametrize("seed", range(6))
def test_each_pass_alone(name: str, seed: int) -> None:
    module = random_module(seed, ops=40)
    cases = [(s, inputs_for(module.main, s, seed)) for s in EXTENTS]
    want = [evaluate(module, inputs) for _, inputs in cases]
    PassManager((PASSES[name](),), verify_each=True).run(module, PassContext())
    for (_, inputs), w in zip(cases, want, strict=True):
        same(evaluate(module, inputs), w)


@pytest.mark.parametrize("seed", range(30))
def test_pipeline_and_plan(seed: int) -> None:
    module = random_module(seed, ops=28)
    symbols = EXTENTS[seed % len(EXTENTS)]
    inputs = inputs_for(module.main, symbols, seed)
    want = evaluate(module, inputs)
    same(run_plan(make_plan(module.main), inputs), want)
    special = optimize(module, verify_each=True)
    for body in special.modules:
        args = list(inputs)
        prepare = body.functions.get("prepare")
        if prepare is not None:
            named = {a.name: x for a, x in zip(body.main.args, inputs, strict=False)}
            args += evaluate(prepare, [named[a.name] for a in prepare.args])
        same(evaluate(body.main, args), want)
        same(run_plan(make_plan(body.main), args), want)
