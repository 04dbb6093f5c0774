"""models.config, version policies, and which directories are versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from disc_tf.serving.config import ConfigError, ModelSettings, Move, VersionPolicy, edited, parse_models_config
from disc_tf.serving.sources import LocalSource
from disc_tf.serving.versions import Settled, fingerprint, version_directories, version_number
from tests.serving.models import models_config_text

CONFIG = """
model_config_list {
  config {
    name: "a" base_path: "/models/a" model_platform: "tensorflow"
    model_version_policy { specific { versions: 4 versions: 2 } }
    version_labels { key: "stable" value: 2 }
    logging_config { log_collector_config { type: "x" filename_prefix: "/logs" } sampling_config { sampling_rate: 0.5 } }
  }
  config { name: "b" base_path: "/models/b" model_type: TENSORFLOW model_version_policy { latest { num_versions: 3 } } }
  config { name: "c" base_path: "/models/c" model_platform: "tensorflow" model_version_policy { all {} } }
  config { name: "d" base_path: "/models/d" model_platform: "tensorflow" }
}
"""


def test_a_configuration_is_read_and_written() -> None:
    models = parse_models_config(CONFIG)
    assert [(m.name, m.policy) for m in models] == [
        ("a", VersionPolicy("specific", versions=(2, 4))),
        ("b", VersionPolicy("latest", 3)),
        ("c", VersionPolicy("all")),
        ("d", VersionPolicy()),
    ]
    assert models[0].labels == {"stable": 2}
    assert parse_models_config(models_config_text(models)) == models


def test_an_edit_keeps_all_else() -> None:
    text = edited(CONFIG, {"a": Move("/fast/a", lambda v: v + 100), "d": Move("/fast/d")})
    paths = {m.name: m.base_path for m in parse_models_config(text)}
    assert paths == {"a": "/fast/a", "b": "/models/b", "c": "/models/c", "d": "/fast/d"}
    assert "sampling_rate: 0.5" in text and 'filename_prefix: "/logs"' in text and "model_type: TENSORFLOW" in text
    assert parse_models_config(text)[0].labels == {"stable": 102}
    assert parse_models_config(text)[0].policy.versions == (102, 104)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model_config_list { config { nam: 'a' } }", "not a ModelServer configuration"),
        ("model_config_list { config { base_path: '/a' model_platform: 'tensorflow' } }", "needs a name"),
        ("model_config_list { config { name: '..' base_path: '/a' model_platform: 'tensorflow' } }", "needs a name"),
        ("model_config_list { config { name: '.' base_path: '/a' model_platform: 'tensorflow' } }", "needs a name"),
        ("model_config_list { config { name: 'a' model_platform: 'tensorflow' } }", "no base_path"),
        ("model_config_list { config { name: 'a' base_path: '/a' } }", "model_platform must be"),
        ("model_config_list { config { name: 'a' base_path: '/a' model_platform: 'other' } }", "'other'"),
        ("model_config_list { config { name: 'a' base_path: '/a' model_platform: 'tensorflow' model_type: TENSORFLOW } }", "not both"),
        (
            "model_config_list { config { name: 'a' base_path: '/a' model_platform: 'tensorflow' model_version_policy { specific {} } } }",
            "no version",
        ),
        ("custom_model_config {}", "custom_model_config"),
    ],
)
def test_faults_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"models\.config") as caught:
        parse_models_config(text)
    assert message in str(caught.value)


def test_a_name_twice() -> None:
    one = ModelSettings("a", "/a")
    with pytest.raises(ConfigError, match="twice"):
        parse_models_config(models_config_text([one, one]))


@pytest.mark.parametrize(
    ("text", "chosen"),
    [("latest", [7]), ("latest:2", [3, 7]), ("latest:9", [1, 3, 7]), ("all", [1, 3, 7]), ("3,9,1", [1, 3])],
)
def test_policies(text: str, chosen: list[int]) -> None:
    assert VersionPolicy.parse(text).select([7, 1, 3]) == chosen
    assert VersionPolicy.parse(text).select([]) == []


@pytest.mark.parametrize("text", ["", "newest", "latest:0", "latest:x", "1,,2", "-1"])
def test_policies_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="version policy"):
        VersionPolicy.parse(text)


def test_version_directories(tmp_path: Path) -> None:
    for name in ("1", "007", "12.tmp", "x", "٣", "99999999999999999999"):
        (tmp_path / name).mkdir()
    (tmp_path / "5").touch()
    assert version_directories(tmp_path) == {1: tmp_path / "1", 7: tmp_path / "007"}
    assert version_directories(tmp_path / "nothing") == {}
    assert version_number("9223372036854775807") == (1 << 63) - 1 and version_number("9223372036854775808") is None


def check(settled: Settled, directory: Path) -> bool:
    return settled.observe(directory, *LocalSource(str(directory.parent)).files(directory))


def test_a_version_counts_when_it_has_stopped_changing(tmp_path: Path) -> None:
    now = [0.0]
    settled = Settled(2.0, clock=lambda: now[0])
    version = tmp_path / "1"
    (version / "variables").mkdir(parents=True)
    assert not check(settled, version) and fingerprint(version) is None  # no model in it yet
    (version / "saved_model.pb").write_bytes(b"x")
    assert not check(settled, version)
    now[0] = 1.9
    (version / "variables" / "data").write_bytes(b"y")
    assert not check(settled, version)
    now[0] = 3.8
    assert not check(settled, version)
    now[0] = 4.0
    assert check(settled, version)


def test_old_files_count_at_once(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"x")
    assert check(Settled(2.0, now=lambda: (tmp_path / "saved_model.pb").stat().st_mtime + 60), tmp_path)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('model_config_list { config { nam: "x" } }', 'no field named "nam"; did you mean name?'),
        ("model_config_lst { }", 'no field named "model_config_lst"; did you mean model_config_list?'),
        ("zzz { }", "; there are "),
        ("model_config_list {", "not a ModelServer configuration in text format"),
    ],
)
def test_an_unknown_field_suggests_the_nearest(text: str, hint: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse_models_config(text)
    assert hint in str(told.value)
