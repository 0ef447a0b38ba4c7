"""Reviews on real Airflow when a task is lost, a notifier fails, a record is edited or a kickoff is cleared."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from airflow_crew_provider.compat import version
from airflow_crew_provider.models import output_sha256
from airflow_crew_provider.review import airflow_form
from scripts.stack import AirflowStack, CrewService, DagRun, ProcessGroup, wait_until
from tests.system.reviews.test_reviews import answer, decide, decisions, review_in

ASKING = {
    "inputs": ["topic"],
    "tasks": [
        {
            "id": "draft_task",
            "agent": "Writer",
            "seconds": 0.2,
            "human_input": "review",
            "output": "Draft {revision} on {topic}",
            "revised": "Draft {revision} on {topic}, {feedback}",
        }
    ],
}

PARKED = "deferred" if airflow_form.TaskAwaitingInput is None else "awaiting_input"
LOST = ("review_lost", "review_lost_while_asking")
WITH_ANSWER = "review_lost_with_answer"


@pytest.fixture(scope="module")
def stack(airflow: AirflowStack, group: ProcessGroup) -> AirflowStack:
    service = CrewService(ASKING, name="crew_asking", group=group).start()
    airflow.api.add_connection("crew_asking", **service.connection)
    return airflow


@pytest.fixture(scope="module")
def runs(stack: AirflowStack) -> dict[str, DagRun]:
    names = ("review_notifier", WITH_ANSWER, "review_edited", "review_cleared", "review_not_needed")
    return {"never_asked": stack.api.trigger(LOST[1]), **{name: stack.api.trigger(name) for name in names}}


@pytest.mark.long
@pytest.mark.row("A13")
def test_an_answer_between_tries_is_taken_by_the_next_try(stack: AirflowStack) -> None:
    runs = {name: stack.api.trigger(name) for name in LOST}
    given = {}
    for name in LOST:
        runs[name].wait_for_task("review", {"up_for_retry"})
        given[name] = answer(stack.api, runs[name], "review", "revise", "Shorter.")
    if version.has_form_per_attempt():
        # Between two tries nobody can answer: the form belongs to the attempt that was lost, and the next one asks.
        assert {each.status_code for each in given.values()} == {404}
        for name in LOST:
            decide(runs[name], review_in(runs[name], "review"), "revise", "Shorter.")
    for name in LOST:
        runs[name].wait_for("success")
        review = runs[name].xcom("review")
        assert (review["is_approve"], review["human_feedback"]) == (False, "Shorter.")
        assert review["reviewer"]["id"] == stack.api.user
        if given[name].ok:
            answered_at = datetime.fromisoformat(given[name].json()["responded_at"])
            assert datetime.fromisoformat(review["decided_at"]) == answered_at
        assert runs[name].task("review")["try_number"] >= 2  # a busy machine may lose one more


@pytest.mark.row("A13", "A26")
def test_a_killed_tasks_answer_is_used_without_asking_again(stack: AirflowStack, runs: dict[str, DagRun]) -> None:
    run = runs[WITH_ANSWER]
    asked = review_in(run, "review")
    stack.wait_until_put_away(run, "review")
    run.answer(asked, "revise", human_feedback="Shorter.")
    run.wait_for("success")
    review = run.xcom("review")
    assert (review["is_approve"], review["human_feedback"]) == (False, "Shorter.")
    assert review["reviewer"]["id"] == stack.api.user
    tries = run.task("review")["try_number"]
    assert tries >= 2  # a busy machine may lose one more
    for later in range(2, tries + 1):
        assert "Waiting for a person" not in run.log("review", later)


@pytest.mark.long  # without processes: test_kept_answers.py
@pytest.mark.row("A26")
def test_a_cleared_answered_review_ends_by_a_new_answer(stack: AirflowStack, runs: dict[str, DagRun]) -> None:
    run = runs[WITH_ANSWER]
    run.wait_for("success")
    run.clear("review")
    decide(run, review_in(run, "review"), "approve")
    run.wait_for("success")
    assert run.xcom("review")["is_approve"] is True
    [decision] = decisions(stack, WITH_ANSWER)
    assert (decision["is_approve"], decision["taken"], decision["task_state"]) == (True, True, "success")


@pytest.mark.row("A13")
def test_a_question_possibly_never_asked_is_asked_if_still_unanswered(runs: dict[str, DagRun]) -> None:
    run = runs["never_asked"]
    run.wait_for_task("review", {PARKED})  # the first try dies, and the second parks when it has looked
    decide(run, review_in(run, "review"), "approve")
    run.wait_for("success")
    assert run.xcom("review")["is_approve"] is True


@pytest.mark.long
@pytest.mark.row("A13")
def test_a_notifier_that_raises_fails_nothing(runs: dict[str, DagRun]) -> None:
    run = runs["review_notifier"]
    decide(run, review_in(run, "review"), "approve")
    run.wait_for("success")
    assert run.xcom("review")["is_approve"] is True
    assert "A notifier failed" in run.log("review", try_number=1)


@pytest.mark.long
@pytest.mark.row("A20")
@pytest.mark.since_airflow("3.3")
def test_an_answer_that_no_task_can_read_ruins_no_review(stack: AirflowStack) -> None:
    run = stack.api.trigger("review_notifier")
    asked = review_in(run, "review")
    stack.wait_until_put_away(run, "review")
    unreadable = {"chosen_options": ["approve"], "params_input": {"human_feedback": "", "x": {"__classname__": "y"}}}
    answered = stack.api.call("PATCH", run.answer_path(asked), json=unreadable)
    if answered.status_code == 422:  # Airflow 3.4 refuses the name itself, but not a field that the form lacks
        run.answer(asked, "approve", human_feedback="", x={"y": 1})
    else:
        assert answered.ok, answered.text

    def asked_again() -> bool:
        return any("was not accepted because" in each["body"] for each in run.reviews())

    wait_until(asked_again, "the next form, which says what was wrong")
    decide(run, review_in(run, "review"), "approve", "Good.")
    run.wait_for("success")
    assert run.xcom("review")["human_feedback"] == "Good."


@pytest.mark.long
@pytest.mark.row("A13")
def test_the_next_form_says_whose_answer_was_rejected_and_why(stack: AirflowStack) -> None:
    run = stack.api.trigger("review_one")
    asked = run.wait_for_review()
    path = run.answer_path(asked)
    wrong = {"chosen_options": ["revise"], "params_input": {"feedback": "Shorter."}}
    assert stack.api.call("PATCH", path, json=wrong).ok

    def next_body() -> str | None:
        detail = stack.api.json("GET", path)
        return detail["body"] if not detail["response_received"] else None

    body = wait_until(next_body, "the next question")
    said = f"The last answer by `{stack.api.user}` was not accepted because its fields are `feedback`, but the form has"
    assert body.startswith(f"**{said} `human_feedback`.**\n\n")
    assert body.endswith(asked["body"])
    decide(run, asked, "revise", "Shorter.")
    run.wait_for("success")
    assert run.xcom("review")["human_feedback"] == "Shorter."


@pytest.mark.long
@pytest.mark.row("A11")
def test_an_answer_applies_to_the_forms_draft_despite_record_edits(
    stack: AirflowStack, runs: dict[str, DagRun]
) -> None:
    run = runs["review_edited"]
    asked = review_in(run, "review")
    other = {**run.xcom("wait"), "execution_id": "execution-2", "output": "Another draft."}
    stack.api.json("PATCH", f"{run.path}/taskInstances/wait/xcomEntries/return_value", json={"value": other})
    decide(run, asked, "approve")
    run.wait_for("success")
    review = run.xcom("review")
    assert (review["execution_id"], review["output_sha256"]) == ("execution-1", output_sha256("A draft."))
    assert run.xcom("review", key="crew_decision")["output"] == "A draft."


@pytest.mark.row("A12", "A18")
def test_after_a_clear_the_unreviewed_new_execution_gives_the_result(runs: dict[str, DagRun]) -> None:
    run = runs["review_cleared"]
    decide(run, review_in(run, "crew.round_1.review"), "approve")
    run.wait_for("success")
    first = run.xcom("crew.result")
    assert first["output"] == "Draft 1 on try 1"
    run.clear("crew.kickoff", downstream=True)
    wait_until(lambda: run.state not in ("success", "failed"), "the cleared run to go on", pause=0.2)
    run.wait_for("success")
    second = run.xcom("crew.result")
    assert second["output"] == "Draft 1 on try 2"
    assert second["execution_id"] == run.xcom("crew.kickoff") != first["execution_id"]
    assert run.states()["crew.round_1.review"] == "skipped"


@pytest.mark.row("A18")
def test_without_a_review_the_data_task_gets_the_crews_output(runs: dict[str, DagRun]) -> None:
    run = runs["review_not_needed"]
    run.wait_for("success")
    assert set(run.states().values()) == {"success"}
    assert run.xcom("data") == "Draft 1 on tea"


@pytest.mark.long  # without processes: test_form_as_sent.py
@pytest.mark.row("A44", "A45")
def test_an_open_form_decides_by_its_displayed_fields_and_people(stack: AirflowStack) -> None:
    edited = stack.home / "terms_of_the_edited_review"
    run = stack.api.trigger("review_terms_edited")
    first = review_in(run, "review")
    assert (set(first["params"]), _people(first)) == ({"score", "human_feedback"}, ["admin"])
    stack.wait_until_put_away(run, "review")
    edited.write_text(json.dumps({"field": "verdict", "user": "rita"}))
    try:
        run.answer(first, "revise", score=5, human_feedback="")
        said = "it requests a revision without saying what to change"

        def asked_again() -> dict[str, Any] | None:
            forms = [each for each in run.reviews() if each["task_instance"]["task_id"] == "review"]
            return next((each for each in forms if said in each["body"] or not version.has_form_per_attempt()), None)

        again = wait_until(asked_again, "the next form")
        assert (set(again["params"]), _people(again)) == ({"score", "human_feedback"}, ["admin"])
        assert again["params"]["score"]["schema"]["maximum"] == 5
        stack.wait_until_put_away(run, "review")
        run.answer(again, "revise", score=4, human_feedback="Shorter.")
        run.wait_for("success")
    finally:
        edited.unlink()
    review = run.xcom("review")
    assert (review["human_feedback"], review["params_input"]) == ("Shorter.", {"score": 4})
    assert review["reviewer"]["id"] == stack.api.user


def _people(form: dict[str, Any]) -> list[str]:
    return [each["id"] for each in form["assigned_users"]]
