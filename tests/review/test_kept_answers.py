"""No answer is lost between tries, and each belongs to the draft that was shown when its form was opened."""

from __future__ import annotations

import asyncio
import copy
import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, TaskDeferred
from airflow_stand_ins import PENDING, Supervisor, TaskAwaitingInput, TaskParked

from airflow_crew_provider.compat import deferral, version
from airflow_crew_provider.compat.answer_trigger import NO_ANSWER, NO_FORM, AnswerTrigger
from airflow_crew_provider.models import output_sha256
from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.questions.drafts import JOINER, SHOWN_CHARACTERS
from airflow_crew_provider.view.execution import SAME, of_details, with_decisions
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, CrewTryFailed

Json = dict[str, Any]
TRIGGER_FAILURE, TRIGGER_TIMEOUT = "Trigger failure", "Trigger timeout"
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
SECOND = {**PENDING, "output": "Draft 2."}
OTHER = {**PENDING, "execution_id": "execution-2", "crew_task_id": "other_task"}


def review_of(pending: Any = PENDING, **arguments: Any) -> CrewReviewOperator:
    return CrewReviewOperator(task_id="review", pending=pending, **{"retries": 0, **arguments})


def said(option: str = "approve", feedback: Any = "", **more: Any) -> Json:
    answer = {"chosen_options": [option], "params_input": {"human_feedback": feedback}, "responded_at": NOW}
    return {**answer, "responded_by_user": {"id": "7", "name": "Ann"}, "timedout": False, **more}


def parked(run: Callable[[], Any]) -> Any:
    """Run until the task waits for a person; return what it is resumed with, as it comes back from the database."""
    with pytest.raises(TaskParked) as waits:
        run()
    return json.loads(json.dumps(waits.value.kwargs))


def retry(context: Json) -> Json:
    context["ti"].try_number += 1
    return context


def clear(context: Json) -> Json:
    context["ti"].max_tries = context["ti"].try_number
    return retry(context)


# --- an answer belongs to what was shown --------------------------------------------------------------------


@pytest.mark.row("A11")
@pytest.mark.parametrize("now", [SECOND, OTHER, {**PENDING, "state": "completed"}, None, "", {}, "{{ gone }}"], ids=str)
def test_an_answer_is_for_the_forms_draft_despite_record_changes(
    context: Json, supervisor: Supervisor, now: Any
) -> None:
    kept = parked(lambda: review_of().execute(context))
    review = review_of(now).execute_complete(context, said(), **kept)
    assert (review["execution_id"], review["crew_task_id"]) == ("execution-1", "draft_task")
    assert review["output_sha256"] == output_sha256("Draft 1.")
    assert context["ti"].pushed["crew_decision"]["output"] == "Draft 1."


@pytest.mark.row("A11")
def test_a_question_asked_again_is_about_the_same_draft(context: Json, supervisor: Supervisor) -> None:
    kept = parked(lambda: review_of().execute(context))
    again = parked(lambda: review_of(SECOND).execute_complete(context, said("revise", ""), **kept))
    assert "Draft 1." in supervisor.asked[-1].body
    assert "Draft 2." not in supervisor.asked[-1].body
    assert review_of(OTHER).execute_complete(context, said(), **again)["output_sha256"] == output_sha256("Draft 1.")


@pytest.mark.row("A11")
@pytest.mark.parametrize("output", ["x" * 3 * SHOWN_CHARACTERS, {"text": "x" * 3 * SHOWN_CHARACTERS}], ids=type)
def test_huge_drafts_are_kept_as_shown_with_their_full_hash(context: Json, supervisor: Supervisor, output: Any) -> None:
    pending = {**PENDING, "output": output}
    kept = parked(lambda: review_of(pending).execute(context))
    assert len(json.dumps(kept)) < 2 * SHOWN_CHARACTERS
    assert review_of(SECOND).execute_complete(context, said(), **kept)["output_sha256"] == output_sha256(output)
    assert len(context["ti"].pushed["crew_decision"]["output"]) == SHOWN_CHARACTERS
    review_of(pending).execute_complete(context, said(), **kept)
    assert context["ti"].pushed["crew_decision"]["output"] == output
    parked(lambda: review_of(SECOND).execute_complete(context, said("revise", ""), **kept))
    assert "Only the first 60,000 of 180," in supervisor.asked[-1].body


