"""The tab's application before a real Airflow database, with Airflow's own permissions and a service that may fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from viewed_run import TOKEN, Run, client_of


@pytest.fixture
def dag_run(database: None) -> Run:
    return Run()


@pytest.fixture
def app(database: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FastAPI]:
    """The plugin's application, mounted as Airflow mounts it, with an auth manager that knows four users."""
    monkeypatch.setenv("AIRFLOW__CORE__AUTH_MANAGER", "permissions.TestAuthManager")
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "a" * 64)
    from airflow.api_fastapi.app import create_auth_manager, purge_cached_app

    from airflow_crew_provider.view.app import Knowledge, view_app
    from airflow_crew_provider.view.plugin import URL_PREFIX

    create_auth_manager()
    app = FastAPI()
    app.mount(URL_PREFIX, view_app(Knowledge(pause=0.3)))
    yield app
    purge_cached_app()


@pytest.fixture
def client(app: FastAPI) -> TestClient:
    return client_of(app)


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the connection lead somewhere."""

    def connect(url: str, token: str = TOKEN, **extra: Any) -> None:
        value = {"conn_type": "crew", "host": url, "password": token, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_CREW_DEFAULT", json.dumps(value))

    return connect
