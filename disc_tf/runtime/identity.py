"""The identity of an artefact's code: what a signature speaks of.

A remote compiler sees pseudonyms and no weights; the client puts its own names and the digests of its constants into the artefact. The
identity covers everything else: what runs, on what types, in which order. It does not change by `rename` and `fill in`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

from disc_tf.runtime.artifact import Artifact

_DOMAIN = b"disc_tf.code_identity.v1\0"


def _number(value: int) -> bytes:
    return struct.pack("<q", value)


def _blob(data: bytes) -> bytes:
    return _number(len(data)) + data


def _text(text: str) -> bytes:
    return _blob(text.encode())


def _list(items: Iterable[bytes]) -> bytes:
    items = list(items)
    return _number(len(items)) + b"".join(items)


def _numbers(values: Iterable[int]) -> bytes:
    return _list(_number(v) for v in values)


def code_identity(artifact: Artifact) -> bytes:
    """SHA-256 (32 bytes) over versions; kind, dtype and dims of each argument; dtype, dims and place of each result; codes of the checks;
    segments; prepared entries; instruction set, features and image of each target.

    Not in it: the artefact's name, names of arguments and results, digests of arguments, nodes and messages of checks, kernel names,
    steps, what was signed.
    Every part is preceded by its length, so different artefacts have different encodings.
    """
    h = hashlib.sha256(_DOMAIN)
    h.update(_text(artifact.compiler_version) + _number(artifact.abi_version))
    h.update(_list(_text(x.kind) + _text(x.dtype) + _numbers(x.dims) for x in artifact.args))
    h.update(_list(_text(r.dtype) + _numbers(r.dims) + _number(r.host) for r in artifact.results))
    h.update(_numbers(c.code for c in artifact.checks))
    h.update(_list(_numbers(s.inputs) + _numbers(s.dependences) + _numbers(s.outputs) for s in artifact.segments))
    h.update(_list(_numbers(p.args) + _text(p.layout) + _blob(p.code_hash) + _number(p.optional) for p in artifact.prepared))
    h.update(_number(len(artifact.targets)))
    for t in artifact.targets:
        h.update(_text(t.isa) + _list(map(_text, t.features)) + _number(len(t.image)))
        h.update(t.image)
    return h.digest()
