"""Renders the templates of the page, under a policy that lets nothing load or run but the page's own script."""

from __future__ import annotations

import secrets
from datetime import datetime, timezone
from typing import Any

from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader
from markupsafe import Markup, escape

from crew_service.engine.dead_letters import shown_url
from crew_service.engine.overview import beginning
from crew_service.http import differences, markdown

LARGEST = 1024 * 1024  # bytes of a page
ROOMS = (400_000, 60_000, 5_000)  # bytes for its long texts; markup may make more of the others than anybody foresees
POLICY = "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
# With `no-referrer` a browser sends the page's own forms under the origin `null`, as those of anybody else.
HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "same-origin", "X-Content-Type-Options": "nosniff"}


def _moment(seconds: float) -> Markup:
    """Return a moment in UTC, which the page's script puts into the time zone of its reader."""
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    shown = moment.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}">{}</time>').format(moment.isoformat(timespec="seconds"), shown)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{seconds:.1f} s"


def _usd(cost: float) -> str:
    return f"${cost:,.2f}" if cost >= 1 else f"${cost:.4f}"


templates = Environment(loader=PackageLoader(__package__), autoescape=True, trim_blocks=True, lstrip_blocks=True)
templates.filters |= {
    "moment": _moment,
    "duration": _duration,
    "usd": _usd,
    "fromjson": beginning,
    "address": shown_url,
}


class Room:
    """What is left on a page for long texts: each is cut to its own limit, and all together to this."""

    def __init__(self, size: int) -> None:
        self.left = size

    def __call__(self, text: Any, most: int) -> Markup:
        shown = escape(str(text)[:most])
        if len(shown.encode("utf-8", "replace")) > self.left:
            shown = escape(str(text)[: self.left // len("&#34;")])
        self.left -= min(len(shown.encode("utf-8", "replace")), self.left)
        return shown

    def markdown(self, text: Any) -> Markup:
        html = markdown.render(str(text))
        size = len(html.encode("utf-8", "replace"))
        if size > self.left:
            return Markup("<pre>{}</pre>").format(self(text, len(str(text))))
        self.left -= size
        return html

    def compared(self, before: str, after: str) -> differences.Sides | None:
        sides = differences.compare(before, after)
        size = sum(len(side.encode("utf-8", "replace")) for side in sides or ())
        if size > self.left // 2:
            return None
        self.left -= size
        return sides


def html_page(template: str, code: int = 200, **values: Any) -> Response:
    nonce = secrets.token_urlsafe(16)
    sources = f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'self'; connect-src 'self'"
    headers = {**HEADERS, "Content-Security-Policy": f"{sources}; {POLICY}"}
    for room in ROOMS:
        page = templates.get_template(template).render(nonce=nonce, room=Room(room), **values)
        if len(page.encode("utf-8", "replace")) <= LARGEST:
            return HTMLResponse(page, code, headers)
    return HTMLResponse("The page is too large; ask for the record of the execution.", 500, headers)


def plain_text(text: str) -> Response:
    headers = {**HEADERS, "Content-Security-Policy": "default-src 'none'; sandbox"}
    return Response(text.encode("utf-8", "replace"), media_type="text/plain; charset=utf-8", headers=headers)
