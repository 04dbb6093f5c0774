"""Results of children and servers, taken as hostile: what is not well-formed is refused by name, and nothing else ever happens."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from disc_tf.remote.check import CheckError, ResultLimits, check_result
from disc_tf.remote.image import ENTRY_POINT, ImageError, check_image
from disc_tf.remote.messages import message_class, new
from disc_tf.remote.wire import WireError, check_elements
from disc_tf.runtime.artifact import HEADER, Artifact, ArtifactError, headed, lay_out, pack, sections_of, unpack

NOTE_AT = 64 + 56 * 6


def parsed(data: bytes) -> Any:
    return message_class("CompileResult").FromString(data)


def of(result: Any) -> bytes:
    return result.SerializeToString(deterministic=True)


def image_of(data: bytes) -> bytes:
    return unpack(parsed(data).clusters[0].executable).targets[0].image


def sealed(image: bytes | bytearray) -> bytes:
    """With the build id of its content."""
    image = bytearray(image)
    image[NOTE_AT + 16 : NOTE_AT + 36] = bytes(20)
    image[NOTE_AT + 16 : NOTE_AT + 36] = hashlib.sha256(image).digest()[:20]
    return bytes(image)


def test_a_real_result_passes(compiled: bytes) -> None:
    result = check_result(compiled)
    assert len(result.clusters) == 1 and of(result) == compiled
    for target in unpack(result.clusters[0].executable).targets:
        check_image(target.image, 1 << 20)
        assert sealed(target.image) == target.image


# ---- images ----


def patched(image: bytes, at: int, data: bytes) -> bytes:
    return sealed(image[:at] + data + image[at + len(data) :])


def header(image: bytes, i: int) -> list[int]:
    return list(struct.unpack_from("<IIQQQQQQ", image, 64 + 56 * i))


def with_header(image: bytes, i: int, **fields: int) -> bytes:
    names = ("type", "flags", "offset", "vaddr", "paddr", "filesz", "memsz", "align")
    values = dict(zip(names, header(image, i), strict=True)) | fields
    return patched(image, 64 + 56 * i, struct.pack("<IIQQQQQQ", *(values[n] for n in names)))


def with_dynamic(image: bytes, *entries: tuple[int, int], instead: int | None = None) -> bytes:
    """With entries of the dynamic table added before its end, or one replaced."""
    at = header(image, 3)[2]
    if instead is not None:
        return patched(image, at + 16 * instead, struct.pack("<QQ", *entries[0]))
    longer = image[:-16] + b"".join(struct.pack("<QQ", *e) for e in entries) + bytes(16)
    size = len(longer) - at
    return with_header(with_header(sealed(longer), 2, filesz=size, memsz=size), 3, filesz=size, memsz=size)


SYMBOL_AT = NOTE_AT + 40


def entry_at(image: bytes) -> int:
    """Where the symbol of the entry point is: the last, behind those of functions that are not exported."""
    return SYMBOL_AT + 24 * (count_of(image) - 1)


def count_of(image: bytes) -> int:
    return (struct.unpack_from("<Q", image, header(image, 3)[2] + 8)[0] - SYMBOL_AT) // 24


HOSTILE_IMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "no elf": (lambda i: b"#!/bin/sh\n" + i, "header"),
    "cut off": (lambda i: i[:300], "cut off"),
    "half": (lambda i: i[: len(i) // 2], ""),
    "longer": (lambda i: i + bytes(16), ""),
    "an executable": (lambda i: patched(i, 16, b"\2"), "header"),
    "other machine": (lambda i: patched(i, 18, b"\xb7"), "header"),
    "section headers": (lambda i: patched(i, 40, struct.pack("<Q", 64)), "header"),
    "more program headers": (lambda i: patched(i, 56, b"\7"), "header"),
    "an interpreter": (lambda i: with_header(i, 4, type=3), "program header 4"),
    "thread-local data": (lambda i: with_header(i, 4, type=7), "program header 4"),
    "an executable stack": (lambda i: with_header(i, 5, flags=7), "program header 5"),
    "writable code": (lambda i: with_header(i, 1, flags=7), "program header 1"),
    "executable data": (lambda i: with_header(i, 2, flags=7), "program header 2"),
    "more memory than file": (lambda i: with_header(i, 2, memsz=1 << 40), "program header 2"),
    "code loaded twice": (lambda i: with_header(i, 2, offset=header(i, 1)[2]), "program header 2"),
    "overlapping": (lambda i: with_header(i, 0, filesz=len(i), memsz=len(i)), "overlap"),
    "outside": (lambda i: with_header(i, 1, offset=1 << 40, vaddr=1 << 40, paddr=1 << 40), ""),
    "hidden bytes": (lambda i: patched(i, header(i, 1)[2] - 1, b"x"), "between"),
    "a needed library": (lambda i: with_dynamic(i, (1, 1)), "six entries"),
    "needed instead of hash": (lambda i: with_dynamic(i, (1, 1), instead=0), "tags"),
    "an initialiser": (lambda i: with_dynamic(i, (12, header(i, 1)[2]), instead=3), "tags"),
    "an init array": (lambda i: with_dynamic(i, (25, 0), (27, 8)), "six entries"),
    "relocations": (lambda i: with_dynamic(i, (7, 0), (8, 24), (9, 24)), "six entries"),
    "text relocations": (lambda i: with_dynamic(i, (22, 0)), "six entries"),
    "a run path": (lambda i: with_dynamic(i, (29, 1)), "six entries"),
    "an undefined symbol": (lambda i: patched(i, entry_at(i) + 6, b"\0\0"), "undefined"),
    "an indirect function": (lambda i: patched(i, entry_at(i) + 4, bytes([1 << 4 | 10])), "no function"),
    "a symbol outside": (lambda i: patched(i, entry_at(i) + 8, struct.pack("<Q", 0)), "outside the code"),
    "a symbol too long": (lambda i: patched(i, entry_at(i) + 16, struct.pack("<Q", 1 << 62)), "outside the code"),
    "a local undefined": (lambda i: patched(i, SYMBOL_AT + 24 + 6, b"\0\0"), "undefined"),
    "a second export": (lambda i: patched(i, SYMBOL_AT + 24 + 4, bytes([1 << 4 | 2])), "no function"),
    "a local of data": (lambda i: patched(i, SYMBOL_AT + 24 + 8, struct.pack("<Q", 64)), "outside the code"),
    "another's name": (lambda i: patched(i, SYMBOL_AT + 24, i[entry_at(i) : entry_at(i) + 4]), "no function"),
    "the name of a terminal": (lambda i: patched(i, entry_at(i) + 24 + 4 * (3 + count_of(i)) + 1, b"\x1b"), "is called"),
    "fewer symbols": (lambda i: with_dynamic(i, (4, SYMBOL_AT + 24), instead=0), ""),
    "no symbols": (lambda i: with_dynamic(i, (4, 0), instead=0), ""),
    "a short table of names": (lambda i: with_dynamic(i, (10, 0), instead=3), "not as many"),
    "names without end": (lambda i: with_dynamic(i, (10, 1 << 60), instead=3), "outside its read-only"),
    "a first symbol": (lambda i: patched(i, SYMBOL_AT, b"\1"), "first symbol"),
    "another export": (lambda i: sealed(i.replace(ENTRY_POINT.encode(), b"x" * len(ENTRY_POINT))), "exports"),
    "a wild hash table": (lambda i: patched(i, entry_at(i) + 24, struct.pack("<I", 1 << 31)), "exports"),
    "no build id": (lambda i: patched(i, NOTE_AT, b"\0"), "build id"),
    "other content": (lambda i: i[: header(i, 1)[2]] + b"\xcc" + i[header(i, 1)[2] + 1 :], "build id"),
}


@pytest.mark.parametrize("name", HOSTILE_IMAGES)
def test_hostile_images(compiled: bytes, name: str) -> None:
    change, says = HOSTILE_IMAGES[name]
    with pytest.raises(ImageError, match=says or None):
        check_image(change(image_of(compiled)), 1 << 20)


def test_every_byte_that_a_loader_reads_is_checked(compiled: bytes) -> None:
    """Each byte of the headers, tables and strings, changed in each of several ways, with the build id made to fit."""
    image = image_of(compiled)
    dynamic, count = header(image, 3)[2], count_of(image)
    hash_at = SYMBOL_AT + 24 * count
    strings_at = hash_at + 4 * (3 + count)
    symbols = [*range(SYMBOL_AT + 24, hash_at, 24)]
    strings = {*range(strings_at, strings_at + struct.unpack_from("<Q", image, dynamic + 16 * 3 + 8)[0])}
    #: functions may be other parts of the code, and those that are not exported may have other names
    free = {at for s in symbols for at in range(s + 8, s + 24)} | {*range(NOTE_AT + 16, NOTE_AT + 36)} | {at for at in strings if image[at]}
    code = (header(image, 1)[2], header(image, 1)[2] + header(image, 1)[5])
    few = {*range(SYMBOL_AT), *symbols[:2], *range(symbols[0], symbols[2]), *range(symbols[-1], hash_at + 32), dynamic}
    for at in [*range(max(strings) + 1), *range(dynamic, len(image))]:
        some = {0, 1, 7, 0xFF, image[at] ^ 1, image[at] ^ 0x80} if at in few or at >= dynamic else {0, image[at] ^ 1}
        for value in some - {image[at]}:
            changed = patched(image, at, bytes([value]))
            if at not in free:
                with pytest.raises(ImageError):
                    check_image(changed, 1 << 20)
                continue
            try:
                check_image(changed, 1 << 20)
            except ImageError:
                continue
            for symbol in symbols:
                place, size = struct.unpack_from("<QQ", changed, symbol + 8)
                assert code[0] <= place and place + size <= code[1]


# ---- results ----


def with_cluster(data: bytes, **fields: Any) -> bytes:
    """The first cluster with other fields."""
    result = parsed(data)
    c = result.clusters[0]
    for name, value in fields.items():
        if isinstance(value, list):
            del getattr(c, name)[:]
            getattr(c, name).extend(value)
        else:
            setattr(c, name, value)
    return of(result)


def with_artifact(data: bytes, change: Callable[[Artifact], Artifact]) -> bytes:
    return with_cluster(data, executable=pack(change(unpack(parsed(data).clusters[0].executable))))


def with_targets(data: bytes, **fields: Any) -> bytes:
    return with_artifact(data, lambda a: dataclasses.replace(a, targets=tuple(dataclasses.replace(t, **fields) for t in a.targets[:1])))


def with_result(data: bytes, change: Callable[[Any], object]) -> bytes:
    result = parsed(data)
    change(result)
    return of(result)


def with_section(data: bytes) -> bytes:
    """An artefact with a section more, that readers skip."""
    sections = [*sections_of(unpack(parsed(data).clusters[0].executable)), (b"XTRA", 0, b"hidden")]
    return with_cluster(data, executable=headed(*lay_out(sections)))


HOSTILE_RESULTS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "nothing": (lambda d: b"", "no report"),
    "noise": (lambda d: b"\xff" * 1000, "not a CompileResult"),
    "no JSON": (lambda d: with_result(d, lambda r: setattr(r, "report_json", b"{")), "not JSON"),
    "deep JSON": (lambda d: with_result(d, lambda r: setattr(r, "report_json", b"[" * 100_000)), "not JSON"),
    "a JSON list": (lambda d: with_result(d, lambda r: setattr(r, "report_json", b"[]")), "JSON object"),
    "the cluster twice": (lambda d: with_result(d, lambda r: r.clusters.add().CopyFrom(r.clusters[0])), "occurs twice"),
    "a node in two clusters": (
        lambda d: with_result(d, lambda r: (r.clusters.add().CopyFrom(r.clusters[0]), setattr(r.clusters[1], "name", "other"))), "too",
    ),
    "a node in and out": (lambda d: with_result(d, lambda r: r.compiled.append(r.clusters[0].nodes[0])), "said to be in none"),
    "a name of control characters": (lambda d: with_cluster(d, name="a\x1b[2J"), "not printable"),
    "a long name": (lambda d: with_cluster(d, name="a" * 10_000), "more than"),
    "an empty node": (lambda d: with_cluster(d, nodes=[""]), "empty"),
    "no nodes": (lambda d: with_cluster(d, nodes=[]), "no nodes"),
    "a kind less": (lambda d: with_cluster(d, kinds=["const"]), "length"),
    "an unknown kind": (lambda d: with_cluster(d, kinds=["const"] * 5 + ["gpu"]), "kind 'gpu'"),
    "another kind": (lambda d: with_cluster(d, kinds=["const"] * 5 + ["host"]), "other arguments"),
    "a result more": (lambda d: with_cluster(d, results=["a", "b"]), "length"),
    "a host result": (lambda d: with_cluster(d, host_results=[True]), "other results"),
    "another shape": (lambda d: with_result(d, lambda r: r.clusters[0].shapes[0].dims.append(3)), "other results"),
    "another abi": (lambda d: with_cluster(d, abi=2), "ABI"),
    "no artefact": (lambda d: with_cluster(d, executable=b""), "magic"),
    "an artefact and more": (lambda d: with_cluster(d, executable=parsed(d).clusters[0].executable + b"x"), "padded"),
    "a hidden section": (with_section, "something besides"),
    "an artefact of another ABI": (lambda d: with_artifact(d, lambda a: dataclasses.replace(a, abi_version=9)), "ABI is 9"),
    "an unknown instruction set": (lambda d: with_targets(d, isa="x86-64-v9"), "not known"),
    "no features": (lambda d: with_targets(d, features=()), "features"),
    "odd features": (lambda d: with_targets(d, features=("amx",)), "features"),
    "a script as image": (lambda d: with_targets(d, image=b"#!/bin/sh"), "x86-64-v2: it is cut off"),
    "a long message": (
        lambda d: with_artifact(d, lambda a: dataclasses.replace(a, checks=(dataclasses.replace(a.checks[0], message="x" * 10_000),))),
        "message",
    ),
    "a node of control characters": (
        lambda d: with_artifact(d, lambda a: dataclasses.replace(a, checks=(dataclasses.replace(a.checks[0], node="\n"),))), "printable",
    ),
    "a million empty clusters": (lambda d: d + b"\x0a\x00" * 1_100_000, "elements"),
    "a million dims": (lambda d: d + b"\x0a\xc4\x96\xb1\x02" + b"\x5a\xc0\x96\xb1\x02" + b"\x0a\xbc\x96\xb1\x02" + bytes(5_000_000), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_RESULTS)
def test_hostile_results(compiled: bytes, name: str) -> None:
    change, says = HOSTILE_RESULTS[name]
    with pytest.raises(CheckError, match=says or None):
        check_result(change(compiled))


@pytest.mark.parametrize(
    ("limits", "says"),
    [({"data_bytes": 100}, "100 are taken"), ({"executable_bytes": 1000}, "its artefact has"), ({"report_bytes": 10}, "the report has"),
     ({"clusters": 0}, "0 are taken"), ({"name_bytes": 3}, "more than 3")],
)  # fmt: skip
def test_limits(compiled: bytes, limits: dict[str, int], says: str) -> None:
    with pytest.raises(CheckError, match=says):
        check_result(compiled, ResultLimits(**limits))


def outcome(data: bytes) -> str:
    try:
        check_result(data)
    except CheckError:
        return "refused"
    return "passed"


def test_random_damage_is_refused_or_harmless(compiled: bytes) -> None:
    """Whatever passes has the artefact of before: nothing in code can be changed by chance."""
    rng = random.Random(0)
    before = parsed(compiled).clusters[0].executable
    for _ in range(1500):
        data = bytearray(compiled)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(len(data))
            kind = rng.random()
            if kind < 0.6:
                data[at] ^= 1 << rng.randrange(8)
            elif kind < 0.8:
                del data[at : at + rng.randrange(1, 40)]
            else:
                data[at:at] = rng.randbytes(rng.randrange(1, 40))
        if outcome(bytes(data)) == "passed":
            assert parsed(bytes(data)).clusters[0].executable == before


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), where=st.sampled_from(["header", "table", "META", "CODE", "image"]), count=st.integers(1, 6))
def test_damage_behind_right_checksums(compiled: bytes, seed: int, where: str, count: int) -> None:
    """Bytes changed inside a section whose checksums are made to fit: only `CheckError`, or a result that means what it says."""
    rng = random.Random(seed)
    artifact = unpack(parsed(compiled).clusters[0].executable)
    if where == "image":
        image = bytearray(artifact.targets[0].image)
        for _ in range(count):
            image[rng.randrange(len(image))] = rng.randrange(256)
        targets = (dataclasses.replace(artifact.targets[0], image=sealed(image)), *artifact.targets[1:])
        data = with_cluster(compiled, executable=pack(dataclasses.replace(artifact, targets=targets)))
    else:
        data = with_cluster(compiled, executable=damaged(artifact, where, rng, count))
    if outcome(data) == "passed":
        for target in unpack(parsed(data).clusters[0].executable).targets:
            check_image(target.image, 1 << 20)


def damaged(artifact: Artifact, where: str, rng: random.Random, count: int) -> bytes:
    sections = []
    for tag, flags, payload in sections_of(artifact):
        changed = bytearray(payload)
        if tag.decode() == where:
            for _ in range(count):
                changed[rng.randrange(min(len(changed), 600))] = rng.choice((0, 1, 255, rng.randrange(256)))
        sections.append((tag, flags, bytes(changed)))
    table, body = lay_out(sections)
    changed = bytearray(table)
    if where == "table":
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    whole = bytearray(headed(bytes(changed), body))
    if where == "header":
        whole[rng.randrange(HEADER.size)] = rng.randrange(256)
    return bytes(whole)


# ---- the wire ----


def test_elements_are_counted_before_they_are_made() -> None:
    descriptor = message_class("CompileResult").DESCRIPTOR
    many = b"\x0a\x00" * 600_000
    check_elements(many, descriptor, 600_000)
    noise = b"\xff" * 2_000_000
    cut = b"\x0a\x00" * 100 + bytes([0x0A, 0xFF, 0xFF, 0x7F]) + bytes(1_100_000)
    for wrong, says in ((many, "more than"), (cut, "cut off"), (b"\x0b" * 2_000_000, "groups"), (noise, "cut off")):
        with pytest.raises(WireError, match=says):
            check_elements(wrong, descriptor, 599_999)
    # what it lets pass, the parser can decide on
    inner = b""
    for _ in range(200):
        inner = b"\x52" + bytes([len(inner) & 127 | 128, len(inner) >> 7]) + inner if len(inner) < 16000 else inner
    assert check_elements(inner, descriptor, 10) is None


def test_the_check_needs_no_compiler(compiled: bytes) -> None:
    code = (
        "import sys; from disc_tf.remote.check import check_result; r = check_result(sys.stdin.buffer.read());"
        "print(len(r.clusters), [m for m in ('tensorflow', 'jax', 'llvmlite', 'grpc') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], input=compiled, capture_output=True, check=True)
    assert done.stdout.decode().split() == ["1", "[]"]


def test_errors_do_not_quote_at_length(compiled: bytes) -> None:
    report = json.dumps({"x": "s" * 100_000}).encode()
    for data in (with_cluster(compiled, kinds=["k" * 8000] * 6), with_result(compiled, lambda r: setattr(r, "report_json", report[:-1]))):
        with pytest.raises(CheckError) as e:
            check_result(data)
        assert len(str(e.value)) < 500
    assert isinstance(CheckError("x"), ValueError) and issubclass(ArtifactError, ValueError)
    assert outcome(of(new("CompileResult", report_json=b"{}", compiler_version="1"))) == "passed"
