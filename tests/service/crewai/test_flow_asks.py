"""A Flow's method asks people with `Flow.ask`, and goes on in another process with what they said."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from crew_client import Client, Command, Receiver, eventually
from engine_stub import CREWS
from openai_server import OpenAI, environment
from sampling import sampled
from test_crewai_asks import answer, asked
from test_crewai_journal import TOKEN, Case

pytestmark = pytest.mark.slow
FLOWS = CREWS / "interviews.py"
KINDS = ("Interview", "Awaited", "Nested", "Catching")
QUESTIONS = ("Which name?", "Which colour?", "Which name?")
POINTS = (1, 1.5, 2, 2.5, 3, 3.5, 99)


class Asking(Case):
    def __init__(self, client: Client, folder: Path, name: str, *, dies_at: float = 99, **inputs: Any) -> None:
        self.name, self.client, self.log = name, client, folder / f"{name}.log"
        kill = folder / f"{name}.kill"
        kill.write_text(str(dies_at))
        more = {"humanInputWebhook": {"url": inputs.pop("webhook")}} if "webhook" in inputs else {}
        body = {"inputs": {"case": name, "log": str(self.log), "kill": str(kill), **inputs}, **more}
        self.id = client.post("/kickoff", body).json()["kickoff_id"]


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAI]:
    server = OpenAI("Some notes.")
    yield server
    server.close()


def served(*kinds: str) -> list[str]:
    return ["--token", TOKEN, *(part for kind in kinds for part in ("--crew", f"{kind.lower()}={FLOWS}:{kind}"))]


@pytest.fixture(scope="module")
def service(server: OpenAI, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    folder = tmp_path_factory.mktemp("interviews")
    service = Command(folder, *served(*KINDS, "Own", "Chat"), environment=environment(server))
    yield service
    service.kill()


@pytest.mark.row("S1")
@pytest.mark.parametrize("kind", sampled(KINDS, len(KINDS)))
def test_questions_are_answered_and_calls_made_once_despite_any_kill(
    service: Command, server: OpenAI, tmp_path: Path, kind: str
) -> None:
    client = service.client(TOKEN, kind.lower())
    points = POINTS if kind in KINDS[:2] else (2, 2.5)
    cases = [Asking(client, tmp_path, f"{kind}-{point}", dies_at=point) for point in points]
    method = "begin" if kind == "Nested" else "interview"
    for number, question in enumerate(QUESTIONS, 1):
        for case in cases:
            status = asked(case, number)
            assert (status["question"], status["task_id"]) == (question, f"{method}#{number}")
            assert status["outcomes"] == ["answer"]
            assert status["ask"] == {
                "kind": "question",
                "agent": None,
                "tool": None,
                "arguments": None,
                "number": number,
                "earlier_calls": 0,
                "deadline": None,
                "metadata": {"number": number, "notes": "Some notes.", "key": "***"},
            }
            assert answer(case, status, "answer", f"answer {number}").ok
    for case in cases:
        ended = case.ended()
        assert ended["status"] == "completed", ended
        assert ended["result"]["output"] == "They said answer 1 and answer 2 and answer 3."
        assert case.logged("answers") == [["answer 1", "answer 2", "answer 3"]]
        assert case.models(server) == 3, case.name
        rounds = client.get(f"/executions/{case.id}").json()["rounds"]
        assert [(each["question"], each["human_feedback"]) for each in rounds] == [
            (question, f"answer {number}") for number, question in enumerate(QUESTIONS, 1)
        ]


@pytest.mark.long
@pytest.mark.row("S1")
def test_a_missed_deadline_counts_as_no_answer_even_after_downtime(
    command: Callable[..., Command], server: OpenAI, tmp_path: Path, receiver: Receiver
) -> None:
    given = served("Interview")
    first = command(*given, environment=environment(server))
    case = Asking(first.client(TOKEN, "interview"), tmp_path, "late", timeout=3, webhook=f"{receiver.url}/asked")
    status = asked(case)
    deadline = datetime.fromisoformat(status["ask"]["deadline"])
    assert 0 < deadline.timestamp() - time.time() <= 3
    eventually(lambda: receiver.bodies("/asked"), "the webhook")
    assert receiver.bodies("/asked")[0]["ask"] == status["ask"]
    first.kill()
    eventually(lambda: datetime.now(UTC) > deadline, "the deadline")
    case.client = command(*given, environment=environment(server)).client(TOKEN, "interview")
    second = asked(case, 2)
    late = answer(case, status, "answer", "Ann")
    assert (late.status_code, late.json()["detail"]) == (
        400,
        "The execution is not pending human feedback for this task",
    )
    assert answer(case, second, "answer", "red").ok
    assert case.ended()["result"]["output"] == "They said None and red and None."
    found = case.client.get(f"/executions/{case.id}").json()
    assert [(each["by"], each["outcome"]) for each in found["rounds"]] == [
        ("deadline", "expired"),
        ("organization", "answer"),
        ("deadline", "expired"),
    ]


def test_an_empty_answer_is_refused(service: Command, tmp_path: Path) -> None:
    case = Asking(service.client(TOKEN, "interview"), tmp_path, "empty")
    refused = answer(case, asked(case), "answer", " ")
    assert (refused.status_code, refused.json()["detail"]) == (
        400,
        "The answer is empty; this question asks for text.",
    )
    assert case.client.post(f"/stop/{case.id}").ok


def test_a_custom_input_provider_is_kept_and_announced_at_start(service: Command, tmp_path: Path) -> None:
    case = Asking(service.client(TOKEN, "own"), tmp_path, "own")
    assert case.ended()["status"] == "completed"
    assert case.logged("answers") == [["ours"] * 3]
    assert "the Flow has an input_provider of its own, so its `ask` does not reach" in service.log.read_text()


def test_a_conversation_is_refused_in_words(service: Command, server: OpenAI, tmp_path: Path) -> None:
    chat = service.client(TOKEN, "chat")
    before = len(server.asked)
    kickoff_id = chat.post("/kickoff", {"inputs": {}}).json()["kickoff_id"]
    assert "This is a conversational Flow" in chat.until(kickoff_id, "error")["error"]
    assert len(server.asked) == before


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--dialect", "live"], "The Flow asks a person (Which name?), and nobody can be asked here"),
        (["--no-journal"], "Flow.ask() needs the crew service's journal, but this call has none"),
    ],
)
def test_where_nobody_can_be_asked_it_fails_in_words(
    command: Callable[..., Command], server: OpenAI, tmp_path: Path, options: list[str], reason: str
) -> None:
    client = command(*served("Interview"), *options, environment=environment(server)).client(TOKEN, "interview")
    case = Asking(client, tmp_path, "nobody")

    def ended() -> Any:
        status = client.status(case.id)
        return status if "error" in str(status).lower() or "FAILED" in str(status) else None

    assert reason in str(eventually(ended, "the end"))
