"""Renders text of crews and people as HTML: nothing in it is loaded or run, and a link shows where it leads. Pure.

What may act is taken out by the rules of the review's form, `drafts.inert`; the parser here knows no HTML besides.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape

from airflow_crew_provider.review import drafts

FOLLOWED = ("http://", "https://", "mailto:")
LONGEST_JSON = 60_000  # characters
LONGEST_MARKDOWN = 20_000
HEADINGS_OF_THE_PAGE = 3
SIGNS = {"+": "ins", "-": "del"}


class _Renderer(RendererHTML):
    def image(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Show the address, which nobody fetches."""
        return f"<code>{escape(tokens[idx].attrGet('src'))}</code>"

    def heading_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Put the headings of a text below those of the page."""
        return f"<{_heading(tokens[idx])}>"

    def heading_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return f"</{_heading(tokens[idx])}>\n"

    def link_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        href = str(tokens[idx].attrGet("href") or "")
        href = href if href.startswith(FOLLOWED) else ""
        env.setdefault("links", []).append(href)
        return f'<a rel="noopener noreferrer nofollow" target="_blank" href="{escape(href)}">' if href else "<span>"

    def link_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Show the address beside the text, which may say another."""
        href = env["links"].pop()
        return f'</a> <span class="soft">({escape(href)})</span>' if href else "</span>"

    def fence(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Mark the lines of a difference."""
        lines = tokens[idx].content.splitlines()
        shown = map(_line_of_difference, lines) if tokens[idx].info == "diff" else map(escape, lines)
        return str(Markup("<pre>{}</pre>\n").format(Markup("\n").join(shown)))


def _heading(token: Token) -> str:
    return f"h{min(6, int(token.tag[1:]) + HEADINGS_OF_THE_PAGE)}"


def _line_of_difference(line: str) -> Markup:
    tag = SIGNS.get(line[:1])
    if tag is None or line[:3] in ("+++", "---"):
        return Markup('<span class="soft">{}</span>').format(line)
    return Markup(f"<{tag}>{{}}</{tag}>").format(line)  # noqa: S704 - one of two tags


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")


@lru_cache(maxsize=128)
def rendered(text: str) -> Markup:
    """Return Markdown as HTML; a long text as it stands, since some take the square of their length to render."""
    if len(text) > LONGEST_MARKDOWN:
        return Markup("<pre>{}</pre>").format(text)
    return Markup(_parser().render(drafts.inert(text)))  # noqa: S704 - without HTML of its own


@lru_cache(maxsize=32)
def difference(before: str, after: str, names: tuple[str, str]) -> Markup:
    """Return what has changed between two drafts as HTML."""
    return Markup(_parser().render(drafts.difference(before, after, names)))  # noqa: S704 - a code block


def json_text(value: Any) -> str:
    """Return a JSON value for people, cut."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return text if len(text) <= LONGEST_JSON else f"{text[:LONGEST_JSON]}…"
