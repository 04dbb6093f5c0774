"""Messages that the page quotes exist, and most of those that exist are quoted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
#: errors whose text a user of the command sees as it is
ERRORS = ("CommandError", "OptionError", "PublishError", "SavedModelError", "ReplayError")
HOLE = "\0"
INSIDE = {"ir", "lowering", "passes", "fusion", "buffers", "codegen"}


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(v) if isinstance(v, ast.Constant) else HOLE for v in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return HOLE


@cache
def trees() -> list[ast.Module]:
    """Of all files that speak to users: not of the rooms whose errors become reasons, nor of tests' tools."""
    found = []
    for file in sorted((ROOT / "disc_tf").rglob("*.py")):
        room = file.relative_to(ROOT / "disc_tf").parts[0]
        if (room not in INSIDE or file.name == "program.py") and not file.name.startswith("fuzz"):
            found.append(ast.parse(file.read_text()))
    return found


@cache
def source_strings() -> list[str]:
    """Every string of the code, `HOLE` for what is filled in."""
    found = []
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr | ast.BinOp) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                found.append(_text(node))
    for file in (ROOT / "disc_tf" / "runtime").rglob("*.cc"):
        found += re.findall(r'"((?:[^"\\\n]|\\.)*)"', file.read_text())
    return found


def quoted() -> Iterator[str]:
    """The messages in the first column: in single or, where they hold a command, unbalanced backticks."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("| `"):
            continue
        cell = line.split(" | ")[0].removeprefix("| ").strip()
        for part in re.split(r"(?<=`), (?=[`-])", cell):
            yield part.removeprefix("`").removesuffix("`") if part.count("`") == 2 or "`disc-tf" in part else part.split("`")[1]


def matches(message: str, text: str) -> bool:
    """Whether the pieces between the ellipses stand in ``text`` in this order."""
    at = 0
    for piece in filter(None, (p.strip() for p in message.split("…"))):
        found = text.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def test_quoted_messages_exist() -> None:
    messages = list(quoted())
    assert len(messages) > 60
    absent = [m for m in messages if not any(matches(m, s) for s in source_strings())]
    assert not absent, absent


def raised() -> Iterator[str]:
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS and node.args:
                text = _text(node.args[0])
                if len(re.sub(rf"[{HOLE}\W]", "", text)) > 8:  # others only pass a message on
                    yield text


def test_most_messages_are_quoted() -> None:
    """The page keeps up with the code: a row for three of four."""
    everything = list(dict.fromkeys(raised()))
    messages = list(quoted())
    known = [t for t in everything if any(matches(m, t) for m in messages)]
    assert len(known) >= 0.75 * len(everything), [t for t in everything if t not in known]
