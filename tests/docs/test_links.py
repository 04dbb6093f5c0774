"""Links between the project's pages lead somewhere: files, and anchors in them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOUND = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("[a-z]*/**/*.md"))]
PAGES = [p for p in FOUND if p.relative_to(ROOT).parts[0] != "build"]
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^()\s]+)\)|!\[[^\]]*\]\(([^()\s]+)\)")


def prose(page: Path) -> str:
    """The text without code: what looks like a link there is none."""
    text = re.sub(r"(?ms)^(```|~~~).*?^\1", "", page.read_text(encoding="utf-8"))
    text = re.sub(r"(?m)^    .*$", "", text)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(page: Path) -> set[str]:
    """What the headings are called, as the usual renderers do: lower case, words joined, repeats numbered."""
    found: dict[str, int] = {}
    out = set(re.findall(r'<a (?:id|name)="([^"]+)"', page.read_text(encoding="utf-8")))
    text = re.sub(r"(?ms)^(```|~~~).*?^\1", "", page.read_text(encoding="utf-8"))
    for heading in re.findall(r"(?m)^#{1,6} +(.+?) *#*$", text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "").lower()
        name = "".join(c for c in plain if c in " -_" or unicodedata.category(c)[0] in "LN").replace(" ", "-")
        count = found.get(name, 0)
        found[name] = count + 1
        out.add(f"{name}-{count}" if count else name)
    return out


def links(page: Path) -> Iterator[str]:
    for match in _LINK.finditer(prose(page)):
        target = match[1] or match[2]
        if not re.match(r"[a-z]+:", target):
            yield target


def broken(page: Path) -> list[str]:
    wrong = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = page if not path else (page.parent / path).resolve()
        if not target.exists():
            wrong.append(f"{link}: there is no {path}")
        elif anchor and (target.suffix != ".md" or anchor not in anchors(target)):
            wrong.append(f"{link}: {target.name} has no heading {anchor}")
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links(page: Path) -> None:
    assert not broken(page)


def test_what_is_broken_is_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# A `b` c!\n\n## Twice\n\n## Twice\n")
    text = "[x](b.md) [x](b.md#a-b-c) [x](b.md#twice-1) [x](#here) `[x](no.md)` [x](https://e.org/#x)\n\n    [x](code.md)\n\n## Here\n"
    (tmp_path / "a.md").write_text(text)
    assert broken(tmp_path / "a.md") == []
    (tmp_path / "a.md").write_text("[x](c.md) [x](b.md#nothing) ![x](p.png) [x](#there)")
    assert len(broken(tmp_path / "a.md")) == 4


def test_the_index_leads_to_every_page() -> None:
    """docs/README.md names each page of its directory."""
    index = ROOT / "docs" / "README.md"
    named = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    assert {p.resolve() for p in index.parent.glob("*.md")} - named == {index.resolve()}
