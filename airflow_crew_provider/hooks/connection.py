"""An Airflow connection of type `crew`, read into values. An invalid field is refused by its name."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from typing import Any

from airflow_crew_provider.client import Deployment, check_header
from airflow_crew_provider.core.addresses import base_url, hosts
from airflow_crew_provider.core.crew_assets import webhook_secret
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Json

CREW, FLOW = "crew", "flow"


@dataclass(frozen=True)
class CrewConnection:
    """The content of a connection: where the crew is deployed, and what else is known of it.

    :param kind: `CREW` or `FLOW`; None if unknown
    :param flow_webhook_secret: by which the console signs the webhooks of a Flow
    :param callback_hosts: to which, beside the Host, answers to a Flow may be sent
    """

    deployment: Deployment
    idempotency_keys: bool = False
    console_url: str | None = None
    inbox_url: str | None = None
    kind: str | None = None
    flow_webhook_secret: str | None = field(default=None, repr=False)
    callback_hosts: tuple[str, ...] = ()


def read_connection(connection: Any) -> CrewConnection:
    """Read an Airflow connection.

    :raises CrewInvalidInput: naming the connection and the field that is missing or cannot be read
    """
    try:
        return _read(connection)
    except ValueError as error:
        problem = str(error)
    raise CrewInvalidInput(f"Connection {connection.conn_id!r}: {problem}")


def _read(connection: Any) -> CrewConnection:
    extra = _extra(connection)
    if extra.get("crew_webhook_secret") not in (None, "") and webhook_secret(extra) is None:
        raise ValueError(
            "Extra 'crew_webhook_secret' is not 32 to 100 letters, digits, - and _; the inbox takes no other"
        )
    headers = _headers(extra.get("headers"))
    deployment = Deployment(
        base_url=base_url(connection.host, connection.port, connection.schema),
        token=_token(connection.password, headers),
        timeout=_seconds(extra, "timeout", 30.0),
        kickoff_timeout=_seconds(extra, "kickoff_timeout", 180.0),
        verify=_verify(extra.get("verify", True)),
        proxy=_text(extra, "proxy"),
        headers=tuple(headers.items()),
    )
    return CrewConnection(
        deployment,
        idempotency_keys=_boolean("idempotency_keys", extra.get("idempotency_keys", False)),
        console_url=_text(extra, "console_url"),
        inbox_url=_text(extra, "inbox_url"),
        kind=_kind(extra),
        flow_webhook_secret=_text(extra, "flow_webhook_secret"),
        callback_hosts=hosts(extra.get("callback_hosts")),
    )


def _extra(connection: Any) -> Json:
    text = connection.extra
    try:
        extra = json.loads(text) if text else {}
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise ValueError("Extra is not a JSON object")
    return extra


def _token(password: str | None, headers: dict[str, str]) -> str:
    token = re.sub(r"\A\s*bearer\s+", "", password or "", flags=re.IGNORECASE).strip()
    if not token and not any(name.lower() == "authorization" for name in headers):
        raise ValueError(
            "Password is empty; it takes the bearer token, which is on the crew's detail page in the console, "
            "on the Status tab"
        )
    return check_header("Password", token)


def _headers(value: Any) -> dict[str, str]:
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except ValueError:
            value = "?"
    value = value or {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError("Extra 'headers' is not an object of texts")
    return {name: check_header(f"Extra 'headers' {name!r}", text) for name, text in value.items()}


def _seconds(extra: Json, name: str, default: float) -> float:
    value = extra.get(name)
    if value in (None, ""):
        return default
    try:
        seconds = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        seconds = float("nan")
    if not 0 < seconds < float("inf"):
        raise ValueError(f"Extra {name!r} is not a number of seconds above 0")
    return seconds


def _boolean(name: str, value: Any) -> bool:
    word = str(value).strip().lower()
    if word in ("true", "1", "yes", "on"):
        return True
    if word in ("false", "0", "no", "off", "", "none"):
        return False
    raise ValueError(f"Extra {name!r} is neither true nor false")


def _kind(extra: Json) -> str | None:
    kind = (_text(extra, "kind") or "").lower() or None
    if kind in (CREW, FLOW, None):
        return kind
    raise ValueError(f"Extra 'kind' is neither {CREW} nor {FLOW}")


def _verify(value: Any) -> bool | str:
    """Return true, false, or the path of a CA file."""
    try:
        return True if value in (None, "") else _boolean("verify", value)
    except ValueError:
        if not os.path.exists(str(value)):
            raise ValueError("Extra 'verify' is neither true, false nor a file of certificates that exists") from None
        return str(value)


def _text(extra: Json, name: str) -> str | None:
    value = extra.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"Extra {name!r} is not a text")
    return value.strip() or None if value else None
