"""`disc-tf serve`: what it refuses before it loads anything."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from disc_tf.cli import main

pytest.importorskip("grpc_health", reason="needs the extra `serve`")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "base path"),
        (["{base}", "--models-config", "x"], 2, "base path"),
        (["{base}/nothing"], 3, "not a directory"),
        (["{base}", "--versions", "newest"], 3, "version policy 'newest'"),
        (["{base}", "--label", "stable"], 2, "NAME=VERSION"),
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
    (tmp_path / "bad.config").write_text("models { }")
    with socket.create_server(("127.0.0.1", 0)) as used:
        filled = [a.format(base=tmp_path, used=used.getsockname()[1]) for a in arguments]
        assert main(["serve", "--port", "0", *([] if "{used}" in arguments else ["--rest-port", "0"]), *filled]) == code
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--threads", "0", "less than 1"),
        ("--rest-port", "70000", "between -1 and 65535"),
        ("--max-message-mb", "-1", "between 1 and 2048"),
        ("--rest-timeout", "nan", "number of seconds"),
        ("--batch-queue", "x", "invalid integer"),
    ],
)
def test_numbers_out_of_range(flag: str, value: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", "models/m", flag, value])
    assert caught.value.code == 2 and message in capsys.readouterr().err