OBJECT = {"title": "Tea", "words": 3}
OF_TEXT = {**PENDING, "output_sha256": output_sha256("Draft 1.")}
OF_OBJECT = {
    **PENDING,
    "output": OBJECT,
    "output_sha256": output_sha256('```json\n{"words": 3, "title": "Tea"}\n```'),
    "object_sha256": output_sha256(OBJECT),
}


@pytest.mark.row("A11")
@pytest.mark.parametrize("pending", [OF_TEXT, OF_OBJECT], ids=["text", "object"])
def test_the_review_names_the_draft_by_the_waits_hash(context: Json, pending: Json) -> None:
    kept = parked(lambda: review_of(pending).execute(context))
    assert kept["shown"]["output_sha256"] == pending["output_sha256"]
    review = review_of(pending).execute_complete(context, said(), **kept)
    assert review["output_sha256"] == pending["output_sha256"]
    assert "object_sha256" not in review
    assert context["ti"].pushed["crew_decision"]["output"] == pending["output"]


def test_the_crew_tab_verifies_an_object_that_was_reviewed(context: Json) -> None:
    kept = parked(lambda: review_of(OF_OBJECT).execute(context))
    review_of(OF_OBJECT).execute_complete(context, said(), **kept)
    found = with_decisions(of_details({"state": "running"}), [context["ti"].pushed["crew_decision"]])
    assert found["rounds"][0]["text"] == SAME


CHANGED = [
    {**OF_TEXT, "output": "Draft 1, of somebody else."},
    {**OF_TEXT, "output": OBJECT},
    {**OF_OBJECT, "output": {**OBJECT, "words": 4}},
    {**OF_OBJECT, "output": "Tea"},
    {name: value for name, value in OF_OBJECT.items() if name != "object_sha256"},
]


@pytest.mark.row("A11")
@pytest.mark.parametrize("changed", CHANGED, ids=range(len(CHANGED)))
def test_an_output_not_matching_its_hash_is_shown_to_nobody(
    context: Json, supervisor: Supervisor, changed: Json
) -> None:
    with pytest.raises(CrewTaskFailed, match=r"was changed after the wait returned it.*Nobody was asked"):
        review_of(changed).execute(context)
    assert supervisor.asked == []


@pytest.mark.row("A11")
@pytest.mark.parametrize("changed", CHANGED, ids=range(len(CHANGED)))
@pytest.mark.parametrize("option", ["approve", "revise"])
def test_an_answer_is_refused_once_the_hashed_output_has_changed(context: Json, changed: Json, option: str) -> None:
    kept = parked(lambda: review_of(OF_TEXT).execute(context))
    with pytest.raises(CrewTaskFailed, match=r"The answer was not sent, and execution execution-1 stays paused"):
        review_of(changed).execute_complete(context, said(option, "Shorter."), **kept)
    assert "crew_decision" not in context["ti"].pushed


@pytest.mark.row("A8", "A11")
def test_a_review_parked_by_the_first_release_uses_its_record(context: Json) -> None:
    assert review_of().execute_complete(context, said(), until=None)["output_sha256"] == output_sha256("Draft 1.")


# --- an answer between two tries ----------------------------------------------------------------------------


@pytest.mark.row("A13")
def test_a_retry_keeps_the_open_question_instead_of_asking_again(context: Json, supervisor: Supervisor) -> None:
    first = parked(lambda: review_of(response_timeout=3600).execute(context))
    second = parked(lambda: review_of(response_timeout=3600).execute(retry(context)))
    assert len(supervisor.asked) == 1
    assert second == first  # with the deadline of the first try


