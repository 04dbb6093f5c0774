"""A small x86-64 ELF linker: one relocatable object without undefined symbols -> one loadable ET_DYN image.

It accepts exactly what our kernels need (code, read-only data, PC-relative relocations) and refuses everything
else by name. Segments are W^X: headers and read-only data R, code RX, and the dynamic table RW (the loader
relocates it in place). The image carries a GNU build id, the SHA-256 of its contents cut to 20 bytes. Its dynamic symbol
table names every function, so that profilers can: those that are not exported are local, which dynamic linkers skip.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

_PAGE = 4096

_SHT_PROGBITS, _SHT_SYMTAB, _SHT_RELA, _SHT_NOBITS, _SHT_REL = 1, 2, 4, 8, 9
_SHF_WRITE, _SHF_ALLOC, _SHF_EXEC, _SHF_TLS = 1, 2, 4, 0x400
_SHN_UNDEF, _SHN_LORESERVE = 0, 0xFF00
_R_PC32, _R_PLT32, _R_PC64 = 2, 4, 24
_GLOBAL, _FUNCTION = 1 << 4, 2
_DT_NULL, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT = 0, 4, 5, 6, 10, 11
_PT_LOAD, _PT_DYNAMIC, _PT_NOTE, _PT_GNU_STACK = 1, 2, 4, 0x6474E551
_R, _W, _X = 4, 2, 1
_PHDRS = 6


class LinkError(ValueError):
    """The object holds something that a kernel image must not have."""


@dataclass
class _Section:
    name: str
    type: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    address: int = -1  # in the image; -1: not part of it


@dataclass
class _Symbol:
    name: str
    info: int
    section: int
    value: int
    size: int


def _cstr(table: bytes, at: int) -> str:
    return table[at:table.index(b"\0", at)].decode()


def _align(value: int, to: int) -> int:
    return -(-value // to) * to


class _Object:
    """A parsed relocatable object."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise LinkError("not a little-endian ELF64 object")
        kind, machine = struct.unpack_from("<HH", data, 16)
        if (kind, machine) != (1, 62):
            raise LinkError(f"not a relocatable x86-64 object (type {kind}, machine {machine})")
        self.data = data
        (shoff,) = struct.unpack_from("<Q", data, 40)
        entry, count, names_at = struct.unpack_from("<HHH", data, 58)
        raw = [struct.unpack_from("<IIQQQQIIQQ", data, shoff + i * entry) for i in range(count)]
        names = data[raw[names_at][4]:raw[names_at][4] + raw[names_at][5]]
        self.sections = [_Section(_cstr(names, r[0]), r[1], r[2], r[4], r[5], r[6], r[7], r[8]) for r in raw]
        table = next((s for s in self.sections if s.type == _SHT_SYMTAB), None)
        if table is None:
            raise LinkError("the object has no symbol table")
        strings = self.contents(self.sections[table.link])
        symbols = self.contents(table)
        self.symbols = []
        for i in range(0, len(symbols), 24):
            name, info, _other, section, value, size = struct.unpack_from("<IBBHQQ", symbols, i)
            self.symbols.append(_Symbol(_cstr(strings, name), info, section, value, size))

    def contents(self, section: _Section) -> bytes:
        return self.data[section.offset:section.offset + section.size]

    def kept(self) -> list[_Section]:
        """The sections that go into the image; LinkError for any that must not be there."""
        kept = []
        for s in self.sections:
            if not s.flags & _SHF_ALLOC or s.size == 0 or s.name.startswith(".eh_frame"):
                continue
            if s.flags & _SHF_WRITE or s.type == _SHT_NOBITS:
                raise LinkError(f"section {s.name} is writable: kernels have no global state")
            if s.flags & _SHF_TLS:
                raise LinkError(f"section {s.name} is thread-local")
            if s.type != _SHT_PROGBITS:
                raise LinkError(f"section {s.name} has type {s.type:#x}")
            kept.append(s)
        return kept


def _relocate(obj: _Object, image: bytearray) -> None:
    for table in obj.sections:
        if table.type == _SHT_REL:
            raise LinkError(f"section {table.name}: REL relocations are not used on x86-64")
        if table.type != _SHT_RELA:
            continue
        target = obj.sections[table.info]
        if target.address < 0:
            continue
        entries = obj.contents(table)
        for i in range(0, len(entries), 24):
            offset, info, addend = struct.unpack_from("<QQq", entries, i)
            symbol, kind = obj.symbols[info >> 32], info & 0xFFFFFFFF
            if symbol.section == _SHN_UNDEF:
                raise LinkError(f"undefined symbol {symbol.name}: kernels call nothing outside their image")
            if symbol.section >= _SHN_LORESERVE:
                raise LinkError(f"symbol {symbol.name} is absolute or common")
            home = obj.sections[symbol.section]
            if home.address < 0:
                raise LinkError(f"{target.name} refers to the dropped section {home.name}")
            place = target.address + offset
            value = home.address + symbol.value + addend - place
            if kind in (_R_PC32, _R_PLT32):
                if not -(1 << 31) <= value < 1 << 31:
                    raise LinkError(f"the image is too large: {symbol.name} is out of reach")
                struct.pack_into("<i", image, place, value)
            elif kind == _R_PC64:
                struct.pack_into("<q", image, place, value)
            else:
                raise LinkError(f"relocation type {kind} against {symbol.name or home.name}: only PC-relative ones")


