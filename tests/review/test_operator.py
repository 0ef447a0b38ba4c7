"""The review operator, from the question to the record, with a stand-in for Airflow's supervisor only."""

from __future__ import annotations

import hashlib
import json
import uuid
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowSkipException
from airflow_stand_ins import PENDING, Store, Supervisor, TaskParked, parked, time_left

from airflow_crew_provider.compat import version
from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.operators.usage_approval import CrewUsageApprovalOperator
from airflow_crew_provider.review import refusal_notice
from airflow_crew_provider.review.form import ReviewForm
from airflow_crew_provider.wait.outcomes import CrewTaskFailed

Json = dict[str, Any]
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
PROMISED = {
    "execution_id",
    "crew_task_id",
    "is_approve",
    "human_feedback",
    "reviewer",
    "decided_at",
    "output_sha256",
}


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"console_url": "https://console.example.com/{execution_id}"}
    uri = {"conn_type": "crew", "host": "https://crew.example.com", "password": "t", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_CREW_DEFAULT", json.dumps(uri))


def review_of(pending: Any = PENDING, **arguments: Any) -> CrewReviewOperator:
    return CrewReviewOperator(task_id="review", pending=pending, **arguments)


def said(option: str = "approve", feedback: Any = "", **more: Any) -> Json:
    """Return the event with which Airflow resumes the task after a person's answer."""
    user = {"id": "7", "name": "Ann"}
    answer = {"chosen_options": [option], "params_input": {"human_feedback": feedback}, "responded_at": NOW}
    return {**answer, "responded_by_user": user, "timedout": False, **more}


def at_deadline(option: str) -> Json:
    return said(option, responded_by_user=None, timedout=True, responded_at=datetime.now(UTC))


def test_the_review_has_the_promised_shape(context: Json) -> None:
    review = review_of().execute_complete(context, said("revise", "Shorter."))
    assert set(review) >= PROMISED
    assert (review["execution_id"], review["crew_task_id"]) == ("execution-1", "draft_task")
    assert (review["is_approve"], review["human_feedback"]) == (False, "Shorter.")
    assert review["reviewer"] == {"id": "7", "name": "Ann"}
    assert review["decided_at"] == "2026-11-20T12:00:00+00:00"
    assert review["output_sha256"] == hashlib.sha256(b"Draft 1.").hexdigest()
    assert json.loads(json.dumps(review)) == review


def test_an_objects_hash_uses_compact_json_with_sorted_keys(context: Json) -> None:
    review = review_of({**PENDING, "output": {"b": "é", "a": [1, 2]}}).execute_complete(context, said())
    assert review["output_sha256"] == hashlib.sha256('{"a":[1,2],"b":"é"}'.encode()).hexdigest()


def test_an_approval_needs_no_feedback(context: Json) -> None:
    assert review_of().execute_complete(context, said("approve"))["is_approve"] is True
    assert review_of().execute_complete(context, said("approve", params_input={}))["is_approve"] is True


COMPLETED = {**PENDING, "state": "completed", "crew_task_id": None, "output": {"text": "Done."}}


@pytest.mark.row("A18")
@pytest.mark.parametrize("given", [COMPLETED, str(COMPLETED)], ids=["XCom", "template"])
def test_a_completed_record_is_passed_on_and_nobody_is_asked(context: Json, supervisor: Supervisor, given: Any) -> None:
    assert review_of(given).execute(context) == COMPLETED
    assert supervisor.asked == []


@pytest.mark.row("A18")
def test_an_unneeded_round_is_skipped_where_requested(context: Json, supervisor: Supervisor) -> None:
    with pytest.raises(AirflowSkipException, match="Execution execution-1 has completed"):
        review_of(COMPLETED, skip_completed=True).execute(context)
    assert supervisor.asked == []


@pytest.mark.row("A19")
@pytest.mark.parametrize("hour", [3600, 3600.0, "3600", timedelta(hours=1)])
def test_a_response_timeout_in_seconds_is_read_as_meant(context: Json, supervisor: Supervisor, hour: Any) -> None:
    with pytest.raises(TaskParked) as parked:
        review_of(response_timeout=hour).execute(context)
    assert timedelta(minutes=59) < time_left(parked.value) <= timedelta(hours=1)


@pytest.mark.row("A19")
@pytest.mark.parametrize("given", [0, -1, "soon", True, [], float("nan"), timedelta(0), 1e300])
def test_an_invalid_response_timeout_is_refused_in_the_dag_file(given: Any) -> None:
    with pytest.raises(ValueError, match="response_timeout must be a timedelta or a number of seconds"):
        review_of(response_timeout=given)


RITA = {"id": "rita", "name": "rita"}


@pytest.mark.row("A19")
@pytest.mark.parametrize("given", ["rita", ["rita"], ("rita",), {"id": "rita"}, [RITA]])
def test_assigned_users_may_be_ids(context: Json, supervisor: Supervisor, given: Any) -> None:
    with pytest.raises(TaskParked):
        review_of(assigned_users=given).execute(context)
    assert [user.model_dump() for user in supervisor.asked[0].assigned_users] == [RITA]


@pytest.mark.row("A19")
@pytest.mark.parametrize("given", [7, [7], [""], [None], {"name": "rita"}, [{"id": "rita", "mail": "r@x"}]])
def test_an_invalid_user_is_refused_in_the_dag_file(given: Any) -> None:
    with pytest.raises(ValueError, match="assigned_users must be user ids"):
        review_of(assigned_users=given)


@pytest.mark.parametrize("pending", ["no record", {"state": "pending"}, {**PENDING, "crew_task_id": None}])
def test_what_is_no_pending_record_asks_nobody(context: Json, supervisor: Supervisor, pending: Any) -> None:
    with pytest.raises(CrewTaskFailed):
        review_of(pending).execute(context)
    assert supervisor.asked == []


def test_the_question_has_a_feedback_field_and_no_default_answer(context: Json, supervisor: Supervisor) -> None:
    with pytest.raises(TaskParked):
        review_of().execute(context)
    asked = supervisor.asked[0]
    assert (asked.options, asked.defaults, asked.multiple) == (["approve", "revise"], None, False)
    assert asked.params["human_feedback"]["schema"]["format"] == "multiline"
    about = {"kickoff_id": "execution-1", "execution_id": "execution-1", "crew_conn_id": "crew_default", "view": None}
    assert context["ti"].pushed == {
        "crew_execution": about,
        "crew_execution_url": "https://console.example.com/execution-1",
    }


def test_a_connection_that_is_missing_costs_the_link_only(context: Json, supervisor: Supervisor) -> None:
    with pytest.raises(TaskParked):
        review_of(crew_conn_id="not_there").execute(context)
    assert context["ti"].pushed["crew_execution_url"] == ""
    assert context["ti"].pushed["crew_execution"]["execution_id"] == "execution-1"


def test_dag_params_neither_appear_on_the_form_nor_displace_feedback(context: Json, supervisor: Supervisor) -> None:
    with DAG("params", schedule=None, params={"topic": "tea"}):
        operator = review_of()
    with pytest.raises(TaskParked):
        operator.execute(context)
    assert list(supervisor.asked[0].params) == ["human_feedback"]


@pytest.mark.row("A9")
def test_templates_in_a_draft_are_never_rendered(context: Json, supervisor: Supervisor) -> None:
    draft = "{{ 7*7 }} {% raw %} {{ conn.crew_default.password }}"
    operator = review_of({**PENDING, "output": "{{ params }}"})
    operator.pending = "{{ found }}"
    operator.render_template_fields({"found": {**PENDING, "output": draft}, "params": {}})
    with pytest.raises(TaskParked):
        operator.execute(context)
    assert supervisor.asked[0].body.startswith(f"> {draft}\n\n---\n")
    review = operator.execute_complete(context, said("revise", "{{ 7*7 }}"))
    assert review["human_feedback"] == "{{ 7*7 }}"
    assert context["ti"].pushed["crew_decision"]["output"] == draft


@pytest.mark.row("A9")
@pytest.mark.parametrize(
    "event",
    [
        said("revise", ""),
        said("revise", "  \n"),
        said("revise", None),
        said("revise", params_input={}),
        said("revise", {"a": "dict"}),
        said("revise", params_input={"human_feedback": "Shorter.", "other": 1}),
        said("delete"),
        {"error": "human_feedback: not a string", "error_type": "validation"},
    ],
)
def test_an_invalid_answer_is_not_taken_and_asked_for_again(
    context: Json, supervisor: Supervisor, capsys: pytest.CaptureFixture[str], event: Json
) -> None:
    with pytest.raises(TaskParked) as parked:
        review_of().execute_complete(context, event)
    assert parked.value.method_name == "execute_complete"
    assert "Asking again" in capsys.readouterr().out
    assert supervisor.asked


@pytest.mark.row("A9")
def test_feedback_of_100_kb_with_html_is_kept_whole(context: Json, capsys: pytest.CaptureFixture[str]) -> None:
    feedback = "<script>alert(1)</script> {{ 7*7 }}\n" * 3_000
    assert review_of().execute_complete(context, said("revise", feedback))["human_feedback"] == feedback
    [line] = [line for line in capsys.readouterr().out.splitlines() if "Review: " in line]
    assert len(line) < 1_000


def test_a_decision_is_one_line_in_the_log(context: Json, capsys: pytest.CaptureFixture[str]) -> None:
    review_of(round_number=2).execute_complete(context, said("revise", "Two\nlines"))
    [line] = [line for line in capsys.readouterr().out.splitlines() if "Review: " in line]
    for part in ("revision by 7 at 2026-11-20T12:00:00+00:00", "execution-1", "draft_task", "round 2", '"Two\\nlines"'):
        assert part in line


def test_asking_again_gives_no_more_time_than_was_left(context: Json, supervisor: Supervisor) -> None:
    operator = review_of(response_timeout=timedelta(hours=1))
    until = datetime.now(UTC) + timedelta(minutes=5)
    with pytest.raises(TaskParked) as parked:
        operator.execute_complete(context, said("revise", ""), until=until.isoformat())
    assert timedelta(minutes=4) < time_left(parked.value) <= timedelta(minutes=5)
    assert parked.value.kwargs["until"] == until.isoformat()


@pytest.mark.row("A21")
@pytest.mark.parametrize(
    "steps", [{}, {"escalate": [(timedelta(minutes=30), "boss")], "assigned_users": "ann"}], ids=str
)
def test_the_deadline_does_not_approve_a_rejected_draft(context: Json, supervisor: Supervisor, steps: Any) -> None:
    operator = review_of(response_timeout=timedelta(hours=1), on_timeout="approve", **steps)
    kept = parked(lambda: operator.execute(context))
    kept = parked(lambda: operator.execute_complete(context, said("revise", ""), kept["until"], kept["shown"]))
    with pytest.raises(CrewTaskFailed, match=r"rejected.*not approved at the deadline"):
        operator.execute_complete(context, at_deadline("approve"), kept["until"], kept["shown"])


@pytest.mark.row("A32")
@pytest.mark.parametrize("steps", [{}, {"escalate": [(60, "boss")]}], ids=str)
def test_an_empty_reviewer_list_is_refused_at_parse_time(steps: Any) -> None:
    with pytest.raises(ValueError, match="assigned_users names nobody"):
        review_of(assigned_users=[], **steps)


def cleared(context: Json) -> None:
    context["ti"].try_number, context["ti"].max_tries = context["ti"].try_number + 1, context["ti"].try_number
    context["ti"].id = uuid.uuid4()


@pytest.mark.row("A36")
@pytest.mark.parametrize("release", [(3, 3), (3, 4)], ids=str)
@pytest.mark.parametrize("asked_with", ["approve", "fail"])
@pytest.mark.parametrize("feedback", ["", "Shorter."], ids=["not accepted", "in the last round"])
def test_a_clear_does_not_forget_a_rejection_of_the_draft(
    context: Json,
    supervisor: Supervisor,
    monkeypatch: pytest.MonkeyPatch,
    release: Any,
    asked_with: str,
    feedback: str,
) -> None:
    monkeypatch.setattr(version, "RELEASE", release)
    timeout = timedelta(hours=1)
    first = review_of(response_timeout=timeout, on_timeout=asked_with, round_number=1, max_rounds=1)
    kept = parked(lambda: first.execute(context))
    with pytest.raises((*TaskParked, CrewTaskFailed)):
        first.execute_complete(context, said("revise", feedback), kept["until"], kept["shown"])
    operator = review_of(response_timeout=timeout, on_timeout="approve", round_number=1, max_rounds=1)
    for _ in range(2):
        cleared(context)
        kept = parked(lambda: operator.execute(context))
        assert kept["shown"]["terms"]["on_timeout"] == "approve"
    with pytest.raises(CrewTaskFailed, match=r"rejected.*not approved at the deadline"):
        operator.execute_complete(context, at_deadline("approve"), kept["until"], kept["shown"])


@pytest.mark.row("A36")
def test_a_person_may_approve_a_rejected_draft_after_a_clear(context: Json, supervisor: Supervisor) -> None:
    operator = review_of(response_timeout=timedelta(hours=1), on_timeout="approve")
    kept = parked(lambda: operator.execute(context))
    parked(lambda: operator.execute_complete(context, said("revise", ""), kept["until"], kept["shown"]))
    cleared(context)
    kept = parked(lambda: operator.execute(context))
    assert operator.execute_complete(context, said("approve"), kept["until"], kept["shown"])["is_approve"] is True


def a_round(context: Json, number: int, draft: str, previous: Json | None, answer: Json | None = None) -> Json:
    """Ask in the task of a round, and return its review; without an answer, that of the deadline."""
    ti = SimpleNamespace(**{**vars(context["ti"]), "task_id": f"round_{number}", "xcom_pull": lambda **_: None})
    own = {**context, "ti": ti, "task_state_store": Store()}
    operator = review_of(
        {**PENDING, "output": draft},
        previous=previous,
        response_timeout=timedelta(hours=1),
        on_timeout="approve",
        on_tool_timeout="approve",
        round_number=number,
        max_rounds=9,
    )
    kept = parked(lambda: operator.execute(own))
    return operator.execute_complete(own, answer or at_deadline("approve"), kept["until"], kept["shown"])


def test_a_handwritten_previous_review_without_a_hash_rejects_nothing(context: Json) -> None:
    by_hand = {"execution_id": PENDING["execution_id"], "is_approve": False, "reviewer": {"id": "7", "name": "ann"}}
    assert a_round(context, 2, "Pay.", by_hand)["is_approve"] is True


@pytest.mark.row("A21")
@pytest.mark.parametrize("drafts", [["Pay.", "Pay."], ["Pay.", "Wait.", "Pay."], ["Pay.", "a", "b", "Pay."]], ids=len)
def test_the_deadline_approves_no_draft_that_an_earlier_round_rejected(
    context: Json, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, drafts: list[str]
) -> None:
    monkeypatch.setattr(version, "RELEASE", (3, 4))
    review, (*rejected, again) = None, drafts
    for number, draft in enumerate(rejected, 1):
        review = a_round(context, number, draft, review, said("revise", "No."))
    number = len(drafts)
    with pytest.raises(CrewTaskFailed, match=r"rejected.*not approved at the deadline"):
        a_round(context, number, again, review)
    assert a_round(context, number, "Another.", review)["is_approve"] is True
    assert a_round(context, number, again, review, said("approve"))["is_approve"] is True


@pytest.mark.row("A21")
@pytest.mark.parametrize(
    "other", [{"reviewer": None}, {"is_approve": True}], ids=["at the deadline or by the schema", "approved"]
)
def test_the_deadline_approves_a_draft_that_nobody_has_rejected(
    context: Json, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, other: Json
) -> None:
    monkeypatch.setattr(version, "RELEASE", (3, 4))
    first = a_round(context, 1, "Pay.", None, said("revise", "No."))
    assert a_round(context, 2, "Pay.", {**first, **other})["is_approve"] is True


@pytest.mark.row("A21")
def test_the_deadline_approves_no_draft_rejected_in_an_earlier_execution(
    context: Json, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "RELEASE", (3, 4))
    first = a_round(context, 1, "Pay.", None, said("revise", "No."))
    with pytest.raises(CrewTaskFailed, match=r"rejected.*not approved at the deadline"):
        a_round(context, 2, "Pay.", {**first, "execution_id": "execution-0"})


@pytest.mark.row("A36")
def test_a_rejection_holds_for_the_execution_after_a_clear(
    context: Json, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "RELEASE", (3, 4))
    operator = review_of(response_timeout=timedelta(hours=1), on_timeout="approve")
    kept = parked(lambda: operator.execute(context))
    parked(lambda: operator.execute_complete(context, said("revise", ""), kept["until"], kept["shown"]))
    cleared(context)
    operator.pending = {**PENDING, "execution_id": "execution-2"}
    kept = parked(lambda: operator.execute(context))
    with pytest.raises(CrewTaskFailed, match=r"rejected.*not approved at the deadline.*execution-2 stays paused"):
        operator.execute_complete(context, at_deadline("approve"), kept["until"], kept["shown"])


@pytest.mark.row("A21")
def test_no_rule_approves_a_draft_that_an_earlier_round_rejected(context: Json, supervisor: Supervisor) -> None:
    first = review_of().execute_complete(context, said("revise", "No."))
    parked(lambda: review_of(previous=first, auto_approve=lambda _: "short").execute(context))


@pytest.mark.row("A21")
def test_an_approval_that_is_not_accepted_is_no_rejection(context: Json, supervisor: Supervisor) -> None:
    operator = review_of(response_timeout=timedelta(hours=1), on_timeout="approve")
    kept = parked(lambda: operator.execute(context))
    broken = said("approve", unknown=1, params_input={"another": "field"})
    kept = parked(lambda: operator.execute_complete(context, broken, kept["until"], kept["shown"]))
    review = operator.execute_complete(context, at_deadline("approve"), kept["until"], kept["shown"])
    assert review["is_approve"] is True


def test_an_unanswered_review_fails_without_retries_and_reports_the_fate(context: Json) -> None:
    operator = review_of(response_timeout=timedelta(hours=1))
    with pytest.raises(CrewTaskFailed, match="execution execution-1 stays paused"):
        operator.execute_complete(context, {"error": "timed out", "error_type": "timeout"})


def test_the_deadline_revises_with_the_text_that_was_given(context: Json) -> None:
    operator = review_of(response_timeout=timedelta(hours=1), on_timeout={"revise": "Say less."})
    review = operator.execute_complete(context, at_deadline("revise"))
    assert (review["is_approve"], review["human_feedback"], review["reviewer"]) == (False, "Say less.", None)


def test_the_deadline_approves_only_if_configured_to(context: Json) -> None:
    operator = review_of(response_timeout=timedelta(hours=1), on_timeout="approve")
    review = operator.execute_complete(context, at_deadline("approve"))
    assert (review["is_approve"], review["reviewer"]) == (True, None)


@pytest.mark.parametrize(
    "arguments",
    [
        {"defaults": ["approve"]},
        {"multiple": True},
        {"options": ["approve"]},
        {"options": ["yes", "yes"]},
        {"on_timeout": "approve"},
        {"on_timeout": "agree", "response_timeout": timedelta(hours=1)},
        {"on_timeout": {"revise": " "}, "response_timeout": timedelta(hours=1)},
        {"on_timeout": {"approve": "Fine."}, "response_timeout": timedelta(hours=1)},
    ],
)
def test_nothing_can_approve_by_accident(arguments: Json) -> None:
    with pytest.raises(ValueError, match=r"on_timeout|options|one choice"):
        review_of(**arguments)


def test_an_execution_timeout_is_not_the_time_of_the_person() -> None:
    operator = review_of(execution_timeout=timedelta(minutes=1))
    assert (operator.response_timeout, operator.execution_timeout) == (None, timedelta(minutes=1))
    with DAG("timeouts", schedule=None, default_args={"execution_timeout": timedelta(minutes=1)}):
        operator = review_of()
    assert operator.response_timeout is None


@pytest.mark.parametrize(
    ("mapped", "of_item"),
    [
        (lambda: CrewReviewOperator.partial(task_id="asks").expand(pending=[PENDING] * 2), {"pending": PENDING}),
        (
            lambda: CrewUsageApprovalOperator.partial(task_id="asks", max_cost=1.0).expand(completed=[{}] * 2),
            {"completed": {}},
        ),
    ],
    ids=["review", "usage approval"],
)
def test_a_mapped_task_has_as_many_retries(mapped: Any, of_item: Json) -> None:
    with DAG("mapped", schedule=None) as dag:
        mapped()
    task: Any = dag.get_task("asks")
    both = [(each.retries, each.retry_delay) for each in (task, task.unmap(of_item))]
    assert both == [(2, timedelta(seconds=10))] * 2


def test_options_of_ones_own_keep_their_meaning(context: Json) -> None:
    operator = review_of(options=["Gut", "Nochmal"])
    assert operator.execute_complete(context, said("Gut"))["is_approve"] is True
    assert operator.execute_complete(context, said("Nochmal", "Kürzer"))["is_approve"] is False


def test_a_revision_in_the_last_round_fails_but_stays_recorded(context: Json) -> None:
    operator = review_of(round_number=2, max_rounds=2)
    with pytest.raises(CrewTaskFailed, match=r"last of 2 rounds.*execution-1 stays paused"):
        operator.execute_complete(context, said("revise", "Shorter."))
    assert context["ti"].pushed["return_value"]["human_feedback"] == "Shorter."
    assert operator.execute_complete(context, said("approve"))["is_approve"] is True


@pytest.mark.row("A55")
@pytest.mark.parametrize(("shown", "now"), [(3, 1), (1, 3)])
def test_the_rounds_that_the_form_showed_hold(context: Json, supervisor: Supervisor, shown: int, now: int) -> None:
    kept = parked(lambda: review_of(round_number=1, max_rounds=shown).execute(context))
    edited = review_of(round_number=1, max_rounds=now)
    if shown == 1:
        with pytest.raises(CrewTaskFailed, match="last of 1 rounds"):
            edited.execute_complete(context, said("revise", "Shorter."), kept["until"], kept["shown"])
        return
    review = edited.execute_complete(context, said("revise", "Shorter."), kept["until"], kept["shown"])
    assert review["is_approve"] is False
    assert context["ti"].pushed["crew_decision"]["max_rounds"] == 3


@pytest.mark.usefixtures("a_form_for_the_task")
def test_a_person_is_never_asked_about_an_unshown_draft(context: Json, supervisor: Supervisor) -> None:
    with pytest.raises(TaskParked):
        review_of().execute(context)
    with pytest.raises(CrewTaskFailed, match="draft from an earlier run"):
        review_of({**PENDING, "output": "Draft 2."}).execute(context)
    with pytest.raises(TaskParked):
        review_of().execute(context)


@pytest.mark.parametrize(
    ("index", "label", "place"),
    [
        (-1, None, "dag"),
        (3, None, "#3 · dag"),
        (0, "ACME\n Ltd", "ACME Ltd · dag"),
        (0, "x" * 200, f"{'x' * 100} · dag"),
    ],
)
def test_reviews_of_mapped_items_can_be_told_apart(
    context: Json, supervisor: Supervisor, index: int, label: str | None, place: str
) -> None:
    context["ti"].map_index, context["ti"].rendered_map_index = index, label
    with pytest.raises(TaskParked):
        review_of().execute(context)
    assert supervisor.asked[0].subject.endswith(f" · {place}")


def test_a_body_of_ones_own_replaces_the_page(context: Json, supervisor: Supervisor) -> None:
    with pytest.raises(TaskParked):
        review_of(subject="Look", body="Only this.").execute(context)
    assert (supervisor.asked[0].subject, supervisor.asked[0].body) == ("Look", "Only this.")


@pytest.mark.row("A49")
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (7, "7"),
        (0, "0"),
        (1.5, "1.5"),
        (True, "True"),
        (["a", 1], '["a", 1]'),
        ({"a": NOW}, '{"a": "' + str(NOW) + '"}'),
    ],
    ids=str,
)
def test_a_non_text_subject_or_body_is_shown_as_text(
    context: Json, supervisor: Supervisor, given: Any, text: str
) -> None:
    parked(lambda: review_of(subject=given, body=given).execute(context))
    assert (supervisor.asked[0].subject, supervisor.asked[0].body) == (text, text)


