"""Configuration files: what is printed is read back to the same, flags win, mistakes are named."""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path
from typing import Any

import pytest

from disc_tf.cli import build_parser, main
from disc_tf.commands import config
from disc_tf.commands.optimize import options_from
from disc_tf.frontend.tfproto import serialized
from disc_tf.options import Options
from tests.frontend.graphs import G

ARGUMENTS = {
    "optimize": ["--target", "x86-64-v3", "--deny", "MatMul", "--deny", 'a "b" \\ \n\x7f☃', "--no-use-tf-shapes", "--no-timing",
                 "--shape", "B=1", "--points", "3", "--hint", "x: [b<=32]", "--time-budget", "7", "--outputs", "y:0", "z:0"],
    "inspect": ["--strict", "--fuel", "0", "--allow", "Tanh"],
    "verify": ["--tolerance", "1e-3", "--threads", "2"],
    "bench": ["--rounds", "11", "--cold", "2", "--inputs-json", "m.json"],
}  # fmt: skip


def subparser(verb: str) -> argparse.ArgumentParser:
    return next(a.choices for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))[verb]


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    assert main([str(a) for a in arguments]) == 0
    return tomllib.loads(capsys.readouterr().out)


@pytest.mark.parametrize("verb", config.VERBS)
def test_round_trip(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Printed, read, printed: the same text, with the flags' values and with the defaults."""
    for arguments in ([], ARGUMENTS[verb]):
        assert main([verb, *arguments, "--print-config"]) == 0
        text = capsys.readouterr().out
        path = tmp_path / "c.toml"
        path.write_text(text, encoding="utf-8")
        assert main([verb, "--config", str(path), "--print-config"]) == 0
        assert capsys.readouterr().out == text


def test_the_options_are_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.toml"
    assert main(["optimize", *ARGUMENTS["optimize"], "--print-config"]) == 0
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    parser = subparser("optimize")
    direct, read = (parser.parse_args(["in.pb", *a]) for a in (ARGUMENTS["optimize"], []))
    config.apply(parser, read, str(path), set())
    assert options_from(direct) == options_from(read) != Options()
    assert {k: v for k, v in vars(direct).items() if v not in (None, [])}.items() <= vars(read).items()


def test_every_flag_is_a_setting_or_none_on_purpose() -> None:
    for verb in config.VERBS:
        parser = subparser(verb)
        flags = {a.dest for a in parser._actions if a.option_strings}
        assert flags - config.settings(parser).keys() <= config._NOT_SETTINGS
        if verb == "optimize":
            assert {f for f in Options.__dataclass_fields__} <= flags


def test_flags_win(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the flag says what is the default anyway; lists are replaced, not joined."""
    path = tmp_path / "c.toml"
    path.write_text('points = 2\nthreads = 3\ndeny = ["A"]\ntargets = ["x86-64-v2"]\nuse_tf_shapes = false\nno_timing = true\n')
    found = printed(capsys, "optimize", "--config", path, "--points", 6, "--deny", "B", "--use-tf-shapes", "--print-config")
    assert (found["points"], found["threads"], found["deny"], found["targets"]) == (6, 3, ["B"], ["x86-64-v2"])
    assert found["use_tf_shapes"] is True and found["no_timing"] is True


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        ("target = []", 2, "unknown setting target; did you mean targets?"),
        ("min-cluster-size = 3", 2, "unknown setting min-cluster-size; did you mean min_cluster_size?"),
        ("hint = []", 2, "unknown setting hint; did you mean hints?"),
        ("[optimize]\nstrict = true", 2, "unknown setting optimize; settings stand at the top of the file, not in a table"),
        ("min_cluser_size = 1", 2, "did you mean min_cluster_size?"),
        ("report = 'x.json'", 2, "unknown setting report"),
        ("nonsense_of_all_kinds = 1", 2, "; known: dry_run, "),
        ("points = 0", 2, "points: 0 is less than 1"),
        ("points = true", 2, "points is a number, not True"),
        ("points = 'six'", 2, "points is a number"),
        ("shape = ['B']", 2, "shape: 'B': write it as NAME=EXTENT,NAME=EXTENT"),
        ("deny = 'MatMul'", 2, "deny is a list of strings, not 'MatMul'"),
        ("deny = [1]", 2, "deny is a list of strings"),
        ("strict = 1", 2, "strict is true or false, not 1"),
        ("dump_dir = 3", 2, "dump_dir is a string"),
        ("[options]\nstrict = true", 2, "unknown setting options"),
        ("targets = ['x86-64-v9']", 2, "'x86-64-v9' is not one of"),
        ("points =", 2, "not TOML"),
        ("fuel = " + "9" * 5000, 2, "not TOML"),
        ("deny = " + "[" * 5000, 2, "not TOML"),
        (b"\xff\xfe", 2, "not TOML"),
        (None, 3, "cannot read"),
    ],
)
def test_mistakes(content: str | bytes | None, code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.toml"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["optimize", "in.pb", "-o", str(tmp_path / "out.pb"), "--config", str(path)]) == code
    assert words in capsys.readouterr().err


def test_it_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    g = G()
    g.placeholder("x", [None, 8])
    g.chain("a", "x", 2)
    graph, path = tmp_path / "in.pb", tmp_path / "c.toml"
    graph.write_bytes(serialized(g.proto))
    path.write_text('min_cluster_size = 1\nuse_tf_shapes = false\n')
    assert main(["inspect", str(graph), "--config", str(path)]) == 0
    assert "1 of 1 clusters would be compiled" in capsys.readouterr().out
    assert main(["inspect", str(graph), "--config", str(path), "--min-cluster-size", "4"]) == 0
    assert "0 of 0 clusters" in capsys.readouterr().out
