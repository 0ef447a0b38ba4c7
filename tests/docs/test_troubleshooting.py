"""`docs/troubleshooting.md` has an entry for each message that the package can end a task with."""

from __future__ import annotations

import re
from pathlib import Path

from messages import messages

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
