"""A reviewer edits the draft: at our service the text becomes the output, elsewhere it is feedback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow_stand_ins import PENDING, Supervisor, TaskParked, parked

from airflow_crew_provider.api.status import json_in
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.operators.crew import CrewResumeOperator
from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.questions import Terms
from airflow_crew_provider.questions.drafts import SHOWN_CHARACTERS
from airflow_crew_provider.resume import sending
from airflow_crew_provider.review.answer import shown_draft
from airflow_crew_provider.review.form import ReviewForm
from airflow_crew_provider.wait.outcomes import CrewTaskFailed
from crew_service.local import running_service
from scripts.stack import wait_until

pytestmark = pytest.mark.waits
Json = dict[str, Any]
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
OURS = {**PENDING, "takes_edited_output": True}
EDITED = "A draft of my own."
PAUSED = "NOT FOUND"  # as live deployments say while a person is asked
CREW = {
    "inputs": ["topic"],
    "tasks": [
        {
            "id": "draft_task",
            "human_input": True,
            "output": "Draft {revision}.",
            "revised": "Draft {revision}, after: {feedback}",
        },
        {"id": "publish_task", "output": "Published."},
    ],
}


def review_of(pending: Any = OURS, **arguments: Any) -> CrewReviewOperator:
    return CrewReviewOperator(task_id="review", pending=pending, **{"allow_edit": True, **arguments})


def said(draft: Any, option: str = "approve", feedback: str = "", **more: Any) -> Json:
    fields = {"human_feedback": feedback, "edited_draft": draft}
    answer = {"chosen_options": [option], "params_input": fields, "responded_at": NOW}
    return {**answer, "responded_by_user": {"id": "7", "name": "Ann"}, "timedout": False, **more}


def asked(supervisor: Supervisor, context: Json, operator: CrewReviewOperator) -> Any:
    with pytest.raises(TaskParked):
        operator.execute(context)
    return supervisor.asked[0]


def test_the_form_offers_the_draft_for_editing_if_allowed(context: Json, supervisor: Supervisor) -> None:
    form = asked(supervisor, context, review_of())
    assert form.params["edited_draft"]["value"] == "Draft 1."
    assert "becomes the output of the task" in form.body


def test_the_form_does_not_mention_editing_if_not_allowed(context: Json, supervisor: Supervisor) -> None:
    form = asked(supervisor, context, review_of(allow_edit=False))
    assert set(form.params) == {"human_feedback"}
    assert "edit" not in form.body


@pytest.mark.usefixtures("a_form_for_the_task")
def test_a_form_holding_an_earlier_runs_draft_is_not_reused(context: Json, supervisor: Supervisor) -> None:
    """The body is the DAG's own and the same; only the field to edit holds the draft."""
    fixed = {"body": "Edit the draft below."}
    asked(supervisor, context, review_of(**fixed))
    cleared = {**context, "ti": SimpleNamespace(**{**vars(context["ti"]), "try_number": 2, "max_tries": 1})}
    with pytest.raises(CrewTaskFailed, match="still holds the draft from an earlier run"):
        review_of({**OURS, "execution_id": "execution-2", "output": "Draft 2."}, **fixed).execute(cleared)


LATER = [{"allow_edit": False}, {"options": ("Accept", "Change")}]


@pytest.mark.parametrize("later", LATER, ids=["no edit", "other words"])
def test_answers_are_judged_by_the_shown_form_despite_dag_edits(
    context: Json, supervisor: Supervisor, later: Json
) -> None:
    kwargs = parked(lambda: review_of().execute(context))
    review = review_of(**later).execute_complete(context, said(EDITED), **kwargs)
    assert (review["is_approve"], review["edited_output"]) == (True, EDITED)