@pytest.mark.row("A13")
def test_a_task_lost_after_its_answer_finds_it_again(context: Json, supervisor: Supervisor) -> None:
    kept = parked(lambda: review_of().execute(context))
    first = review_of().execute_complete(context, said(), **kept)
    again = parked(lambda: review_of().execute(retry(context)))
    assert len(supervisor.asked) == 1
    assert review_of().execute_complete(context, said(), **again) == first


@pytest.mark.row("A13")
def test_a_clear_after_the_answer_asks_anew(context: Json, supervisor: Supervisor) -> None:
    kept = parked(lambda: review_of().execute(context))
    review_of().execute_complete(context, said(), **kept)
    parked(lambda: review_of().execute(clear(context)))
    assert len(supervisor.asked) == 2


@pytest.mark.row("A13", "A9")
def test_a_clear_after_the_deadline_asks_anew(context: Json, supervisor: Supervisor) -> None:
    kept = parked(lambda: review_of(response_timeout=60).execute(context))
    with pytest.raises(CrewTaskFailed, match="Nobody answered"):
        review_of(response_timeout=60).execute_complete(context, {"error": "late", "error_type": "timeout"}, **kept)
    parked(lambda: review_of(response_timeout=60).execute(clear(context)))
    assert len(supervisor.asked) == 2


@pytest.mark.row("A13")
def test_clearing_an_open_question_keeps_it_and_restarts_its_time(context: Json, supervisor: Supervisor) -> None:
    first = parked(lambda: review_of(response_timeout=3600).execute(context))
    second = parked(lambda: review_of(response_timeout=7200).execute(clear(context)))
    assert len(supervisor.asked) == 1
    assert datetime.fromisoformat(second["until"]) - datetime.fromisoformat(first["until"]) > timedelta(minutes=50)


@pytest.mark.row("A13", "A11")
@pytest.mark.usefixtures("a_form_for_the_task")
def test_a_retry_never_shows_the_old_form_for_another_draft(context: Json, supervisor: Supervisor) -> None:
    parked(lambda: review_of().execute(context))
    with pytest.raises(CrewTaskFailed, match="still holds the draft from an earlier run"):
        review_of(SECOND).execute(retry(context))


@pytest.mark.parametrize("odd", ["e" * 201, "a  b", "a`b"], ids=["long", "spaces", "tick"])
def test_an_id_that_is_shown_differently_can_be_asked_about(context: Json, supervisor: Supervisor, odd: str) -> None:
    kept = parked(lambda: review_of({**PENDING, "execution_id": odd}).execute(context))
    assert kept["shown"]["execution_id"] == odd
    assert len(supervisor.asked) == 1


@pytest.mark.row("A13")
@pytest.mark.usefixtures("a_state_store")
def test_a_try_that_cannot_read_what_it_asked_asks_nobody(context: Json, supervisor: Supervisor, a_memory: Any) -> None:
    parked(lambda: review_of().execute(context))

    a_memory.unreadable = 1000
    with pytest.raises(AirflowException, match="any answer is kept") as error:
        review_of().execute(retry(context))
    assert not isinstance(error.value, CrewTaskFailed)
    assert len(supervisor.asked) == 1
    a_memory.unreadable = 0
    parked(lambda: review_of().execute(retry(context)))
    assert len(supervisor.asked) == 1


def came_back(review: CrewReviewOperator, context: Json, reason: str) -> Any:
    """Resume a deferred review as Airflow does where its trigger has fired nothing."""
    return review.resume_execution("__fail__", {"error": reason}, context)


# --- Airflow 3.1 to 3.3: the form of a task whose DAG was edited --------------------------------------------

EDITED = [
    ({}, {"allow_edit": True}, said()),
    ({"allow_edit": True}, {}, said(params_input={"human_feedback": "", "edited_draft": "Draft 1."})),
    ({"options": ("ok", "redo")}, {}, said("ok")),
]


