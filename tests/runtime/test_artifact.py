"""The artefact's format: round trips, rules, and hostile bytes against both readers."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disc_tf.runtime import ArtifactError, DiscError, Executable, pack, unpack
from disc_tf.runtime.artifact import (
    DTYPES,
    ArgSpec,
    Artifact,
    CheckSpec,
    PreparedSpec,
    ResultSpec,
    SegmentSpec,
    StepSpec,
    TargetCode,
    tensor_digest,
)
from tests.runtime import toy

HEADER, ENTRY = 64, 32
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=8)
DIMS = st.lists(st.integers(-1, 2**62), max_size=4).map(tuple)
ARGS = st.builds(
    ArgSpec, NAMES, st.sampled_from(["const", "host", "device"]), st.sampled_from(sorted(DTYPES)), DIMS, st.sampled_from([b"", b"d" * 32])
)
RESULTS = st.builds(ResultSpec, NAMES, st.sampled_from(sorted(DTYPES)), DIMS, st.booleans())


@settings(max_examples=60, deadline=None)
@given(st.lists(ARGS, max_size=4).map(tuple), st.lists(RESULTS, max_size=4).map(tuple), NAMES, st.binary(max_size=300), st.data())
def test_round_trip(args, results, name, image, data):
    const = [i for i, a in enumerate(args) if a.kind == "const"]
    artifact = Artifact(
        args=args,
        results=results,
        segments=(SegmentSpec(tuple(range(len(args))), (), ()), SegmentSpec((), (0,), tuple(range(len(results))))),
        targets=(TargetCode("x86-64-v2", (), image), TargetCode("x86-64-v3", ("avx2", "fma"), image[::-1])),
        checks=(CheckSpec(3, name, "node"),),
        prepared=(PreparedSpec(tuple(const), "p16", b"\0\1", data.draw(st.booleans())),),
        kernels={"k": (name, "other"), "l": ()},
        steps={
            "v2": (
                StepSpec(
                    "gemm", (name,), (("k",), ("l", "m")), "2*a0d0", ("4", name), (("f32", "a0d0"), ("i64",)), ("4",), (), ("5*a0d0", "6"),
                    (("a0d0", "7"), ()),
                ),
            ),
            "q": (),
        },
        name=name,
        compiler_version="1.2",
    )
    assert unpack(pack(artifact)) == artifact and pack(artifact) == pack(artifact)


def test_digest_depends_on_dtype_dims_and_content():
    x = np.arange(6, dtype=np.float32)
    floats = [x, x.reshape(2, 3), x.reshape(3, 2), x + 1, x[:0], x[0]]
    variants = [(x.view(np.int32), "i32"), *((v, "f32") for v in floats)]
    assert len({tensor_digest(*v) for v in variants}) == len(variants)
    assert tensor_digest(x.reshape(2, 3).T, "f32") == tensor_digest(np.ascontiguousarray(x.reshape(2, 3).T), "f32")


A = toy.artifact()
BROKEN = [
    (replace(A, segments=()), "no segment"),
    (replace(A, targets=()), "no target code"),
    (replace(A, targets=A.targets * 2), "a target occurs twice"),
    (replace(A, segments=A.segments[:1]), "segments send 2 of 3 results"),
    (replace(A, segments=(SegmentSpec((0,), (0,), (0, 1, 2)),)), "segment 0 dependences: index 0 is not in"),
    (replace(A, segments=(SegmentSpec((3,), (), (0, 1, 2)),)), "segment 0 inputs: index 3 is not in"),
    (replace(A, prepared=(PreparedSpec((1,), "l"),)), r"argument 1 \(x\) is not a const argument"),
    (replace(A, checks=(CheckSpec(0, "m", "n"),)), "0 is not a TensorFlow error code"),
    (replace(A, args=(ArgSpec("a", "const", "f33", ()), *A.args[1:])), "dtype 'f33' is not one of"),
    (replace(A, args=(ArgSpec("a", "gpu", "f32", ()), *A.args[1:])), "kind 'gpu' is not one of"),
    (replace(A, args=(ArgSpec("a", "const", "f32", (-2,)), *A.args[1:])), "bad dims"),
    (replace(A, args=(ArgSpec("a", "const", "f32", (), b"x"), *A.args[1:])), "digest of 1 bytes"),
    (replace(A, name="a\0b"), "contains a NUL"),
]


@pytest.mark.parametrize(("artifact", "message"), BROKEN, ids=[m for _, m in BROKEN])
def test_inconsistent_artifacts_are_refused(artifact, message):
    with pytest.raises(ArtifactError, match=message):
        pack(artifact)


def _both_refuse(data: bytes) -> None:
    """Python's reader and the RAL's: both refuse, neither crashes."""
    with pytest.raises(ArtifactError):
        unpack(data)
    with pytest.raises(DiscError) as error:
        Executable.from_bytes(data)
    assert error.value.message


@pytest.mark.parametrize("size", [*range(0, 130, 7), 500, 1000, -64, -1])
def test_truncated(size):
    _both_refuse(pack(A)[:size])


def test_padded():
    _both_refuse(pack(A) + b"\0")


@pytest.mark.parametrize("seed", range(300))
def test_any_flipped_byte_is_found(seed):
    rng = np.random.default_rng(seed)
    data = bytearray(pack(A))
    at = int(rng.integers(len(data))) if seed % 3 else int(rng.integers(900))
    data[at] ^= int(rng.integers(1, 256))
    try:
        _both_refuse(bytes(data))
    except pytest.fail.Exception:
        assert _in_padding(at), f"byte {at}"  # bytes between sections mean nothing


def _in_padding(at: int) -> bool:
    data = pack(A)
    count = struct.unpack_from("<I", data, 12)[0]
    if at < HEADER + ENTRY * count:
        return False
    return not any(o <= at < o + n for o, n in (struct.unpack_from("<QQ", data, HEADER + ENTRY * i + 8) for i in range(count)))


def resealed(data: bytearray) -> bytes:
    """The same bytes with checksums made right: hostile rather than damaged."""
    count = min(struct.unpack_from("<I", data, 12)[0], (len(data) - HEADER) // ENTRY)
    for i in range(count):
        at = HEADER + ENTRY * i
        offset, size = struct.unpack_from("<QQ", data, at + 8)
        struct.pack_into("<I", data, at + 4, zlib.crc32(data[offset : offset + size]))
    struct.pack_into("<I", data, 56, 0)
    struct.pack_into("<I", data, 56, zlib.crc32(data[: HEADER + ENTRY * count]))
    return bytes(data)


META_AT, META_SIZE = struct.unpack_from("<QQ", pack(A), HEADER + 8)
IMAGE_FREE = replace(A, targets=(TargetCode("x86-64-v2", (), b"no image"),))


@pytest.mark.parametrize("seed", range(400))
def test_hostile_bytes_never_crash_a_reader(seed):
    """Mutated signature and tables under valid checksums: whatever parses must still satisfy the rules; the image is not code."""
    rng = np.random.default_rng(seed)
    data = bytearray(pack(IMAGE_FREE))
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(8, len(data)))
        if rng.integers(2):
            data[at] = int(rng.integers(256))
        else:  # a wild count, size or offset
            wild = int(rng.choice(np.array([0, 1, 2**31 - 1, 2**31, 2**32 - 1, len(data)], np.uint64)))
            at = min(at, len(data) - 4)
            struct.pack_into("<I", data, at, wild)
    mutated = resealed(data)
    try:
        parsed = unpack(mutated)
        assert unpack(pack(parsed)) == parsed
    except ArtifactError:
        parsed = None
    with pytest.raises(DiscError) as error:
        Executable.from_bytes(mutated)
    refused = "artefact: " in error.value.message
    if parsed is not None and not any(t.isa.startswith("x86-64-v") for t in parsed.targets):
        assert error.value.message
    elif parsed is not None:  # both readers agree on what is well-formed
        assert not refused or "abi" in error.value.message.lower(), error.value.message


@pytest.mark.parametrize("seed", range(100))
def test_hostile_images_are_refused_or_loaded_in_bounds(seed):
    """ELF headers with wild fields: the RAL's own checks and mapper, which see them before the dynamic linker does."""
    rng = np.random.default_rng(seed)
    image = bytearray(toy.image())
    phdrs = 64 + 56 * struct.unpack_from("<H", image, 56)[0]
    at = int(rng.integers(16, phdrs - 8))
    struct.pack_into("<Q", image, at, int(rng.choice(np.array([0, 1, 2**31, 2**63, 2**64 - 1, len(image), 4096], np.uint64))))
    from disc_tf.runtime.executable import set_loader

    set_loader("mmap")
    try:
        Executable.from_artifact(replace(A, targets=(TargetCode("x86-64-v2", (), bytes(image)),), name=f"hostile {seed}"))
    except DiscError as error:
        assert error.message
    finally:
        set_loader(None)


def test_unknown_sections():
    data = pack(A)

    def with_tag(flags: int) -> bytes:
        changed = bytearray(data)
        changed[HEADER + ENTRY : HEADER + ENTRY + 4] = b"WHAT"  # was KMAP
        struct.pack_into("<I", changed, HEADER + ENTRY + 24, flags)
        return resealed(changed)

    assert unpack(with_tag(0)).args == A.args
    Executable.from_bytes(with_tag(0)).close()
    _both_refuse(with_tag(1))
