"""What a compile child and the front end say to each other on a stream: frames of one letter, a 32-bit length and bytes.

    to the child     J  head (JSON: outputs, feeds, dry_run, cpu_s, data_bytes)   G  the graph   O  options (a serialized CompileOptions)
    from the child   P  progress (JSON: phase, fraction, text)   R  the serialized CompileResult   E  an error (JSON: reason, message)

What comes from a child is hostile: every length is bounded before it is read.
"""

from __future__ import annotations

import struct

HEAD = struct.Struct("<cI")
#: letter -> most bytes, from the child (R: the pool's `max_result` decides)
CHILD_FRAMES = {b"P": 4 << 10, b"E": 64 << 10, b"R": 0xFFFFFFFF}
#: characters of a phase's name, and of other text from a child
PHASE_CHARACTERS, TEXT_CHARACTERS = 64, 2000
PROGRESS_EVERY_S = 0.05


def frame(letter: bytes, payload: bytes) -> bytes:
    """A frame's bytes."""
    return HEAD.pack(letter, len(payload)) + payload


def printable(text: str, limit: int = TEXT_CHARACTERS) -> str:
    """Text from a child as it may stand in a message or a log: one line, no control characters, bounded."""
    clean = "".join(c if c.isprintable() else " " for c in text[: 4 * limit])
    clean = " ".join(clean.split())
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."
