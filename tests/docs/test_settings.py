"""Every variable that the runtime reads is on the page about it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_variables_of_the_runtime_are_documented() -> None:
    read = set(re.findall(r'get\("(DISC_TF_\w+)"\)', (ROOT / "disc_tf/runtime/ral/src/settings.cc").read_text(encoding="utf-8")))
    section = (ROOT / "docs/runtime.md").read_text(encoding="utf-8").partition("## Settings of a process")[2].partition("\n## ")[0]
    assert read and set(re.findall(r"`(DISC_TF_\w+)`", section)) == read
