"""Ops that change what outlives a step, by the beginnings of their names."""

from __future__ import annotations

#: they update parts of a variable: TensorFlow copies the variable for each read from then on
SPARSE_UPDATES = ("ResourceScatter", "ResourceSparseApply", "ResourceStridedSliceAssign")
#: they change variables
VARIABLE_WRITES = (
    *SPARSE_UPDATES, "Assign", "Scatter", "ResourceApply", "Apply", "SparseApply", "CountUpTo", "ResourceCountUpTo", "StridedSliceAssign",
)  # fmt: skip
#: they change variables, tables and queues
STATE_CHANGES = (*VARIABLE_WRITES, "LookupTableInsert", "LookupTableRemove", "Queue", "Barrier", "Iterator")


def writes_variables(op: str) -> bool:
    """Whether the op changes a variable."""
    return op.startswith(VARIABLE_WRITES)


def changes_state(op: str) -> bool:
    """Whether the op changes a variable, a table or a queue."""
    return op.startswith(STATE_CHANGES)
