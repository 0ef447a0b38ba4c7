"""A Flow's method asks people in Airflow with `self.ask`, and goes on after a question that nobody answered."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from scripts.stack import AirflowStack, CrewService, ProcessGroup
from tests.system.reviews.test_reviews import answer, decide, review_in

if find_spec("crewai") is None:  # only its service imports it: that takes six seconds, in each worker of a run
    pytest.skip("a Flow needs CrewAI", allow_module_level=True)


@pytest.mark.long
@pytest.mark.row("S1")
def test_a_method_asks_three_times_and_continues_after_a_deadline(airflow: AirflowStack, group: ProcessGroup) -> None:
    flow = Path(__file__).with_name("interview_flow.py")
    service = CrewService(f"{flow}:Interview", name="crew-service-interview", group=group)
    airflow.api.add_connection("crew_interview", **service.start().connection)
    run = airflow.api.trigger("review_interview")

    first = review_in(run, "crew.round_1.review")
    assert "Who is the reader?" in first["body"]
    assert "Notes: tea, after []" in first["body"]
    assert first["options"] == ["answer"]
    decide(run, first, "answer", "a child")

    second = review_in(run, "crew.round_2.review")
    assert "Which colour?" in second["body"]
    assert "UTC: the Flow continues without one." in second["body"]

    third = review_in(run, "crew.round_3.review")
    answer(airflow.api, run, "crew.round_2.review", "answer", "red")  # which Airflow records, and nobody reads
    assert "**Nobody answered in round 2**, so the Flow continued without an answer." in third["body"]
    decide(run, third, "answer", "Leaves")
    run.wait_for("success")

    assert run.xcom("crew.result")["output"] == "On tea: a child, None, Leaves"
    outcomes = [run.xcom(f"crew.round_{number}.review")["outcome"] for number in (1, 2, 3)]
    assert outcomes == ["answer", "expired", "answer"]
    calls = (service.folder / "calls.log").read_text().splitlines()
    assert calls == ["tea, after []", "tea, after ['a child']", "tea, after ['a child', None]"]