@pytest.mark.row("A11", "A13")
@pytest.mark.usefixtures("a_form_for_the_task")
@pytest.mark.parametrize(("before", "after", "answer"), EDITED, ids=["edits on", "edits off", "options"])
@pytest.mark.parametrize("is_answered", [False, True])
@pytest.mark.parametrize("again", [retry, clear])
def test_a_kept_form_is_answered_as_shown_despite_dag_edits(
    context: Json, supervisor: Supervisor, before: Json, after: Json, answer: Json, is_answered: bool, again: Any
) -> None:
    kept = parked(lambda: review_of(**before).execute(context))
    if is_answered:
        review_of(**before).execute_complete(context, answer, **kept)
    kept = parked(lambda: review_of(**after).execute(again(context)))
    assert review_of(**after).execute_complete(context, answer, **kept)["is_approve"] is True
    assert {tuple(form.options) for form in supervisor.asked} == {tuple(before.get("options", ("approve", "revise")))}


@pytest.mark.row("A11", "A13")
@pytest.mark.usefixtures("a_form_for_the_task")
def test_a_two_approval_form_survives_a_dag_edit_and_clear(context: Json, supervisor: Supervisor) -> None:
    parked(lambda: review_of(approvals=2).execute(context))
    kept = parked(lambda: review_of(approvals=1).execute(clear(context)))
    parked(lambda: review_of(approvals=1).execute_complete(context, said(), **kept))
    assert "1 more must approve" in supervisor.asked[-1].body


BODIES = [("Draft 1. Asked at 12:00.", "Draft 1. Asked at 12:05."), ("My page: Draft 1.", None), (None, "Draft 1.")]


@pytest.mark.row("A11", "A13")
@pytest.mark.usefixtures("a_form_for_the_task")
@pytest.mark.parametrize(("first", "second"), BODIES)
def test_a_draft_is_asked_again_though_its_body_renders_differently(
    context: Json, supervisor: Supervisor, first: str | None, second: str | None
) -> None:
    kept = parked(lambda: review_of(body=first, approvals=2).execute(context))
    kept = parked(lambda: review_of(body=second, approvals=2).execute_complete(context, said("revise", ""), **kept))
    kept = parked(lambda: review_of(body=second, approvals=2).execute_complete(context, said(), **kept))
    bob = said(responded_by_user={"id": "8", "name": "Bob"})
    assert review_of(body=second, approvals=2).execute_complete(context, bob, **kept)["is_approve"] is True
    parked(lambda: review_of(body=second, approvals=2).execute(clear(context)))
    assert len(supervisor.asked) == 4


@pytest.mark.row("A11")
@pytest.mark.usefixtures("a_form_for_the_task")
def test_a_custom_body_of_another_draft_is_not_asked_again(context: Json, supervisor: Supervisor) -> None:
    parked(lambda: review_of(body="Draft 1.").execute(context))
    for again in (clear, retry):
        with pytest.raises(CrewTaskFailed, match="still holds the draft from an earlier run"):
            review_of(SECOND, body="Draft 2.").execute(again(context))


# --- a try that is lost while it asks -----------------------------------------------------------------------


def lost_while_asking(context: Json, supervisor: Supervisor) -> None:
    supervisor.kills = True
    with pytest.raises(KeyboardInterrupt):
        review_of().execute(context)
    supervisor.kills = False


@pytest.mark.row("A13")
@pytest.mark.usefixtures("a_form_for_the_task")
def test_an_answer_to_an_unrecorded_question_is_taken(context: Json, supervisor: Supervisor) -> None:
    lost_while_asking(context, supervisor)
    kept = parked(lambda: review_of().execute(retry(context)))
    assert len(supervisor.asked) == 1
    assert review_of().execute_complete(context, said(), **kept)["is_approve"] is True


@pytest.mark.row("A53")
@pytest.mark.parametrize("reason", [TRIGGER_FAILURE, TRIGGER_TIMEOUT])
@pytest.mark.usefixtures("a_form_for_the_task")
def test_what_is_not_known_is_not_taken_for_no_answer(context: Json, supervisor: Supervisor, reason: str) -> None:
    lost_while_asking(context, supervisor)
    for _ in range(2):
        looks_at(lambda: review_of(response_timeout=3600).execute(retry(context)))
        looks_at(lambda: came_back(review_of(response_timeout=3600), context, reason))
        with pytest.raises(CrewTryFailed, match="Nobody was asked again, and any answer is kept"):
            came_back(review_of(response_timeout=3600), context, reason)
    assert len(supervisor.asked) == 1, "asking would remove an answer"


