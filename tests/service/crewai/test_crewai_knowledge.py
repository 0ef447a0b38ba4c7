"""Row S58: knowledge is embedded once, however many executions there are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crew_client import Client, Command, eventually
from openai_server import OpenAI, environment

from scripts.stack.waiting import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.row("S58")]
TOKEN = "a-token-of-the-organization"


@pytest.fixture
def server() -> Iterator[OpenAI]:
    server = OpenAI()
    yield server
    server.close()


@pytest.fixture
def serve_crew(command: Callable[..., Command], server: OpenAI, tmp_path: Path) -> Callable[[str], Client]:
    given = {**environment(server), "CREWAI_STORAGE_DIR": str(tmp_path / "storage"), "MARKERS": str(tmp_path)}
    return lambda name: command("--token", TOKEN, "--crew", f"knowing:{name}", environment=given).client(TOKEN)


def start(client: Client) -> str:
    return str(client.post("/kickoff", {"inputs": {}}).json()["kickoff_id"])


def ended(client: Client, number: int) -> list[dict[str, Any]]:
    """Start that many executions at once, and return their last status."""

    def end(some_id: str) -> dict[str, Any] | None:
        status = client.status(some_id)
        return status if status["status"] in ("completed", "error") else None

    ids = [start(client) for _ in range(number)]
    return [eventually(lambda: end(some_id), "the end") for some_id in ids]  # noqa: B023


def embedded(server: OpenAI) -> list[str]:
    """Return the knowledge for which embeddings were requested."""
    texts = [str(text) for body in server.asked if "embeddings" in body["path"] for text in body["input"]]
    return sorted(text for text in texts if "Ducks" in text or "Geese" in text)


@pytest.mark.long
def test_concurrent_and_later_executions_share_knowledge_embedded_once(
    serve_crew: Callable[[str], Client], server: OpenAI
) -> None:
    client = serve_crew("crew")
    for number in (3, 1):
        for status in ended(client, number):
            assert status["status"] == "completed", status
    assert embedded(server) == ["Ducks do not echo in November.", "Geese do."]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "reason"),
    [("crew", "Error code: 500 - {'error': {'message': 'overloaded'}}"), ("with_own_embedder", "out of order")],
)
def test_failed_knowledge_embedding_ends_executions_and_the_next_retries(
    serve_crew: Callable[[str], Client], server: OpenAI, tmp_path: Path, name: str, reason: str
) -> None:
    server.refuses = lambda body: "input" in body
    (tmp_path / "fails").touch()
    client = serve_crew(name)
    for status in ended(client, 3):
        assert (status["status"], reason in status.get("error", "")) == ("error", True), status
    server.refuses = lambda body: False
    (tmp_path / "fails").unlink()
    server.asked.clear()
    for status in ended(client, 2):
        assert status["status"] == "completed", status
    known = ["Ducks do not echo in November.", "Geese do."]
    assert embedded(server) == (known if name == "crew" else [])


@pytest.mark.long
def test_nobody_waits_for_a_process_that_an_embedder_leaves_behind(
    serve_crew: Callable[[str], Client], server: OpenAI, tmp_path: Path
) -> None:
    """It inherits the lock file, and lives as long as the execution."""
    may_answer, chats = threading.Event(), []

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        chats.append(body)
        if len(chats) == 1:
            may_answer.wait(PATIENCE)
        return {"role": "assistant", "content": "All that there is to say."}

    server.script = answer
    client = serve_crew("with_own_embedder")
    (tmp_path / "helper").touch()
    first = start(client)
    eventually(lambda: chats, "the first execution's chat")
    assert not (tmp_path / "helper").exists()
    [second] = ended(client, 1)
    assert (second["status"], client.status(first)["status"]) == ("completed", "running")
    may_answer.set()
    client.until(first, "completed")


@pytest.mark.row("S58", "S50")
def test_a_lock_in_crewais_storage_holds_against_other_executions(
    serve_crew: Callable[[str], Client], tmp_path: Path
) -> None:
    """CrewAI keeps its locks with temporary files, for which each process has a folder of its own."""
    client = serve_crew("holding_a_lock")
    first = start(client)
    eventually((tmp_path / "held").exists, "the lock")
    [second] = ended(client, 1)
    assert (second["status"], "Failed to acquire lock" in second.get("error", "")) == ("error", True), second
    (tmp_path / "release").touch()
    client.until(first, "completed")
