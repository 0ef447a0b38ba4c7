"""The tab's HTTP endpoints: a page, the part refreshed while the execution runs, and a DAG run's overview.

A URL names a task instance, and every request asks Airflow's auth manager for access to its DAG. The server determines
which execution to show from the records of that task instance.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import HTMLResponse, Response

from airflow_crew_provider.api.addresses import view_path
from airflow_crew_provider.compat import task_records
from airflow_crew_provider.compat.access import MAY_SEE
from airflow_crew_provider.compat.task_records import Place, TaskRecord
from airflow_crew_provider.models import REGION_FIELDS, Json, region
from airflow_crew_provider.view import deployment, page, pictures
from airflow_crew_provider.view.execution import Seen, Target, of_dag, picture_in, progress
from airflow_crew_provider.view.lookups import Made, Shared
from airflow_crew_provider.view.page import Facts, Page, address
from airflow_crew_provider.view.pictures import Picture, Source

# A connection can use only some of the threads, so that a deployment that hangs leaves others free.
MOST_LOOK_UPS, LOOK_UPS_OF_A_CONNECTION = 32, 2
# A browser asks again each time, so that nobody sees a picture without permission.
OF_PICTURES = {"Cache-Control": "private, no-cache", "Content-Security-Policy": "default-src 'none'; sandbox"}
LONGEST_INDEX = 9  # digits
PAUSE = 2.0  # seconds between two lookups of the same execution, however many people watch
MOST_PICTURES = 16  # kept, of at most 1 MiB each
MOST_SHOWN = 500  # executions in the overview of a run
SAID = {
    401: ("Not signed in", "Sign in to Airflow and open this page again."),
    403: ("No access", "You are not allowed to see this DAG's XComs and questions, so its executions are not shown."),
    404: ("Nothing here", "There is no such task or DAG run."),
}


_CONNECTION = attrgetter("crew_conn_id")


class Run:
    """The executions of a DAG run according to the records of its tasks in Airflow's database, the latest last."""

    is_final = False

    def __init__(self, tasks: Sequence[TaskRecord] = ()) -> None:
        self.tasks = tasks
        self._by_execution: dict[tuple[str, str], list[TaskRecord]] = {}
        for task in tasks:
            self._by_execution.setdefault(_execution(task), []).append(task)

    def of(self, task_id: str, map_index: int, iteration: Json) -> TaskRecord | None:
        """Return the record of a task instance; in a loop, that of the latest iteration if none is named."""
        mine = [task for task in self.tasks if (task.task_id, task.map_index) == (task_id, map_index)]
        return next((task for task in reversed(mine) if not iteration or task.iteration == iteration), None)

    def about(self, task: TaskRecord) -> list[TaskRecord]:
        """Return all tasks that have the same execution as this one."""
        return self._by_execution[_execution(task)]

    @property
    def latest(self) -> list[TaskRecord]:
        """The latest task of each execution."""
        return [tasks[-1] for tasks in self._by_execution.values()]

    def target(self, task: TaskRecord) -> Target:
        """Return a task's execution with the latest id to poll, and with its page if any of its tasks recorded one.

        A resume may return a new id to poll.
        """
        same = self.about(task)
        view = next((view for each in reversed(same) if (view := view_path(each.about.get("view")))), None)
        kickoff_id = str(same[-1].about["kickoff_id"])
        return Target(*_execution(task), kickoff_id, view)

    def has_started(self, task: TaskRecord) -> bool:
        """Whether this run started the execution that is polled for a task."""
        same = self.about(task)
        polled = same[-1].about["kickoff_id"]
        return any(each.is_own and each.about["kickoff_id"] == polled for each in same)


def _execution(task: TaskRecord) -> tuple[str, str]:
    return str(task.about["crew_conn_id"]), str(task.about["execution_id"])


@dataclass(frozen=True)
class Decided:
    """The decisions made in an execution's reviews."""

    is_final = False

    decisions: Sequence[Json]


