"""Makes untrusted text safe to show as Markdown: whatever renders it, nothing in it is loaded or run. Pure.

Parsers of Markdown disagree about what is code, so safety does not rest on that. Outside of code blocks that every
parser sees alike, an invisible character parts ``!`` from ``[`` and ``<`` from what would make it HTML. Which other
lines look like code decides no more than how they are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from airflow_crew_provider.core.refused_answer import JOINER, parted

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

# Code spans first: in them a visible escape would be seen.
_SPANS = re.compile(r"(?<![`\\])(`+)(?!`).+?(?<!`)\1(?!`)|<|!\[|\[\^", re.DOTALL)
_ESCAPES = {"<": "&lt;", "![": f"!{JOINER}[", "[^": r"\[^"}
_FENCE = re.compile(r"`{3,}(?=[^`]*$)|~{3,}")
_LIKE_A_FENCE = re.compile(r"`{3}|~{3}")


def inert(text: str) -> str:
    """Return Markdown that reads as before, in which HTML is visible text and an image a link to it."""
    lines = re.split(r"\r\n|\r|\n", text)
    return "\n".join(_inert_lines(lines))


def fenced(text: str, language: str = "") -> str:
    """Return a code block that nothing in the text can end."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _inert_lines(lines: list[str]) -> Iterator[str]:
    sure, like_code = set(_surely_code(lines)), _code_lines("\n".join(lines))
    prose: list[str] = []
    for number, line in enumerate(lines):
        if number not in sure and number not in like_code and line.strip():
            prose.append(line)
            continue
        yield from _escaped(prose)
        prose = []
        yield line if number in sure else parted(line)
    yield from _escaped(prose)


def _surely_code(lines: list[str]) -> Iterator[int]:
    """Yield the lines of code blocks that begin at the margin after an empty line, up to the first doubtful fence.

    Nothing before such a block can take it in: a list, a quotation and a footnote end there, and HTML is parted.
    """
    fence, after_blank = "", True
    for number, line in enumerate(lines):
        if fence:
            yield number
            fence = "" if _ends(line, fence) else fence
        elif after_blank and (begins := _FENCE.match(line)):
            yield number
            fence = begins[0]
        elif _LIKE_A_FENCE.search(line):
            return
        after_blank = not line.strip()


def _ends(line: str, fence: str) -> bool:
    found = re.fullmatch(r" {0,3}(`+|~+)[ \t]*", line)
    return bool(found) and found[1].startswith(fence)  # type: ignore[index]


def _escaped(paragraph: list[str]) -> list[str]:
    text = _SPANS.sub(lambda found: _ESCAPES.get(found[0]) or parted(found[0]), "\n".join(paragraph))
    return text.split("\n")[: len(paragraph)]


def _code_lines(text: str) -> set[int]:
    """Return the lines that one parser takes for code."""
    blocks = [each.map for each in _parser().parse(text) if each.type in ("fence", "code_block") and each.map]
    return {line for start, end in blocks for line in range(start, end)}


@cache
def _parser() -> MarkdownIt:
    # Here and not above: parsing a DAG file must not load it.
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable("table")