def _exported(obj: _Object, exports: Sequence[str]) -> list[_Symbol]:
    defined = {s.name: s for s in obj.symbols if 0 < s.section < _SHN_LORESERVE and s.info >> 4 in (1, 2)}
    missing = [name for name in exports if name not in defined]
    if missing:
        raise LinkError(f"symbols to export are not defined: {', '.join(missing)}")
    return [defined[name] for name in exports]


def _local_functions(obj: _Object, exports: Sequence[str]) -> list[_Symbol]:
    """The functions of the image that are not exported, by address."""
    found = [
        s for s in obj.symbols
        if s.info & 15 == _FUNCTION and s.name and s.name not in exports and 0 < s.section < _SHN_LORESERVE
        and obj.sections[s.section].flags & _SHF_EXEC
    ]  # fmt: skip
    return sorted(found, key=lambda s: (s.section, s.value))


def link(data: bytes, exports: Sequence[str]) -> bytes:
    """Link one object.

    Args:
        data: the ELF object, as LLVM wrote it (reloc pic).
        exports: names of the functions to be found by dlsym, in this order.
    Returns the image's bytes. Raises LinkError on undefined symbols, writable data, or any relocation that is not
    PC-relative.
    """
    obj = _Object(data)
    kept = obj.kept()
    exported = _exported(obj, exports)
    local = _local_functions(obj, exports)
    symbols = [*local, *exported]  # local ones come first, as everywhere in ELF
    strings, name_at = b"\0", []
    for s in symbols:
        name_at.append(len(strings))
        strings += s.name.encode() + b"\0"
    count = len(symbols) + 1

    note_at = 64 + 56 * _PHDRS
    symbol_at = _align(note_at + 16 + 20, 8)
    hash_at = symbol_at + 24 * count
    string_at = hash_at + 4 * (3 + count)
    end = string_at + len(strings)

    def place(sections: list[_Section], at: int) -> int:
        for s in sections:
            s.address = at = _align(at, max(s.align, 1))
            at += s.size
        return at

    read_end = place([s for s in kept if not s.flags & _SHF_EXEC], end)
    code_at = _align(read_end, _PAGE)
    code_end = place([s for s in kept if s.flags & _SHF_EXEC], code_at)
    dynamic_at = _align(code_end, _PAGE)
    dynamic = [(_DT_HASH, hash_at), (_DT_STRTAB, string_at), (_DT_SYMTAB, symbol_at), (_DT_STRSZ, len(strings)),
               (_DT_SYMENT, 24), (_DT_NULL, 0)]
    total = dynamic_at + 16 * len(dynamic)

    image = bytearray(total)
    for s in kept:
        image[s.address:s.address + s.size] = obj.contents(s)
    _relocate(obj, image)
    for i, s in enumerate(symbols):
        address = obj.sections[s.section].address + s.value
        # Section index 1: any defined one will do for the loader.
        info = (_GLOBAL if i >= len(local) else 0) | s.info & 15
        struct.pack_into("<IBBHQQ", image, symbol_at + 24 * (i + 1), name_at[i], info, 0, 1, address, s.size)
    # SysV hash table with one bucket: the images export a handful of symbols. Local ones are in no chain.
    first = len(local) + 1
    chain = [1, count, first if exported else 0, 0, *(i + 1 if first <= i < count - 1 else 0 for i in range(1, count))]
    struct.pack_into(f"<{len(chain)}I", image, hash_at, *chain)
    image[string_at:string_at + len(strings)] = strings
    for i, entry in enumerate(dynamic):
        struct.pack_into("<QQ", image, dynamic_at + 16 * i, *entry)

    headers = [
        (_PT_LOAD, _R, 0, read_end, _PAGE),
        (_PT_LOAD, _R | _X, code_at, code_end - code_at, _PAGE),
        (_PT_LOAD, _R | _W, dynamic_at, total - dynamic_at, _PAGE),
        (_PT_DYNAMIC, _R | _W, dynamic_at, total - dynamic_at, 8),
        (_PT_NOTE, _R, note_at, 36, 4),
        (_PT_GNU_STACK, _R | _W, 0, 0, 16),
    ]
    image[:64] = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, len(headers), 64, 0, 0)
    for i, (kind, flags, at, size, align) in enumerate(headers):
        struct.pack_into("<IIQQQQQQ", image, 64 + 56 * i, kind, flags, at, at, at, size, size, align)
    struct.pack_into("<III4s", image, note_at, 4, 20, 3, b"GNU\0")
    image[note_at + 16:note_at + 36] = hashlib.sha256(image).digest()[:20]
    return bytes(image)


def build_id(image: bytes) -> bytes:
    """The 20-byte GNU build id of an image that `link` made."""
    at = 64 + 56 * _PHDRS
    if image[:4] != b"\x7fELF" or image[at:at + 16] != struct.pack("<III4s", 4, 20, 3, b"GNU\0"):
        raise LinkError("not an image written by this linker")
    return image[at + 16:at + 36]
