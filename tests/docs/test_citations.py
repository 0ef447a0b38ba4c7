"""What code and pages cite of the specification and of the observed dialects can be looked up in `docs/`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CITED = {
    "specification": DOCS / "specification.md",
    "observed dialect": DOCS / "observed-dialect.md",
    "observed flows": DOCS / "observed-flows.md",
}
CITATION = re.compile(r"\((specification|observed dialect|observed flows)(?:, (?:section )?([^)]*?))?[;)]")
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)(?:#([^)\s]+))?\)")
PAGES = sorted([*DOCS.glob("*.md"), *ROOT.glob("*.md")])
SOURCES = sorted((ROOT / "airflow_crew_provider").rglob("*.py"))


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)


def citations() -> list[tuple[Path, str, str]]:
    texts = [(path, " ".join(path.read_text("utf-8").split())) for path in (*SOURCES, *PAGES)]
    return [(path, found[1], found[2] or "") for path, text in texts for found in CITATION.finditer(text)]


def test_every_section_that_is_cited_stands_in_the_page() -> None:
    for path, name, part in citations():
        numbered = re.match(r"[\d.]+$", part)
        start = (f"{part} ", f"{part}. ") if numbered else (part,)
        assert any(heading.startswith(start) for heading in headings(CITED[name])), f"{path.name}: {name}, {part}"


def test_the_specification_is_cited_at_least_where_the_requests_are_described() -> None:
    assert {"4.1", "4.2", "4.3", "4.4"} <= {part for _, name, part in citations() if name == "specification"}
    assert any(name == "observed dialect" for _, name, _ in citations())


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(page)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text("utf-8")):
        there = (page.parent / target).resolve()
        assert there.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(there), f"{page.name} links to {target}#{anchor}"


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_every_page_is_linked_from_another_and_ends_with_where_to_go_next(page: Path) -> None:
    others = [(each, each.read_text("utf-8")) for each in PAGES if each != page]
    assert page in {(each.parent / target).resolve() for each, text in others for target, _ in LINK.findall(text)}
    last = page.read_text("utf-8").rstrip().rpartition("\n\n")[2]
    assert last.startswith("Next: "), f"{page.name} ends without saying where to go next"
    assert LINK.search(last)
