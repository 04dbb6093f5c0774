"""`disc-tf serving prepare`: what it refuses, the edited configuration, and a model that cannot be optimised."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from disc_tf.cli import main
from disc_tf.options import Options


def run(*arguments: object) -> int:
    try:
        return main(["serving", *(str(a) for a in arguments)])
    except SystemExit as e:
        assert isinstance(e.code, int)
        return e.code


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "required"),
        (["prepare", "{base}"], 2, "--to"),
        (["prepare", "--to", "{base}/out"], 2, "give the base path"),
        (["prepare", "{base}", "--to", "{base}/"], 2, "is the source itself"),
        (["prepare", "{base}", "--to", "{base}", "--version-scheme", "offset:0"], 2, "offset:N"),
        (["prepare", "{base}", "--to", "{base}/out", "--versions", "old"], 3, "version policy"),
        (["prepare", "{base}/none", "--to", "{base}/out"], 3, "is not a directory"),
        (["prepare", "{base}/1", "--to", "{base}/out"], 3, "holds numbered directories of them: give the parent"),
        (["prepare", "{base}", "--to", "{base}/file/out"], 3, "cannot make"),
        (["prepare", "{base}", "--to", "{base}/out", "--write-config", "x"], 2, "--models-config"),
        (["prepare", "--models-config", "{base}/none", "--to", "{base}/out"], 3, "cannot read"),
        (["prepare", "--models-config", "x", "--to", "{base}/out", "--rollback", "1"], 2, "--rollback"),
        (["prepare", "{base}", "--to", "{base}/out", "--rollback", "7"], 3, "no version 7"),
        (["prepare", "{base}", "--to", "{base}/out", "--target", "z80"], 2, "z80"),
        (["prepare", "{base}", "--to", "{base}/out", "--keep", "-1"], 2, "-1 is less than 0"),
        (["prepare", "{base}", "--to", "{base}/out", "--warmup-shapes", "0"], 2, "0 is less than 1"),
        (["prepare", "{base}", "--to", "{base}/out", "--timeout", "-1"], 2, "number of seconds"),
        (["prepare", "{base}", "--to", "{base}/out", "--wait", "nan"], 2, "number of seconds"),
        (["prepare", "{base}", "--to", "{base}/out", "--name", ".."], 2, "no name of a model"),
        (["prepare", "--models-config", "{base}/dots.config", "--to", "{base}/out"], 3, "'..'"),
    ],
)
def test_faults(arguments: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").touch()
    dots = f'model_config_list {{ config {{ name: ".." base_path: "{tmp_path}" model_platform: "tensorflow" }} }}'
    (tmp_path / "dots.config").write_text(dots)
    assert run(*(a.format(base=tmp_path) for a in arguments)) == code
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_flags_reach_the_optimiser() -> None:
    from disc_tf.cli import build_parser
    from disc_tf.commands.serving import option_flags

    given = ["--target", "x86-64-v3", "--deny", "Add", "--deny=MatMul", "--fuel", "3", "--no-use-tf-shapes", "--no-timing"]
    args = build_parser().parse_args(["serving", "prepare", "a", "--to", "b", *given])
    flags = option_flags(args)
    parsed = build_parser().parse_args(["optimize", "x", *flags])
    fields = set(Options.__dataclass_fields__)
    assert {k: v for k, v in vars(parsed).items() if k in fields} == {k: v for k, v in vars(args).items() if k in fields}
    assert parsed.no_timing and not parsed.no_verify


def test_a_model_that_cannot_be_read_is_published_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The optimiser itself, in its process, on a file that is no model; the configuration is edited."""
    (tmp_path / "m" / "3").mkdir(parents=True)
    (tmp_path / "m" / "3" / "saved_model.pb").write_bytes(b"\xff no model")
    config = tmp_path / "models.config"
    config.write_text(
        f'model_config_list {{ config {{ name: "m" base_path: "{tmp_path}/m" model_platform: "tensorflow"'
        ' version_labels { key: "stable" value: 3 } } }'
    )
    edited = tmp_path / "fast.config"
    given = ["--models-config", config, "--to", tmp_path / "fast", "--write-config", edited, "--quiet-seconds", "0", "--json"]
    assert run("prepare", *given) == 3
    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["version"], outcome["result"]) == (3, "original published") and outcome["reason"]
    assert (tmp_path / "fast" / "m" / "3" / "saved_model.pb").read_bytes() == b"\xff no model"
    assert f'base_path: "{tmp_path}/fast/m"' in edited.read_text() and 'key: "stable"' in edited.read_text()
