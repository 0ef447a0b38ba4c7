"""The browser page: executions with their progress, the details of one execution, and waiting drafts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import Response
from sqlalchemy.engine import Row

from crew_service.engine import paths
from crew_service.engine.browser_sessions import BrowserSession
from crew_service.engine.container import Container
from crew_service.engine.details import Details
from crew_service.engine.origin import LONGEST_ID
from crew_service.engine.output_files import OUT, ListedFile, chosen
from crew_service.engine.overview import Filter, Overview, cursor, place
from crew_service.engine.principals import Principal
from crew_service.engine.usage_report import BadPeriod
from crew_service.http.forms import NOTICES, PROBLEMS, Forms, without_zeros
from crew_service.http.html import BLANKS, attachment, budget, filled, html_page, messages, plain_text, render
from crew_service.http.slots import Slots
from crew_service.storage.states import State

ROUTES = (
    ("GET", "/", "executions"),
    ("GET", "/view", "execution"),
    ("GET", "/budgets", "usage"),
    ("GET", "/text", "text"),
    ("GET", "/file", "file"),
    ("GET", "/page.js", "script"),
    ("POST", "/login", "login"),
    ("POST", "/logout", "logout"),
    ("POST", "/review", "review"),
    ("POST", "/cancel", "cancel"),
    ("POST", "/resend", "resend"),
)
OPEN_PATHS = frozenset(path for _, path, _ in ROUTES)  # each checks the session itself
LONGEST_SEARCH = 200
MOST_SHOWN = 500  # rows of usage
CHOICES = ("day", "crew", "owner", "model", "day,model", "owner,model")
BUDGET_NAMES = {"*": "this service"}
Made = TypeVar("Made")
SCRIPT = (Path(__file__).parent / "page.js").read_bytes()


class Page(Forms):
    """The page's handlers; its plain forms and links also work without the script, which keeps the page up to date."""

    def __init__(self, service: Container, slots: Slots, details: Details) -> None:
        super().__init__(service)
        self._slots = slots
        self._details = details
        crew = service.crew
        self._about = {"crew": service.name, "title": service.title, "tasks": crew.tasks, "off": crew.off}
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
            listing = self._data.listed(which)
            older = urlencode({**query, "before": cursor(listing.rows[-1])}) if listing.has_older else ""
            return html_page("executions.html", shown=listing, older=older, **values)

        return await self._in_place(session, page)

    async def execution(self, request: Request) -> Response:
        session = await self.session(request)
        if session is None:
            return self.login_form(request, _id(request))
        return await self.show(request, session, _id(request))

    async def show(
        self, request: Request, session: BrowserSession, execution_id: str, typed: dict[str, str] | None = None
    ) -> Response:
        """Return the page of one execution, with any text that was typed before the session ended."""
        common = self._common(request, session)

        def page() -> Response:
            head = self._head(session.caller, execution_id)
            made = self._shared(head, session.caller, typed or {}) if head is not None else None
            if made is None:
                return html_page("unknown.html", 404, **common)
            own = {"form_key": session.form_key, "who": common["who"]}
            return filled(made, **own, messages=messages(common["notice"], common["problem"]))

        return await self._in_place(session, page)

    def _shared(self, head: Row[Any], caller: Principal, typed: dict[str, str]) -> bytes | None:
        """Return the page with blanks for the viewer-specific parts; it is created once per state of the execution."""
        is_organization = caller.user is None
        version, letters = self._details.version(self._details.found(head), with_printed=is_organization)

        def make() -> bytes | None:
            until = budget()
            details = self._details.shown(head.id, letters, with_printed=is_organization)
            return (
                render("execution.html", until, it=details, typed=typed, **self._about, **BLANKS) if details else None
            )

        return make() if typed else self._slots.pages.get((version, is_organization), make)

    def _head(self, caller: Principal, execution_id: str) -> Row[Any] | None:
        return self._service.executions.head(caller, execution_id) if execution_id else None

    async def usage(self, request: Request) -> Response:
        session = await self.session(request)
        if session is None:
            return self.login_form(request)
        report, parameters = self._service.usage, request.query_params
        try:
            first, last, by = report.period(parameters.get("from"), parameters.get("to"), parameters.get("by"))
        except BadPeriod:
            first, last, by = report.period()
        common = self._common(request, session)

        def page() -> Response:
            figures = report.read(session.caller, first, last, by, most=MOST_SHOWN)
            most = max((row["total_tokens"] for row in figures["rows"]), default=0)
            values: dict[str, Any] = {
                "first": first,
                "last": last,
                "by": ",".join(by),
                "choices": CHOICES,
                "most": most,
            }
            return html_page("usage.html", found=figures, names=BUDGET_NAMES, **values, **common)

        return await self._in_place(session, page)

    async def text(self, request: Request) -> Response:
        session = await self.session(request)
        if session is None:
            return self.login_form(request)
        part = request.query_params.get("part", "")
        content = await self._in_place(session, self._whole_text, session.caller, _id(request), part)
        if content is None:
            raise HTTPException(404, "There is no such text.")
        return plain_text(content)

    async def file(self, request: Request) -> Response:
        session = await self.session(request)
        if session is None:
            return self.login_form(request)
        parameters = request.query_params
        version = paths.whole(parameters.get("version", ""))
        files = await self._in_place(session, self._files, session.caller, _id(request))
        file = chosen(files, parameters.get("name", ""), version, parameters.get("direction", OUT))
        if file is None:
            raise HTTPException(404, "There is no such file.")
        return await attachment(file, self._service.files, {"Cache-Control": "private, no-store"})

    def _files(self, caller: Principal, execution_id: str) -> list[ListedFile]:
        head = self._head(caller, execution_id)
        return (head and self._details.files(head.id)) or []

    def _whole_text(self, caller: Principal, execution_id: str, part: str) -> str | None:
        head = self._head(caller, execution_id)
        return head and self._details.whole_text(head.id, part, with_printed=caller.user is None)

    @staticmethod
    async def script(request: Request) -> Response:
        headers = {"Cache-Control": "max-age=300", "X-Content-Type-Options": "nosniff"}
        return Response(SCRIPT, media_type="text/javascript", headers=headers)

    async def _in_place(self, session: BrowserSession, work: Callable[..., Made], *args: Any) -> Made:
        return await self._slots.run(self._service.owner(session.caller), work, *args)

    def _common(self, request: Request, session: BrowserSession) -> dict[str, Any]:
        return {
            **self._about,
            "who": session.caller.user or "the organization",
            "form_key": session.form_key,
            "notice": NOTICES.get(request.query_params.get("notice", "")),
            "problem": PROBLEMS.get(request.query_params.get("problem", "")),
        }


def _filter(request: Request, crew: str, session: BrowserSession) -> Filter:
    """Return the request's filter, ignoring values that cannot be parsed."""
    parameters = request.query_params
    states = frozenset(state for state in State if state.value == parameters.get("state"))
    search = without_zeros(parameters.get("q", "")).strip()
    before = place(without_zeros(parameters.get("before", "")))
    dag_id = without_zeros(parameters.get("dag", "")).strip()[:LONGEST_ID] or None
    return Filter(crew, session.caller.user, states, search[:LONGEST_SEARCH], dag_id, before)


def _id(request: Request) -> str:
    return without_zeros(request.query_params.get("id", ""))
