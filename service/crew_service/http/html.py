"""Renders the templates of the page, under a policy that lets nothing load or run but the page's own script."""

from __future__ import annotations

import secrets
from datetime import datetime, timezone
from typing import Any

from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from crew_service.engine.overview import beginning
from crew_service.http import differences, markdown
from crew_service.storage import webhooks

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
    "markdown": markdown.render,
    "fromjson": beginning,
    "address": webhooks.shown_url,
}
templates.globals["compared"] = differences.compare


def html_page(template: str, code: int = 200, **values: Any) -> Response:
    nonce = secrets.token_urlsafe(16)
    sources = f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'self'; connect-src 'self'"
    headers = {**HEADERS, "Content-Security-Policy": f"{sources}; {POLICY}"}
    return HTMLResponse(templates.get_template(template).render(nonce=nonce, **values), code, headers)


def plain_text(text: str) -> Response:
    headers = {**HEADERS, "Content-Security-Policy": "default-src 'none'; sandbox"}
    return Response(text.encode("utf-8", "replace"), media_type="text/plain; charset=utf-8", headers=headers)
