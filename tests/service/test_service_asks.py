"""A person in the middle of a task of a scripted crew: a call to approve, a question to answer, an unknown outcome."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests
from crew_client import Client, Command, Receiver, Serve, eventually
from sqlalchemy import create_engine, text
from test_service_steps import details, finished, steps

from crew_service.engine import asks
from crew_service.engine.crew import (
    AskKind,
    BadTarget,
    Completed,
    CrewKilled,
    Job,
    JournalEntry,
    Outcome,
    PendingQuestion,
    Report,
    Step,
)
from crew_service.engine.drafts import draft_sha256
from crew_service.engine.tool_rules import JournalOptions, ToolRule
from crew_service.scripted_crew import ScriptedCrew
from scripts.stack.waiting import FACTOR

pytestmark = pytest.mark.waits
TOKEN = "a-token-of-20-letters"
MAIL = {"tool": "send_mail", "arguments": {"to": "{topic}", "body": "Hello"}, "result": "sent", "ask": "tool"}
QUESTION = {"ask": "question", "question": "Which tone for {topic}?"}


def scenario(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    task = {"id": "send", "agent": "Secretary", "steps": list(steps), "output": "Done", **more}
    return {"inputs": ["topic"], "tasks": [task]}


def asked(client: Client, kickoff_id: str, number: int = 1) -> dict[str, Any]:
    """Return the status that has the question with this number."""

    def found() -> dict[str, Any] | None:
        status = client.status(kickoff_id)
        assert status["status"] in ("running", "pending"), status
        return status if status.get("ask", {}).get("number") == number else None

    return dict(eventually(found, f"question {number}"))


def answer(client: Client, kickoff_id: str, number: int = 1, **body: Any) -> requests.Response:
    return client.post("/resume", {"execution_id": kickoff_id, "task_id": f"send#{number}", **body})


def draft_of(client: Client, kickoff_id: str) -> dict[str, Any] | None:
    status = client.status(kickoff_id)
    return status if status["status"] == "pending" and "ask" not in status else None


def tool_steps(client: Client, kickoff_id: str) -> list[tuple[Any, ...]]:
    found = steps(client, kickoff_id)["steps"]
    return [(step["name"], step["state"], json.loads(step["arguments"]), step["result"]) for step in found]


@pytest.fixture(params=["sqlite", "postgresql"])
def db(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {} if request.param == "sqlite" else {"db": request.getfixturevalue("postgresql")}


# --- a call to approve ---


def test_a_call_awaiting_approval_is_shown_as_it_will_run(serve: Serve, db: dict[str, Any], receiver: Receiver) -> None:
    client = serve(scenario({"tool": "look_up"}, MAIL), **db)
    kickoff_id = client.kickoff("ann", humanInputWebhook={"url": f"{receiver.url}/asked"})
    status = asked(client, kickoff_id)
    arguments = {"to": "ann", "body": "Hello"}
    output = (
        "Question 1: Secretary wants to call the tool send_mail. May it run?\n\nTool: send_mail\nArguments:\n"
        '{\n  "body": "Hello",\n  "to": "ann"\n}'
    )
    ask = {"kind": "tool", "agent": "Secretary", "tool": "send_mail", "arguments": arguments, "number": 1}
    ask["earlier_calls"] = 1
    question = {
        "question": "Secretary wants to call the tool send_mail. May it run?",
        "outcomes": ["approve", "deny"],
        "ask": ask,
    }
    assert status == {
        "status": "pending",
        "current_task": "send",
        "task_id": "send#1",
        "task_output": output,
        "progress": {"completed_tasks": 0, "total_tasks": 1},
        **question,
    }
    assert client.get(f"/statuses?ids={kickoff_id}").json()["statuses"][kickoff_id]["body"] == status
    sent = eventually(lambda: receiver.bodies("/asked"), "the webhook")[0]
    assert {**question, "task_id": "send#1", "task_output": output}.items() <= sent.items()
    [asked_round] = details(client, kickoff_id)["rounds"]
    assert (asked_round["ask"], asked_round["output_sha256"]) == (ask, draft_sha256(output))
    assert [name for name, *_ in tool_steps(client, kickoff_id)] == ["look_up"]
    said = answer(client, kickoff_id, outcome="approve")
    assert (said.status_code, said.json()["status"]) == (200, "resumed")
    assert client.until(kickoff_id, "completed")["result"]["output"] == "Done"
    assert tool_steps(client, kickoff_id)[1] == ("send_mail", "done", arguments, '"sent"')
    [decided] = details(client, kickoff_id)["rounds"]
    assert (decided["is_approve"], decided["outcome"], decided["edited"]) == (True, "approve", False)


@pytest.mark.parametrize("reason", ["", "Too early."])
def test_a_denied_call_never_runs_and_its_agent_learns_why(serve: Serve, reason: str) -> None:
    client = serve(scenario(MAIL))
    kickoff_id = client.kickoff("ann")
    asked(client, kickoff_id)
    assert answer(client, kickoff_id, outcome="deny", human_feedback=reason).json()["status"] == "resumed"
    finished(client, kickoff_id)
    [(_, state, _, result)] = tool_steps(client, kickoff_id)
    told = f" Reason: {reason}" if reason else ""
    denied = f"A person denied this call of the tool send_mail, so it was not run.{told}"
    assert (state, json.loads(result)) == ("done", denied)


@pytest.mark.parametrize(("is_approve", "result"), [(True, "sent"), (False, "Reason: No.")])
def test_a_client_of_the_specification_alone_approves_and_denies(serve: Serve, is_approve: bool, result: str) -> None:
    client = serve(scenario(MAIL))
    kickoff_id = client.kickoff("ann")
    asked(client, kickoff_id)
    said = answer(client, kickoff_id, is_approve=is_approve, human_feedback="No.")
    assert (said.status_code, said.json()["status"]) == (200, "resumed")
    finished(client, kickoff_id)
    assert result in tool_steps(client, kickoff_id)[0][3]


@pytest.mark.parametrize(
    ("rules", "asks"),
    [(("send_*", "approve"), True), (("send_mail", "once"), False), (("look_up", "approve"), False)],
)
def test_a_rule_asks_as_a_step_does(serve: Serve, rules: tuple[str, str], asks: bool) -> None:
    plain = {name: value for name, value in MAIL.items() if name != "ask"}
    options = JournalOptions((ToolRule(*rules), ToolRule("*", "repeat")))
    client = serve(crew=ScriptedCrew(scenario(plain, *([] if asks else [{"tool": "look_up"}])), options))
    kickoff_id = client.kickoff("ann")
    if asks or "look_up" in rules:
        tool = asked(client, kickoff_id)["ask"]["tool"]
        assert tool == ("send_mail" if asks else "look_up")
    else:
        finished(client, kickoff_id)


@pytest.mark.row("S57")
@pytest.mark.parametrize(
    ("rules", "counted"), [([], [2, 3, 4]), (["look_up=repeat"], [0, 1, 2]), (["add=once"], [1, 1, 1])]
)
def test_a_question_counts_the_finished_calls_under_no_rule(serve: Serve, rules: list[str], counted: list[int]) -> None:
    steps = [{"tool": "look_up"}, {"tool": "look_up" if rules == ["look_up=repeat"] else "add"}, MAIL]
    more = [{"tool": "add"}, MAIL]
    client = serve(crew=ScriptedCrew(scenario(*steps, *more, *more), JournalOptions(tuple(map(ToolRule.read, rules)))))
    kickoff_id = client.kickoff("ann")
    for number, count in enumerate(counted, 1):
        assert asked(client, kickoff_id, number)["ask"]["earlier_calls"] == count
        assert answer(client, kickoff_id, number, outcome="approve").ok
    assert client.until(kickoff_id, "completed")


def test_identical_calls_are_separate_questions_with_their_own_answers(serve: Serve) -> None:
    client = serve(scenario(MAIL, MAIL))
    kickoff_id = client.kickoff("ann")
    first = asked(client, kickoff_id)
    assert answer(client, kickoff_id, outcome="approve").ok
    second = asked(client, kickoff_id, 2)
    assert second["task_id"] == "send#2"
    assert second["task_output"].partition(":")[2] == first["task_output"].partition(":")[2]
    again = answer(client, kickoff_id, outcome="approve")
    assert again.status_code == 400
    assert again.json()["detail"] == "The execution is not pending human feedback for this task"
    assert asked(client, kickoff_id, 2)["task_id"] == "send#2"
    for task_id in ("send", "send#3"):
        wrong = client.post(
            "/resume",
            {"execution_id": kickoff_id, "task_id": task_id, "human_feedback": "", "is_approve": True},
        )
        assert wrong.status_code == (400 if task_id == "send" else 404)
    late = draft_sha256(first["task_output"])
    assert answer(client, kickoff_id, 2, outcome="approve", output_sha256=late).status_code == 400
    assert answer(client, kickoff_id, 2, outcome="deny").ok
    finished(client, kickoff_id)
    results = [json.loads(step[3]) for step in tool_steps(client, kickoff_id)]
    assert (results[0], "denied" in results[1]) == ("sent", True)


def test_of_two_answers_at_once_one_wins(serve: Serve) -> None:
    client = serve(scenario(MAIL))
    kickoff_id = client.kickoff("ann")
    asked(client, kickoff_id)
    with ThreadPoolExecutor(2) as pool:
        said = [
            pool.submit(answer, client.holding(client.token), kickoff_id, outcome=outcome)
            for outcome in ("approve", "deny")
        ]
        assert sorted(each.result().status_code for each in said) == [200, 400]
    finished(client, kickoff_id)


# --- changed arguments ---


def edit(status: dict[str, Any], text: Any) -> dict[str, Any]:
    text = text if isinstance(text, str) else json.dumps(text)
    return {"edited_output": {"text": text, "output_sha256": draft_sha256(status["task_output"])}}


def test_an_approval_with_changed_arguments_runs_the_call_with_these(serve: Serve) -> None:
    client = serve(scenario(MAIL))
    kickoff_id = client.kickoff("ann")
    changed = {"to": "bob", "copies": [1, 2.5, None]}
    assert answer(client, kickoff_id, outcome="approve", **edit(asked(client, kickoff_id), changed)).ok
    finished(client, kickoff_id)
    assert tool_steps(client, kickoff_id) == [("send_mail", "done", changed, '"sent"')]
    [decided] = details(client, kickoff_id)["rounds"]
    assert (decided["edited"], decided["ask"]["arguments"]) == (True, {"to": "ann", "body": "Hello"})


class Secretive(ScriptedCrew):
    def run(self, *args: Any) -> Outcome:
        args[0].printed.hide(["a-secret-of-the-crew"])
        return super().run(*args)


def secretive(serve: Serve) -> tuple[Client, str, dict[str, Any]]:
    secret = "a-secret-of-the-crew"
    arguments = {"key": secret, "head": f"Bearer {secret}", "more": ["\u202ea\x7f\x1b[1m", 7]}
    client = serve(crew=Secretive(scenario({"tool": "send_mail", "arguments": arguments, "ask": "tool"})))
    kickoff_id = client.kickoff("ann")
    return client, kickoff_id, asked(client, kickoff_id)


def test_secrets_are_masked_and_control_characters_are_escaped(serve: Serve) -> None:
    client, kickoff_id, status = secretive(serve)
    assert status["ask"]["arguments"] == {
        "key": "***",
        "head": "Bearer ***",
        "more": ["\u202ea\x7f\x1b[1m", 7],
    }
    assert not any(mark in status["task_output"] for mark in ("\u202e", "\x7f", "\x1b", "a-secret"))
    assert "a-secret" not in client.get(f"/executions/{kickoff_id}").text


def test_an_unchanged_mask_keeps_its_secret_and_is_refused_elsewhere(serve: Serve, tmp_path: Path) -> None:
    client, kickoff_id, status = secretive(serve)
    for wrong in ({"to": "***"}, {"head": "Basic ***"}, {"more": ["***"]}, {"***": 1}, {"key": ["***"]}):
        refused = answer(client, kickoff_id, outcome="approve", **edit(status, wrong))
        assert (refused.status_code, "can stand for a secret" in refused.json()["detail"]) == (400, True), wrong
    assert asked(client, kickoff_id) == status
    with sqlite3.connect(tmp_path / "service.db") as connection:
        connection.execute("CREATE TABLE seen (arguments TEXT)")
        connection.execute(
            "CREATE TRIGGER see AFTER UPDATE OF decision ON journal BEGIN INSERT INTO seen VALUES (NEW.decision); END"
        )
    kept = {"key": "***", "head": "Bearer ***", "more": [8]}
    assert answer(client, kickoff_id, outcome="approve", **edit(status, kept)).ok
    finished(client, kickoff_id)
    assert tool_steps(client, kickoff_id)[0][2] == kept
    with sqlite3.connect(tmp_path / "service.db") as connection:
        seen = json.loads(connection.execute("SELECT arguments FROM seen").fetchone()[0])
    secret = "a-secret-of-the-crew"
    assert seen["arguments"] == {"key": secret, "head": f"Bearer {secret}", "more": [8]}


def test_changed_arguments_may_be_in_a_code_fence(serve: Serve) -> None:
    client = serve(scenario(MAIL))
    kickoff_id = client.kickoff("ann")
    changed = edit(asked(client, kickoff_id), '```json\n{"to": "bob"}\n```')
    assert answer(client, kickoff_id, outcome="approve", **changed).ok
    finished(client, kickoff_id)
    assert tool_steps(client, kickoff_id) == [("send_mail", "done", {"to": "bob"}, '"sent"')]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"outcome": "revise"}, "no outcome 'revise'; choose one of: approve, deny"),
        ({"outcome": "answer"}, "no outcome 'answer'"),
        ({"outcome": "approve", "is_approve": False}, "contradicts"),
        ({"outcome": "deny", "is_approve": True}, "contradicts"),
        ({"outcome": 1}, "outcome"),
        ({}, "is_approve: Field required"),
        ({"human_feedback": "yes"}, "is_approve: Field required"),
        ({"outcome": "deny", "edited_output": {"text": "{}", "output_sha256": "0" * 64}}, "needs the outcome approve"),
        ({"outcome": "approve", "edited_output": {"text": "{}", "output_sha256": "0" * 64}}, "a different question"),
        ({"outcome": "approve", "output_sha256": "0" * 64}, "a different draft"),
        ({"outcome": "approve", "edited_output": "[]"}, "must be a JSON object"),
        ({"outcome": "approve", "edited_output": "to: bob"}, "must be a JSON object"),
        ({"outcome": "approve", "edited_output": '{"to": NaN}'}, "must be a JSON object"),
    ],
)
def test_an_invalid_answer_is_a_400_and_the_question_stays(serve: Serve, body: dict[str, Any], reason: str) -> None:
    client = serve(scenario(MAIL))
    kickoff_id = client.kickoff("ann")
    status = asked(client, kickoff_id)
    if isinstance(text := body.get("edited_output"), str):
        body = {**body, **edit(status, text)}
    refused = answer(client, kickoff_id, **body)
    assert (refused.status_code, reason in refused.json()["detail"]) == (400, True), refused.text
    assert client.status(kickoff_id) == status


def test_is_approve_alone_decides_a_call_but_no_draft(serve: Serve) -> None:
    client = serve(scenario(MAIL, human_input=True))
    for is_approve, decided in ((True, "approve"), (False, "deny")):
        kickoff_id = client.kickoff("ann")
        asked(client, kickoff_id)
        assert answer(client, kickoff_id, is_approve=is_approve).ok
        draft = eventually(partial(draft_of, client, kickoff_id), "the draft")
        assert details(client, kickoff_id)["rounds"][0]["outcome"] == decided
        refused = client.post("/resume", {"execution_id": kickoff_id, "task_id": "send", "is_approve": True})
        assert (refused.status_code, refused.json()) == (400, {"detail": "human_feedback: Field required"})
        assert draft_of(client, kickoff_id) == draft


def test_users_answer_their_own_questions_only(serve: Serve) -> None:
    ann, bob = ("ann", "anns-token-of-20-letters"), ("bob", "bobs-token-of-20-letters")
    client = serve(scenario(MAIL), user_tokens=[ann, bob])
    kickoff_id = client.holding(ann[1]).kickoff("ann")
    asked(client, kickoff_id)
    assert answer(client.holding(bob[1]), kickoff_id, outcome="approve").status_code == 404
    assert answer(client.holding(ann[1]), kickoff_id, outcome="approve").ok
    finished(client, kickoff_id)
    assert details(client, kickoff_id)["rounds"][0]["by"] == "user:ann"


# --- a question of an agent ---


def test_an_agent_gets_the_answer_to_its_question(serve: Serve) -> None:
    client = serve(scenario(QUESTION))
    kickoff_id = client.kickoff("tea")
    status = asked(client, kickoff_id)
    ask = {"kind": "question", "agent": "Secretary", "tool": None, "arguments": None, "number": 1, "earlier_calls": 0}
    assert (status["ask"], status["outcomes"], status["question"]) == (ask, ["answer"], "Which tone for tea?")
    assert status["task_output"] == "Question 1: Which tone for tea?"
    for wrong in (
        {"outcome": "answer", "human_feedback": " \n"},
        {"outcome": "answer"},
        {"is_approve": False, "human_feedback": "Formal"},
        {"outcome": "answer", "human_feedback": "x", **edit(status, {})},
    ):
        assert answer(client, kickoff_id, **wrong).status_code == 400, wrong
    assert answer(client, kickoff_id, is_approve=True, human_feedback="Formal\0").ok
    finished(client, kickoff_id)
    [(name, state, arguments, result)] = tool_steps(client, kickoff_id)
    assert (name, state, arguments) == ("ask_person", "done", {"question": "Which tone for tea?"})
    assert json.loads(result).startswith("Formal")


# --- beside drafts ---


def test_a_question_leaves_a_drafts_rounds_unchanged(serve: Serve) -> None:
    draft = {"human_input": True, "output": "Draft {revision}", "revised": "Draft {revision}: {feedback}"}
    client = serve(scenario(MAIL, **draft))
    kickoff_id = client.kickoff("ann")
    number = 1
    for draft_text in ("Draft 1", "Draft 2: again", "Draft 3: again"):
        asked(client, kickoff_id, number)
        assert answer(client, kickoff_id, number, outcome="approve").ok
        shown = eventually(lambda: (found := client.status(kickoff_id)).get("task_id") == "send" and found, "the draft")
        assert (shown["task_output"], "ask" in shown) == (draft_text, False)
        client.post(
            "/resume",
            {"execution_id": kickoff_id, "task_id": "send", "human_feedback": "again", "is_approve": number == 5},
        )
        number += 2
    found = finished(client, kickoff_id)
    assert found["output"] == "Draft 3: again"
    assert [(each["number"], bool(each["ask"])) for each in found["rounds"]] == [
        (each, each % 2 == 1) for each in range(1, 7)
    ]


# --- kills, and unknown outcomes ---


def served(tmp_path: Path, *steps: dict[str, Any], **more: Any) -> list[str]:
    (tmp_path / "crew.json").write_text(json.dumps(scenario(*steps, **more)))
    return ["--crew", "crew.json", "--token", TOKEN]


@pytest.mark.long
@pytest.mark.row("S1")
def test_despite_kills_a_call_runs_once_and_only_if_approved(command: Callable[..., Command], tmp_path: Path) -> None:
    options = served(tmp_path, MAIL, {"tool": "wait"}, seconds=10 * FACTOR)
    running = command(*options)
    kickoff_id = running.client(TOKEN).kickoff("ann")
    before = asked(running.client(TOKEN), kickoff_id)
    running.kill()  # while it is asked
    running = command(*options)
    assert asked(running.client(TOKEN), kickoff_id) == before
    assert answer(running.client(TOKEN), kickoff_id, outcome="approve").ok
    eventually(lambda: tool_steps(running.client(TOKEN), kickoff_id), "the call")
    running.kill()  # in the call
    running = command(*options)
    status = asked(running.client(TOKEN), kickoff_id, 2)
    assert (status["ask"]["kind"], status["outcomes"]) == ("unknown_outcome", ["done", "run_again", "fail"])
    assert "had started, and its end was not recorded" in status["question"]
    running.kill()
    running = command(*options)
    client = running.client(TOKEN)
    assert asked(client, kickoff_id, 2) == status
    for wrong in (
        {"is_approve": True, "human_feedback": ""},
        {"outcome": "approve"},
        {"outcome": "fail", "is_approve": True},
        {"outcome": "done", "is_approve": False},
        {"outcome": "run_again", **edit(status, {})},
    ):
        assert answer(client, kickoff_id, 2, **wrong).status_code == 400, wrong
    assert answer(client, kickoff_id, 2, outcome="run_again").ok
    eventually(lambda: tool_steps(client, kickoff_id)[0][1] == "running", "the call, again")
    running.kill()  # in the call that was run again: its approval is used up
    running = command(*options)
    client = running.client(TOKEN)
    asked(client, kickoff_id, 3)
    assert answer(client, kickoff_id, 3, outcome="done", human_feedback="It went out.").ok
    eventually(lambda: len(tool_steps(client, kickoff_id)) == 2, "the next call")
    assert tool_steps(client, kickoff_id)[0][3] == '"It went out."'
    running.kill()
    client = command(*options).client(TOKEN)
    finished(client, kickoff_id)
    kinds = [each["ask"]["kind"] for each in details(client, kickoff_id)["rounds"]]
    assert kinds == ["tool", "unknown_outcome", "unknown_outcome"]


@pytest.mark.long
@pytest.mark.row("S1")
def test_changed_arguments_are_asked_about_and_used_in_a_rerun(command: Callable[..., Command], tmp_path: Path) -> None:
    options = served(tmp_path, MAIL, seconds=10 * FACTOR)
    running = command(*options)
    client = running.client(TOKEN)
    kickoff_id = client.kickoff("ann")
    assert answer(client, kickoff_id, outcome="approve", **edit(asked(client, kickoff_id), {"to": "bob"})).ok
    eventually(lambda: tool_steps(client, kickoff_id), "the call")
    running.kill()
    client = command(*options).client(TOKEN)
    assert asked(client, kickoff_id, 2)["ask"]["arguments"] == {"to": "bob"}
    assert answer(client, kickoff_id, 2, outcome="run_again").ok
    finished(client, kickoff_id)
    assert tool_steps(client, kickoff_id) == [("send_mail", "done", {"to": "bob"}, '"sent"')]


@pytest.mark.long
@pytest.mark.row("S1")
@pytest.mark.parametrize("body", [{"outcome": "fail"}, {"is_approve": False, "human_feedback": ""}])
def test_an_abandoned_unknown_outcome_fails_and_a_continuation_asks_again(
    command: Callable[..., Command], tmp_path: Path, receiver: Receiver, body: dict[str, Any]
) -> None:
    options = served(tmp_path, {"tool": "look_up"}, {"tool": "send_mail", "result": "sent"}, seconds=10 * FACTOR)
    running = command(*options, "--tool", "send_mail=once")
    client = running.client(TOKEN)
    kickoff_id = client.kickoff("ann", webhooks={"url": f"{receiver.url}/events", "events": ["crew_kickoff_failed"]})
    eventually(lambda: len(tool_steps(client, kickoff_id)) == 2, "the call")
    running.kill()
    client = command(*options, "--tool", "send_mail=once").client(TOKEN)
    asked(client, kickoff_id)
    assert answer(client, kickoff_id, **body).json()["status"] == "resumed"
    error = client.until(kickoff_id, "error")["error"]
    assert error == (
        "The tool send_mail may run only once, but it is unknown whether it did its work with {}: it had started, "
        "and its end was not recorded. It was not run again; check what it did before you start the crew again."
    )
    [event] = eventually(lambda: receiver.bodies("/events"), "the event")[0]["events"]
    assert event["data"] == {"error": error}
    again = client.kickoff("ann", continueFrom=kickoff_id)
    assert asked(client, again)["ask"]["kind"] == "unknown_outcome"
    assert answer(client, again, outcome="done", human_feedback="sent by hand").ok
    finished(client, again)
    assert tool_steps(client, again)[1][3] == '"sent by hand"'


def test_a_decision_not_carried_out_allows_no_further_run(serve: Serve, tmp_path: Path) -> None:
    """An entry whose decision is gone counts as one that has begun."""
    client = serve(scenario(MAIL))
    kickoff_id = client.kickoff("ann")
    asked(client, kickoff_id)
    with sqlite3.connect(tmp_path / "service.db") as connection:
        connection.execute(
            "CREATE TRIGGER lose AFTER UPDATE OF decision ON journal WHEN NEW.decision IS NOT NULL "
            "BEGIN UPDATE journal SET decision = NULL; END"
        )
    assert answer(client, kickoff_id, outcome="approve").ok
    assert asked(client, kickoff_id, 2)["ask"]["kind"] == "unknown_outcome"
    assert tool_steps(client, kickoff_id) == []


class Forgetful(ScriptedCrew):
    """A crew that cannot read a recorded result, as after a change of the result's class."""

    def run(self, job: Job, report: Report) -> Outcome:
        call: dict[str, Any] = {"number": 1, "task_id": "send", "part": "", "kind": "tool", "key": "a-key"}
        call |= {"name": "send_mail", "once": True}
        if not (known := job.recorded()):
            report(Step(**call))
            report(Step(**call, answer='"sent"', state="done"))
            raise CrewKilled("The process was killed.")
        if asks.is_decided(known[0]):
            return Completed(asks.result_of(known[0]))
        return PendingQuestion(asks.UNKNOWN, JournalEntry(**call), text="its result can no longer be read")


