"""Bounds of hostile graphs, errors with details, fingerprints."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from disc_tf_server import errors
from disc_tf_server.fingerprint import fingerprint, hash_of, source_files, versions
from disc_tf_server.interfaces import Digest, ServiceError
from disc_tf_server.limits import check_elements
from disc_tf_server.lru import Lru
from google.rpc import error_details_pb2

from disc_tf.frontend.tfproto import message_class
from tests.server.harness import graph

GRAPH = message_class("GraphDef").DESCRIPTOR


def count(data: bytes) -> int:
    """The largest limit that the data does not keep to, and one more."""
    low, high = 0, 2 * len(data)
    while low < high:
        middle = (low + high) // 2
        try:
            check_elements(data, GRAPH, middle)
            high = middle
        except ServiceError:
            low = middle + 1
    return low


def test_elements_are_counted_where_they_could_be_too_many() -> None:
    data = graph(*(f"n{i}" for i in range(50)))
    fields = len(message_class("GraphDef").FromString(data).node)
    assert fields < count(data) < 20 * fields
    check_elements(b"\x0a\x00" * 100, GRAPH, 100)
    with pytest.raises(ServiceError) as caught:
        check_elements(b"\x0a\x00" * 101, GRAPH, 50)
    assert (caught.value.code, caught.value.reason) == ("INVALID_ARGUMENT", "GRAPH_TOO_LARGE")


def test_a_bomb_is_refused_before_it_is_parsed() -> None:
    bomb = b"\x0a\x00" * 3_000_000
    with pytest.raises(ServiceError, match="more than 1000 elements"):
        check_elements(bomb, GRAPH, 1000)
    packed = message_class("GraphDef")()
    node = packed.node.add(name="c", op="Const")
    node.attr["value"].tensor.bool_val.extend([True] * 200_000)
    with pytest.raises(ServiceError, match="more than 5000 elements"):
        check_elements(packed.SerializeToString(), GRAPH, 5000)


def test_nesting_is_bounded() -> None:
    data = b""
    for _ in range(200):  # attr of a function of an attr of a function ...
        func = b"\x12" + _length(entry := b"\x0a\x00\x12" + _length(value := b"\x52" + _length(data) + data) + value) + entry
        data = func
    node = b"\x2a" + _length(entry := b"\x0a\x00\x12" + _length(value := b"\x52" + _length(data) + data) + value) + entry
    with pytest.raises(ServiceError) as caught:
        check_elements(b"\x0a" + _length(node) + node, GRAPH, 500)
    assert caught.value.reason in ("GRAPH_TOO_DEEP", "GRAPH_TOO_LARGE")


def _length(data: bytes) -> bytes:
    n, out = len(data), b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def test_any_bytes_end_in_a_refusal_or_pass() -> None:
    rng = random.Random(3)
    good = graph(*(f"n{i}" for i in range(20)))
    refused = 0
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        data = data[: rng.randint(1, len(data))]
        try:
            check_elements(bytes(data), GRAPH, 100)
        except ServiceError as e:
            refused += 1
            assert e.code == "INVALID_ARGUMENT"
    assert refused > 1000


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
