"""The artefact: what `executable` of a DiscLaunch node holds, as dataclasses and as bytes.

Layout (little-endian)::

    header   64 bytes   magic "DISCTF\\0\\1", u32 format, u32 sections, u64 total size, sha256 of all that follows
                        the header, u32 crc32 of header (this field zero) and table, u32 zero
    table    32 bytes a section   char[4] tag, u32 crc32 of the payload, u64 offset, u64 size, u32 flags, u32 zero
    payloads 64-byte aligned

Sections: one ``META`` (signature, checks, segments, prepared entries), at most one ``KMAP`` (kernel -> nodes), at most one ``STEP``
(what each step of the program has to do; of code compiled for traces, nothing else reads it), at most one ``SIGN``
(what a service signed of it: statement and signature, looked at under a trust policy only), at most one ``UNUS`` (names of inputs of the
model that nothing reads) and one ``CODE`` per target; in a stand-alone
file also ``CNST`` (the table of constants) and ``DATA`` (their bytes, 64-byte aligned in the file; `artifact_file` writes both). A reader
skips tags it does not know unless flag bit 0 (required) is set; payloads with flag bit 1 (bulk) are mapped and not summed up when loaded.
Inside a payload every record is preceded by its u32 size, so that fields may be appended without breaking older readers.

The C++ reader of the same format is ``ral/src/artifact.cc``; both refuse anything out of bounds.
Imports the standard library and numpy only.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

MAGIC = b"DISCTF\x00\x01"
#: how every version of the format begins
PREFIX = MAGIC[:6]
FORMAT_VERSION = 1
ABI_VERSION = 1
MAX_SECTIONS = 256
MAX_RANK = 64
HEADER = struct.Struct("<8sIIQ32sII")
ENTRY = struct.Struct("<4sIQQII")
FLAG_REQUIRED = 1
FLAG_BULK = 2
ALIGN = 64

#: dtype name -> (code in the artefact, bytes an element, TF_DataType)
DTYPES: dict[str, tuple[int, int, int]] = {
    "f16": (1, 2, 19), "bf16": (2, 2, 14), "f32": (3, 4, 1), "f64": (4, 8, 2),
    "i8": (5, 1, 6), "i16": (6, 2, 5), "i32": (7, 4, 3), "i64": (8, 8, 9),
    "u8": (9, 1, 4), "u16": (10, 2, 17), "u32": (11, 4, 22), "u64": (12, 8, 23), "bool": (13, 1, 10),
}  # fmt: skip
_DTYPE_NAMES = {code: name for name, (code, _, _) in DTYPES.items()}
KINDS = ("const", "host", "device")
_KNOWN = (b"META", b"KMAP", b"STEP", b"CODE", b"CNST", b"SIGN", b"UNUS")

T = TypeVar("T")


class ArtifactError(ValueError):
    """The bytes are not a well-formed artefact, or the Artifact breaks a rule of the format."""


def newer(what: str, why: str, made_by: str = "") -> ArtifactError:
    """The error for what a later version wrote, to be raised."""
    by = f" ({made_by})" if made_by else ""
    return ArtifactError(f"{what}: a newer disc_tf{by} made it: {why}; upgrade disc-tf here, or optimize the model again with this version")


@dataclass(frozen=True)
class ArgSpec:
    """One argument of the executable.

    kind: "const" (graph constant or variable: inputs of `prepare`), "host" (scalars and shape tensors in host memory)
    or "device". dims: -1 for unknown. digest: `tensor_digest` of a graph constant's content, or b"" where the
    content is not known at compile time.
    """

    name: str
    kind: str
    dtype: str
    dims: tuple[int, ...]
    digest: bytes = b""


@dataclass(frozen=True)
class ResultSpec:
    """One result; dims: -1 for unknown; host: it lies in host memory (``host_results`` of the op)."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    host: bool = False


@dataclass(frozen=True)
class CheckSpec:
    """A run-time check: TF status code, message and the original node. Its id is its index in `Artifact.checks`."""

    code: int
    message: str
    node: str


