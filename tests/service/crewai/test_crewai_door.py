"""What the service refuses at its door, since only the crew's own process knows better: states, edits and paths."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import requests
from crew_client import Client, Command, Serve, eventually
from engine_stub import CREWS, EngineStub
from sampling import sampled

from crew_service.budgets import Budget
from crew_service.crewai import load
from crew_service.engine.crew import Cancellation, CrewFailed, PendingReview
from crew_service.engine.drafts import draft_sha256
from crew_service.engine.tool_rules import APPROVE, ONCE, JournalOptions, ToolRule
from crew_service.http.slots import EDITS
from scripts.stack.waiting import FACTOR, PATIENCE

Player = Callable[..., EngineStub]
ANN, BOB = "a-token-of-ann", "a-token-of-bob"
SECONDS = 15.0 * FACTOR  # within which others are served, on a busy machine; a check takes up to sixty


@pytest.mark.row("S32")
def test_a_flows_input_id_reads_and_overwrites_nobodys_state(serve: Serve, terminal: Callable[..., str]) -> None:
    flow = load(f"{CREWS / 'flows.py'}:CountingFlow")
    client = serve(crew=flow, user_tokens=[("ann", ANN), ("bob", BOB)])
    ann, bob = client.holding(ANN), client.holding(BOB)
    first = ann.kickoff("ducks")
    ann.until(first, "pending")
    for caller in (bob, ann, client):
        refused = caller.post("/kickoff", {"inputs": {"id": first, "topic": "mine"}})
        assert refused.status_code == 400, refused.text
        assert "'id' of a Flow names a stored state" in refused.json()["detail"]
    assert bob.post("/kickoff", {"inputs": {}, "restoreFromStateId": first}).status_code == 404
    queued = terminal("kickoff", f"id={first}", "topic=mine").split("poll ")[1].split(".")[0]
    assert "names a stored state" in client.until(queued, "error")["error"]
    assert ann.resume(first, task_id="ask").ok
    assert ann.until(first, "completed")["result"]["output"] == "ducks 2"
    again = ann.post("/kickoff", {"inputs": {}, "restoreFromStateId": first}).json()["kickoff_id"]
    assert ann.until(again, "pending")["task_output"] == "ducks 3"


def test_a_crews_input_id_is_an_ordinary_input(serve: Serve, tmp_path: Path) -> None:
    client = serve(crew=load(f"{CREWS / 'samples.py'}:last_gate"))
    kickoff_id = client.kickoff(inputs={"id": "a-ticket", "topic": "ducks", "log": str(tmp_path / "log")})
    client.until(kickoff_id, "pending")


REFUSED = {
    '{"x": "many", "why": "mine"}': "x: Input should be a valid integer",
    '{"x": 3}': "why: Field required",
    "There you are.": "JSON object",
}
OF_THE_GUARDRAIL = {
    json.dumps({"x": 3, "why": "mine " * 20}): "the guardrail of its task rejects it: it is too long",
    '{"x": 3, "why": "boom"}': "the guardrail of its task failed with RuntimeError: out of order",
}


@pytest.mark.row("S42")
def test_edits_refused_by_model_or_guardrail_leave_the_question_open(serve: Serve, tmp_path: Path) -> None:
    client = serve(crew=load(f"{CREWS / 'samples.py'}:demanding"))
    execution = client.kickoff(inputs={"topic": "ducks", "log": str(tmp_path / "log")})
    for task, problems in (("place", {**REFUSED, **OF_THE_GUARDRAIL}), ("answer", REFUSED)):
        draft = until_asked(client, execution, task)
        for text, reason in problems.items():
            refused = edited(client, execution, task, draft, text)
            assert refused.status_code == 400, refused.text
            assert reason in refused.json()["detail"]
            assert client.status(execution)["status"] == "pending"
        assert edited(client, execution, task, draft, '{"x": 4, "why": "mine"}').ok
    tasks = client.until(execution, "completed")["result"]["tasks"]
    assert [task["output"] for task in tasks] == ['{"x": 4, "why": "mine"}'] * 2


def test_checking_an_edit_runs_no_tool_with_a_rule(tmp_path: Path) -> None:
    def asked(*rules: ToolRule) -> EngineStub:
        return EngineStub(load(f"{CREWS / 'samples.py'}:charging", JournalOptions(rules)), tmp_path / "log")

    def problem_of(crew: Any) -> str | None:
        options = {"owner": None, "stopping": Cancellation(), "report": lambda progress: None}
        return crew.edit_problem("draft", waiting.state, "edited", **options)  # type: ignore[no-any-return]

    crew = asked(ToolRule("pay", ONCE))
    waiting = crew.segment()
    assert isinstance(waiting, PendingReview)
    for rule in (ONCE, APPROVE):
        problem = problem_of(asked(ToolRule("pay", rule)).crew)
        assert problem
        assert problem.startswith("the guardrail of its task calls the tool pay, which may run only within")
        assert problem.endswith("Approve the draft unchanged, or request a revision")
    assert crew.calls(of="paid") == ["draft v1"], "within the execution"
    assert problem_of(asked().crew) is None


@pytest.mark.row("S42")
def test_usage_of_an_edit_check_is_counted_and_limited(serve: Serve, tmp_path: Path) -> None:
    client = serve(crew=load(f"{CREWS / 'samples.py'}:judged"), max_tokens=40)
    execution = client.kickoff(inputs={"topic": "ducks", "log": str(tmp_path / "log")})
    draft = until_asked(client, execution, "draft")

    def used() -> int:
        of_execution = client.get(f"/executions/{execution}").json()["usage"]["total_tokens"]
        assert sum(row["total_tokens"] for row in client.get("/usage").json()["rows"]) == of_execution
        return int(of_execution)

    before = used()
    for number in (1, 2):
        refused = edited(client, execution, "draft", draft, "bad")
        assert (refused.status_code, used()) == (400, before + 11 * number)
    refused = edited(client, execution, "draft", draft, "fine")
    assert refused.status_code == 400
    assert "cannot be checked because the execution used 44 tokens; its limit is 40" in refused.json()["detail"]
    assert used() == before + 22


@pytest.mark.row("S42")
def test_an_edit_is_not_checked_with_an_exhausted_budget(serve: Serve, tmp_path: Path) -> None:
    client = serve(crew=load(f"{CREWS / 'samples.py'}:judged"), budgets=(Budget.read("*=20tokens/month"),))
    execution = client.kickoff(inputs={"topic": "ducks", "log": str(tmp_path / "log")})
    draft = until_asked(client, execution, "draft")
    refused = edited(client, execution, "draft", draft, "fine")
    assert refused.status_code == 429
    assert "Retry-After" in refused.headers
    assert refused.json()["budget"]["used"] == 22
    assert refused.json()["detail"].endswith("The edit was not checked, and nothing was changed.")
    assert client.resume(execution, task_id="draft").ok


def until_asked(client: Client, execution: str, task: str) -> str:
    """Return the draft of that task."""
    eventually(lambda: client.status(execution).get("task_id") == task, f"the question of {task}")
    return str(client.status(execution)["task_output"])


def edited(client: Client, execution: str, task: str, draft: str, text: str) -> requests.Response:
    edit = {"text": text, "output_sha256": draft_sha256(draft)}
    return client.resume(execution, task_id=task, edited_output=edit)


@pytest.mark.long
@pytest.mark.row("S42")
def test_edits_awaiting_a_slow_guardrail_block_nothing_else(command: Callable[..., Command], tmp_path: Path) -> None:
    users = ("--user-token", f"ann={ANN}", "--user-token", f"bob={BOB}")
    service = command("--token", "a-token-of-all", *users, "--crew", f"{CREWS / 'samples.py'}:pondering")
    ann, bob = service.client(ANN), service.client(BOB)
    inputs = {"topic": "ducks", "log": str(tmp_path / "log")}
    executions = [client.kickoff(inputs=inputs) for client in (ann, ann, bob)]
    drafts = [until_asked(client, *of) for client, *of in zip((ann, ann, bob), executions, ["draft"] * 3, strict=True)]
    answers: Queue[requests.Response] = Queue()

    def edit() -> None:
        with contextlib.suppress(requests.ConnectionError):  # once the service has stopped
            answers.put(edited(service.client(ANN), executions[0], "draft", drafts[0], "edited"))

    threads = [threading.Thread(target=edit) for _ in range(50)]
    for thread in threads:
        thread.start()
    refused = [answers.get(timeout=PATIENCE) for _ in range(len(threads) - EDITS)]
    assert {answer.status_code for answer in refused} == {429}
    assert all(int(answer.headers["Retry-After"]) for answer in refused)
    began = time.monotonic()
    assert ann.get("/readyz").ok
    assert ann.resume(executions[1], task_id="draft").ok
    bob.kickoff(inputs=inputs)
    assert edited(bob, executions[2], "draft", drafts[2], "mine").ok
    assert time.monotonic() - began < SECONDS
    began = time.monotonic()
    service.stop()
    assert time.monotonic() - began < 20.0
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("topic", sampled(["../../outside", "/../../outside", "../reports/../outside"], 3))
def test_an_input_leads_no_output_file_out_of_its_folder(play: Player, tmp_path: Path, topic: str) -> None:
    crew = play("into_a_file")
    crew.inputs["topic"] = topic
    with pytest.raises(CrewFailed, match=r"'reports/\{topic\}.txt' outside its folder; no task was run"):
        crew.segment()
    assert crew.calls() == []
    assert list(tmp_path.parent.glob("*outside*")) == list(tmp_path.glob("*outside*")) == []


def test_an_input_names_an_output_file_within_its_folder(play: Player, tmp_path: Path) -> None:
    crew = play("into_a_file")
    crew.inputs["topic"] = "birds/ducks"
    crew.segment()
    assert (tmp_path / "reports/birds/ducks.txt").read_text() == "final v1"


def test_tasks_whose_names_collide_with_generated_ones_each_run(play: Player) -> None:
    crew = play("names_that_collide")
    assert crew.segment().output == "x v1"
    assert crew.finished() == ["x", "x_3", "x_3_3"]
