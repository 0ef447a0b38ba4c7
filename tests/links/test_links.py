"""The link of each task to the page of its execution, with the real service and without any setting."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import requests
from faults.variables import Variables
from simulated_airflow import Connect, TaskRun, die_after_recording, run

from airflow_crew_provider.client.deployment import CrewConnection, Deployment
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.stored_names import EXECUTION_RECORD_KEY
from airflow_crew_provider.wait.outcomes import CrewTaskFailed

pytestmark = pytest.mark.usefixtures("simulated_airflow")
local = pytest.importorskip("crew_service.local", reason="needs the crew service")

SCENARIO = {"inputs": [], "tasks": [{"id": "write", "agent": "Writer", "human_input": True, "output": "Draft"}]}
HTML = {"Accept": "text/html"}
REACHED = "https://browsers.example/crew"


@pytest.fixture(scope="module")
def service() -> Iterator[Any]:
    with local.running_service(scenario=SCENARIO) as service:
        yield service


def pushed(operator: Any, **upstream: TaskRun) -> tuple[Any, dict[str, Any]]:
    task_run = TaskRun(operator.task_id, upstream=upstream)
    returned = run(operator, task_run)
    return returned, task_run.xcom


def wait_for(kickoff_id: str, task_id: str = "wait") -> CrewStatusSensor:
    return CrewStatusSensor(task_id=task_id, kickoff_id=kickoff_id, poke_interval=0.05, deferrable=True)


@pytest.mark.parametrize("extra", [{}, {"browser_url": REACHED}])
def test_each_task_leads_to_the_page_of_its_execution(connect: Connect, service: Any, extra: dict[str, str]) -> None:
    connect(service.url, token=service.token, **extra)
    kickoff_id, of_kickoff = pushed(CrewKickoffOperator(task_id="kickoff", inputs={}))
    pending, of_wait = pushed(wait_for(kickoff_id))
    said = {name: pending[name] for name in ("execution_id", "crew_task_id", "output_sha256", "view")}
    answer = {**said, "is_approve": True, "human_feedback": "", "reviewer": None}
    _, of_resume = pushed(CrewResumeOperator(task_id="resume", review=json.dumps(answer)))
    view = f"/view?id={kickoff_id}"
    for xcom in (of_kickoff, of_wait, of_resume):
        assert xcom["crew_execution_url"] == extra.get("browser_url", service.url) + view
        assert xcom["crew_execution"] == {
            **{"kickoff_id": kickoff_id, "execution_id": kickoff_id, "crew_conn_id": "crew_default", "view": view}
        }
    page = requests.get(of_kickoff["crew_execution_url"].replace(REACHED, service.url), headers=HTML, timeout=30)
    assert "<title>Crew</title>" in page.text


def recorded(variables: Variables) -> list[tuple[str, str, bool]]:
    """Return the executions on record, with the id to poll and whether the run's own kickoff returned it."""
    records = (json.loads(text) for key, text in variables.kept.items() if key.startswith(EXECUTION_RECORD_KEY))
    return [(each["execution_id"], each["kickoff_id"], each["is_own"]) for each in records]


@pytest.mark.since_airflow("3.1")
@pytest.mark.row("A33")
def test_only_tasks_that_ask_the_service_record_their_execution(
    connect: Connect, service: Any, a_memory: Variables
) -> None:
    connect(service.url, token=service.token)
    kickoff_id, _ = pushed(CrewKickoffOperator(task_id="kickoff", inputs={}))
    own, polled = (kickoff_id, kickoff_id, True), (kickoff_id, kickoff_id, False)
    assert recorded(a_memory) == [own]
    pending, _ = pushed(wait_for(kickoff_id))
    assert recorded(a_memory) == [own, polled]
    a_memory.kept.clear()
    completed = {**pending, "state": "completed"}
    _, xcom = pushed(CrewResumeOperator(task_id="resume", review=json.dumps(completed)))
    assert (recorded(a_memory), xcom["crew_execution"]["execution_id"]) == ([], kickoff_id)


@pytest.mark.since_airflow("3.1")
@pytest.mark.row("A33")
@pytest.mark.parametrize("wait_for_completion", [False, True])
def test_only_the_sending_try_records_an_execution_as_its_own(
    connect: Connect, service: Any, a_memory: Variables, wait_for_completion: bool
) -> None:
    """A task's record, from which a retry has the id, may be written by whoever may edit the task (Airflow 3.3)."""
    connect(service.url, token=service.token)
    task_run = TaskRun("kickoff")
    operator = CrewKickoffOperator(
        task_id="kickoff", inputs={}, wait_for_completion=wait_for_completion, deferrable=False, timeout=0.0
    )
    die_after_recording(task_run, operator)
    with suppress(CrewTaskFailed):
        run(operator, task_run.retry())
    assert [is_own for _, _, is_own in recorded(a_memory)] == [False]


def test_a_retry_continuing_its_execution_keeps_the_link(connect: Connect, service: Any) -> None:
    connect(service.url, token=service.token)
    task_run = TaskRun("kickoff")
    operator = CrewKickoffOperator(task_id="kickoff", inputs={})
    before = len(CrewHook().list_executions())
    die_after_recording(task_run, operator)
    first = run(operator, task_run.retry())
    assert len(CrewHook().list_executions()) == before + 1
    assert task_run.xcom["crew_execution_url"] == f"{service.url}/view?id={first}"


def test_the_console_of_a_live_deployment_wins() -> None:
    deployment = Deployment("https://crew.example.com")
    connection = CrewConnection(deployment, console_url="https://c.example/{execution_id}/{kickoff_id}")
    assert connection.link("k/2", "e 1", "/view?id=e") == "https://c.example/e%201/k%2F2"
    assert CrewConnection(deployment).link("k", "e", None) == ""
    assert CrewConnection(deployment).link("k", "e", "//evil.example") == ""
