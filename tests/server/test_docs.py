"""docs/service.md names every reason that callers are told, and no other; and every setting that it speaks of exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from disc_tf_server.config import FIELDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "service.md").read_text(encoding="utf-8")
_REASON = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+|CANCELLED|INTERNAL|DRAINING")
_CODES = {"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "OUT_OF_RANGE", "ALREADY_EXISTS", "DATA_LOSS"}


def told() -> set[str]:
    """The second argument of `ServiceError`, the first of `invalid`, of everything in the server."""
    found: set[str] = set()
    for file in (ROOT / "server").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            place = {"ServiceError": 1, "invalid": 0, "Quota": 1}.get(name)
            if place is not None and len(node.args) > place:
                found |= {c.value for c in ast.walk(node.args[place]) if isinstance(c, ast.Constant) and isinstance(c.value, str)}
    from disc_tf_server.errors import _CHILD

    return {reason for reason in found - {"DISCONNECTED"} if _REASON.fullmatch(reason)} | {reason for _, reason in _CHILD.values()}


def documented() -> set[str]:
    cells = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    return {r for cell in cells for r in re.findall(r"`([A-Z_]+)`", cell)}


def test_reasons_are_documented() -> None:
    known = told()
    assert len(known) > 30
    assert not known - documented(), "add them to docs/service.md"


def test_documented_reasons_exist() -> None:
    source = "\n".join(f.read_text() for f in (ROOT / "server").rglob("*.py"))
    assert not {r for r in documented() if f'"{r}"' not in source}


def test_settings_exist() -> None:
    flags = set(re.findall(r"`--([a-z-]+)", PAGE)) - {"print-config", "config", "begins-in-days"}
    flags -= {f for f in flags if f.startswith("remote") or f == "no-verify"}  # of `disc-tf optimize`
    assert not {f for f in flags if f.replace("-", "_") not in FIELDS}
