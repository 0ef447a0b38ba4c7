"""Reviews on real Airflow: rounds, gates, deadlines, rivals, late answers, and many people at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_crew_provider.compat import version
from scripts.stack import AirflowApi, AirflowStack, CrewService, DagRun, ProcessGroup, wait_until
from scripts.stack.runs import WAITING
from scripts.stack.waiting import PATIENCE

MANY = 12
# Quick enough that no wait has to be deferred for a moment only, which Airflow 3.3.2 sometimes fails.
TASK: dict[str, Any] = {"agent": "Writer", "seconds": 0.2, "human_input": True}
OUTLINE = {**TASK, "id": "outline_task", "output": "Outline {revision}", "revised": "Outline {revision}, {feedback}"}
DRAFT = {**TASK, "id": "draft_task", "output": "Draft {revision} on {topic}", "revised": "Draft {revision}, {feedback}"}
CREWS = {"crew_gates": [OUTLINE, DRAFT], "crew_scribe": [DRAFT]}


@pytest.fixture(scope="module")
def stack(airflow: AirflowStack, group: ProcessGroup) -> AirflowStack:
    for name, tasks in CREWS.items():
        service = CrewService({"inputs": ["topic"], "tasks": tasks}, name=name, group=group).start()
        airflow.api.add_connection(name, **service.connection)
    airflow.api.json("POST", "pools", json={"name": "one_slot", "slots": 1})
    return airflow


@pytest.fixture(scope="module")
def runs(stack: AirflowStack) -> dict[str, DagRun]:
    """All runs at once, so that they wait for their tests and not their tests for them."""
    names = ("skipped", "deadline", "assigned", "many")
    return {f"review_{name}": stack.api.trigger(f"review_{name}") for name in names}


@pytest.fixture(scope="module")
def rita(airflow: AirflowStack) -> AirflowApi:
    return AirflowApi(airflow.url, "rita", airflow.passwords["rita"])


def review_in(run: DagRun, task_id: str) -> dict[str, Any]:
    """Wait for the question of one task."""

    def look() -> list[dict[str, Any]]:
        return [each for each in run.reviews() if each["task_instance"]["task_id"] == task_id]

    return wait_until(look, f"the question of {task_id} ({run.states()})")[0]


def decide(run: DagRun, asked: dict[str, Any], option: str, feedback: Any = "") -> None:
    """Answer until the answer is taken.

    On a slow machine Airflow 3.3.2 fails a task that is answered before it was put away (apache/airflow issues 66374,
    67287); its retry asks again.
    """
    task_id, index = asked["task_instance"]["task_id"], asked["task_instance"]["map_index"]

    def taken() -> bool:
        for each in run.reviews():
            if (each["task_instance"]["task_id"], each["task_instance"]["map_index"]) == (task_id, index):
                run.answer(each, option, human_feedback=feedback)
        return run.task(task_id, index)["state"] in ("success", "failed")

    wait_until(taken, f"the answer to {task_id} to be taken", pause=2)


def answer(api: AirflowApi, run: DagRun, task_id: str, option: str, feedback: Any = "", index: int = -1) -> Any:
    path = f"{run.path}/taskInstances/{task_id}/{index}/hitlDetails"
    body = {"chosen_options": [option], "params_input": {"human_feedback": feedback}}
    return api.call("PATCH", path, json=body)


def decisions(airflow: AirflowStack, dag_id: str, *run_id: str) -> list[dict[str, Any]]:
    """Run the audit command as a user does."""
    user, password = next(iter(airflow.passwords.items()))
    login = {"AIRFLOW_API_URL": airflow.url, "AIRFLOW_API_USER": user, "AIRFLOW_API_PASSWORD": password}
    command = [str(Path(sys.executable).with_name("python")), "-m", "airflow_crew_provider.audit.cli", dag_id, *run_id]
    done = subprocess.run(command, env={**os.environ, **login}, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert password not in done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long
def test_two_gates_and_three_rounds_in_one_execution(stack: AirflowStack) -> None:
    run = stack.api.trigger("review_gates")
    first = review_in(run, "crew.round_1.review")
    decide(run, first, "revise", "more detail {{ 7*7 }}")
    second = review_in(run, "crew.round_2.review")
    assert "> more detail {{ 7*7 }}" in second["body"]
    assert second["body"].startswith("> Outline 2, more detail {{ 7*7 }}\n\n---\n")
    assert "\n-Outline 1\n+Outline 2, more detail {{ 7*7 }}\n```" in second["body"]

    late = answer(stack.api, run, "crew.round_1.review", "approve")
    assert late.status_code == 409
    assert "already been updated" in late.text

    decide(run, second, "approve")
    third = review_in(run, "crew.round_3.review")
    assert third["subject"].startswith("Review draft_task (round 3 of 5) · ")
    assert "draft of `outline_task` was approved" in third["body"]
    assert "What has changed" not in third["body"]
    decide(run, third, "approve")
    run.wait_for("success")

    states = run.states()
    assert {states[f"crew.round_{n}.{task}"] for n in (4, 5) for task in ("review", "resume", "wait")} == {"skipped"}
    record = run.xcom("crew.result")
    assert (record["state"], record["output"]) == ("completed", "Draft 1 on tea")

    audit = decisions(stack, "review_gates", run.run_id)
    summary = [(each["round"], each["crew_task_id"], each["is_approve"], each["service"]["status"]) for each in audit]
    assert summary == [
        (1, "outline_task", False, "retrying"),
        (2, "outline_task", True, "resumed"),
        (3, "draft_task", True, "resumed"),
    ]
    assert audit[0]["output"] == "Outline 1"
    assert audit[0]["reviewer"] == {"id": stack.api.user, "name": stack.api.user}


@pytest.mark.long
def test_last_round_revisions_fail_the_run_and_report_the_fate(stack: AirflowStack) -> None:
    run = stack.api.trigger("review_last_round")
    asked = review_in(run, "crew.round_1.review")
    assert "this is the last round" in asked["body"]
    stack.wait_until_put_away(run, "crew.round_1.review")
    decide(run, asked, "revise", "shorter")
    run.wait_for("failed")
    wait_until(lambda: "It was not sent: execution" in run.log("crew.round_1.review"), "the fate in the log")
    assert run.states()["crew.result"] == "upstream_failed"
    [decision] = decisions(stack, "review_last_round")
    assert (decision["human_feedback"], decision["service"]) == ("shorter", None)


@pytest.mark.long
def test_each_mapped_group_run_has_its_own_draft_and_answer(stack: AirflowStack) -> None:
    run = stack.api.trigger("review_mapped")
    for asked in run.wait_for_reviews(2):
        decide(run, asked, "approve")
    run.wait_for("success")
    results = [run.xcom("article.crew.result", map_index=index)["output"] for index in (0, 1)]
    assert results == ["Draft 1 on tea", "Draft 1 on coffee"]


@pytest.mark.long  # without processes: test_group.py
def test_a_failed_mapped_item_costs_no_other_item_its_result(stack: AirflowStack) -> None:
    run = stack.api.trigger("review_mapped_once")
    rejected, approved = sorted(run.wait_for_reviews(2), key=lambda asked: asked["task_instance"]["map_index"])
    decide(run, rejected, "revise", "shorter")
    decide(run, approved, "approve")
    run.wait_for("failed")
    assert run.task("article.crew.result", map_index=0)["state"] == "upstream_failed"
    assert run.xcom("article.crew.result", map_index=1)["output"] == "Draft 1 on coffee"


def test_a_group_that_is_skipped_has_no_result(runs: dict[str, DagRun]) -> None:
    run = runs["review_skipped"]
    run.wait_for("success")
    assert run.states()["crew.result"] == "skipped"


@pytest.mark.long
@pytest.mark.row("A9")
def test_after_the_deadline_its_policy_decides_and_answers_change_nothing(
    stack: AirflowStack, runs: dict[str, DagRun]
) -> None:
    run = runs["review_deadline"]
    run.wait_for("failed")
    assert run.states() == {"fail": "failed", "revise": "success", "approve": "success"}, run.failure_report()
    assert run.task("fail")["try_number"] == 1
    revised = run.xcom("revise")
    assert (revised["human_feedback"], revised["reviewer"]) == ("Go on, but say less.", None)
    assert (run.xcom("approve")["is_approve"], run.xcom("approve")["reviewer"]) == (True, None)

    assert answer(stack.api, run, "revise", "approve").status_code == 409
    answer(stack.api, run, "fail", "approve")  # Airflow notes it down and does nothing
    assert run.states() == {"fail": "failed", "revise": "success", "approve": "success"}
    late = [each for each in decisions(stack, "review_deadline") if not each["taken"]]
    assert [(each["task_id"], each["task_state"]) for each in late] == [("fail", "failed")]


@pytest.mark.long
@pytest.mark.row("A9")
def test_of_two_people_the_first_who_may_answer_counts(
    stack: AirflowStack, rita: AirflowApi, runs: dict[str, DagRun]
) -> None:
    run = runs["review_assigned"]
    review_in(run, "review")
    assert answer(stack.api, run, "review", "approve").status_code == 403
    assert answer(rita, run, "review", "revise", "shorter").ok
    assert answer(rita, run, "review", "approve").status_code == 409
    run.wait_for("success")
    review = run.xcom("review")
    assert (review["is_approve"], review["reviewer"]["id"]) == (False, "rita")


@pytest.mark.row("A9", "A47")
def test_empty_revisions_are_asked_again_and_hostile_text_arrives_intact(stack: AirflowStack) -> None:
    draft = "# {{ 7*7 }}\n\n<script>alert(1)</script> {% raw %}"
    run = stack.api.trigger("review_one", {"draft": draft})
    asked = run.wait_for_review()
    assert asked["body"].startswith("> # {{ 7*7 }}\n> \n> &lt;script>alert(1)&lt;/script> {% raw %}\n\n---\n")
    stack.wait_until_put_away(run, "review")
    run.answer(asked, "revise", human_feedback=" ")

    wait_until(lambda: run.reviews() and "Asking again" in run.log("review"), "the same question again")
    stack.wait_until_put_away(run, "review", 2)
    newest = stack.api.json("GET", "variables?order_by=-id&limit=100")["variables"]  # no page holds more than 100
    kept = [each for each in newest if run.run_id in each["value"]]
    assert kept
    assert "alert(1)" not in json.dumps(kept)
    keys = stack.api.json("GET", "variables?variable_key_pattern=crew_secret_")["variables"]
    assert keys
    assert {each["value"] for each in keys} == {"***"}

    feedback = "<b>{{ 7*7 }}</b>\n" * 6_000
    decide(run, asked, "revise", feedback)
    run.wait_for("success")
    review = run.xcom("publish")
    assert review["human_feedback"] == feedback
    assert run.xcom("review", key="crew_decision")["output"] == draft
    assert review["decided_at"] > asked["created_at"].replace("Z", "+00:00")


@pytest.mark.long
def test_a_cleared_review_takes_no_answer_for_an_undisplayed_draft(stack: AirflowStack) -> None:
    run = stack.api.trigger("review_one", {"by_try": True})
    assert "Try 1." in run.wait_for_review()["body"]
    run.clear("wait", downstream=True)
    if version.has_form_per_attempt():
        again = wait_until(lambda: [each for each in run.reviews() if "Try 2." in each["body"]], "the new form")
        decide(run, again[0], "approve")
        run.wait_for("success")
        assert run.xcom("review", key="crew_decision")["output"] == "A draft. Try 2."
        return
    run.wait_for("failed")
    assert "Airflow still holds the draft from an earlier run" in run.log("review", try_number=2)


def test_a_dozen_open_reviews_leave_the_only_slot_free(stack: AirflowStack, runs: dict[str, DagRun]) -> None:
    run = runs["review_many"]

    def all_wait() -> bool:
        return sum(state in WAITING for state in run.states().values()) == MANY

    wait_until(all_wait, "a dozen open reviews", pause=2)
    assert stack.api.occupied_slots("one_slot") == 0
    stack.api.trigger("review_neighbour").wait_for("success")
    assert all_wait()
    run.mark("failed")