@pytest.mark.parametrize("later", LATER, ids=["no edit", "other words"])
def test_a_retry_with_a_later_dag_keeps_the_form_too(context: Json, supervisor: Supervisor, later: Json) -> None:
    parked(lambda: review_of().execute(context))
    retry = {**context, "ti": SimpleNamespace(**{**vars(context["ti"]), "try_number": 2})}
    kwargs = parked(lambda: review_of(**later).execute(retry))
    review = review_of(**later).execute_complete(retry, said(EDITED), **kwargs)
    assert (review["is_approve"], review["edited_output"]) == (True, EDITED)


def test_the_deadline_decides_as_the_form_says(context: Json, supervisor: Supervisor) -> None:
    asked_by = {"response_timeout": 60, "on_timeout": "approve"}
    kwargs = parked(lambda: review_of(**asked_by).execute(context))
    nobody = said(None, responded_by_user=None, timedout=True, responded_at=datetime.now(UTC))
    review = review_of(response_timeout=60, on_timeout={"revise": "Nobody looked."}).execute_complete(
        context, nobody, **kwargs
    )
    assert (review["is_approve"], review["human_feedback"], review["reviewer"]) == (True, "", None)


def test_an_edited_draft_goes_along_with_the_approval(context: Json) -> None:
    review = review_of().execute_complete(context, said(EDITED))
    assert (review["is_approve"], review["edited_output"]) == (True, EDITED)
    assert context["ti"].pushed["crew_decision"]["output"] == "Draft 1."


def test_an_unchanged_draft_is_approved_without_an_edit(context: Json) -> None:
    assert "edited_output" not in review_of().execute_complete(context, said("Draft 1."))
    without = {**said("Draft 1."), "params_input": {"human_feedback": ""}}  # as a program may answer
    assert "edited_output" not in review_of().execute_complete(context, without)


def test_changed_line_endings_from_a_browser_are_no_edit(context: Json) -> None:
    pending = {**OURS, "output": "One.\nTwo."}
    assert "edited_output" not in review_of(pending).execute_complete(context, said("One.\r\nTwo."))
    assert review_of(pending).execute_complete(context, said("One.\r\n2."))["edited_output"] == "One.\n2."


@pytest.mark.parametrize(("draft", "typed"), [(True, "1"), (1, "1.0"), (0, "false")])
def test_a_changed_value_type_is_an_edit_despite_python_equality(context: Json, draft: Any, typed: str) -> None:
    edited = f'{{"ok": {typed}}}'
    review = review_of({**OURS, "output": {"ok": draft}}).execute_complete(context, said(edited))
    assert review["edited_output"] == edited


def test_white_space_around_a_draft_is_no_edit(context: Json) -> None:
    review = review_of({**OURS, "output": "One.\n"}).execute_complete(context, said(" One."))
    assert "edited_output" not in review


def test_an_edit_with_a_revision_is_feedback(context: Json) -> None:
    review = review_of().execute_complete(context, said(EDITED, "revise", "Like this."))
    assert (review["is_approve"], "edited_output" in review) == (False, False)
    assert review["human_feedback"].startswith("Like this.\n\n")
    assert review["human_feedback"].endswith(EDITED)


@pytest.mark.parametrize("is_last", [False, True])
def test_the_form_promises_edits_as_feedback_before_the_last_round(is_last: bool) -> None:
    terms = Terms(allow_edit=True, round_number=1, max_rounds=1 if is_last else 2)
    said = ReviewForm(pending=shown_draft(OURS), terms=terms).body
    assert ("your text becomes the output" in said, "as feedback" in said) == (True, not is_last)


def test_without_edit_support_an_edit_becomes_an_announced_revision(context: Json, supervisor: Supervisor) -> None:
    form = asked(supervisor, context, review_of(PENDING))
    assert "this service accepts it only as feedback" in form.body
    review = review_of(PENDING).execute_complete(context, said(EDITED))
    assert (review["is_approve"], "edited_output" in review) == (False, False)
    assert review["human_feedback"].endswith(f"unchanged:\n\n{EDITED}")


