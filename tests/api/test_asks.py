"""How a question in the middle of a task is read, and which words and arguments answer it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_crew_provider.api import asks, endpoints
from airflow_crew_provider.api.answers import ReviewAnswer
from airflow_crew_provider.api.responses import HttpResponse
from airflow_crew_provider.api.status import execution
from airflow_crew_provider.flows import questions as flow
from airflow_crew_provider.models import ExecutionState

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
def test_an_ask_that_cannot_be_read_ends_nothing_and_is_told_apart_from_a_draft(given: Any) -> None:
    seen = execution("k-1", {**STATUS, "ask": given})
    assert (seen.state, seen.crew_task_id) == (ExecutionState.PENDING, "draft_task#3")
    assert seen.record()["ask"]["kind"] == asks.UNREADABLE
    assert asks.words_of(seen.record()["ask"]) == []


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
def test_a_detail_that_cannot_be_read_is_none_and_the_others_are_kept(name: str, bad: Any) -> None:
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


def test_names_are_masked_and_on_one_line() -> None:
    found = asks.read({**ASK, "agent": "a\nsecret", "tool": "x" * 500}, lambda text: text.replace("secret", "***"))
    assert found is not None
    assert (found["agent"], len(found["tool"])) == ("a ***", asks.LONGEST_NAME)


def test_the_words_of_a_question_in_the_middle_are_no_outcomes_of_a_flow() -> None:
    record = execution("k-1", STATUS).record()
    assert not flow.is_of_flow(record)
    assert flow.outcomes_of(record) == []
    assert flow.asked_in(record)["ask"] == ASK
    assert flow.is_of_flow({**record, "ask": None})


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        ({"crew_task_id": "draft_task#3", "outcome": "deny"}, True),
        ({"crew_task_id": "draft_task", "outcome": "deny"}, False),
        ({"crew_task_id": "draft_task#3", "outcome": "publish"}, False),
        ({"crew_task_id": "draft_task#3", "outcome": None, "is_approve": True}, False),
        ({"crew_task_id": "draft_task#3", "ask": ASK}, True),
        ({"crew_task_id": None, "outcome": "deny"}, False),
    ],
)
def test_an_answer_to_a_question_is_told_by_its_ask_or_by_its_id_and_word(source: Any, asked: bool) -> None:
    assert asks.is_answer(source) is asked


def test_the_id_of_a_question_names_its_task() -> None:
    assert asks.task_of("draft_task#3") == "draft_task"


QUESTION = {"execution_id": "k-1", "crew_task_id": "draft_task#3"}


@pytest.mark.parametrize("text", ["", "ok", "Use the list."])
@pytest.mark.parametrize(("word", "approves"), [("deny", False), ("answer", True), ("done", True), ("fail", None)])
def test_what_a_person_wrote_is_sent_unchanged(word: str, approves: bool | None, text: str) -> None:
    answer = ReviewAnswer.of({**QUESTION, "outcome": word, "is_approve": approves, "human_feedback": text})
    assert (answer.outcome, answer.is_approve, answer.human_feedback) == (word, approves, text)
    assert "in_the_middle" not in answer.request


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
        ({**SHOWN, "to": "***"}, "arguments.to contains"),
        ({**SHOWN, "key": "Bearer ***"}, "arguments.key contains"),
        ({**SHOWN, "list": ["Bearer ***", "a"]}, "arguments.list[0] contains"),
        ({**SHOWN, "list": ["a", "Basic ***"]}, "arguments.list[1] contains"),
        ({**SHOWN, "new": {"a": ["***"]}}, "arguments.new.a[0] contains"),
        ({**SHOWN, "in": {"*** b": 1}}, "a name in arguments.in contains"),
        ([SHOWN], "not a JSON object"),
        (None, "not a JSON object"),
    ],
)
def test_a_hidden_value_anywhere_else_is_refused(changed: Any, place: str) -> None:
    assert place in str(asks.problem_with_arguments(SHOWN, changed))
