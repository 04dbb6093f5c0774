"""Errors of the frontend and the reasons why a node is not compiled."""

from __future__ import annotations

import dataclasses


class GraphError(ValueError):
    """A graph that cannot be read as what it claims to be: the message names the node, what is wrong and the way out."""

    def __init__(self, message: str, node: str = "") -> None:
        super().__init__(f"node {node!r}: {message}" if node else message)
        self.node = node


#: Reason codes of the report, with what they mean to its reader.
REASON_TEXT = {
    "UNSUPPORTED_OP": "no lowering rule for this op type",
    "DTYPE": "element type not supported",
    "ATTRIBUTE": "attribute value not supported",
    "RANK_UNKNOWN": "rank of an operand is not known at compile time (a shape hint helps)",
    "NOT_CONSTANT": "operand must be known at compile time",
    "SHAPE": "shape relation cannot be expressed",
    "INVALID": "TensorFlow itself rejects this node; it is left in the graph to report its own error",
    "TOO_COMPLEX": "symbolic dimension grows too large",
    "INTERNAL": "a defect of the compiler (please report it)",
    "CONTROL_EDGE": "order of side effects would be lost",
    "DEVICE": "pinned to a device that is not compiled for",
    "IN_FRAME": "inside a legacy loop or conditional",
    "MUST_COMPILE": "belongs to XLA or to a replicated body",
    "DENIED": "excluded by the allow or deny list",
    "CLUSTER_TOO_SMALL": "its cluster would not be worth a launch",
    "FED": "fed by the caller",
    "FETCHED": "fetched from inside what is kept as it is",
    "FUEL": "the cluster fuel was used up",
    "PUT_BACK": "its cluster was put back",
    "VARIABLE": "reads or holds a variable",
}

#: codes of `lowering.errors.REASONS` -> codes of the report
LOWERING_CODES = {"OP": "UNSUPPORTED_OP", "ATTR": "ATTRIBUTE", "RANK": "RANK_UNKNOWN"}


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why a node is not compiled: a key of `REASON_TEXT` and one line about this node."""

    code: str
    message: str

    def __post_init__(self) -> None:
        if self.code not in REASON_TEXT:
            raise ValueError(f"unknown reason code {self.code!r}")

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"