def test_a_call_with_an_unreadable_result_gets_a_persons_result(serve: Serve) -> None:
    client = serve(crew=Forgetful(scenario()))
    kickoff_id = client.kickoff("ann")
    asked(client, kickoff_id)
    assert answer(client, kickoff_id, outcome="done", human_feedback="It went out.").ok
    assert client.until(kickoff_id, "completed")["result"]["output"] == "It went out."


# --- where nobody is asked ---


@pytest.mark.row("S1")
def test_in_the_live_dialect_an_unknown_outcome_fails(command: Callable[..., Command], tmp_path: Path) -> None:
    more = ("--dialect", "live", "--tool", "send_mail=once")
    options = [*served(tmp_path, {"tool": "send_mail"}, seconds=10 * FACTOR), *more]
    running = command(*options)
    client = running.client(TOKEN)
    kickoff_id = client.kickoff("ann")
    eventually(lambda: tool_steps(client, kickoff_id), "the call")
    running.kill()
    failed = command(*options).client(TOKEN).until(kickoff_id, "FAILED")
    assert failed["status"].startswith("The tool send_mail may run only once")


class Asking(ScriptedCrew):
    """Asks what no rule of its own has announced, as the crew of a Flow may."""

    def __init__(self, kind: AskKind, shown: str = "{}") -> None:
        super().__init__(scenario({"tool": "send_mail"}))
        self._kind, self._shown = kind, shown

    def run(self, job: Job, report: Report) -> Outcome:
        job.printed.hide(["a-secret-of-the-crew"])
        entry = JournalEntry(1, "send", "", "tool", "a-key", "send_mail", once=True)
        return PendingQuestion(self._kind, entry, "Secretary", {}, "it had begun", self._shown)


