"""The tasks of the example with two rounds, one after the other, against the real crew service."""

from __future__ import annotations

import runpy
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from simulated_airflow import Connect, TaskRun, run

local = pytest.importorskip("crew_service.local", reason="needs the crew service")
pytestmark = [pytest.mark.usefixtures("simulated_airflow"), pytest.mark.since_airflow("3.1")]

EXAMPLE = Path(__file__).parents[2] / "example_dags" / "crew_two_rounds.py"
DRAFT = {"id": "draft_task", "agent": "Writer", "seconds": 0.05, "human_input": True, "output": "Draft {revision}."}
SCENARIO = {"inputs": ["topic"], "tasks": [{**DRAFT, "revised": "Draft {revision}, {feedback}"}]}
EDITED = "As the deputy wrote."


class Tasks:
    """The tasks of the example by their names, given what Airflow would have resolved."""

    def __init__(self) -> None:
        from airflow_crew_provider.task_groups.crew import CrewReviewGroup

        found = runpy.run_path(str(EXAMPLE)).values()
        self._dag: Any = next(each.dag for each in found if isinstance(each, CrewReviewGroup))

    def __call__(self, name: str, **resolved: Any) -> Any:
        task = self._dag.get_task(f"note.{name}")
        vars(task).update(resolved)
        return task


def answered(review: Any, person: str, at: datetime, **said: Any) -> Any:
    """Put the question of a review, and return what it makes of an answer."""
    from tests.review.airflow_stand_ins import TaskParked

    context = TaskRun("review").context()
    context["ti"].id = uuid.uuid4()
    with pytest.raises(TaskParked) as parked:
        review.execute(context)
    answer = {"responded_at": at, "responded_by_user": {"id": person, "name": person}, "timedout": False, **said}
    return review.execute_complete(context, answer, **parked.value.kwargs)


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> Any:
    from airflow.sdk.execution_time import task_runner

    from tests.review.airflow_stand_ins import Supervisor

    supervisor = Supervisor()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)
    return supervisor.asked


def test_the_deputy_edits_the_second_draft_when_rita_is_silent(
    connect: Connect, tmp_path: Path, questions: list[Any]
) -> None:
    tasks, now = Tasks(), datetime.now(UTC)
    with local.running_service(scenario=SCENARIO, db=tmp_path / "service.db") as service:
        connect(service.url, token=service.token)
        execution = run(tasks("kickoff", inputs={"topic": "tea"}))
        pending = run(tasks("wait", kickoff_id=execution, poke_interval=0.05))
        fields = {"human_feedback": "Shorter."}
        revised = answered(
            tasks("round_1.review", pending=pending), "rita", now, chosen_options=["revise"], params_input=fields
        )
        run(tasks("round_1.resume", review=revised))
        questions.clear()  # each task has one of its own

        pending = run(tasks("round_1.wait", kickoff_id=execution, execution_id=None, poke_interval=0.05))
        assert pending["output"] == "Draft 2, Shorter."
        fields = {"human_feedback": "", "edited_draft": EDITED}
        approved = answered(
            tasks("round_2.review", pending=pending, previous=revised),
            "admin",
            now + timedelta(hours=5),
            chosen_options=["approve"],
            params_input=fields,
        )
        assert "admin" in questions[0].body, "the form says who may answer later"
        run(tasks("round_2.resume", review=approved))
        record = run(tasks("round_2.wait", kickoff_id=execution, execution_id=None, poke_interval=0.05))
    assert (record["state"], record["output"]) == ("completed", EDITED)


def test_the_deputy_may_not_answer_before_the_time_has_come(questions: list[Any]) -> None:
    from tests.review.airflow_stand_ins import PENDING, TaskParked

    review = Tasks()("round_1.review", pending=PENDING)
    fields = {"human_feedback": ""}
    with pytest.raises(TaskParked):
        answered(review, "admin", datetime.now(UTC), chosen_options=["approve"], params_input=fields)
    assert len(questions) == 2, "asked again"
