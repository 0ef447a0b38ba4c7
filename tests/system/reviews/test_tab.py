"""The Crew tab in a real browser on a real Airflow: a crew at work, one with two rounds of review, and a mapped run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import pytest
from playwright.sync_api import FrameLocator, Page, expect

from crew_service.engine.crew import Completed, Job, Report, TaskDone, TaskInfo, TaskOutput, TaskStarted
from crew_service.local import running_service
from scripts.stack import AirflowStack, DagRun
from tests.system.reviews.browser import signed_in

pytestmark = pytest.mark.since_airflow("3.1")
FEEDBACK = "Shorter, and name the <b>sources</b>. ![x](https://evil.example/pixel.png)"


def open_tab(page: Page, airflow: AirflowStack, run: DagRun, task_id: str) -> FrameLocator:
    """Go to the page of a task, and from there to its tab, as a person does."""
    page.goto(f"{airflow.url}/dags/{run.dag_id}/runs/{run.run_id}/tasks/{task_id}")
    page.get_by_role("link", name="Crew", exact=True).click()
    tab = page.frame_locator("iframe[title=Crew]")
    expect(tab.locator("main")).to_be_visible()
    return tab


class ThreeTasks:
    """A crew whose tasks end when the test says so."""

    isolation: Literal["inline", "process"] = "inline"
    kind: Literal["crew", "flow"] = "crew"
    inputs = ["topic"]  # noqa: RUF012 - the protocol of a crew
    required = ["topic"]  # noqa: RUF012
    outputs = {  # noqa: RUF012
        "research": ("Researcher", "Notes on tea."),
        "write": ("Writer", "A text on tea."),
        "publish": ("Editor", "Published: tea."),
    }
    tasks = [TaskInfo(name, agent) for name, (agent, _) in outputs.items()]  # noqa: RUF012

    def __init__(self) -> None:
        self.may_end = 0

    def run(self, job: Job, report: Report) -> Completed:
        for number, (name, (agent, text)) in enumerate(self.outputs.items(), 1):
            report(TaskStarted(name, agent))
            while self.may_end < number:
                job.cancelled.wait(0.1)
                job.cancelled.raise_if_set()
            report(TaskDone(TaskOutput(task_id=name, agent=agent, output=text, execution_time=0.1)))
        return Completed("Published: tea.")


@pytest.fixture
def three_tasks(airflow: AirflowStack) -> Iterator[ThreeTasks]:
    crew = ThreeTasks()
    with running_service(crew=crew) as service:
        airflow.api.add_connection("crew_three", conn_type="crew", host=service.url, password=service.token)
        yield crew


def test_the_tab_of_a_running_crew_moves_without_a_reload(airflow: AirflowStack, three_tasks: ThreeTasks) -> None:
    run = airflow.api.trigger("tab_three_tasks")
    run.wait_for_task("kickoff", {"deferred"})
    with signed_in(airflow) as page:
        tab = open_tab(page, airflow, run, "kickoff")
        loads: list[str] = []
        page.on("framenavigated", lambda frame: loads.append(frame.url))
        expect(tab.get_by_role("status").first).to_have_text("Running")
        expect(tab.get_by_text("Researcher")).to_be_visible()
        for done in (1, 2):
            three_tasks.may_end = done
            expect(tab.get_by_role("progressbar")).to_have_attribute("aria-valuenow", str(done))
        tab.get_by_text("Output").first.click()
        expect(tab.get_by_text("Notes on tea.")).to_be_visible()
        three_tasks.may_end = 3
        expect(tab.get_by_role("status").first).to_have_text("Completed")
        expect(tab.get_by_text("Notes on tea.")).to_be_visible()  # what was opened stays open
        expect(tab.get_by_role("heading", name="Output")).to_be_visible()
        assert loads == []


def test_the_tab_of_a_review_has_both_drafts_the_person_and_the_way_to_the_form(airflow: AirflowStack) -> None:
    run = airflow.api.trigger("crew_review")
    run.answer(run.wait_for_review(), "revise", human_feedback=FEEDBACK)
    run.wait_for_task("article.round_2.review", {"awaiting_input", "deferred"})
    run.wait_for_review()
    with signed_in(airflow) as page:
        beyond: list[str] = []
        page.on("request", lambda request: beyond.append(request.url) if "evil.example" in request.url else None)
        tab = open_tab(page, airflow, run, "article.kickoff")
        expect(tab.get_by_role("status").first).to_have_text("Waits for a person")
        rounds = tab.get_by_role("article")
        expect(rounds).to_have_count(2)
        expect(rounds.first).to_contain_text("Revision")
        expect(rounds.first).to_contain_text(f"by {airflow.api.user}")
        expect(rounds.first).to_contain_text("<b>sources</b>")
        rounds.last.get_by_text("Changes since round 1").click()
        expect(rounds.last.locator("ins").first).to_contain_text("Draft 2 on tea")
        tab.get_by_role("link", name="Answer the question").click()
        page.get_by_role("button", name="approve").click()
        run.wait_for("success")
        tab = open_tab(page, airflow, run, "article.kickoff")
        expect(tab.get_by_role("status").first).to_have_text("Completed")
        expect(tab.get_by_role("article").last).to_contain_text("Approved")
        assert beyond == []


def test_the_overview_of_a_mapped_run_leads_to_each_execution(airflow: AirflowStack) -> None:
    run = airflow.api.trigger("tab_mapped")
    run.wait_for("success")
    with signed_in(airflow) as page:
        page.goto(f"{airflow.url}/crew-view/dags/{run.dag_id}/runs/{run.run_id}")
        expect(page.get_by_role("listitem")).to_have_count(4)
        page.get_by_role("link", name=re.compile("Customer 3")).click()
        expect(page.get_by_role("status").first).to_have_text("Completed")
        expect(page.get_by_text("A text on Customer 3.").last).to_be_visible()
        page.get_by_role("link", name="All of this run").click()
        expect(page.get_by_role("listitem")).to_have_count(4)
