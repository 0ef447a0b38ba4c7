"""URL paths of a crew."""

from __future__ import annotations

ROOT = ""  # the name of a crew served alone, at the root
BASE = "/crews"


def view(execution_id: str) -> str:
    """Return the path of an execution's page, below its crew's path."""
    return f"/view?id={execution_id}"


def of_crew(name: str) -> str:
    """Return the path prefix of a crew's API; empty for the root."""
    return f"{BASE}/{name}" if name else ""
