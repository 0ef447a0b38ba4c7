"""Airflow's settings as environment variables: those of every deployment, and those that speed up a short-lived one."""

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
    """The settings that all processes of an Airflow must share."""

    api_url: str
    database: str
    execution_api_url: str = ""  # where tasks report; by default, the API server for people
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
    """Return the seconds until a process counts as dead; more on busy machines, where it may only be slow."""
    return str(round(seconds * FACTOR))


# For a few minutes on one machine: short pauses, quick detection of dead processes, no log servers on fixed ports.
QUICK = {
    "AIRFLOW__API__WORKERS": "1",
    "AIRFLOW__CELERY__WORKER_ENABLE_REMOTE_CONTROL": "True",
    "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "120",  # on a busy machine, a second of work may take a minute
    "AIRFLOW__CORE__HOSTNAME_CALLABLE": "socket.gethostname",
    "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "0",  # so that an edit soon after a parse is not ignored
    "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "180",
    # Edited files are still parsed immediately; parsing all the others every 30 s took half a core.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "1800",
    "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
    "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
    "AIRFLOW__OPENLINEAGE__DISABLED": "True",  # if it is installed, each task would load it to print its events
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": _patient(15),
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
    """Return the settings that a cluster uses to detect dead processes; docker-compose.yaml reads the same file."""
    lines = CLUSTER_FILE.read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def bundles(folders: Sequence[Path]) -> dict[str, str]:
    """Return the setting with the folders that the DAG processor reads."""
    configured = [
        {
            "name": f"{folder.name}-{number}",  # Airflow reserves the name "example_dags"
            "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
            "kwargs": {"path": str(folder.resolve())},
        }
        for number, folder in enumerate(folders, start=1)
    ]
    return {"AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(configured)}


def connections(by_id: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return connections as the environment variables that Airflow reads."""
    return {f"AIRFLOW_CONN_{name.upper()}": json.dumps(value) for name, value in by_id.items()}


def inherited() -> dict[str, str]:
    """Return this process's environment, without the Airflow settings of the person who started it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
