"""The address of a deployed crew, and the content of its Airflow connection. Errors name the invalid field. No I/O."""

from __future__ import annotations

import base64
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote
from urllib.request import getproxies

from airflow_crew_provider import __version__
from airflow_crew_provider.api.addresses import base_url, browser_url, hosts, proxy_url, view_path
from airflow_crew_provider.api.endpoints import Call
from airflow_crew_provider.api.requests import header_name, header_value
from airflow_crew_provider.api.responses import Mask, masker
from airflow_crew_provider.exceptions import CrewError, CrewInvalidInput, CrewOutcomeUnknown, CrewProtocolError
from airflow_crew_provider.models import Json, shown

# --- the deployment ---


LARGEST_BODY = 16 * 1024 * 1024
SHORTEST_KEY = 8  # characters; a shorter header value is not masked
# Larger bodies are parsed in a thread, so that other triggers on the same loop can continue.
LARGE_BODY = 128 * 1024
MOST_REDIRECTS = 5
LEAST_RATE = 64 * 1024  # bytes of a file per second, on average


@dataclass(frozen=True)
class Deployment:
    """The address of a deployed crew, and how to reach it. Times are in seconds."""

    base_url: str
    token: str = field(default="", repr=False)
    timeout: float = 30.0
    kickoff_timeout: float = 180.0
    verify: bool | str = True
    proxy: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def total_timeout(self, call: Call[Any]) -> float:
        """Return the limit for one exchange; a file gets the time for it at the least rate."""
        sending = (call.upload.size if call.upload else call.streamed or 0) / LEAST_RATE
        return sending + (self.kickoff_timeout if call.starts_cold else self.timeout)

    def request_headers(self) -> dict[str, str]:
        """Return the headers for all requests; the connection's token overrides its extra headers."""
        own = {"Accept": "application/json", "User-Agent": f"airflow-crew-provider/{__version__}"}
        merged = {**own, **dict(self.headers)}
        if self.token:
            merged = {name: text for name, text in merged.items() if name.lower() != "authorization"}
            merged["Authorization"] = f"Bearer {self.token}"
        return merged

    @cached_property
    def mask(self) -> Mask:
        """The function that masks secrets in a string; created once, because many waits share a deployment."""
        return masker(self.secrets)

    @property
    def ca_file(self) -> str | None:
        """The file or folder of trusted certificates, if the connection or the environment names one."""
        if not isinstance(self.verify, bool):
            return self.verify
        named = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
        return named if self.verify else None

    @property
    def secrets(self) -> list[str]:
        """Strings to mask: the token, long parts of extra headers, which may be keys, and proxy credentials."""
        proxies = [self.proxy or "", *getproxies().values()]
        secrets = [each for _, value in self.headers for each in (value, *_tokens(value)) if len(each) >= SHORTEST_KEY]
        return [self.token, *secrets, *(each for proxy in proxies for each in _credentials(proxy))]


def _tokens(value: str) -> list[str]:
    """Return the parts of a header that may be tokens; masking words would garble the names of tasks and agents."""
    parts = re.split(r'[\s,;="]+', value)
    return [part for part in parts if len(part) >= 2 * SHORTEST_KEY or re.search("[0-9]", part)]


def _credentials(proxy: str) -> list[str]:
    """Return the forms in which a proxy URL's credential appears in the URL and in headers."""
    credentials = proxy.rpartition("@")[0].rpartition("://")[2]
    user, _, password = credentials.partition(":")
    sent = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode() if credentials else ""
    return [password or user, unquote(password or user), sent]  # too short a one is hidden in URLs anyway


def too_large(call: Call[Any]) -> CrewError:
    """Return the error for a body of more than `LARGEST_BODY` bytes."""
    message = f"{call.method} {call.path} returned more than {LARGEST_BODY // 1024 // 1024} MiB"
    if call.starts_something:
        return CrewOutcomeUnknown(f"{message}: it is unknown whether the service acted on it")
    return CrewProtocolError(message)


# --- the connection ---


CREW, FLOW = "crew", "flow"


@dataclass(frozen=True)
class CrewConnection:
    """The content of a connection: the crew's deployment, and the other settings.

    :param browser_url: the deployment's base URL for browsers, if it differs from that of `deployment`
    :param kind: `CREW` or `FLOW`; None if unknown
    :param flow_webhook_secret: secret the console signs Flow webhooks with
    :param callback_hosts: further hosts allowed to receive Flow answers
    """

    deployment: Deployment
    idempotency_keys: bool = False
    console_url: str | None = None
    browser_url: str | None = None
    inbox_url: str | None = None
    kind: str | None = None
    flow_webhook_secret: str | None = field(default=None, repr=False)
    callback_hosts: tuple[str, ...] = ()

    def page(self, path: str | None) -> str:
        """Return the URL of a page that the service has named; empty if it named none."""
        path = view_path(path)
        return f"{self.browser_url or self.deployment.base_url}{path}" if path else ""

    def link(self, kickoff_id: str, execution_id: str | None = None, view: str | None = None) -> str:
        """Return the URL of an execution's page: in the console, or at the service's path; empty if there is none."""
        if not self.console_url:
            return self.page(view)
        ids = {"{kickoff_id}": kickoff_id, "{execution_id}": execution_id or kickoff_id}
        url = self.console_url
        for placeholder, identifier in ids.items():
            url = url.replace(placeholder, quote(identifier, safe=""))
        return url


