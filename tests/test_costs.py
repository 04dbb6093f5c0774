"""The cost model: units, that a prediction follows shape, machine and threads, and what the compiler decides by it."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from disc_tf import costs
from disc_tf.codegen.context import EmitContext
from disc_tf.codegen.cpu.emit import emit_fusion
from disc_tf.codegen.cpu.target import TARGETS, V4
from disc_tf.codegen.kernel import Kernel
from disc_tf.costs import Demand, Machine, grain, is_dear, mac_ps, op_work, plain_ps, point_ps, predict, rank_correlation, weight
from disc_tf.fusion.access import EXPENSIVE
from disc_tf.ir.builder import new_function
from disc_tf.ir.dims import Dim
from disc_tf.ir.types import DType
from disc_tf.passes.rewriter import ELEMENTWISE
from disc_tf.testing.kernel_runner import fusion_of

#: 200 GFLOP/s, 100 bytes a nanosecond up to 1 MB and 10 beyond, two threads
MACHINE = Machine("x86-64-v4", 2, 200.0, ((1_000_000, 100.0), (1 << 40, 10.0)))


def test_every_target_has_rates() -> None:
    assert costs.NOMINAL.keys() == TARGETS.keys()
    rates = [costs.NOMINAL[t] for t in ("x86-64-v2", "x86-64-v3", "x86-64-v4")]
    assert all(a.lane_ps > b.lane_ps and a.mac_ps > b.mac_ps for a, b in itertools.pairwise(rates))


def test_weights() -> None:
    assert costs.WEIGHTS.keys() <= ELEMENTWISE | {"gather", "pad", "dynamic_update_slice", "dynamic_slice", "reverse", "reduce"}
    assert weight("add") == 1 and weight("reshape") == 0 and weight("add", wide=True) == 2
    assert weight("divide", integer=True) > weight("divide") > 1
    assert weight("concatenate", operands=8) == 4 * weight("concatenate", operands=2)


@pytest.mark.parametrize(
    ("name", "dear"), [("add", False), ("select", False), ("convert", False), ("divide", True), ("tanh", True), ("gather", True)]
)
def test_what_is_read_rather_than_computed_again(name: str, dear: bool) -> None:
    assert is_dear(name) is dear and (name in EXPENSIVE) is dear


def test_work_of_ops() -> None:
    assert op_work("dot_general", 10.0, 10.0 * 64) == 640 and op_work("reshape", 10.0) == 0
    assert op_work("add", 10.0) == 20 < op_work("tanh", 10.0, weighs=weight("tanh"))


def test_a_grain_is_a_time() -> None:
    """Tasks of half the points are twice as many to a chunk; dear points make small chunks; never less than one task."""
    n = Dim.of("n")
    found = grain(n, plain_ps("x86-64-v4"))
    at = [found.evaluate({"n": k}) for k in (0, 1, 64, 128, 1 << 40)]
    assert at[0] == at[1] == int(costs.CHUNK_US * 1e6 / 150) and at[2] // 2 == at[3] and at[4] == 1
    assert int(grain(8192, 150.0)) == 4 and int(grain(8192, 600.0)) == 1
    assert int(grain(1000, mac_ps("x86-64-v4"), costs.PRODUCT_CHUNK_US)) == 1090
    assert mac_ps("x86-64-v4", 8) == 2 * mac_ps("x86-64-v4") == 2 * mac_ps("x86-64-v4", 2)


def test_points_cost_what_they_move_or_compute() -> None:
    fn, b = new_function("f", {"x": (DType.F32, ["n"])})
    y = b.create1("tanh", [fn.params[0]])
    b.return_([b.create1("add", [y, fn.params[0]])])
    ops = [op for op in fn.body.ops if op.name != "return"]
    assert point_ps("x86-64-v4", ops, 8) == 29 * 14 and point_ps("x86-64-v4", ops, 80) == 80 * 12.5
    assert point_ps("x86-64-v4", (), 1) == plain_ps("x86-64-v4")


def loop_grain(*names: str, n: int = 1 << 20) -> int:
    fn, b = new_function("f", {"x": (DType.F32, ["n"])})
    v = fn.params[0]
    for name in names:
        v = b.create1(name, [v])
    b.return_([v])
    fusion = fusion_of(fn, "loop", space=(Dim.of("n"),))
    (variant,) = emit_fusion(fusion, V4, EmitContext(V4, fn.env, {fn.params[0]: 0}))
    (kernel,) = variant.kernels
    assert isinstance(kernel, Kernel)
    return kernel.grain.evaluate({"n": n})


def test_kernels_of_dear_ops_are_cut_finer() -> None:
    assert loop_grain("negate") == 4 > loop_grain("exponential") >= loop_grain("erf", "tanh") == 1
    assert loop_grain("negate", n=100) == 333  # more than there are tasks: one thread


def test_a_prediction_follows_the_work() -> None:
    small = Demand("gemm", 1e6, 0.0, 1e5)
    assert predict(small, MACHINE).us == pytest.approx(costs.LAUNCH_US + 1e6 / (100 * 0.8) / 1e3)
    assert predict(dataclasses.replace(small, flops=2e6), MACHINE).us > predict(small, MACHINE).us
    cut = predict(dataclasses.replace(small, chunks=7.0), MACHINE)
    assert cut.threads == 2 and cut.us == pytest.approx(costs.LAUNCH_US + costs.HANDOVER_US + 1e6 / (200 * 0.8) / 1e3)
    slow = dataclasses.replace(MACHINE, gflops=50.0)
    assert predict(small, slow).us > predict(small, MACHINE).us and predict(small, MACHINE).bound == "compute"


def test_a_prediction_follows_the_memory() -> None:
    """What fits into the cache is faster there; weights are where those of the whole model are."""
    near, far = Demand("loop", 0.0, 0.0, 9e5), Demand("loop", 0.0, 0.0, 1.8e6)
    assert predict(far, MACHINE).us > 10 * predict(near, MACHINE).us and predict(near, MACHINE).bound == "memory"
    picked = dataclasses.replace(near, picked=9e5)
    assert predict(picked, MACHINE).us - costs.LAUNCH_US == pytest.approx(costs.SCATTERED * (predict(near, MACHINE).us - costs.LAUNCH_US))
    weights = dataclasses.replace(near, weights=8e5)
    assert predict(weights, MACHINE, 9e8).us > predict(weights, MACHINE, 8e5).us == predict(near, MACHINE).us
    assert predict(Demand("loop", 0.0, 0.0, 10.0), MACHINE).bound == "launch"
    assert predict(Demand("rows", 0.0, 1e6, 10.0), MACHINE).bound == "compute"


@pytest.mark.parametrize("kind", ["gemm", "conv", "attention", "loop", "rows", "reduce"])
@pytest.mark.parametrize("chunks", [0.0, 1.0, 2.0, 100.0])
def test_no_prediction_is_below_the_roofline(kind: str, chunks: float) -> None:
    for flops in (0.0, 1e3, 1e9):
        for traffic in (0.0, 10.0, 999_999.0, 1_000_001.0, 1e9):
            found = predict(Demand(kind, flops, 10.0, traffic, traffic / 2, traffic / 4, chunks), MACHINE, traffic)
            assert found.us >= MACHINE.least_us(flops, traffic)[0]


def test_rank_correlation() -> None:
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 99]) == pytest.approx(1) == -(rank_correlation([1, 2, 3], [3, 2, 1]) or 0)
    assert rank_correlation([1, 1, 2], [5, 6, 7]) == pytest.approx(3**0.5 / 2)
    assert rank_correlation([1, 2], [1, 2]) is None and rank_correlation([1, 1, 1], [1, 2, 3]) is None
