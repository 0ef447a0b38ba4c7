"""The kinds of waits to compare, each an Airflow trigger: ours, those of other providers, and the cheapest possible."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from airflow.triggers.base import BaseTrigger, TriggerEvent

OURS, SMALLEST, LOGGING, PROTOCOL, SLEEPING = "ours", "smallest", "smallest, logging", "protocol", "sleeping"
DATABRICKS, HTTP = "databricks", "http"
_shared: dict[str, Any] = {}


class Wait(BaseTrigger):
    """A wait that never ends, with about `interval` seconds between two polls."""

    def __init__(self, number: int, interval: float, url: str) -> None:
        super().__init__()
        self.number, self.interval, self.url = number, interval, url

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kind = type(self)
        return f"{kind.__module__}.{kind.__name__}", {
            "number": self.number,
            "interval": self.interval,
            "url": self.url,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        await asyncio.sleep(self.interval * random.random())
        while True:
            await self.poll()
            await asyncio.sleep(self.interval * random.uniform(1.0, 1.2))
        yield TriggerEvent(None)

    async def poll(self) -> None:
        """Send nothing; this wait only sleeps."""


class Smallest(Wait):
    """The smallest possible trigger on a shared aiohttp session."""

    async def poll(self) -> None:
        session = _shared.get("session")
        if session is None:
            session = _shared["session"] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=100))
        url = f"{self.url}/status/k-{self.number}"
        async with session.get(url, headers={"Authorization": "Bearer t"}) as response:
            await response.json()


class Logging(Smallest):
    """The smallest trigger, with as many log lines as ours: one for the first poll, then one every five minutes."""

    logged_at = 0.0

    async def poll(self) -> None:
        await super().poll()
        if time.monotonic() - self.logged_at >= 300.0:
            self.log.info("Execution k-%s is RUNNING", self.number)
            self.logged_at = time.monotonic()


async def close() -> None:
    """Close the session that the smallest waits of this loop share."""
    if session := _shared.pop("session", None):
        await session.close()


class KeptConnection(asyncio.Protocol):
    """A persistent connection with only as much HTTP as this server needs."""

    answered: asyncio.Future[bytes]

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.answered.set_result(data)


class HandWritten(Wait):
    """A hand-written protocol on persistent connections, cheaper than any library could be."""

    async def poll(self) -> None:
        loop, idle = asyncio.get_running_loop(), _shared.setdefault("idle", [])
        where = urlsplit(self.url)
        if idle:
            connection = idle.pop()
        else:
            _, connection = await loop.create_connection(KeptConnection, where.hostname, where.port)
        connection.answered = loop.create_future()
        connection.transport.write(
            f"GET /status/k-{self.number} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\n\r\n".encode()
        )
        data = await connection.answered
        json.loads(data.partition(b"\r\n\r\n")[2])
        idle.append(connection)


def ours(number: int, interval: float, url: str) -> BaseTrigger:
    """Return a trigger as a restarted triggerer creates it: from the stored form of a wait that began elsewhere."""
    from airflow_crew_provider.triggers.crew import CrewStatusTrigger

    _, stored = CrewStatusTrigger(f"k-{number}", poll_interval=interval, not_before=1.0).serialize()
    return CrewStatusTrigger(**stored)


def databricks(number: int, interval: float, url: str) -> BaseTrigger:
    from airflow.providers.databricks.triggers.databricks import DatabricksExecutionTrigger

    return Spread(DatabricksExecutionTrigger(number, "databricks_default", polling_period_seconds=interval), interval)


def http(number: int, interval: float, url: str) -> BaseTrigger:
    from airflow.providers.http.triggers.http import HttpSensorTrigger

    return Spread(HttpSensorTrigger(f"absent/{number}", "http_default", poke_interval=interval), interval)


class Spread(BaseTrigger):
    """Starts another trigger at a random point in the interval; otherwise, all of them would keep polling at once."""

    def __init__(self, inner: BaseTrigger, interval: float) -> None:
        super().__init__()
        self.inner, self.interval = inner, interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return self.inner.serialize()

    async def run(self) -> AsyncIterator[TriggerEvent]:
        await asyncio.sleep(self.interval * random.random())
        async for event in self.inner.run():
            yield event


KINDS = {
    OURS: ours,
    SMALLEST: Smallest,
    LOGGING: Logging,
    PROTOCOL: HandWritten,
    SLEEPING: Wait,
    DATABRICKS: databricks,
    HTTP: http,
}


def connections(url: str, ca_file: str | None = None) -> dict[str, str]:
    """Return environment variables with connections to the server for every kind of wait."""
    where = urlsplit(url)
    crew = {"conn_type": "crew", "host": url, "password": "benchmark-token", "extra": {"verify": ca_file or True}}
    of_databricks = {"conn_type": "databricks", "host": where.hostname, "port": where.port, "schema": where.scheme}
    of_http = {"conn_type": "http", "host": where.hostname, "port": where.port, "schema": where.scheme}
    return {
        "AIRFLOW_CONN_CREW_DEFAULT": json.dumps(crew),
        "AIRFLOW_CONN_DATABRICKS_DEFAULT": json.dumps({**of_databricks, "password": "benchmark-token"}),
        "AIRFLOW_CONN_HTTP_DEFAULT": json.dumps(of_http),
    }