def read_connection(connection: Any) -> CrewConnection:
    """Read an Airflow connection.

    :raises CrewInvalidInput: a field is missing or invalid; the message names it and the connection
    """
    try:
        return _read(connection)
    except ValueError as error:
        problem = str(error)
    raise CrewInvalidInput(f"Connection {shown(connection.conn_id)}: {problem}")


def _read(connection: Any) -> CrewConnection:
    extra = _extra(connection)
    if extra.get("crew_webhook_secret") not in (None, "") and webhook_secret(extra) is None:
        raise ValueError(
            "Extra 'crew_webhook_secret' must be 32 to 100 letters, digits, - or _; the inbox accepts no others"
        )
    headers = _headers(extra.get("headers"))
    deployment = Deployment(
        base_url=base_url(connection.host, connection.port, connection.schema),
        token=_token(connection.password, headers),
        timeout=_seconds(extra, "timeout", 30.0),
        kickoff_timeout=_seconds(extra, "kickoff_timeout", 180.0),
        verify=_verify(extra.get("verify", True)),
        proxy=_proxy(extra),
        headers=tuple(headers.items()),
    )
    return CrewConnection(
        deployment,
        idempotency_keys=_boolean("idempotency_keys", extra.get("idempotency_keys", False)),
        console_url=_text(extra, "console_url"),
        browser_url=browser_url(_text(extra, "browser_url")),
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
        raise ValueError("Extra must be a JSON object")
    return extra


def _token(password: str | None, headers: dict[str, str]) -> str:
    token = re.sub(r"\A\s*bearer\s+", "", password or "", flags=re.IGNORECASE).strip()
    if not token and not any(name.lower() == "authorization" for name in headers):
        raise ValueError(
            "Password is empty; set it to the bearer token, which is on the crew's detail page in the console, "
            "on the Status tab"
        )
    return header_value("Password", token)


def _headers(value: Any) -> dict[str, str]:
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except ValueError:
            value = "?"
    value = value or {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError("Extra 'headers' must be an object of strings")
    names = [header_name("A name in Extra 'headers'", name) for name in value]
    return {name: header_value(f"Extra 'headers' {name!r}", value[name]) for name in names}


def _seconds(extra: Json, name: str, default: float) -> float:
    value = extra.get(name)
    if value in (None, ""):
        return default
    try:
        seconds = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        seconds = float("nan")
    if not 0 < seconds < float("inf"):
        raise ValueError(f"Extra {name!r} must be a number of seconds above 0")
    return seconds


def _boolean(name: str, value: Any) -> bool:
    word = str(value).strip().lower()
    if word in ("true", "1", "yes", "on"):
        return True
    if word in ("false", "0", "no", "off", "", "none"):
        return False
    raise ValueError(f"Extra {name!r} must be true or false")


def _proxy(extra: Json) -> str | None:
    proxy = _text(extra, "proxy")
    return proxy_url(proxy, "Extra 'proxy'") if proxy else None


def _kind(extra: Json) -> str | None:
    kind = (_text(extra, "kind") or "").lower() or None
    if kind in (CREW, FLOW, None):
        return kind
    raise ValueError(f"Extra 'kind' must be {CREW} or {FLOW}")


def _verify(value: Any) -> bool | str:
    """Return true, false, or the path of a CA file."""
    try:
        return True if value in (None, "") else _boolean("verify", value)
    except ValueError:
        if not os.path.exists(str(value)):
            raise ValueError("Extra 'verify' must be true, false or an existing CA file") from None
        return str(value)


def _text(extra: Json, name: str) -> str | None:
    value = extra.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"Extra {name!r} must be a string")
    return value.strip() or None if value else None


def flow_secret(extra: Json) -> str | None:
    """Return the secret for a Flow's webhooks in a connection's Extra; None if it is missing or not a string."""
    with suppress(ValueError):
        return _text(extra, "flow_webhook_secret")
    return None


# Long enough not to be guessed, and unchanged by URL quoting.
SECRET = re.compile("[A-Za-z0-9_-]{32,100}")


def webhook_secret(extra: Json) -> str | None:
    """Return the secret in a connection's Extra; None if it is missing or could be guessed."""
    secret: Any = extra.get("crew_webhook_secret")
    return secret if isinstance(secret, str) and SECRET.fullmatch(secret) else None
