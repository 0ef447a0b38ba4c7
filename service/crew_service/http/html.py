"""Renders the templates of the page, under a policy that lets nothing load or run but the page's own script."""

from __future__ import annotations

import secrets
from datetime import datetime, timezone
from typing import Any

from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader

from crew_service.engine.overview import beginning
from crew_service.http import differences, markdown

POLICY = "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


templates = Environment(loader=PackageLoader(__package__), autoescape=True, trim_blocks=True, lstrip_blocks=True)
templates.filters |= {"moment": _moment, "markdown": markdown.render, "fromjson": beginning}
templates.globals["compared"] = differences.compare


def html_page(template: str, code: int = 200, **values: Any) -> Response:
    nonce = secrets.token_urlsafe(16)
    sources = f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'self'; connect-src 'self'"
    headers = {**HEADERS, "Content-Security-Policy": f"{sources}; {POLICY}"}
    return HTMLResponse(templates.get_template(template).render(nonce=nonce, **values), code, headers)


def plain_text(text: str) -> Response:
    headers = {**HEADERS, "Content-Security-Policy": "default-src 'none'; sandbox"}
    return Response(text.encode("utf-8", "replace"), media_type="text/plain; charset=utf-8", headers=headers)
