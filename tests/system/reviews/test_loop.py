"""Rounds of a review as a Task Loop of Airflow 3.4: the same decisions and the same record as one after another."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import requests

from airflow_crew_provider.audit.cli import main as audit
from scripts.stack import AirflowStack, CrewService, DagRun, ProcessGroup, wait_until
from scripts.stack.runs import region_of
from scripts.stack.waiting import PATIENCE

pytestmark = [pytest.mark.since_airflow("3.4"), pytest.mark.row("A28")]
REASON = "_airflow_loop_decision_reason"
EDITED = "My own second draft on tea."
DRAFT = {
    "id": "draft_task",
    "agent": "Writer",
    "seconds": 0.2,
    "human_input": "review",  # unless the input says no
    "output": "Draft {revision} on {topic}",
    "revised": "Draft {revision} on {topic}, after: {feedback}",
}
CREW = {
    "inputs": ["topic"],
    "tasks": [DRAFT, {**DRAFT, "id": "title_task"}, {"id": "print_task", "agent": "Printer", "output": "Printed."}],
}


@pytest.fixture(scope="module")
def crew(group: ProcessGroup) -> CrewService:
    return CrewService(CREW, name="crew_loop", group=group).start()


@pytest.fixture(scope="module")
def stack(airflow: AirflowStack, crew: CrewService) -> AirflowStack:
    airflow.api.add_connection("crew_loop", **crew.connection)
    return airflow


def asked(run: DagRun, draft: str) -> dict[str, Any]:
    """Wait until somebody is asked about a draft, in whatever round."""

    def question() -> dict[str, Any] | None:
        assert run.state in ("queued", "running"), run.failure_report()
        return next((each for each in run.reviews() if each["body"].startswith(f"> {draft}\n")), None)

    return wait_until(question, f"a question about {draft}")


def three_rounds(stack: AirflowStack, dag_id: str) -> DagRun:
    """Revise the first draft, edit the second one, and approve what the next task has written."""
    run = stack.api.trigger(dag_id)
    run.answer(asked(run, "Draft 1 on tea"), "revise", human_feedback="Shorter.")
    run.answer(asked(run, "Draft 2 on tea, after: Shorter."), "approve", human_feedback="", edited_draft=EDITED)
    run.answer(asked(run, "Draft 1 on tea"), "approve", human_feedback="")
    run.wait_for("success")
    return run


def in_rounds(run: DagRun, name: str, key: str = "return_value") -> list[Any]:
    """Return what a task of the rounds has pushed, round by round."""
    tasks = [task for task in run.tasks() if task["task_id"].startswith("crew.round") and name in task["task_id"]]
    tasks.sort(key=lambda task: (task["task_id"], task.get("region_index", 0)))
    path = f"{run.path}/taskInstances"
    found = [
        run.api.call(
            "GET", f"{path}/{task['task_id']}/xcomEntries/{key}", params={**region_of(task), "stringify": False}
        )
        for task in tasks
    ]
    return [each.json()["value"] for each in found if each.ok]


def test_three_looped_rounds_decide_and_end_like_consecutive_rounds(stack: AirflowStack, crew: CrewService) -> None:
    looped, row = (three_rounds(stack, dag_id) for dag_id in ("rounds_in_a_loop", "rounds_in_a_row"))
    assert decided_at_the_service(crew, looped) == decided_at_the_service(crew, row) == DECIDED
    assert looped.xcom("crew.result")["output"] == "Printed."
    for name in ("review", "resume", "wait"):
        assert comparable(in_rounds(looped, name), looped) == comparable(in_rounds(row, name), row), name
    assert comparable(looped.xcom("crew.result"), looped) == comparable(row.xcom("crew.result"), row)
    reasons = in_rounds(looped, "until_completed", REASON)
    assert reasons == ["round 1: revise", "round 2: approve", "round 3: approve"]
    for name in ("review", "wait"):
        wait_until(lambda name=name: not_in_the_tab(stack, looped, name) == [], f"all rounds in the tab of the {name}")


def not_in_the_tab(stack: AirflowStack, run: DagRun, name: str) -> list[str]:
    """Return what is missing on the tab of a task of the loop, for which Airflow's page names no iteration."""
    login = {"username": stack.api.user, "password": stack.passwords[stack.api.user]}
    token = requests.post(f"{stack.url}/auth/token", json=login, timeout=PATIENCE).json()["access_token"]
    page = f"{stack.url}/crew-view/dags/{run.dag_id}/runs/{run.run_id}/tasks/crew.round.{name}/{{MAP_INDEX}}"
    text = requests.get(page, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE).text
    return [each for each in ("Completed", "Shorter.", "Draft 2 on tea", "Printed.") if each not in text]


def comparable(value: Any, run: DagRun) -> str:
    """Return a value as JSON without times and ids."""
    text = json.dumps(value).replace(run.xcom("crew.kickoff"), "<id>")
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00|(?<=_time\": )[\d.]+", "<time>", text)


def decided_at_the_service(crew: CrewService, run: DagRun) -> list[Any]:
    """Return the drafts that the service was given a decision on, with what was decided."""
    headers = {"Authorization": f"Bearer {crew.token}"}
    url = f"{crew.url}/executions/{run.xcom('crew.kickoff')}"
    rounds = requests.get(url, headers=headers, timeout=PATIENCE).json()["rounds"]
    return [(each["draft"], each["is_approve"]) for each in rounds if each["decided_at"]]


