"""The connections by which the inbox knows who may report what.

It runs in the API server, which looks connections up where Airflow keeps them.
"""

from __future__ import annotations

import json
from typing import Any

from airflow.models.connection import Connection

from airflow_crew_provider.models import Json


def connection_of(crew_conn_id: str) -> tuple[Any, Json] | None:
    """Return a connection of type `crew` and its Extra; None without one that can be read."""
    try:
        found = Connection.get_connection_from_secrets(crew_conn_id)
        extra = json.loads(found.extra) if found.extra else {}
    except Exception:  # whatever is wrong with it is not disclosed to the sender
        return None
    return (found, extra) if found.conn_type == "crew" and isinstance(extra, dict) else None
