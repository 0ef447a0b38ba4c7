"""The page at /: executions with their progress, and the drafts that wait for a person. Plain forms, no scripts."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader

from . import bodies
from .assembly import Service
from .desk import Decision, Refused
from .gate import DENIED
from .sessions import LIFE, Session, Sessions
from .states import State

POLICY = "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
COOKIE = "crew_session"
LIMIT = 100  # executions shown
FORM_LIMIT = 256 * 1024  # bytes of a form
NOTICES = {
    "approved": "Approved; the crew goes on.",
    "revised": "Sent back; the task runs again with the feedback.",
}
PROBLEMS = {
    "empty": "A revision needs feedback. Nothing was changed.",
    "late": "That answer does not wait for a decision any more. Nothing was changed.",
}
REFUSED_FORM = "This form is not of this session; load the page again."


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


templates = Environment(loader=PackageLoader(__package__), autoescape=True)
templates.filters["moment"] = _moment


class Page:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._sessions = Sessions()

    def add_to(self, app: FastAPI) -> None:
        for method, path, endpoint in (
            ("GET", "/", self.executions),
            ("POST", "/login", self.login),
            ("POST", "/logout", self.logout),
            ("POST", "/review", self.review),
        ):
            app.add_api_route(path, endpoint, methods=[method], include_in_schema=False, response_model=None)

    async def executions(self, request: Request) -> Response:
        session = self._session(request)
        if session is None:
            return self._login_form(request)
        latest = self._service.desk.latest
        rows = await run_in_threadpool(latest, session.caller, LIMIT)
        waiting = await run_in_threadpool(latest, session.caller, LIMIT, State.WAITING)
        states = {row.state for row in rows}
        return html_page(
            "executions.html",
            rows=rows,
            waiting=waiting,
            limit=LIMIT,
            tasks=self._service.crew.tasks,
            dialect=self._service.dialect.name,
            who=session.caller.user or "the organization",
            form_key=session.form_key,
            notice=NOTICES.get(request.query_params.get("notice", "")),
            problem=PROBLEMS.get(request.query_params.get("problem", "")),
            refresh=not waiting and bool(states & {State.QUEUED, State.RUNNING}),
        )

    async def login(self, request: Request) -> Response:
        form = await _form(request)
        caller = self._service.tokens.caller(form.get("token", ""))
        if caller is None:
            return html_page("login.html", 401, problem=DENIED)
        session = self._sessions.open(caller)
        answer = _to_page()
        answer.set_cookie(
            COOKIE,
            session.key,
            max_age=int(LIFE),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    async def logout(self, request: Request) -> Response:
        session, _ = await self._signed_form(request)
        self._sessions.close(session)
        answer = _to_page()
        answer.delete_cookie(COOKIE)
        return answer

    async def review(self, request: Request) -> Response:
        session, form = await self._signed_form(request)
        approve = form.get("decision") == "approve"
        feedback = form.get("feedback", "").strip()
        if not approve and not feedback:
            return _to_page("problem=empty")
        decision = Decision(
            form.get("execution_id", ""),
            form.get("task_id", ""),
            is_approve=approve,
            feedback=feedback or "Approved.",
            round=_number(form.get("round", "")),
        )
        try:
            await run_in_threadpool(self._service.desk.resume, session.caller, decision, None, _nothing)
        except Refused:
            return _to_page("problem=late")
        return _to_page("notice=approved" if approve else "notice=revised")

    def _session(self, request: Request) -> Session | None:
        """From the cookie; a token in the header counts for the one request."""
        caller = request.state.caller
        return Session(caller) if caller else self._sessions.find(request.cookies.get(COOKIE))

    def _login_form(self, request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return html_page("login.html", 401)
        raise HTTPException(401, DENIED, {"WWW-Authenticate": "Bearer"})

    async def _signed_form(self, request: Request) -> tuple[Session, dict[str, str]]:
        session = self._sessions.find(request.cookies.get(COOKIE))
        if session is None:
            raise HTTPException(401, DENIED, {"WWW-Authenticate": "Bearer"})
        form = await _form(request)
        if not session.made_form(form.get("form_key", "")):
            raise HTTPException(403, REFUSED_FORM)
        return session, form


async def _form(request: Request) -> dict[str, str]:
    raw = await bodies.read(request, limit=FORM_LIMIT, seconds=30)
    try:
        fields = parse_qs(raw.decode("ascii"), keep_blank_values=True, max_num_fields=20, errors="strict")
    except ValueError:
        raise HTTPException(400, "The form cannot be read.") from None
    return {name: values[0] for name, values in fields.items()}


def html_page(template: str, code: int = 200, **values: Any) -> Response:
    nonce = secrets.token_urlsafe(16)
    headers = {
        "Content-Security-Policy": f"default-src 'none'; style-src 'nonce-{nonce}'; {POLICY}",
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return HTMLResponse(templates.get_template(template).render(nonce=nonce, **values), code, headers)


def _to_page(query: str = "") -> RedirectResponse:
    return RedirectResponse("./" + (f"?{query}" if query else ""), 303)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _nothing(kickoff_id: str) -> dict[str, Any]:
    return {}
