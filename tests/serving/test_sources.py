"""Base paths on object stores: copied, loaded, removed when unloaded; a store that is down takes nothing away."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

fsspec = pytest.importorskip("fsspec")
from fsspec.implementations.memory import MemoryFileSystem

from disc_tf.serving.config import ConfigError, ModelSettings, VersionPolicy
from disc_tf.serving.errors import ServingError
from disc_tf.serving.manager import ModelManager
from disc_tf.serving.protos import serving
from disc_tf.serving.sources import Cache, LocalSource, Retries, StoreSource, below
from disc_tf.serving.stores import ObjectStore, StoreError
from disc_tf.serving.tensors import to_numpy, to_proto
from tests.serving.conftest import start
from tests.serving.models import rows, save_tf1

FAST = Retries(tries=2, first=0.001, most=0.002)


class Flaky(MemoryFileSystem):
    """A store in memory. ``faults``: method -> how many calls of it fail from now on. ``log``: keys in the order in which they are read."""

    protocol: ClassVar[str] = "flaky"  # type: ignore[misc]
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    faults: ClassVar[dict[str, int]] = {}
    log: ClassVar[list[str]] = []
    on_read: ClassVar[Callable[[str], object]] = staticmethod(lambda path: None)

    def _fail(self, method: str) -> None:
        if self.faults.get(method, 0) > 0:
            self.faults[method] -= 1
            raise ConnectionError("the network is gone")

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        self._fail("ls")
        return super().ls(path, detail=detail, **kwargs)

    def get_file(self, rpath: str, lpath: str, **kwargs: Any) -> None:  # type: ignore[override]
        self.log.append(rpath)
        type(self).on_read(rpath)
        self._fail("get_file")
        super().get_file(rpath, lpath, **kwargs)


fsspec.register_implementation("flaky", Flaky, clobber=True)


@pytest.fixture
def url() -> Iterator[str]:
    Flaky.faults.clear()
    Flaky.log.clear()
    yield f"flaky://models-{uuid.uuid4().hex}/m"
    Flaky.faults.clear()
    Flaky.on_read = staticmethod(lambda path: None)


def upload(url: str, version: int, directory: Path | None = None) -> None:
    fs, root = fsspec.core.url_to_fs(url)
    if directory is None:
        for file in ("variables/data", "saved_model.pb", "assets/words"):
            fs.pipe_file(f"{root}/{version}/{file}", b"x" * 100)
    else:
        fs.put(f"{directory}/", f"{root}/{version}/", recursive=True)


class Fake:
    def __init__(self, name: str, version: int, path: Path) -> None:
        self.name, self.version, self.path, self.users = name, version, path, 0
        self.files = sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())

    def close(self) -> None:
        assert (self.path / "saved_model.pb").exists(), "removed before it was closed"


class Bench:
    """A manager over a store."""

    def __init__(self, url: str, root: Path, limit: int = 1 << 20) -> None:
        self.cache = Cache(root, limit)
        self.source = StoreSource(url, self.cache, FAST)
        self.url = url
        self.manager = ModelManager(Fake, source=lambda base: self.source, quiet=0.0, retry_seconds=0.0)  # type: ignore[arg-type]

    def configure(self, policy: VersionPolicy | None = None) -> None:
        self.manager.configure([ModelSettings("m", self.url, policy or VersionPolicy())])

    def copies(self) -> list[str]:
        return sorted(p.name for p in self.cache.directory.glob("*/*"))


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_versions_are_copied_whole_and_removed_when_they_are_unloaded(url: str, tmp_path: Path) -> None:
    upload(url, 1)
    bench = Bench(url, tmp_path)
    bench.configure()
    with bench.manager.lease("m") as first:
        assert first.files == ["assets/words", "saved_model.pb", "variables/data"]  # type: ignore[attr-defined]
        assert [key.rsplit("/", 1)[1] for key in Flaky.log][-1] == "saved_model.pb"
        upload(url, 2)
        bench.manager.reconcile()
        assert bench.manager.models()["m"] == [2] and bench.copies() == ["1", "2"]
    wait_for(lambda: bench.copies() == ["2"])
    count = len(Flaky.log)
    bench.manager.reconcile()
    assert len(Flaky.log) == count  # what is loaded is not copied again
    assert bench.manager.close(5.0)
    bench.cache.close()
    assert not list(tmp_path.iterdir())


def test_a_store_that_is_down_takes_nothing_away(url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "disc_tf.serving")
    upload(url, 1)
    bench = Bench(url, tmp_path)
    bench.configure()
    upload(url, 2)
    Flaky.faults["ls"] = 1000
    for _ in range(5):
        bench.manager.reconcile()
        time.sleep(0.005)
    assert bench.manager.models()["m"] == [1]
    up, errors = bench.manager.stores()["m"]
    assert not up and errors >= 2
    said = [r.message for r in caplog.records]
    assert len(said) == 1 and "the network is gone" in said[0] and "go on answering" in said[0]  # once, not at every look
    Flaky.faults.clear()
    wait_for(lambda: bench.manager.reconcile() or bench.manager.models()["m"] == [2])
    assert bench.manager.stores()["m"][0] and "answers again" in caplog.records[-1].message
    bench.manager.close(5.0)


def test_a_moments_fault_is_not_seen(url: str, tmp_path: Path) -> None:
    upload(url, 1)
    bench = Bench(url, tmp_path)
    Flaky.faults.update(ls=1, get_file=1)
    bench.configure()
    assert bench.manager.models()["m"] == [1] and bench.manager.stores()["m"] == (True, 2)
    bench.manager.close(5.0)


def test_a_copy_that_breaks_off_is_made_again_and_leaves_nothing(url: str, tmp_path: Path) -> None:
    upload(url, 1)
    bench = Bench(url, tmp_path)
    Flaky.faults["get_file"] = 40  # more than a version that does not load is tried
    bench.configure()
    assert bench.manager.models()["m"] == [] and bench.copies() == []
    state = bench.manager.status("m")[1]
    assert state.code == "UNAVAILABLE" and "the network is gone" in state.message
    wait_for(lambda: bench.manager.reconcile() or bench.manager.models()["m"] == [1])
    bench.manager.close(5.0)


def test_a_version_that_changes_while_it_is_copied_is_not_taken(url: str, tmp_path: Path) -> None:
    upload(url, 1)
    bench = Bench(url, tmp_path)
    fs, root = fsspec.core.url_to_fs(url)

    def change(path: str) -> None:
        Flaky.on_read = staticmethod(lambda path: None)
        fs.pipe_file(f"{root}/1/assets/more", b"x")

    Flaky.on_read = staticmethod(change)
    bench.configure()
    assert bench.manager.models()["m"] == [] and bench.copies() == [] and bench.manager.stores()["m"][0]
    bench.manager.reconcile()
    with bench.manager.lease("m") as servable:
        assert "assets/more" in servable.files  # type: ignore[attr-defined]
    bench.manager.close(5.0)


def test_the_cache_has_a_bound(url: str, tmp_path: Path) -> None:
    upload(url, 1)
    bench = Bench(url, tmp_path, limit=500)
    bench.configure()
    upload(url, 2)
    bench.manager.reconcile()
    state = bench.manager.status("m")[2]
    assert bench.manager.models()["m"] == [1] and state.code == "RESOURCE_EXHAUSTED" and "--cache-mb" in state.message
    assert bench.copies() == ["1"]
    bench.manager.close(5.0)


def test_only_what_the_policy_may_name_is_looked_into(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in range(1, 7):
        upload(url, version)
    asked: list[str] = []
    files = ObjectStore.files
    monkeypatch.setattr(ObjectStore, "files", lambda self, name: asked.append(name) or files(self, name))
    bench = Bench(url, tmp_path)
    bench.configure(VersionPolicy("latest", 2))
    assert bench.manager.models()["m"] == [5, 6] and set(asked) == {"5", "6"}
    bench.configure(VersionPolicy("specific", versions=(3,)))
    assert bench.manager.models()["m"] == [3] and "4" not in asked
    bench.manager.close(5.0)


def test_what_a_killed_server_left_is_removed(tmp_path: Path) -> None:
    script = f"from disc_tf.serving.sources import Cache; c = Cache({str(tmp_path)!r}, 1); print(c.directory, flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert child.stdout is not None
    left = Path(child.stdout.readline().decode().strip())
    try:
        with_it = Cache(tmp_path, 1)
        assert left.is_dir()  # its process lives
    finally:
        child.kill()
        child.communicate()
    other = Cache(tmp_path, 1)
    assert not left.exists() and with_it.directory.is_dir()
    with_it.close()
    other.close()
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="--cache-dir"):
        Cache(tmp_path / "file", 1)


BELOW = [
    ("s3://b/models", "s3://b/models", True),
    ("s3://b/models/m/", "s3://b/models/", True),
    ("s3://b/models2", "s3://b/models", False),
    ("s3://b/models/../secret", "s3://b/models", False),
    ("gs://b/models", "s3://b/models", False),
]


@pytest.mark.parametrize(("path", "root", "expected"), BELOW)
def test_what_lies_below_a_url(path: str, root: str, expected: bool) -> None:
    assert below(path, root) is expected


def test_the_server_over_a_store(url: str, tmp_path: Path) -> None:
    """All of it: a model from a store, a new version, the store down, a reload request, nothing left at the end."""
    save_tf1(tmp_path / "1")
    save_tf1(tmp_path / "2", factor=5.0)
    upload(url, 1, tmp_path / "1")
    cache = tmp_path / "cache"
    found = start([ModelSettings("m", url)], cache_dir=str(cache), store_retries=FAST)
    try:
        request = serving("PredictRequest")
        request.model_spec.name = "m"
        to_proto(rows((1.0, 2.0)), request.inputs["x"])
        np.testing.assert_array_equal(to_numpy(found.call("Predict", request).outputs["y"]), rows((2.0, 4.0)))
        Flaky.faults["ls"] = 1 << 30
        upload(url, 2, tmp_path / "2")
        wait_for(lambda: 'disc_serve_store_up{model="m"} 0.0' in found.rest("/monitoring/prometheus/metrics")[1])
        assert 'disc_serve_store_errors_total{model="m"}' in found.rest("/monitoring/prometheus/metrics")[1]
        assert found.call("Predict", request).model_spec.version.value == 1 and found.rest("/readyz")[0] == 200
        Flaky.faults.clear()
        wait_for(lambda: found.call("Predict", request).model_spec.version.value == 2)
        np.testing.assert_array_equal(to_numpy(found.call("Predict", request).outputs["y"]), rows((5.0, 10.0)))
        for base, code in ((url, 0), (url.rsplit("/", 1)[0] + "/other", 7)):
            reload = serving("ReloadConfigRequest")
            reload.config.model_config_list.config.add(name="n", base_path=base, model_platform="tensorflow")
            assert found.call("HandleReloadConfigRequest", reload, "ModelService").status.error_code == code
    finally:
        found.channel.close()
        assert found.server.stop(10.0)
    assert not list(cache.iterdir())


def test_urls_that_cannot_be(tmp_path: Path) -> None:
    from disc_tf.serving.server import ModelServer, ServerSettings

    server = ModelServer([ModelSettings("m", "nothing://b/m")], ServerSettings(port=0, rest_port=None, cache_dir=str(tmp_path)))
    with pytest.raises(ServingError, match="nothing"):
        server.start()
    with pytest.raises(ConfigError, match="not a directory"):
        ModelServer([ModelSettings("m", f"file://{tmp_path}/none")], ServerSettings(port=0, rest_port=None))
    assert LocalSource(f"file://{tmp_path}").versions() == {}
