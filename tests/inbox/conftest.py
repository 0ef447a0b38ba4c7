"""The plugin's application on a real socket, before a real Airflow database with one DAG run that waits."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import requests
import uvicorn
from inbox_desk import Desk
from starlette.applications import Starlette

from airflow_crew_provider.inbox.plugin import URL_PREFIX, CrewInboxPlugin


@pytest.fixture(scope="session")
def database() -> None:
    """Airflow's own tables, in the home that all tests share."""
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture(scope="session")
def inbox_url(database: None) -> Iterator[str]:
    [mounted] = CrewInboxPlugin.fastapi_apps
    app = Starlette()
    app.mount(mounted["url_prefix"], mounted["app"])
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}{URL_PREFIX}"
        server.should_exit = True
        thread.join(10)


@pytest.fixture
def desk(inbox_url: str, request: pytest.FixtureRequest) -> Iterator[Desk]:
    """A DAG run whose kickoff has registered, seen from the service's side and from the database's."""
    with requests.Session() as session:
        session.trust_env = False
        yield Desk(inbox_url, session, long_ago())


def long_ago() -> Any:
    return datetime.now(UTC) - timedelta(minutes=1)
