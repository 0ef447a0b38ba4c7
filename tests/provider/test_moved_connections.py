"""A connection that is edited while other waits hold the old one: each wait ends where it points by now."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from faults.dialects import SPEC
from faults.server import FaultServer
from faults.wire import Reply
from simulated_airflow import PATHS, Connect, wait

from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.wait.watch import COMPLETED

pytestmark = pytest.mark.waits
POLL = "GET /status/k-1"


@pytest.mark.row("N29")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("refusal", [401, 403, 404])
def test_n29_a_wait_finds_the_new_host_after_a_refusal_or_a_not_found(
    path: str, server: FaultServer, connect: Connect, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    with FaultServer() as new:
        new.on(POLL, SPEC.completed)

        def moved(request: Any) -> Any:
            if len(server.requests) < 2:
                return Reply(body=SPEC.running)
            connect(new.url)
            return Reply(status=refusal, body={"detail": "gone"})

        monkeypatch.setattr(server, "_decide", moved)
        assert wait(path).kind == COMPLETED
        assert len(server.requests) == 2


@pytest.mark.row("N29")
def test_n29_a_new_wait_asks_where_the_connection_points_now(server: FaultServer, connect: Connect) -> None:
    async def both() -> tuple[str, str]:
        old = CrewHook()
        await old.hold()
        connect("http://127.0.0.1:9", token="another")
        new = CrewHook()
        await new.hold()
        hosts = old.connection.deployment.base_url, new.connection.deployment.base_url
        await old.release()
        await new.release()
        return hosts

    old, new = asyncio.run(both())
    assert old != new == "http://127.0.0.1:9"
