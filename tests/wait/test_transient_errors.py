"""Which failures of a status request are transient, each by its kind."""

from __future__ import annotations

import pytest

from airflow_crew_provider.exceptions import (
    CrewApiError,
    CrewBadRequest,
    CrewConnectionError,
    CrewError,
    CrewInvalidInput,
    CrewNotFound,
    CrewOutcomeUnknown,
    CrewProtocolError,
    CrewRateLimited,
    CrewServerError,
    CrewUnauthorized,
    CrewWebPage,
)
from airflow_crew_provider.wait.watch import is_transient

WHERE = ("GET", "/status/k-1", "no")


@pytest.mark.parametrize(
    "error",
    [
        CrewConnectionError("no"),
        *(CrewApiError(status, *WHERE) for status in (408, 425)),
        *(CrewServerError(status, *WHERE) for status in (500, 503)),
        CrewRateLimited(429, *WHERE),
        CrewProtocolError("no"),
        CrewWebPage("no"),
        CrewOutcomeUnknown("no"),
    ],
    ids=repr,
)
def test_what_is_transient(error: CrewError) -> None:
    assert is_transient(error) is True


@pytest.mark.parametrize(
    "error",
    [
        CrewConnectionError("no", permanent=True),
        *(CrewApiError(status, *WHERE) for status in (405, 409, 410, 426)),
        CrewBadRequest(400, *WHERE),
        CrewUnauthorized(401, *WHERE),
        CrewNotFound(404, *WHERE),
        CrewInvalidInput("no"),
    ],
    ids=repr,
)
def test_what_is_permanent(error: CrewError) -> None:
    assert is_transient(error) is False
