"""From one base path to another, with an optimiser that only marks what it made."""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from disc_tf.serving.config import ModelSettings, VersionPolicy
from disc_tf.serving.prepare import OPTIMIZED, OptimizeFailed, Preparer, watch
from disc_tf.serving.stores import LOCK, MARKER, LocalStore, ObjectStore, Store, StoreError, open_store
from disc_tf.serving.versions import Settled


class World:
    """A source and a target base path, and an optimiser whose failures are chosen."""

    def __init__(self, source: Store, target: Store, root: Path, **options: Any) -> None:
        self.source, self.target, self.root, self.options = source, target, root, options
        self.bad: set[str] = set()
        self.seen: list[Path] = []
        self.during: Callable[[], object] = lambda: None

    def optimize(self, source: Path, target: Path) -> str:
        self.seen.append(source)
        self.during()
        if (source / "saved_model.pb").read_text() in self.bad:
            raise OptimizeFailed("verification failed", 5)
        (target / "variables").mkdir(parents=True)
        (target / "variables" / "data").write_bytes((source / "variables" / "data").read_bytes())
        (target / "saved_model.pb").write_text("fast " + (source / "saved_model.pb").read_text())
        (target / OPTIMIZED).parent.mkdir(parents=True)
        (target / OPTIMIZED).write_text("{}")
        return ""

    def preparer(self, policy: str = "latest", **options: Any) -> Preparer:
        labels = options.pop("labels", {})
        settings = ModelSettings("m", str(self.source), VersionPolicy.parse(policy), labels)
        given = {"settled": Settled(0.0), **self.options, **options}
        return Preparer(settings, self.source, self.target, self.optimize, **given)

    def run(self, policy: str = "latest", **options: Any) -> list[tuple[int, str]]:
        return [(o.version, o.result) for o in self.preparer(policy, **options).run()]

    def publish(self, version: int, content: str | None = None) -> Path:
        path = self.root / str(version)
        (path / "variables").mkdir(parents=True, exist_ok=True)
        (path / "variables" / "data").write_bytes(b"weights")
        (path / "saved_model.pb").write_text(content or f"model {version}")
        return path

    def there(self) -> dict[int, str]:
        """Version -> the model that the target has."""
        return {v: (self.target.read(n, "saved_model.pb") or b"").decode() for v, n in sorted(self.target.versions().items())}


