"""Flows behind the real service, in both dialects: questions, answers by every way, and kills at every gate."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
import standardwebhooks
from crew_client import Client, Command, Receiver, eventually
from engine_stub import CREWS

from scripts.stack.waiting import PATIENCE

Start = Callable[..., Command]
TOKEN = "a-token-for-tests-only"
SECRET = "whsec_YS1zZWNyZXQtZm9yLXRlc3RzLW9ubHk="
OFFERED = ["publish", "rework", "drop"]


class ServedFlow:
    """A service that is killed and started again on its database."""

    def __init__(self, start: Start, name: str, *options: str) -> None:
        self._start = start
        self._options = ("--crew", f"{CREWS / 'flows.py'}:{name}", *options)
        self.begin()

    def begin(self) -> None:
        self._command = self._start(*self._options, environment={"CREW_SERVICE_TOKEN": TOKEN})
        self.client: Client = self._command.client(TOKEN)

    def restart(self) -> None:
        self._command.kill()
        self.begin()

    def kickoff(self, **inputs: Any) -> str:
        answer = self.client.post("/kickoff", {"inputs": inputs})
        assert answer.ok, answer.text
        return str(answer.json()["kickoff_id"])

    def reached(self, kickoff_id: str, *words: str) -> dict[str, Any]:
        def status() -> dict[str, Any] | None:
            record = self.client.status(kickoff_id)
            return record if {record.get("state"), record.get("status")} & set(words) else None

        return dict(eventually(status, f"{kickoff_id} reading {words}"))

    def answer(self, execution_id: str, method: str, **said: Any) -> requests.Response:
        return self.client.post("/resume", {"execution_id": execution_id, "task_id": method, **said})


@pytest.fixture
def served(command: Start) -> Callable[..., ServedFlow]:
    return lambda name, *options: ServedFlow(command, name, *options)


def code_and_reason(answer: requests.Response) -> tuple[int, str]:
    return answer.status_code, str(answer.json().get("detail"))


@pytest.mark.row("F3", "F6")
def test_f6_a_flow_waits_on_through_kill_9_at_each_gate_and_goes_on_after_the_answer(
    served: Callable[..., ServedFlow],
) -> None:
    service = served("BriefingFlow")
    assert service.client.get("/inputs").json() == {"inputs": ["log", "parts", "round", "topic"], "required": []}
    flow = service.kickoff(topic="ducks")
    asked = {"status": "pending", "task_id": "draft", "question": "May this go out?", "outcomes": OFFERED}

    assert service.reached(flow, "pending").items() >= {**asked, "task_output": "Draft 1 on ducks"}.items()
    service.restart()
    assert service.client.status(flow).items() >= asked.items()
    code, reason = code_and_reason(service.answer(flow, "draft", outcome="burn"))
    assert (code, all(outcome in reason for outcome in OFFERED)) == (400, True)
    code, reason = code_and_reason(service.answer(flow, "draft", human_feedback="", is_approve=True))
    assert (code, all(outcome in reason for outcome in OFFERED)) == (400, True)
    assert code_and_reason(service.answer(flow, "draft", human_feedback=" "))[0] == 400
    assert service.answer(flow, "draft", outcome="rework", human_feedback="shorter").ok

    eventually(lambda: "after: shorter" in service.reached(flow, "pending")["task_output"], "the second draft")
    service.restart()
    assert service.client.status(flow)["task_output"] == "Draft 2 on ducks, after: shorter"
    assert service.answer(flow, "draft", outcome="publish").ok

    eventually(lambda: service.reached(flow, "pending", "error").get("task_id") == "place", "the second gate")
    service.restart()
    assert service.client.status(flow)["outcomes"] == []
    assert code_and_reason(service.answer(flow, "place", human_feedback="", is_approve=True))[0] == 400
    assert code_and_reason(service.answer(flow, "place", outcome="publish"))[0] == 400
    assert service.answer(flow, "place", human_feedback="the board", is_approve=True).ok
    result = service.reached(flow, "completed", "error")["result"]
    assert result["output"] == "Draft 2 on ducks, after: shorter, sent to the board"
    assert [task["task_id"] for task in result["tasks"]] == ["begin", "draft", "draft", "place", "send"]
    assert code_and_reason(service.answer(flow, "place", human_feedback="again", is_approve=True))[0] == 400


@pytest.mark.row("F7")
def test_f7_a_reviewer_who_asks_for_more_gets_another_draft_also_after_kill_9(
    served: Callable[..., ServedFlow], tmp_path: Path
) -> None:
    service = served("RoundsFlow")
    flow = service.kickoff(log=str(tmp_path / "log"))
    for draft in ("Draft 1", "Draft 2"):
        eventually(lambda: service.reached(flow, "pending")["task_output"] == draft, draft)  # noqa: B023
        service.restart()
        assert service.answer(flow, "check", outcome="again").ok
    eventually(lambda: service.reached(flow, "pending")["task_output"] == "Draft 3", "the third draft")
    assert service.answer(flow, "check", outcome="send").ok
    assert service.reached(flow, "completed", "error")["result"]["output"] == "Draft 3, sent"
    calls = [json.loads(line)["call"] for line in (tmp_path / "log").read_text().splitlines()]
    assert calls == ["begin", *["sift", "write_up", "check"] * 3, "post"]


@pytest.mark.row("F6")
def test_f6_a_crew_inside_a_flow_waits_on_through_kill_9_and_keeps_its_rounds(
    served: Callable[..., ServedFlow], tmp_path: Path
) -> None:
    service = served("CrewAsksFlow")
    flow = service.kickoff(topic="ducks", log=str(tmp_path / "log"))
    asked = service.reached(flow, "pending", "error")
    assert (asked["task_id"], asked["outcomes"]) == ("research.writing", ["approve", "revise"])
    service.restart()
    assert service.answer(flow, "research.writing", is_approve=False, human_feedback="shorter").ok
    eventually(lambda: "(shorter)" in service.reached(flow, "pending", "error")["task_output"], "the second draft")
    service.restart()
    assert service.answer(flow, "research.writing", is_approve=True, human_feedback="").ok
    eventually(lambda: service.reached(flow, "pending", "error").get("task_id") == "place", "the Flow's own gate")
    assert service.client.status(flow)["task_output"] == "writing v2 (shorter) in round 1"
    calls = [json.loads(line)["call"] for line in (tmp_path / "log").read_text().splitlines()]
    assert calls == ["begin", "research", "writing", "writing"]


@pytest.mark.row("F3", "F4")
def test_f4_live_questions_come_by_signed_webhooks_and_are_answered_once(
    served: Callable[..., ServedFlow], receiver: Receiver
) -> None:
    service = served(
        *("BriefingFlow", "--dialect", "live"),
        *("--flow-webhook", f"{receiver.url}/asked", "--flow-webhook-secret", SECRET),
    )
    flow = service.kickoff(topic="ducks")
    paused = service.reached(flow, "PAUSED")
    assert paused["flow_id"] == flow
    assert (paused["progress"]["unit"], paused["progress"]["total"], paused["progress"]["remaining"]) == (
        "step",
        None,
        None,
    )
    question = eventually(lambda: receiver.bodies("/asked"), "the webhook")[0]
    assert question["event_type"] == "new_request"
    assert (question["flow_id"], question["method_name"], question["emit"]) == (flow, "draft", OFFERED)
    assert (question["message"], question["output"]) == ("May this go out?", "Draft 1 on ducks")
    assert question["state"]["topic"] == "ducks"
    _, headers, body = receiver.taken[0]
    timestamp = headers["X-CrewAI-Timestamp"]
    signed = f"{timestamp}.{json.dumps(body)}".encode()
    digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert headers["X-CrewAI-Signature"] == f"sha256={digest}"
    assert abs(time.time() - int(timestamp)) < 300
    assert headers["Webhook-Id"] == question["id"]
    standardwebhooks.Webhook(SECRET).verify(json.dumps(body), dict(headers))

    address = question["callback_url"]
    assert address.startswith(service.client.url)
    assert requests.post(address[:-4] + "0000", json={"feedback": "drop"}, timeout=PATIENCE).status_code == 401
    assert requests.post(address, json={"feedback": " "}, timeout=PATIENCE).status_code == 422
    assert requests.post(address, json={"outcome": "burn"}, timeout=PATIENCE).status_code == 422
    accepted = requests.post(address, json={"feedback": "publish", "source": "airflow"}, timeout=PATIENCE)
    assert (accepted.status_code, accepted.json()["status"]) == (200, "accepted")
    again = requests.post(address, json={"feedback": "drop"}, timeout=PATIENCE)
    assert (again.status_code, again.json()["status"], again.json()["responded_by"]) == (
        409,
        "already_responded",
        "airflow",
    )
    assert again.json()["responded_at"]

    eventually(lambda: len(receiver.bodies("/asked")) == 2, "the second webhook")
    answer = {"flow_id": service.reached(flow, "PAUSED")["flow_id"], "feedback": "the board"}
    assert service.client.post("/resume_feedback", {**answer, "feedback": ""}).status_code == 422
    assert service.client.post("/resume_feedback", answer).ok
    assert service.client.post("/resume_feedback", answer).status_code == 409
    done = service.reached(flow, "SUCCESS", "FAILED")
    assert done["result"] == "Draft 1 on ducks, sent to the board"
    log = service._command.log.read_text()
    assert question["response_token"] not in log
    assert SECRET not in log


@pytest.mark.row("F4")
def test_f4_a_question_that_is_not_taken_is_sent_again_also_after_kill_9(
    served: Callable[..., ServedFlow], receiver: Receiver, tmp_path: Path
) -> None:
    receiver.answers = [503, 503]
    service = served(
        *("BriefingFlow", "--webhook-secret", "a-secret-of-other-webhooks"),
        *("--flow-webhook", f"{receiver.url}/asked", "--flow-webhook-secret", SECRET),
    )
    flow = service.kickoff(topic="ducks")
    eventually(lambda: receiver.bodies("/asked"), "the webhook")
    service.restart()
    tries = eventually(lambda: len(receiver.taken) == 3 and receiver.taken, "the third try")
    for _, headers, body in tries:
        assert headers["Webhook-Id"] == body["id"] == tries[0][2]["id"]
        standardwebhooks.Webhook(SECRET).verify(json.dumps(body), dict(headers))
    question = tries[-1][2]
    for stored in tmp_path.glob("crew-service.db*"):
        assert question["response_token"].encode() not in stored.read_bytes()
    assert requests.post(question["callback_url"], json={"feedback": "publish"}, timeout=PATIENCE).ok
    assert service.reached(flow, "pending", "error")["task_id"] in ("draft", "place")


def test_the_page_has_a_button_for_each_outcome_and_the_terminal_an_option(
    served: Callable[..., ServedFlow], tmp_path: Path
) -> None:
    service = served("BriefingFlow")
    flow = service.kickoff(topic="ducks")
    service.reached(flow, "pending")
    browser = requests.Session()
    browser.post(f"{service.client.url}/login", data={"token": TOKEN}, timeout=PATIENCE)
    page = browser.get(f"{service.client.url}/", timeout=PATIENCE).text
    assert "May this go out?" in page
    assert re.findall(r'<button name="outcome" value="(\w+)"', page) == OFFERED
    hidden = dict(re.findall(r'name="(form_key|execution_id|task_id|round)" value="([^"]*)"', page))
    assert browser.post(f"{service.client.url}/review", data={**hidden, "outcome": "publish"}, timeout=PATIENCE).ok
    eventually(lambda: service.reached(flow, "pending", "error").get("task_id") == "place", "the second gate")
    command = [sys.executable, "-m", "crew_service", "resume", flow, "--answer", "the board"]
    assert subprocess.run(command, cwd=tmp_path, timeout=PATIENCE).returncode == 0
    assert service.reached(flow, "completed", "error")["result"]["output"] == "Draft 1 on ducks, sent to the board"


def test_a_kickoff_starts_from_the_state_of_an_earlier_execution(served: Callable[..., ServedFlow]) -> None:
    service = served("CountingFlow")
    first = service.kickoff(topic="ducks")
    service.reached(first, "pending")
    assert service.answer(first, "ask", human_feedback="", is_approve=True).ok, "yes is the one outcome that approves"
    assert service.reached(first, "completed", "error")["result"]["output"] == "ducks 2"
    answer = service.client.post("/kickoff", {"inputs": {}, "restoreFromStateId": first})
    assert service.reached(answer.json()["kickoff_id"], "pending", "error")["task_output"] == "ducks 3"


@pytest.mark.row("F4")
def test_f4_the_address_of_a_question_leads_to_its_crew_where_several_are_served(
    command: Start, receiver: Receiver
) -> None:
    crews = ("--crew", f"brief={CREWS / 'flows.py'}:BriefingFlow", "--crew", "other=demo")
    webhook = ("--flow-webhook", f"{receiver.url}/asked", "--flow-webhook-secret", SECRET)
    client = command(*crews, *webhook, environment={"CREW_SERVICE_TOKEN": TOKEN}).client(TOKEN)
    assert client.url.endswith("/crews/brief")
    kickoff_id = client.kickoff("ducks")
    question = eventually(lambda: receiver.bodies("/asked"), "the webhook")[0]
    assert question["kickoff_id"] == kickoff_id
    assert question["callback_url"].startswith(f"{client.url}/human_feedback_requests/{question['id']}/respond?")
    answer = requests.post(question["callback_url"], json={"feedback": "drop"}, timeout=PATIENCE)
    assert (answer.status_code, answer.json()["status"]) == (200, "accepted")
