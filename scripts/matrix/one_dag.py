"""Runs one DAG in processes of the installed Airflow: a kickoff, a deferred sensor, and a task that uses the output.

Airflow 3 runs with an API server and a DAG processor, Airflow 2.11 with a web server.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

from scripts.stack import AirflowStack, CrewService, ProcessGroup
from scripts.stack.airflow_2 import Airflow2

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
    """Run the DAG with a web server, scheduler and triggerer; return its final state."""
    connections = {"crew_default": service.connection}
    Airflow2(dags=DAGS, connections=connections, users={"admin": "Admin"}, group=group).start().run(DAG_ID)
    return "success"


def main() -> int:
    with ProcessGroup() as group:
        service = CrewService("demo", group=group).start()
        on_it = on_airflow_2 if version("apache-airflow").startswith("2.") else on_airflow_3
        state = on_it(service, group)
    print(f"The DAG run ended: {state}")
    return int(state != "success")


if __name__ == "__main__":
    sys.exit(main())
