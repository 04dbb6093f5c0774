"""Weights in files of their own: there and back bit for bit, shared, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.external import EXTERNAL_OP, externalize, internalize, prune, withdraw
from disc_tf.frontend.tfproto import message_class, serialized


def graph(seed: int = 0) -> Any:
    g = message_class("GraphDef")()
    rng = np.random.default_rng(seed)
    big = rng.standard_normal((64, 512), np.float32)
    for name, content in (("w", big), ("same", big), ("small", big[:2]), ("half", big.astype(np.float16))):
        node = g.node.add(name=name, op="Const", device="/cpu:0" if name == "w" else "")
        node.attr["dtype"].type = 19 if content.dtype == np.float16 else 1
        tensor = node.attr["value"].tensor
        tensor.dtype = node.attr["dtype"].type
        for d in content.shape:
            tensor.tensor_shape.dim.add().size = d
        tensor.tensor_content = content.tobytes()
        if name == "half":
            node.attr["_output_shapes"].list.shape.add().CopyFrom(tensor.tensor_shape)
    splat = g.node.add(name="splat", op="Const")
    splat.attr["dtype"].type = 1
    splat.attr["value"].tensor.dtype = 1
    splat.attr["value"].tensor.tensor_shape.dim.add().size = 1 << 20
    splat.attr["value"].tensor.float_val.append(1.0)
    g.versions.producer = 1882
    return g


def test_there_and_back(tmp_path: Path) -> None:
    g = graph()
    e = externalize(g, tmp_path / "w")
    assert [n.op for n in e.graph_def.node] == [EXTERNAL_OP, EXTERNAL_OP, "Const", EXTERNAL_OP, "Const"]
    assert len(e.files) == 2 and e.bytes == 64 * 512 * 6  # equal contents share a file
    assert len(serialized(e.graph_def)) < 8192
    assert serialized(internalize(e.graph_def)) == serialized(g)
    assert internalize(g) is g


def test_an_earlier_graph_stays_valid_until_pruned(tmp_path: Path) -> None:
    first, second = externalize(graph(0), tmp_path / "w"), externalize(graph(1), tmp_path / "w")
    (tmp_path / "w" / "notes.txt").write_text("not ours")
    assert serialized(internalize(first.graph_def)) == serialized(graph(0))
    prune(second)
    assert serialized(internalize(second.graph_def)) == serialized(graph(1))
    assert (tmp_path / "w" / "notes.txt").exists()
    with pytest.raises(GraphError, match="cannot be read"):
        internalize(first.graph_def)


def test_changed_content_is_noticed(tmp_path: Path) -> None:
    e = externalize(graph(), tmp_path / "w")
    path = tmp_path / "w" / e.files[0]
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    with pytest.raises(GraphError, match="not what was written"):
        internalize(e.graph_def)


@pytest.mark.parametrize("damage", [lambda b: b"\1" + b[1:], lambda b: b[:-4], lambda b: b""])
def test_a_damaged_file_is_written_anew(tmp_path: Path, damage: Any) -> None:
    """A file of the right name is not trusted, whatever its size."""
    e = externalize(graph(), tmp_path / "w")
    path = tmp_path / "w" / e.files[0]
    path.write_bytes(damage(path.read_bytes()))
    assert serialized(internalize(externalize(graph(), tmp_path / "w").graph_def)) == serialized(graph())


def test_files_of_a_graph_that_is_not_published_are_withdrawn(tmp_path: Path) -> None:
    old = externalize(graph(0), tmp_path / "w")
    known: dict[str, bool] = {}
    externalize(graph(0), tmp_path / "w", known=known)
    assert set(known.values()) == {False}  # they were there
    externalize(graph(1), tmp_path / "w", known=known)
    withdraw(tmp_path / "w", [name for name, made in known.items() if made])
    assert {p.name for p in (tmp_path / "w").iterdir()} == set(old.files)
    withdraw(tmp_path / "w", old.files)
    assert not (tmp_path / "w").exists()
