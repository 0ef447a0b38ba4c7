"""What operations see of a crew in real processes."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest
import requests
from faults.openlineage import crew_facet_of
from faults.statsd import Metric, StatsdServer

from scripts.stack import AirflowStack, CrewService, DagRun, ProcessGroup, wait_until
from scripts.stack.waiting import PATIENCE

# Long enough that the triggerer polls it, however late a busy machine starts the task that waits.
REVIEWED_CREW = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "research", "agent": "Researcher", "seconds": 20.0, "output": "Notes on {topic}."},
        {
            "id": "write",
            "agent": "Writer",
            "seconds": 1.0,
            "human_input": True,
            "output": "Draft on {topic}.",
            "revised": "Draft {revision}, after: {feedback}",
        },
    ],
}
METERED_CREW = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "write", "agent": "Writer", "seconds": 6.0, "tokens": 1250, "model": "dear", "output": "On {topic}."}
    ],
}
PRICES = {"dear": {"input": 1, "output": 400}}


def crew(scenario: dict[str, Any], dialect: str, airflow: AirflowStack, group: ProcessGroup, folder: Path) -> str:
    """Start a crew service, and return the id of a connection to it."""
    name = folder.name.rstrip("0123456789")
    prices = folder / "prices.json"
    prices.write_text(json.dumps(PRICES))
    options: dict[str, Any] = {"dialect": dialect, "name": f"crew-service-{name}", "group": group}
    service = CrewService(scenario, options=["--prices", str(prices)], **options).start()
    airflow.api.add_connection(name, **service.connection)
    return name


@pytest.fixture(scope="module")
def reviewed(airflow: AirflowStack, group: ProcessGroup, tmp_path_factory: pytest.TempPathFactory) -> DagRun:
    """A run whose draft a person has approved."""
    crew(REVIEWED_CREW, "spec", airflow, group, tmp_path_factory.mktemp("crew_reviewed"))
    run = airflow.api.trigger("operations_review")
    wait_until(lambda: approved(run), "the review to be taken", pause=2)
    run.wait_for("success")
    return run


@pytest.fixture(scope="module")
def metered(airflow: AirflowStack, group: ProcessGroup, tmp_path_factory: pytest.TempPathFactory) -> DagRun:
    """A run whose service reports tokens, as the live dialect does, and what they cost."""
    crew(METERED_CREW, "live", airflow, group, tmp_path_factory.mktemp("crew_metered"))
    run = airflow.api.trigger("operations_metered")
    question = run.wait_for_review()
    assert (
        "It used **1,250 tokens and 0.5 USD**, and this DAG allows 1,000 tokens and 0.25 USD without"
        in question["body"]
    )
    run.answer(question, "approve")
    run.wait_for("success")
    return run


def approved(run: DagRun) -> bool:
    """Answer what is open: on a slow machine Airflow 3.3.2 fails a task that was answered early, and asks again."""
    for review in run.reviews():
        run.answer(review, "approve", human_feedback="")
    return run.state in ("success", "failed")


def counted(statsd: StatsdServer, conn_id: str) -> dict[str, float]:
    """Return the sum of each of our metrics for a connection, once the last of an execution has arrived."""

    def ours() -> list[Metric]:
        found = [each for each in statsd.metrics() if each.tags.get("conn_id") == conn_id]
        return found if any(each.name == "execution.duration" for each in found) else []

    names = {each.name for each in wait_until(ours, "the metrics")}
    return {name: statsd.total(name, conn_id=conn_id) for name in names}


@pytest.mark.usefixtures("reviewed")
def test_statsd_receives_the_metrics_of_the_crew_and_its_review(statsd: StatsdServer) -> None:
    found = counted(statsd, "crew_reviewed")
    assert set(found) == {
        "execution.started",
        "execution.polls",
        "execution.completed",
        "execution.duration",
        "execution.tokens",
        "execution.cost_usd_micros",
        "review.duration",
    }
    assert (found["execution.started"], found["execution.completed"]) == (1, 1)
    assert found["execution.duration"] >= 21_000
    # Of this DAG alone: over the hours of all tests, ports are given twice.
    starts = [each for each in statsd.metrics("airflow.") if each.name == "ti.start"]
    of_tasks = {each.source for each in starts if each.tags.get("dag_id") == "operations_review"}
    ours = [each for each in statsd.metrics() if each.tags.get("conn_id") == "crew_reviewed"]
    polled_by = {each.source for each in ours if each.name == "execution.polls"}
    assert polled_by & of_tasks
    assert polled_by - of_tasks, "no triggerer has counted its polls"


@pytest.mark.long  # without processes: test_lineage.py
def test_metrics_lineage_and_outlet_event_carry_tokens_and_cost(
    airflow: AirflowStack, metered: DagRun, statsd: StatsdServer, lineage: Path
) -> None:
    kickoff_id = metered.xcom("crew", key="kickoff_id")
    wait_until(lambda: statsd.total("execution.tokens", conn_id="crew_metered") == 1250, "the tokens")
    wait_until(lambda: statsd.total("execution.cost_usd_micros", conn_id="crew_metered") == 500_000, "the cost")
    wait_until(lambda: ("operations_metered.crew", "COMPLETE") in map(job_and_type, lines(lineage)), "the event")
    ended = [each for each in lines(lineage) if job_and_type(each) == ("operations_metered.crew", "COMPLETE")]
    ids = {"connId": "crew_metered", "kickoffId": kickoff_id, "executionId": kickoff_id}
    known = {**ids, "inputNames": ["topic"], "state": "completed", "totalTokens": 1250, "costUsd": 0.5}
    assert [crew_facet_of(each) for each in ended] == [known]
    used = extra_of(airflow, metered)["usage"]
    assert (used["total_tokens"], used["cost_usd"]) == (1250, 0.5)
    assert metered.xcom("crew")["usage"] == used


@pytest.mark.long
def test_a_costly_executions_record_passes_on_after_a_persons_approval(metered: DagRun) -> None:
    assert metered.xcom("allowed") == metered.xcom("crew")


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def extra_of(airflow: AirflowStack, run: DagRun) -> Any:
    """Return the extra of the one asset event of a run."""
    events = airflow.api.json("GET", "assets/events", params={"source_dag_id": run.dag_id})["asset_events"]
    [event] = [each for each in events if each["source_run_id"] == run.run_id]
    return event["extra"]


def job_and_type(line: str) -> tuple[str, str]:
    event = json.loads(line)
    return event["job"]["name"], event["eventType"]


def test_openlineage_sends_valid_events_of_all_tasks_of_the_crew(reviewed: DagRun, lineage: Path) -> None:
    def sent(task: str, kind: str) -> list[dict[str, Any]]:
        wanted = (f"operations_review.crew.{task}", kind)
        return [crew_facet_of(line) for line in lines(lineage) if job_and_type(line) == wanted]

    record = reviewed.xcom("crew.result")
    ids = {"connId": "crew_reviewed", "kickoffId": record["kickoff_id"], "executionId": record["execution_id"]}
    wait_until(lambda: sent("result", "COMPLETE"), "the last event")
    assert sent("kickoff", "COMPLETE") == [{**ids, "inputNames": ["topic"], "state": "running"}]
    assert sent("wait", "COMPLETE") == [{**ids, "inputNames": [], "state": "pending", "totalTokens": 0, "costUsd": 0}]
    assert sent("round_1.resume", "COMPLETE") == [{**ids, "inputNames": [], "state": "running"}]
    completed = {**ids, "inputNames": [], "state": "completed", "totalTokens": 0, "costUsd": 0}
    assert sent("round_1.wait", "COMPLETE") == sent("result", "COMPLETE") == [completed]


def test_a_reviewed_crews_event_carries_the_approved_outputs_ids(airflow: AirflowStack, reviewed: DagRun) -> None:
    record = reviewed.xcom("crew.result")
    expected = {name: record[name] for name in ("kickoff_id", "execution_id", "state", "usage", "files")}
    assert extra_of(airflow, reviewed) == {"crew_conn_id": "crew_reviewed", **expected}


def test_a_foreign_crews_repeated_event_triggers_its_dag_only_once(
    airflow: AirflowStack, plain_crew: CrewService
) -> None:
    secret = secrets.token_urlsafe(32)
    extra = json.dumps({"crew_webhook_secret": secret})
    airflow.api.add_connection("crew_newsroom", **plain_crew.connection, extra=extra)
    airflow.api.wait_for_dag("operations_foreign_crew")
    url = f"{airflow.url}/crew-inbox/crew/crew_newsroom/{secret}"

    def kick_off() -> str:
        headers = {"Authorization": f"Bearer {plain_crew.token}"}
        body = {"inputs": {"topic": "tea"}, "crewWebhookUrl": url}
        answer = requests.post(f"{plain_crew.url}/kickoff", json=body, headers=headers, timeout=PATIENCE)
        return str(answer.json()["kickoff_id"])

    def runs(number: int) -> list[dict[str, Any]]:
        path = "dags/operations_foreign_crew/dagRuns"
        ended = list(airflow.api.pages(path, "dag_runs", state="success", order_by="run_after"))
        return ended if len(ended) == number else []

    def executions(run: dict[str, Any]) -> list[str]:
        return DagRun(airflow.api, run["dag_id"], run["dag_run_id"]).xcom("completed")

    first = kick_off()
    wait_until(lambda: runs(1), "the run of the first execution")
    again = requests.post(url, json={"kickoff_id": first}, timeout=PATIENCE)
    assert (again.status_code, again.json()) == (200, {"status": "already known"})
    second = kick_off()  # a run of the repeated event would come before this one's
    ended = wait_until(lambda: runs(2), "the run of the second execution")
    assert [executions(each) for each in ended] == [[first], [second]]
    assert secret not in airflow.logs(["scheduler", "dag-processor", "triggerer"])
