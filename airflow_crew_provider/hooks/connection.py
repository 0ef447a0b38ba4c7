"""An Airflow connection of type `crew`, read into values. A field that cannot be meant is refused by its name."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit, urlunsplit

from airflow_crew_provider.client import Deployment, check_header
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Json


@dataclass(frozen=True)
class CrewConnection:
    """What a connection says: where the crew is deployed, and what else is known of it."""

    deployment: Deployment
    idempotency_keys: bool = False
    console_url: str | None = None
    inbox_url: str | None = None


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
    )


def base_url(host: str | None, port: int | None, schema: str | None) -> str:
    """Return the base URL without a trailing slash; a missing scheme means https, a path is kept."""
    if not host or not host.strip():
        raise ValueError("Host is empty; it takes the base URL of the deployed crew")
    host = host.strip()
    if "://" not in host:
        bare_ipv6 = host.count(":") > 1 and not host.startswith("[")
        host = f"{schema or 'https'}://{f'[{host}]' if bare_ipv6 else host}"
    parts = urlsplit(host)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("Host (with Schema) is not an http or https address")
    if "@" in parts.netloc:
        raise ValueError("Host carries a credential; the token belongs into Password")
    if parts.query or parts.fragment:
        raise ValueError("Host has a query or a fragment; it takes the base URL alone")
    netloc = parts.netloc if _port(parts) or not port else f"{parts.netloc}:{port}"
    return urlunsplit((parts.scheme, netloc, quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~"), "", ""))


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port
    except ValueError:  # whose text shows what stands there
        problem = "Host has a port that is not a number up to 65535"
    raise ValueError(problem)


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
            "Password is empty; it takes the bearer token, which stands on the crew's detail page in the console, "
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
