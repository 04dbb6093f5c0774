"""`disc-tf serve`: what it refuses before it loads anything."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

import pytest

from disc_tf.cli import main
from disc_tf.commands.serve import add_arguments

pytest.importorskip("grpc_health", reason="needs the extra `serve`")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "base path"),
        (["{base}", "--models-config", "x"], 2, "base path"),
        (["{base}/nothing"], 3, "not a directory"),
        (["{base}/1"], 3, "/1 is a SavedModel itself, and a base path holds numbered directories of them: give the parent, {base}"),
        (["{base}/plain"], 3, "numbered directories of them: move it to {base}/plain/1"),
        (["{base}", "--versions", "newest"], 3, "version policy 'newest'"),
        (["{base}", "--label", "stable"], 2, "NAME=VERSION"),
        (["{base}", "--label", "stable=\u00b2"], 2, "NAME=VERSION"),
        (["{base}", "--label", f"stable={1 << 63}"], 2, "version number"),
        (["{base}", "--versions", "latest:\u00b2"], 3, "version policy"),
        (["{base}", "--versions", "latest:0"], 3, "version policy"),
        (["{base}", "--versions", "1,-2"], 3, "version policy"),
        (["{base}", "--label", "stable=9"], 3, "version 9"),
        (["{base}", "--name", ".."], 2, "model's name"),
        (["{base}", "--tls-cert", "c.pem"], 2, "--tls-key"),
        (["{base}", "--tls-cert", "{base}/c.pem", "--tls-key", "{base}/k.pem"], 3, "c.pem"),
        (["{base}", "--token-file", "{base}/token"], 3, "token"),
        (["{base}", "--token-file", "{base}/empty"], 3, "one word"),
        (["--models-config", "{base}/bad.config"], 3, "not a ModelServer configuration"),
        (["--models-config", "{base}/none.config"], 3, "cannot read"),
        (["{base}", "--rest-port", "{used}"], 3, "cannot start"),
    ],
)
def test_faults(arguments: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").touch()
    for name in ("1", "plain"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "saved_model.pb").touch()
    (tmp_path / "bad.config").write_text("models { }")
    with socket.create_server(("127.0.0.1", 0)) as used:
        filled = [a.format(base=tmp_path, used=used.getsockname()[1]) for a in arguments]
        assert main(["serve", "--port", "0", *([] if "{used}" in arguments else ["--rest-port", "0"]), *filled]) == code
    error = capsys.readouterr().err
    assert message.replace("{base}", str(tmp_path)) in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--port", "-1", "between 0 and 65535"),
        ("--port", "70000", "between 0 and 65535"),
        ("--rest-port", "-2", "between -1 and 65535"),
        ("--rest-port", "70000", "between -1 and 65535"),
        ("--threads", "0", "between 1 and 4096"),
        ("--threads", "100000000000", "between 1 and 4096"),
        ("--max-concurrent", "0", "less than 1"),
        ("--max-message-mb", "0", "between 1 and 2048"),
        ("--max-message-mb", "-1", "between 1 and 2048"),
        ("--max-message-mb", "4096", "between 1 and 2048"),
        ("--rest-timeout", "0", "0 seconds leave no time"),
        ("--rest-timeout", "-0.0", "0 seconds leave no time"),
        ("--rest-timeout", "-1", "number of seconds"),
        ("--rest-timeout", "nan", "number of seconds"),
        ("--rest-timeout", "inf", "number of seconds"),
        ("--rest-timeout", "soon", "invalid"),
        ("--intra-op", "-1", "between 0 and 4096"),
        ("--intra-op", "99999999999", "between 0 and 4096"),
        ("--inter-op", "-1", "between 0 and 4096"),
        ("--inter-op", "99999999999", "between 0 and 4096"),
        ("--poll", "-1", "number of seconds"),
        ("--poll", "1e300", "number of seconds"),
        ("--quiet-seconds", "-1", "number of seconds"),
        ("--quiet-seconds", "nan", "number of seconds"),
        ("--grace", "-1", "number of seconds"),
        ("--grace", "inf", "number of seconds"),
        ("--shutdown-delay", "-1", "number of seconds"),
        ("--shutdown-delay", "1e300", "number of seconds"),
        ("--cache-mb", "0", "between 1 and"),
        ("--batch-rows", "-1", "less than 0"),
        ("--batch-rows", "1", "one row is no batch"),
        ("--batch-rows", "2.5", "invalid"),
        ("--batch-wait-us", "-1", "between 0 and 60000000"),
        ("--batch-wait-us", "1000000000000", "between 0 and 60000000"),
        ("--batch-queue", "0", "less than 1"),
        ("--batch-queue", "x", "invalid integer"),
        ("--packs-limit-mb", "-1", "less than 0"),
        ("--packs-limit-mb", "x", "invalid integer"),
    ],
)
def test_numbers_out_of_range(flag: str, value: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", "models/m", f"{flag}={value}"])
    assert caught.value.code == 2 and message in capsys.readouterr().err


def test_every_numeric_flag_is_in_the_table() -> None:
    """A flag with a number is tried with bad ones above."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    numeric = {a.option_strings[-1] for a in parser._actions if a.type is not None}
    table = next(m for m in test_numbers_out_of_range.pytestmark if m.name == "parametrize")  # type: ignore[attr-defined]
    assert numeric == {flag for flag, _, _ in table.args[1]}
