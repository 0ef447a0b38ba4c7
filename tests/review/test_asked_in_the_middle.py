"""A question in the middle of a task, from the record to the review: a tool call, a question, an unknown outcome."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from airflow_stand_ins import Supervisor, TaskParked, parked

from airflow_crew_provider.api.answers import ReviewAnswer
from airflow_crew_provider.api.status import execution
from airflow_crew_provider.compat import version
from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.review import refusal_notice
from airflow_crew_provider.review.form import ReviewForm
from airflow_crew_provider.wait.outcomes import CrewTaskFailed

Json = dict[str, Any]
ARGUMENTS = {"to": "ann@example.com", "key": "***", "n": 1}
ASK = {"kind": "tool", "agent": "Writer", "tool": "send_mail", "arguments": ARGUMENTS, "number": 3}
QUESTION = {"kind": "question", "agent": "Writer", "tool": None, "arguments": None, "number": 3}
UNKNOWN = {**ASK, "kind": "unknown_outcome"}
WORDS = {"tool": ["approve", "deny"], "question": ["answer"], "unknown_outcome": ["done", "run_again", "fail"]}
HOUR = {"response_timeout": timedelta(hours=1)}


def pending(ask: Any = ASK, **more: Any) -> Json:
    text = f"Question 3: may send_mail run?\nsend_mail\n{json.dumps(ARGUMENTS, indent=2, sort_keys=True)}"
    status = {
        "status": "pending",
        "current_task": "draft_task",
        "task_id": "draft_task#3",
        "task_output": text,
        "question": "May send_mail run?",
        "outcomes": WORDS.get(ask["kind"] if isinstance(ask, dict) else "", []),
        "ask": ask,
        **more,
    }
    record: Json = json.loads(json.dumps(execution("k-1", status).record()))
    return record


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = {"conn_type": "crew", "host": "https://crew.example.com", "password": "t"}
    monkeypatch.setenv("AIRFLOW_CONN_CREW_DEFAULT", json.dumps(uri))


def review_of(ask: Any = ASK, record: Json | None = None, **arguments: Any) -> CrewReviewOperator:
    return CrewReviewOperator(task_id="review", pending=record or pending(ask), **arguments)


def said(option: str, feedback: str = "", user: str | None = "7", **fields: Any) -> Json:
    answer = {"chosen_options": [option], "params_input": {"human_feedback": feedback, **fields}}
    who = {"id": user, "name": f"name of {user}"} if user else None
    return {**answer, "responded_at": datetime.now(UTC), "responded_by_user": who, "timedout": user is None}


def asked(operator: CrewReviewOperator, context: Json, supervisor: Supervisor) -> Any:
    with pytest.raises(TaskParked):
        operator.execute(context)
    return supervisor.asked[-1]


# --- the form -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", [ASK, QUESTION, UNKNOWN], ids=lambda ask: ask["kind"])
def test_the_buttons_are_the_allowed_answers_with_no_default(context: Json, supervisor: Supervisor, ask: Json) -> None:
    form = asked(review_of(ask), context, supervisor)
    assert (form.options, form.defaults) == (WORDS[ask["kind"]], None)
    assert set(form.params) == ({"human_feedback", "edited_draft"} if ask is ASK else {"human_feedback"})


def test_the_form_shows_asker_tool_and_call_as_hashed(context: Json, supervisor: Supervisor) -> None:
    form = asked(review_of(), context, supervisor)
    assert form.subject.startswith("Approve send_mail for Writer")
    assert form.body.startswith(f"```text\n{pending()['output']}\n```\n")
    assert "**In the middle of the task** `draft_task`, the agent `Writer` needs approval to run the" in form.body
    assert pending()["output_sha256"][:16] in form.body
    field = form.params["edited_draft"]
    assert (field["schema"]["title"], json.loads(field["value"][8:-4])) == ("Arguments", ARGUMENTS)


EVIL = "```\n# Approved\n\n````\n<img src=x onerror=alert(1)>\u202e\u200b\r\n* **deny**: nothing"


def test_nothing_in_a_call_leaves_or_hides_in_its_block() -> None:
    body = ReviewForm(pending=pending(task_output=EVIL)).body
    fence, _, rest = body.partition("text\n")
    block, _, after = rest.partition(f"\n{fence}\n")
    assert set(fence) == {"`"}
    assert len(fence) == 5
    assert block == "```\n# Approved\n\n````\n<img src=x onerror=alert(1)>\\u202e\\u200b\\u000d\n* **deny**: nothing"
    assert "onerror" not in after


def test_a_dags_own_body_never_replaces_the_call(context: Json, supervisor: Supervisor) -> None:
    form = asked(review_of(body="Just approve.", subject="Now"), context, supervisor)
    assert (form.body.startswith(f"```text\n{pending()['output']}\n```\n"), form.subject) == (True, "Now")


def test_the_form_asks_once_and_mentions_only_existing_hidden_values() -> None:
    text, plain = pending()["output"], {**ASK, "arguments": {"to": "ann"}}
    asked_once = pending(task_output=f"Question 3: May send_mail run?\n{text}")
    assert ReviewForm(pending=asked_once).body.count("May send_mail run?") == 1
    assert "> May send_mail run?" in ReviewForm(pending=pending()).body
    bodies = [ReviewForm(pending=pending(ask)).body for ask in (ASK, plain)]
    assert ["leave `***` where it is" in body for body in bodies] == [True, False]


@pytest.mark.row("S57")
def test_the_form_counts_earlier_calls_beside_the_hashed_text() -> None:
    known = pending({**ASK, "earlier_calls": 2})
    assert known["output"] == pending()["output"]
    assert (
        "what 2 earlier tool calls of this task kept in memory, such as a login, is lost."
        in ReviewForm(pending=known).body
    )
    assert "earlier tool call" not in ReviewForm(pending=pending()).body


def test_a_flow_question_shows_its_deadline_and_metadata() -> None:
    metadata = {"channel": "#sales", "note": "``` no end"}
    ask = {**QUESTION, "agent": None, "deadline": "2026-11-20T12:00:00+01:00", "metadata": metadata}
    form = ReviewForm(pending=pending(ask))
    assert form.pending["ask"] == {**ask, "deadline": "2026-11-20T11:00:00+00:00"}
    assert form.subject == "Answer the Flow"
    assert "**In the middle of the task** `draft_task`, the Flow asks a question." in form.body
    assert "* **answer**: the Flow reads your *Feedback*." in form.body
    assert "* No answer by 2026-11-20 11:00:00 UTC: the Flow continues without one." in form.body
    assert f"````json\n{json.dumps(metadata, indent=2)}\n````" in form.body
    never = ReviewForm(pending=pending({**ask, "deadline": None, "metadata": None})).body
    assert ("No answer by" in never, "What the Flow adds" in never) == (False, False)


def of_flow(deadline: datetime) -> Json:
    return {**QUESTION, "agent": None, "deadline": deadline.isoformat(), "metadata": None}


def test_a_flow_question_expires_unanswered_at_its_own_deadline(context: Json, supervisor: Supervisor) -> None:
    soon, past = (datetime.now(UTC) + timedelta(minutes=minutes) for minutes in (5, -1))
    for timeout in ({}, HOUR):
        form = asked(review_of(of_flow(soon), **timeout), context, supervisor)
        assert form.body.count("No answer by") == 1
        waits = parked(partial(review_of(of_flow(soon), **timeout).execute, context))
        assert datetime.fromisoformat(waits["until"]) == soon
    task = review_of(of_flow(past))
    review = task.execute_complete(context, {"error_type": "timeout"}, **parked(partial(task.execute, context)))
    assert (review["is_approve"], review["outcome"], review["human_feedback"], review["reviewer"]) == (
        None,
        "expired",
        "",
        None,
    )
    assert ReviewAnswer.of(review).is_nobodys
    late = ReviewForm(pending=pending(QUESTION), previous=review).body
    assert "**Nobody answered in the previous round**, so the Flow continued without an answer." in late


def test_an_earlier_response_timeout_still_fails_a_flows_question(context: Json, supervisor: Supervisor) -> None:
    task = review_of(of_flow(datetime.now(UTC) + timedelta(hours=2)), **HOUR)
    kept = parked(partial(task.execute, context))
    assert datetime.fromisoformat(kept["until"]) < datetime.now(UTC) + timedelta(minutes=61)
    with pytest.raises(CrewTaskFailed, match=r"[Nn]obody answered"):
        task.execute_complete(context, {"error_type": "timeout"}, **kept)


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (ASK | {"word": "deny"}, "**Chosen in the previous round**, by `ann`: `deny` for `send_mail`\n\n> Third."),
        (QUESTION | {"word": "answer"}, "**Answered in the previous round**, by `ann`:\n\n> Third."),
    ],
    ids=["tool", "question"],
)
def test_the_next_form_says_what_was_answered_before(before: Json, said: str) -> None:
    answered = {"ask": before, "outcome": before.pop("word"), "human_feedback": "Third.", "reviewer": {"name": "ann"}}
    assert said in ReviewForm(pending=pending(), previous={**answered, "crew_task_id": "draft_task#2"}).body


def test_users_and_the_round_are_those_of_a_draft(context: Json, supervisor: Supervisor) -> None:
    form = asked(review_of(assigned_users="rita", round_number=2, max_rounds=2), context, supervisor)
    assert [user.id for user in form.assigned_users] == ["rita"]
    assert "(round 2 of 2)" in form.subject
    assert "if the crew asks again, this run fails" in form.body


# --- answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "word", "approves"),
    [
        (ASK, "approve", True),
        (ASK, "deny", False),
        (QUESTION, "answer", True),
        (UNKNOWN, "done", True),
        (UNKNOWN, "run_again", True),
        (UNKNOWN, "fail", False),
    ],
)
def test_the_review_has_the_ask_and_what_the_word_means(context: Json, ask: Json, word: str, approves: bool) -> None:
    operator = review_of(ask, round_number=1, max_rounds=1)  # no answer is held back in the last round
    review = operator.execute_complete(context, said(word, "ok"))
    found = {name: review[name] for name in ("ask", "outcome", "is_approve", "human_feedback", "auto_approved")}
    assert found == {
        "ask": ask,
        "outcome": word,
        "is_approve": approves,
        "human_feedback": "ok",
        "auto_approved": None,
    }
    assert (review["crew_task_id"], review["reviewer"]["id"]) == ("draft_task#3", "7")
    assert context["ti"].pushed["crew_decision"]["ask"] == ask
    answer = ReviewAnswer.of(review)
    assert (answer.outcome, answer.is_approve, answer.human_feedback) == (word, approves, "ok")


def test_the_log_says_what_was_decided(context: Json, capsys: pytest.CaptureFixture[str]) -> None:
    review_of().execute_complete(context, said("deny"))
    assert "Review: deny (the agent Writer needs approval to run the tool send_mail) by 7" in capsys.readouterr().out


@pytest.mark.parametrize(("ask", "word"), [(ASK, "approve"), (ASK, "deny"), (UNKNOWN, "done"), (UNKNOWN, "fail")])
def test_a_reason_is_optional(context: Json, ask: Json, word: str) -> None:
    assert review_of(ask).execute_complete(context, said(word))["human_feedback"] == ""


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_answer_is_refused_and_asked_for_again(context: Json, supervisor: Supervisor, text: str) -> None:
    with pytest.raises(TaskParked):
        review_of(QUESTION).execute_complete(context, said("answer", text))
    assert "was not accepted because the answer is empty" in supervisor.asked[-1].body


@pytest.mark.parametrize("word", ["revise", "answer", "run_again"])
def test_a_word_of_another_question_is_refused(context: Json, supervisor: Supervisor, word: str) -> None:
    with pytest.raises(TaskParked):
        review_of().execute_complete(context, said(word))
    assert "but the form has `approve`, `deny`" in supervisor.asked[-1].body


def test_an_answer_to_an_edited_record_is_refused(context: Json) -> None:
    changed = {**pending(), "output": "Harmless."}
    with pytest.raises(CrewTaskFailed, match="was changed after the wait returned it"):
        review_of(record=changed).execute(context)


# --- changed arguments --------------------------------------------------------------------------------------


def changed(**more: Any) -> str:
    return f"```json\n{json.dumps({**ARGUMENTS, **more})}\n```"


def test_changed_arguments_are_approved_as_json_with_the_call_hash(context: Json) -> None:
    review = review_of().execute_complete(context, said("approve", edited_draft=changed(to="bob")))
    assert json.loads(review["edited_output"]) == {**ARGUMENTS, "to": "bob"}
    edit = ReviewAnswer.of(review).edit
    assert edit is not None
    assert edit.output_sha256 == pending()["output_sha256"]


@pytest.mark.parametrize("left", [changed(), json.dumps(ARGUMENTS, indent=1), ARGUMENTS])
def test_arguments_that_are_left_alone_are_not_sent(context: Json, left: Any) -> None:
    assert "edited_output" not in review_of().execute_complete(context, said("approve", edited_draft=left))


@pytest.mark.parametrize(
    ("left", "why"),
    [
        (changed(to="***"), "arguments.to contains"),
        (changed(key="Bearer ***"), "arguments.key contains"),
        ("no JSON", "are not a JSON object"),
        ("[1]", "are not a JSON object"),
        (None, "are not a JSON object"),
    ],
)
def test_arguments_that_cannot_be_sent_are_refused(context: Json, supervisor: Supervisor, left: Any, why: str) -> None:
    with pytest.raises(TaskParked):
        review_of().execute_complete(context, said("approve", edited_draft=left))
    assert why in supervisor.asked[-1].body


def test_a_denial_sends_no_arguments(context: Json) -> None:
    assert "edited_output" not in review_of().execute_complete(context, said("deny", edited_draft=changed(to="***")))


# --- several people -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ask", "word"), [(ASK, "approve"), (UNKNOWN, "run_again")])
def test_running_a_tool_needs_several_people_and_unchanged_arguments(
    context: Json, supervisor: Supervisor, ask: Json, word: str
) -> None:
    operator = review_of(ask, approvals=2)
    assert set(asked(operator, context, supervisor).params) == {"human_feedback"}
    with pytest.raises(TaskParked):
        review_of(ask, approvals=2).execute_complete(context, said(word, user="ann"))
    with pytest.raises(TaskParked):  # the same person again
        review_of(ask, approvals=2).execute_complete(context, said(word, user="ann"))
    review = review_of(ask, approvals=2).execute_complete(context, said(word, user="bob"))
    assert [each["reviewer"]["id"] for each in review["approvals"]] == ["ann", "bob"]


@pytest.mark.parametrize(("ask", "word"), [(ASK, "deny"), (QUESTION, "answer"), (UNKNOWN, "done"), (UNKNOWN, "fail")])
def test_what_runs_no_tool_needs_one_person(context: Json, ask: Json, word: str) -> None:
    assert review_of(ask, approvals=2).execute_complete(context, said(word, "text"))["outcome"] == word


@pytest.mark.parametrize(
    ("ask", "line"),
    [
        (ASK, "* **2 different people** must approve; any other answer from any of them is enough."),
        (UNKNOWN, "* **2 different people** must choose **run_again**; any other answer from any of them is enough."),
        (QUESTION, None),
    ],
    ids=lambda given: given["kind"] if isinstance(given, dict) else "",
)
def test_the_form_states_how_many_people_must_allow_a_tool(
    context: Json, supervisor: Supervisor, ask: Json, line: str | None
) -> None:
    body = asked(review_of(ask, approvals=2), context, supervisor).body
    assert line in body if line else "different people" not in body


# --- the deadline -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "word", "approves"), [("deny", "deny", False), ("approve", "approve", True)])
@pytest.mark.parametrize("on_timeout", ["fail", "approve", {"revise": "Shorter."}], ids=str)
def test_the_deadline_of_a_call_follows_on_tool_timeout(
    context: Json, supervisor: Supervisor, policy: str, word: str, approves: bool, on_timeout: Any
) -> None:
    operator = review_of(on_tool_timeout=policy, on_timeout=on_timeout, **HOUR)
    assert asked(operator, context, supervisor).defaults == [word]
    review = operator.execute_complete(context, said(word, user=None))
    assert (review["outcome"], review["is_approve"], review["reviewer"]) == (word, approves, None)
    assert ("nobody approved the call in time" in review["human_feedback"]) is (not approves)


@pytest.mark.parametrize("ask", [ASK, QUESTION, UNKNOWN], ids=lambda ask: ask["kind"])
def test_other_deadlines_fail_whatever_becomes_of_a_draft(context: Json, supervisor: Supervisor, ask: Json) -> None:
    operator = review_of(ask, on_tool_timeout="fail", on_timeout="approve", **HOUR)
    assert asked(operator, context, supervisor).defaults is None
    with pytest.raises(CrewTaskFailed, match="Nobody answered within"):
        operator.execute_complete(context, {"error": "late", "error_type": "timeout"})


def test_by_default_the_deadline_denies_a_call_even_after_escalation(context: Json, supervisor: Supervisor) -> None:
    steps = [(60, lambda context: None)]
    operator = review_of(escalate=steps, **HOUR)
    kept = parked(lambda: operator.execute(context))
    assert supervisor.asked[-1].defaults is None
    late = {"error": "late", "error_type": "timeout"}
    review = review_of(escalate=steps, **HOUR).execute_complete(context, late, kept["until"], kept["shown"])
    assert (review["outcome"], review["reviewer"]) == ("deny", None)


def test_the_deadline_never_approves_what_somebody_denied(context: Json, supervisor: Supervisor) -> None:
    arguments: Json = {"on_tool_timeout": "approve", **HOUR}
    with pytest.raises(TaskParked):  # a denial that is not accepted
        review_of(**arguments).execute_complete(context, said("deny", more=1))
    with pytest.raises(CrewTaskFailed, match="so it was not approved at the deadline"):
        review_of(**arguments).execute_complete(context, said("approve", user=None))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"on_tool_timeout": "revise"}, "on_tool_timeout must be 'deny', 'fail' or 'approve', not 'revise'"),
        ({"on_tool_timeout": "approve"}, "on_tool_timeout='approve' needs a response_timeout"),
        ({"auto_approve": "yes"}, "auto_approve must be a function of the pending record, not 'yes'"),
    ],
)
def test_an_invalid_policy_is_refused_in_the_dag_file(arguments: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        review_of(**arguments)


# --- what cannot be shown -----------------------------------------------------------------------------------

LONG = {"task_output": "x" * 60_001}
UNSEEN = [(ASK, LONG), ({**ASK, "arguments": 5}, {}), ({**ASK, "tool": None}, {})]


@pytest.mark.parametrize(("ask", "more"), UNSEEN, ids=["long", "arguments", "tool"])
def test_a_call_not_fully_showable_is_denied_with_a_reason(
    context: Json, supervisor: Supervisor, capsys: pytest.CaptureFixture[str], ask: Json, more: Json
) -> None:
    review = review_of(record=pending(ask, **more)).execute(context)
    assert (review["outcome"], review["is_approve"], review["reviewer"], review["not_shown"]) == (
        "deny",
        False,
        None,
        True,
    )
    assert "could not be shown to a person in full" in review["human_feedback"]
    assert supervisor.asked == []
    assert context["ti"].pushed["crew_decision"]["outcome"] == "deny"
    assert "by the form's limits" in capsys.readouterr().out


@pytest.mark.parametrize(("ask", "more"), UNSEEN, ids=["long", "arguments", "tool"])
def test_an_unshowable_call_of_unknown_outcome_is_not_run_again(
    context: Json, supervisor: Supervisor, ask: Json, more: Json
) -> None:
    form = asked(review_of(record=pending({**ask, "kind": "unknown_outcome"}, **more)), context, supervisor)
    assert form.options == ["done", "fail"]


@pytest.mark.parametrize("ask", ["tool", {"kind": "vote"}, 5, []])
@pytest.mark.parametrize("more", [{}, {"on_timeout": "approve", "auto_approve": lambda record: "yes", **HOUR}])
def test_an_unreadable_question_is_neither_approved_nor_asked(
    context: Json, supervisor: Supervisor, ask: Any, more: Json
) -> None:
    with pytest.raises(CrewTaskFailed, match="cannot read the crew's mid-task question"):
        review_of(record=pending(ask), **more).execute(context)
    assert supervisor.asked == []


# --- before Airflow 3.4, the notice is added in the API server ----------------------------------------------


@pytest.mark.skipif(version.has_form_per_attempt(), reason="the task writes the whole text")
@pytest.mark.parametrize(
    ("ask", "answer", "notice"),
    [
        (QUESTION, {"chosen_options": ["answer"], "params_input": {"human_feedback": ""}}, "the answer is empty"),
        (ASK, {"chosen_options": ["deny"], "params_input": {"human_feedback": "", "edited_draft": "x"}}, None),
        (
            ASK,
            {
                "chosen_options": ["approve"],
                "params_input": {"human_feedback": "", "edited_draft": changed(to="***")},
            },
            "arguments.to contains",
        ),
    ],
)
def test_the_form_alone_suffices_to_explain_a_refused_answer(
    context: Json, supervisor: Supervisor, ask: Json, answer: Json, notice: str | None
) -> None:
    form = asked(review_of(ask), context, supervisor)
    said = refusal_notice.why_refused(answer, form.body, form.options, form.params)
    assert (said or "") == "" if notice is None else notice in str(said)


# --- drafts that need nobody --------------------------------------------------------------------------------

DRAFT = {
    "state": "pending",
    "kickoff_id": "k-1",
    "execution_id": "k-1",
    "crew_task_id": "draft_task",
    "output": "Draft 1.",
    "tasks": [],
}


def test_a_rule_approves_a_draft_at_once_and_says_why(context: Json, supervisor: Supervisor) -> None:
    given: list[Json] = []

    def rule(record: Json) -> str:
        given.append(dict(record))
        record["tasks"].append("changed")
        record.clear()
        return "short enough"

    operator = review_of(record={**DRAFT, "tasks": []}, auto_approve=rule, approvals=2)
    review = operator.execute(context)
    assert ([list(each) for each in given], operator.pending) == ([list(DRAFT)], DRAFT)
    found = (review["is_approve"], review["auto_approved"], review["reviewer"], review["human_feedback"])
    assert found == (True, "short enough", None, "")
    assert supervisor.asked == []
    assert context["ti"].pushed["crew_decision"]["auto_approved"] == "short enough"
    assert ReviewAnswer.of(review).human_feedback == "Approved."


@pytest.mark.parametrize("size", [100, 50_000])
@pytest.mark.parametrize(
    "output", [str, lambda text: {"report": text}, lambda text: [text]], ids=["text", "object", "list"]
)
def test_the_documented_rule_approves_only_short_drafts(
    context: Json, supervisor: Supervisor, output: Any, size: int
) -> None:
    page = Path(__file__).parents[2].joinpath("docs", "review.md").read_text("utf-8")
    [block] = re.findall(r"```python\n(def \w+\(record\):.*?)```", page, re.DOTALL)
    documented: Json = {}
    exec(block, documented)
    review = review_of(record={**DRAFT, "output": output("x" * size)}, **documented["review"])
    if size > 500:
        asked(review, context, supervisor)
    else:
        assert review.execute(context)["auto_approved"] == "short enough"


def _fails(record: Json) -> Any:
    raise KeyError("no such field")


@pytest.mark.parametrize("rule", [_fails, *(lambda record, say=say: say for say in (None, "", "  ", True, 5, ["yes"]))])
def test_anything_else_asks_a_person(context: Json, supervisor: Supervisor, rule: Any) -> None:
    asked(review_of(record=DRAFT, auto_approve=rule), context, supervisor)


@pytest.mark.parametrize(
    "record",
    [
        pending(ASK),
        pending(QUESTION),
        pending(UNKNOWN),
        {**DRAFT, "question": "Fine?", "outcomes": ["yes", "no"]},
        {**DRAFT, "question": "Fine?", "outcomes": []},
    ],
    ids=["tool", "question", "unknown_outcome", "outcomes", "text"],
)
def test_a_rule_is_never_asked_about_anything_but_a_draft(context: Json, supervisor: Supervisor, record: Json) -> None:
    asked(review_of(record=record, auto_approve=lambda record: pytest.fail("asked")), context, supervisor)


@pytest.mark.usefixtures("a_memory")
def test_a_rule_never_approves_what_a_person_was_asked_about(context: Json, supervisor: Supervisor) -> None:
    asked(review_of(record=DRAFT), context, supervisor)
    context["ti"].try_number = 2
    with pytest.raises(TaskParked):
        review_of(record=DRAFT, auto_approve=lambda record: "yes").execute(context)


def test_a_review_by_a_person_says_that_no_rule_approved(context: Json) -> None:
    assert review_of(record=DRAFT).execute_complete(context, said("approve"))["auto_approved"] is None
