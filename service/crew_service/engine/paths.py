"""Where a crew is served."""

from __future__ import annotations

ROOT = ""  # the name of a crew that is served alone, at the root
BASE = "/crews"


def view(execution_id: str) -> str:
    """The path of an execution's page, below that of its crew."""
    return f"/view?id={execution_id}"


def of_crew(name: str) -> str:
    """The path prefix of a crew's API; empty for the root."""
    return f"{BASE}/{name}" if name else ""
