"""The table of prepared constants: what artefacts share in a process is known by the code of every target."""

from __future__ import annotations

import pytest

from disc_tf.codegen.program import ProgramError, merge_prepared
from disc_tf.runtime.artifact import PreparedSpec


def spec(code: bytes, layout: str = "panel_8", args: tuple[int, ...] = (0,)) -> PreparedSpec:
    return PreparedSpec(args, layout, code * 32)


def test_equal_targets_give_equal_entries() -> None:
    assert merge_prepared([[spec(b"a")], [spec(b"b")]]) == merge_prepared([[spec(b"a")], [spec(b"b")]])


@pytest.mark.parametrize(
    "other",
    [
        [[spec(b"a")], [spec(b"c")]],  # the same code for the first target, other code for the second
        [[spec(b"b")], [spec(b"a")]],
        [[spec(b"a")]],
        [[spec(b"a")], [spec(b"b", "panel_16")]],
    ],
)
def test_a_difference_in_any_target_keeps_entries_apart(other: list[list[PreparedSpec]]) -> None:
    (ours,), (theirs,) = merge_prepared([[spec(b"a")], [spec(b"b")]]), merge_prepared(other)
    assert (ours.layout, ours.code_hash) != (theirs.layout, theirs.code_hash)


def test_targets_that_prepare_different_things_are_refused() -> None:
    for other in ([spec(b"b", args=(1,))], [spec(b"b"), spec(b"b")], []):
        with pytest.raises(ProgramError, match="disagree"):
            merge_prepared([[spec(b"a")], other])
