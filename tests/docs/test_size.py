"""Pages for users stay few and short enough to be read to their end, and tests' names to be read in a list."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
READ = "index quickstart review own-crew production data-and-cost"
LOOKED_UP = "operators service api troubleshooting reliability compatibility performance"
REFERENCE = "reference"  # written from the docstrings
PAGES = (*READ.split(), *LOOKED_UP.split())
WORDS = 19_000


def words(page: str) -> int:
    return len((DOCS / f"{page}.md").read_text("utf-8").split())


def test_there_are_thirteen_pages_and_the_reference() -> None:
    assert {page.stem for page in DOCS.glob("*.md")} == {*PAGES, REFERENCE}


def test_the_pages_can_be_read_to_their_end() -> None:
    longest = sorted(((words(page), page) for page in PAGES), reverse=True)
    assert sum(count for count, _ in longest) <= WORDS, f"shorten a page; the longest are {longest[:3]}"


def test_every_picture_is_shown() -> None:
    text = "".join(page.read_text("utf-8") for page in (*DOCS.glob("*.md"), DOCS.parent / "README.md"))
    assert [image.name for image in (DOCS / "images").iterdir() if f"images/{image.name}" not in text] == []


def test_a_tests_name_has_at_most_ten_words() -> None:
    texts = (file.read_text("utf-8") for file in DOCS.parent.joinpath("tests").rglob("test_*.py"))
    names = [name for text in texts for name in re.findall(r"^ *(?:async )?def test_(\w+)", text, re.MULTILINE)]
    assert names
    assert [name for name in names if len(name.split("_")) > 10] == []
