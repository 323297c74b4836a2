"""Every page is on both maps, `docs/README.md` and `llms.txt`, and says first what it is for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.following import ROOT
from tests.docs.pages import DOCS, named

INDEX, LLMS = DOCS / "README.md", ROOT / "llms.txt"
DEPENDENCIES = DOCS / "design" / "dependencies.md"  # a list with a reason each
PAGES = sorted(set(DOCS.rglob("*.md")) - {INDEX})
_ENTRY = re.compile(r"^- \[[^\]]+\]\(([^)#]+)\): \S.*$", re.MULTILINE)
_PURPOSE = re.compile(r"(After|From) this page you can |This page (lists|describes|explains) ")


def entries(of: Path) -> list[Path]:
    """The pages that a map names, each in a line of its own with its purpose."""
    return [(of.parent / target).resolve() for target in _ENTRY.findall(of.read_text())]


@pytest.mark.parametrize("chart", [INDEX, LLMS], ids=named)
def test_every_page_is_on_the_map_once(chart: Path) -> None:
    listed = [page for page in entries(chart) if DOCS in page.parents and page != INDEX]
    assert sorted(listed) == PAGES


def test_both_maps_say_the_same_of_a_page() -> None:
    purposes = dict(re.findall(r"\(((?!\.\.)[^)]+)\): (.*)$", INDEX.read_text(), re.MULTILINE))
    for page, purpose in purposes.items():
        assert f"(docs/{page}): {purpose}\n" in LLMS.read_text()


@pytest.mark.parametrize("page", [INDEX, *PAGES], ids=named)
def test_a_page_begins_with_what_its_reader_will_be_able_to_do_or_know(page: Path) -> None:
    title, first = page.read_text().split("\n\n")[:2]
    assert title.startswith("# ")
    assert _PURPOSE.match(first), first


@pytest.mark.parametrize(
    "page", sorted(set((DOCS / "design").glob("*.md")) - {DEPENDENCIES}), ids=named
)
def test_a_design_page_has_the_question_the_decision_and_what_was_rejected(page: Path) -> None:
    headings = re.findall(r"^## (.*)$", page.read_text(), re.MULTILINE)
    wanted = ["Question", "Decision", "Rejected"]
    assert [heading for heading in headings if heading in wanted] == wanted
