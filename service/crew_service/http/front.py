"""The front page for several crews: in a browser, it links to the page of each crew that the token gives access to.

Signing in here signs the browser in to all of these crews. The crews' session keys are derived from this page's only
cookie, so the page itself needs no session. Clients that do not request HTML get the same response as from a service
without a front page.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable

from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse, Response
from starlette.datastructures import Headers
from starlette.routing import Match, Route
from starlette.types import Scope

from crew_service.engine.browser_sessions import BrowserSession
from crew_service.engine.container import Container, Process
from crew_service.http.forms import COOKIE, REFUSED_FORM, base, keep_cookie, read_form
from crew_service.http.html import html_page
from crew_service.http.login_limit import LoginLimit, LoginRefused
from crew_service.http.page import Page
from crew_service.http.sender import sender_of

FRONT_COOKIE = "crew_front"


class _BrowserRoute(Route):
    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or "text/html" not in Headers(scope=scope).get("accept", ""):
            return Match.NONE, {}
        return super().matches(scope)


class Front:
    def __init__(self, process: Process) -> None:
        self._crews = list(process.crews.values())
        self._limit = LoginLimit()

    def add_to(self, app: FastAPI) -> None:
        for method, path, handler in (
            ("GET", "/", self.crews),
            ("POST", "/login", self.login),
            ("POST", "/logout", self.logout),
        ):
            app.router.routes.append(_BrowserRoute(path, handler, methods=[method]))
        app.router.routes.append(Route("/page.js", Page.script, methods=["GET"]))

    async def crews(self, request: Request) -> Response:
        sessions = await self._sessions(request)
        if not sessions:
            return html_page("login.html", 401)
        (_, some), *_ = sessions
        return html_page(
            "crews.html",
            crews=[crew for crew, _ in sessions],
            others=len(self._crews) - len(sessions),
            who=some.caller.user or "the organization",
            form_key=_form_key(request),
        )

    async def login(self, request: Request) -> Response:
        form = await read_form(request)
        address = sender_of(request)
        try:
            known = self._limit.admit(address, form.get("token", ""), self._crews)
        except LoginRefused as refused:
            return html_page("login.html", refused.status, problem=refused.problem)
        key, answer = secrets.token_urlsafe(32), RedirectResponse("./", 303)
        keep_cookie(request, answer, FRONT_COOKIE, key, path=base(request))
        for crew, caller in known:
            session = BrowserSession(caller, _session_key(key, crew))
            await run_in_threadpool(crew.browser_sessions.keep, session)
            keep_cookie(request, answer, COOKIE, session.key, path=base(request, crew.name))
        return answer

    async def logout(self, request: Request) -> Response:
        form = await read_form(request)
        form_key = _form_key(request)
        if not form_key or not hmac.compare_digest(form_key.encode(), form.get("form_key", "").encode()):
            raise HTTPException(403, REFUSED_FORM)
        answer = RedirectResponse("./", 303)
        answer.delete_cookie(FRONT_COOKIE, path=base(request))
        for crew, session in await self._sessions(request):
            await run_in_threadpool(crew.browser_sessions.close, session)
            answer.delete_cookie(COOKIE, path=base(request, crew.name))
        return answer

    async def _sessions(self, request: Request) -> list[tuple[Container, BrowserSession]]:
        """Return the crews that this browser is signed in to or that the request's token gives access to."""
        authorization = request.headers.get("authorization", "")
        key = request.cookies.get(FRONT_COOKIE)

        def found() -> Iterable[tuple[Container, BrowserSession | None]]:
            for crew in self._crews:
                caller = crew.tokens.of_header(authorization)
                session = BrowserSession(caller) if caller else None
                yield crew, session or (crew.browser_sessions.find(_session_key(key, crew)) if key else None)

        return await run_in_threadpool(lambda: [(crew, session) for crew, session in found() if session])


def _session_key(key: str, crew: Container) -> str:
    return _derived(key, f"crew {crew.name}")


def _form_key(request: Request) -> str:
    """Return the key for this browser's forms, which gives no access to a crew's session; empty without a cookie."""
    key = request.cookies.get(FRONT_COOKIE)
    return _derived(key, "form") if key else ""


def _derived(key: str, purpose: str) -> str:
    return hmac.new(key.encode("utf-8", "replace"), purpose.encode(), hashlib.sha256).hexdigest()
