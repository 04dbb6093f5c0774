"""Errors with details, fingerprints, the cache in memory."""

from __future__ import annotations

from pathlib import Path

from disc_tf_server import errors
from disc_tf_server.fingerprint import fingerprint, hash_of, source_files, versions
from disc_tf_server.interfaces import Digest, ServiceError
from disc_tf_server.lru import Lru
from google.rpc import error_details_pb2


def test_details_of_errors() -> None:
    error = ServiceError(
        "FAILED_PRECONDITION",
        "BLOB_MISSING",
        "m" * 5000,
        metadata={"limit": "7"},
        retry_after=1.5,
        field="graph.blob",
        missing=[Digest("ab", 3)],
    )
    status = errors.status_of(error)
    assert status.code == 9 and len(status.message) == errors.MAX_MESSAGE
    kinds = [error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo, error_details_pb2.BadRequest, error_details_pb2.PreconditionFailure]
    info, retry, bad, failure = (kind.FromString(d.value) for kind, d in zip(kinds, status.details, strict=True))
    assert (info.reason, info.domain, dict(info.metadata)) == ("BLOB_MISSING", "disc-tf.dev", {"limit": "7"})
    assert (retry.retry_delay.seconds, retry.retry_delay.nanos) == (1, 500_000_000)
    assert bad.field_violations[0].field == "graph.blob"
    assert (failure.violations[0].type, failure.violations[0].subject) == ("MISSING", "blobs/ab/3")
    assert errors.error_of(status.SerializeToString()).reason == "BLOB_MISSING"
    assert errors.error_of(b"\xff").code == "INTERNAL"


def test_nothing_of_the_inside_is_told() -> None:
    told = errors.from_exception(RuntimeError("/secret/path"))
    assert told.code == "INTERNAL" and "secret" not in told.message
    assert errors.from_exception(MemoryError()).code == "RESOURCE_EXHAUSTED"


def test_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "codegen").mkdir()
    (tmp_path / "commands").mkdir()
    for name in ("codegen/a.py", "b.py", "commands/c.py", "note.md"):
        (tmp_path / name).write_text(name)
    assert [f.name for f in source_files(tmp_path)] == ["b.py", "a.py"]
    first = hash_of(tmp_path, {"llvm": "1"})
    (tmp_path / "commands/c.py").write_text("changed")
    (tmp_path / "note.md").write_text("changed")
    assert hash_of(tmp_path, {"llvm": "1"}) == first
    assert hash_of(tmp_path, {"llvm": "2"}) != first
    (tmp_path / "codegen/a.py").write_text("changed")
    second = hash_of(tmp_path, {"llvm": "1"})
    assert second != first
    (tmp_path / "codegen/a.py").rename(tmp_path / "codegen/d.py")
    assert hash_of(tmp_path, {"llvm": "1"}) != second
    assert len(fingerprint()) == 32 and {"llvm", "llvmlite", "jaxlib"} <= versions().keys()


def test_lru() -> None:
    cache: Lru[str, int] = Lru(10)
    for i, name in enumerate("abc"):
        cache.put(name, i, 4)
    assert [cache.get(n) for n in "abc"] == [None, 1, 2] and cache.bytes == 8
    cache.get("b")
    cache.put("d", 3, 4)
    assert [cache.get(n) for n in "bcd"] == [1, None, 3]
    cache.put("big", 4, 11)
    assert cache.get("big") is None and len(cache) == 2
    cache.put("b", 5, 6)
    assert cache.get("b") == 5 and cache.bytes == 10
    cache.pop("nothing")
