"""Pages: strict HTML, nothing from a graph becomes markup, nothing is fetched, and they work in a browser."""

from __future__ import annotations

import json
import re
from pathlib import Path

import html5lib
import pytest

from disc_tf.report import Report, ShapeResult
from disc_tf.report_html import bench_page, report_page, saved_model_page, standalone_page, verify_page
from disc_tf.report_html.markup import Markup, join, short, table, tag
from disc_tf.saved_model_report import SavedModelReport
from tests.report_html import browser
from tests.report_html.pages import HOSTILE, report_of, saved_model_of

BENCH = {
    "geometric_mean": 2.0,
    "minimum": 1.5,
    "shapes": [
        {"dims": {HOSTILE[0]: 3}, "original": {"cold": 9.0, "median": 3.0}, "optimized": {"cold": 5.0, "median": 1.5}, "ratio": 2.0,
         "low": 1.9, "high": 2.1},
        {"dims": {}, "original": {"cold": 9.0, "median": 0.0}, "optimized": {"cold": 5.0, "median": 0.0}, "ratio": 1.5},
    ],
    "not_timed": [{"dims": {"B": 0}, "message": HOSTILE[1]}],
}  # fmt: skip
STANDALONE = {
    "output": HOSTILE[0], "inputs": HOSTILE, "outputs": HOSTILE[:1], "kernels": 2, "weight_bytes": 1000, "file_bytes": 2000,
    "segments": [{"waits_for": [], "makes": HOSTILE}, {"waits_for": HOSTILE[1:], "makes": []}],
    "verified": None, "shapes": [], "times_ms": {"lower": 1.0},
}  # fmt: skip


def several_graphs() -> SavedModelReport:
    """One graph more with the same functions, one that is left as it is."""
    report = saved_model_of(HOSTILE)
    report.other_graphs = [saved_model_of(HOSTILE), SavedModelReport(tags=HOSTILE, reason=HOSTILE[0])]
    return report


PAGES = {
    "report": lambda: report_page(report_of(["x", "y", "z", "u", "v"]), source="model.pb"),
    "hostile": lambda: report_page(report_of(HOSTILE), source=HOSTILE[0], versions={HOSTILE[1]: HOSTILE[2]}),
    "saved model": lambda: saved_model_page(saved_model_of(HOSTILE), source=HOSTILE[0]),
    "saved model of several graphs": lambda: saved_model_page(several_graphs(), source=HOSTILE[0]),
    "empty saved model": lambda: saved_model_page(SavedModelReport()),
    "empty": lambda: report_page(Report()),
    "stand-alone file": lambda: standalone_page(STANDALONE, report_of(HOSTILE), source=HOSTILE[0]),
    "stand-alone file without kernels": lambda: standalone_page(STANDALONE, Report()),
    "verify": lambda: verify_page([ShapeResult({HOSTILE[0]: [1]}, False, HOSTILE[1])], False, original=HOSTILE[2], optimized=HOSTILE[3]),
    "bench": lambda: bench_page(BENCH, original=HOSTILE[0], optimized=HOSTILE[1]),
    "bench of nothing": lambda: bench_page(
        {"geometric_mean": None, "minimum": None, "shapes": [], "not_timed": []}, original="a", optimized="b"
    ),
}


@pytest.mark.parametrize("page", PAGES)
def test_strict_html(page: str) -> None:
    html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(PAGES[page]())


def elements(text: str):
    return html5lib.parse(text, namespaceHTMLElements=False)


@pytest.mark.parametrize("page", PAGES)
def test_names_are_never_markup(page: str) -> None:
    """Only the elements and attributes that we write, whatever the graph's names are."""
    tree = elements(PAGES[page]())
    scripts = tree.findall(".//script")
    assert [s.get("type") for s in scripts] == ["application/json", None]
    assert len(tree.findall(".//style")) == 1
    for element in tree.iter():
        if not isinstance(element.tag, str):
            raise AssertionError("a comment")
        assert element.tag.rpartition("}")[2] not in ("img", "b2", "iframe", "object", "embed", "base", "form")
        for key, value in element.attrib.items():
            assert not str(key).startswith("on"), key
            if key == "href":
                assert re.fullmatch(r"#[a-z0-9-]+", value), value


def test_names_are_shown() -> None:
    tree = elements(PAGES["hostile"]())
    shown = {li.text for li in tree.findall(".//li")}
    for name in HOSTILE:
        assert re.sub("[\x00-\x08\x0b-\x1f]", "\ufffd", name) in shown


@pytest.mark.parametrize("page", PAGES)
def test_nothing_is_fetched(page: str) -> None:
    text = PAGES[page]()
    policy = next(m.get("content") for m in elements(text).findall(".//meta") if m.get("http-equiv"))
    assert "default-src 'none'" in policy
    without_data = re.sub(r'<script type="application/json".*?</script>', "", text)
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:|//)|@import|url\(""", without_data)


def test_the_data_is_in_the_page() -> None:
    report = report_of(HOSTILE)
    data = next(s.text for s in elements(report_page(report)).findall(".//script") if s.get("id") == "data")
    assert json.loads(data) == json.loads(report.to_json())


def test_anchors_lead_somewhere() -> None:
    for make in PAGES.values():
        tree = elements(make())
        ids = [e.get("id") for e in tree.iter() if e.get("id")]
        assert len(ids) == len(set(ids))
        for link in tree.iter():
            if link.get("href"):
                assert link.get("href")[1:] in ids


def test_markup() -> None:
    assert tag("b", "<", None, ["&", Markup("<i>")], class_="x", hidden=True, id=None) == '<b class="x" hidden>&lt;&amp;<i></b>'
    assert join(["a", ("b", [None, 3])]) == "ab3"
    assert short("abcdef", 4) == "…def" and short("abc", 4) == "abc"
    assert 'data-v="1234"' in table(["n"], [[1234]]) and ">1,234<" in table(["n"], [[1234]])


@pytest.mark.slow
@pytest.mark.skipif(browser.find() is None, reason="there is no Chromium")
def test_in_a_browser(tmp_path: Path) -> None:
    """The script runs: a click sorts, a search hides what does not match, a link opens its list; and no name is executed."""
    found = browser.find()
    assert found is not None
    page = tmp_path / "report.html"
    actions = """
<script>
  var box = document.getElementById("search");
  box.value = "onerror"; box.dispatchEvent(new Event("input"));
  document.querySelectorAll("table.sortable")[1].tHead.rows[0].cells[3].click();
  document.body.setAttribute("data-found", document.getElementById("found").textContent);
  document.body.setAttribute("data-first", document.querySelectorAll("table.sortable")[1].tBodies[0].rows[0].cells[0].textContent);
  document.body.setAttribute("data-open", document.getElementById("box-1").open);
</script>"""
    page.write_text(report_page(report_of(HOSTILE)).replace("</body>", actions + "</body>"), encoding="utf-8")
    tree = elements(browser.dom(found, page, tmp_path / "profile", "#box-1"))
    body = tree.find("body")
    assert body.get("data-found") == "15 nodes"  # the name itself for three reasons, and all names for the reason that has the word
    assert body.get("data-first") == HOSTILE[1]
    assert body.get("data-open") == "true"
    assert not tree.findall(".//img")
