"""Each example runs as it stands."""

from __future__ import annotations

import pytest

from scripts.stack import AirflowStack, CrewService, DagRun, ProcessGroup
from tests.system.conftest import EXAMPLES as FOLDER

EXAMPLES = ("crew_schedule", "crew_to_table", "crew_taskflow", "crew_per_row")  # crew_review: test_demo_path.py


@pytest.fixture(scope="module")
def runs(airflow: AirflowStack) -> dict[str, DagRun]:
    return {dag_id: airflow.api.trigger(dag_id) for dag_id in EXAMPLES}


def test_every_example_can_be_imported(airflow: AirflowStack, runs: dict[str, DagRun]) -> None:
    assert airflow.api.import_errors() == []


@pytest.mark.parametrize("dag_id", EXAMPLES)
def test_the_example_runs(dag_id: str, runs: dict[str, DagRun]) -> None:
    runs[dag_id].wait_for("success")


def test_a_later_task_finds_the_output_in_the_table(runs: dict[str, DagRun]) -> None:
    runs["crew_to_table"].wait_for("success")
    assert runs["crew_to_table"].xcom("count_words") == {"research": 3, "write": 4}


def test_mapped_crew_outputs_come_in_row_order(runs: dict[str, DagRun]) -> None:
    runs["crew_per_row"].wait_for("success")
    assert runs["crew_per_row"].xcom("collect") == [f"Draft 1 on {topic}." for topic in ("tea", "rice", "salt")]


def test_an_agent_of_common_ai_consults_a_crew(airflow: AirflowStack, group: ProcessGroup) -> None:
    pytest.importorskip("airflow.providers.common.ai")
    newsroom = str(FOLDER / "crews" / "newsroom.json")
    service = CrewService(newsroom, name="crew-service-newsroom-agent", group=group).start()
    airflow.api.add_connection("crew_newsroom_agent", **service.connection)
    airflow.api.add_connection("pydanticai_test", conn_type="pydanticai")
    run = airflow.api.trigger("crew_agent")
    run.wait_for("success")
    assert "What we wrote about a: ..." in run.xcom("ask")
