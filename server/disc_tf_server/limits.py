"""Bounds of a request that are checked before anything is made of it."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from disc_tf_server.errors import invalid

#: what fits into memory whatever it holds: a graph is scanned only if it could hold more elements
FREE_ELEMENTS = 2_000_000
MAX_DEPTH = 90
#: bytes of an element of a packed list
_PACKED = {
    **dict.fromkeys((FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_SFIXED32, FieldDescriptor.TYPE_FLOAT), 4),
    **dict.fromkeys((FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED64, FieldDescriptor.TYPE_DOUBLE), 8),
    **dict.fromkeys((FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_BOOL, FieldDescriptor.TYPE_ENUM), 1),
    **dict.fromkeys((FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64), 1),
    **dict.fromkeys((FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64), 1),
}


def check_elements(data: bytes, descriptor: Any, limit: int = FREE_ELEMENTS) -> None:
    """Refuses a serialized message that would become more than ``limit`` fields and messages in memory (an empty message of two bytes takes
    a hundred times as much). ServiceError INVALID_ARGUMENT, also for what is cut off or nested too deep. Linear, and it stops at the limit.
    """
    if len(data) <= 2 * min(limit, FREE_ELEMENTS):  # no element has less than two bytes (packed lists become eight times as large at most)
        return
    seen = at = 0
    ends, kinds = [len(data)], [descriptor.fields_by_number]  # of the messages that the walk is inside of
    while ends:
        end, fields = ends[-1], kinds[-1]
        if seen > limit:
            raise invalid("GRAPH_TOO_LARGE", f"the graph has more than {limit} elements", "graph")
        if at == end:
            ends.pop()
            kinds.pop()
            continue
        tag, at = _varint(data, at, end)
        wire, field = tag & 7, fields.get(tag >> 3)
        size = 0
        if wire == 0:
            _, at = _varint(data, at, end)
        elif wire == 2:
            size, at = _varint(data, at, end)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise _broken()
        if at + size > end:
            raise _broken()
        seen += 1
        if wire == 2 and field is not None and field.message_type is not None:
            if len(ends) > MAX_DEPTH:
                raise invalid("GRAPH_TOO_DEEP", f"messages are nested more than {MAX_DEPTH} deep", "graph")
            ends.append(at + size)
            kinds.append(field.message_type.fields_by_number)
            continue
        if wire == 2 and field is not None:
            seen += size // _PACKED.get(field.type, size + 1) // 16
        at += size


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= end or shift > 63:
            raise _broken()
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _broken() -> Exception:
    return invalid("NOT_A_MESSAGE", "not a serialized GraphDef: it is cut off or damaged", "graph")
