"""A Flow with a loop, a choice and a question for a text, reviewed in a browser; its service is killed at each gate."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from playwright.sync_api import Page, expect

from scripts.stack import AirflowStack, CrewService, DagRun, ProcessGroup
from tests.system.conftest import EXAMPLES
from tests.system.reviews.browser import open_review, signed_in

if find_spec("crewai") is None:  # only its service imports it: that takes six seconds, in each worker of a run
    pytest.skip("a Flow needs CrewAI", allow_module_level=True)

FLOW = EXAMPLES / "crews" / "briefing_flow.py"
FACTS, FATE, READERS = "Are the facts right?", "What should happen to the briefing?", "Who should read it?"


@pytest.fixture
def service(airflow: AirflowStack, group: ProcessGroup) -> CrewService:
    service = CrewService(f"{FLOW}:BriefingFlow", name="crew-service-flow", group=group).start()
    airflow.api.add_connection("crew_flow", **service.connection)
    return service


class Reviewer:
    """A person at a browser. While the first question of each gate is read, the service is killed and started again."""

    def __init__(self, page: Page, airflow: AirflowStack, run: DagRun, service: CrewService) -> None:
        self.page, self.airflow, self.run, self.service = page, airflow, run, service
        self.round = 0
        self.killed_at: set[str] = set()

    def reads(self, method: str, question: str, buttons: list[str]) -> None:
        self.round += 1
        self.run.wait_for_task(f"briefing.round_{self.round}.review", {"awaiting_input", "deferred"})
        self.run.wait_for_review()
        open_review(self.page, self.airflow, self.run, f"Review {method} (round {self.round} of 5)")
        if method not in self.killed_at:
            self.killed_at.add(method)
            self.service.kill()
            self.service.start()
        expect(self.page.get_by_text(question, exact=True)).to_be_visible()
        for name in buttons:
            expect(self.page.get_by_role("button", name=name, exact=True)).to_be_enabled()

    def sees(self, text: str) -> None:
        expect(self.page.get_by_text(text).first).to_be_visible()

    def answers(self, button: str, feedback: str = "") -> None:
        self.page.locator("textarea").fill(feedback)
        self.page.get_by_role("button", name=button, exact=True).click()


@pytest.mark.long
@pytest.mark.row("F6")
def test_a_browser_flow_review_survives_service_kills_at_each_gate(airflow: AirflowStack, service: CrewService) -> None:
    run = airflow.api.trigger("crew_flow")
    with signed_in(airflow) as page:
        reviewer = Reviewer(page, airflow, run, service)
        reviewer.reads("check_facts", FACTS, ["approved", "rework"])
        reviewer.answers("rework", "Name the sources.")
        reviewer.reads("check_facts", FACTS, ["approved", "rework"])
        reviewer.sees("Revised, as the reviewer asked: Name the sources.")
        reviewer.answers("approved")
        reviewer.reads("decide", FATE, ["publish", "keep", "drop"])
        reviewer.sees("Chosen in round 2")
        reviewer.answers("publish")
        reviewer.reads("address", READERS, ["approve", "revise"])
        reviewer.sees("the Flow continues with your")
        reviewer.answers("approve", "the board")
        run.wait_for("success")
    output = run.xcom("publish")
    assert output.startswith("# Briefing on heat pumps")
    assert output.endswith("Revised, as the reviewer asked: Name the sources.\n\nPublished for the board.")
    record = run.xcom("briefing.result")
    gates = ["check_facts", "check_facts", "decide", "address"]
    assert [task["task_id"] for task in record["tasks"]] == ["collect", *gates, "publish_briefing"]
    assert run.states()["briefing.round_5.review"] == "skipped"
