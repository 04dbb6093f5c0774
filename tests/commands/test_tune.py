"""`disc-tf tune` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from disc_tf.cli import main
from disc_tf.options import Options
from disc_tf.runtime import cpu
from disc_tf.tuning import shipped
from disc_tf.tuning.table import TILES

OTHER = next(isa for isa in TILES if isa != cpu.native_target())


def test_a_tiny_budget_writes_the_shipped_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "table.json"
    assert main(["tune", "--seconds", "1", "-o", str(out), "--threads", "1", "-q"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "1 thread:" in said.out and "no time for" in said.out and f"wrote {out}: table " in said.out
    options = Options.from_overrides(tuning=str(out), targets="native")
    assert options.tables[0].isa == cpu.native_target()
    assert [p.name for p in tmp_path.iterdir()] == ["table.json"]


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--seconds", "1", "--json"]) == 0
    said = capsys.readouterr()
    data = json.loads(said.out)
    table = shipped(cpu.native_target())
    assert (data["isa"], data["shipped"], data["output"], said.err) == (table.isa, table.digest, None, "")
    assert data["left"] and set(data["table"]) == set(table.to_dict())


def test_changes_are_a_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from disc_tf.insight import tune as search

    table = shipped(cpu.native_target())
    better = search._set(table, "gemm.prefetch_steps", 8)
    change = search.Change("gemm.prefetch_steps", "16", "8", 1.0812, (1.08, 1.09), 0.991, 0.004, 30)
    monkeypatch.setattr(search, "tune", lambda *a, **k: search.Tuned(better, table, [change], 18, [], 2))
    out = tmp_path / "t.json"
    assert main(["tune", "-o", str(out), "-q"]) == 0
    text = capsys.readouterr().out
    row = next(line for line in text.splitlines() if line.startswith("gemm.prefetch_steps"))
    assert row.split() == ["gemm.prefetch_steps", "16", "8", "+8.1", "%", "-0.9", "%", "0.4", "%", "30"]
    assert f"disc-tf optimize --tuning {out}" in text
    assert Options.from_overrides(tuning=str(out), targets="native").tables == [better]


def test_an_interruption_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from disc_tf.insight import tune as search

    def interrupted(*_args: object, **_more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(search.Executable, "run", interrupted)
    out = tmp_path / "t.json"
    out.write_text("before")
    assert main(["tune", "-o", str(out), "-q"]) == 1
    assert capsys.readouterr().err == "disc-tf: interrupted\n"
    assert out.read_text() == "before" and [p.name for p in tmp_path.iterdir()] == ["t.json"]


def test_bad_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.pb"
    empty.write_bytes(b"")
    nothing = tmp_path / "nothing.pbtxt"
    nothing.write_text('node { name: "x" op: "Placeholder" attr { key: "dtype" value { type: DT_FLOAT } } }')
    for argv, code, message in [
        (["-o", str(tmp_path)], 3, "it is a directory"), (["-o", str(tmp_path / "none" / "t.json")], 3, "cannot write"),
        (["--model", str(tmp_path / "none.pb")], 3, "cannot read"), (["--model", str(empty)], 3, "the file is empty"),
        (["--threads", "5000000000"], 2, "--threads 5000000000: number of threads must be"),
        (["--model", str(nothing)], 3, "no product and no convolution is compiled"),
        (["--model", str(empty), "-o", str(empty)], 2, "same"),
    ]:  # fmt: skip
        assert main(["tune", "-q", "--seconds", "1", *argv]) == code, argv
        assert message in capsys.readouterr().err
    monkeypatch.setattr(cpu, "native_target", lambda: "x86-64-v2")
    assert main(["tune", "--target", "x86-64-v4", "--seconds", "1"]) == 2
    assert "this machine runs x86-64-v2 at most" in capsys.readouterr().err
    monkeypatch.setenv("DISC_TF_TRUST", "/nowhere")
    assert main(["tune", "--seconds", "1"]) == 2
    assert "nobody signs what is compiled here" in capsys.readouterr().err
    for seconds in ("0", "9" * 400):
        with pytest.raises(SystemExit):
            main(["tune", "--seconds", seconds])


def test_tables_for_targets_that_are_not_compiled_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, graph = tmp_path / "t.json", tmp_path / "g.pbtxt"
    table.write_text(shipped(OTHER).text())
    graph.write_text('node { name: "x" op: "Placeholder" attr { key: "dtype" value { type: DT_FLOAT } } }')
    for argv, message in [
        (["optimize", str(graph), "-o", str(tmp_path / "o.pb"), "--target", "native", "--tuning", str(table)],
         f"a table is for {OTHER}, and"),
        (["optimize", str(graph), "-o", str(tmp_path / "o.pb"), "--tuning", str(graph)], "not JSON"),
        (["optimize", str(graph), "-o", str(tmp_path / "o.pb"), "--tuning", str(table), "--remote", "h:1"], "code that is compiled here"),
        (["inspect", str(graph), "--tuning", str(table)], "inspect compiles nothing"),
    ]:  # fmt: skip
        assert main(argv) == 2, argv
        assert message in capsys.readouterr().err
