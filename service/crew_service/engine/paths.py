"""URL paths of a crew, and whole numbers in URLs and forms."""

from __future__ import annotations

import re
from urllib.parse import urlencode

ROOT = ""  # the name of a crew served alone, at the root
BASE = "/crews"
MOST_NUMBER = 2**31 - 1  # the largest that a column for whole numbers holds
WHOLE = re.compile("0|[1-9][0-9]{0,9}")


def view(execution_id: str) -> str:
    """Return the path of an execution's page, below its crew's path."""
    return f"/view?id={execution_id}"


def file(execution_id: str, name: str, version: int, direction: str) -> str:
    """Return the path at which a browser gets a file of an execution, below its crew's path."""
    query = {"id": execution_id, "name": name, "version": version, "direction": direction}
    return f"/file?{urlencode(query, errors='replace')}"


def of_crew(name: str) -> str:
    """Return the path prefix of a crew's API; empty for the root."""
    return f"{BASE}/{name}" if name else ""


def whole(text: str, *, least: int = 0, most: int = MOST_NUMBER) -> int | None:
    """Return the whole number that a text is, in ASCII digits; None if it is none, or out of bounds."""
    return int(text) if WHOLE.fullmatch(text) and least <= int(text) <= most else None
