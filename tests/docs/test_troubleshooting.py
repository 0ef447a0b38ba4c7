"""`docs/troubleshooting.md` has an entry for each message that the package can end a task with."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path

import pytest
from messages import messages

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.client.client import Client
from airflow_crew_provider.client.deployment import Deployment
from airflow_crew_provider.exceptions import CrewConnectionError

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text("utf-8")
FOUND = messages()


def plain(text: str) -> str:
    return " ".join(text.replace("`", "").replace("\\", "").split()).lower()


def test_every_message_has_its_entry() -> None:
    page = plain(PAGE)
    missing = [f"{place}: {message}" for message, place in FOUND.items() if plain(message) not in page]
    assert missing == [], "docs/troubleshooting.md lacks these messages"


def test_the_messages_are_found() -> None:
    assert len(FOUND) > 80
    assert {"Extra must be a JSON object", "A retry of this task sends the kickoff again"} <= set(FOUND)


def test_every_entry_says_what_to_do() -> None:
    for row in re.findall(r"^\|(.*)\|$", PAGE, re.MULTILINE):
        cells = [cell.strip() for cell in row.split("|")]
        assert len(cells) == 3, row
        assert all(cells), row


@pytest.mark.parametrize("blocking", [True, False], ids=["worker", "triggerer"])
def test_the_troubleshooting_page_has_the_error_of_an_unstarted_service(blocking: bool) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = Client(Deployment(f"http://127.0.0.1:{unused.getsockname()[1]}", token="a-bearer-token"))
        with pytest.raises(CrewConnectionError) as error:
            client.send(endpoints.inputs()) if blocking else asyncio.run(client.asend(endpoints.inputs()))
    reason = str(error.value).partition("] ")[2]
    words = re.split(r"[;(]", reason)[0].strip()  # without the address
    assert words in ("Connection refused", "Connect call failed")
    assert f"`{words}`" in PAGE
