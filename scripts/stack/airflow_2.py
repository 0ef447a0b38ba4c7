"""Airflow 2.11 with its own home: a scheduler, a triggerer and a web server, on SQLite."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import requests

from scripts.stack import settings
from scripts.stack.ports import free_port
from scripts.stack.processes import ProcessGroup
from scripts.stack.rest import answers
from scripts.stack.runs import FINISHED
from scripts.stack.waiting import PATIENCE, StackTimeout, wait_until

COMMAND = Path(sys.executable).with_name("airflow")


class Airflow2:
    """A running Airflow 2.11, until its group stops.

    :param dags: the folder of DAG files
    :param connections: Airflow connections by id, each as a dict
    :param users: roles by name; each gets a random password
    """

    def __init__(
        self,
        *,
        dags: Path,
        connections: Mapping[str, Mapping[str, Any]],
        users: Mapping[str, str],
        group: ProcessGroup,
    ) -> None:
        self._group, self._users = group, users
        self.home = group.temporary_folder("crew-airflow-2-")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._passwords = {name: secrets.token_hex(12) for name in users}
        self._sessions = {name: _session(name, password) for name, password in self._passwords.items()}
        self._env = {
            **settings.inherited(),
            **settings.connections(connections),
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__API__AUTH_BACKENDS": "airflow.providers.fab.auth_manager.api.auth.backend.basic_auth",
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__EXECUTOR": "SequentialExecutor",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home}/airflow.db?timeout=60",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "AIRFLOW__WEBSERVER__WEB_SERVER_PORT": str(port),
            "AIRFLOW__WEBSERVER__WORKERS": "1",
            "PATH": f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}",  # the executor calls `airflow`
        }

    def start(self) -> Airflow2:
        """Migrate the database, create the users and start every component; return once the web server responds."""
        self._airflow("db", "migrate")
        self._airflow("sync-perm")
        for name, role in self._users.items():
            who = ("--username", name, "--firstname", name, "--lastname", name, "--email", f"{name}@example.com")
            self._airflow("users", "create", *who, "--role", role, "--password", self._passwords[name])
        for name in ("scheduler", "triggerer"):
            self._start(name, "--skip-serve-logs")
        self._start("webserver")
        self._airflow("dags", "reserialize")
        wait_until(lambda: answers(f"{self.url}/api/v1/health"), "Airflow's web server")
        return self

    def run(self, dag_id: str) -> str:
        """Trigger a DAG run, wait for its success, and return its id."""
        run_id = f"run-{uuid.uuid4()}"
        self._airflow("dags", "trigger", dag_id, "--run-id", run_id)
        path = f"/api/v1/dags/{dag_id}/dagRuns/{run_id}"
        state = wait_until(lambda: self._ended(path), f"the end of {dag_id}", pause=1)
        if state != "success":
            raise StackTimeout(f"{dag_id} ended as {state}")
        return run_id

    def _ended(self, path: str) -> str | None:
        state = str(self.get(path, next(iter(self._users))).json()["state"])
        return state if state in FINISHED else None

    def get(self, path: str, user: str, **arguments: Any) -> requests.Response:
        """Send a GET request as a user; return the response, whatever its status."""
        session = self._sessions[user]
        return session.get(f"{self.url}{path}", timeout=PATIENCE, **arguments)

    def _start(self, name: str, *arguments: str) -> None:
        self._group.start(name, [str(COMMAND), name, *arguments], self._env, self.home / f"{name}.log")

    def _airflow(self, *arguments: str) -> None:
        done = subprocess.run([str(COMMAND), *arguments], env=self._env, capture_output=True, text=True, timeout=180)
        if done.returncode:
            raise RuntimeError(f"airflow {' '.join(arguments[:2])}: {done.stdout[-1000:]}{done.stderr[-2000:]}")


def _session(user: str, password: str) -> requests.Session:
    session = requests.Session()
    session.trust_env = False  # ignore this machine's proxies and netrc
    session.auth = (user, password)
    return session
