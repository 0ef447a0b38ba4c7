"""URL paths of a crew."""

from __future__ import annotations

from urllib.parse import urlencode

ROOT = ""  # the name of a crew served alone, at the root
BASE = "/crews"


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
