"""The page: executions with their progress, one execution in full, and the drafts that wait for a person."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from crew_service.engine.browser_sessions import BrowserSession
from crew_service.engine.container import Container
from crew_service.engine.origin import LONGEST_ID
from crew_service.engine.overview import PAGE, Filter, Overview, cursor
from crew_service.http.forms import NOTICES, PROBLEMS, Forms, without_zeros
from crew_service.http.html import html_page, plain_text
from crew_service.storage.states import State

ROUTES = (
    ("GET", "/", "executions"),
    ("GET", "/view", "execution"),
    ("GET", "/text", "text"),
    ("GET", "/page.js", "script"),
    ("POST", "/login", "login"),
    ("POST", "/logout", "logout"),
    ("POST", "/review", "review"),
    ("POST", "/cancel", "cancel"),
    ("POST", "/resend", "resend"),
)
OPEN_PATHS = frozenset(path for _, path, _ in ROUTES)  # each checks the session itself
LONGEST_SEARCH = 200
SCRIPT = (Path(__file__).parent / "page.js").read_bytes()


class Page(Forms):
    """Plain forms and links, which work without the script too; the script keeps what is shown up to date."""

    def __init__(self, service: Container) -> None:
        super().__init__(service)
        self._data = Overview(service.database, service.name, service.settings.prices)

    def add_to(self, app: FastAPI) -> None:
        for method, path, name in ROUTES:
            app.add_api_route(path, getattr(self, name), methods=[method], include_in_schema=False, response_model=None)

    async def executions(self, request: Request) -> Response:
        session = await self.session(request)
        if session is None:
            return self.login_form(request)
        which = _filter(request, self._service.name, session)
        shown = await run_in_threadpool(self._data.listed, which)
        query = {name: request.query_params[name] for name in ("q", "state", "dag") if request.query_params.get(name)}
        older = urlencode({**query, "before": cursor(shown.rows[-1])}) if shown.has_older else ""
        return await run_in_threadpool(
            html_page,
            "executions.html",
            shown=shown,
            older=older,
            query=query,
            states=[state.value for state in State],
            page_size=PAGE,
            **self._common(request, session),
        )

    async def execution(self, request: Request) -> Response:
        session = await self.session(request)
        if session is None:
            return self.login_form(request, _id(request))
        return await self.show(request, session, _id(request))

    async def show(
        self, request: Request, session: BrowserSession, execution_id: str, typed: dict[str, str] | None = None
    ) -> Response:
        """One execution; with what was typed before the session ended, where there is something."""
        shown = await run_in_threadpool(self._data.execution, session.caller, execution_id)
        if shown is None:
            return html_page("unknown.html", 404, **self._common(request, session))
        values = {"it": shown, "typed": typed or {}, **self._common(request, session)}
        return await run_in_threadpool(html_page, "execution.html", **values)

    async def text(self, request: Request) -> Response:
        session = await self.session(request)
        if session is None:
            return self.login_form(request)
        part = request.query_params.get("part", "")
        found = await run_in_threadpool(self._data.text, session.caller, _id(request), part)
        if found is None:
            raise HTTPException(404, "There is no such text.")
        return plain_text(found)

    @staticmethod
    async def script(request: Request) -> Response:
        headers = {"Cache-Control": "max-age=300", "X-Content-Type-Options": "nosniff"}
        return Response(SCRIPT, media_type="text/javascript", headers=headers)

    def _common(self, request: Request, session: BrowserSession) -> dict[str, Any]:
        return {
            "crew": self._service.name,
            "title": self._service.title,
            "tasks": self._service.crew.tasks,
            "who": session.caller.user or "the organization",
            "form_key": session.form_key,
            "notice": NOTICES.get(request.query_params.get("notice", "")),
            "problem": PROBLEMS.get(request.query_params.get("problem", "")),
        }


def _filter(request: Request, crew: str, session: BrowserSession) -> Filter:
    """What cannot be understood filters nothing."""
    given = request.query_params
    states = frozenset(state for state in State if state.value == given.get("state"))
    moment, _, last = without_zeros(given.get("before", "")).partition(",")
    search = without_zeros(given.get("q", "")).strip()
    try:
        before = (float(moment), last) if moment else None
    except ValueError:
        before = None
    dag_id = without_zeros(given.get("dag", "")).strip()[:LONGEST_ID] or None
    return Filter(crew, session.caller.user, states, search[:LONGEST_SEARCH], dag_id, before)


def _id(request: Request) -> str:
    return without_zeros(request.query_params.get("id", ""))
