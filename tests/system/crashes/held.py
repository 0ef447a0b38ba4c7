"""A crew that has used some tokens and works until the test lets it go, behind a proxy that can hold an answer back."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import psutil
import requests
from faults.proxy import KICKOFF, POLL, Fault, FaultProxy, Forward, call_of
from faults.wire import Reply
from stand_in_crew import StandInCrew

from crew_service.engine.crew import Completed, Job, Report, TaskDone, TaskInfo, TaskOutput, TaskStarted, TokensUsed
from crew_service.local import running_service
from scripts.stack import AirflowStack, DagRun, wait_until
from scripts.stack.waiting import PATIENCE

AT_ONCE = 160
TOKENS = 1250


class HeldCrew(StandInCrew):
    """Executions run until their topic is let go."""

    required = ("topic",)
    tasks = (TaskInfo("write", "Writer"),)

    def __init__(self) -> None:
        self._let_go: set[str] = set()

    def let_go(self, *topics: str) -> None:
        self._let_go.update(topics)

    def run(self, job: Job, report: Report) -> Completed:
        topic = job.inputs["topic"]
        report(TaskStarted("write", "Writer"))
        report(TokensUsed(TOKENS, {"completion_tokens": TOKENS}))
        while topic not in self._let_go:
            job.cancelled.wait(0.1)
            job.cancelled.raise_if_set()
        text = f"A text on {topic}."
        report(TaskDone(TaskOutput(task_id="write", agent="Writer", output=text, execution_time=0.1)))
        return Completed(text)


class HeldAnswer:
    """Lets the service take a request, and keeps its answer until the test says so."""

    def __init__(self) -> None:
        self.taken = threading.Event()
        self.release = threading.Event()

    def __call__(self, forward: Forward, random: Random) -> Reply:
        answer = forward()
        if not self.taken.is_set():
            self.taken.set()
            self.release.wait(PATIENCE)
        return answer


class Deployment:
    """A running service of a held crew, as Airflow and as its own database see it."""

    def __init__(self, url: str, token: str, database: Path, crew: HeldCrew, dialect: str) -> None:
        self.url, self.token, self.crew, self.dialect = url, token, crew, dialect
        self._database = database

    def executions(self, topic: str) -> list[dict[str, Any]]:
        """Return the service's own list of executions on a topic, oldest first."""
        with sqlite3.connect(self._database) as database:
            rows = database.execute("SELECT id, state, inputs, meta FROM executions ORDER BY created_at").fetchall()
        listed = [
            {"id": i, "state": s, "inputs": json.loads(n), "meta": json.loads(m or "null")} for i, s, n, m in rows
        ]
        return [execution for execution in listed if execution["inputs"]["topic"] == topic]

    def is_stopped(self, execution_id: str) -> bool:
        with sqlite3.connect(self._database) as database:
            [[state]] = database.execute("SELECT state FROM executions WHERE id = ?", [execution_id])
        return state == "stopped"

    def kickoff(self, topic: str) -> str:
        body = {"inputs": {"topic": topic}}
        answer = requests.post(f"{self.url}/kickoff", headers=self._headers, json=body, timeout=PATIENCE)
        return answer.json()["kickoff_id"]

    @contextmanager
    def behind(self, proxy: FaultProxy, airflow: AirflowStack, **extra: Any) -> Iterator[str]:
        """Give Airflow a connection that leads here through a proxy, and return its id."""
        conn_id = f"crew_{self.dialect}_{proxy.url.rpartition(':')[2]}"
        more = {"extra": json.dumps(extra)} if extra else {}
        airflow.api.add_connection(conn_id, conn_type="crew", host=proxy.url, password=self.token, **more)
        try:
            yield conn_id
        finally:
            airflow.api.call("DELETE", f"connections/{conn_id}")

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


@contextmanager
def held_deployment(dialect: str, database: Path) -> Iterator[Deployment]:
    crew = HeldCrew()
    with running_service(crew=crew, dialect=dialect, db=database, workers=AT_ONCE) as service:
        yield Deployment(service.url, service.token, database, crew, dialect)


def looks(proxy: FaultProxy) -> int:
    return sum(call_of(request) == POLL for request in proxy.requests)


def wait_for_looks(proxy: FaultProxy) -> None:
    """Wait until somebody looks at executions behind a proxy twice from now on."""
    before = looks(proxy)
    wait_until(lambda: looks(proxy) >= before + 2, "looks at the status")


def wait_until_deferred(run: DagRun, proxy: FaultProxy) -> None:
    """Wait until one trigger looks again and again: the first one ends as soon as the service knows the execution."""
    at_first: dict[int, int] = {}

    def looks_again() -> bool:
        before = looks(proxy)
        trigger = run.task("crew")["trigger"]
        return trigger is not None and before >= at_first.setdefault(trigger["id"], looks(proxy)) + 3

    wait_until(looks_again, f"the trigger of {run.dag_id}")


def holding(held: HeldAnswer, call: str = KICKOFF) -> list[Fault]:
    return [Fault("A1", "answer held back", call, held)]


def kill_worker(airflow: AirflowStack, run: DagRun) -> None:
    """Kill a running task and the process that supervises it, as the loss of a worker does."""
    kill_worker_of(airflow, run.task("crew"))


def kill_worker_of(airflow: AirflowStack, running: Mapping[str, Any]) -> None:
    task, supervisor = worker(airflow, running)
    supervisor.kill()
    task.kill()


def worker(airflow: AirflowStack, running: Mapping[str, Any]) -> tuple[psutil.Process, psutil.Process]:
    """Return the process that runs a task, and the one that supervises it."""
    title = f"airflow worker -- {running['id']}"
    task = wait_until(lambda: _titled(airflow, title), title)
    supervisor = task.parent()
    assert supervisor
    assert supervisor.pid not in [component.session for component in airflow.group.components.values()]
    return task, supervisor


def _titled(airflow: AirflowStack, title: str) -> psutil.Process | None:
    found = [each for each in airflow.group.components["scheduler"].processes() if _title(each) == title]
    return found[0] if found else None


def _title(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline()).rstrip()
    return ""
