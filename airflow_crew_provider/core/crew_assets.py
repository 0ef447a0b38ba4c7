"""The asset that a connection's crew stands for, and the secret by which its webhook is known. Pure."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from airflow_crew_provider.models import Json

# Long enough not to be guessed, and the same in a URL as in the connection.
SECRET = re.compile("[A-Za-z0-9_-]{32,100}")


def completed_asset(crew_conn_id: str) -> str:
    """Return the URI of the asset that changes when an execution is completed."""
    return f"crew://{quote(crew_conn_id, safe='')}/completed"


def webhook_secret(extra: Json) -> str | None:
    """Return the secret of a connection's Extra; None if there is none, or one that could be guessed."""
    given: Any = extra.get("crew_webhook_secret")
    return given if isinstance(given, str) and SECRET.fullmatch(given) else None