@pytest.mark.long
@pytest.mark.row("S31")
def test_beside_an_earlier_release_an_unknown_outcome_fails(serve: Serve, postgresql: str) -> None:
    """It would take the question for a draft, and its text for the output of the task."""
    client = serve(crew=Asking("unknown_outcome"), db=postgresql)
    engine = create_engine(postgresql)
    with engine.begin() as connection:
        old = "INSERT INTO processes (id, beat, host, release, started_at) VALUES ('old', 0, 'elsewhere', '0014', 0)"
        connection.execute(text(old))
    assert "may run only once" in client.until(client.kickoff("ann"), "error")["error"]
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM processes WHERE id = 'old'"))
    engine.dispose()
    asked(client, client.kickoff("ann"))


@pytest.mark.parametrize(
    ("kind", "what"), [("tool", "approve a tool call"), ("question", "answer an agent's question")]
)
def test_a_question_that_nobody_can_be_asked_ends_the_execution(serve: Serve, kind: AskKind, what: str) -> None:
    client = serve(crew=Asking(kind), dialect="live")
    failed = client.until(client.kickoff("ann"), "FAILED")["status"]
    assert (what in failed, "It was not run." in failed) == (True, True)


@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_truncated_arguments_in_an_error_show_no_partial_secret(serve: Serve, dialect: str) -> None:
    client = serve(crew=Asking("unknown_outcome", "." * 490 + "a-secret-of-the-crew" + "." * 490), dialect=dialect)
    kickoff_id = client.kickoff("ann")
    if dialect == "spec":
        asked(client, kickoff_id)
        assert answer(client, kickoff_id, outcome="fail").ok
    status = client.until(kickoff_id, "error" if dialect == "spec" else "FAILED")
    assert ("a-secret" in json.dumps(status), "***..........: it had begun" in json.dumps(status)) == (False, True)


