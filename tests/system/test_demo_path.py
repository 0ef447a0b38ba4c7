"""The whole pattern in real processes: no worker slot is held while the crew works or a person thinks."""

from __future__ import annotations

import requests

from scripts.stack import AirflowStack, wait_until
from scripts.stack.reviews import draft_shown
from scripts.stack.waiting import PATIENCE

FEEDBACK = "Shorter, and name the sources."


def test_execution_and_review_hold_no_slot_and_the_feedback_arrives(
    airflow: AirflowStack,
) -> None:
    run = airflow.api.trigger("crew_review", {"topic": "salt"})

    run.wait_for_task("article.wait", ["deferred"])
    wait_until(lambda: airflow.api.occupied_slots() == 0, "free slots while the crew runs")
    assert run.task("article.wait")["state"] == "deferred"

    first = run.wait_for_review()
    assert first["task_instance"]["state"] in ("awaiting_input", "deferred")
    assert airflow.api.occupied_slots() == 0
    assert "Draft 1 on salt" in first["body"]
    run.answer(first, "revise", human_feedback=FEEDBACK)
    late = airflow.api.call("PATCH", run.answer_path(first), json={"chosen_options": ["approve"]})
    assert late.status_code == 409, "a second answer changes nothing"

    second = run.wait_for_review()
    assert second["task_instance"]["task_id"] != first["task_instance"]["task_id"]
    assert draft_shown(second) == 2
    of_draft_1 = [line for line in second["body"].splitlines() if "Draft 1" in line]
    assert of_draft_1, "the form shows what has changed"
    assert all(line.startswith("-") for line in of_draft_1), "and the old draft only as what is gone"
    assert airflow.api.occupied_slots() == 0
    run.answer(second, "approve", human_feedback="")

    run.wait_for("success")
    record = run.xcom("article.result")
    assert record["state"] == "completed"
    assert FEEDBACK in record["output"]
    assert run.xcom("publish") == record["output"]
    assert "skipped" in (run.states()["article.round_3.review"], run.states()["article.round_3.resume"])


def test_nobody_answers_without_signing_in(airflow: AirflowStack) -> None:
    answer = requests.get(f"{airflow.url}/api/v2/dags/crew_review/dagRuns/~/hitlDetails", timeout=PATIENCE)
    assert answer.status_code == 401
