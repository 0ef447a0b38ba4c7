"""Where a crew is deployed, and what every exchange with it keeps to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from airflow_crew_provider import __version__
from airflow_crew_provider.core.endpoints import Call
from airflow_crew_provider.core.responses import Mask, masker
from airflow_crew_provider.exceptions import CrewError, CrewInvalidInput, CrewOutcomeUnknown, CrewProtocolError

LARGEST_BODY = 16 * 1024 * 1024
# Above this a body is read in a thread, so that other triggers of the same loop go on meanwhile.
LARGE_BODY = 128 * 1024
MOST_REDIRECTS = 5


@dataclass(frozen=True)
class Deployment:
    """Where a crew is deployed, and how to reach it. Times are in seconds."""

    base_url: str
    token: str = field(default="", repr=False)
    timeout: float = 30.0
    kickoff_timeout: float = 180.0
    verify: bool | str = True
    proxy: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def total_timeout(self, call: Call[Any]) -> float:
        """Return the limit of one exchange: kickoff and resume may meet a cold start."""
        return self.kickoff_timeout if call.path in ("/kickoff", "/resume", "/resume_feedback") else self.timeout

    def request_headers(self) -> dict[str, str]:
        """Return the headers of every request; the connection's token wins over its extra headers."""
        own = {"Accept": "application/json", "User-Agent": f"airflow-crew-provider/{__version__}"}
        merged = {**own, **dict(self.headers)}
        if self.token:
            merged = {name: text for name, text in merged.items() if name.lower() != "authorization"}
            merged["Authorization"] = f"Bearer {self.token}"
        return merged

    @cached_property
    def mask(self) -> Mask:
        """What replaces the secrets in a text; made once, since many waits share a deployment."""
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
        """What must not be shown: the token, and long values of extra headers, which may be keys."""
        of_proxy = [self.proxy, urlsplit(self.proxy).password or ""] if self.proxy else []
        return [self.token, *(value for _, value in self.headers if len(value) >= 8), *of_proxy]


def too_large(call: Call[Any]) -> CrewError:
    """Return the error for a body of more than `LARGEST_BODY` bytes."""
    said = f"{call.method} {call.path} was answered with more than {LARGEST_BODY // 1024 // 1024} MiB"
    if call.starts_something:
        return CrewOutcomeUnknown(f"{said}: whether the service acted on it is unknown")
    return CrewProtocolError(said)


def lower_names(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers with their names in lower case."""
    return {name.lower(): value for name, value in headers.items()}


def check_header(name: str, value: str) -> str:
    """Return a header's value if it can be sent; an error of the HTTP library would show it."""
    if value.isascii() and value.isprintable():
        return value
    raise CrewInvalidInput(f"{name} has characters that no HTTP header can carry; nothing was sent")