@pytest.mark.row("A49")
def test_a_template_that_renders_to_none_leaves_the_page(context: Json, supervisor: Supervisor) -> None:
    operator = review_of(subject="{{ x }}", body="{{ x }}")
    operator.subject = operator.body = None
    parked(lambda: operator.execute(context))
    assert supervisor.asked[0].subject.startswith("Review draft_task")
    assert "Draft 1." in supervisor.asked[0].body


@pytest.mark.row("A49")
@pytest.mark.parametrize("options", [[1, 2], [None, "revise"], "ab", ["", "revise"], [["a"], ["b"]], None, 5], ids=str)
def test_options_that_are_no_words_are_refused_when_parsed(options: Any) -> None:
    with pytest.raises(ValueError, match="options must be two different words"):
        review_of(options=options)


def test_the_form_compares_the_draft_with_the_previously_reviewed_one(context: Json, supervisor: Supervisor) -> None:
    review = review_of({**PENDING, "output": "Draft 0."}).execute_complete(context, said("revise", "Shorter."))
    decision = context["ti"].pushed["crew_decision"]
    asked_for = []

    def pull(**names: Any) -> Json:
        asked_for.append(names)
        return decision

    context["ti"].xcom_pull = pull
    with DAG("rounds", schedule=None):
        first = CrewReviewOperator(task_id="first", pending=PENDING)
        second = CrewReviewOperator(task_id="second", pending=PENDING, previous=first.output, round_number=2)
    second.previous = review  # as Airflow renders it
    with pytest.raises(TaskParked):
        second.execute(context)
    assert "\n-Draft 0.\n+Draft 1.\n```" in supervisor.asked[0].body
    assert asked_for == [{"task_ids": "first", "key": "crew_decision", "map_indexes": -1}]


