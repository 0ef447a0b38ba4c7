"""A kit for users' own DAG tests: pytest fixtures that put a scripted crew behind a connection.

In ``conftest.py``: ``pytest_plugins = ["airflow_crew_provider.testing"]``. Needs the extra ``service``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from airflow_crew_provider.models import Json
from airflow_crew_provider.testing.scenarios import recorded, scenario

try:
    from crew_service.local import LocalService, running_service
except ModuleNotFoundError as error:
    if error.name != "crew_service":
        raise
    raise ModuleNotFoundError(
        "airflow_crew_provider.testing starts the crew service, which is not installed; "
        "install it with: pip install 'airflow-crew-provider[service]'",
        name=error.name,
    ) from None

__all__ = ["LocalService", "crew_service", "recorded", "running_service", "scenario", "scripted_crew"]


@pytest.fixture
def scripted_crew(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LocalService]]:
    """Start a real crew service with a scenario, and point a connection at it: ``scripted_crew(scenario)``.

    Takes a scenario (None for the demo crew), and optionally ``crew_conn_id``, ``dialect`` (``spec`` or ``live``),
    ``extra`` of the connection, and settings of the service. Everything stops with the test.
    """
    with ExitStack() as services:

        def start(
            script: Json | None = None,
            *,
            crew_conn_id: str = "crew_default",
            dialect: str = "spec",
            extra: Json | None = None,
            **settings: Any,
        ) -> LocalService:
            service = services.enter_context(running_service(scenario=script, dialect=dialect, **settings))
            connection = {"conn_type": "crew", "host": service.url, "password": service.token, "extra": extra or {}}
            monkeypatch.setenv(f"AIRFLOW_CONN_{crew_conn_id.upper()}", json.dumps(connection))
            return service

        yield start


@pytest.fixture
def crew_service(scripted_crew: Callable[..., LocalService]) -> LocalService:
    """The demo crew behind the connection ``crew_default``."""
    return scripted_crew()