@pytest.mark.row("A23")
@pytest.mark.parametrize("reason", [TRIGGER_FAILURE, TRIGGER_TIMEOUT])
@pytest.mark.usefixtures("a_form_for_the_task")
def test_an_answer_after_a_lost_look_is_found_by_another(context: Json, supervisor: Supervisor, reason: str) -> None:
    lost_while_asking(context, supervisor)
    parked(lambda: review_of(response_timeout=3600).execute(retry(context)))
    person = {"id": "7", "name": "Ann"}
    supervisor.answer = {"chosen_options": ["approve"], "params_input": {}, "responded_at": NOW}
    supervisor.answer["responded_by_user"] = person
    with pytest.raises(TaskDeferred) as looks:
        came_back(review_of(response_timeout=3600), context, reason)
    assert len(supervisor.asked) == 1, "asking removes the answer"
    trigger = looks.value.trigger
    trigger.not_before = 0.0
    event = asyncio.run(anext(trigger.run())).payload
    assert review_of().execute_complete(context, {**said(), **event}, **looks.value.kwargs)["is_approve"] is True


@pytest.mark.row("A13")
@pytest.mark.usefixtures("a_form_for_the_task")
def test_a_retry_finding_no_answer_waits_and_asks_nobody(context: Json, supervisor: Supervisor) -> None:
    first = parked(lambda: review_of(response_timeout=3600).execute(context))
    with pytest.raises(TaskDeferred) as looks:
        review_of(response_timeout=3600).execute(retry(context))
    assert isinstance(looks.value.trigger, AnswerTrigger)
    assert timedelta(seconds=deferral.NOTICED_AFTER) < looks.value.timeout < timedelta(minutes=1)
    with pytest.raises(TaskAwaitingInput):
        came_back(review_of(response_timeout=3600), context, TRIGGER_TIMEOUT)
    assert parked(lambda: came_back(review_of(response_timeout=3600), context, TRIGGER_TIMEOUT)) == first
    assert len(supervisor.asked) == 1


@pytest.mark.row("A11", "A17")
@pytest.mark.usefixtures("a_form_for_the_task")
def test_without_its_record_a_clear_takes_no_older_drafts_answer(context: Json, supervisor: Supervisor) -> None:
    kept = parked(lambda: review_of().execute(context))
    review_of().execute_complete(context, said(), **kept)
    context["task_state_store"].clear()  # as with [state_store] clear_on_success
    supervisor.kills = True
    with pytest.raises(KeyboardInterrupt):
        review_of(SECOND).execute(clear(context))
    supervisor.kills = False
    with pytest.raises(CrewTaskFailed, match="still holds the draft from an earlier run"):
        review_of(SECOND).execute(retry(context))


@pytest.mark.row("A13")
@pytest.mark.usefixtures("a_state_store")
def test_a_try_that_cannot_record_the_question_asks_nobody(
    context: Json, supervisor: Supervisor, a_memory: Any
) -> None:
    a_memory.writable = False
    with pytest.raises(AirflowException, match="Nobody was asked") as error:
        review_of().execute(context)
    assert not isinstance(error.value, CrewTaskFailed)
    assert supervisor.asked == []


# --- Airflow 3.4: a form belongs to the attempt that has asked ----------------------------------------------


def new_attempt(context: Json) -> Json:
    context["ti"].id = uuid.uuid4()
    return context


def looks_at(run: Callable[[], Any]) -> Any:
    """Return the trigger that looks for an answer."""
    with pytest.raises(TaskDeferred) as looks:
        run()
    return looks.value.trigger


def found(what: str, context: Json, kept: Json) -> Json:
    """Resume a review whose trigger has found that there is no answer, or no form."""
    event = {"error": f"There is {what}", "error_type": what}
    return parked(lambda: review_of().resume_execution("execute_complete", {**kept, "event": event}, context))


