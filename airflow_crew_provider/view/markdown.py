"""Renders text from crews and people as HTML that loads and runs nothing, with visible link targets. Pure functions.

As in a review's form, `drafts.inert` neutralizes active content; the parser here also has HTML disabled.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape

from airflow_crew_provider.api.responses import Mask, unmasked
from airflow_crew_provider.questions import drafts

FOLLOWED = ("http://", "https://", "mailto:")
LONGEST_MARKDOWN = 20_000  # characters
MOST_WORK = 4_000
_BEGINNINGS = re.compile(r"[\[\]!*_`<>&\\~:]")
HEADINGS_OF_THE_PAGE = 3
SIGNS = {"+": "ins", "-": "del"}


class _Renderer(RendererHTML):
    def image(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Show the address without fetching it."""
        return f"<code>{_shown(tokens[idx].attrGet('src'))}</code>"

    def heading_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Rank the text's headings below the page's."""
        return f"<{_heading(tokens[idx])}>"

    def heading_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return f"</{_heading(tokens[idx])}>\n"

    def link_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        href = str(tokens[idx].attrGet("href") or "")
        href = href if href.startswith(FOLLOWED) else ""
        env.setdefault("links", []).append(href)
        return f'<a rel="noopener noreferrer nofollow" target="_blank" href="{escape(href)}">' if href else "<span>"

    def link_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Show the address next to the link's text, which may claim a different one."""
        href = env["links"].pop()
        return f'</a> <span class="soft">({_shown(href)})</span>' if href else "</span>"

    def fence(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Mark the added and removed lines of a difference."""
        lines = tokens[idx].content.splitlines()
        body = map(_line_of_difference, lines) if tokens[idx].info == "diff" else map(escape, lines)
        return "<pre>" + "\n".join(body) + "</pre>\n"


def _shown(address: Any) -> Markup:
    """Isolate an address, so that text-direction marks around it do not affect it."""
    return Markup('<bdi dir="ltr">{}</bdi>').format(address)


def _heading(token: Token) -> str:
    return f"h{min(6, int(token.tag[1:]) + HEADINGS_OF_THE_PAGE)}"


def _line_of_difference(line: str) -> str:
    tag = SIGNS.get(line[:1])
    if tag is None or line[:3] in ("+++", "---"):
        return f'<span class="soft">{escape(line)}</span>'
    return f"<{tag}>{escape(line)}</{tag}>"


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")


def rendered(text: str, most: int, mask: Mask = unmasked) -> Markup:
    """Return Markdown as HTML, or as plain text if HTML could take too long or exceed this many bytes.

    :param mask: masks secrets; if HTML would put one together, e.g. from escapes or emphasis, the text stays plain
    """
    if is_cheap(text):
        made = Markup(_parser().render(drafts.inert(text)))  # noqa: S704 - without HTML of its own
        visible = made.striptags()
        if size_of(made) <= most and mask(visible) == visible:
            return made
    return Markup('<div class="text">{}</div>').format(fitted(text, most))


def is_cheap(text: str) -> bool:
    """Whether the parser takes less than a tenth of a second for the text, whatever its content.

    A character that may start a construct costs up to 20 microseconds, a line in a list three times as much. The rows
    of a table are padded to its columns.
    """
    lines = text.splitlines()
    cells = (1 + max((line.count("|") for line in lines), default=0)) * len(lines) if "|" in text else 0
    return len(text) <= LONGEST_MARKDOWN and len(_BEGINNINGS.findall(text)) + 3 * len(lines) + cells <= MOST_WORK


def difference(before: str, after: str, names: tuple[str, str], most: int) -> Markup:
    """Return the difference between two drafts as HTML of at most this many bytes."""
    made = Markup(_parser().render(drafts.difference(before, after, names)))  # noqa: S704 - a code block
    return made if size_of(made) <= most else Markup("<p>The difference is too large to show here.</p>")


def fitted(value: Any, most: int) -> Markup:
    """Return text as HTML, truncated to at most this many bytes."""
    text = "" if value is None else str(value)
    begun = text[:most]
    while (size := size_of(escaped := escape(begun))) > most:
        begun = begun[: len(begun) * most // size]
    return escaped if len(begun) == len(text) else escaped + "…"


def fits(value: Any, most: int) -> bool:
    """Whether `fitted` shows all of the text."""
    return value is None or (len(str(value)) <= most and size_of(escape(value)) <= most)


def size_of(html: str) -> int:
    """Return how many bytes it takes to send the HTML."""
    return len(html.encode("utf-8", "surrogatepass"))
