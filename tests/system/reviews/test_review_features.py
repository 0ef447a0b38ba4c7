"""An edited draft, escalation and two approvers on real Airflow."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests

from airflow_crew_provider.review import airflow_form
from scripts.stack import AirflowApi, AirflowStack, CrewService, DagRun, ProcessGroup, wait_until
from scripts.stack.waiting import PATIENCE

DRAFT = {
    "id": "draft_task",
    "agent": "Writer",
    "seconds": 0.2,
    "human_input": True,
    "output": "Draft {revision} on {topic}",
    "revised": "Draft {revision}, {feedback}",
}
EDITED = "My own text on tea."
PARKED = "deferred" if airflow_form.TaskAwaitingInput is None else "awaiting_input"


@pytest.fixture(scope="module")
def crew(group: ProcessGroup) -> CrewService:
    return CrewService({"inputs": ["topic"], "tasks": [DRAFT]}, name="crew_editor", group=group).start()


@pytest.fixture(scope="module")
def stack(airflow: AirflowStack, crew: CrewService) -> AirflowStack:
    airflow.api.add_connection("crew_editor", **crew.connection)
    return airflow


def question_in(run: DagRun, task_id: str) -> dict[str, Any]:
    """Wait until a task has asked and left its worker."""
    run.wait_for_task(task_id, {"awaiting_input", "deferred"})
    return wait_until(
        lambda: next((each for each in run.reviews() if each["task_instance"]["task_id"] == task_id), None),
        f"the question of {task_id}",
    )


@pytest.mark.long  # without processes: test_edited_drafts.py
def test_an_edited_draft_is_the_result_of_the_crew(stack: AirflowStack) -> None:
    run = stack.api.trigger("review_edit")
    asked = question_in(run, "crew.round_1.review")
    assert asked["params"]["edited_draft"]["value"] == "Draft 1 on tea"
    run.answer(asked, "approve", human_feedback="", edited_draft=EDITED)
    run.wait_for("success")
    assert run.xcom("crew.result")["output"] == EDITED
    assert run.xcom("crew.round_1.review")["edited_output"] == EDITED


@pytest.mark.long
def test_an_edit_of_an_outdated_draft_is_asked_again(stack: AirflowStack, crew: CrewService) -> None:
    run = stack.api.trigger("review_edit")
    asked = question_in(run, "crew.round_1.review")
    revise_elsewhere(crew, run.xcom("crew.kickoff"))
    run.answer(asked, "approve", human_feedback="", edited_draft=EDITED)
    second = question_in(run, "crew.round_2.review")
    assert second["body"].startswith("> Draft 2, shorter\n")
    assert run.xcom("crew.round_1.resume", "crew_resume")["status"] == "not sent"
    run.answer(second, "approve", human_feedback="")
    run.wait_for("success")
    assert run.xcom("crew.result")["output"] == "Draft 2, shorter"


def revise_elsewhere(crew: CrewService, execution_id: str) -> None:
    """Ask for a revision as somebody does at the service."""
    headers = {"Authorization": f"Bearer {crew.connection['password']}"}
    url = crew.connection["host"]
    answer = {"execution_id": execution_id, "task_id": "draft_task", "human_feedback": "shorter", "is_approve": False}
    requests.post(f"{url}/resume", json=answer, headers=headers, timeout=PATIENCE).raise_for_status()

    def revised() -> bool:
        status = requests.get(f"{url}/status/{execution_id}", headers=headers, timeout=PATIENCE).json()
        return status.get("task_output") == "Draft 2, shorter"

    wait_until(revised, "the second draft")


@pytest.fixture(scope="module")
def rita(airflow: AirflowStack) -> AirflowApi:
    return AirflowApi(airflow.url, "rita", airflow.passwords["rita"])


def answer(api: AirflowApi, run: DagRun, option: str) -> Any:
    path = f"{run.path}/taskInstances/review/-1/hitlDetails"
    return api.call("PATCH", path, json={"chosen_options": [option], "params_input": {"human_feedback": "As I say."}})


@pytest.mark.long
def test_later_escalation_people_may_answer_once_their_step_comes(stack: AirflowStack) -> None:
    run = stack.api.trigger("review_escalation")
    asked = question_in(run, "review")
    wait_until(lambda: "step 1 of the escalation; admin may now answer too" in run.log("review"), "the step")
    again = question_in(run, "review")
    stack.wait_until_put_away(run, "review", 2)
    assert (again["body"], again["created_at"]) == (asked["body"], asked["created_at"])
    assert answer(stack.api, run, "approve").ok
    run.wait_for("success")
    assert run.xcom("review")["reviewer"]["id"] == "admin"


@pytest.mark.long
def test_the_first_persons_answer_at_the_escalation_moment_is_kept(stack: AirflowStack, rita: AirflowApi) -> None:
    run = stack.api.trigger("review_escalation")
    question_in(run, "review")
    run.wait_for_task("review", {"scheduled", "queued", "running"})  # the step has come
    given = answer(rita, run, "revise")
    assert given.ok, given.text
    run.wait_for("success")
    review = run.xcom("review")
    assert (review["reviewer"]["id"], review["is_approve"], review["human_feedback"]) == ("rita", False, "As I say.")
    assert review["decided_at"].replace("+00:00", "Z") == given.json()["responded_at"]
    # Others are told only if the look for an answer ended before it was given, as on a busy machine.
    logs = stack.home.glob(f"logs/dag_id=review_escalation/run_id={run.run_id}/**/*.trigger.*.log")
    events = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    looked = [event["timestamp"] for event in events if "There is no answer" in str(event.get("result"))]
    assert ("step 1 of the escalation" in run.log("review")) == bool(looked)
    assert all(each < given.json()["responded_at"] for each in looked)


@pytest.mark.row("A23")
@pytest.mark.long  # without processes: test_escalation.py
def test_simultaneous_escalation_steps_are_each_announced_once_and_answers_count(stack: AirflowStack) -> None:
    run = stack.api.trigger("review_two_steps")
    question_in(run, "review")
    wait_until(lambda: "step 2 of the escalation" in run.log("review"), "the second step")
    question_in(run, "review")
    stack.wait_until_put_away(run, "review", 3)  # it asks, looks for an answer at the step, and asks again
    assert answer(stack.api, run, "approve").ok
    run.wait_for("success")
    assert run.xcom("review")["reviewer"]["id"] == "admin"
    log = run.log("review")
    assert (log.count("step 1 of the escalation"), log.count("step 2 of the escalation")) == (1, 1)
    assert log.count("Notice to the team") == 2


@pytest.mark.long  # without processes: test_approvals.py
def test_two_approvers_and_the_first_one_twice(stack: AirflowStack, rita: AirflowApi) -> None:
    run = stack.api.trigger("review_approvals")
    for times, api in enumerate((stack.api, stack.api, rita), start=1):
        question_in(run, "review")
        stack.wait_until_put_away(run, "review", times)
        wait_until(lambda api=api: answer(api, run, "approve").ok, "the question to be open")
        wait_until(lambda: run.task("review")["state"] != PARKED, "the task to go on")
    run.wait_for("success")
    assert [each["reviewer"]["id"] for each in run.xcom("review")["approvals"]] == ["admin", "rita"]
    assert "`admin` has already approved" in run.log("review")


@pytest.mark.long
def test_of_two_approvers_one_revises(stack: AirflowStack, rita: AirflowApi) -> None:
    run = stack.api.trigger("review_approvals")
    question_in(run, "review")
    stack.wait_until_put_away(run, "review")
    assert answer(stack.api, run, "approve").ok
    wait_until(lambda: "Approved by `admin`; 1 more must approve" in run.log("review"), "the approval")
    question_in(run, "review")
    stack.wait_until_put_away(run, "review", 2)
    assert answer(rita, run, "revise").ok
    run.wait_for("success")
    review = run.xcom("review")
    assert (review["is_approve"], review["reviewer"]["id"], "approvals" in review) == (False, "rita", False)
