"""Airflow's settings as variables: what every deployment needs, and what makes a short-lived one quick."""

from __future__ import annotations

import base64
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.stack.waiting import FACTOR

CLUSTER_FILE = Path(__file__).parents[2] / "deploy" / "cluster.env"


@dataclass(frozen=True)
class Deployment:
    """What all processes of one Airflow must agree on."""

    api_url: str
    database: str
    execution_api_url: str = ""  # where tasks report; by default the API server that serves people
    executor: str = "LocalExecutor"
    broker: str | None = None
    jwt_secret: str = field(default_factory=lambda: secrets.token_hex(32))
    fernet_key: str = field(default_factory=lambda: base64.urlsafe_b64encode(secrets.token_bytes(32)).decode())

    def environment(self) -> dict[str, str]:
        variables = {
            "AIRFLOW__API__BASE_URL": self.api_url,
            "AIRFLOW__API_AUTH__JWT_SECRET": self.jwt_secret,
            "AIRFLOW__API__SECRET_KEY": self.jwt_secret,
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.execution_api_url or self.api_url}/execution/",
            "AIRFLOW__CORE__EXECUTOR": self.executor,
            "AIRFLOW__CORE__FERNET_KEY": self.fernet_key,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self.database,
        }
        if self.broker:
            variables["AIRFLOW__CELERY__BROKER_URL"] = self.broker
            variables["AIRFLOW__CELERY__RESULT_BACKEND"] = f"db+{self.database}"
        return variables


def _patient(seconds: int) -> str:
    """Return a limit after which something counts as dead or gone; on a busy machine, it may only be slow."""
    return str(round(seconds * FACTOR))


# One machine, a life of minutes: short pauses, early notice of the dead, no log servers on fixed ports.
QUICK = {
    "AIRFLOW__API__WORKERS": "1",
    "AIRFLOW__CELERY__WORKER_ENABLE_REMOTE_CONTROL": "True",
    "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "120",  # a busy machine may need a minute where an idle one needs a second
    "AIRFLOW__CORE__HOSTNAME_CALLABLE": "socket.gethostname",
    "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "0",  # else an edit soon after a parse waits for the next one
    "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "180",
    # A file that was edited itself is parsed at once all the same; parsing all others every 30 s took half a core.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "1800",
    "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
    "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
    "AIRFLOW__OPENLINEAGE__DISABLED": "True",  # where it is installed, each task would load it to print its events
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": _patient(15),
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": _patient(15),
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "2",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": _patient(10),
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": _patient(2),
    "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    "SCARF_ANALYTICS": "false",
}


def cluster() -> dict[str, str]:
    """Read how a cluster notices what has died; docker-compose.yaml reads the same file."""
    lines = CLUSTER_FILE.read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def bundles(folders: Sequence[Path]) -> dict[str, str]:
    """Name the folders that the DAG processor reads."""
    configured = [
        {
            "name": f"{folder.name}-{number}",  # bare "example_dags" is a name that Airflow keeps for itself
            "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
            "kwargs": {"path": str(folder.resolve())},
        }
        for number, folder in enumerate(folders, start=1)
    ]
    return {"AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(configured)}


def connections(by_id: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Write connections as the variables from which Airflow reads them."""
    return {f"AIRFLOW_CONN_{name.upper()}": json.dumps(value) for name, value in by_id.items()}


def inherited() -> dict[str, str]:
    """Take this process's environment without any Airflow of the person who started it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
