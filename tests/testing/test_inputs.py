"""Inputs that are made up: which placeholders need some, and what is said where none can be made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disc_tf.testing.inputs import specs_from_graph, specs_from_json
from tests.frontend.graphs import G

STRING, RESOURCE = 7, 20


def graph_with(dtype: int, unknown_rank: bool) -> Any:
    """y = Relu(x), and a second placeholder that only ``z`` reads."""
    g = G()
    g.placeholder("x", [None, 8])
    g.unary("y", "x")
    g.placeholder("odd", [None])
    g.unary("z", "odd")
    odd = next(n for n in g.proto.node if n.name == "odd")
    odd.attr["dtype"].type = dtype
    if unknown_rank:
        odd.attr["shape"].shape.Clear()
        odd.attr["shape"].shape.unknown_rank = True
    return g.proto


@pytest.mark.parametrize(
    ("dtype", "unknown_rank", "said"),
    [
        (STRING, True, ["its rank is not known", "--inputs-json FILE", "--no-verify"]),
        (RESOURCE, False, ["values of type resource cannot be made up", "--no-verify"]),
        (8, False, ["values of type complex64 cannot be made up", "--no-verify"]),
        (1, True, ["its rank is not known", "--inputs-json FILE", "--no-verify"]),
        (0, False, ["its dtype is not known", "--inputs-json FILE", "--no-verify"]),
    ],
)
def test_only_what_the_outputs_need_counts(dtype: int, unknown_rank: bool, said: Sequence[str]) -> None:
    graph = graph_with(dtype, unknown_rank)
    assert [s.name for s in specs_from_graph(graph, outputs=["y:0"])] == ["x"]
    for outputs in (["z:0"], ["y", "^z"], None):
        with pytest.raises(ValueError, match="input odd: ") as raised:
            specs_from_graph(graph, outputs=outputs)
        assert all(text in str(raised.value) for text in said)


def test_a_placeholder_that_is_waited_for_is_needed() -> None:
    graph = graph_with(1, False)
    next(n for n in graph.node if n.name == "y").input.append("^odd")
    assert [s.name for s in specs_from_graph(graph, outputs=["y:0"])] == ["x", "odd"]


@pytest.mark.parametrize(
    ("gen", "words"),
    [
        ({"kind": "maks"}, "did you mean 'mask'"),
        ({"kind": 3}, "known: auto"),
        ({"low": 1}, "gen has no 'low'; it takes kind, lo, hi, scale"),
    ],
)
def test_descriptions_with_typing_errors(tmp_path: Path, gen: dict[str, Any], words: str) -> None:
    path = tmp_path / "m.json"
    entry = {"name": "x", "dtype": "float32", "shape": ["B"], "gen": gen}
    path.write_text(json.dumps({"inputs": [entry], "outputs": ["y:0"], "points": []}))
    with pytest.raises(ValueError, match=words):
        specs_from_json(path)


def test_floats_of_a_description(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    kinds = [{"kind": "uniform"}, {"kind": "normal", "scale": 100}]
    inputs = [{"name": f"x{i}", "dtype": "float32", "shape": ["B"], "gen": gen} for i, gen in enumerate(kinds)]
    path.write_text(json.dumps({"inputs": inputs, "outputs": ["y:0"], "points": []}))
    uniform, normal = (s.make((1000,), np.random.default_rng(0)) for s in specs_from_json(path)[0])
    assert 0 <= uniform.min() < 0.1 < 0.9 < uniform.max() < 1 and 80 < normal.std() < 120
