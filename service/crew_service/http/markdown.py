"""Shows a draft as the Markdown that it is; nothing in it loads, runs or hides where it leads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup, escape

LONGEST = 100_000  # characters; a longer text is shown as it is, since rendering takes time that others wait for


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


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")


def render(text: str) -> Markup:
    if len(text) > LONGEST:
        return Markup("<pre>{}</pre>").format(text)
    return Markup('<div class="prose">{}</div>').format(Markup(_parser().render(text)))  # noqa: S704