def audited(
    stack: AirflowStack, run: DagRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *more: str
) -> list[dict[str, Any]]:
    """Return what the audit lists of a run."""
    monkeypatch.setenv("AIRFLOW_API_USER", stack.api.user)
    monkeypatch.setenv("AIRFLOW_API_PASSWORD", stack.passwords[stack.api.user])
    capsys.readouterr()
    assert audit([run.dag_id, run.run_id, "--airflow-url", stack.url, *more]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


DECIDED = [("Draft 1 on tea", False), ("Draft 2 on tea, after: Shorter.", True), ("Draft 1 on tea", True)]


def test_a_crew_that_does_not_ask_skips_the_loop(stack: AirflowStack, crew: CrewService) -> None:
    run = stack.api.trigger("loop_not_needed")
    run.wait_for("success")
    assert run.xcom("crew.result")["output"] == "Printed."
    states = {task["task_id"]: task["state"] for task in run.tasks()}
    assert {state for name, state in states.items() if ".round." in name} == {"skipped"}


def test_where_no_round_is_left_the_result_says_so(stack: AirflowStack) -> None:
    run = stack.api.trigger("loop_too_short")
    run.answer(asked(run, "Draft 1 on tea"), "approve", human_feedback="")
    run.wait_for("failed")
    assert "no review rounds remain" in " ".join(run.errors("crew.result"))
    assert in_rounds(run, "until_completed", REASON) == ["round 1: approve"]


@pytest.fixture(scope="module")
def live_crew(airflow: AirflowStack, group: ProcessGroup) -> CrewService:
    service = CrewService(CREW, dialect="live", name="crew-loop-live", group=group).start()
    extra = json.dumps({"inbox_url": f"{airflow.url}/crew-inbox"})
    airflow.api.add_connection("crew_loop_inbox", **service.connection, extra=extra)
    return service


def clear(run: DagRun, task: dict[str, Any]) -> None:
    """Clear a task of one iteration, with those after it."""
    body = {"task_instance_ids": [task["id"]], "dag_run_id": run.run_id, "dry_run": False, "only_failed": False}
    run.api.json("POST", f"dags/{run.dag_id}/clearTaskInstances", json={**body, "include_downstream": True})


def test_webhooks_a_clear_and_the_audit_find_the_second_iteration(
    airflow: AirflowStack,
    live_crew: CrewService,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = airflow.api.trigger("loop_of_webhooks")
    run.answer(asked(run, "Draft 1 on tea"), "revise", human_feedback="Shorter.")
    second = asked(run, "Draft 2 on tea, after: Shorter.")  # no poll would find it before ten minutes are over
    clear(run, second["task_instance"])
    wait_until(lambda: run.reviews() == [], "the form to be gone")
    again = asked(run, "Draft 2 on tea, after: Shorter.")
    assert region_of(again["task_instance"]) == region_of(second["task_instance"])
    run.answer(again, "approve", human_feedback="")
    run.answer(asked(run, "Draft 1 on tea"), "approve", human_feedback="")
    run.wait_for("success")
    assert run.xcom("crew.result")["output"] == "Printed."

    lines = audited(airflow, run, monkeypatch, capsys)
    taken = {(line["region_index"], line["round"], line["is_approve"], line["output"]) for line in lines}
    assert taken == {
        (0, 1, False, "Draft 1 on tea"),
        (1, 2, True, "Draft 2 on tea, after: Shorter."),
        (2, 3, True, "Draft 1 on tea"),
    }
    assert all(line["taken"] and line["service"]["kickoff_id"] for line in lines)


@pytest.mark.long
@pytest.mark.parametrize(("dag_id", "review"), [("rounds_in_a_loop", "round"), ("rounds_in_a_row", "round_2")])
def test_clearing_a_finished_second_round_asks_again_without_resending_answers(
    stack: AirflowStack, crew: CrewService, dag_id: str, review: str
) -> None:
    run = three_rounds(stack, dag_id)
    tasks = [task for task in run.tasks() if task["task_id"] == f"crew.{review}.review"]
    clear(run, next(task for task in tasks if task.get("region_index", 1) == 1))
    run.answer(asked(run, "Draft 2 on tea, after: Shorter."), "approve", human_feedback="")
    run.wait_for("failed")
    assert decided_at_the_service(crew, run) == DECIDED
    failed = {task["task_id"] for task in run.tasks() if task["state"] == "failed"}
    assert failed == {f"crew.{review}.resume"}


@pytest.mark.long
def test_airflow_is_killed_again_and_again_in_the_second_iteration(stack: AirflowStack, crew: CrewService) -> None:
    run = stack.api.trigger("rounds_in_a_loop")
    run.answer(asked(run, "Draft 1 on tea"), "revise", human_feedback="Shorter.")
    for name in ("scheduler", "triggerer"):
        stack.restart(name)
    second = asked(run, "Draft 2 on tea, after: Shorter.")
    for name in ("scheduler", "triggerer"):
        stack.restart(name)
    run.answer(second, "approve", human_feedback="", edited_draft=EDITED)
    stack.restart("scheduler")
    third = asked(run, "Draft 1 on tea")
    stack.restart("triggerer")
    run.answer(third, "approve", human_feedback="")
    stack.restart("scheduler")
    run.wait_for("success")
    assert decided_at_the_service(crew, run) == DECIDED
    assert run.xcom("crew.result")["output"] == "Printed."