def test_without_edit_support_the_last_round_sends_no_edit(context: Json, supervisor: Supervisor) -> None:
    last = {"round_number": 2, "max_rounds": 2}
    assert "**none is sent in the last round**" in asked(supervisor, context, review_of(PENDING, **last)).body
    with pytest.raises(CrewTaskFailed, match=r"last of 2 rounds\. It was not sent"):
        review_of(PENDING, **last).execute_complete(context, said(EDITED))


@pytest.mark.parametrize(
    ("output", "draft", "why"),
    [
        ("Draft 1.", " \n", "the edited draft is empty"),
        ("Draft 1.", None, "the edited draft is empty"),  # as Airflow's page sends a field that was emptied
        ({"title": "Tea"}, "no object any more", "the draft is a JSON object, but the edited one is not"),
        ("Draft 1.", 7, "`edited_draft` must be a string"),
    ],
)
def test_what_cannot_replace_a_draft_is_asked_for_again(
    context: Json, supervisor: Supervisor, caplog: Any, output: Any, draft: Any, why: str
) -> None:
    operator = review_of({**OURS, "output": output})
    with pytest.raises(TaskParked):
        operator.execute_complete(context, said(draft))
    assert why in supervisor.asked[0].body


@pytest.mark.parametrize(
    ("output", "draft"), [("Draft 1.", " \n"), ({"title": "Tea"}, "no object any more"), ("Draft 1.", 7)]
)
def test_a_question_asked_again_shows_the_same_draft_to_edit(
    context: Json, supervisor: Supervisor, output: Any, draft: Any
) -> None:
    pending = {**OURS, "output": output}
    kwargs = parked(lambda: review_of(pending).execute(context))
    again = parked(lambda: review_of(pending).execute_complete(context, said(draft), **kwargs))
    first, second = (each.params["edited_draft"]["value"] for each in supervisor.asked)
    assert first == second
    edited = first.replace("Tea", "Coffee").replace("Draft", "Text")
    review = review_of(pending).execute_complete(context, said(edited), **again)
    assert "Coffee" in review["edited_output"] or review["edited_output"] == "Text 1."


def test_needed_approvals_are_judged_by_the_shown_form_too(context: Json, supervisor: Supervisor) -> None:
    kwargs = parked(lambda: review_of().execute(context))
    review = review_of(approvals=2, allow_edit=False).execute_complete(context, said(EDITED), **kwargs)
    assert (review["is_approve"], review["edited_output"]) == (True, EDITED)