@dataclass(frozen=True)
class SegmentSpec:
    """Segment of the host program: argument indices it needs, earlier segments it needs, results that it sends."""

    inputs: tuple[int, ...]
    dependences: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class PreparedSpec:
    """A packed constant: const arguments that it reads, layout id and hash of the code that makes it.

    Entries of different executables with equal layout, non-empty code_hash, ISA and input digests are shared.
    optional: the host program has an unpacked variant for when `prepared()` gives null.
    """

    args: tuple[int, ...]
    layout: str
    code_hash: bytes = b""
    optional: bool = False


@dataclass(frozen=True)
class ConstantSpec:
    """Where a stand-alone file has the value of const argument ``arg``: ``size`` bytes, row-major, ``offset`` bytes into the file."""

    arg: int
    offset: int
    size: int


@dataclass(frozen=True)
class TargetCode:
    """Code for one target: isa "x86-64-v3", the CPU features that it needs (/proc/cpuinfo names), ELF .so image."""

    isa: str
    features: tuple[str, ...]
    image: bytes


@dataclass(frozen=True)
class SignedStatement:
    """What a service said of the code, and its Ed25519 signature (``Signature`` of proto/disc_tf/v1). `disc_tf.remote.trust` checks it."""

    statement: bytes
    signature: bytes


@dataclass(frozen=True)
class StepSpec:
    """A step of a program in its order: kind of fusion, original nodes, the kernels of each of its forms.

    In the argument dims (``a<i>d<k>``: axis k of argument i) operations of its products ("" if it has none), bytes that it has to move at
    least (a sum), and dtype and dims of what it makes. What predictions need besides (`report.KernelReport` says it): ``weights``,
    ``picked``, ``operations``; ``parts``: of each form, tasks and grain of a kernel, then those of the next one.
    """

    kind: str
    nodes: tuple[str, ...]
    variants: tuple[tuple[str, ...], ...]
    flops: str = ""
    traffic: tuple[str, ...] = ()
    results: tuple[tuple[str, ...], ...] = ()
    weights: tuple[str, ...] = ()
    picked: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    parts: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Artifact:
    """A compiled cluster. `kernels` maps a kernel's symbol to the original nodes it computes (debug, reports); `steps` has for each
    target, by its ISA, the steps of its uniform bodies: of code compiled for traces, else nothing."""

    args: tuple[ArgSpec, ...]
    results: tuple[ResultSpec, ...]
    segments: tuple[SegmentSpec, ...]
    targets: tuple[TargetCode, ...]
    checks: tuple[CheckSpec, ...] = ()
    prepared: tuple[PreparedSpec, ...] = ()
    kernels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    name: str = ""
    compiler_version: str = ""
    abi_version: int = ABI_VERSION
    #: of a stand-alone file; `pack` leaves them out
    constants: tuple[ConstantSpec, ...] = ()
    signed: SignedStatement | None = None
    steps: dict[str, tuple[StepSpec, ...]] = field(default_factory=dict)
    #: inputs of the model that nothing in it reads: a runner takes values of them, and does without
    unused: tuple[str, ...] = ()


def tensor_digest(array: np.ndarray, dtype: str) -> bytes:
    """sha256 of dtype name, dims and row-major bytes: identity of a constant's content (32 bytes)."""
    array = np.asarray(array, order="C")
    return content_digest(dtype, array.shape, array.reshape(-1).view(np.uint8).data)


def content_digest(dtype: str, dims: Sequence[int], data: memoryview) -> bytes:
    """`tensor_digest` of row-major bytes."""
    h = hashlib.sha256(f"{dtype}{list(dims)}".encode())
    h.update(data)
    return h.digest()


# ---------------------------------------------------------------------------------------------------------- writing


def _u32(v: int) -> bytes:
    if not 0 <= v < 2**32:
        raise ArtifactError(f"{v} does not fit an unsigned 32-bit field")
    return struct.pack("<I", v)


def _bytes(b: bytes) -> bytes:
    return _u32(len(b)) + b


def _str(s: str) -> bytes:
    data = s.encode()
    if b"\0" in data:
        raise ArtifactError(f"name {s!r} contains a NUL character")
    return _bytes(data)


def _list(items: Iterable[bytes]) -> bytes:
    items = list(items)
    return _u32(len(items)) + b"".join(items)


