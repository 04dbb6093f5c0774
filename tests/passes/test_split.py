"""Programs cut into segments: the parts together mean what the whole meant, and no part looks at an input that it does not wait for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from disc_tf.ir.builder import Builder
from disc_tf.ir.core import ArgInfo, Function, Module, Value
from disc_tf.ir.interp import evaluate
from disc_tf.ir.opset import CheckFailed
from disc_tf.ir.types import DType, TensorType
from disc_tf.ir.verifier import verify
from disc_tf.passes import split
from disc_tf.passes.pipeline import optimize_segments
from disc_tf.passes.split import Part, split_segments
from tests.passes.random_module import inputs_for, random_module
from tests.passes.test_random import EXTENTS, same


def run_parts(parts: Sequence[tuple[Part, Function]], prepare: Function | None, inputs: Sequence[Any]) -> list[Any]:
    """All results, part after part; what a part does not wait for is not given to it."""
    kept: dict[int, Any] = {}
    results: dict[int, Any] = {}
    main = parts[0][1]
    given = list(inputs)
    if prepare is not None:
        named = {a.name: x for a, x in zip(main.args, inputs, strict=False)}
        given += evaluate(prepare, [named[a.name] for a in prepare.args])
    done: set[int] = set()
    for k, (part, fn) in enumerate(parts):
        assert set(part.depends) <= done
        done.add(k)
        for i in fn.absent:
            assert not fn.params[i].uses, f"part {k} reads {fn.params[i]!r}"
        own = [*given, *(kept[n] for n in part.kept_in)]
        out = evaluate(fn, own)  # tokens are not among them
        for i, x in zip(part.outputs, out, strict=False):
            assert i not in results
            results[i] = x
        kept.update(zip(part.kept_out, out[len(part.outputs) :], strict=True))
    return [results[i] for i in range(len(results))]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every set of inputs is worth a segment."""
    monkeypatch.setattr(split, "_WORTH", 0.0)
    monkeypatch.setattr(split, "_LEAST", 0.0)


def test_random_modules(eager: None) -> None:
    cut = 0
    for seed in range(40):
        module = random_module(seed, ops=32)
        symbols = EXTENTS[seed % len(EXTENTS)]
        inputs = inputs_for(module.main, symbols, seed)
        want = evaluate(module, inputs)
        if seed % 2:
            parts = split_segments(module)
            for part in parts:
                verify(part.module)
            found = [(part, part.module.main) for part in parts]
            same(run_parts(found, None, inputs), want)
        else:
            pairs = optimize_segments(module, verify_each=True)
            prepare = pairs[0][1].uniform.functions.get("prepare")
            for body in ("uniform", "general"):
                found = [(part, (getattr(special, body) or special.uniform).main) for part, special in pairs]
                same(run_parts(found, prepare, inputs), want)
        cut += len(found) > 1
    assert cut > 20


class Maker:
    """Functions of inputs a, b, c ... of [n_i, 8] with a weight [8, 8]."""

    def __init__(self, names: str = "ab") -> None:
        self.fn = Function("main")
        self.b = Builder(self.fn.body, self.fn.env)
        self.w = self.fn.add_arg(TensorType.of(DType.F32, (8, 8)), ArgInfo("w", "const"))
        self.x = {n: self.fn.add_arg(TensorType.of(DType.F32, (f"{n}0", 8)), ArgInfo(n)) for n in names}

    def layer(self, x: Value) -> Value:
        return self.b.create1("tanh", [self.b.dot_general(x, self.w, [1], [0])])

    def tower(self, x: Value, layers: int = 3) -> Value:
        for _ in range(layers):
            x = self.layer(x)
        return x

    def mean(self, x: Value) -> Value:
        return self.b.reduce(x, [0], "add")

    def module(self, *results: Value) -> Module:
        self.b.return_(results)
        module = Module()
        module.add(self.fn)
        return module


def names(module: Module) -> list[tuple[str, list[int]]]:
    """(inputs, results) of each part."""
    args = module.main.args
    return [("".join(args[i].name for i in p.inputs), p.outputs) for p in split_segments(module)]


def test_towers_start_alone() -> None:
    m = Maker()
    a, b = (m.mean(m.tower(m.x[n])) for n in "ab")
    assert names(m.module(m.b.add(a, b))) == [("a", []), ("b", []), ("ab", [0])]


