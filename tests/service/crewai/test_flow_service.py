"""Flows behind the real service, in both dialects: questions, answers by every way, and kills at every gate."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Any

import pytest
import requests
import standardwebhooks
from crew_client import Client, Command, Receiver, eventually
from engine_stub import CREWS, alive
from sqlalchemy import create_engine, text

from scripts.stack.waiting import PATIENCE

Start = Callable[..., Command]
TOKEN = "a-token-for-tests-only"
SECRET = "whsec_YS1zZWNyZXQtZm9yLXRlc3RzLW9ubHk="
OFFERED = ["publish", "rework", "drop"]


class Service:
    """The service of some Flows, which is killed and started again on its database."""

    def __init__(self, start: Start, *options: str) -> None:
        self._start, self._options = start, options
        self._begin()

    def _begin(self) -> None:
        self.command = self._start(*self._options, environment={"CREW_SERVICE_TOKEN": TOKEN})

    def restart(self) -> None:
        self.command.kill()
        self._begin()


class ServedFlow:
    """One of its Flows; with a name where there are several."""

    def __init__(self, service: Service, name: str = "") -> None:
        self.service, self._name = service, name

    @property
    def client(self) -> Client:
        return self.service.command.client(TOKEN, self._name)

    def restart(self) -> None:
        self.service.restart()

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
    return lambda name, *options: ServedFlow(Service(command, "--crew", f"{CREWS / 'flows.py'}:{name}", *options))


def code_and_reason(answer: requests.Response) -> tuple[int, str]:
    return answer.status_code, str(answer.json().get("detail"))


@pytest.mark.row("F3", "F6", "F7")
def test_waiting_flows_survive_kill_9_at_each_gate_and_continue(command: Start, tmp_path: Path) -> None:
    flows = {"briefing": "BriefingFlow", "rounds": "RoundsFlow", "asking": "CrewAsksFlow"}
    options = [part for name, flow in flows.items() for part in ("--crew", f"{name}={CREWS / 'flows.py'}:{flow}")]
    service = Service(command, *options)
    stories = (
        two_gates(ServedFlow(service, "briefing")),
        more_drafts(ServedFlow(service, "rounds"), tmp_path / "rounds"),
        a_crew_inside(ServedFlow(service, "asking"), tmp_path / "asking"),
    )
    for _ in zip_longest(*stories):  # each goes on until it wants the service to be killed
        service.restart()


def two_gates(service: ServedFlow) -> Iterator[None]:
    assert service.client.get("/inputs").json() == {
        "inputs": ["log", "parts", "round", "topic"],
        "required": [],
        "continues": True,
    }
    flow = service.kickoff(topic="ducks")
    asked = {"status": "pending", "task_id": "draft", "question": "May this go out?", "outcomes": OFFERED}

    assert service.reached(flow, "pending").items() >= {**asked, "task_output": "Draft 1 on ducks"}.items()
    yield
    assert service.client.status(flow).items() >= asked.items()
    code, reason = code_and_reason(service.answer(flow, "draft", outcome="burn"))
    assert (code, all(outcome in reason for outcome in OFFERED)) == (400, True)
    code, reason = code_and_reason(service.answer(flow, "draft", human_feedback="", is_approve=True))
    assert (code, all(outcome in reason for outcome in OFFERED)) == (400, True)
    assert code_and_reason(service.answer(flow, "draft", human_feedback=" "))[0] == 400
    assert service.answer(flow, "draft", outcome="rework", human_feedback="shorter").ok

    eventually(lambda: "after: shorter" in service.reached(flow, "pending")["task_output"], "the second draft")
    yield
    assert service.client.status(flow)["task_output"] == "Draft 2 on ducks, after: shorter"
    assert service.answer(flow, "draft", outcome="publish").ok

    eventually(lambda: service.reached(flow, "pending", "error").get("task_id") == "place", "the second gate")
    yield
    assert service.client.status(flow)["outcomes"] == []
    assert code_and_reason(service.answer(flow, "place", human_feedback="", is_approve=True))[0] == 400
    assert code_and_reason(service.answer(flow, "place", outcome="publish"))[0] == 400
    assert service.answer(flow, "place", human_feedback="the board", is_approve=True).ok
    result = service.reached(flow, "completed", "error")["result"]
    assert result["output"] == "Draft 2 on ducks, after: shorter, sent to the board"
    assert [task["task_id"] for task in result["tasks"]] == ["begin", "draft", "draft", "place", "send"]
    assert code_and_reason(service.answer(flow, "place", human_feedback="again", is_approve=True))[0] == 400


def more_drafts(service: ServedFlow, log: Path) -> Iterator[None]:
    flow = service.kickoff(log=str(log))
    for draft in ("Draft 1", "Draft 2"):
        eventually(lambda: service.reached(flow, "pending")["task_output"] == draft, draft)  # noqa: B023
        yield
        assert service.answer(flow, "check", outcome="again").ok
    eventually(lambda: service.reached(flow, "pending")["task_output"] == "Draft 3", "the third draft")
    assert service.answer(flow, "check", outcome="send").ok
    assert service.reached(flow, "completed", "error")["result"]["output"] == "Draft 3, sent"
    calls = [json.loads(line)["call"] for line in log.read_text().splitlines()]
    assert calls == ["begin", *["sift", "write_up", "check"] * 3, "post"]


def a_crew_inside(service: ServedFlow, log: Path) -> Iterator[None]:
    flow = service.kickoff(topic="ducks", log=str(log))
    asked = service.reached(flow, "pending", "error")
    assert (asked["task_id"], asked["outcomes"]) == ("research.writing", ["approve", "revise"])
    yield
    assert service.answer(flow, "research.writing", is_approve=False, human_feedback="shorter").ok
    eventually(lambda: "(shorter)" in service.reached(flow, "pending", "error")["task_output"], "the second draft")
    yield
    assert service.answer(flow, "research.writing", is_approve=True, human_feedback="").ok
    eventually(lambda: service.reached(flow, "pending", "error").get("task_id") == "place", "the Flow's own gate")
    assert service.client.status(flow)["task_output"] == "writing v2 (shorter) in round 1"
    calls = [json.loads(line)["call"] for line in log.read_text().splitlines()]
    assert calls == ["begin", "research", "writing", "writing"]


@pytest.mark.long
@pytest.mark.row("F3", "F4")
def test_live_questions_come_by_signed_webhooks_and_are_answered_once(
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
    log = service.service.command.log.read_text()
    assert question["response_token"] not in log
    assert SECRET not in log


@pytest.mark.long
@pytest.mark.row("F4")
def test_an_undelivered_question_is_sent_again_even_after_kill_9(
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


@pytest.fixture(scope="module")
def asked() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flows")


@pytest.fixture(scope="module")
def several(folder: Path, asked: Receiver) -> Iterator[Service]:
    """One service for the Flows that nobody kills, beside another crew."""
    crews = {"brief": f"{CREWS / 'flows.py'}:BriefingFlow", "count": f"{CREWS / 'flows.py'}:CountingFlow"}
    options = [part for name, crew in {**crews, "other": "demo"}.items() for part in ("--crew", f"{name}={crew}")]
    webhook = ("--flow-webhook", f"{asked.url}/asked", "--flow-webhook-secret", SECRET)
    service = Service(partial(Command, folder), *options, *webhook)
    yield service
    service.command.kill()


def test_the_page_and_the_terminal_offer_every_outcome(several: Service, folder: Path) -> None:
    service = ServedFlow(several, "brief")
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
    command = [sys.executable, "-m", "crew_service", "resume", flow]
    refused = subprocess.run([*command, "--approve"], cwd=folder, timeout=PATIENCE, capture_output=True, text=True)
    assert (refused.returncode, refused.stderr.rpartition(" --")[2]) == (1, "answer TEXT\n")
    assert subprocess.run([*command, "--answer", "the board"], cwd=folder, timeout=PATIENCE).returncode == 0
    assert service.reached(flow, "completed", "error")["result"]["output"] == "Draft 1 on ducks, sent to the board"


def test_a_kickoff_starts_from_the_state_of_an_earlier_execution(several: Service) -> None:
    service = ServedFlow(several, "count")
    first = service.kickoff(topic="ducks")
    service.reached(first, "pending")
    assert service.answer(first, "ask", human_feedback="", is_approve=True).ok, "yes is the one outcome that approves"
    assert service.reached(first, "completed", "error")["result"]["output"] == "ducks 2"
    answer = service.client.post("/kickoff", {"inputs": {}, "restoreFromStateId": first})
    assert service.reached(answer.json()["kickoff_id"], "pending", "error")["task_output"] == "ducks 3"


@pytest.mark.row("F4")
def test_a_questions_address_leads_to_its_crew_among_several(several: Service, asked: Receiver) -> None:
    client = ServedFlow(several, "brief").client
    kickoff_id = client.kickoff("ducks")

    def webhook() -> dict[str, Any] | None:
        return next((body for body in asked.bodies("/asked") if body["kickoff_id"] == kickoff_id), None)

    question = eventually(webhook, "the webhook")
    assert question["callback_url"].startswith(f"{client.url}/human_feedback_requests/{question['id']}/respond?")
    answer = requests.post(question["callback_url"], json={"feedback": "drop"}, timeout=PATIENCE)
    assert (answer.status_code, answer.json()["status"]) == (200, "accepted")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.row("S55")
def test_another_service_continues_from_a_killed_ones_newest_state(
    command: Start, postgresql: str, tmp_path: Path
) -> None:
    log, killed = tmp_path / "rounds", (4, 8)

    def start(name: str) -> Command:
        given = {"CREW_SERVICE_TOKEN": TOKEN, "CREW_SERVICE_DB": postgresql, "SERVICE": name}
        return command("--crew", f"{CREWS / 'kept.py'}:ChainFlow", environment=given)

    def calls() -> list[str]:
        return [json.loads(line)["call"] for line in log.read_text().splitlines()] if log.exists() else []

    def running(number: int) -> list[str] | None:
        began = f"{number} began in "
        return next((call.removeprefix(began).split(", ") for call in calls() if call.startswith(began)), None)

    for number in killed:
        Path(f"{log}-{number}").touch()
    services = {name: start(name) for name in ("first", "second")}
    kickoff = services["first"].client(TOKEN).post("/kickoff", {"inputs": {"log": str(log)}})
    kickoff_id = kickoff.json()["kickoff_id"]
    engine = create_engine(postgresql)
    for number in killed:
        victim, pid = eventually(lambda: running(number), f"round {number}")  # noqa: B023
        with engine.connect() as connection:
            sizes = connection.execute(text("SELECT length(state) FROM flow_states")).scalars().all()
            assert [1 << 20 < size < 2 << 20 for size in sizes] == [True]
            results = connection.execute(text("SELECT sum(length(task::text)) FROM results")).scalar()
            assert results < 100_000
        services.pop(victim).kill()
        eventually(lambda: not alive(int(pid)), "the end of its process")  # noqa: B023
        Path(f"{log}-{number}").unlink()
        services[f"after {number}"] = start(f"after {number}")
    [client, *_] = [service.client(TOKEN) for service in services.values()]
    page = ""
    for _ in range(10):
        page = Random(page).randbytes(1 << 20).hex()
    assert client.until(kickoff_id, "completed")["result"]["output"] == page[:20]
    rounds = Counter(call.partition(" in ")[0] for call in calls())
    assert rounds == {f"{number} ended": 1 for number in range(1, 11)} | {
        f"{number} began": 2 if number in killed else 1 for number in range(1, 11)
    }
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM flow_states")).scalar() == 0
    engine.dispose()
