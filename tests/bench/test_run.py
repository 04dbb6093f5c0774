"""The published page: a new measurement replaces the measured part and nothing else."""

from __future__ import annotations

import pytest

from bench.run import BEGIN, END, replace_measured


def test_only_the_measured_part_changes() -> None:
    page = f"# Performance\n\nBy hand.\n\n{BEGIN}\nold\n{END}\n\n## Memory\n"
    assert replace_measured(page, "new\n") == f"# Performance\n\nBy hand.\n\n{BEGIN}\nnew\n{END}\n\n## Memory\n"


@pytest.mark.parametrize("page", ["", BEGIN, END, f"{END}{BEGIN}"])
def test_a_page_without_the_part_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="no part between"):
        replace_measured(page, "new")
