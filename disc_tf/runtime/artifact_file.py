"""Stand-alone files (``.disc``): an artefact with the values of its constants, to be mapped and not read.

Of packages imports numpy only.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Mapping

import numpy as np

from disc_tf.atomic import replacing
from disc_tf.runtime import artifact as form
from disc_tf.runtime.artifact import Artifact, ArtifactError, unpack

SUFFIX = ".disc"
_PAGE = 4096
_CHUNK = 16 << 20


def write_file(path: str | os.PathLike[str], artifact: Artifact, constants: Mapping[int, np.ndarray]) -> None:
    """Write ``artifact`` with the values of all its const arguments, by argument; readers see the old file or the new one, never a half.

    Raises ArtifactError if a value is missing or does not fit its argument, OSError.
    """
    for i, x in enumerate(artifact.args):
        if x.kind != "const":
            continue
        if i not in constants:
            raise ArtifactError(f"constant {x.name} has no value")
        value = constants[i]
        if value.shape != x.dims or value.dtype.itemsize != form.DTYPES[x.dtype][1]:
            raise ArtifactError(f"constant {x.name}: {x.dtype}{list(x.dims)} is needed, {value.dtype}{list(value.shape)} was given")
        if not x.digest:
            raise ArtifactError(f"constant {x.name} has no digest")
    with replacing(os.path.realpath(path)) as f:
        _write(f, artifact, constants)


def _write(f, artifact: Artifact, constants: Mapping[int, np.ndarray]) -> None:
    order = sorted(constants)
    sections = form.sections_of(artifact)
    # where everything lies is known before the bytes are: sizes do not depend on contents
    count = len(sections) + 2
    at = form.HEADER.size + form.ENTRY.size * count
    table_size = 4 + len(order) * (4 + 4 + 8 + 8)
    places: list[int] = []
    for size in (*(len(p) for _, _, p in sections), table_size):
        at += -at % form.ALIGN
        places.append(at)
        at += size
    start = at + -at % _PAGE
    at, offsets = start, {}
    for i in order:
        at += -at % form.ALIGN
        offsets[i] = at
        at += constants[i].nbytes
    total = at
    rows = [struct.pack("<IIqq", 20, i, offsets[i], constants[i].nbytes) for i in order]
    sections = [*sections, (b"CNST", form.FLAG_REQUIRED, struct.pack("<I", len(rows)) + b"".join(rows))]
    crc = 0
    for piece in _data(order, constants, offsets, start):
        crc = zlib.crc32(piece, crc)
    entries = [
        form.ENTRY.pack(tag, zlib.crc32(payload), place, len(payload), flags, 0)
        for (tag, flags, payload), place in zip(sections, places, strict=True)
    ]
    table = b"".join([*entries, form.ENTRY.pack(b"DATA", crc, start, total - start, form.FLAG_BULK, 0)])
    digest = hashlib.sha256(table)
    f.write(b"\0" * form.HEADER.size + table)
    at = form.HEADER.size + len(table)

    def put(piece: bytes | memoryview) -> None:
        digest.update(piece)
        f.write(piece)

    for (_, _, payload), place in zip(sections, places, strict=True):
        put(b"\0" * (place - at) + payload)
        at = place + len(payload)
    put(b"\0" * (start - at))
    for piece in _data(order, constants, offsets, start):
        put(piece)
    f.seek(0)
    f.write(form.header(table, total, digest.digest()))


def _data(order: list[int], constants: Mapping[int, np.ndarray], offsets: Mapping[int, int], start: int) -> Iterator[bytes | memoryview]:
    """The bytes of the DATA section in pieces."""
    at = start
    for i in order:
        yield b"\0" * (offsets[i] - at)
        flat = np.ascontiguousarray(constants[i]).reshape(-1)
        at = offsets[i] + flat.nbytes
        if flat.nbytes:
            whole = flat.view(np.uint8)
            for begin in range(0, whole.size, _CHUNK):
                yield whole[begin : begin + _CHUNK].data


def read_file(path: str | os.PathLike[str]) -> Artifact:
    """The artefact of a file; constants are located, not read. ArtifactError, OSError."""
    return unpack(_mapped(path))


def verify_file(path: str | os.PathLike[str]) -> None:
    """Read every constant and compare it with its digest. ArtifactError names the first that differs."""
    data = _mapped(path)
    artifact = unpack(data)
    for c in artifact.constants:
        x = artifact.args[c.arg]
        if form.content_digest(x.dtype, x.dims, data[c.offset : c.offset + c.size]) != x.digest:
            raise ArtifactError(f"{os.fspath(path)}: constant {x.name} does not match its digest, the file is corrupt")


def _mapped(path: str | os.PathLike[str]) -> memoryview:
    """The file in memory; unmapped with the last view of it."""
    with open(path, "rb") as f:
        if not os.fstat(f.fileno()).st_size:
            raise ArtifactError(f"{os.fspath(path)} is empty")
        return memoryview(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))


__all__ = ["SUFFIX", "read_file", "verify_file", "write_file"]
