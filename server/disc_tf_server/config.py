"""Settings of the server, each declared once: flags, environment variables and the configuration file are made from `ServerConfig`.

A flag wins over the environment (``DISC_TF_SERVER_`` and the setting's name in capitals), which wins over the file, which wins over the
default. Unknown settings and wrong values are errors. No setting is a secret: keys and tokens lie in files that settings name.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from disc_tf.spelling import close_to, did_you_mean

ENVIRONMENT = "DISC_TF_SERVER_"
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class ConfigError(ValueError):
    """A setting that cannot be used. The message names it, where it came from, and the way out."""


def size(text: str) -> int:
    """Bytes: ``4194304``, ``4M``, ``4MiB``."""
    match = re.fullmatch(r"(\d{1,15})\s*([kmgt]?)(i?b)?", text.strip().lower())
    if match is None:
        raise ValueError("a number of bytes is wanted, such as 64M or 67108864")
    return int(match[1]) * _UNITS[match[2]]


def seconds(text: str) -> float:
    """A duration: ``90``, ``1.5``, ``30s``, ``15m``, ``24h``, ``7d``."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smhd]?)", text.strip().lower())
    if match is None:
        raise ValueError("a duration is wanted, such as 90, 15m, 24h or 7d")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


def boolean(text: str) -> bool:
    """``true``/``false``, ``1``/``0``, ``yes``/``no``, ``on``/``off``."""
    word = text.strip().lower()
    if word in ("true", "1", "yes", "on"):
        return True
    if word in ("false", "0", "no", "off"):
        return False
    raise ValueError("true or false is wanted")


def count(text: str) -> int:
    """A whole number, not negative."""
    if not re.fullmatch(r"\d{1,12}", text.strip()):
        raise ValueError("a whole number is wanted")
    return int(text)


def string(text: str) -> str:
    """Any text of one line."""
    if "\0" in text or "\n" in text:
        raise ValueError("one line of text is wanted")
    return text


Parse = Callable[[str], Any]


def _setting(default: Any, parse: Parse, doc: str, metavar: str = "", *, choices: tuple[str, ...] = (), least: float | None = None) -> Any:
    return dataclasses.field(default=default, metadata={"doc": doc, "parse": parse, "metavar": metavar, "choices": choices, "least": least})


