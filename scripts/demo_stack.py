"""A crew service, and an Airflow with a connection to it named `crew_default`, started and stopped together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.stack import AirflowStack, CrewService, ProcessGroup

ROOT = Path(__file__).resolve().parents[1]
CREWS = {
    "demo": "demo",
    "crewai": f"{ROOT / 'example_dags' / 'crews' / 'article_crew.py'}:article_crew",
}


@contextmanager
def both(crew: str, report: Callable[[str, str], None]) -> Iterator[tuple[CrewService, AirflowStack]]:
    """Run both until the block ends; nothing is left behind, however it ends."""
    with ProcessGroup() as group:
        report("start", f"the crew service with the {crew} crew, which needs no network access ...")
        service = CrewService(CREWS[crew], group=group).start()
        report("crew service", service.url)
        report("start", "Airflow: SQLite, two API servers, scheduler, DAG processor, triggerer (about 20 seconds) ...")
        airflow = AirflowStack(
            dags=[ROOT / "example_dags"],
            connections={"crew_default": service.connection},
            env={"AIRFLOW__CREW__TASK_TAB": "True"},  # nearly all tasks here belong to crews
            group=group,
        ).start_all()
        report("Airflow", airflow.url)
        yield service, airflow
