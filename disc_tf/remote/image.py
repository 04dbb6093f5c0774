"""The grammar of a code image: exactly what `disc_tf.codegen.elf.link` writes, and nothing that a loader acts on besides.

An image that passes has three segments (read-only data, code, the dynamic table; none writable and executable), one exported function, no
relocation, no undefined symbol, no other library, no initialiser, no thread-local data, and the build id of its content. What the machine
code does is another matter: a signature tells where it comes from (docs/service.md).
"""

from __future__ import annotations

import hashlib
import struct

PAGE = 4096
ENTRY_POINT = "disc_executable_query"
_R, _W, _X = 4, 2, 1
_LOAD, _DYNAMIC, _NOTE, _STACK = 1, 2, 4, 0x6474E551
#: (kind, flags, alignment) of the program headers, in order
_HEADERS = (
    (_LOAD, _R, PAGE), (_LOAD, _R | _X, PAGE), (_LOAD, _R | _W, PAGE), (_DYNAMIC, _R | _W, 8), (_NOTE, _R, 4), (_STACK, _R | _W, 16),
)  # fmt: skip
_NOTE_AT = 64 + 56 * len(_HEADERS)
_NOTE_SIZE, _ID_SIZE = 36, 20
_HASH, _STRTAB, _SYMTAB, _STRSZ, _SYMENT, _NULL = 4, 5, 6, 10, 11, 0
_GLOBAL_FUNCTION = 1 << 4 | 2


class ImageError(ValueError):
    """The bytes are no code image as this project's linker writes it. The message says what is wrong."""


def _identification(image: bytes) -> None:
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, len(_HEADERS), 64, 0, 0)
    if image[:64] != head:
        raise ImageError("its header is not that of a code image for x86-64")


def _segments(image: bytes) -> list[tuple[int, int]]:
    """(start, end) of the three segments that are loaded."""
    found = []
    for i, (kind, flags, align) in enumerate(_HEADERS):
        has = struct.unpack_from("<IIQQQQQQ", image, 64 + 56 * i)
        at, size = has[2], has[5]
        if has != (kind, flags, at, at, at, size, size, align):
            raise ImageError(f"program header {i} is not as it must be")
        found.append((at, at + size))
    (r, r_end), (x, x_end), (w, w_end), dynamic, note, stack = found
    if r != 0 or not r_end <= x < x_end <= w < w_end or x % PAGE or w % PAGE or w_end != len(image):
        raise ImageError("its segments overlap, lie outside or are not whole pages apart")
    if x - r_end >= PAGE or w - x_end >= PAGE:
        raise ImageError("there is room between its segments")
    if dynamic != (w, w_end) or note != (_NOTE_AT, _NOTE_AT + _NOTE_SIZE) or stack != (0, 0):
        raise ImageError("its dynamic table, note or stack header is not where it must be")
    if any(image[r_end:x]) or any(image[x_end:w]):
        raise ImageError("there is something between its segments")
    return [(r, r_end), (x, x_end), (w, w_end)]


def _symbols(image: bytes, dynamic: tuple[int, int], read: tuple[int, int], code: tuple[int, int]) -> None:
    at, end = dynamic
    if end - at != 16 * 6:
        raise ImageError("its dynamic table has more or less than six entries")
    table = list(struct.iter_unpack("<QQ", image[at:end]))
    symbol_at = _NOTE_AT + _NOTE_SIZE + -(_NOTE_AT + _NOTE_SIZE) % 8
    hash_at = symbol_at + 2 * 24
    string_at = hash_at + 4 * (3 + 2)
    strings = b"\0" + ENTRY_POINT.encode() + b"\0"
    want = [(_HASH, hash_at), (_STRTAB, string_at), (_SYMTAB, symbol_at), (_STRSZ, len(strings)), (_SYMENT, 24), (_NULL, 0)]
    if table != want:
        raise ImageError(f"its dynamic table has entries other than a symbol table of one function (tags {[t for t, _ in table]})")
    if string_at + len(strings) > read[1]:
        raise ImageError("its symbol table lies outside its read-only data")
    if image[string_at : string_at + len(strings)] != strings or image[hash_at:string_at] != struct.pack("<5I", 1, 2, 1, 0, 0):
        raise ImageError(f"it exports something other than {ENTRY_POINT}")
    if any(image[_NOTE_AT + _NOTE_SIZE : symbol_at + 24]):
        raise ImageError("its first symbol is not empty")
    name, info, other, section, value, size = struct.unpack_from("<IBBHQQ", image, symbol_at + 24)
    if (name, info, other, section) != (1, _GLOBAL_FUNCTION, 0, 1):
        raise ImageError(f"{ENTRY_POINT} is undefined or no function")
    if not code[0] <= value < code[1] or size > code[1] - value:
        raise ImageError(f"{ENTRY_POINT} lies outside the code")


def _build_id(image: bytes) -> None:
    at = _NOTE_AT + _NOTE_SIZE - _ID_SIZE
    if image[_NOTE_AT:at] != struct.pack("<III4s", 4, _ID_SIZE, 3, b"GNU\0"):
        raise ImageError("it has no build id")
    check = hashlib.sha256(image[:at])
    check.update(bytes(_ID_SIZE))
    check.update(memoryview(image)[at + _ID_SIZE :])
    if image[at : at + _ID_SIZE] != check.digest()[:_ID_SIZE]:
        raise ImageError("its build id is not that of its content")


def check_image(image: bytes, most: int) -> None:
    """Raises `ImageError` unless ``image`` follows the grammar and has at most ``most`` bytes."""
    if len(image) > most:
        raise ImageError(f"it has {len(image)} bytes, at most {most} are taken")
    if len(image) < _NOTE_AT + _NOTE_SIZE:
        raise ImageError("it is cut off")
    _identification(image)
    read, code, dynamic = _segments(image)
    _symbols(image, dynamic, read, code)
    _build_id(image)