@pytest.mark.parametrize(
    ("steps", "options", "reason"),
    [
        ([MAIL], ["--dialect", "live"], "'ask' in its task send asks people questions in the middle of a task"),
        ([{"tool": "x"}], ["--dialect", "live", "--tool", "x=approve"], "its rule x=approve asks people"),
        ([MAIL], ["--no-journal"], "'ask' in its task send needs the journal"),
        ([{"tool": "x"}], ["--no-journal", "--tool", "x=approve"], "its rule x=approve needs the journal"),
        ([{"tool": "x"}], ["--tool", "y=approve"], "its rule y=approve matches none of its tools"),
    ],
)
def test_a_crew_that_cannot_ask_does_not_start(
    tmp_path: Path, steps: list[dict[str, Any]], options: list[str], reason: str
) -> None:
    ended = Command.refused(tmp_path, *served(tmp_path, *steps), *options)
    assert (ended.returncode, ended.stderr.count("\n"), reason in ended.stderr) == (2, 1, True), ended.stderr


@pytest.mark.parametrize(
    "step",
    [{}, {"ask": "question"}, {"ask": "question", "question": "x", "tool": "y"}, {"ask": "tool"}, {"ask": "person"}],
)
def test_a_step_that_says_nothing_or_too_much_is_refused(step: dict[str, Any]) -> None:
    with pytest.raises((ValueError, BadTarget), match=r"tasks\.0\.steps\.0"):
        ScriptedCrew(scenario(step))