class Knowledge:
    """The data that this API server has looked up, shared by all viewers."""

    def __init__(self, look_up: Any = deployment.look_up, pause: float = PAUSE) -> None:
        self.runs: Shared[tuple[str, str], Run] = Shared(_run, pause=pause, threads=2, most=64)
        self.decided: Shared[tuple[str, str, frozenset[Place]], Decided] = Shared(
            _decided, pause=pause, threads=2, most=64
        )
        self.executions: Shared[Target, Seen] = Shared(
            look_up, pause=pause, threads=MOST_LOOK_UPS, most=32, owner=_CONNECTION, each=LOOK_UPS_OF_A_CONNECTION
        )
        self.pictures: Shared[Source, Picture] = Shared(
            pictures.fetched,
            pause=pause,
            threads=4,
            most=MOST_PICTURES,
            owner=_CONNECTION,
            each=LOOK_UPS_OF_A_CONNECTION,
        )
        self.overviews: Shared[tuple[str, str, str], Page] = Shared(self._overview, pause=pause, threads=1, most=16)
        self.fragments: Made[tuple[str, ...], Page] = Made(threads=2, most=64)

    async def run(self, dag_id: str, run_id: str, now: float) -> Run:
        """Return the records of a DAG run."""
        return await self.runs.latest((dag_id, run_id), now) or Run()

    async def facts(self, run: Run, task: TaskRecord, dag_id: str, run_id: str, now: float) -> Facts:
        """Return the facts that a task's page shows."""
        same, target = run.about(task), run.target(task)
        execution = of_dag(await self.executions.latest(target, now), dag_id, is_own=run.has_started(task))
        key = (dag_id, run_id, frozenset(each.place for each in same))
        decided = await self.decided.latest(key, now)
        asking = next((each for each in same if each.has_open_form), None)
        return Facts(
            kickoff_id=target.kickoff_id,
            execution_id=target.execution_id,
            crew_conn_id=target.crew_conn_id,
            seen=execution,
            decisions=_of_execution(decided.decisions, target.execution_id) if decided else (),
            form=_form(dag_id, run_id, asking) if asking else "",
        )

    def _overview(self, key: tuple[str, str, str], before: Page | None) -> Page:
        dag_id, run_id, root = key
        run = self.runs.peek((dag_id, run_id)) or Run()
        latest = sorted(run.latest, key=lambda task: task.map_index)
        prefix = f"{root}/{address('dags', dag_id, 'runs', run_id, 'tasks')}"

        def seen(task: TaskRecord) -> Seen | None:
            return of_dag(self.executions.peek(run.target(task)), dag_id, is_own=run.has_started(task))

        lines = [_line(seen(task), task, prefix) for task in latest[:MOST_SHOWN]]
        return Page.of(page.run_page(dag_id, run_id, lines, left_out=max(0, len(latest) - MOST_SHOWN)))


def _run(key: tuple[str, str], before: Run | None) -> Run:
    return Run(task_records.of_run(*key))


def _decided(key: tuple[str, str, frozenset[Place]], before: Decided | None) -> Decided:
    return Decided(task_records.decisions(*key))


def _of_execution(decisions: Sequence[Json], execution_id: str) -> Sequence[Json]:
    """Leave out decisions about an execution of an earlier try of the same task."""
    return [each for each in decisions if each.get("execution_id", execution_id) == execution_id]


def _form(dag_id: str, run_id: str, task: TaskRecord) -> str:
    mapped = f"/mapped/{task.map_index}" if task.map_index >= 0 else ""
    place = f"{address('dags', dag_id, 'runs', run_id, 'tasks', task.task_id)}{mapped}"
    return f"{place}/required_actions{_query(task.iteration)}"


def _query(iteration: Json) -> str:
    """Return the query that names an iteration, as in Airflow's own pages."""
    return f"?{urlencode(iteration)}" if iteration else ""


# --- endpoints ---

router = APIRouter(dependencies=[Depends(each) for each in MAY_SEE])
Index = str  # for an unmapped task, Airflow's page leaves the placeholder in the URL


def knowledge(request: Request) -> Knowledge:
    """Return the application's state."""
    known: Knowledge = request.app.state.knowledge
    return known


@router.get("/dags/{dag_id}/runs/{run_id}/tasks/{task_id}/{map_index}")
async def task_page(request: Request, dag_id: str, run_id: str, task_id: str, map_index: Index) -> Response:
    """Show the execution of a task."""
    return await _task(request, dag_id, run_id, task_id, map_index, whole=True)


@router.get("/dags/{dag_id}/runs/{run_id}/tasks/{task_id}/{map_index}/fragment")
async def task_fragment(request: Request, dag_id: str, run_id: str, task_id: str, map_index: Index) -> Response:
    """Return the part of the page that changes, or 304 if it has not changed."""
    return await _task(request, dag_id, run_id, task_id, map_index, whole=False)


async def _task(request: Request, dag_id: str, run_id: str, task_id: str, map_index: str, *, whole: bool) -> Response:
    index, now = _index(map_index), time.monotonic()
    known = knowledge(request)
    run = await known.run(dag_id, run_id, now)
    iteration = _iteration(request)
    task = run.of(task_id, index, iteration)
    overview = f"{request.scope.get('root_path', '')}/{address('dags', dag_id, 'runs', run_id)}"
    place = f"{overview}/{address('tasks', task_id, index)}"
    if task is None:
        if not await run_in_threadpool(task_records.exists, dag_id, run_id, task_id, index):
            raise HTTPException(404)
        rendered, is_live = Page.of(page.nothing_yet(overview)), True
    else:
        facts = await known.facts(run, task, dag_id, run_id, now)
        # Airflow's own path is `app_root_path`; that of a plugin's application is below it.
        form = f"{request.scope.get('app_root_path') or ''}/{facts.form}" if facts.form else ""
        own = {"form": form, "run": overview, "pictures": f"{place}/pictures", "query": _query(iteration)}
        key = (*own.values(), facts.crew_conn_id, facts.execution_id)
        rendered = await known.fragments.of(key, facts, lambda: Page.of(page.fragment(facts, **own)))
        is_live = facts.is_live
    if not whole:
        return _fragment(request, rendered, is_live=is_live)
    updates = f"{place}/fragment{_query(iteration)}"
    return _html(page.task_page(task_id, rendered.body, address=updates, is_live=is_live, run=overview))


