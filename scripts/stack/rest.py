"""Accesses Airflow as any other program would: through its public REST API, version 2, with a real login."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import requests

from scripts.stack.runs import DagRun
from scripts.stack.waiting import PATIENCE, StackTimeout, wait_until

HEARTBEATS = {
    "scheduler": "latest_scheduler_heartbeat",
    "dag_processor": "latest_dag_processor_heartbeat",
    "triggerer": "latest_triggerer_heartbeat",
}
PAGE = 100


class AirflowApi:
    """One user's access to one Airflow."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self.url = url
        self.user = user
        self._password = password
        self._session = requests.Session()
        self._session.trust_env = False  # ignore this machine's proxies and netrc

    def call(self, method: str, path: str, **arguments: Any) -> requests.Response:
        """Send a request to a path under /api/v2; return the response, whatever its status."""
        if "Authorization" not in self._session.headers:
            self._log_in()
        arguments.setdefault("timeout", PATIENCE)
        return self._session.request(method, f"{self.url}/api/v2/{path}", **arguments)

    def json(self, method: str, path: str, **arguments: Any) -> Any:
        """Send a request that must succeed; return the response body."""
        answer = self.call(method, path, **arguments)
        if not answer.ok:
            raise requests.HTTPError(f"{method} {path}: {answer.status_code} {answer.text}", response=answer)
        return answer.json() if answer.content else None

    def pages(self, path: str, key: str, **params: Any) -> Iterator[dict[str, Any]]:
        """Read a complete list, page by page."""
        offset = 0
        while True:
            page = self.json("GET", path, params={**params, "limit": PAGE, "offset": offset})
            yield from page[key]
            offset += PAGE
            if offset >= page["total_entries"]:
                return

    def healthy(self, since: float = 0.0) -> bool:
        """Return whether every component is healthy, with a heartbeat no older than ``since`` (epoch seconds)."""
        try:
            health = self._session.get(f"{self.url}/api/v2/monitor/health", timeout=5).json()
        except requests.RequestException:
            return False
        return all(
            health.get(part, {}).get("status") == "healthy" and _epoch(health[part][word]) >= since
            for part, word in HEARTBEATS.items()
        )

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> DagRun:
        """Wait for the DAG, unpause it, and trigger a run."""
        self.wait_for_dag(dag_id)
        self.json("PATCH", f"dags/{dag_id}", json={"is_paused": False})
        body = {"logical_date": None, "conf": dict(conf or {})}
        return DagRun(self, dag_id, self.json("POST", f"dags/{dag_id}/dagRuns", json=body)["dag_run_id"])

    def wait_for_dag(self, dag_id: str) -> None:
        try:
            wait_until(lambda: self.call("GET", f"dags/{dag_id}").ok, f"the DAG {dag_id}")
        except StackTimeout as late:
            raise StackTimeout(f"{late}; import errors: {self.import_errors()}") from None

    def parse_again(self, dag_id: str) -> None:
        """Have the DAG's file parsed immediately, for example because a file that it imports has changed."""
        token = self.json("GET", f"dags/{dag_id}")["file_token"]
        self.call("PUT", f"parseDagFile/{token}").raise_for_status()

    def import_errors(self) -> list[str]:
        return [error["stack_trace"] for error in self.pages("importErrors", "import_errors")]

    def add_connection(self, connection_id: str, **fields: Any) -> None:
        """Create a connection (conn_type, host, password, ...), or replace the existing one with that id."""
        self.call("DELETE", f"connections/{connection_id}")
        self.json("POST", "connections", json={"connection_id": connection_id, **fields})

    def occupied_slots(self, pool: str = "default_pool") -> int:
        """Return the number of slots that queued and running tasks occupy; deferred tasks occupy none."""
        state = self.json("GET", f"pools/{pool}")
        return state["running_slots"] + state["queued_slots"]

    def _log_in(self) -> None:
        credentials = {"username": self.user, "password": self._password}
        answer = self._session.post(f"{self.url}/auth/token", json=credentials, timeout=PATIENCE)
        answer.raise_for_status()
        self._session.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"


def answers(url: str) -> bool:
    """Return whether a GET request to the URL succeeds."""
    with requests.Session() as session:
        session.trust_env = False
        try:
            return session.get(url, timeout=5).ok
        except requests.RequestException:
            return False


def _epoch(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0
