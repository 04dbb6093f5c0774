"""Settings: one precedence, errors that name the setting, a printed configuration that reads back."""

from __future__ import annotations

from pathlib import Path

import pytest
from disc_tf_server.config import FIELDS, ConfigError, ServerConfig, is_loopback, load, read_file, seconds, size, split_address, to_toml


def test_a_flag_wins_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('children = 1\nmax_nodes = 11\nqueue_limit = 7\naddress = ["127.0.0.1:1"]\nreflection = true\n')
    environment = {"DISC_TF_SERVER_CONFIG": str(file), "DISC_TF_SERVER_CHILDREN": "2", "DISC_TF_SERVER_MAX_NODES": "22", "OTHER": "x"}
    config, _ = load(["--children", "3", "--address", "127.0.0.1:2", "--address", "[::1]:3"], environment)
    assert (config.children, config.max_nodes, config.queue_limit, config.reflection) == (3, 22, 7, True)
    assert config.address == ("127.0.0.1:2", "[::1]:3")
    assert load(["--no-reflection"], environment)[0].reflection is False


def test_the_printed_configuration_reads_back(tmp_path: Path) -> None:
    config, _ = load(["--drain", "1.5m", "--cache-bytes", "3MiB", "--trusted-group", "a", "--trusted-group", 'b"\\'], {})
    file = tmp_path / "printed.toml"
    file.write_text(to_toml(config))
    assert ServerConfig(**read_file(str(file))) == config
    assert config.drain == 90 and config.cache_bytes == 3 << 20


@pytest.mark.parametrize(
    ("argv", "environment", "file", "message"),
    [
        (["--children", "x"], {}, "", "--children: children = 'x': a whole number"),
        (["--drain", "soon"], {}, "", "--drain: drain = 'soon': a duration"),
        (["--log-format", "xml"], {}, "", "one of text, json"),
        (["--max-nodes", "0"], {}, "", "at least 1"),
        (["--operation-retention", "1h"], {}, "", "at least 86400"),
        ([], {"DISC_TF_SERVER_CHILDRN": "1"}, "", "did you mean children?"),
        ([], {"DISC_TF_SERVER_BLOB_BYTES": "1x"}, "", "DISC_TF_SERVER_BLOB_BYTES: blob_bytes = '1x'"),
        ([], {}, "childern = 1\n", "unknown setting 'childern'; did you mean children?"),
        ([], {}, "children = [1]\n", "children is a string or a number"),
        ([], {}, 'address = "127.0.0.1:1"\n', "address is a list of strings"),
        ([], {}, "children =\n", "not TOML"),
        (["--address", "8471"], {}, "", "HOST:PORT"),
        (["--address", "localhost:99999"], {}, "", "HOST:PORT"),
        (["--tls-cert", "c"], {}, "", "tls_cert and tls_key belong together"),
        (["--tls-client-ca", "c"], {}, "", "tls_client_ca needs"),
        (["--address", "0.0.0.0:1"], {}, "", "can be reached from other machines"),
        (["--max-graph-bytes", "4g"], {}, "", "max_graph_bytes"),
    ],
)
def test_errors(tmp_path: Path, argv: list[str], environment: dict[str, str], file: str, message: str) -> None:
    if file:
        path = tmp_path / "server.toml"
        path.write_text(file)
        argv = [*argv, "--config", str(path)]
    with pytest.raises(ConfigError) as caught:
        load(argv, environment)
    assert message in str(caught.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="cannot read /nowhere/x"):
        load(["--config", "/nowhere/x.toml"], {})


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("7", 7), ("2k", 2048), ("2KiB", 2048), ("1M", 1 << 20), ("3gb", 3 << 30)])
def test_sizes(text: str, value: int) -> None:
    assert size(text) == value


@pytest.mark.parametrize(("text", "value"), [("0", 0.0), ("1.5", 1.5), ("2s", 2.0), ("2m", 120.0), ("1h", 3600.0), ("2d", 172800.0)])
def test_durations(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "-1", "1e3", "inf", "nan", "1 x", "1kk"])
def test_what_is_no_number(text: str) -> None:
    for parse in (size, seconds):
        with pytest.raises(ValueError, match="wanted"):
            parse(text)


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1:1", True), ("127.9.0.1:1", True), ("localhost:1", True), ("[::1]:1", True), ("unix:/x", True),
        ("0.0.0.0:1", False), ("[::]:1", False), ("10.0.0.1:1", False), ("host.example:1", False),
    ],
)  # fmt: skip
def test_loopback(address: str, local: bool) -> None:
    assert is_loopback(address) is local


def test_addresses() -> None:
    assert split_address("[::1]:80") == ("::1", 80)
    assert split_address("h:0") == ("h", 0)


def test_every_setting_is_documented() -> None:
    assert all(f.metadata["doc"] for f in FIELDS.values())
