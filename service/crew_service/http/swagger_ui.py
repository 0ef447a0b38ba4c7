"""The page at /docs: Swagger UI for the OpenAPI document. Its assets come from a package, not from the network."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from mimetypes import guess_type
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import Response

from crew_service.http.html import HEADERS, POLICY, templates
from crew_service.http.unsent import SHARED

ASSETS = {  # by path: the package and the file in it
    "/docs/swagger-ui.css": ("fastapi_offline", "static/swagger-ui.css"),
    "/docs/swagger-ui-bundle.js": ("fastapi_offline", "static/swagger-ui-bundle.js"),
    "/docs/start.js": (__package__, "swagger_ui.js"),
}
PATHS = ("/docs", *ASSETS)
OPEN_PATHS = frozenset({"/openapi.json", *PATHS})
# Swagger UI sets inline styles on elements, and its style sheet contains its icons as data.
SOURCES = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'"
)
ASSET_HEADERS = {"Cache-Control": "max-age=3600", "X-Content-Type-Options": "nosniff"}


def add_to(app: FastAPI) -> None:
    for path in PATHS:
        app.add_api_route(path, _answer, methods=["GET"], include_in_schema=False, response_model=None)


@cache
def _asset(path: str) -> bytes:
    """Read an asset once; otherwise, each client that is not reading its response would keep a file open."""
    package, name = ASSETS[path]
    return (Path(str(files(package))) / name).read_bytes()


async def _answer(request: Request) -> Response:
    path: str = request.scope["route"].path
    if path in ASSETS:
        request.scope["state"][SHARED] = True
        return Response(_asset(path), headers=ASSET_HEADERS, media_type=guess_type(path)[0])
    headers = {**HEADERS, "Content-Security-Policy": f"{SOURCES}; {POLICY}"}
    return Response(templates.get_template("docs.html").render(), headers=headers, media_type="text/html")
