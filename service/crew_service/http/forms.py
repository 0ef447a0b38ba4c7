"""The page's forms: signing in and out, deciding, stopping, and resending a webhook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any
from urllib.parse import parse_qs, urlencode

from fastapi import HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse, Response

from crew_service.engine import paths
from crew_service.engine.browser_sessions import LIFE, BrowserSession
from crew_service.engine.container import Container
from crew_service.engine.decisions import AnotherDraft, BadAnswer, Decision, Refused
from crew_service.http import bodies
from crew_service.http.auth import DENIED, denial
from crew_service.http.html import html_page
from crew_service.http.login_limit import LoginLimit, LoginRefused
from crew_service.http.sender import sender_of

COOKIE = "crew_session"
FORM_LIMIT = 256 * 1024  # bytes of a form
TYPED = ("execution_id", "mark", "feedback")  # fields of a decision, kept across a login
NOTICES = {
    "answered": "Answered; the crew continues.",
    "approved": "Approved; the crew continues.",
    "revised": "Sent back; the task runs again with the feedback.",
    "stopped": "Execution stopped.",
    "resent": "The webhook will be sent again.",
}
PROBLEMS = {
    "unfit": "The question does not accept this answer. Nothing was changed.",
    "empty": "A revision needs feedback. Nothing was changed.",
    "late": "This draft no longer needs a decision. Nothing was changed.",
    "over": "The execution has already ended. Nothing was changed.",
    "gone": "This webhook is no longer listed as undelivered. Nothing was changed.",
}
FOREIGN_FORM = "This form was sent by a page on another site; nothing was changed."
REFUSED_FORM = "This form belongs to another session; reload the page."
ENDED = "Your session has ended. Your input was kept: sign in, then decide."


class Forms(ABC):
    def __init__(self, service: Container) -> None:
        self._service = service
        self._sessions = service.browser_sessions
        self._limit = LoginLimit()

    @abstractmethod
    async def show(
        self, request: Request, session: BrowserSession, execution_id: str, typed: dict[str, str] | None = None
    ) -> Response: ...

    async def session(self, request: Request) -> BrowserSession | None:
        """Return the session for the cookie, or a temporary one for a request with a token."""
        caller = request.state.caller
        if caller:
            return BrowserSession(caller)
        return await run_in_threadpool(self._sessions.find, request.cookies.get(COOKIE))

    def login_form(self, request: Request, execution_id: str = "") -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return html_page("login.html", 401, title=self._service.title, back=execution_id)
        return denial(request.state.denied)

    async def login(self, request: Request) -> Response:
        form = await read_form(request)
        typed, back = {name: form[name] for name in TYPED if name in form}, form.get("back", "")
        address = sender_of(request)
        try:
            [(_, caller)] = self._limit.admit(address, form.get("token", ""), [self._service])
        except LoginRefused as refused:
            fields = {"title": self._service.title, "problem": refused.problem}
            return html_page("login.html", refused.status, **fields, typed=typed, back=back)
        session = await run_in_threadpool(self._sessions.open, caller)
        execution_id = typed.get("execution_id")
        answer = await self.show(request, session, execution_id, typed) if execution_id else _to_page(back)
        self._keep(request, answer, session)
        return answer

    def _keep(self, request: Request, answer: Response, session: BrowserSession) -> None:
        keep_cookie(request, answer, COOKIE, session.key, path=base(request))

    async def logout(self, request: Request) -> Response:
        session, _ = await self._signed_form(request)
        await run_in_threadpool(self._sessions.close, session)
        answer = _to_page()
        answer.delete_cookie(COOKIE, path=base(request))
        return answer

    async def review(self, request: Request) -> Response:
        if await self.session(request) is None:
            return await self._sign_in_again(request)
        session, form = await self._signed_form(request)
        back = form.get("back", "")
        decision = _decision(form)
        if decision is None:
            return _to_page(back, problem="empty")
        try:
            await run_in_threadpool(self._service.executions.resume, session.caller, decision, None, _nothing)
        except AnotherDraft:
            return _to_page(back, problem="late")
        except BadAnswer:
            return _to_page(back, problem="unfit")
        except Refused:
            return _to_page(back, problem="late")
        return _to_page(back, notice=_notice(decision))

    async def _sign_in_again(self, request: Request) -> Response:
        form = await read_form(request)
        typed = {name: form[name] for name in TYPED if name in form}
        problem = ENDED if typed.get("execution_id") else DENIED
        return html_page("login.html", 401, title=self._service.title, problem=problem, typed=typed)

    async def cancel(self, request: Request) -> Response:
        session, form = await self._signed_form(request)
        execution_id = form.get("execution_id", "")
        try:
            await run_in_threadpool(self._service.executions.stop, session.caller, execution_id)
        except Refused:
            return _to_page(execution_id, problem="over")
        return _to_page(execution_id, notice="stopped")

    async def resend(self, request: Request) -> Response:
        session, form = await self._signed_form(request)
        sent = await run_in_threadpool(self._service.dead_letters.resend, session.caller, form.get("webhook_id", ""))
        return _to_page(form.get("back", ""), **({"notice": "resent"} if sent else {"problem": "gone"}))

    async def _signed_form(self, request: Request) -> tuple[BrowserSession, dict[str, str]]:
        session = await run_in_threadpool(self._sessions.find, request.cookies.get(COOKIE))
        if session is None:
            raise HTTPException(401, DENIED, {"WWW-Authenticate": "Bearer"})
        form = await read_form(request)
        if not session.made_form(form.get("form_key", "")):
            raise HTTPException(403, REFUSED_FORM)
        return session, form


def keep_cookie(request: Request, answer: Response, name: str, key: str, *, path: str) -> None:
    """Set a session cookie that scripts cannot read and that browsers do not send with cross-site requests."""
    secure = request.url.scheme == "https"
    answer.set_cookie(name, key, max_age=int(LIFE), path=path, httponly=True, samesite="strict", secure=secure)


def base(request: Request, crew: str = "") -> str:
    """Return the path for a cookie, so that one crew's session is not sent to another crew.

    :param crew: the name of a crew below the page that gets the request
    """
    return f"{request.scope.get('root_path', '')}{paths.of_crew(crew)}/"


def _decision(form: dict[str, str]) -> Decision | None:
    """Return the decision in a form; None if required feedback is missing."""
    outcome = form.get("outcome")
    feedback = form.get("feedback", "").strip()
    approve = {"approve": True, "answer": None}.get(form.get("decision", ""), False)
    if not feedback and outcome is None and not approve:
        return None
    return Decision(
        form.get("execution_id", ""),
        form.get("task_id", ""),
        is_approve=None if outcome else approve,
        feedback=feedback or ("" if outcome else "Approved."),
        round=paths.whole(form.get("round", "")) or 0,
        outcome=outcome,
        question_id=form.get("question_id") or None,
        draft_sha256=form.get("draft_sha256") or None,
    )


def _notice(decision: Decision) -> str:
    if decision.is_approve is None:
        return "answered"
    return "approved" if decision.is_approve else "revised"


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of one of this service's forms.

    :raises HTTPException: another site's page sent it, or it cannot be parsed
    """
    if _is_cross_site(request):
        raise HTTPException(403, FOREIGN_FORM)
    raw = await bodies.read(request, limit=FORM_LIMIT, seconds=30)
    try:
        fields = parse_qs(raw.decode("ascii"), keep_blank_values=True, max_num_fields=20, errors="strict")
    except ValueError:
        raise HTTPException(400, "The form cannot be read.") from None
    return {name: without_zeros(values[0]) for name, values in fields.items()}


def _is_cross_site(request: Request) -> bool:
    """Return whether a browser reports that another site's page sent the request; other clients report no site."""
    headers = request.headers
    if site := headers.get("sec-fetch-site"):
        return site not in ("same-origin", "none")
    origin = headers.get("origin")  # all that a browser reports over plain HTTP; a proxy may have changed the host
    hosts = (headers.get("host"), headers.get("x-forwarded-host"))
    return origin is not None and origin.rpartition("://")[2] not in hosts


def without_zeros(text: str) -> str:
    """Remove NUL characters, which PostgreSQL cannot compare; no id or search text contains one."""
    return text.replace("\0", "")


def _to_page(execution_id: str = "", **query: Any) -> RedirectResponse:
    if execution_id:
        return RedirectResponse("./view?" + urlencode({"id": execution_id, **query}), 303)
    return RedirectResponse("./" + (f"?{urlencode(query)}" if query else ""), 303)


def _nothing(kickoff_id: str, decision: Decision) -> dict[str, Any]:
    return {}