@pytest.mark.row("A26")
@pytest.mark.usefixtures("a_form_per_attempt")
@pytest.mark.parametrize("again", [retry, clear])
def test_a_later_attempt_looks_for_an_earlier_attempts_answer(
    context: Json, supervisor: Supervisor, again: Any
) -> None:
    first = context["ti"].id
    kept = parked(lambda: review_of().execute(context))
    trigger = looks_at(lambda: review_of().execute(new_attempt(again(context))))
    assert (trigger.ti_id, trigger.once) == (str(first), True)
    assert review_of().execute_complete(context, said(), **kept)["is_approve"] is True
    assert len(supervisor.asked) == 1


@pytest.mark.row("A26")
@pytest.mark.usefixtures("a_form_per_attempt")
@pytest.mark.parametrize("what", [NO_ANSWER, NO_FORM])
@pytest.mark.parametrize("again", [retry, clear])
def test_without_an_answer_a_new_attempt_repeats_the_same_question(
    context: Json, supervisor: Supervisor, again: Any, what: str
) -> None:
    kept = parked(lambda: review_of().execute(context))
    looks_at(lambda: review_of().execute(new_attempt(again(context))))
    found(what, context, kept)
    first, second = supervisor.asked
    assert (second.body, second.subject, second.ti_id) == (first.body, first.subject, context["ti"].id)
    assert first.ti_id != second.ti_id
    assert looks_at(lambda: review_of().execute(new_attempt(retry(context)))).ti_id == str(second.ti_id)


@pytest.mark.row("A26")
@pytest.mark.usefixtures("a_form_per_attempt")
def test_an_attempt_lost_while_asking_anew_may_have_been_answered(context: Json, supervisor: Supervisor) -> None:
    kept = parked(lambda: review_of(response_timeout=3600).execute(context))
    looks_at(lambda: review_of(response_timeout=3600).execute(new_attempt(retry(context))))
    supervisor.kills, second = True, context["ti"].id
    event = {"error": "", "error_type": NO_ANSWER}
    with pytest.raises(KeyboardInterrupt):
        review_of().resume_execution("execute_complete", {**kept, "event": event}, context)
    supervisor.kills = False
    assert looks_at(lambda: review_of(response_timeout=3600).execute(new_attempt(retry(context)))).ti_id == str(second)
    assert found(NO_FORM, context, kept)["until"] == kept["until"]


@pytest.mark.row("A53")
@pytest.mark.usefixtures("a_form_per_attempt")
def test_a_look_that_no_triggerer_has_ended_asks_nobody(context: Json, supervisor: Supervisor) -> None:
    parked(lambda: review_of().execute(context))
    with pytest.raises(TaskDeferred) as looks:
        review_of().execute(new_attempt(retry(context)))
    assert looks.value.timeout > timedelta(minutes=1), "a triggerer that was lost may be replaced meanwhile"
    looks_at(lambda: came_back(review_of(), context, TRIGGER_TIMEOUT))
    with pytest.raises(CrewTryFailed, match="a retry of this task looks again"):
        came_back(review_of(), context, TRIGGER_TIMEOUT)
    looks_at(lambda: review_of().execute(new_attempt(retry(context))))
    assert len(supervisor.asked) == 1, "Ann may have answered the first form"


@pytest.mark.row("A26")
@pytest.mark.usefixtures("a_form_per_attempt")
@pytest.mark.parametrize(("what", "asked"), [(NO_ANSWER, 1), (NO_FORM, 2)])
def test_older_airflow_questions_are_asked_again_only_without_their_form(
    context: Json, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, what: str, asked: int
) -> None:
    with monkeypatch.context() as before:
        before.setattr(version, "RELEASE", (3, 3))
        kept = parked(lambda: review_of().execute(context))
    assert looks_at(lambda: review_of().execute(retry(context))).ti_id == context["ti"].id
    found(what, context, kept)
    assert len(supervisor.asked) == asked


