"""Airflow on SQLite, as `make demo` and `make up` run it: there is one writer at a time, and nobody is locked out."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
import requests

from scripts.stack import AirflowStack, DagRun, wait_until
from scripts.stack.background import BackgroundWork

FORMS = 40
LIMIT = 5.0  # seconds until a request is answered
SECRET = "s" * 40
CREW = {
    "conn_type": "crew",
    "host": "https://crew.example.com",
    "password": "t",
    "extra": {"crew_webhook_secret": SECRET},
}
FORM = {"options": '["approve", "revise"]', "subject": "Review", "params": "{}", "params_input": "{}"}


class Answered:
    """The status codes of requests, and how long each took."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.seconds: list[float] = []

    def add(self, began: float, answer: requests.Response) -> None:
        self.codes.append(answer.status_code)
        self.seconds.append(time.monotonic() - began)

    def check(self) -> None:
        assert set(self.codes) == {200}, self.codes
        assert max(self.seconds) < LIMIT, self.seconds


class Webhooks(BackgroundWork):
    """Crews that Airflow did not start report, one after the other, that they are completed."""

    pause = 0.2

    def __init__(self, airflow: AirflowStack) -> None:
        super().__init__()
        self.answered = Answered()
        self._url = f"{airflow.url}/crew-inbox/crew/crew_busy/{SECRET}"

    def work(self) -> None:
        while not self.over.wait(self.pause):
            body = {"kickoff_id": f"k-{len(self.answered.codes)}", "result": "A text."}
            self.answered.add(time.monotonic(), requests.post(self._url, json=body, timeout=100))


def open_forms(airflow: AirflowStack) -> DagRun:
    """Ask forty questions in the database, without the minute that forty tasks would take to ask them."""
    airflow.api.wait_for_dag("busy_forms")
    created = airflow.api.json("POST", "dags/busy_forms/dagRuns", json={"logical_date": None})
    run = DagRun(airflow.api, "busy_forms", created["dag_run_id"])
    wait_until(lambda: len(run.tasks()) == FORMS, "the tasks of the forms")
    columns, values = ", ".join(FORM), ", ".join("?" for _ in FORM)
    insert = f"INSERT INTO hitl_detail (ti_id, created_at, {columns}) SELECT id, CURRENT_TIMESTAMP, {values}"
    with closing(sqlite3.connect(airflow.home / "airflow.db", timeout=60)) as database, database:
        database.execute(f"{insert} FROM task_instance WHERE run_id = ?", [*FORM.values(), run.run_id])
    return run


def answer_all(run: DagRun) -> Answered:
    """Answer each form as soon as the answer before it was taken."""
    answered, body = Answered(), {"chosen_options": ["approve"], "params_input": {}}
    for index in range(FORMS):
        path = f"{run.path}/taskInstances/review/{index}/hitlDetails"
        answered.add(time.monotonic(), run.api.call("PATCH", path, json=body, timeout=100))
    return answered


def ended(run: DagRun) -> int:
    return list(run.states().values()).count("success")


@pytest.mark.long  # an Airflow of its own
@pytest.mark.row("A27")
def test_forty_answers_are_taken_during_busy_tasks_and_webhooks() -> None:
    with AirflowStack(dags=[Path(__file__).parent / "dags"], connections={"crew_busy": CREW}) as airflow:
        forms = open_forms(airflow)
        airflow.api.json("PATCH", "dags/busy_webhooks", json={"is_paused": False})
        tasks = airflow.api.trigger("busy_tasks")
        wait_until(lambda: ended(tasks), "the end of the first task")
        with Webhooks(airflow) as webhooks:
            answered = answer_all(forms)
            assert ended(tasks) < len(tasks.tasks()), "tasks start and end meanwhile"
        answered.check()
        webhooks.answered.check()
        tasks.wait_for("success")