def default_data_dir() -> str:
    """Where a server keeps its stores if it is not told: in the user's own state directory (XDG)."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return str(Path(state) / "disc-tf-server")


@dataclasses.dataclass(frozen=True)
class ServerConfig:
    """All settings. Tuples are lists: a flag that may be repeated, an environment variable with commas."""

    address: tuple[str, ...] = _setting(("127.0.0.1:8471",), string, "where to listen: HOST:PORT or unix:PATH; port 0: a free one", "A")
    # ---- who may call
    tls_cert: str = _setting("", string, "TLS: the certificate chain, a PEM file", "F")
    tls_key: str = _setting("", string, "TLS: the private key, a PEM file", "F")
    tls_client_ca: str = _setting("", string, "mutual TLS: only clients with a certificate of these authorities (a PEM file) may call", "F")
    tokens: str = _setting("", string, "bearer tokens, a file with lines `NAME TOKEN` or `NAME sha256:HEX`; read again on SIGHUP", "F")
    allow_insecure: bool = _setting(False, boolean, "listen on addresses other than loopback without TLS (behind a proxy that has it)")
    trusted_group: tuple[str, ...] = _setting(
        (), string, "principals that share one result cache: their names, or `*` for all that have one (see docs/service.md)", "NAME"
    )
    # ---- stores
    data_dir: str = _setting("", string, "directory of the stores (default: in the user's state directory)", "DIR")
    blobs: str = _setting("", string, "where content is kept: a directory or an fsspec URL (default: DATA_DIR/blobs)", "URL")
    operations: str = _setting("", string, "where operations are kept: sqlite:PATH or postgresql://... (default: in DATA_DIR)", "URL")
    blob_bytes: int = _setting(20 << 30, size, "how much content is kept; what was used least lately goes first", "BYTES", least=1 << 20)
    blob_bytes_per_principal: int = _setting(4 << 30, size, "of it, how much for one principal", "BYTES", least=1 << 20)
    blob_retention: float = _setting(7 * 86400.0, seconds, "how long content that nobody uses is kept", "TIME", least=60)
    operation_retention: float = _setting(7 * 86400.0, seconds, "how long ended operations are kept", "TIME", least=86400)
    cache_bytes: int = _setting(2 << 30, size, "results that are kept for equal requests; 0: none", "BYTES")
    cache_memory: int = _setting(128 << 20, size, "of them, how much in memory", "BYTES")
    # ---- compiling
    executor: str = _setting("local", string, "where compiles run: `local`, or ray://HOST:PORT of a Ray cluster", "E")
    children: int = _setting(0, count, "compiles at a time (0: one for each processor that this process may use)", "N")
    child_memory: int = _setting(4 << 30, size, "memory of one compile", "BYTES", least=64 << 20)
    child_cpu: float = _setting(1800.0, seconds, "processor time of one compile", "TIME", least=1)
    require_sandbox: bool = _setting(False, boolean, "do not start where the kernel cannot keep compiles from files and the network")
    max_duration: float = _setting(1800.0, seconds, "longest time that a request may take, waiting included", "TIME", least=1)
    # ---- limits of a request
    max_inline_bytes: int = _setting(8 << 20, size, "largest graph in a request", "BYTES", least=1 << 10)
    max_graph_bytes: int = _setting(512 << 20, size, "largest graph that is given as a blob", "BYTES", least=1 << 10)
    max_blob_bytes: int = _setting(2 << 30, size, "largest blob", "BYTES", least=1 << 10)
    max_nodes: int = _setting(300_000, count, "most nodes of a graph, those of its functions included", "N", least=1)
    max_functions: int = _setting(20_000, count, "most functions of a graph", "N", least=0)
    max_digests: int = _setting(1000, count, "most digests in one FindMissingBlobs", "N", least=1)
    # ---- limits of a principal, and of all
    max_calls: int = _setting(300, count, "open calls of one principal, streams and waits included", "N", least=1)
    max_operations: int = _setting(1000, count, "operations of one principal that have not ended", "N", least=1)
    max_uploads: int = _setting(32, count, "open uploads of one principal", "N", least=1)
    queue_limit: int = _setting(2000, count, "compiles that wait, of all principals", "N", least=1)
    max_rpcs: int = _setting(4000, count, "RPCs at a time, of all principals; more are refused", "N", least=1)
    graph_memory: int = _setting(1 << 30, size, "bytes of graphs that are read at a time; more wait", "BYTES", least=1 << 20)
    # ---- signing
    signing_key: str = _setting("", string, "sign results with this Ed25519 key (see docs/service.md); none: results are not signed", "F")
    signature_lifetime: float = _setting(90 * 86400.0, seconds, "how long a signature is valid", "TIME", least=60)
    # ---- running it
    lease: float = _setting(15.0, seconds, "how long work of a server that died waits before it is begun again", "TIME", least=1)
    drain: float = _setting(30.0, seconds, "after SIGTERM, how long running compiles may go on before they are handed back", "TIME")
    metrics_address: str = _setting("", string, "serve Prometheus metrics over HTTP here (HOST:PORT); none: not at all", "A")
    health_address: str = _setting("", string, "serve health checks alone here, without TLS (HOST:PORT or unix:PATH): for probes", "A")
    reflection: bool = _setting(False, boolean, "serve gRPC reflection (for grpcurl)")
    log_format: str = _setting("text", string, "form of the log lines", choices=("text", "json"))
    log_level: str = _setting("info", string, "what is logged", choices=("debug", "info", "warning", "error"))
    trace_endpoint: str = _setting("", string, "send OpenTelemetry traces to this OTLP/gRPC endpoint (extra `telemetry`)", "URL")

    def directory(self) -> Path:
        """Where the stores lie."""
        return Path(self.data_dir or default_data_dir())


FIELDS = {f.name: f for f in dataclasses.fields(ServerConfig)}


def _is_list(name: str) -> bool:
    return isinstance(FIELDS[name].default, tuple)


def _parsed(name: str, text: str, where: str) -> Any:
    meta = FIELDS[name].metadata
    try:
        value = meta["parse"](text)
    except ValueError as e:
        raise ConfigError(f"{where}: {name} = {text!r}: {e}") from e
    if meta["choices"] and value not in meta["choices"]:
        raise ConfigError(f"{where}: {name} = {text!r}: one of {', '.join(meta['choices'])} is wanted")
    if meta["least"] is not None and value < meta["least"]:
        raise ConfigError(f"{where}: {name} = {text!r}: at least {meta['least']} is wanted")
    return value


def _from_toml(name: str, value: Any, where: str) -> Any:
    if _is_list(name):
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise ConfigError(f"{where}: {name} is a list of strings, not {value!r}")
        return tuple(_parsed(name, v, where) for v in value)
    if isinstance(value, bool):
        value = "true" if value else "false"
    if not isinstance(value, str | int | float):
        raise ConfigError(f"{where}: {name} is a string or a number, not {value!r}")
    return _parsed(name, str(value), where)


def unknown(name: str, where: str) -> ConfigError:
    """The error for a setting that there is not."""
    hint = did_you_mean(close_to(name, FIELDS))
    return ConfigError(f"{where}: unknown setting {name!r}{hint}; `disc-tf-server --print-config` lists them")


def read_file(path: str) -> dict[str, Any]:
    """The settings of a TOML file. `ConfigError`."""
    try:
        content = tomllib.loads(Path(path).read_text())
    except OSError as e:
        raise ConfigError(f"cannot read {path}: {e.strerror or e}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: not TOML: {e}") from e
    for name in content:
        if name not in FIELDS:
            raise unknown(name, path)
    return {name: _from_toml(name, value, path) for name, value in content.items()}


def read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """The settings in environment variables. `ConfigError`."""
    found: dict[str, Any] = {}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT):
            continue
        name = variable.removeprefix(ENVIRONMENT).lower()
        if name == "config":
            continue
        if name not in FIELDS:
            raise unknown(name, f"environment variable {variable}")
        if _is_list(name):
            found[name] = tuple(_parsed(name, v.strip(), variable) for v in text.split(",") if v.strip())
        else:
            found[name] = _parsed(name, text, variable)
    return found


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="disc-tf-server",
        description="The optimization service: compiles the skeletons of TensorFlow graphs that clients send (docs/service.md).",
        epilog=f"Each setting may also stand in the file of --config (TOML), or in the environment as {ENVIRONMENT}NAME; "
        "a flag wins over the environment, which wins over the file.",
    )
    parser.add_argument("--config", metavar="F", help=f"read settings from a TOML file (or {ENVIRONMENT}CONFIG)")
    parser.add_argument("--print-config", action="store_true", help="print the settings in force as such a file, and do nothing else")
    parser.add_argument("--version", action="store_true", help="print the version")
    for name, f in FIELDS.items():
        flag = "--" + name.replace("_", "-")
        doc = f.metadata["doc"].replace("%", "%%")
        if f.metadata["parse"] is boolean:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=doc)
        elif _is_list(name):
            parser.add_argument(flag, action="append", metavar=f.metadata["metavar"], help=f"{doc}; may be repeated")
        else:
            choices = "|".join(f.metadata["choices"])
            parser.add_argument(flag, metavar=choices or f.metadata["metavar"], help=doc)
    return parser


def load(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[ServerConfig, argparse.Namespace]:
    """The settings in force. `ConfigError`; argparse exits by itself for what is no flag."""
    args = build_parser().parse_args(argv)
    path = args.config or environment.get(ENVIRONMENT + "CONFIG")
    values = read_file(path) if path else {}
    values |= read_environment(environment)
    for name in FIELDS:
        given = getattr(args, name)
        if given is None:
            continue
        where = "--" + name.replace("_", "-")
        if isinstance(given, bool):
            values[name] = given
        elif _is_list(name):
            values[name] = tuple(_parsed(name, v, where) for v in given)
        else:
            values[name] = _parsed(name, given, where)
    config = ServerConfig(**values)
    check(config)
    return config, args


def split_address(address: str) -> tuple[str, int]:
    """(host, port) of ``HOST:PORT`` or ``[V6]:PORT``. ValueError."""
    match = re.fullmatch(r"\[([0-9a-fA-F:.%\w]+)\]:(\d{1,5})|([^\[\]:]+):(\d{1,5})", address)
    if match is None or int(match[2] or match[4]) > 65535:
        raise ValueError("HOST:PORT, [IPV6]:PORT or unix:PATH is wanted")
    return match[1] or match[3], int(match[2] or match[4])


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach the address."""
    import ipaddress

    if address.startswith("unix:"):
        return True
    host, _ = split_address(address)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check(config: ServerConfig) -> None:
    """What one setting alone does not show. `ConfigError`."""
    if not config.address:
        raise ConfigError("address: at least one is wanted")
    for address in (*config.address, *filter(None, [config.metrics_address, config.health_address])):
        if address.startswith("unix:") and address != config.metrics_address:
            continue
        try:
            split_address(address)
        except ValueError as e:
            raise ConfigError(f"address {address!r}: {e}") from e
    if bool(config.tls_cert) != bool(config.tls_key):
        raise ConfigError("tls_cert and tls_key belong together: give both")
    if config.tls_client_ca and not config.tls_cert:
        raise ConfigError("tls_client_ca needs tls_cert and tls_key")
    open_addresses = [a for a in config.address if not is_loopback(a)]
    if open_addresses and not config.tls_cert and not config.allow_insecure:
        raise ConfigError(
            f"address {open_addresses[0]!r} can be reached from other machines: give --tls-cert and --tls-key, "
            "or --allow-insecure where a proxy in front has TLS"
        )
    if config.max_graph_bytes > config.max_blob_bytes:
        raise ConfigError("max_graph_bytes is larger than max_blob_bytes")
    if config.max_inline_bytes > 1 << 30:
        raise ConfigError("max_inline_bytes: a message holds at most 1G; larger graphs and results travel as blobs")


def to_toml(config: ServerConfig) -> str:
    """The settings as a file that `read_file` reads back to the same."""
    lines = ["# disc-tf-server"]
    for name, f in FIELDS.items():
        lines += [f"# {f.metadata['doc']}", f"{name} = {_toml(getattr(config, name))}"]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    import json

    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
