"""The grammar of a code image: exactly what `disc_tf.codegen.elf.link` writes, and nothing that a loader acts on besides.

An image that passes has three segments (read-only data, code, the dynamic table; none writable and executable), one exported function,
names of the others, no relocation, no undefined symbol, no other library, no initialiser, no thread-local data, and the build id of its
content. What the machine code does is another matter: a signature tells where it comes from (docs/service.md).
"""

from __future__ import annotations

import hashlib
import re
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
_GLOBAL_FUNCTION, _LOCAL_FUNCTION = 1 << 4 | 2, 2
_NAME = re.compile(rb"[\w.$-]+")


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
    hash_at, strings_size = table[0][1], table[3][1]
    count, rest = divmod(hash_at - symbol_at, 24)
    string_at = hash_at + 4 * (3 + count)
    want = [(_HASH, hash_at), (_STRTAB, string_at), (_SYMTAB, symbol_at), (_STRSZ, strings_size), (_SYMENT, 24), (_NULL, 0)]
    if table != want:
        raise ImageError(f"its dynamic table has entries other than a symbol table (tags {[t for t, _ in table]})")
    if rest or count < 2 or string_at + strings_size > read[1]:
        raise ImageError("its symbol table lies outside its read-only data")
    if image[hash_at:string_at] != struct.pack(f"<{3 + count}I", 1, count, count - 1, *bytes(count)):
        raise ImageError(f"it exports something other than {ENTRY_POINT}")
    if any(image[_NOTE_AT + _NOTE_SIZE : symbol_at + 24]):
        raise ImageError("its first symbol is not empty")
    strings = image[string_at : string_at + strings_size]
    names = strings[1:-1].split(b"\0")
    if not strings or strings[0] or strings[-1] or len(names) != count - 1:
        raise ImageError("its symbols and their names are not as many")
    if names[-1] != ENTRY_POINT.encode():
        raise ImageError(f"it exports something other than {ENTRY_POINT}")
    name_at = 1
    for i, name in enumerate(names):
        last = i == len(names) - 1
        shown = name.decode("ascii", "replace")
        if not _NAME.fullmatch(name) or (not last and name == names[-1]):
            raise ImageError(f"a function is called {shown!r}")
        offset, info, other, section, value, size = struct.unpack_from("<IBBHQQ", image, symbol_at + 24 * (i + 1))
        if (offset, info, other, section) != (name_at, _GLOBAL_FUNCTION if last else _LOCAL_FUNCTION, 0, 1):
            raise ImageError(f"{shown} is undefined or no function")
        if not code[0] <= value < code[1] or size > code[1] - value:
            raise ImageError(f"{shown} lies outside the code")
        name_at += len(name) + 1


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
