"""A StatsD server on a UDP socket, which keeps what it receives."""

from __future__ import annotations

import importlib
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import pytest

from scripts.stack.waiting import PATIENCE

LINE = re.compile(r"(?P<name>[^:]+):(?P<value>[^|]+)\|(?P<kind>c|ms|g)(\|.*)?")


@dataclass(frozen=True)
class Metric:
    """One line of the protocol, ``name,tag=value:3|c``, and the port of the process that sent it."""

    name: str
    tags: dict[str, str]
    value: float
    kind: str
    source: int


class StatsdServer:
    """Listens from ``with`` to its end, or until the process ends."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._received: list[Metric] = []
        self._thread = threading.Thread(target=self._receive, daemon=True)

    @property
    def environment(self) -> dict[str, str]:
        """What tells an Airflow to send its metrics here, with tags as InfluxDB writes them."""
        settings = {"on": "True", "host": "127.0.0.1", "port": str(self.port), "influxdb_enabled": "True"}
        return {f"AIRFLOW__METRICS__STATSD_{name.upper()}": value for name, value in settings.items()}

    def metrics(self, prefix: str = "airflow.crew.") -> list[Metric]:
        """Return what was received so far under a prefix, without the prefix."""
        return [
            replace(each, name=each.name.removeprefix(prefix))
            for each in list(self._received)
            if each.name.startswith(prefix)
        ]

    def total(self, name: str, **tags: str) -> float:
        """Return the sum of all values of a metric that have these tags."""
        return sum(each.value for each in self.metrics() if each.name == name and tags.items() <= each.tags.items())

    def _receive(self) -> None:
        while (received := self._socket.recvfrom(65536))[0]:
            packet, (_, source) = received
            for line in packet.decode().splitlines():
                read = LINE.fullmatch(line)
                assert read, line
                name, *tags = read["name"].split(",")
                found = dict(each.split("=", 1) for each in tags)
                self._received.append(Metric(name, found, float(read["value"]), read["kind"], source))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join(PATIENCE)
        self._socket.close()


def receive(module: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[StatsdServer]:
    """Let one of the two `Stats` of Airflow 3.3 send to a server, as Airflow's processes do when they start."""
    stats = importlib.import_module(f"{module}.stats")
    factories = importlib.import_module(f"{module}.metrics.stats_utils")
    nowhere = factories.get_stats_factory()
    with StatsdServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        client = factories.get_stats_factory()()
        stats.initialize(factory=lambda: client, export_legacy_names=True)
        yield server
        stats.initialize(factory=nowhere, export_legacy_names=True)