# --- people on this service's own page, and in a terminal ---


def test_the_page_shows_the_question_and_takes_its_answer(serve: Serve) -> None:
    hostile = {**MAIL, "arguments": {"body": "</pre><script>alert(1)</script>\n```"}}
    client = serve(scenario(hostile))
    kickoff_id = client.kickoff("ann")
    asked(client, kickoff_id)
    browser = requests.Session()
    browser.trust_env = False
    browser.post(f"{client.url}/login", {"token": client.token})
    page = browser.get(f"{client.url}/view?id={kickoff_id}").text
    assert "<script>alert" not in page
    form = page.split('action="review"')[1].split("</form>")[0]
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form))
    assert fields["task_id"] == "send#1"
    assert "Approve</button>" in page
    answered = browser.post(f"{client.url}/review", {**fields, "outcome": "deny", "feedback": "Not now."})
    assert "Answered; the crew continues." in answered.text
    finished(client, kickoff_id)
    assert "Not now." in tool_steps(client, kickoff_id)[0][3]


def test_the_terminal_shows_the_question_and_takes_its_answer(serve: Serve, terminal: Callable[..., str]) -> None:
    client = serve(scenario(MAIL, QUESTION))
    kickoff_id = client.kickoff("ann")
    asked(client, kickoff_id)
    assert "--outcome approve|deny" in terminal("status", kickoff_id)
    terminal("resume", kickoff_id, "--approve")
    asked(client, kickoff_id, 2)
    assert "--answer TEXT" in terminal("status", kickoff_id)
    terminal("resume", kickoff_id, "--answer", "Formal")
    finished(client, kickoff_id)
    assert [json.loads(step[3]) for step in tool_steps(client, kickoff_id)] == ["sent", "Formal"]


def test_an_approval_at_the_terminal_does_not_invent_an_answer(serve: Serve, terminal: Callable[..., str]) -> None:
    client = serve(scenario(QUESTION))
    kickoff_id = client.kickoff("ann")
    asked(client, kickoff_id)
    refusal = terminal("resume", kickoff_id, "--approve", code=1)
    assert refusal == (
        "The answer is empty; this question asks for text. Nothing was changed. "
        f"Decide: airflow-crew-service resume {kickoff_id} --answer TEXT\n"
    )
    terminal("resume", kickoff_id, "--answer", "Formal")
    finished(client, kickoff_id)
    assert json.loads(tool_steps(client, kickoff_id)[0][3]) == "Formal"
