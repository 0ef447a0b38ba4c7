"""Registrations and messages of the inbox, without Airflow: what is made, kept and read back."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from airflow_crew_provider.api.requests import LONGEST_ID
from airflow_crew_provider.api.status import short_name
from airflow_crew_provider.exceptions import CrewProtocolError
from airflow_crew_provider.inbox import messages as addresses
from airflow_crew_provider.inbox import rows
from airflow_crew_provider.inbox.messages import (
    LONGEST_LINE,
    MOST_QUESTIONS,
    HumanInputRequest,
    InboxMessages,
    is_of_another,
    pending_execution,
)
from airflow_crew_provider.inbox.rows import RegisteredTask
from airflow_crew_provider.models import Execution, ExecutionState

QUESTION = {"task_id": "t", "task_output": "Draft", "kickoff_id": "k", "execution_id": "e"}


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_registration_keeps_hashes_of_what_it_gives_away() -> None:
    kept, webhooks = addresses.registered("https://x/inboX//", "e-1", lambda purpose: f"<{purpose}>")
    assert asdict(webhooks) == {
        "task": "https://x/inboX/progress/<id>/<progress>/task",
        "step": "https://x/inboX/progress/<id>/<progress>/step",
        "crew": "https://x/inboX/progress/<id>/<progress>/crew",
        "human_input": {
            "url": "https://x/inboX/human-input/<id>",
            "token": "<human_input>",
            "username": None,
            "password": None,
            "conn_id": None,
        },
    }
    stored = {"id": "<id>", "human_input": sha("<human_input>"), "progress": sha("<progress>"), "execution_id": "e-1"}
    assert kept.as_dict() == {**stored, "at": kept.at}
    assert kept.at > 1_700_000_000
    assert addresses.Registration.of(kept.as_dict()) == kept
    assert addresses.secrets_of(webhooks) == ("<human_input>", "<progress>")


@pytest.mark.parametrize("value", [None, {}, {"id": "x"}, [], 5])
def test_what_is_no_registration_is_none(value: Any) -> None:
    assert addresses.Registration.of(value) is None


def digest(*names: str) -> str:
    return sha(json.dumps(names))[:40]


KICKOFF = addresses.Registration("r-1", "h1", "h2", None, 1.5)
RESUME = replace(KICKOFF, execution_id="e-1")
IN_A_LOOP = {"region_id": "loop", "region_index": 2}


@pytest.mark.parametrize("loop", [{}, IN_A_LOOP])
@pytest.mark.parametrize("kickoff_id", [None, "k-1"])
def test_a_registrations_task_is_stored_with_it_and_read_back(loop: Any, kickoff_id: str | None) -> None:
    task = RegisteredTask(RESUME, "dag", "run", "resume", 3, kickoff_id, **loop)
    named = {"dag_id": "dag", "run_id": "run", "task_id": "resume", "map_index": 3, "kickoff_id": kickoff_id}
    assert task.as_dict() == {"registration": RESUME.as_dict(), **named, **loop}
    assert RegisteredTask.of(json.loads(json.dumps(task.as_dict()))) == task


@pytest.mark.parametrize(
    "value",
    [
        *(None, 5, "x", [], {}),
        {"registration": None, "dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1, "kickoff_id": None},
        {"registration": RESUME.as_dict(), "dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1},
    ],
)
def test_what_is_no_registered_task_is_none(value: Any) -> None:
    assert RegisteredTask.of(value) is None


def test_a_registrations_variables_have_distinct_names_hiding_its_id() -> None:
    task = RegisteredTask(KICKOFF, "dag", "run", "kickoff")
    assert task.key == rows.registration_key("r-1") == f"crew_inbox_of_{digest('r-1')}"
    assert task.messages_key == rows.messages_key("r-1") == f"crew_inbox_box_{digest('r-1')}"
    assert task.description == "Inbox of the crew provider, for run of dag; removed within a day of its end"
    assert task.newest_key("e-1") == f"crew_inbox_newest_{digest('dag', 'run', 'e-1')}"


def test_only_a_resume_names_the_latest_registration_of_its_execution() -> None:
    task = RegisteredTask(RESUME, "dag", "run", "resume")
    assert task.newest == (task.newest_key("e-1"), {"at": 1.5, "dag_id": "dag", "run_id": "run"})
    assert RegisteredTask(KICKOFF, "dag", "run", "kickoff").newest is None


def test_the_root_is_the_first_kickoff_known_from_its_response() -> None:
    kickoff = RegisteredTask(KICKOFF, "dag", "run", "kickoff")
    assert kickoff.root is None
    assert replace(kickoff, kickoff_id="k-1").root == "k-1"
    assert RegisteredTask(RESUME, "dag", "run", "resume", kickoff_id="k-2").root == "e-1"


def test_secrets_are_long_and_never_the_same() -> None:
    made = {addresses.fresh("id") for _ in range(20)}
    assert len(made) == 20
    assert {len(each) for each in made} == {43}
    assert addresses.registered("https://x", None)[0] != addresses.registered("https://x", None)[0]


def test_a_secret_matches_its_own_hash_only() -> None:
    assert addresses.matches("a", sha("a"))
    assert not addresses.matches("a", sha("b"))
    assert not addresses.matches("a", "")
    assert addresses.digest("\ud800") == hashlib.sha256(b"\xed\xa0\x80").hexdigest()


def test_repeatable_secrets_depend_on_token_key_and_purpose() -> None:
    made = {
        addresses.repeatable(token, key)(purpose)
        for token in ("token-1", "token-2")
        for key in ("key-1", "key-2")
        for purpose in ("id", "progress")
    }
    assert len(made) == 8
    # A retry of a task that began under an earlier release must come to the same.
    assert addresses.repeatable("token", "key")("id") == "w_SEzMxwyg6mLfT5fwUF_ZjrMOp8OxmVp9aAwHxE4HQ"


def test_a_question_is_read() -> None:
    read = HumanInputRequest.read({**QUESTION, "more": 1})
    assert read.as_dict() == {"task_id": "t", "output": "Draft", "kickoff_id": "k", "execution_id": "e"}
    assert read.ids == {"k", "e"}
    assert HumanInputRequest.read({"task_id": "t", "kickoff_id": "k"}) == HumanInputRequest("t", "", "k", None)
    assert HumanInputRequest.read({"task_id": "t", "execution_id": "e"}).ids == {"e"}
    assert HumanInputRequest.read({**QUESTION, "task_output": {"b": 1, "a": "ü"}}).output == '{"a":"ü","b":1}'


@pytest.mark.parametrize("body", [None, [], {}, {"task_id": "t"}, {"kickoff_id": "k", "execution_id": "e"}])
def test_a_question_that_lacks_an_id_is_refused(body: Any) -> None:
    with pytest.raises(CrewProtocolError, match=r"^The webhook lacks task_id, or both kickoff_id and execution_id$"):
        HumanInputRequest.read(body)


@pytest.mark.parametrize("name", ["task_id", "kickoff_id", "execution_id"])
@pytest.mark.parametrize("value", ["", " ", "..", "None", 5, {}, "x" * (LONGEST_ID + 1), "ü" * 1025, "\ud800"])
def test_what_is_no_id_is_refused(name: str, value: Any) -> None:
    with pytest.raises(CrewProtocolError, match=f"^The webhook's {name} is not an id$"):
        HumanInputRequest.read({**QUESTION, name: value})


def test_an_id_of_the_longest_size_is_taken() -> None:
    assert HumanInputRequest.read({**QUESTION, "task_id": "x" * LONGEST_ID}).task_id == "x" * LONGEST_ID


def test_a_question_is_what_a_poll_would_have_shown() -> None:
    seen = HumanInputRequest("t", '{"a": 1}', "k", None).as_execution("polled")
    assert seen == Execution(
        kickoff_id="polled",
        state=ExecutionState.PENDING,
        raw_state="reported by webhook",
        output='{"a": 1}',
        output_json={"a": 1},
        crew_task_id="t",
    )


ASKED = {
    "task_id": "t#2",
    "kickoff_id": "k",
    "task_output": "Question 2",
    "question": "May it run?",
    "outcomes": ["approve", "deny"],
    "ask": {"kind": "tool", "agent": "Ann", "tool": "send", "arguments": {"to": "bob"}, "number": 2},
}


def test_a_mid_task_question_is_restored_with_its_ask() -> None:
    stored = InboxMessages("r").asking(HumanInputRequest.read(ASKED)).as_dict()
    found = InboxMessages.of(json.loads(json.dumps(stored)), "r").newest
    assert found is not None
    seen = found.as_execution("polled")
    assert (seen.ask, seen.question, seen.outcomes) == (ASKED["ask"], "May it run?", ["approve", "deny"])
    assert seen.crew_task_id == "t#2"


@pytest.mark.parametrize(("question", "outcomes"), [("May this go out?", ["publish", "drop"]), ("Where to?", [])])
def test_a_flows_question_is_restored_with_its_outcomes(question: str, outcomes: list[str]) -> None:
    body = {**QUESTION, "question": question, "outcomes": outcomes}
    stored = InboxMessages("r").asking(HumanInputRequest.read(body)).as_dict()
    found = InboxMessages.of(json.loads(json.dumps(stored)), "r").newest
    assert found is not None
    seen = found.as_execution("polled")
    assert (seen.question, seen.outcomes, seen.ask, seen.output) == (question, outcomes, None, "Draft")


def test_a_draft_is_stored_as_release_02_reads_it() -> None:
    stored = HumanInputRequest.read({**QUESTION, "question": None}).as_dict()
    assert set(stored) == {"task_id", "output", "kickoff_id", "execution_id"}


@pytest.mark.parametrize("ask", ["tool", {"kind": "vote"}, 5])
def test_an_unreadable_ask_in_a_webhook_is_kept_as_unreadable(ask: Any) -> None:
    seen = HumanInputRequest.read({**ASKED, "ask": ask, "outcomes": 5}).as_execution("polled")
    assert (seen.ask or {})["kind"] == "unreadable"


def test_a_stored_question_of_release_02_is_still_read() -> None:
    stored = {"task_id": "t", "output": "Draft", "kickoff_id": "k", "execution_id": None}
    assert HumanInputRequest(**stored).as_execution("k").ask is None


def test_messages_are_restored_unchanged_and_only_to_their_registration() -> None:
    question = HumanInputRequest("t", "Draft", "k", None)
    stored = InboxMessages("r").asking(question).with_progress("task", {"name": "write", "agent": "Ann"})
    assert stored.as_dict() == {
        **{"registration": "r", "question": question.as_dict(), "asked": ["t"], "tasks": 1, "steps": 0},
        **{"last": "task write of Ann is done", "succeeded": False},
    }
    assert InboxMessages.of(stored.as_dict(), "r") == stored
    assert stored.newest == question
    for value in (None, [], {}, stored.as_dict()):
        assert InboxMessages.of(value, "another") == InboxMessages("another")
    assert InboxMessages("r").newest is None


def test_the_newest_question_is_kept_whole_and_others_by_id() -> None:
    messages = InboxMessages("r")
    for number in range(MOST_QUESTIONS):
        assert not messages.full
        messages = messages.asking(HumanInputRequest(f"t{number}", "Draft", "k", None))
    assert messages.full
    assert messages.asked == [f"t{number}" for number in range(MOST_QUESTIONS)]
    assert messages.newest == HumanInputRequest(f"t{MOST_QUESTIONS - 1}", "Draft", "k", None)


@pytest.mark.parametrize(
    ("kind", "body", "last", "counts"),
    [
        ("task", {}, "task ? of ? is done", (1, 0, False)),
        ("task", {"name": "a\n b", "agent": "c"}, "task a b of c is done", (1, 0, False)),
        ("step", {"thought": "x", "tool": "y", "result": "z"}, "x", (0, 1, False)),
        ("step", {"tool": "y", "result": "z"}, "y", (0, 1, False)),
        ("step", {"result": "z"}, "z", (0, 1, False)),
        ("step", {}, "a step", (0, 1, False)),
        ("crew", {}, "the crew has succeeded", (0, 0, True)),
        ("step", {"thought": "x" * LONGEST_LINE}, "x" * LONGEST_LINE, (0, 1, False)),
        ("step", {"thought": "x" * (LONGEST_LINE + 1)}, "x" * LONGEST_LINE + "…", (0, 1, False)),
    ],
)
def test_progress_is_counted_and_reported(kind: str, body: Any, last: str, counts: tuple[int, int, bool]) -> None:
    messages = InboxMessages("r").with_progress(kind, body)
    assert (messages.tasks, messages.steps, messages.succeeded) == counts
    assert messages.last == last
    assert messages.progress == f"{counts[0]} tasks and {counts[1]} steps; latest: {last}"
    twice = messages.with_progress(kind, body)
    assert (twice.tasks, twice.steps) == (counts[0] * 2, counts[1] * 2)


def test_without_progress_there_is_nothing_to_report() -> None:
    assert InboxMessages("r").progress == ""


@pytest.mark.parametrize(
    ("ids", "root", "posted", "another"),
    [
        ({"k"}, None, None, False),
        ({"k"}, "k", None, False),
        ({"k", "new"}, "k", None, False),
        ({"x"}, "k", None, True),
        ({"k"}, "k", "k", False),
        ({"k", "new"}, "k", "new", False),
        ({"k", "x"}, "k", "new", True),
        ({"x"}, None, "k", True),
        ({"k"}, None, "k", False),
    ],
)
def test_whether_a_message_is_of_another_execution(
    ids: set[str], root: str | None, posted: str | None, another: bool
) -> None:
    assert is_of_another(ids, root, posted) is another


def test_a_question_from_a_webhook_names_its_task() -> None:
    found = pending_execution("k-1", "crew.draft_task", "Draft")
    assert (found.state, found.crew_task_id, found.shown_task) == (
        ExecutionState.PENDING,
        "crew.draft_task",
        short_name("crew.draft_task"),
    )
    assert found.shown_task
