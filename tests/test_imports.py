"""The order of the rooms (docs/architecture.md, section 7): data flows one way, and each room needs only what its users have installed."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "disc_tf"

#: room -> rooms of ours that it may import
ORDER: dict[str, set[str]] = {
    "version": set(),
    "budget": set(),
    "extras": set(),
    "spelling": set(),
    "quiet": set(),
    "report": set(),
    "publish": set(),
    "atomic": set(),
    "scratch": {"publish"},
    "with_parent": set(),
    "tuning": set(),
    "ir": {"budget"},
    "costs": {"ir"},
    "lowering": {"ir"},
    "frontend": {"ir", "lowering", "report", "atomic", "spelling"},
    "passes": {"ir", "costs"},
    "fusion": {"ir", "costs", "passes"},
    "buffers": {"ir", "fusion"},
    "runtime": {"atomic", "spelling"},
    "codegen": {"ir", "costs", "passes", "fusion", "buffers", "runtime", "budget", "tuning"},
    "options": {"runtime", "tuning"},
    "ops": {"runtime"},
    "compiler": {"ir", "passes", "fusion", "buffers", "codegen", "runtime", "report", "budget", "version", "tuning"},
    "optimizer": {"ir", "frontend", "compiler", "runtime", "options", "report", "budget", "version", "extras"},
    "standalone": {"ir", "frontend", "compiler", "runtime", "options", "report", "budget", "version", "extras"},
}
#: users of the pipeline, which nothing of it may import: they see everything
USERS = {"__main__"}
USERS |= {"__init__", "cli", "commands", "insight", "just_in_time", "proof", "proof_saved_model", "report_html", "serving", "testing"}
USERS |= {"saved_model", "saved_model_files", "saved_model_freeze", "saved_model_report", "saved_model_rewrite", "saved_model_source"}
USERS |= {"standalone_model", "remote"}
#: room -> packages that it may import besides Python's own
PACKAGES: dict[str, set[str]] = {
    "ir": {"numpy", "ml_dtypes", "scipy", "jax", "jaxlib"},
    "lowering": {"numpy", "ml_dtypes"},
    "frontend": {"numpy", "google", "tensorflow"},
    "passes": {"numpy", "ml_dtypes"},
    "fusion": {"numpy"},
    "buffers": {"numpy"},
    "runtime": {"numpy"},
    "codegen": {"numpy", "llvmlite"},
    "ops": {"numpy", "tensorflow"},
}
#: of codegen's files only this one sees LLVM: the emitters write text
LLVM_FILES = {"codegen/compile.py"}


def room_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else file.stem


def imports(file: Path) -> Iterator[tuple[int, str, bool]]:
    """(line, module, whether at the top level) of every import, those inside functions included."""
    tree = ast.parse(file.read_text())
    top = {id(n) for n in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name, id(node) in top) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}:{node.lineno}: imports are absolute"
            assert node.module is not None
            inner = [f"{node.module}.{a.name}" for a in node.names]
            names = [name if name in MODULES or node.module == "disc_tf" else node.module for name in inner]
            yield from ((node.lineno, name, id(node) in top) for name in dict.fromkeys(names))


FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f for f in FILES}


def test_every_room_is_in_the_table() -> None:
    assert {room_of(f) for f in FILES} == ORDER.keys() | USERS


@pytest.mark.parametrize("room", sorted(ORDER))
def test_rooms_import_only_what_stands_before_them(room: str) -> None:
    wrong = []
    for file in (f for f in FILES if room_of(f) == room):
        for line, module, _ in imports(file):
            parts = module.split(".")
            if parts[0] == "disc_tf" and parts[1] != room and parts[1] not in ORDER[room]:
                wrong.append(f"{file.relative_to(ROOT)}:{line}: {module}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", sorted(PACKAGES))
def test_rooms_need_only_their_packages(room: str) -> None:
    wrong = []
    for file in (f for f in FILES if room_of(f) == room):
        for line, module, _ in imports(file):
            package = module.split(".")[0]
            if package == "disc_tf" or package in sys.stdlib_module_names:
                continue
            llvm = package == "llvmlite" and str(file.relative_to(PACKAGE)) not in LLVM_FILES
            if package not in PACKAGES[room] or llvm:
                wrong.append(f"{file.relative_to(ROOT)}:{line}: {package}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", ["cli", "ops", "options", "report", "__init__"])
def test_light_modules_stay_light(module: str) -> None:
    """What every user loads imports no compiler package at its top level."""
    heavy = {"jax", "jaxlib", "llvmlite", "google", "ml_dtypes"}
    found = {name.split(".")[0] for _, name, top in imports(PACKAGE / f"{module}.py") if top}
    assert not found & heavy


def test_modules_do_not_import_in_a_circle() -> None:
    edges = {name: {m for _, m, top in imports(f) if top and m in MODULES and m != name} for name, f in MODULES.items()}
    done: set[str] = set()
    while ready := [n for n, needs in edges.items() if n not in done and needs <= done]:
        done.update(ready)
    assert done == MODULES.keys(), f"in or behind a circle: {sorted(MODULES.keys() - done)}"
