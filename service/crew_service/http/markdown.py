"""Shows a draft as the Markdown that it is; nothing in it loads, runs or hides where it leads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape

# What exceeds one of these is shown as the text that it is, since rendering takes time that others wait for.
LONGEST = 100_000  # characters
LARGEST = 300_000  # characters of HTML: a table of 1.5 KB may have 65,000 cells
SECONDS = 0.1  # of CPU


class _Renderer(RendererHTML):
    def image(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """An address that would be fetched: shown, and not followed."""
        address = tokens[idx].attrGet("src")
        return f"<code>![<bdi>{escape(tokens[idx].content)}</bdi>]({_shown(address)})</code>"

    def link_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        href = str(tokens[idx].attrGet("href") or "")
        if not href.startswith(("http://", "https://", "mailto:")):
            href = ""
        env.setdefault("links", []).append(href)
        return f'<a rel="noopener noreferrer nofollow" target="_blank" href="{escape(href)}">' if href else "<span>"

    def link_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """The address stands beside the text, which may say another."""
        href = env["links"].pop()
        return f'</a> <span class="soft">({_shown(href)})</span>' if href else "</span>"


def _shown(address: Any) -> Markup:
    """Isolate an address: a mark that turns the text round does not turn what stands here."""
    return Markup('<bdi dir="ltr">{}</bdi>').format(address)


class _TooCostly(Exception):
    pass


def _in_time(state: Any, *_: Any) -> bool:
    """Stand as a rule before the others, which the parser tries at every place of a text."""
    if time.thread_time() > state.env["until"]:
        raise _TooCostly
    return False


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")
    inside = ["paragraph", "reference", "blockquote", "list"]
    parser.block.ruler.before("table", "in_time", _in_time, {"alt": inside})
    parser.inline.ruler.before("text", "in_time", _in_time)
    return parser


def render(text: str) -> Markup:
    html = _rendered(text) if len(text) <= LONGEST else None
    if html is None:
        return Markup("<pre>{}</pre>").format(text)
    return Markup('<div class="prose">{}</div>').format(Markup(html))  # noqa: S704


def _rendered(text: str) -> str | None:
    try:
        html = str(_parser().render(text, {"until": time.thread_time() + SECONDS}))
    except _TooCostly:
        return None
    return html if len(html) <= LARGEST else None
