"""Renders the page's templates, under a policy that only allows the page's own script.

A page costs at most 0.2 s of CPU: Markdown and differences are rendered in the first half; the rest is plain text.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import cache
from itertools import chain
from typing import Any
from urllib.parse import quote

from fastapi import HTTPException
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from jinja2 import Environment, PackageLoader
from markupsafe import Markup, escape

from crew_service.engine.dead_letters import shown_url
from crew_service.engine.files import FileGone, Files
from crew_service.engine.output_files import ListedFile
from crew_service.engine.overview import beginning
from crew_service.http import differences, markdown
from crew_service.times import iso

LARGEST = 1024 * 1024 - 4096  # bytes of a page, before viewer-specific parts are filled in
ROOMS = (400_000, 60_000, 5_000)  # bytes for its long texts; markup may enlarge the others unpredictably
LARGEST_PRETTY = 20_000  # characters of JSON; indentation makes encoding many times slower
BLANK = secrets.token_hex(16)  # random, so that no text contains it
BLANKS = {name: f"{BLANK}-{name}-" for name in ("nonce", "form_key", "who", "messages")}
FILLED = re.compile(f"{BLANK}-([a-z_]+)-".encode())
POLICY = "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
# With `no-referrer`, a browser sends the page's own forms with the origin `null`, like those of other sites.
HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "same-origin", "X-Content-Type-Options": "nosniff"}


def _moment(seconds: float) -> Markup:
    """Return a time in UTC, which the page's script converts to the reader's time zone."""
    text = datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}">{}</time>').format(iso(seconds, "seconds"), text)


def _moment_of(text: str) -> Markup:
    return _moment(datetime.fromisoformat(text).timestamp())


def _brief(seconds: float) -> str:
    """Return a duration that may be well under a second."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else _duration(seconds)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{seconds:.1f} s"


def _pretty(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) > LARGEST_PRETTY else json.dumps(value, indent=2, ensure_ascii=False)


def _usd(cost: float) -> str:
    return f"${cost:,.2f}" if cost >= 1 else f"${cost:.4f}"


templates = Environment(loader=PackageLoader(__package__), autoescape=True, trim_blocks=True, lstrip_blocks=True)
templates.filters |= {
    "moment": _moment,
    "moment_of": _moment_of,
    "brief": _brief,
    "duration": _duration,
    "usd": _usd,
    "pretty": _pretty,
    "fromjson": beginning,
    "address": shown_url,
}


class Room:
    """The space left on a page for long texts; each is truncated to its own limit, and all together to this space.

    :param until: once this thread's CPU time reaches it, texts are rendered as plain text only
    """

    def __init__(self, size: int, until: float) -> None:
        self.left = size
        self._until = until

    def __call__(self, text: Any, most: int) -> Markup:
        html = escape(str(text)[:most])
        if len(html.encode("utf-8", "replace")) > self.left:
            html = escape(str(text)[: self.left // len("&#34;")])
        self.left -= min(len(html.encode("utf-8", "replace")), self.left)
        return html

    def markdown(self, text: Any) -> Markup:
        html = markdown.render(str(text), self._until)
        size = len(html.encode("utf-8", "replace"))
        if size > self.left:
            return Markup("<pre>{}</pre>").format(self(text, len(str(text))))
        self.left -= size
        return html

    def compared(self, before: str, after: str) -> differences.Sides | None:
        sides = differences.compare(before, after) if time.thread_time() < self._until else None
        size = sum(len(side.encode("utf-8", "replace")) for side in sides or ())
        if size > self.left // 2:
            return None
        self.left -= size
        return sides


def budget() -> float:
    """Return the CPU time of this thread at which a page started now falls back to plain text."""
    _compile_templates()
    return time.thread_time() + markdown.SECONDS


@cache
def _compile_templates() -> None:
    """Compile all templates once; this takes as long as a page may, so the first page would otherwise be plain text."""
    for name in templates.list_templates():
        templates.get_template(name)


def render(template: str, until: float, **values: Any) -> bytes:
    """Return a page; shorten its long texts if it would be too large."""
    for room in ROOMS:
        text = templates.get_template(template).render(room=Room(room, until), **values)
        page = text.encode("utf-8", "replace")
        if len(page) <= LARGEST:
            return page
    return b"The page is too large; request the execution's details from the API instead."


def html_page(template: str, code: int = 200, **values: Any) -> Response:
    return filled(render(template, budget(), **{**BLANKS, **values}), code)


def filled(page: bytes, code: int = 200, **own: str) -> Response:
    """Return a page with viewer-specific parts filled in."""
    nonce = secrets.token_urlsafe(16)
    values = {name.encode(): str(escape(value)).encode() for name, value in {**own, "nonce": nonce}.items()}
    sources = f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'self'; connect-src 'self'"
    headers = {**HEADERS, "Content-Security-Policy": f"{sources}; {POLICY}"}
    return HTMLResponse(FILLED.sub(lambda match: values[match[1]], page), code, headers)


def messages(notice: str | None, problem: str | None) -> Markup:
    """Return the messages to show one viewer above the page."""
    return Markup(templates.get_template("_parts.html").module.messages(notice, problem))  # type: ignore[attr-defined]  # noqa: S704


async def attachment(file: ListedFile, files: Files, headers: Mapping[str, str]) -> Response:
    """Return a file's content, which no browser shows as a page of this service.

    Its first piece is read before the response begins, which can then still be an error.
    """
    name = quote(file.name.rpartition("/")[2], safe="")
    safe = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
        "Content-Length": str(file.stored.size),
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "X-Content-Type-Options": "nosniff",
    }
    media_type = file.stored.content_type
    pieces = files.read(file.stored)
    try:
        first = await run_in_threadpool(next, pieces, b"")
    except FileGone:
        raise HTTPException(404, "The execution has no such file.") from None
    return StreamingResponse(chain([first], pieces), headers={**headers, **safe}, media_type=media_type)


def plain_text(text: str) -> Response:
    headers = {**HEADERS, "Content-Security-Policy": "default-src 'none'; sandbox"}
    return Response(text.encode("utf-8", "replace"), media_type="text/plain; charset=utf-8", headers=headers)