@pytest.mark.row("A26")
@pytest.mark.usefixtures("a_form_per_attempt")
def test_another_draft_is_asked_about_in_its_own_attempts_form(context: Json, supervisor: Supervisor) -> None:
    parked(lambda: review_of().execute(context))
    parked(lambda: review_of(SECOND).execute(new_attempt(retry(context))))
    assert "Draft 2." in supervisor.asked[-1].body
    assert looks_at(lambda: review_of(SECOND).execute(retry(context))).ti_id == str(context["ti"].id)


@pytest.mark.row("A13")
@pytest.mark.usefixtures("a_form_for_the_task")
def test_a_found_form_is_not_asked_again_though_unrecorded(context: Json, supervisor: Supervisor) -> None:
    lost_while_asking(context, supervisor)
    kept = {**parked(lambda: review_of().execute(retry(context)))}
    found(NO_ANSWER, context, kept)
    assert len(supervisor.asked) == 1, "asking would remove an answer that came since"


# --- notifiers ----------------------------------------------------------------------------------------------


class Calls:
    """A notifier that counts, and then does as it is told."""

    def __init__(self, then: BaseException | None = None) -> None:
        self.times, self._then = 0, then

    def __call__(self, context: Any) -> None:
        self.times += 1
        if self._then:
            raise self._then

    def __deepcopy__(self, memo: Any) -> Calls:
        return self


@pytest.mark.row("A13")
def test_a_raising_notifier_fails_nothing_and_the_next_is_called(context: Json, supervisor: Supervisor) -> None:
    broken, working = Calls(RuntimeError("no mail server")), Calls()
    review = review_of()
    review.notifiers = [broken, working]
    parked(lambda: review.execute(context))
    assert (broken.times, working.times, len(supervisor.asked)) == (1, 1, 1)


@pytest.mark.row("A13")
def test_people_are_notified_once_per_question_over_all_tries(context: Json, supervisor: Supervisor) -> None:
    calls = Calls()
    review = review_of()
    review.notifiers = [calls]
    kept = parked(lambda: copy.copy(review).execute(context))
    parked(lambda: copy.copy(review).execute(retry(context)))
    assert calls.times == 1
    parked(lambda: copy.copy(review).execute_complete(context, said("revise", ""), **kept))
    assert calls.times == 2


@pytest.mark.row("A13")
def test_a_task_killing_notifier_is_tried_twice_and_then_skipped(context: Json, supervisor: Supervisor) -> None:
    calls = Calls(KeyboardInterrupt())
    review = review_of()
    review.notifiers = [calls]
    with pytest.raises(KeyboardInterrupt):
        copy.copy(review).execute(context)
    with pytest.raises(KeyboardInterrupt):
        came_back(copy.copy(review), retry(context), TRIGGER_TIMEOUT)
    parked(lambda: came_back(copy.copy(review), retry(context), TRIGGER_TIMEOUT))
    assert (calls.times, len(supervisor.asked)) == (2, 1)


# --- an answer that is none ---------------------------------------------------------------------------------


@pytest.mark.row("A13")
@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (said("revise", params_input={"feedback": "Shorter."}), "its fields are `feedback`, but the form has `human_f"),
        (said("revise", " "), "it requests a revision without saying what to change"),
        (said("approve", ["a"]), "its field `human_feedback` must be a string"),
        (said("approve", params_input={"<img src=x>`": 1}), f"its fields are `<{JOINER}img src=x>'`, but the form"),
    ],
)
@pytest.mark.parametrize("body", [None, "Please look at this: Draft 1."], ids=["page", "own body"])
def test_the_next_form_says_why_the_last_answer_was_refused(
    context: Json, supervisor: Supervisor, event: Json, reason: str, body: str | None
) -> None:
    kept = parked(lambda: review_of(body=body).execute(context))
    parked(lambda: review_of(body=body).execute_complete(context, event, **kept))
    body = supervisor.asked[-1].body
    assert body.startswith(f"**The last answer by `Ann` was not accepted because {reason}")
    assert body.index("was not accepted") < body.index("Draft 1.")
