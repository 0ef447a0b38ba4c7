"""Files from object storage to crews and back, on real processes; the machine is killed while a person decides."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from playwright.sync_api import expect

from scripts.stack import AirflowStack, CrewService, DagRun, ProcessGroup, free_port
from scripts.stack.waiting import PATIENCE, wait_until
from tests.service.databases import on_postgresql
from tests.system.conftest import EXAMPLES
from tests.system.reviews.browser import signed_in

pytestmark = [pytest.mark.since_airflow("3.1"), pytest.mark.long]
pytest.importorskip("crewai_files")
CREWS = Path(__file__).parents[1] / "service" / "crewai" / "crews" / "reporting.py"
PDF = b"%PDF-1.4\n" + bytes(range(256)) * 8_000
CHART, REPORT = "charts/sales.png", "report.md"


@dataclass
class Machines:
    """Two services with one database, behind a balancer."""

    first: CrewService
    second: CrewService
    url: str

    def files(self, execution_id: str) -> Any:
        headers = {"Authorization": f"Bearer {self.first.token}"}
        answer = requests.get(f"{self.url}/executions/{execution_id}/files", headers=headers, timeout=PATIENCE)
        return answer.json()["files"]


@pytest.fixture
def machines(airflow: AirflowStack, group: ProcessGroup, kind: str) -> Iterator[Machines]:
    target = {"crew": "crew", "flow": "ReportingFlow"}[kind]
    with on_postgresql() as database:
        first, second = (
            CrewService(
                f"{CREWS}:{target}",
                name=f"crew-service-files-{kind}-{number}",
                database=database.url,
                token="a-token-of-both-machines",
                group=group,
            )
            for number in (1, 2)
        )
        port = free_port()
        balancer = [sys.executable, "-m", "scripts.stack.balancer", *map(str, (port, first.port, second.port))]
        group.start(f"balancer-{kind}", balancer, os.environ, first.folder / "balancer.log")
        machines = Machines(first.start(), second, f"http://127.0.0.1:{port}")
        connection = {"conn_type": "crew", "host": machines.url, "password": first.token}
        airflow.api.add_connection(f"files_{kind}", **connection)
        yield machines
        second.kill()


@pytest.mark.row("S82")
@pytest.mark.row("S76")
@pytest.mark.parametrize("kind", ["crew", "flow"])
def test_a_pdf_becomes_report_and_chart_despite_a_killed_machine(
    airflow: AirflowStack, machines: Machines, kind: str, tmp_path: Path
) -> None:
    (tmp_path / "in.pdf").write_bytes(PDF)
    run = airflow.api.trigger(
        f"files_of_{kind}", {"source": f"file://{tmp_path / 'in.pdf'}", "folder": f"file://{tmp_path}/out"}
    )
    review = run.wait_for_review()
    output = f"read {hashlib.sha256(PDF).hexdigest()}"
    assert output in review["body"]
    execution_id = run.xcom("report.kickoff", "crew_execution")["execution_id"]
    assert r"[charts\/sales\.png](" in review["body"]
    machines.second.start()
    machines.first.kill()
    with signed_in(airflow) as page:
        page.goto(f"{airflow.url}/dags/{run.dag_id}/runs/{run.run_id}/tasks/report.kickoff")
        page.get_by_role("link", name="Crew", exact=True).click()
        tab = page.frame_locator("iframe[title=Crew]")
        chart = tab.get_by_role("img", name=CHART)
        expect(chart).to_have_count(1)
        wait_until(lambda: chart.evaluate("image => image.naturalWidth") == 64, "the chart to be shown")
        expect(tab.get_by_role("link", name="report", exact=True)).to_be_visible()
    run.answer(review, "approve")
    run.wait_for("success")
    record = run.xcom("report.result")
    assert record["output"] == output
    folder = f"file://{tmp_path}/out/{run.run_id}"
    assert {each["name"]: each["path"] for each in record["files"]} == {
        name: f"{folder}/{name}" for name in (CHART, REPORT)
    }
    copies = {each["name"]: Path(each["path"].removeprefix("file://")).read_bytes() for each in record["files"]}
    assert copies[REPORT].decode() == output
    assert {name: hashlib.sha256(content).hexdigest() for name, content in copies.items()} == {
        each["name"]: each["sha256"] for each in machines.files(execution_id) if each["direction"] == "out"
    }
    assert asset_files(airflow, run) == [each["path"] for each in record["files"]]


def asset_files(airflow: AirflowStack, run: DagRun) -> list[str]:
    events = wait_until(
        lambda: [
            event
            for event in airflow.api.json("GET", "assets/events", params={"source_dag_id": run.dag_id})["asset_events"]
            if event["source_run_id"] == run.run_id
        ],
        "the asset event",
    )
    return events[-1]["extra"]["files"]


def test_the_example_turns_pdfs_into_approved_reports_with_charts(airflow: AirflowStack, group: ProcessGroup) -> None:
    crew = f"{EXAMPLES / 'crews' / 'report_crew.py'}:report_crew"
    service = CrewService(crew, name="crew-service-report", group=group).start()
    airflow.api.add_connection("crew_files", **service.connection)
    airflow.api.json("PATCH", "dags/crew_files_arrived", json={"is_paused": False})
    run = airflow.api.trigger("crew_files")
    run.answer(run.wait_for_review(), "revise", human_feedback="Name who acts.")
    run.wait_for_task("report.round_2.review", {"awaiting_input", "deferred"})
    run.answer(run.wait_for_review(), "approve")
    run.wait_for("success")
    record = run.xcom("report.result")
    assert record["output"].startswith("# Sales in the third quarter")
    paths = [each["path"] for each in record["files"]]
    assert {Path(each).name for each in paths} == {"chart.png", "report.md"}
    arrived = wait_until(lambda: list(airflow.api.pages("dags/crew_files_arrived/dagRuns", "dag_runs")), "the next DAG")
    following = DagRun(airflow.api, "crew_files_arrived", arrived[-1]["dag_run_id"])
    following.wait_for("success")
    assert following.xcom("arrived") == paths
