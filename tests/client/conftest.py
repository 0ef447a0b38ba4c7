"""A client of the fault server that asks blocking or awaiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from faults.server import FaultServer

from airflow_crew_provider.client.client import Client
from airflow_crew_provider.client.deployment import Deployment

TOKEN = "tok/en+with=specials~0123456789"


@pytest.fixture
def no_proxy_variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return monkeypatch


@pytest.fixture(params=["blocking", "awaiting"])
def ask(request: pytest.FixtureRequest, server: FaultServer) -> Callable[..., Any]:
    """Perform a call on the path that is the parameter; further arguments are those of the deployment."""

    def ask(call: Any, within: float | None = None, **deployment: Any) -> Any:
        client = Client(Deployment(**{"base_url": server.url, "token": TOKEN, "timeout": 5.0, **deployment}))
        if request.param == "blocking":
            return client.send(call, timeout=within)
        return asyncio.run(client.asend(call, timeout=within))

    return ask
