"""The plugin's application on a real socket, before a real Airflow database with one DAG run that waits."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import requests
import uvicorn
from cryptography.fernet import Fernet
from registered_run import Inbox, RegisteredRun, read_key_anew
from starlette.applications import Starlette

from airflow_crew_provider.inbox.plugin import URL_PREFIX, CrewInboxPlugin
from scripts.stack.waiting import PATIENCE


@pytest.fixture(scope="session")
def inbox(database: None) -> Iterator[Inbox]:
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
        yield Inbox(f"http://127.0.0.1:{listener.getsockname()[1]}{URL_PREFIX}", server)
        server.should_exit = True
        thread.join(PATIENCE)


@pytest.fixture
def dag_run(inbox: Inbox) -> Iterator[RegisteredRun]:
    """A DAG run whose kickoff has registered, seen from the service's side and from the database's."""
    with requests.Session() as session:
        session.trust_env = False
        yield RegisteredRun(inbox, session)


@pytest.fixture
def encrypted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give Airflow a Fernet key."""
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", Fernet.generate_key().decode())
    read_key_anew()
    yield
    monkeypatch.undo()
    read_key_anew()
