"""Inputs that are made up: which placeholders need some, and what is said where none can be made."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disc_tf.testing.inputs import InputSpec, make_feeds, specs_from_graph, specs_from_json
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


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("points.0.dims.B", -1, "points[0]: B: an extent is wanted, not -1"),
        ("points.0.dims.B", 1.5, "not 1.5"),
        ("points.0.dims.B", "7", "not '7'"),
        ("points.0.dims.B", True, "not True"),
        ("points.0.dims", {}, "points[0]: B: an extent is wanted, not None"),
        ("points.0.dims", [3], "points[0]: dims: an object is wanted"),
        ("outputs", "y:0", "outputs: a list of names"),
        ("outputs", [3], "not [3]"),
        ("inputs.0.name", 5, "the name of an input is text, not 5"),
        ("inputs.0.shape", "B", "input x: shape: a list"),
        ("inputs.0.shape", ["B", None], "not ['B', None]"),
        ("inputs.0.shape", ["B", -1], "input x: shape"),
        ("inputs.0.gen", 3, "input x: gen: an object"),
        ("inputs.0.gen", {"lo": 1 << 31}, "input x: gen: lo and hi are whole numbers, lo one of int32"),
        ("inputs.0.gen", {"hi": math.inf}, "lo and hi"),
    ],
)
def test_what_is_no_description_is_refused(tmp_path: Path, path: str, value: Any, words: str) -> None:
    data: Any = {"inputs": [{"name": "x", "dtype": "int32", "shape": ["B"]}], "outputs": ["y:0"], "points": [{"dims": {"B": 2}}]}
    file, at = tmp_path / "m.json", data
    *outer, last = path.split(".")
    for key in outer:
        at = at[int(key) if key.isdigit() else key]
    at[last] = value
    file.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=re.escape(words)):
        specs_from_json(file)


def test_a_description_that_is_too_deep(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="too deeply nested"):
        specs_from_json(path)


@pytest.mark.parametrize("shape", [[1 << 46, 8], [1 << 60, 0, 3], [1 << 64], [1 << 40, 1 << 40]])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_values_that_do_not_fit(shape: list[int], dtype: str) -> None:
    specs = [InputSpec("x", np.dtype(dtype), ("B", *shape[1:]))]
    with pytest.raises(MemoryError, match=re.escape(f"input x at {shape} does not fit in memory")):
        make_feeds(specs, {"B": shape[0]})


def test_floats_of_a_description(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    kinds = [{"kind": "uniform"}, {"kind": "normal", "scale": 100}]
    inputs = [{"name": f"x{i}", "dtype": "float32", "shape": ["B"], "gen": gen} for i, gen in enumerate(kinds)]
    path.write_text(json.dumps({"inputs": inputs, "outputs": ["y:0"], "points": []}))
    uniform, normal = (s.make((1000,), np.random.default_rng(0)) for s in specs_from_json(path)[0])
    assert 0 <= uniform.min() < 0.1 < 0.9 < uniform.max() < 1 and 80 < normal.std() < 120
