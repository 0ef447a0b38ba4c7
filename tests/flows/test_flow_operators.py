"""A Flow with an outcome gate, a loop and a gate for free text, from Airflow's operators against the real service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fork_template import forked_crews
from simulated_airflow import Connect, run

from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.wait.outcomes import CrewTaskFailed
from scripts.stack.waiting import PATIENCE

pytestmark = [pytest.mark.usefixtures("simulated_airflow"), pytest.mark.slow]
FLOWS = Path(__file__).parents[1] / "service" / "crewai" / "crews" / "flows.py"
OFFERED = ["publish", "rework", "drop"]


@pytest.fixture(scope="module")
def service() -> Iterator[Any]:
    pytest.importorskip("crewai", reason="a Flow needs CrewAI")
    targets = pytest.importorskip("crew_service.targets", reason="needs the crew service")
    local = pytest.importorskip("crew_service.local", reason="needs the crew service")
    with forked_crews(), local.running_service(crew=targets.load(f"{FLOWS}:BriefingFlow")) as running:
        yield running


@pytest.fixture(autouse=True)
def connection(connect: Connect, service: Any) -> None:
    connect(service.url, token=service.token)


def kicked_off(**inputs: Any) -> str:
    return run(CrewKickoffOperator(task_id="kickoff", inputs=inputs))


def waited(kickoff_id: str, task_id: str = "wait") -> dict[str, Any]:
    return run(CrewStatusSensor(task_id=task_id, kickoff_id=kickoff_id, poke_interval=0.2, timeout=PATIENCE))


def answered(pending: dict[str, Any], task_id: str, **said: Any) -> str:
    ids = {name: pending[name] for name in ("execution_id", "crew_task_id", "output")}
    review = {**ids, "human_feedback": "", "is_approve": None, **said}
    return run(CrewResumeOperator(task_id=task_id, review=review))


@pytest.mark.row("F1", "F3")
def test_a_flow_continues_with_the_chosen_outcome_and_the_feedback() -> None:
    # F1: none of the Flow's inputs is required, so one that is missing starts it all the same.
    flow = kicked_off(topic="ducks")
    first = waited(flow)
    assert (first["question"], first["outcomes"], first["output"]) == ("May this go out?", OFFERED, "Draft 1 on ducks")
    answered(first, "first", outcome="rework", human_feedback="Say less.")
    second = waited(flow)
    assert second["output"] == "Draft 2 on ducks, after: Say less."
    answered(second, "second", outcome="publish")
    place = waited(flow)
    assert (place["question"], place["outcomes"], place["crew_task_id"]) == ("Where to?", [], "place")
    answered(place, "third", is_approve=True, human_feedback="the board")
    assert waited(flow)["output"] == "Draft 2 on ducks, after: Say less., sent to the board"


@pytest.mark.row("F3")
def test_an_outcome_unknown_to_the_flow_is_refused_with_alternatives() -> None:
    flow = kicked_off(topic="geese")
    pending = waited(flow)
    with pytest.raises(CrewTaskFailed, match="publish, rework, drop"):
        answered(pending, "unknown", outcome="burn")
    assert CrewHook().get_status(flow).outcomes == OFFERED
    CrewHook().stop(flow)