def _record(*fields: bytes) -> bytes:
    return _bytes(b"".join(fields))


def _indices(values: Sequence[int]) -> bytes:
    return _list(_u32(v) for v in values)


def _dims(dims: Sequence[int]) -> bytes:
    return _list(struct.pack("<q", d) for d in dims)


def _write_meta(a: Artifact) -> bytes:
    return _record(
        _str(a.compiler_version),
        _u32(a.abi_version),
        _str(a.name),
        _list(
            _record(_str(x.name), bytes([KINDS.index(x.kind), DTYPES[x.dtype][0]]), _dims(x.dims), _bytes(x.digest))
            for x in a.args
        ),
        _list(
            _record(_str(r.name), bytes([DTYPES[r.dtype][0], int(r.host)]), _dims(r.dims)) for r in a.results
        ),
        _list(_record(struct.pack("<i", c.code), _str(c.message), _str(c.node)) for c in a.checks),
        _list(
            _record(_indices(s.inputs), _indices(s.dependences), _indices(s.outputs)) for s in a.segments
        ),
        _list(
            _record(_indices(p.args), _str(p.layout), _bytes(p.code_hash), bytes([int(p.optional)]))
            for p in a.prepared
        ),
    )


def _write_kernels(kernels: dict[str, tuple[str, ...]]) -> bytes:
    return _list(_record(_str(k), _list(_str(n) for n in nodes)) for k, nodes in kernels.items())


def _texts(items: Iterable[str]) -> bytes:
    return _list(map(_str, items))


def _write_steps(steps: dict[str, tuple[StepSpec, ...]]) -> bytes:
    def one(s: StepSpec) -> bytes:
        lists = (_list(_record(_texts(v)) for v in group) for group in (s.variants, s.results, s.parts))
        return _record(_str(s.kind), _str(s.flops), *map(_texts, (s.nodes, s.traffic, s.weights, s.picked, s.operations)), *lists)

    return _list(_record(_str(isa), _list(map(one, found))) for isa, found in steps.items())


def _read_steps(payload: memoryview) -> dict[str, tuple[StepSpec, ...]]:
    def texts(r: _Reader) -> tuple[str, ...]:
        return r.list(r.text)

    def one(r: _Reader) -> StepSpec:
        kind, flops = r.text(), r.text()
        nodes, traffic, weights, picked, operations = (texts(r) for _ in range(5))
        variants, results, parts = (r.list(lambda: texts(r.record())) for _ in range(3))
        return StepSpec(kind, nodes, variants, flops, traffic, results, weights, picked, operations, parts)

    found: dict[str, tuple[StepSpec, ...]] = {}
    section = _Reader(payload, "STEP section")
    for r in section.list(section.record):
        isa = r.text()
        found[isa] = r.list(lambda r=r: one(r.record()))
    return found


def _write_code(t: TargetCode) -> bytes:
    return _record(_str(t.isa), _list(_str(f) for f in t.features)) + _bytes(t.image)


def pack(artifact: Artifact) -> bytes:
    """Artefact bytes, without constants; deterministic. Raises ArtifactError if the artifact is inconsistent."""
    return headed(*lay_out(sections_of(artifact)))


def lay_out(sections: Sequence[tuple[bytes, int, bytes]]) -> tuple[bytes, bytes]:
    """The section table of (tag, flags, payload)s, and the aligned payloads that follow it."""
    start = HEADER.size + ENTRY.size * len(sections)
    table, body = b"", b""
    for tag, flags, payload in sections:
        body += b"\0" * (-(start + len(body)) % ALIGN)
        table += ENTRY.pack(tag, zlib.crc32(payload), start + len(body), len(payload), flags, 0)
        body += payload
    return table, body


def headed(table: bytes, body: bytes) -> bytes:
    """A section table and the payloads, with the header that belongs before them."""
    return header(table, HEADER.size + len(table) + len(body), hashlib.sha256(table + body).digest()) + table + body


