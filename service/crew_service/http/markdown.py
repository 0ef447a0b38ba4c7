"""Renders a draft's Markdown so that nothing in it is loaded or run, and links show their targets."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import cache
from itertools import count
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape

# Text that exceeds one of these limits is shown as plain text, because rendering keeps other requests waiting.
LONGEST = 100_000  # characters
LARGEST = 300_000  # characters of HTML: a table of 1.5 KB may have 65,000 cells
SECONDS = 0.1  # of CPU
STEPS = 32  # steps of the parser and renderer between clock readings


class _Renderer(RendererHTML):
    def renderToken(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        env["limit"].check()
        return super().renderToken(tokens, idx, options, env)

    def image(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Show the address without fetching it."""
        address = tokens[idx].attrGet("src")
        return f"<code>![<bdi>{escape(tokens[idx].content)}</bdi>]({_shown(address)})</code>"

    def link_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        href = str(tokens[idx].attrGet("href") or "")
        if not href.startswith(("http://", "https://", "mailto:")):
            href = ""
        env.setdefault("links", []).append(href)
        return f'<a rel="noopener noreferrer nofollow" target="_blank" href="{escape(href)}">' if href else "<span>"

    def link_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        """Show the address next to the text, which may name a different one."""
        href = env["links"].pop()
        return f'</a> <span class="soft">({_shown(href)})</span>' if href else "</span>"


def _shown(address: Any) -> Markup:
    """Isolate an address, so that text-direction marks do not affect it."""
    return Markup('<bdi dir="ltr">{}</bdi>').format(address)


class _TooCostly(Exception):
    pass


class _Limit:
    """A limit on the thread's CPU time; reading this clock takes as long as a step, so it is read only now and then."""

    def __init__(self, until: float) -> None:
        self._until = until
        self._steps = count()

    def check(self) -> None:
        if next(self._steps) % STEPS == 0 and time.thread_time() > self._until:
            raise _TooCostly


def _in_time(state: Any, *_: Any) -> bool:
    """Check the limit; the parser tries this rule before the others at every position in the text."""
    state.env["limit"].check()
    return False


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")
    inside = ["paragraph", "reference", "blockquote", "list"]
    parser.block.ruler.before("table", "in_time", _in_time, {"alt": inside})
    parser.inline.ruler.before("text", "in_time", _in_time)
    return parser


def render(text: str, until: float = math.inf) -> Markup:
    """Return the text as HTML, or as plain text if rendering would take this thread's CPU time past `until`."""
    until = min(until, time.thread_time() + SECONDS)
    html = _rendered(text, until) if len(text) <= LONGEST else None
    if html is None:
        return Markup("<pre>{}</pre>").format(text)
    return Markup('<div class="prose">{}</div>').format(Markup(html))  # noqa: S704


def _rendered(text: str, until: float) -> str | None:
    try:
        html = str(_parser().render(text, {"limit": _Limit(until)}))
    except _TooCostly:
        return None
    return html if len(html) <= LARGEST else None
