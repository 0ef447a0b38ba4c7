"""The page: executions with their progress, one execution in full, and the drafts that wait for a person."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import Response

from crew_service.engine.browser_sessions import BrowserSession
from crew_service.engine.container import Container
from crew_service.engine.origin import LONGEST_ID
from crew_service.engine.overview import Filter, Overview, cursor
from crew_service.http.forms import NOTICES, PROBLEMS, Forms, without_zeros
from crew_service.http.html import html_page, plain_text
from crew_service.http.places import Places
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
Made = TypeVar("Made")
SCRIPT = (Path(__file__).parent / "page.js").read_bytes()


class Page(Forms):
    """Plain forms and links, which work without the script too; the script keeps what is shown up to date."""

    def __init__(self, service: Container, places: Places) -> None:
        super().__init__(service)
        self._places = places
        self._data = Overview(service.database, service.name, service.settings.prices)

    def add_to(self, app: FastAPI) -> None:
        for method, path, name in ROUTES:
            app.add_api_route(path, getattr(self, name), methods=[method], include_in_schema=False, response_model=None)

    async def executions(self, request: Request) -> Response:
        session = await self.session(request)
        if session is None:
            return self.login_form(request)
        which = _filter(request, self._service.name, session)
        query = {name: request.query_params[name] for name in ("q", "state", "dag") if request.query_params.get(name)}
        values = {"query": query, "states": [state.value for state in State], **self._common(request, session)}

        def page() -> Response:
            shown = self._data.listed(which)
            older = urlencode({**query, "before": cursor(shown.rows[-1])}) if shown.has_older else ""
            return html_page("executions.html", shown=shown, older=older, **values)

        return await self._in_place(session, page)

    async def execution(self, request: Request) -> Response:
        session = await self.session(request)
        if session is None:
            return self.login_form(request, _id(request))
        return await self.show(request, session, _id(request))

    async def show(
        self, request: Request, session: BrowserSession, execution_id: str, typed: dict[str, str] | None = None
    ) -> Response:
        """One execution; with what was typed before the session ended, where there is something."""
        common = self._common(request, session)

        def page() -> Response:
            shown = self._data.execution(session.caller, execution_id)
            if shown is None:
                return html_page("unknown.html", 404, **common)
            return html_page("execution.html", it=shown, typed=typed or {}, **common)

        return await self._in_place(session, page)

    async def text(self, request: Request) -> Response:
        session = await self.session(request)
        if session is None:
            return self.login_form(request)
        part = request.query_params.get("part", "")
        found = await self._in_place(session, self._data.text, session.caller, _id(request), part)
        if found is None:
            raise HTTPException(404, "There is no such text.")
        return plain_text(found)

    @staticmethod
    async def script(request: Request) -> Response:
        headers = {"Cache-Control": "max-age=300", "X-Content-Type-Options": "nosniff"}
        return Response(SCRIPT, media_type="text/javascript", headers=headers)

    async def _in_place(self, session: BrowserSession, work: Callable[..., Made], *args: Any) -> Made:
        return await self._places.run(self._service.owner(session.caller), work, *args)

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
