"""`--external-weights` on a real model: the same answers, a fraction of the memory, clear errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from disc_tf.frontend.external import externalize
from disc_tf.frontend.tfproto import graph_from_bytes, serialized
from disc_tf.testing.differential import verify_graphs
from disc_tf.testing.inputs import make_feeds
from disc_tf.testing.tf_process import ProcessFailed, TfError, TfProcess


def run_memory(path: Path, model, sizes: dict[str, int], *, ops: bool) -> tuple[int, int]:
    """(bytes of weights, peak bytes above the process that has only imported TensorFlow and the op library)."""
    with TfProcess(path, model.feeds, model.outputs, ops=ops) as process:
        for _ in range(2):
            process.run(make_feeds(model.specs, sizes))
        return process.info["weights"], process.memory()["peak"] - process.info["import_rss"]


def test_tiny_bert(tiny_bert, tmp_path: Path) -> None:
    e = externalize(tiny_bert.result, tmp_path / "weights")
    path = tmp_path / "external.pb"
    path.write_bytes(serialized(e.graph_def))
    assert path.stat().st_size < 2 << 20
    results = verify_graphs(tiny_bert.path, path, tiny_bert.specs, tiny_bert.outputs, [{"B": 1, "S": 7}, {"B": 3, "S": 40}])
    assert [r.message for r in results if not r.ok] == []
    # a weight that is gone or cut short is an error at load, by name
    victim = e.directory / e.files[0]
    whole = victim.read_bytes()
    for content in (whole[:-4], None):
        victim.unlink() if content is None else victim.write_bytes(content)
        with pytest.raises((TfError, ProcessFailed)) as error, TfProcess(path, tiny_bert.feeds, tiny_bert.outputs, ops=True) as process:
            process.run(make_feeds(tiny_bert.specs, {"B": 1, "S": 7}))
        assert victim.name in str(error.value)


@pytest.mark.slow
def test_peak_memory_of_bert_base(bert_base, tmp_path: Path) -> None:
    """At most 2.5 times the weights and 1.2 times the arena above the bare process."""
    e = externalize(bert_base.result, tmp_path / "weights")
    path = tmp_path / "external.pb"
    path.write_bytes(serialized(e.graph_def))
    sizes = {"B": 1, "S": 128}
    arena = bert_base.report.clusters[0].arena
    from disc_tf.ir.dims import parse_dim

    formula = parse_dim(arena)
    most = max(sizes.values())  # every symbol is B or S
    bound = 2.5 * e.bytes + 1.2 * formula.evaluate({s: most for s in formula.symbols()})
    _, peak = run_memory(path, bert_base, sizes, ops=True)
    assert graph_from_bytes(path.read_bytes()).node
    assert peak <= bound, f"{peak / 1e6:.0f} MB of {bound / 1e6:.0f} MB"
