"""An Airflow with its own home, whose components are processes that can be killed and restarted."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from scripts.stack import settings
from scripts.stack.database import ThrowAwayDatabase
from scripts.stack.ports import free_port
from scripts.stack.processes import Component, ProcessGroup
from scripts.stack.rest import AirflowApi, answers
from scripts.stack.runs import DagRun
from scripts.stack.waiting import PATIENCE, wait_until

if TYPE_CHECKING:
    from typing import Self

OWN_COMMAND = Path(sys.executable).with_name("airflow")


class AirflowStack:
    """A running Airflow, from ``start`` (or ``with``) to ``stop``.

    :param dags: folders of DAG files
    :param connections: Airflow connections by id, each as a dict (conn_type, host, password, ...)
    :param parallelism: worker slots
    :param triggerers: how many; the first is named ``triggerer``, the second ``triggerer-2``
    :param schedulers: how many; named in the same way
    :param postgres: URL of a server on which a temporary database is created; None means SQLite,
        with a separate API server for tasks
    :param celery: how many Celery workers run the tasks, with their own Redis; 0 runs them in the scheduler
    :param env: more environment variables, which override all others
    :param users: roles by name; each gets a random password
    :param command: the ``airflow`` of another environment to start with; by default, that of this interpreter
    """

    def __init__(
        self,
        *,
        dags: Sequence[Path],
        connections: Mapping[str, Mapping[str, Any]] | None = None,
        parallelism: int = 4,
        triggerers: int = 1,
        schedulers: int = 1,
        postgres: str | None = None,
        celery: int = 0,
        env: Mapping[str, str] | None = None,
        users: Mapping[str, str] | None = None,
        group: ProcessGroup | None = None,
        command: Path | None = None,
    ) -> None:
        self.group = group or ProcessGroup()
        self.command = command or OWN_COMMAND
        self.home = self.group.temporary_folder("crew-airflow-")
        self.url = f"http://127.0.0.1:{free_port()}"
        self.database = self._make_database(postgres)
        self.execution_url = self.url if self.database else f"http://127.0.0.1:{free_port()}"
        self.passwords = {name: secrets.token_hex(12) for name in users or {"admin": "ADMIN"}}
        self.api = AirflowApi(self.url, *next(iter(self.passwords.items())))
        self._redis_port = free_port() if celery else None
        self._workers = _names("worker", celery)
        self._triggerers = _names("triggerer", triggerers)
        self._schedulers = _names("scheduler", schedulers)
        self.env = {
            **self._environment(parallelism, users or {"admin": "ADMIN"}),
            **settings.bundles(dags),
            **settings.connections(connections or {}),
            **(env or {}),
        }

    def _make_database(self, server: str | None) -> ThrowAwayDatabase | None:
        if not server:
            return None
        database = ThrowAwayDatabase(server, "postgresql+psycopg2")
        self.group.drop_at_end(server, database.name)
        return database

    def _environment(self, parallelism: int, users: Mapping[str, str]) -> dict[str, str]:
        deployment = settings.Deployment(
            api_url=self.url,
            execution_api_url=self.execution_url,
            database=self.database.url if self.database else f"sqlite:///{self.home}/airflow.db?timeout=60",
            executor="CeleryExecutor" if self._redis_port else "LocalExecutor",
            broker=f"redis://127.0.0.1:{self._redis_port}/0" if self._redis_port else None,
        )
        return {
            **settings.QUICK,
            **deployment.environment(),
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": self.url.rpartition(":")[2],
            "AIRFLOW__CELERY__WORKER_CONCURRENCY": str(parallelism),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.home / "dags"),
            "AIRFLOW__CORE__PARALLELISM": str(parallelism),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{n}:{role}" for n, role in users.items()),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.home / "passwords.json"),
        }

    @property
    def components(self) -> dict[str, list[str]]:
        """The name of every component, with the command that runs it."""
        commands = {
            **self._api_servers(),
            **{name: ["scheduler", "--skip-serve-logs"] for name in self._schedulers},
            "dag-processor": ["dag-processor"],
            **{name: ["triggerer", "--skip-serve-logs"] for name in self._triggerers},
            **{name: self._worker_command(name) for name in self._workers},
        }
        return {name: [str(self.command), *arguments] for name, arguments in commands.items()}

    def _api_servers(self) -> dict[str, list[str]]:
        """On SQLite, use separate servers for people and for tasks, because a single one can deadlock.

        On its event loop, it writes to the audit log, and so waits for the lock that another request's thread holds; to
        commit, that request needs the event loop. On PostgreSQL, no write waits for another one.
        """
        if self.database:
            return {"api-server": ["api-server"]}
        port = self.execution_url.rpartition(":")[2]
        return {
            "api-server": ["api-server", "--apps", "core"],
            "execution-api": ["api-server", "--apps", "execution", "--port", port],
        }

    def _worker_command(self, name: str) -> list[str]:
        pidfile = str(self.home / f"{name}.pid")  # if a killed worker left it behind, its successor would not start
        return ["celery", "worker", "--skip-serve-logs", "--celery-hostname", f"{name}@%h", "--pid", pidfile]

    def start_all(self) -> Self:
        """Migrate the database and start every component; return once all are healthy."""
        (self.home / "passwords.json").write_text(json.dumps(self.passwords))
        self._migrate()
        if self._redis_port:
            self.start_redis()
        for name in self.components:
            self.start(name)
        self.wait_healthy()
        return self

    def start(self, name: str) -> Component:
        """Start a component, for the first time or after a kill."""
        (self.home / f"{name}.pid").unlink(missing_ok=True)
        return self.group.start(name, self.components[name], self._full_env(), self.home / f"{name}.log")

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to every process of a component; a killed component is no longer expected to be alive."""
        self.group.components[name].kill(number)
        if number == signal.SIGKILL:
            del self.group.components[name]

    def restart(self, name: str) -> None:
        """Kill a component and start it again; return once Airflow is healthy."""
        self.kill(name)
        self.start(name)
        self.wait_healthy()

    def upgrade(self, command: Path = OWN_COMMAND) -> None:
        """Kill every component, migrate the database with another Airflow and start that; return once it is healthy."""
        for name in self.components:
            self.kill(name)
        self.command = command
        self._migrate()
        for name in self.components:
            self.start(name)
        self.wait_healthy()

    def wait_healthy(self) -> None:
        """Wait until Airflow reports that it is healthy, with heartbeats since the last start of a component."""
        since = max(component.started for component in self.group.components.values())

        def healthy() -> bool:
            return self._check_alive() and self.answers_tasks() and self.api.healthy(since)

        wait_until(healthy, "a healthy Airflow")

    def answers_tasks(self) -> bool:
        """Return whether the API server responds to tasks; a task that starts earlier loses a try."""
        return answers(f"{self.execution_url}/execution/health")

    def logs(self, names: Iterable[str] | None = None) -> str:
        """Return all the logs of processes and tasks, or only those with the given names."""
        files = [path for path in sorted(self.home.rglob("*.log")) if names is None or path.stem in names]
        return "\n".join(path.read_text(errors="replace") for path in files)

    def wait_until_put_away(self, run: DagRun, task_id: str, times: int = 1) -> None:
        """Wait until the scheduler has processed that a task left its worker, as it has long before a person answers.

        Airflow fails a task that is answered earlier, and keeps no log of that try.

        :param times: how often the task has left its worker so far
        """
        key = re.escape(f"task_id='{task_id}', run_id='{run.run_id}'")
        event = re.compile(f"executor event with state success .*{key}")
        logs = [self.home / f"{name}.log" for name in self._schedulers]  # not all logs, which grow to megabytes
        wait_until(
            lambda: sum(len(event.findall(log.read_text(errors="replace"))) for log in logs) >= times,
            f"the scheduler to process the end of {task_id}",
            pause=0.5,
        )

    def stop(self) -> None:
        self.group.stop()

    def _migrate(self) -> None:
        command = [self.components["scheduler"][0], "db", "migrate"]
        with (self.home / "migrate.log").open("wb") as log:
            subprocess.run(
                command, env=self._full_env(), check=True, stdout=log, stderr=subprocess.STDOUT, timeout=PATIENCE
            )

    def start_redis(self) -> None:
        """Start the broker, for the first time or after a kill; its data is restored from its append-only file."""
        folder = ["--dir", str(self.home), "--save", "", "--appendonly", "yes"]
        command = ["redis-server", "--port", str(self._redis_port), *folder]
        self.group.start("redis", command, os.environ, self.home / "redis.log")

    def _check_alive(self) -> bool:
        for component in self.group.components.values():
            if not component.alive:
                raise RuntimeError(f"{component.name} exited during startup:\n{component.tail()}")
        return True

    def _full_env(self) -> dict[str, str]:
        return {**settings.inherited(), **self.env}

    def __enter__(self) -> Self:
        try:
            return self.start_all()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _names(component: str, number: int) -> list[str]:
    return [component, *(f"{component}-{n}" for n in range(2, number + 1))] if number else []