def header(table: bytes, total: int, digest: bytes) -> bytes:
    """The header before a section table; ``total``: bytes of the whole, ``digest``: sha256 of all that follows the header."""
    fields = (MAGIC, FORMAT_VERSION, len(table) // ENTRY.size, total, digest)
    return HEADER.pack(*fields, zlib.crc32(HEADER.pack(*fields, 0, 0) + table), 0)


def sections_of(artifact: Artifact) -> list[tuple[bytes, int, bytes]]:
    """(tag, flags, payload) of the sections of an artefact without constants. Raises ArtifactError."""
    validate(artifact)
    sections = [(b"META", FLAG_REQUIRED, _write_meta(artifact))]
    if artifact.kernels:
        sections.append((b"KMAP", 0, _write_kernels(artifact.kernels)))
    if artifact.steps:
        sections.append((b"STEP", 0, _write_steps(artifact.steps)))
    if artifact.unused:
        sections.append((b"UNUS", 0, _texts(artifact.unused)))
    sections += [(b"CODE", FLAG_REQUIRED, _write_code(t)) for t in artifact.targets]
    if artifact.signed is not None:
        sections.append((b"SIGN", 0, _record(_bytes(artifact.signed.statement), _bytes(artifact.signed.signature))))
    if len(sections) > MAX_SECTIONS:
        raise ArtifactError(f"{len(sections)} sections, at most {MAX_SECTIONS}")
    return sections


# ---------------------------------------------------------------------------------------------------------- reading


class _Reader:
    """Cursor over bytes; every read is bounds-checked. `what` names the part in errors."""

    def __init__(self, data: bytes | memoryview, what: str) -> None:
        self.data, self.pos, self.what = memoryview(data), 0, what

    def take(self, n: int) -> memoryview:
        if n > len(self.data) - self.pos:
            raise ArtifactError(f"{self.what}: {n} bytes wanted at {self.pos}, {len(self.data) - self.pos} are left")
        self.pos += n
        return self.data[self.pos - n : self.pos]

    def u8(self) -> int:
        return self.take(1)[0]

    def u32(self) -> int:
        return struct.unpack("<I", self.take(4))[0]

    def i32(self) -> int:
        return struct.unpack("<i", self.take(4))[0]

    def i64(self) -> int:
        return struct.unpack("<q", self.take(8))[0]

    def blob(self) -> bytes:
        return bytes(self.take(self.u32()))

    def text(self) -> str:
        try:
            return self.blob().decode()
        except UnicodeDecodeError as e:
            raise ArtifactError(f"{self.what}: text is not UTF-8") from e

    def record(self) -> _Reader:
        return _Reader(self.take(self.u32()), self.what)

    def list(self, item: Callable[[], T], least: int = 4) -> tuple[T, ...]:
        """Count and items; `least` bytes an item, so that a wild count cannot make us allocate."""
        n = self.u32()
        if n * least > len(self.data) - self.pos:
            raise ArtifactError(f"{self.what}: list of {n} items does not fit")
        return tuple(item() for _ in range(n))

    def indices(self) -> tuple[int, ...]:
        return self.list(self.u32)

    def dims(self) -> tuple[int, ...]:
        return self.list(self.i64, 8)

    def dtype(self) -> str:
        code = self.u8()
        if code not in _DTYPE_NAMES:
            raise ArtifactError(f"{self.what}: unknown dtype code {code}")
        return _DTYPE_NAMES[code]

    def kind(self) -> str:
        code = self.u8()
        if code >= len(KINDS):
            raise ArtifactError(f"{self.what}: unknown argument kind {code}")
        return KINDS[code]


def _read_arg(r: _Reader) -> ArgSpec:
    return ArgSpec(r.text(), r.kind(), r.dtype(), r.dims(), r.blob())


def _read_result(r: _Reader) -> ResultSpec:
    name, dtype, host = r.text(), r.dtype(), r.u8()
    return ResultSpec(name, dtype, r.dims(), bool(host))


def _read_check(r: _Reader) -> CheckSpec:
    return CheckSpec(r.i32(), r.text(), r.text())


def _read_segment(r: _Reader) -> SegmentSpec:
    return SegmentSpec(r.indices(), r.indices(), r.indices())


def _read_prepared(r: _Reader) -> PreparedSpec:
    return PreparedSpec(r.indices(), r.text(), r.blob(), bool(r.u8()))


def _read_code(payload: memoryview) -> TargetCode:
    r = _Reader(payload, "CODE section")
    head = r.record()
    return TargetCode(head.text(), head.list(head.text), r.blob())


def _read_sections(data: memoryview) -> list[tuple[bytes, memoryview]]:
    if data[:7] == MAGIC[:7] and len(data) > 7 and data[7] > MAGIC[7]:
        raise newer("artefact", f"its layout is {data[7]}, this version reads {MAGIC[7]}")
    if len(data) < HEADER.size or data[:8] != MAGIC:
        raise ArtifactError("not a disc_tf artefact (wrong magic number)")
    magic, version, count, total, digest, crc, zero = HEADER.unpack_from(data)
    if version > FORMAT_VERSION:
        raise newer("artefact", f"its format is {version}, this version reads {FORMAT_VERSION}")
    if version != FORMAT_VERSION:
        raise ArtifactError(f"artefact format {version} does not exist: the artefact is corrupt")
    if total != len(data):
        raise ArtifactError(f"artefact is truncated or padded: {len(data)} bytes, its header says {total}")
    if count > MAX_SECTIONS or HEADER.size + count * ENTRY.size > total:
        raise ArtifactError(f"section table of {count} entries does not fit")
    table = data[HEADER.size : HEADER.size + count * ENTRY.size]
    if zlib.crc32(HEADER.pack(magic, version, count, total, digest, 0, zero) + bytes(table)) != crc:
        raise ArtifactError("header checksum does not match: the artefact is corrupt")
    sections = []
    for tag, want, offset, size, flags, _ in ENTRY.iter_unpack(table):
        if offset < HEADER.size + len(table) or offset > total or size > total - offset:
            raise ArtifactError(f"section {tag!r} lies outside the artefact")
        payload = data[offset : offset + size]
        bulk = flags & FLAG_BULK and tag not in _KNOWN
        if not bulk and zlib.crc32(payload) != want:
            raise ArtifactError(f"section {tag!r}: checksum does not match, the artefact is corrupt")
        if tag not in _KNOWN and flags & FLAG_REQUIRED:
            raise newer("artefact", f"its section {tag!r} is required, and not known to this version")
        sections.append((tag, payload))
    return sections


def unpack(data: bytes | memoryview) -> Artifact:
    """Parses and checks artefact bytes. Raises ArtifactError with the reason; never reads out of bounds. Constants are not looked at."""
    view = memoryview(data).cast("B")
    sections = _read_sections(view)
    metas = [p for tag, p in sections if tag == b"META"]
    if len(metas) != 1:
        raise ArtifactError(f"{len(metas)} META sections, one is needed")
    m = _Reader(metas[0], "META section").record()
    version, abi, name = m.text(), m.u32(), m.text()
    if abi > ABI_VERSION:
        raise newer("artefact", f"its runtime ABI is {abi}, this version has {ABI_VERSION}", version)
    args = m.list(lambda: _read_arg(m.record()))
    results = m.list(lambda: _read_result(m.record()))
    checks = m.list(lambda: _read_check(m.record()))
    segments = m.list(lambda: _read_segment(m.record()))
    prepared = m.list(lambda: _read_prepared(m.record()))
    kernels: dict[str, tuple[str, ...]] = {}
    for tag, payload in sections:
        if tag == b"KMAP":
            k = _Reader(payload, "KMAP section")
            for r in k.list(k.record):
                symbol = r.text()
                kernels[symbol] = r.list(r.text)
    steps = next((_read_steps(p) for tag, p in sections if tag == b"STEP"), {})
    idle = next((_Reader(p, "UNUS section") for tag, p in sections if tag == b"UNUS"), None)
    artifact = Artifact(
        args=args, results=results, segments=segments, checks=checks, prepared=prepared, kernels=kernels, steps=steps,
        targets=tuple(_read_code(p) for tag, p in sections if tag == b"CODE"),
        name=name, compiler_version=version, abi_version=abi, constants=_read_constants(sections),
        signed=_read_signed(sections), unused=idle.list(idle.text) if idle is not None else (),
    )  # fmt: skip
    validate(artifact)
    _check_constants(artifact, len(view))
    return artifact


def _read_constants(sections: Sequence[tuple[bytes, memoryview]]) -> tuple[ConstantSpec, ...]:
    found: list[ConstantSpec] = []
    for tag, payload in sections:
        if tag == b"CNST":
            table = _Reader(payload, "CNST section")
            found += [ConstantSpec(r.u32(), r.i64(), r.i64()) for r in table.list(table.record)]
    return tuple(found)


def _read_signed(sections: Sequence[tuple[bytes, memoryview]]) -> SignedStatement | None:
    found = [p for tag, p in sections if tag == b"SIGN"]
    if len(found) > 1:
        raise ArtifactError("more than one signature")
    if not found:
        return None
    r = _Reader(found[0], "SIGN section").record()
    return SignedStatement(r.blob(), r.blob())


# --------------------------------------------------------------------------------------------------------- checking


def _check_indices(what: str, values: Sequence[int], limit: int) -> None:
    for v in values:
        if not 0 <= v < limit:
            raise ArtifactError(f"{what}: index {v} is not in [0, {limit})")
    if len(set(values)) != len(values):
        raise ArtifactError(f"{what}: an index occurs twice")


def _check_tensor(what: str, dtype: str, dims: Sequence[int]) -> None:
    if dtype not in DTYPES:
        raise ArtifactError(f"{what}: dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    if len(dims) > MAX_RANK or any(d < -1 for d in dims):
        raise ArtifactError(f"{what}: bad dims {tuple(dims)}")


def _check_constants(a: Artifact, total: int) -> None:
    _check_indices("table of constants", [c.arg for c in a.constants], len(a.args))
    for c in a.constants:
        x = a.args[c.arg]
        fixed = x.kind == "const" and x.digest and all(d >= 0 for d in x.dims)
        if not fixed or c.size != math.prod(x.dims) * DTYPES[x.dtype][1]:
            raise ArtifactError(f"constant {x.name} does not fit its argument")
        if not 0 <= c.offset <= total - c.size or c.offset % ALIGN:
            raise ArtifactError(f"constant {x.name} lies outside the file")


def validate(a: Artifact) -> None:
    """Raises ArtifactError unless the artefact's parts fit together (the RAL checks the same at load)."""
    for i, x in enumerate(a.args):
        _check_tensor(f"argument {i} ({x.name})", x.dtype, x.dims)
        if x.kind not in KINDS:
            raise ArtifactError(f"argument {i} ({x.name}): kind {x.kind!r} is not one of {', '.join(KINDS)}")
        if len(x.digest) not in (0, 32):
            raise ArtifactError(f"argument {i} ({x.name}): digest of {len(x.digest)} bytes")
    for i, r in enumerate(a.results):
        _check_tensor(f"result {i} ({r.name})", r.dtype, r.dims)
    for i, c in enumerate(a.checks):
        if not 1 <= c.code <= 16:
            raise ArtifactError(f"check {i} ({c.node}): {c.code} is not a TensorFlow error code")
    if not a.segments:
        raise ArtifactError("there is no segment")
    sent: list[int] = []
    for i, s in enumerate(a.segments):
        _check_indices(f"segment {i} inputs", s.inputs, len(a.args))
        _check_indices(f"segment {i} dependences", s.dependences, i)
        sent += s.outputs
    _check_indices("segment outputs", sent, len(a.results))
    if len(sent) != len(a.results):
        raise ArtifactError(f"segments send {len(sent)} of {len(a.results)} results")
    for i, p in enumerate(a.prepared):
        _check_indices(f"prepared entry {i}", p.args, len(a.args))
        for j in p.args:
            if a.args[j].kind != "const":
                raise ArtifactError(f"prepared entry {i}: argument {j} ({a.args[j].name}) is not a const argument")
    if not a.targets:
        raise ArtifactError("there is no target code")
    if a.signed is not None and not (a.signed.statement and a.signed.signature):
        raise ArtifactError("its signature is empty")
    isas = [t.isa for t in a.targets]
    if len(set(isas)) != len(isas):
        raise ArtifactError(f"a target occurs twice: {', '.join(isas)}")