def test_the_text_of_a_refused_answer_is_kept(
    context: Json, supervisor: Supervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = said("no object any more", feedback="The title was too long.")
    with pytest.raises(TaskParked):
        review_of({**OURS, "output": {"title": "Tea"}}).execute_complete(context, answer)
    assert context["ti"].pushed["crew_refused_answer"] == answer["params_input"]
    assert "Its content is kept in XCom crew_refused_answer. Asking again" in capsys.readouterr().out


def test_an_object_is_edited_as_shown_and_stays_an_object(context: Json, supervisor: Supervisor) -> None:
    pending = {**OURS, "output": {"title": "Tea", "words": 10}}
    form = asked(supervisor, context, review_of(pending))
    given = form.params["edited_draft"]["value"]
    assert given.startswith("```json\n{")  # Airflow's page shows a text that begins with a brace as [object Object]
    assert json_in(given) == pending["output"]
    for same in (given, given.replace("\n", "\r\n"), given[8:-4], f" {given[8:-4]}\n", pending["output"]):
        assert "edited_output" not in review_of(pending).execute_complete(context, said(same))
    changed = review_of(pending).execute_complete(context, said({"title": "Coffee", "words": 10}))
    assert json.loads(changed["edited_output"]) == {"title": "Coffee", "words": 10}
    review = review_of(pending).execute_complete(context, said(given.replace("10", "9")))
    assert json.loads(review["edited_output"]) == {"title": "Tea", "words": 9}


@pytest.mark.parametrize("pending", [{"output": "x" * (SHOWN_CHARACTERS + 1)}, {"question": "Right?", "outcomes": []}])
def test_partly_shown_drafts_and_flow_answers_cannot_be_edited(
    context: Json, supervisor: Supervisor, pending: Json
) -> None:
    form = asked(supervisor, context, review_of({**OURS, **pending}))
    assert set(form.params) == {"human_feedback"}


def test_the_deadline_approves_the_draft_not_the_forms_text(context: Json) -> None:
    operator = review_of(response_timeout=60, on_timeout="approve")
    review = operator.execute_complete(context, said(EDITED, responded_by_user=None, timedout=True))
    assert (review["is_approve"], "edited_output" in review) == (True, False)


# --- at a real service ---


class Waiting:
    """An execution waiting with its draft."""

    def __init__(self) -> None:
        self.hook = CrewHook()
        self.id = self.hook.kickoff({"topic": "tea"})

    def pending(self, draft: str = "Draft 1.") -> Json:
        wait_until(lambda: self.hook.get_status(self.id).output == draft, draft)
        return self.hook.get_status(self.id).record()


def served(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Iterator[Waiting]:
    with running_service(**{"scenario": CREW, **settings}) as service:
        connection = {"conn_type": "crew", "host": service.url, "password": service.token}
        monkeypatch.setenv("AIRFLOW_CONN_CREW_DEFAULT", json.dumps(connection))
        yield Waiting()


@pytest.fixture
def execution(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waiting]:
    yield from served(monkeypatch)


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waiting]:
    yield from served(monkeypatch, dialect="live")


def resume(context: Json, review: Json, **more: Any) -> str:
    return CrewResumeOperator(task_id="resume", review=review, **more).execute(context)


def test_the_service_is_known_by_its_offer(execution: Waiting) -> None:
    assert execution.pending()["takes_edited_output"] is True


def test_a_live_deployment_does_not_offer_it(live: Waiting) -> None:
    wait_until(lambda: live.hook.get_status(live.id).raw_state == PAUSED, "the pause")
    assert "takes_edited_output" not in live.hook.get_status(live.id).record()


def test_the_edited_text_becomes_the_output_of_the_task(execution: Waiting, context: Json) -> None:
    review = review_of(execution.pending()).execute_complete(context, said(EDITED))
    assert resume(context, review) == execution.id
    wait_until(lambda: execution.hook.get_status(execution.id).state == "completed", "the completion")
    assert execution.hook.get_status(execution.id).tasks[0].output == EDITED


def test_the_new_draft_is_handed_on_without_an_outdated_edit(
    execution: Waiting, context: Json, caplog: pytest.LogCaptureFixture
) -> None:
    review = review_of(execution.pending()).execute_complete(context, said(EDITED))
    execution.hook.resume(execution.id, "draft_task", "Shorter.", False)
    second = execution.pending("Draft 2, after: Shorter.")
    assert resume(context, review, has_next_round=True) == execution.id
    assert context["ti"].pushed["crew_resume"]["status"] == "not sent"
    assert execution.hook.get_status(execution.id).record() == second
    assert review_of(second).execute_complete(context, said(EDITED))["output_sha256"] != review["output_sha256"]


@pytest.mark.parametrize(
    ("draft", "shown", "edited"),
    [
        ("Draft\x00 1.", "Draft\ufffd 1.", EDITED),
        ('{"title": "Tea\x00"}', '{"title": "Tea\ufffd"}', '{"title": "Coffee"}'),
    ],
    ids=["text", "object"],
)
def test_a_draft_with_unstorable_characters_is_edited_like_any_other(
    monkeypatch: pytest.MonkeyPatch, context: Json, draft: str, shown: str, edited: str
) -> None:
    crew = {"inputs": ["topic"], "tasks": [{"id": "draft_task", "human_input": True, "output": draft}]}
    with contextmanager(served)(monkeypatch, scenario=crew) as execution:
        review = review_of(execution.pending(shown)).execute_complete(context, said(edited))
        assert review["edited_output"] == edited
        resume(context, review)
        wait_until(lambda: execution.hook.get_status(execution.id).state == "completed", "the completion")
        assert execution.hook.get_status(execution.id).tasks[0].output == edited


@pytest.mark.row("N21")
def test_an_edit_is_not_silently_dropped_after_somebody_elses_approval(
    monkeypatch: pytest.MonkeyPatch, context: Json
) -> None:
    monkeypatch.setattr(sending, "SETTLING", 1.0)
    slow = {"inputs": ["topic"], "tasks": [CREW["tasks"][0], {"id": "publish_task", "seconds": 60, "output": "Out."}]}
    with contextmanager(served)(monkeypatch, scenario=slow) as execution:
        review = review_of(execution.pending()).execute_complete(context, said(EDITED))
        execution.hook.resume(execution.id, "draft_task", "Approved.", True)
        wait_until(lambda: execution.hook.get_status(execution.id).current_task == "publish_task", "the next task")
        with pytest.raises(CrewTaskFailed, match="it was answered elsewhere"):
            resume(context, review, has_next_round=True)
        execution.hook.stop(execution.id)


def test_without_a_next_round_an_outdated_edit_fails_the_resume(execution: Waiting, context: Json) -> None:
    review = review_of(execution.pending()).execute_complete(context, said(EDITED))
    execution.hook.resume(execution.id, "draft_task", "Shorter.", False)
    second = execution.pending("Draft 2, after: Shorter.")
    with pytest.raises(CrewTaskFailed, match=r"waiting with a different draft.*not sent and changed nothing"):
        resume(context, review)
    assert execution.hook.get_status(execution.id).record() == second
    assert "crew_resume" not in context["ti"].pushed


def test_the_next_form_says_that_the_edit_was_not_applied(context: Json, supervisor: Supervisor) -> None:
    review = review_of().execute_complete(context, said(EDITED))
    form = asked(supervisor, context, review_of({**OURS, "output": "Draft 2."}, previous=review, round_number=2))
    assert (
        "**Edited in round 1**, by `Ann`, but not applied, because the draft had changed in the meantime." in form.body
    )
    assert f"> {EDITED}" in form.body
    assert "was approved" not in form.body


def test_the_next_gates_form_says_the_earlier_draft_was_approved(context: Json, supervisor: Supervisor) -> None:
    review = review_of().execute_complete(context, said(EDITED))
    publish = {**OURS, "crew_task_id": "publish_task", "output": "Published."}
    form = asked(supervisor, context, review_of(publish, previous=review, round_number=2))
    assert "In round 1 the draft of `draft_task` was approved." in form.body
    assert "not applied" not in form.body


def test_a_retried_task_sends_an_edit_only_once(execution: Waiting, context: Json) -> None:
    review = review_of(execution.pending()).execute_complete(context, said(EDITED))
    resume(context, review)
    wait_until(lambda: execution.hook.get_status(execution.id).state == "completed", "the completion")
    context["ti"].try_number = 2
    assert resume(context, review) == execution.id


def test_an_edit_no_longer_accepted_is_not_sent_as_approval(live: Waiting, context: Json) -> None:
    wait_until(lambda: live.hook.get_status(live.id).raw_state == PAUSED, "the pause")
    pending = {**OURS, "execution_id": live.id}
    review = review_of(pending).execute_complete(context, said(EDITED))
    with pytest.raises(CrewTaskFailed, match="no longer accepts an edited draft"):
        resume(context, review)
    assert live.hook.get_status(live.id).raw_state == PAUSED


@pytest.mark.parametrize(
    "more", [{"is_approve": False}, {"is_approve": "false"}, {"output_sha256": None}, {"edited_output": 7}]
)
def test_an_edit_without_an_approval_of_a_draft_is_refused(context: Json, more: Json) -> None:
    review = {**review_of().execute_complete(context, said(EDITED)), "human_feedback": "x", **more}
    with pytest.raises((CrewTaskFailed, CrewInvalidInput), match="edited_output"):
        resume(context, review)