@pytest.fixture(params=["local", "object store"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    source = tmp_path / "in"
    source.mkdir()
    if request.param == "local":
        return World(LocalStore(source), LocalStore(tmp_path / "out"), source)
    pytest.importorskip("fsspec")
    return World(LocalStore(source), open_store(f"memory://{uuid.uuid4().hex}/out"), source)


def test_versions_keep_their_numbers(world: World) -> None:
    for v in (1, 2, 3):
        world.publish(v)
    assert world.run() == [(3, "optimized")]
    assert world.there() == {3: "fast model 3"} and world.target.read("3", "variables/data") == b"weights"
    assert world.run() == [(3, "up to date")]
    assert world.run("all") == [(1, "optimized"), (2, "optimized"), (3, "up to date")]
    assert len(world.seen) == 3
    assert json.loads(world.target.read("1", MARKER) or b"")["source_version"] == 1


def test_labelled_versions_are_wanted(world: World) -> None:
    for v in (1, 2, 3):
        world.publish(v)
    assert world.run(labels={"stable": 1}) == [(1, "optimized"), (3, "optimized")]


def test_a_bad_model_is_reported_and_the_original_published(world: World) -> None:
    world.publish(1)
    world.bad.add("model 1")
    outcome = world.preparer().run()[0]
    assert (outcome.result, outcome.reason, outcome.code) == ("original published", "verification failed", 5)
    assert world.there() == {1: "model 1"}
    assert world.run() == [(1, "up to date")]  # not tried for ever
    world.bad.clear()
    assert world.run(retry=True) == [(1, "optimized")] and world.there() == {1: "fast model 1"}


def test_a_version_that_is_replaced_is_prepared_again(world: World) -> None:
    world.publish(1)
    world.run()
    world.publish(1, "another model")
    assert world.run() == [(1, "optimized")] and world.there() == {1: "fast another model"}


def test_a_version_that_is_still_written_is_not_taken(world: World) -> None:
    path = world.root / "1"
    path.mkdir()
    assert world.run() == [(1, "incomplete")] and world.there() == {}
    world.publish(1)
    now = [0.0]
    settled = Settled(2.0, clock=lambda: now[0])
    assert world.run(settled=settled) == [(1, "incomplete")]
    now[0] = 2.5
    (path / "variables" / "more").write_bytes(b"")
    assert world.run(settled=settled) == [(1, "incomplete")]
    now[0] = 5.0
    assert world.run(settled=settled) == [(1, "optimized")]


def test_one_run_waits_for_a_version(world: World) -> None:
    (world.root / "1").mkdir()
    writer = threading.Timer(0.3, lambda: world.publish(1))
    writer.start()
    assert [o.result for o in world.preparer(settled=Settled(0.1)).run(wait=20.0, pause=0.05)] == ["optimized"]


def test_files_that_change_meanwhile_are_not_published(world: World) -> None:
    world.publish(1)
    world.during = lambda: world.publish(1, "changed")
    assert world.run() == [(1, "incomplete")] and world.there() == {}


def test_our_own_outputs_are_never_inputs(world: World) -> None:
    path = world.publish(1)
    for marker in (OPTIMIZED, MARKER):
        (path / marker).parent.mkdir(parents=True, exist_ok=True)
        (path / marker).write_text("{}")
        assert world.run() == [(1, "not an input")] and not world.seen
        (path / marker).unlink()


def test_what_is_not_ours_is_not_replaced(world: World, tmp_path: Path) -> None:
    world.publish(1)
    world.target.make()
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "saved_model.pb").write_text("foreign")
    with world.target.locked():
        world.target.publish("1", foreign)
    outcome = world.preparer().run()[0]
    assert outcome.result == "refused" and "not replaced" in outcome.reason
    with pytest.raises(StoreError, match="not replaced"):
        world.preparer().rollback(1)
    assert world.there() == {1: "foreign"}


def test_rollback_stays(world: World) -> None:
    world.publish(1)
    world.run()
    assert world.preparer().rollback(1).result == "original published"
    assert world.there() == {1: "model 1"}
    assert world.run(retry=True) == [(1, "up to date")] and world.there() == {1: "model 1"}
    with pytest.raises(StoreError, match="no version 7"):
        world.preparer().rollback(7)


def test_a_version_deleted_in_the_source_goes(world: World) -> None:
    for v in (1, 2):
        world.publish(v)
    world.run("all")
    (world.root / "2").rename(world.root / "bad")
    assert world.run("all", mirror=False) == [(1, "up to date")]
    assert world.run("all") == [(1, "up to date"), (2, "removed")]
    assert world.there() == {1: "fast model 1"}
    (world.root / "1").rename(world.root / "gone")
    assert world.run("all") == [] and world.there() == {1: "fast model 1"}  # an emptied source takes nothing away


def test_retention(world: World) -> None:
    for v in range(1, 5):
        world.publish(v)
        world.run(labels={"stable": 1}, keep=2)
    assert world.there().keys() == {1, 3, 4}  # a labelled version stays


def test_retention_below_what_is_wanted(world: World) -> None:
    """What would be removed at once is not made, again and again."""
    for v in range(1, 5):
        world.publish(v)
    (world.root / "9").mkdir()  # one that never gets complete takes nobody's place
    assert world.run("all", keep=2, labels={"stable": 1}) == [(1, "optimized"), (3, "optimized"), (4, "optimized"), (9, "incomplete")]
    assert world.run("all", keep=2, labels={"stable": 1})[:3] == [(1, "up to date"), (3, "up to date"), (4, "up to date")]
    world.publish(9)
    assert dict(world.run("all", keep=2))[9] == "optimized"
    assert world.there().keys() == {4, 9}
    made = len(world.seen)
    for _ in range(2):
        assert world.run("all", keep=2) == [(4, "up to date"), (9, "up to date")]
    assert len(world.seen) == made == 4


def test_a_read_only_source(world: World) -> None:
    path = world.publish(1)
    world.bad.add("model 1")  # the original is copied
    for directory in (path / "variables", path):
        directory.chmod(0o555)
    try:
        assert world.run() == [(1, "original published")] and world.there() == {1: "model 1"}
    finally:
        for directory in (path, path / "variables"):
            directory.chmod(0o755)
    if isinstance(world.target, LocalStore):
        modes = [(world.target.root / "1" / name).stat().st_mode & 0o700 for name in (".", "variables", "assets.extra")]
        assert modes == [0o700] * 3


def test_an_unreadable_target_is_no_end_of_the_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    world = World(LocalStore(tmp_path / "in"), LocalStore(tmp_path / "out"), tmp_path / "in")
    world.publish(1)
    (tmp_path / "out" / "1").mkdir(parents=True)

    def denied(self: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied")

    said: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", denied)
        watch([world.preparer()], 0.0, lambda _: len(said) == 2 or not said.append("look"), lambda o: None, said.append)
    assert said[0].endswith("out/1: Permission denied") and "cannot read" in said[0] and said[1:] == ["look"]
    assert world.run() == [(1, "optimized")]


@pytest.mark.parametrize("key", ["../../outside", "/outside", "a//b", "./saved_model.pb"])
def test_keys_that_are_no_paths(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    store = open_store(f"memory://{uuid.uuid4().hex}/in")
    assert isinstance(store, ObjectStore)
    there = f"{store._root}/1/{key}"
    # filesystems are shared between stores
    monkeypatch.setattr(store._fs, "find", lambda path: [f"{store._root}/1", f"{store._root}/1/", there])
    monkeypatch.setattr(store._fs, "get_file", lambda path, local: pytest.fail(f"wrote {local}"))
    with pytest.raises(StoreError, match="no path of a file"), store.fetched("1"):
        pass


def test_planted_links_are_not_followed(tmp_path: Path) -> None:
    """Of whoever may write into the base path."""
    other = tmp_path / "other"
    (other / "1").mkdir(parents=True)
    (other / "1").chmod(0o500)
    other.chmod(0o500)
    store = LocalStore(tmp_path / "out")
    store.make()
    planted = store.root / ".disc_tf_work.x"
    planted.symlink_to(other)
    with store.locked():
        assert not planted.is_symlink()
    assert [p.stat().st_mode & 0o777 for p in (other, other / "1")] == [0o500, 0o500]
    (store.root / LOCK).unlink()
    (store.root / LOCK).symlink_to(tmp_path / "made")
    with pytest.raises(StoreError, match="symbolic link"), store.locked():
        pass
    assert not (tmp_path / "made").exists()


def test_files_with_old_times_that_have_just_come(world: World) -> None:
    """As `cp -p` writes them: the directory's own time tells."""
    path = world.publish(1)
    for entry in (path / "variables" / "data", path / "variables", path / "saved_model.pb"):
        os.utime(entry, (1e9, 1e9))
    assert world.run(settled=Settled(2.0)) == [(1, "incomplete")]
    os.utime(path, (1e9, 1e9))
    assert world.run(settled=Settled(2.0)) == [(1, "optimized")]


def test_one_base_path_for_both(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    world = World(store, store, tmp_path, offset=1000)
    world.publish(1)
    world.publish(2)
    assert world.run("all") == [(1, "optimized"), (2, "optimized")]
    assert world.there() == {1: "model 1", 2: "model 2", 1001: "fast model 1", 1002: "fast model 2"}
    assert world.run("all") == [(1, "up to date"), (2, "up to date")] and len(world.seen) == 2


def test_only_one_works_at_a_time(world: World) -> None:
    world.publish(1)
    world.target.make()
    other = LocalStore(world.target.root) if isinstance(world.target, LocalStore) else open_store(str(world.target))
    with other.locked(), pytest.raises(StoreError, match="another"):
        world.run()
    assert world.run() == [(1, "optimized")]


def test_what_a_killed_process_left_is_no_version_and_goes(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    world = World(LocalStore(tmp_path / "in"), LocalStore(tmp_path / "out"), tmp_path / "in")
    left = tmp_path / "out" / ".disc_tf_work.x"
    left.mkdir(parents=True)
    (left / "saved_model.pb").touch()
    world.publish(1)
    assert world.run() == [(1, "optimized")] and not left.exists()
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [LOCK, "1"]


def test_object_stores_get_the_model_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    store = open_store(f"memory://{uuid.uuid4().hex}/out")
    (tmp_path / "in").mkdir()
    world = World(LocalStore(tmp_path / "in"), store, tmp_path / "in")
    world.publish(1)
    order: list[str] = []
    put = store._fs.put_file  # type: ignore[union-attr]

    def record(local: str, key: str) -> None:
        order.append(key.rsplit("/1/", 1)[1])
        if fail and order[-1] == "saved_model.pb":
            raise OSError("connection lost")
        put(local, key)

    monkeypatch.setattr(store._fs, "put_file", record)  # type: ignore[union-attr]
    fail = True
    with pytest.raises(StoreError, match="connection lost"):
        world.run()
    assert order[0] == MARKER and order[-1] == "saved_model.pb"
    assert store.files("1") is None  # no model for whoever looks
    fail = False
    assert world.run() == [(1, "optimized")] and world.there() == {1: "fast model 1"}


def test_faults_name_the_place(tmp_path: Path) -> None:
    world = World(LocalStore(tmp_path / "nothing"), LocalStore(tmp_path / "out"), tmp_path / "nothing")
    with pytest.raises(StoreError, match="nothing is not a directory"):
        world.run()
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot make"):
        LocalStore(tmp_path / "file" / "out").make()
    with pytest.raises(StoreError, match="unknown9"):
        open_store("unknown9://bucket/models")
