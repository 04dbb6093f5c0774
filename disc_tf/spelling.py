"""Suggestions for names that do not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def close_to(name: str, known: Iterable[str], count: int = 1) -> list[str]:
    """What ``name`` is most likely meant to be, the most likely first; empty if it is like none."""
    return difflib.get_close_matches(name, list(known), count)


def did_you_mean(names: Iterable[str]) -> str:
    """The end of a message that suggests names; nothing if there are none."""
    text = ", ".join(dict.fromkeys(names))
    return f"; did you mean {text}?" if text else ""
