"""How a question in the middle of a task is read, and which words and arguments answer it."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_crew_provider.api import asks, endpoints
from airflow_crew_provider.api.answers import ReviewAnswer
from airflow_crew_provider.api.responses import HttpResponse
from airflow_crew_provider.api.status import execution
from airflow_crew_provider.models import ExecutionState
from airflow_crew_provider.questions import Terms, kinds, question_in
from airflow_crew_provider.questions.drafts import SHOWN_CHARACTERS
from airflow_crew_provider.questions.kinds import FlowQuestion, ToolCall, Unreadable, asked_in
from airflow_crew_provider.stored_names import SENT_FEEDBACK

TERMS = Terms(on_tool_timeout="deny")
ASK = {"kind": "tool", "agent": "Writer", "tool": "send_mail", "arguments": {"to": "ann", "key": "***"}, "number": 3}
TEXT = 'Question 3: may send_mail run?\nsend_mail\n{\n  "key": "***",\n  "to": "ann"\n}'
STATUS = {
    "status": "pending",
    "current_task": "draft_task",
    "task_id": "draft_task#3",
    "task_output": TEXT,
    "question": "May send_mail run?",
    "outcomes": ["approve", "deny"],
    "ask": ASK,
}


def test_a_pending_execution_and_its_record_carry_the_ask() -> None:
    seen = execution("k-1", STATUS)
    assert (seen.state, seen.crew_task_id, seen.output, seen.ask) == (
        ExecutionState.PENDING,
        "draft_task#3",
        TEXT,
        ASK,
    )
    assert seen.record()["ask"] == ASK
    assert (seen.record()["question"], seen.record()["outcomes"]) == ("May send_mail run?", ["approve", "deny"])


def test_many_polls_in_one_request_carry_it_too() -> None:
    answer = HttpResponse(200, {}, json.dumps({"statuses": {"k-1": {"code": 200, "body": STATUS}}}).encode())
    one = endpoints.read(endpoints.statuses(["k-1"]), answer)["k-1"]
    assert endpoints.read(endpoints.status("k-1"), one).ask == ASK


@pytest.mark.parametrize("given", [None, ...])
def test_the_record_of_a_draft_has_no_ask(given: Any) -> None:
    draft = {"status": "pending", "task_id": "draft_task", "task_output": "d"} | ({} if given is ... else {"ask": None})
    assert execution("k-1", draft).ask is None
    assert "ask" not in execution("k-1", draft).record()


@pytest.mark.parametrize("given", ["tool", 5, True, [], {}, {"kind": None}, {"kind": ["tool"]}, {"kind": "vote"}])
def test_an_unreadable_ask_ends_nothing_and_is_not_a_draft(given: Any) -> None:
    seen = execution("k-1", {**STATUS, "ask": given})
    assert (seen.state, seen.crew_task_id) == (ExecutionState.PENDING, "draft_task#3")
    assert seen.record()["ask"]["kind"] == asks.UNREADABLE
    assert isinstance(question_in(seen.record()), Unreadable)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("agent", 5),
        ("tool", ["send_mail"]),
        ("arguments", "no JSON"),
        ("arguments", [1]),
        ("arguments", '"a text"'),
        ("number", "3"),
        ("number", True),
        ("number", -1),
        ("number", 2**70),
    ],
)
def test_an_unreadable_detail_is_none_and_the_others_are_kept(name: str, bad: Any) -> None:
    assert asks.read({**ASK, name: bad}) == {**ASK, name: None}


@pytest.mark.parametrize("arguments", [{"__classname__": "x"}, {"n": 2**70}, {"x": 1e300}], ids=str)
def test_arguments_that_xcom_would_change_travel_as_text(arguments: Any) -> None:
    found = asks.read({**ASK, "arguments": arguments})
    assert found is not None
    assert isinstance(found["arguments"], str)
    assert asks.arguments_of(found) == arguments
    assert asks.read(json.loads(json.dumps(found))) == found


def test_arguments_that_are_too_deep_are_not_read() -> None:
    deep: Any = {}
    for _ in range(200):
        deep = {"a": deep}
    assert execution("k-1", {**STATUS, "ask": {**ASK, "arguments": deep}}).ask == {**ASK, "arguments": None}


def test_every_kind_is_read_but_only_numbers_airflow_can_store() -> None:
    for kind in (asks.TOOL, asks.QUESTION, asks.UNKNOWN_OUTCOME):
        assert asks.read({**ASK, "kind": kind}) == {**ASK, "kind": kind}
    for number, read in ((1, 1), (2**63 - 1, 2**63 - 1), (0, None), (2**63, None)):
        assert asks.read({**ASK, "number": number}) == {**ASK, "number": read}
    assert asks.read(None) is None


def test_arguments_may_arrive_as_json_text() -> None:
    assert asks.read({**ASK, "arguments": '{"to": "ann"}'}) == {**ASK, "arguments": {"to": "ann"}}


def test_an_empty_name_is_no_name() -> None:
    assert asks.read({**ASK, "agent": " \n", "tool": ""}) == {**ASK, "agent": None, "tool": None}


def test_names_are_masked_and_on_one_line() -> None:
    found = asks.read({**ASK, "agent": "a\nsecret", "tool": "x" * 500}, lambda text: text.replace("secret", "***"))
    assert found is not None
    assert (found["agent"], len(found["tool"])) == ("a ***", asks.LONGEST_NAME)


def test_a_mid_task_questions_words_are_no_flow_outcomes() -> None:
    record = execution("k-1", STATUS).record()
    assert isinstance(question_in(record), ToolCall)
    assert question_in(record).choices(TERMS) == ["approve", "deny"]
    assert asked_in(record)["ask"] == ASK
    assert isinstance(question_in({**record, "ask": None}), FlowQuestion)


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        ({"crew_task_id": "draft_task#3", "outcome": "deny"}, True),
        ({"crew_task_id": "draft_task", "outcome": "deny"}, False),
        ({"crew_task_id": "draft_task#3", "outcome": "publish"}, False),
        ({"crew_task_id": "draft_task#3", "outcome": None, "is_approve": True}, False),
        ({"crew_task_id": "draft_task#3", "ask": ASK}, True),
        ({"crew_task_id": None, "outcome": "deny"}, False),
        ({"crew_task_id": "draft_task#3", "outcome": ["deny"]}, False),
        ({"crew_task_id": "draft_task#3", "outcome": "answer"}, True),
        ({"crew_task_id": "draft_task#3", "outcome": "run_again"}, True),
    ],
)
def test_an_answer_is_recognized_by_ask_or_id_and_word(source: Any, asked: bool) -> None:
    assert asks.is_answer(source) is asked


def test_the_id_of_a_question_names_its_task() -> None:
    assert asks.task_of("draft_task#3") == "draft_task"
    assert asks.task_of("draft#2_task") == "draft#2_task"


@pytest.mark.parametrize(
    ("kind", "words", "safe", "text", "hint"),
    [
        ("tool", ["approve", "deny"], ["deny"], None, "The reason; the agent reads it if you deny the call"),
        ("question", ["answer"], ["answer"], "answer", "Your answer; required"),
        ("unknown_outcome", ["done", "run_again", "fail"], ["done", "fail"], None, "If done: the result of the tool"),
    ],
)
def test_a_form_offers_the_words_of_the_kind(
    kind: str, words: list[str], safe: list[str], text: str | None, hint: str
) -> None:
    ask = {**ASK, "kind": kind}
    asked = question_in({"ask": ask, "characters": 10})
    assert asked.choices(TERMS) == words
    assert question_in({"ask": ask, "characters": SHOWN_CHARACTERS + 1}).choices(TERMS) == safe
    assert (asked.needs_text(TERMS), asked.hint) == (text, hint)
    assert asked.unattended == ("fail" if kind == "unknown_outcome" else None)


def test_a_draft_has_no_unknown_outcome() -> None:
    assert (question_in({}).unattended, question_in({}).summary) == (None, "")


@pytest.mark.parametrize(
    ("kind", "word", "approves"),
    [
        ("tool", "approve", True),
        ("tool", "deny", False),
        ("question", "answer", True),
        ("unknown_outcome", "done", True),
        ("unknown_outcome", "run_again", True),
        ("unknown_outcome", "fail", False),
    ],
)
def test_each_word_is_sent_with_its_flag(kind: str, word: str, approves: bool) -> None:
    assert question_in({"ask": {**ASK, "kind": kind}}).meaning(word, TERMS) == {"is_approve": approves, "outcome": word}


@pytest.mark.parametrize(
    ("kind", "named", "unnamed"),
    [
        (
            "tool",
            "the agent Writer needs approval to run the tool send_mail",
            "an agent needs approval to run a tool",
        ),
        ("question", "the agent Writer asks a question", "an agent asks a question"),
        (
            "unknown_outcome",
            "it is not known whether the tool send_mail has run",
            "it is not known whether a tool has run",
        ),
        ("unreadable", "the question cannot be read", "the question cannot be read"),
    ],
)
def test_a_question_is_described_in_a_few_words(kind: str, named: str, unnamed: str) -> None:
    assert question_in({"ask": {**ASK, "kind": kind}}).summary == named
    assert question_in({"ask": {**ASK, "kind": kind, "agent": None, "tool": None}}).summary == unnamed


@pytest.mark.parametrize(
    ("kind", "count", "said"),
    [
        ("tool", 1, "what 1 earlier tool call of this task kept"),
        ("unknown_outcome", 2, "what 2 earlier tool calls of this task kept"),
        ("tool", 0, ""),
        ("question", 2, ""),
        ("tool", None, ""),
        ("tool", True, ""),
        ("tool", "2", ""),
        ("tool", -1, ""),
        ("tool", 2**63, ""),
    ],
)
def test_earlier_calls_are_named_beside_what_runs_a_tool(kind: str, count: Any, said: str) -> None:
    note = question_in({"ask": {**ASK, "kind": kind, "earlier_calls": count}}).about_earlier_calls
    assert said in note if said else note == ""


@pytest.mark.parametrize("given", ["soon", 5, None, {}, "2026-13-01T00:00:00Z"])
def test_a_deadline_that_cannot_be_read_is_none(given: Any) -> None:
    read = asks.read({**ASK, "kind": "question", "deadline": given, "metadata": given})
    assert read is not None
    assert (read["deadline"], asks.deadline_of(read)) == (None, None)
    assert read["metadata"] == (given if given == {} else None)


def test_overlong_or_xcom_unsafe_metadata_is_left_out() -> None:
    for given in ({"a": "x" * 5000}, {"__classname__": "x"}, ["a"]):
        assert (asks.read({**ASK, "metadata": given}) or {})["metadata"] is None
    assert "metadata" not in (asks.read(ASK) or {})


def test_arguments_are_shown_as_text_to_edit() -> None:
    assert asks.arguments_text({"arguments": {"to": "Jörg", "a": 1}}) == '{\n  "a": 1,\n  "to": "Jörg"\n}'
    assert asks.arguments_text({"arguments": '{"a": 1}'}) == '{\n  "a": 1\n}'
    assert asks.arguments_text({"arguments": None}) is None
    assert asks.arguments_of({"arguments": "[1]"}) is None


QUESTION = {"execution_id": "k-1", "crew_task_id": "draft_task#3"}


@pytest.mark.parametrize("text", ["", "ok", "Use the list."])
@pytest.mark.parametrize(("word", "approves"), [("deny", False), ("answer", True), ("done", True), ("fail", None)])
def test_what_a_person_wrote_is_sent_unchanged(word: str, approves: bool | None, text: str) -> None:
    answer = ReviewAnswer.of({**QUESTION, "outcome": word, "is_approve": approves, "human_feedback": text})
    assert (answer.outcome, answer.is_approve, answer.human_feedback) == (word, approves, text)
    assert "in_the_middle" not in answer.request


def test_each_kind_has_a_class_and_words_with_an_effect() -> None:
    words = {name: kind.words for name, kind in kinds.KINDS_IN_THE_MIDDLE.items()}
    assert words == {**asks.WORDS, asks.UNREADABLE: {}}
    assert kinds.EFFECTS.keys() == {word for each in asks.WORDS.values() for word in each}


def test_only_two_words_run_a_tool() -> None:
    every = {word for words in asks.WORDS.values() for word in words}
    assert every - set(asks.RUNS_A_TOOL) == {"deny", "answer", "done", "fail"}


SHOWN = {"to": "ann", "key": "***", "list": ["a", "Bearer ***"], "in": {"*** a": 1}}


@pytest.mark.parametrize(
    "changed",
    [
        SHOWN,
        {**SHOWN, "to": "bob"},
        {"key": "***"},
        {**SHOWN, "list": ["b", "Bearer ***", "c"]},
        {},
        {"to": "*"},
    ],
)
def test_a_hidden_value_may_stay_where_it_was_shown(changed: Any) -> None:
    assert asks.problem_with_arguments(SHOWN, changed) is None


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({**SHOWN, "to": "***"}, "arguments.to"),
        ({**SHOWN, "key": "Bearer ***"}, "arguments.key"),
        ({**SHOWN, "list": ["Bearer ***", "a"]}, "arguments.list[0]"),
        ({**SHOWN, "list": ["a", "Basic ***"]}, "arguments.list[1]"),
        ({**SHOWN, "list": ["a", "Bearer ***", "***"]}, "arguments.list[2]"),
        ({**SHOWN, "to": ["***"]}, "arguments.to[0]"),
        ({**SHOWN, "new": {"a": ["***"]}}, "arguments.new.a[0]"),
        ({**SHOWN, "in": {"*** b": 1}}, "a name in arguments.in"),
        ({"***": "***"}, "a name in arguments"),
    ],
)
def test_a_hidden_value_anywhere_else_is_refused(changed: Any, place: str) -> None:
    said = f"{place} contains ***, which stands for a hidden value only where it was shown"
    assert asks.problem_with_arguments(SHOWN, changed) == said


@pytest.mark.parametrize("changed", [[SHOWN], None, "***"])
def test_changed_arguments_are_an_object(changed: Any) -> None:
    assert asks.problem_with_arguments(SHOWN, changed) == "the changed arguments are not a JSON object"


# --- what only some services report ---


@pytest.mark.parametrize(
    ("given", "kept"),
    [(0, True), (1, True), (127, True), (2**63 - 1, True), (-1, False), (2**63, False), (True, False), ("1", False)],
)
def test_the_number_of_earlier_calls_is_a_count(given: Any, kept: bool) -> None:
    assert asks.read({**ASK, "earlier_calls": given}) == {**ASK, **({"earlier_calls": given} if kept else {})}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("2026-11-20T12:00:00+00:00", "2026-11-20T12:00:00+00:00"),
        ("2026-11-20T13:00:00+01:00", "2026-11-20T12:00:00+00:00"),
        ("soon", None),
        ("0001-01-01T00:00:00+14:00", None),
        (5, None),
        (None, None),
    ],
)
def test_a_deadline_is_kept_in_utc(monkeypatch: pytest.MonkeyPatch, given: Any, kept: str | None) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        found = asks.read({**ASK, "deadline": given})
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found == {**ASK, "deadline": kept, "metadata": None}


@pytest.mark.parametrize(("length", "kept"), [(asks.LONGEST_METADATA, True), (asks.LONGEST_METADATA + 1, False)])
def test_metadata_is_kept_up_to_its_limit(length: int, kept: bool) -> None:
    given = {"a": "x" * (length - len('{"a": ""}'))}
    assert asks.read({**ASK, "metadata": given}) == {**ASK, "deadline": None, "metadata": given if kept else None}


def test_metadata_too_deep_for_an_xcom_is_left_out() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    assert asks.read({**ASK, "metadata": deep}) == {**ASK, "deadline": None, "metadata": None}


def test_an_answer_after_the_deadline_of_its_question_is_late() -> None:
    deadline = datetime(2026, 11, 20, 12, tzinfo=UTC)
    review = {"execution_id": "k-1", "crew_task_id": "ask#1", "outcome": "answer", "is_approve": True}
    asked = {**ASK, "kind": "question", "deadline": deadline.isoformat()}
    given = ReviewAnswer.of({**review, "ask": asked})
    assert given.deadline == deadline
    at = deadline.timestamp()
    assert [given.is_late(each) for each in (at - 1, at, at + 1)] == [False, True, True]
    assert ReviewAnswer.of({**review, "ask": ASK}).is_late(at) is False
    assert ReviewAnswer.of(review).is_late(at) is False


def test_the_text_to_send_replaces_a_comment() -> None:
    review = {"execution_id": "k-1", "crew_task_id": "draft", "is_approve": True, "human_feedback": "Shorter."}
    assert ReviewAnswer.of(review).human_feedback == "Shorter."
    assert ReviewAnswer.of({**review, SENT_FEEDBACK: "Approved."}).human_feedback == "Approved."
