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

#: Reason codes -> what a user can do about it.
REASON_ADVICE = {
    "UNSUPPORTED_OP": "docs/ops.md lists the ops that are compiled; the rest of the graph is compiled around it",
    "DTYPE": "cast to a supported type (f16, bf16, f32, f64, integers, bool) around it, or leave it: strings always stay in TensorFlow",
    "ATTRIBUTE": "docs/ops.md says which attribute values are compiled",
    "RANK_UNKNOWN": "give the rank of the inputs: --hint 'INPUT: [a, b]', or a shape in the model's signature",
    "NOT_CONSTANT": "freeze the model, so that this operand is a constant, or make it from the shape of a tensor",
    "SHAPE": "give static dims in the model's signature, or a --hint for the inputs",
    "INVALID": "TensorFlow raises here as well: correct the model",
    "TOO_COMPLEX": "split the model, or make the sizes that it computes simpler",
    "INTERNAL": "please report it, with the graph if you may; --deny NODE leaves the node in TensorFlow and compiles the rest",
    "CONTROL_EDGE": "drop the control dependency, or --allow only nodes that do not need it",
    "DEVICE": "clear the node's device, or place it on a CPU",
    "IN_FRAME": "freeze the model with lower_control_flow=False, so that its loops are functional",
    "MUST_COMPILE": "export the model without jit_compile",
    "DENIED": "change --allow or --deny",
    "CLUSTER_TOO_SMALL": "--min-cluster-size 1 compiles it all the same",
    "FED": "it is an input",
    "FETCHED": "fetch an output after it, or leave it",
    "FUEL": "raise --fuel",
    "PUT_BACK": "disc-tf verify says what differs and where; --no-timing keeps clusters that are only slower",
    "VARIABLE": "freeze the model if its weights do not change",
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


def telling_line(text: str) -> str:
    """The line of a status message that says what is wrong: the first, but for graph errors the one before the node's name in brackets."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["?"]
    if lines[0] != "Graph execution error:":
        return lines[0]
    end = next((i for i, line in enumerate(lines) if line.startswith("[[")), len(lines))
    return lines[max(end - 1, 0)]
