"""Which models are served: names, base paths, version policies and labels, read from and written to ModelServer's `models.config`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from disc_tf.serving.protos import message_class, pool
from disc_tf.serving.versions import version_number
from disc_tf.spelling import close_to, did_you_mean

_NO_FIELD = re.compile(r'Message type "([\w.]+)" has no field named "(\w+)"')


class ConfigError(ValueError):
    """A configuration that cannot be used. The message names the model and the way out."""


@dataclasses.dataclass(frozen=True)
class VersionPolicy:
    """Which of the versions on disk are served: the ``latest`` n, ``all``, or ``specific`` ones."""

    kind: str = "latest"
    count: int = 1
    versions: tuple[int, ...] = ()

    def select(self, available: Iterable[int]) -> list[int]:
        """The versions to serve, in rising order."""
        found = sorted(set(available))
        if self.kind == "all":
            return found
        if self.kind == "specific":
            return [v for v in found if v in self.versions]
        return found[-max(self.count, 1) :]

    @staticmethod
    def parse(text: str) -> VersionPolicy:
        """``latest``, ``latest:2``, ``all`` or ``3,5`` (the flag `--versions`). `ConfigError` else."""
        kind, _, rest = text.partition(":")
        if text == "all":
            return VersionPolicy("all")
        count = version_number(rest) if rest else 1
        if kind == "latest" and count:
            return VersionPolicy("latest", count)
        numbers = {version_number(p.strip()) for p in text.split(",")}
        if None not in numbers:
            return VersionPolicy("specific", versions=tuple(sorted(n for n in numbers if n is not None)))
        raise ConfigError(f"version policy {text!r}: write latest, latest:N, all, or numbers as in 3,5")


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """One model. ``labels``: name -> version."""

    name: str
    base_path: str
    policy: VersionPolicy = VersionPolicy()
    labels: Mapping[str, int] = dataclasses.field(default_factory=dict)


def is_model_name(name: str) -> bool:
    """Whether a model may have the name: part of URLs and of paths."""
    return bool(name) and name not in (".", "..") and not any(c in name for c in "/:\0")


def models_from_message(config: Any, where: str) -> list[ModelSettings]:
    """The models of a ModelServerConfig message. `ConfigError` for what cannot be served here. ``where`` starts the messages."""
    if config.WhichOneof("config") == "custom_model_config":
        raise ConfigError(f"{where}: custom_model_config is not supported, use model_config_list")
    seen: set[str] = set()
    models = []
    for entry in config.model_config_list.config:
        what = f"{where}: model {entry.name!r}"
        if not is_model_name(entry.name):
            raise ConfigError(f"{what}: a model needs a name without '/' and ':', other than '.' and '..'")
        if entry.name in seen:
            raise ConfigError(f"{what} is there twice")
        seen.add(entry.name)
        if not entry.base_path:
            raise ConfigError(f"{what} has no base_path")
        if entry.model_type and entry.model_platform:
            raise ConfigError(f"{what}: set model_platform or the older model_type, not both")
        if not (entry.model_platform == "tensorflow" or (entry.model_type == 1 and not entry.model_platform)):
            raise ConfigError(f'{what}: model_platform must be "tensorflow", not {entry.model_platform or "unset"!r}')
        models.append(ModelSettings(entry.name, entry.base_path, _policy(entry, what), dict(entry.version_labels)))
    return models


def _policy(entry: Any, what: str) -> VersionPolicy:
    policy = entry.model_version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return VersionPolicy("all")
    if choice == "specific":
        if not policy.specific.versions:
            raise ConfigError(f"{what}: the version policy `specific` lists no version")
        return VersionPolicy("specific", versions=tuple(sorted(set(policy.specific.versions))))
    return VersionPolicy("latest", policy.latest.num_versions or 1)


def parse_models_config(text: str, where: str = "models.config") -> list[ModelSettings]:
    """The models of a `models.config` (protobuf text format). `ConfigError`."""
    return models_from_message(_message(text, where), where)


def read_models_config(path: str | Path) -> list[ModelSettings]:
    """`parse_models_config` of a file. `ConfigError`, also if it cannot be read."""
    return parse_models_config(_read(path), str(path))


@dataclasses.dataclass(frozen=True)
class Move:
    """Where the versions of a model are after they were prepared. ``version``: old number -> new number."""

    base_path: str
    version: Callable[[int], int] = lambda v: v


def edited(text: str, moves: Mapping[str, Move], where: str = "models.config") -> str:
    """``text`` with the base paths, version labels and listed versions of the models in ``moves`` (by name) replaced. All else stays."""
    from google.protobuf import text_format

    message = _message(text, where)
    for entry in message.model_config_list.config:
        move = moves.get(entry.name)
        if move is None:
            continue
        entry.base_path = move.base_path
        for label, version in list(entry.version_labels.items()):
            entry.version_labels[label] = move.version(version)
        if entry.model_version_policy.WhichOneof("policy_choice") == "specific":
            listed = entry.model_version_policy.specific.versions
            listed[:] = [move.version(v) for v in listed]
    return text_format.MessageToString(message, descriptor_pool=pool())


def _message(text: str, where: str) -> Any:
    from google.protobuf import text_format

    try:
        return text_format.Parse(text, message_class("serving.ModelServerConfig")(), descriptor_pool=pool())
    except text_format.ParseError as e:
        raise ConfigError(f"{where}: not a ModelServer configuration in text format: {str(e).rstrip('.')}{_meant(str(e))}") from e


def _meant(error: str) -> str:
    """A suggestion for a field that does not exist."""
    found = _NO_FIELD.search(error)
    if found is None:
        return ""
    try:
        fields = pool().FindMessageTypeByName(found[1]).fields_by_name
    except KeyError:
        return ""
    return did_you_mean(close_to(found[2], fields)) or f"; there are {', '.join(fields)}"


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"cannot read {path}: {getattr(e, 'strerror', None) or e}") from e
