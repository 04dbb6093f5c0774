"""The file of `disc-tf optimize` on its way: what was proved is what is published, and nothing else is left."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from disc_tf import proof
from disc_tf.cli import main
from disc_tf.commands.common import CommandError
from disc_tf.commands.output import staged_file
from disc_tf.frontend.external import externalize, internalize
from disc_tf.frontend.tfproto import graph_from_bytes, graph_from_text, serialized
from disc_tf.report import ShapeResult
from tests.frontend.graphs import G


def make(seed: int, rows: int = 256) -> G:
    g = G()
    g.placeholder("x", [None, rows])
    g.const("w", np.random.default_rng(seed).standard_normal((rows, 128), np.float32) / 16)
    g.unary("y", g.matmul("m", "x", "w"))
    return g


def files(directory: Path) -> list[str]:
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())


@pytest.mark.parametrize("name", ["out.pb", "out.pbtxt"])
@pytest.mark.parametrize("external", [False, True])
def test_the_last_graph_is_published(tmp_path: Path, name: str, external: bool) -> None:
    read = graph_from_bytes if name.endswith(".pb") else lambda data: graph_from_text(data.decode())
    for seeds in ((0, 1), (2, 1, 3)):
        with staged_file(str(tmp_path / name), external=external) as output:
            for seed in seeds:
                path = output.write(make(seed).proto)
                proved = path.read_bytes()
                assert path.name == name and path.parent.parent == tmp_path  # loaders see the suffix; the rename stays in one filesystem
                assert serialized(internalize(read(proved))) == serialized(make(seed).proto)
            output.publish()
        assert (tmp_path / name).read_bytes() == proved
        assert len(files(tmp_path)) == (2 if external else 1)  # the weights of other graphs are removed


@pytest.mark.parametrize("earlier", [False, True])
def test_an_error_leaves_what_was_there(tmp_path: Path, earlier: bool) -> None:
    if earlier:
        with staged_file(str(tmp_path / "out.pb"), external=True) as output:
            output.write(make(0).proto)
            output.publish()
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    with pytest.raises(RuntimeError), staged_file(str(tmp_path / "out.pb"), external=True) as output:
        output.write(make(0).proto)
        output.write(make(1).proto)
        raise RuntimeError
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == before
    assert (tmp_path / "out.pb.weights").exists() is earlier


def test_a_destination_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "out.pb.weights").write_text("a file")
    with pytest.raises(CommandError, match=r"cannot write .*weights"), staged_file(str(tmp_path / "out.pb"), external=True) as output:
        output.write(make(0).proto)


def test_the_proof_reads_the_bytes_that_are_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each candidate is what would be published; here the first one differs, and the original comes back."""
    seen: list[bytes] = []

    class Check:
        def __init__(self, original: str, specs: object, outputs: object, cases: list[object], **_: object) -> None:
            self.cases = cases

        def __enter__(self) -> Check:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def attempt(self, path: Path, **_: object) -> list[ShapeResult]:
            seen.append(Path(path).read_bytes())
            launched = b"DiscLaunch" in seen[-1]
            return [ShapeResult({}, not launched, "differs" if launched else "", {"y:0": 0.0}, elements={"y:0": 1})]

    monkeypatch.setattr(proof, "GraphCheck", Check)
    (tmp_path / "in.pb").write_bytes(serialized(make(0).proto))
    command = ["optimize", str(tmp_path / "in.pb"), "-o", str(tmp_path / "out.pb"), "--external-weights", "-q", "--no-timing"]
    options = ["--min-cluster-size", "1", "--no-use-tf-shapes", "--target", "native", "--report", str(tmp_path / "r.json")]
    assert main([*command, *options]) == 0
    assert seen[-1] == (tmp_path / "out.pb").read_bytes() and b"DiscLaunch" in seen[0]
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["verified"] and [c["status"] for c in report["clusters"]] == ["put_back"]
    assert serialized(internalize(graph_from_bytes(seen[-1]))) == serialized(make(0).proto)


@pytest.mark.slow
def test_an_original_with_external_weights_is_proved(tmp_path: Path) -> None:
    """TensorFlow alone does not load such a file: its content is compared."""
    graph = externalize(make(0).proto, tmp_path / "w").graph_def
    (tmp_path / "in.pb").write_bytes(serialized(graph))
    command = ["optimize", str(tmp_path / "in.pb"), "-o", str(tmp_path / "out.pb"), "-q", "--no-timing", "--points", "2"]
    options = ["--min-cluster-size", "1", "--target", "native", "--report", str(tmp_path / "r.json")]
    assert main([*command, *options]) == 0
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["verified"] is True and [c["status"] for c in report["clusters"]] == ["compiled"]


@pytest.mark.slow
def test_weights_that_were_damaged_are_not_trusted(tmp_path: Path) -> None:
    """The whole way, in TensorFlow: the second run finds files of the right names and sizes with other content."""
    (tmp_path / "in.pb").write_bytes(serialized(make(0).proto))
    command = ["optimize", str(tmp_path / "in.pb"), "-o", str(tmp_path / "out.pb"), "--external-weights", "-q", "--no-timing"]
    options = ["--min-cluster-size", "1", "--target", "native", "--report", str(tmp_path / "r.json")]
    assert main([*command, *options]) == 0
    (weights,) = (tmp_path / "out.pb.weights").iterdir()
    content = weights.read_bytes()
    weights.write_bytes(bytes(len(content)))
    assert main(["verify", str(tmp_path / "in.pb"), str(tmp_path / "out.pb")]) == 5
    assert main([*command, *options]) == 0
    assert weights.read_bytes() == content
    assert json.loads((tmp_path / "r.json").read_text())["routes"] == ["tf.import_graph_def"]
    assert main(["verify", str(tmp_path / "in.pb"), str(tmp_path / "out.pb")]) == 0
