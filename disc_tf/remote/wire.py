"""A look at a serialized message before it is parsed: how much it would become in memory."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor

#: what fits into memory whatever it holds
FREE_BYTES = 1 << 20
MAX_DEPTH = 90
_F = FieldDescriptor
#: least bytes of an element of a packed list
_PACKED = {_F.TYPE_FIXED32: 4, _F.TYPE_SFIXED32: 4, _F.TYPE_FLOAT: 4, _F.TYPE_FIXED64: 8, _F.TYPE_SFIXED64: 8, _F.TYPE_DOUBLE: 8}
_TEXT = {_F.TYPE_STRING, _F.TYPE_BYTES}


class WireError(ValueError):
    """Not a serialized message, nested too deep, or of too many elements."""


def check_elements(data: bytes, descriptor: Any, most: int) -> None:
    """Raises `WireError` for a serialized message (of ``descriptor``) of more than ``most`` fields, messages and list elements.

    Two bytes can become a hundred. Linear, stops at the limit; nothing is made of the content.
    """
    if len(data) <= FREE_BYTES:
        return
    at = seen = 0
    ends, fields = [len(data)], [descriptor.fields_by_number]
    while ends:
        if at == ends[-1]:
            ends.pop()
            fields.pop()
            continue
        tag = data[at]
        if tag < 128:
            at += 1
        else:
            tag, at = _varint(data, at, ends[-1])
        field, kind = fields[-1].get(tag >> 3), tag & 7
        seen += 1
        size = 0
        if kind == 0:
            _, at = _varint(data, at, ends[-1])
        elif kind == 2:
            size, at = _varint(data, at, ends[-1])
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise WireError("groups are not used")
        if size > ends[-1] - at:
            raise WireError("it is cut off")
        if kind == 2 and field is not None and field.message_type is not None:
            if len(ends) > MAX_DEPTH:
                raise WireError(f"it is nested more than {MAX_DEPTH} deep")
            ends.append(at + size)
            fields.append(field.message_type.fields_by_number)
            size = 0
        elif kind == 2 and field is not None and field.type not in _TEXT:
            seen += size // _PACKED.get(field.type, 1) // 8  # eight bytes an element
        if seen > most:
            raise WireError(f"it has more than {most} elements")
        at += size


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise WireError("it is cut off")
