"""Switching versions, with servables that only count."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from disc_tf.serving.config import ModelSettings, VersionPolicy
from disc_tf.serving.errors import ServingError
from disc_tf.serving.manager import MAX_LOAD_ATTEMPTS, ModelManager


class Fake:
    def __init__(self, name: str, version: int, path: Path) -> None:
        self.name, self.version, self.path, self.users = name, version, path, 0
        self.closed = threading.Event()

    def close(self) -> None:
        assert not self.users, "closed while in use"
        self.closed.set()


class Bench:
    """A base path, a manager, and every servable that was made."""

    def __init__(self, base: Path, **options: Any) -> None:
        self.base, self.made, self.broken = base, [], set()
        self.manager = ModelManager(self.load, quiet=0.0, retry_seconds=0.0, **options)  # type: ignore[arg-type]

    def load(self, name: str, version: int, path: Path) -> Fake:
        self.made.append(Fake(name, version, path))
        if version in self.broken:
            raise ServingError("DATA_LOSS", "broken")
        return self.made[-1]

    def publish(self, version: int) -> Path:
        path = self.base / str(version)
        path.mkdir(parents=True)
        (path / "saved_model.pb").write_bytes(b"x")
        return path

    def configure(self, policy: VersionPolicy | None = None, **labels: int) -> None:
        self.manager.configure([ModelSettings("m", str(self.base), policy or VersionPolicy(), labels)])

    def latest(self) -> int:
        with self.manager.lease("m") as servable:
            return servable.version

    def states(self) -> dict[int, str]:
        return {v: s.state for v, s in self.manager.status("m").items()}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    found = Bench(tmp_path / "m")
    found.publish(1)
    found.configure()
    return found


def test_the_new_version_is_there_before_the_old_one_goes(bench: Bench) -> None:
    bench.publish(2)
    with bench.manager.lease("m") as old:
        bench.manager.reconcile()
        assert old.version == 1 and bench.latest() == 2
        assert not old.closed.wait(0.1)  # type: ignore[attr-defined]
        assert bench.states() == {1: "UNLOADING", 2: "AVAILABLE"}
    assert old.closed.wait(5)  # type: ignore[attr-defined]


def test_a_version_that_does_not_load_takes_nothing_away(bench: Bench) -> None:
    bench.broken.add(2)
    path = bench.publish(2)
    for _ in range(MAX_LOAD_ATTEMPTS + 3):
        bench.manager.reconcile()
    assert bench.latest() == 1 and bench.states() == {1: "AVAILABLE", 2: "END"}
    assert [f.version for f in bench.made].count(2) == MAX_LOAD_ATTEMPTS
    assert bench.manager.status("m", 2)[2].code == "DATA_LOSS"
    bench.broken.clear()
    (path / "more").touch()  # repaired: tried again
    bench.manager.reconcile()
    assert bench.latest() == 2


def test_an_emptied_base_path_takes_nothing_away(bench: Bench) -> None:
    bench.base.rename(bench.base.with_name("gone"))
    bench.manager.reconcile()
    assert bench.latest() == 1


def test_rollback_by_deleting_the_newest(bench: Bench) -> None:
    new = bench.publish(2)
    bench.manager.reconcile()
    assert bench.latest() == 2
    new.rename(bench.base / "bad")
    bench.manager.reconcile()
    assert bench.latest() == 1


def test_policies_and_labels(bench: Bench) -> None:
    bench.publish(2)
    bench.publish(3)
    bench.configure(VersionPolicy("all"), stable=2)
    with bench.manager.lease("m", label="stable") as servable:
        assert servable.version == 2
    with pytest.raises(ServingError, match="label new to version 9") as caught:
        bench.configure(VersionPolicy("all"), new=9)
    assert caught.value.code == "FAILED_PRECONDITION" and bench.latest() == 3
    bench.configure(VersionPolicy("specific", versions=(1, 2)), stable=1)
    assert bench.latest() == 2
    with pytest.raises(ServingError, match=r"Specific\(m, 3\)"), bench.manager.lease("m", 3):
        pass


def test_another_base_path_replaces_equal_version_numbers(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "other" / "1").mkdir(parents=True)
    (tmp_path / "other" / "1" / "saved_model.pb").write_bytes(b"y")
    bench.manager.configure([ModelSettings("m", str(tmp_path / "other"))])
    with bench.manager.lease("m") as servable:
        assert servable.path == tmp_path / "other" / "1"
    assert bench.made[0].closed.wait(5)


def test_a_model_that_is_no_longer_configured_goes(bench: Bench) -> None:
    bench.manager.configure([])
    with pytest.raises(ServingError, match=r"Latest\(m\)"), bench.manager.lease("m"):
        pass
    assert bench.made[0].closed.wait(5)


def test_close_waits_for_requests(bench: Bench) -> None:
    with bench.manager.lease("m"):
        assert not bench.manager.close(0.1)
    assert bench.made[0].closed.wait(5) and bench.manager.close(5)


def test_requests_never_miss_while_versions_change(bench: Bench) -> None:
    stop, faults = threading.Event(), []

    def client() -> None:
        while not stop.is_set():
            try:
                with bench.manager.lease("m") as servable:
                    assert not servable.closed.is_set()  # type: ignore[attr-defined]
            except Exception as e:
                faults.append(e)
                return

    threads = [threading.Thread(target=client) for _ in range(4)]
    for t in threads:
        t.start()
    for version in range(2, 30):
        bench.publish(version)
        bench.manager.reconcile()
    stop.set()
    for t in threads:
        t.join()
    assert not faults and bench.latest() == 29


def test_labels_answer_while_another_base_path_loads(bench: Bench, tmp_path: Path) -> None:
    bench.configure(stable=1)
    other = tmp_path / "other"
    (other / "1").mkdir(parents=True)
    (other / "1" / "saved_model.pb").write_bytes(b"y")
    seen: list[Path] = []
    load = bench.load

    def asked_meanwhile(name: str, version: int, path: Path) -> Fake:
        with bench.manager.lease("m", label="stable") as servable:
            seen.append(servable.path)
        return load(name, version, path)

    bench.manager._load = asked_meanwhile  # type: ignore[assignment]
    bench.manager.configure([ModelSettings("m", str(other), labels={"stable": 1})])
    assert seen == [bench.base / "1"]
    with bench.manager.lease("m", label="stable") as servable:
        assert servable.path == other / "1"
