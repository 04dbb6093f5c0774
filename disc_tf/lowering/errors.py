"""Why a node is not compiled, and the status codes that compiled code raises."""

from __future__ import annotations

import enum


class Status(enum.IntEnum):
    """TensorFlow status codes (``absl::StatusCode``) that a ``disc.check`` may carry."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13


#: Reason codes of ``Unsupported`` with what they mean to the reader of a report.
REASONS = {
    "OP": "no lowering rule for this op type",
    "DTYPE": "element type not supported by the rule",
    "ATTR": "attribute value not supported",
    "RANK": "rank must be known at compile time",
    "NOT_CONSTANT": "operand must be known at compile time",
    "SHAPE": "shape relation cannot be expressed",
    "INVALID": "TensorFlow itself rejects this node; it is left in the graph to report its own error",
    "TOO_COMPLEX": "symbolic dimension grows too large",
    "INTERNAL": "a defect of the compiler (please report it)",
}


class Unsupported(Exception):
    """A node that the lowering does not take. ``code`` is a key of ``REASONS``; ``node`` and ``op`` are filled by the driver."""

    def __init__(self, code: str, message: str, node: str = "", op: str = "") -> None:
        if code not in REASONS:
            raise ValueError(f"unknown reason code {code!r}")
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.node = node
        self.op = op

    def __str__(self) -> str:
        where = f"{self.node} ({self.op}): " if self.node else ""
        return f"{where}{self.message} [{self.code}]"
