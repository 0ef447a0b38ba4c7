"""The topology of docker-compose.yaml as plain processes on loopback, each of which can be killed."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.stack import AirflowStack, CrewService, ProcessGroup, free_port
from scripts.stack.database import ThrowAwayDatabase
from scripts.stack.postgres import PostgresServer
from scripts.stack.settings import cluster

HERE = Path(__file__).parent
CLOCKS = (0, -40, 40)  # days by which those of the services differ from the database's; results are kept for fewer
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)  # Debian's package faketime
WORKER_SLOTS = 6
TASK_SECONDS = 2.0
# On two cores the schedulers would take a third of the time to look at runs that wait for a slot.
FOR_TWO_CORES = {
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
    "AIRFLOW__SCHEDULER__MAX_DAGRUNS_PER_LOOP_TO_SCHEDULE": "5",
}


def scripted(*tasks: dict[str, object]) -> dict[str, object]:
    return {"inputs": ["topic"], "tasks": [{"agent": "Writer", "seconds": TASK_SECONDS, **each} for each in tasks]}


RESEARCH = {"id": "research", "output": "Notes on {topic}."}
DRAFT = {
    "id": "draft",
    "human_input": True,
    "output": "Draft {revision} on {topic}.",
    "revised": "Draft {revision} on {topic}. After: {feedback}",
}
CREWS = {
    "plain": scripted(RESEARCH, {"id": "write", "output": "A text on {topic}."}),
    "gated": scripted(RESEARCH, DRAFT),
    "failing": scripted(RESEARCH, {"id": "write", "error": "ValueError: no ink left"}),
}


@dataclass
class Cluster:
    """Everything that runs."""

    airflow: AirflowStack
    services: list[CrewService]
    postgres: PostgresServer
    crew_database: str
    group: ProcessGroup

    @property
    def names(self) -> dict[str, list[str]]:
        """Name the processes by kind, as the table of kills does."""
        parts = self.airflow.components
        kinds = ("worker", "triggerer", "scheduler", "api-server")
        named = {kind: [name for name in parts if name.startswith(kind)] for kind in kinds}
        return {**named, "crew service": [service.name for service in self.services], "redis": ["redis"]}

    def kill(self, name: str) -> None:
        """Kill a process with -9; `revive` starts it again."""
        self.group.components[name].kill()

    def is_alive(self) -> bool:
        return all(each.alive for each in self.group.components.values())

    def revive(self) -> list[str]:
        """Start again what has ended, as the compose file's restart policy does; return the names."""
        ended = [name for name, each in self.group.components.items() if not each.alive]
        for name in ended:
            self._start(name)
        return ended

    def _start(self, name: str) -> None:
        if name == "redis":
            self.airflow.start_redis()
        elif name == "postgres":
            self.postgres.start()
        elif name in self.airflow.components:
            self.airflow.start(name)
        else:
            component = self.group.components[name]
            self.group.start(name, component.command, component.env, component.log)


@contextmanager
def cluster_running(folder: Path, *, has_flow: bool) -> Iterator[Cluster]:
    """Start every process, and end them all whatever happens."""
    with ProcessGroup() as group:
        postgres = PostgresServer(group).start()
        crew_database = ThrowAwayDatabase(postgres.url).url
        services, port = _services(group, folder, crew_database, has_flow=has_flow)
        airflow = AirflowStack(
            dags=[HERE / "dags"],
            connections={f"crew_{name}": _connection(port, name, services[0].token) for name in (*CREWS, "flow")},
            parallelism=WORKER_SLOTS,
            schedulers=2,
            triggerers=2,
            celery=2,
            postgres=postgres.url,
            env={**cluster(), **FOR_TWO_CORES},
            group=group,
        ).start_all()
        yield Cluster(airflow, services, postgres, crew_database, group)


def _services(group: ProcessGroup, folder: Path, database: str, *, has_flow: bool) -> tuple[list[CrewService], int]:
    """Start the crew services behind a balancer; return them and the balancer's port."""
    crews = ["--crew", f"flow={HERE / 'review_flow.py'}:ReviewFlow"] if has_flow else []
    for name, scenario in CREWS.items():
        file = folder / f"{name}.json"
        file.write_text(json.dumps(scenario))
        crews += ["--crew", f"{name}={file}"]
    token = secrets.token_hex(24)
    shared: dict[str, Any] = {"options": crews, "database": database, "token": token, "group": group}
    services = [
        CrewService(None, name=f"crew-service-{number}", env=_clock(days), **shared).start()
        for number, days in enumerate(CLOCKS, 1)
    ]
    port = free_port()
    command = [sys.executable, "-m", "scripts.stack.balancer", str(port), *(str(each.port) for each in services)]
    root = str(Path(__file__).parents[2])
    group.start("balancer", command, {"PYTHONPATH": root}, folder / "balancer.log")
    return services, port


def _clock(days: int) -> dict[str, str]:
    """Return the environment of a machine whose clock differs, where that can be had."""
    if FAKETIME is None or not days:
        return {}
    return {"LD_PRELOAD": str(FAKETIME), "FAKETIME": f"{days:+}d", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


def _connection(port: int, crew: str, token: str) -> dict[str, object]:
    return {
        "conn_type": "crew",
        "host": f"http://127.0.0.1:{port}/crews/{crew}",
        "password": token,
        "extra": json.dumps({"idempotency_keys": True, "timeout": 10, "kickoff_timeout": 30}),
    }