def test_a_decision_of_another_draft_is_not_compared(context: Json, supervisor: Supervisor) -> None:
    review = review_of({**PENDING, "output": "Draft 0."}).execute_complete(context, said("revise", "Shorter."))
    context["ti"].xcom_pull = lambda **_: {**review, "output_sha256": "0" * 64, "output": "Something else."}
    with DAG("rounds", schedule=None):
        first = CrewReviewOperator(task_id="first", pending=PENDING)
        second = CrewReviewOperator(task_id="second", pending=PENDING, previous=first.output)
    second.previous = review
    with pytest.raises(TaskParked):
        second.execute(context)
    assert "has changed" not in supervisor.asked[0].body


# --- a form of before an edit ------------------------------------------------------------------------------

HOUR = timedelta(hours=1)


@pytest.mark.row("A36")
@pytest.mark.usefixtures("a_form_for_the_task")
@pytest.mark.parametrize(
    ("now", "feedback"),
    [("fail", None), ({"revise": "Cite sources."}, "Cite sources.")],
    ids=["fail", "revise"],
)
def test_an_older_forms_deadline_follows_the_current_dag(
    context: Json, supervisor: Supervisor, now: Any, feedback: str | None
) -> None:
    parked(lambda: review_of(response_timeout=HOUR, on_timeout="approve").execute(context))
    cleared(context)
    edited = review_of(response_timeout=HOUR, on_timeout=now)
    kept = parked(lambda: edited.execute(context))
    if feedback is None:
        with pytest.raises(CrewTaskFailed, match="Nobody answered"):
            edited.execute_complete(context, at_deadline("approve"), kept["until"], kept["shown"])
    else:
        review = edited.execute_complete(context, at_deadline("approve"), kept["until"], kept["shown"])
        assert (review["is_approve"], review["human_feedback"]) == (False, feedback)