def test_a_result_goes_as_soon_as_its_inputs_are_there() -> None:
    m = Maker()
    a, b = (m.mean(m.layer(m.x[n])) for n in "ab")
    assert names(m.module(m.b.add(a, b), a)) == [("a", [1]), ("b", []), ("ab", [0])]


def test_little_work_is_not_worth_a_segment() -> None:
    m = Maker()
    joined = m.b.add(m.mean(m.b.create1("tanh", [m.x["a"]])), m.mean(m.x["b"]))
    wide = m.b.broadcast_in_dim(joined, m.x["a"].dims, [1])
    assert names(m.module(m.tower(wide, 6))) == [("ab", [0])]


def test_chains_of_inputs() -> None:
    m = Maker("abc")
    a = m.mean(m.tower(m.x["a"]))
    ab = m.mean(m.tower(m.b.add(m.x["b"], m.b.broadcast_in_dim(a, m.x["b"].dims, [1]))))
    abc = m.mean(m.tower(m.b.add(m.x["c"], m.b.broadcast_in_dim(ab, m.x["c"].dims, [1]))))
    assert names(m.module(abc, ab, a)) == [("a", [2]), ("ab", [1]), ("abc", [0])]


def test_results_without_inputs_and_of_single_inputs() -> None:
    m = Maker()
    assert names(m.module(m.x["b"], m.mean(m.x["a"]), m.b.full(1.0, DType.F32, [3]), m.w)) == [("", [2, 3]), ("a", [1]), ("b", [0])]


def test_one_input_is_one_segment() -> None:
    m = Maker("a")
    assert names(m.module(m.mean(m.tower(m.x["a"])), m.x["a"])) == [("a", [0, 1])]


def test_dims_of_another_input_make_a_part_wait(eager: None) -> None:
    m = Maker()
    wide = m.b.broadcast_in_dim(m.mean(m.tower(m.x["a"])), [m.x["b"].dims[0], 8], [1])
    assert names(m.module(m.mean(m.tower(wide)))) == [("a", []), ("ab", [0])]


def test_data_dependent_dims_stay_in_their_segment(eager: None) -> None:
    """What is sized by data of a is in one segment with all that reads it; the other tower is not held back."""
    m = Maker()
    count = m.b.convert(m.b.reduce(m.b.abs(m.x["a"]), [0, 1], "add"), DType.I64)
    n = m.b.bind_dim(count, "n0")
    sized = m.b.broadcast_in_dim(m.mean(m.x["a"]), [n, 8], [1])
    module = m.module(m.b.add(m.mean(m.tower(sized)), m.mean(m.tower(m.x["b"]))))
    inputs = [np.eye(8, dtype=np.float32), np.ones((2, 8), np.float32), np.ones((3, 8), np.float32)]
    want = evaluate(module, inputs)
    parts = split_segments(module)
    assert [p.inputs for p in parts] == [[1], [2], [1, 2]]
    same_f32 = run_parts([(p, p.module.main) for p in parts], None, inputs)
    np.testing.assert_allclose(same_f32[0], want[0], rtol=1e-5)


def test_checks_come_with_what_they_look_at(eager: None) -> None:
    m = Maker()
    token = m.b.create_token()
    values = {}
    for n in "ab":
        total = m.mean(m.tower(m.x[n]))
        ok = m.b.compare(m.b.reduce(total, [0], "max"), m.b.full(100.0, DType.F32, []), "LT")
        token = m.b.check(ok, token, 3, f"{n} is too large", n)
        values[n] = total
    module = m.module(m.b.add(values["a"], values["b"]), token)
    parts = split_segments(module)
    assert [(p.inputs, sum(op.name == "disc.check" for op in p.module.main.body.ops)) for p in parts] == [([1], 1), ([2], 1), ([1, 2], 0)]
    good = [np.eye(8, dtype=np.float32), np.ones((2, 8), np.float32), np.ones((3, 8), np.float32)]
    run_parts([(p, p.module.main) for p in parts], None, good)
    many = np.ones((300, 8), np.float32)
    for inputs, message in (([good[0], many, good[2]], "a is too large"), ([good[0], good[1], many], "b is too large")):
        with pytest.raises(CheckFailed, match=message):
            run_parts([(p, p.module.main) for p in parts], None, inputs)
