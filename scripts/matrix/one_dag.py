"""Runs one DAG in processes of the installed Airflow: a kickoff, a deferred sensor, and a task that uses the output.

Airflow 3 runs as in the tests, with an API server and a DAG processor; Airflow 2.11 runs with a scheduler and a
triggerer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from importlib.metadata import version
from pathlib import Path

from scripts.stack import AirflowStack, CrewService, ProcessGroup, settings, wait_until
from scripts.stack.runs import FINISHED

DAGS = Path(__file__).parent / "dags"
DAG_ID = "crew_wait"


def on_airflow_3(service: CrewService, group: ProcessGroup) -> str:
    """Run the DAG with an API server, scheduler, DAG processor and triggerer; return its final state."""
    connections = {"crew_default": service.connection}
    airflow = AirflowStack(dags=[DAGS], connections=connections, group=group).start_all()
    run = airflow.api.trigger(DAG_ID)
    run.wait_for("success")
    return run.state


def on_airflow_2(service: CrewService, group: ProcessGroup) -> str:
    """Run the DAG with a scheduler and a triggerer; return its final state."""
    home = group.temporary_folder("crew-airflow-2-")
    env = {**settings.inherited(), **_environment(home), **settings.connections({"crew_default": service.connection})}
    run_id = f"matrix-{uuid.uuid4()}"
    _airflow(env, "db", "migrate")
    for name in ("scheduler", "triggerer"):
        group.start(name, [_command(), name, "--skip-serve-logs"], env, home / f"{name}.log")
    _airflow(env, "dags", "reserialize")
    _airflow(env, "dags", "trigger", DAG_ID, "--run-id", run_id)
    return wait_until(lambda: _ended(env, run_id), f"the end of {DAG_ID}", pause=2)


def _environment(home: Path) -> dict[str, str]:
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__EXECUTOR": "SequentialExecutor",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout=60",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }


def _ended(env: dict[str, str], run_id: str) -> str | None:
    listed = _airflow(env, "dags", "list-runs", "--dag-id", DAG_ID, "--output", "json")
    runs = json.loads(listed[listed.index("[{") :])
    [state] = [run["state"] for run in runs if run["run_id"] == run_id]
    return state if state in FINISHED else None


def _airflow(env: dict[str, str], *arguments: str) -> str:
    done = subprocess.run([_command(), *arguments], env=env, capture_output=True, text=True, timeout=180)
    if done.returncode:
        raise RuntimeError(f"airflow {' '.join(arguments)}: {done.stdout[-1000:]}{done.stderr[-2000:]}")
    return done.stdout


def _command() -> str:
    return str(Path(sys.executable).with_name("airflow"))


def main() -> int:
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # executors call `airflow`
    with ProcessGroup() as group:
        service = CrewService("demo", group=group).start()
        on_it = on_airflow_2 if version("apache-airflow").startswith("2.") else on_airflow_3
        state = on_it(service, group)
    print(f"The DAG run ended: {state}")
    return int(state != "success")


if __name__ == "__main__":
    sys.exit(main())
