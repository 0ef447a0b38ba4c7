"""The part of Airflow's public REST API, version 2, that the audit reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import requests

TIMEOUT = 60
PAGE = 100


class AuditError(Exception):
    """The decisions cannot be read; the message gives the reason and never shows a credential."""


class Bearer(requests.auth.AuthBase):
    """A bearer token that a netrc file cannot override and that redirects do not leak to another host."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class AirflowApi:
    """Read access to one Airflow instance.

    :param url: URL of its web server, e.g. ``https://airflow.example.com``
    :param token: token for its API
    """

    def __init__(self, url: str, token: str) -> None:
        self._base = f"{url.rstrip('/')}/api/v2"
        self._session = requests.Session()
        self._session.auth = Bearer(token)

    @classmethod
    def logged_in(cls, url: str, user: str, password: str) -> AirflowApi:
        """Exchange a user's password for a token."""
        answer = _perform(requests.Session(), "POST", f"{url.rstrip('/')}/auth/token", (user, password))
        token = answer.get("access_token") if isinstance(answer, dict) else None
        if not isinstance(token, str):
            raise AuditError("Airflow's /auth/token returned no access_token; is this the URL of Airflow 3?")
        return cls(url, token)

    def get(self, *segments: str, **params: Any) -> Any:
        """Read one resource; None if it does not exist."""
        path = "/".join(quote(segment, safe="~") for segment in segments)
        return _perform(self._session, "GET", f"{self._base}/{path}", params=params)

    def pages(self, key: str, *segments: str, **params: Any) -> Iterator[dict[str, Any]]:
        """Yield all items of a list, page by page."""
        offset = 0
        while True:
            page = self.get(*segments, limit=PAGE, offset=offset, **params)
            if page is None:
                raise AuditError(f"Airflow has no resource {'/'.join(segments)}")
            yield from page[key]
            offset += PAGE
            if offset >= page["total_entries"]:
                return


def _perform(
    session: requests.Session,
    method: str,
    url: str,
    login: tuple[str, str] | None = None,
    params: dict[str, Any] | None = None,
) -> Any:
    body = {"username": login[0], "password": login[1]} if login else None
    try:
        answer = session.request(method, url, json=body, params=params, timeout=TIMEOUT, allow_redirects=False)
        if answer.status_code == 404 and isinstance(answer.json(), dict):  # a gateway's page proves nothing
            return None
        if answer.status_code in (401, 403):
            raise AuditError(f"Airflow refused the credentials or access ({answer.status_code}) at {shown(url)}")
        if not answer.ok or answer.is_redirect:
            raise AuditError(f"Airflow returned {answer.status_code} for {shown(url)}")
        return answer.json()
    except (requests.RequestException, ValueError) as error:  # ValueError: invalid JSON, or a URL that cannot be parsed
        raise AuditError(f"Airflow at {shown(url)}: {type(error).__name__}") from None


def shown(url: str) -> str:
    """Return a URL without its user name and password."""
    return re.sub(r"//.*@", "//", url)
