"""Row S58: knowledge is embedded once, however many executions there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from crew_client import Command, eventually
from openai_server import OpenAI, environment

pytestmark = [pytest.mark.slow, pytest.mark.row("S58")]
TOKEN = "a-token-of-the-organization"


def test_s58_executions_at_once_and_later_find_the_knowledge_that_one_of_them_embedded(
    command: Callable[..., Command], tmp_path: Path
) -> None:
    server = OpenAI()
    given = {**environment(server), "CREWAI_STORAGE_DIR": str(tmp_path / "storage")}
    service = command("--token", TOKEN, "--crew", "knowing:crew", environment=given)
    client = service.client(TOKEN)

    def run(number: int) -> None:
        ids = [client.post("/kickoff", {"inputs": {}}).json()["kickoff_id"] for _ in range(number)]
        for some_id in ids:
            assert eventually(lambda: client.status(some_id)["status"] != "running", "the end")  # noqa: B023
            assert client.status(some_id)["status"] == "completed", client.status(some_id)

    run(3)
    run(1)
    embedded = [body["input"] for body in server.asked if "embeddings" in body["path"]]
    known = [text for texts in embedded for text in texts if "Ducks" in str(text) or "Geese" in str(text)]
    assert sorted(map(str, known)) == ["Ducks do not echo in November.", "Geese do."], embedded
    server.close()