@pytest.mark.row("A36")
@pytest.mark.usefixtures("a_form_for_the_task")
@pytest.mark.parametrize("early", ["a reminder", "a clear"])
def test_an_airflow_default_given_too_early_is_asked_about_again(
    context: Json, supervisor: Supervisor, early: str
) -> None:
    before = at_deadline("approve")
    operator = review_of(response_timeout=HOUR, on_timeout="approve")
    kept = parked(lambda: operator.execute(context))
    if early == "a clear":
        cleared(context)
        kept = parked(lambda: operator.execute(context))
        event, step = before, False
    else:
        event, step = at_deadline("approve"), True
    asked = len(supervisor.asked)
    again = parked(lambda: operator.execute_complete(context, event, kept["until"], kept["shown"], step))
    assert again["until"] == kept["until"]
    assert len(supervisor.asked) == asked + 1


@pytest.mark.row("A36", "A32")
@pytest.mark.usefixtures("a_form_for_the_task")
@pytest.mark.parametrize(
    ("before", "now", "same"), [(None, ["rita"], False), (["bob"], ["rita"], False), (["bob"], "bob", True)]
)
def test_a_form_open_to_other_people_is_not_waited_for(
    context: Json, supervisor: Supervisor, before: Any, now: Any, same: bool
) -> None:
    parked(lambda: review_of(assigned_users=before).execute(context))
    cleared(context)
    if same:
        parked(lambda: review_of(assigned_users=now).execute(context))
    else:
        with pytest.raises(CrewTaskFailed, match="Airflow still shows the form to other assigned_users"):
            review_of(assigned_users=now).execute(context)
    assert len(supervisor.asked) <= 2


@pytest.mark.parametrize(
    "draft", ["Draft.", "See **The question:** below.", "**In the middle of the task** it rained."]
)
def test_a_draft_does_not_hide_why_an_answer_was_refused(draft: str) -> None:
    form = ReviewForm(pending={"execution_id": "e", "crew_task_id": "t", "output": draft})
    answer = {"chosen_options": ["revise"], "params_input": {"human_feedback": ""}}
    fields = {"human_feedback": {"value": ""}}
    said = refusal_notice.why_refused(answer, form.body, ["approve", "revise"], fields)
    assert said == "it requests a revision without saying what to change"
