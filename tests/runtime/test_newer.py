"""Files of a version to come: both readers, the op and the verbs say what it is, what this version reads, and the way out."""

from __future__ import annotations

import dataclasses
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.recipe import _unpack
from disc_tf.insight.replay_file import ReplayError, read_replay
from disc_tf.runtime import DiscError, load
from disc_tf.runtime import artifact as form
from disc_tf.runtime.artifact import ArtifactError, unpack
from disc_tf.runtime.executable import Executable
from disc_tf.standalone import compile_graph_def
from tests.commands.test_cli import run
from tests.frontend.graphs import G

WAY_OUT = "upgrade disc-tf here, or optimize the model again with this version"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    g = G()
    g.placeholder("x", [None, 4])
    g.const("w", np.ones((4, 3)))
    g.matmul("y", "x", "w")
    path = tmp_path_factory.mktemp("newer") / "m.disc"
    compile_graph_def(g.proto, ["y"], path, targets="native", use_tf_shapes=False)
    return path


def layout(data: bytes) -> bytes:
    return data[:7] + b"\x02" + data[8:]


def format_number(data: bytes) -> bytes:
    return data[:8] + struct.pack("<I", 2) + data[12:]


def _rebuilt(data: bytes, change: Callable[[list[tuple[bytes, int, bytes]]], object]) -> bytes:
    """An artefact of the same code without constants, with other sections."""
    a = unpack(data)
    sections = form.sections_of(dataclasses.replace(a, constants=()))
    change(sections)
    return form.headed(*form.lay_out(sections))


def section(data: bytes) -> bytes:
    return _rebuilt(data, lambda s: s.append((b"NEXT", form.FLAG_REQUIRED, b"new")))


def abi(data: bytes) -> bytes:
    a = dataclasses.replace(unpack(data), abi_version=form.ABI_VERSION + 1, compiler_version="9.1", constants=())
    return form.headed(*form.lay_out(form.sections_of(a)))


CASES: list[tuple[Callable[[bytes], bytes], str]] = [
    (layout, "its layout is 2, "),
    (format_number, "its format is 2, "),
    (section, "is required, and not known to this "),
    (abi, "a newer disc_tf (9.1) made it: its runtime ABI is 2, this "),
]


@pytest.mark.parametrize(("change", "message"), CASES, ids=[c.__name__ for c, _ in CASES])
def test_an_artefact(
    change: Callable[[bytes], bytes], message: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = change(model.read_bytes())
    path = tmp_path / "new.disc"
    path.write_bytes(data)
    found: list[str] = []
    for action, kind in (
        (lambda: unpack(data), ArtifactError),
        (lambda: Executable.from_bytes(data), DiscError),
        (lambda: load(path), DiscError),
        (lambda: load(path, verify=True), ArtifactError),
    ):
        with pytest.raises(kind) as told:
            action()
        found.append(str(told.value))
    for arguments in (["inspect", path], ["run", path], ["trace", path, "-o", tmp_path / "t.json"]):
        assert run(*arguments) == 3
        found.append(capsys.readouterr().err)
        assert found[-1].startswith("disc-tf: ") and found[-1].count("\n") == 1
    for text in found:
        assert "a newer disc_tf" in text and message in text and WAY_OUT in text, text


def test_an_older_reader_ignores_what_it_may(model: Path) -> None:
    data = _rebuilt(model.read_bytes(), lambda s: s.append((b"NEXT", 0, b"new")))
    assert unpack(data).name == "m"
    Executable.from_bytes(data).close()


def test_a_restore_recipe() -> None:
    head = json.dumps({"version": 2}).encode()
    with pytest.raises(GraphError, match="has version 2, this one reads 1; upgrade disc-tf here"):
        _unpack(zlib.compress(len(head).to_bytes(4, "little") + head))


def test_a_replay_file(tmp_path: Path) -> None:
    path = tmp_path / "c.replay"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps({"format": 2, "versions": {"disc_tf": "9.1"}}))
    with pytest.raises(ReplayError, match=r"disc_tf 9.1 made it: its replay format is 2, this version reads 1; upgrade disc-tf here"):
        read_replay(path)