@router.get("/dags/{dag_id}/runs/{run_id}/tasks/{task_id}/{map_index}/pictures/{sha256}")
async def picture(request: Request, dag_id: str, run_id: str, task_id: str, map_index: Index, sha256: str) -> Response:
    """Return a picture that the task's page shows."""
    known, now = knowledge(request), time.monotonic()
    run = await known.run(dag_id, run_id, now)
    task = run.of(task_id, _index(map_index), _iteration(request))
    execution = (await known.facts(run, task, dag_id, run_id, now)).seen if task else None
    place = picture_in(execution.found, sha256) if execution and execution.found else None
    if task is None or place is None:
        raise HTTPException(404)
    headers = {**_headers(), **OF_PICTURES, "ETag": f'"{sha256}"'}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(None, 304, headers)
    target = run.target(task)
    image = await known.pictures.latest(Source(target.crew_conn_id, target.execution_id, *place), now)
    if image is None or image.content is None:
        raise HTTPException(502)
    return Response(image.content, media_type=image.content_type, headers=headers)


def _iteration(request: Request) -> Json:
    """Read the requested iteration of a loop; Airflow's page does not send it."""
    named = request.query_params
    if not set(REGION_FIELDS) <= set(named):
        return {}
    region_id, index = (named[name] for name in REGION_FIELDS)
    return region(region_id, _index(index))


@router.get("/dags/{dag_id}/runs/{run_id}")
async def run_page(request: Request, dag_id: str, run_id: str) -> Response:
    """Show all executions of a DAG run from Airflow's records, without polling a deployment."""
    known, now = knowledge(request), time.monotonic()
    run = await known.run(dag_id, run_id, now)
    if not run.tasks and not await run_in_threadpool(task_records.exists, dag_id, run_id):
        raise HTTPException(404)
    rendered = await known.overviews.latest((dag_id, run_id, request.scope.get("root_path", "")), now)
    return _fragment(request, rendered or Page.of(page.run_page(dag_id, run_id, [], left_out=0)), is_live=True)


def _line(execution: Seen | None, task: TaskRecord, prefix: str) -> Json:
    details = execution.found if execution else None
    state = str(details["state"]) if details else _state(task)
    return {
        "href": f"{prefix}/{address(task.task_id, task.map_index)}{_query(task.iteration)}",
        "label": task.label or (f"#{task.map_index}" if task.map_index >= 0 else task.about["execution_id"]),
        "task_id": task.task_id,
        "state": state,
        "word": page.STATES.get(state, state),
        "progress": progress(details) if details else None,
    }


def _state(task: TaskRecord) -> str:
    """Return an execution's state according to Airflow."""
    if task.has_open_form:
        return "pending"
    return {"failed": "error", "upstream_failed": "error", "success": "completed"}.get(task.state or "", "running")


# --- responses ---


def _index(text: str) -> int:
    """Read a map index; an unmapped task has -1, or the placeholder that Airflow's page leaves in the URL."""
    if text == "{MAP_INDEX}":
        return -1
    if len(text) > LONGEST_INDEX:  # no map index is that long
        raise HTTPException(404)
    try:
        return int(text)
    except ValueError:
        raise HTTPException(404) from None


def _fragment(request: Request, rendered: Page, *, is_live: bool) -> Response:
    headers = {"ETag": rendered.etag, "Crew-Live": "yes" if is_live else "no"}
    if request.headers.get("if-none-match") == rendered.etag:
        return Response(None, 304, {**_headers(), **headers})
    return _html(rendered.body, headers=headers)


def _html(text: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return HTMLResponse(text, status, {**_headers(), **(headers or {})})


def _headers() -> dict[str, str]:
    return {
        "Content-Security-Policy": page.policy(),
        "Cache-Control": "private, no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    title, text = SAID.get(error.status_code, ("Not shown", "This page cannot be shown."))
    return _html(page.message_page(title, text), error.status_code)


icons = APIRouter()


@icons.get("/icon.svg")
def icon() -> Response:
    """Return the tab's icon for a light page."""
    return Response(page.icon(dark=False), media_type="image/svg+xml", headers={"Cache-Control": "max-age=86400"})


@icons.get("/icon-dark.svg")
def icon_dark() -> Response:
    """Return the tab's icon for a dark page."""
    return Response(page.icon(dark=True), media_type="image/svg+xml", headers={"Cache-Control": "max-age=86400"})


def view_app(known: Knowledge | None = None) -> FastAPI:
    """Return the application."""
    app = FastAPI(title="Crew view", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.knowledge = known or Knowledge()
    app.add_exception_handler(StarletteHTTPException, _refused)
    app.include_router(icons)
    app.include_router(router)
    return app
