"""How long a review waited for its person, as a StatsD server receives it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow_stand_ins import PENDING, Supervisor, parked
from faults.statsd import StatsdServer, receive

from airflow_crew_provider.operators.review import CrewReviewOperator
from scripts.stack.waiting import wait_until

pytestmark = pytest.mark.since_airflow("3.3")


@pytest.fixture
def of_tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[StatsdServer]:
    yield from receive("airflow.sdk.observability", monkeypatch)


def answer(who: str, at: datetime) -> dict[str, Any]:
    given = {"chosen_options": ["approve"], "params_input": {"human_feedback": ""}, "timedout": False}
    return {**given, "responded_at": at, "responded_by_user": {"id": who, "name": who}}


def test_the_time_between_question_and_answer_is_sent(
    context: dict[str, Any], supervisor: Supervisor, of_tasks: StatsdServer
) -> None:
    operator, asked = CrewReviewOperator(task_id="review", pending=PENDING, crew_conn_id="crew_a"), datetime.now(UTC)
    parked(lambda: operator.execute(context))
    operator.execute_complete(context, answer("ann", asked + timedelta(hours=2)))
    wait_until(lambda: of_tasks.metrics(), "the metric")
    [sent] = of_tasks.metrics()
    assert (sent.name, sent.tags, sent.kind) == ("review.duration", {"conn_id": "crew_a", "kind": "draft"}, "ms")
    assert 7_140_000 < sent.value <= 7_200_000


def test_with_several_approvers_the_metric_counts_from_the_last_question(
    context: dict[str, Any], supervisor: Supervisor, of_tasks: StatsdServer
) -> None:
    operator = CrewReviewOperator(task_id="review", pending=PENDING, approvals=2, assigned_users=["ann", "bob"])
    parked(lambda: operator.execute(context))
    parked(lambda: operator.execute_complete(context, answer("ann", datetime.now(UTC) + timedelta(hours=2))))
    decided = datetime.now(UTC) + timedelta(minutes=1)
    # Airflow sets it anew each time that a worker takes the task up, as now, after the answer.
    context["ti"].start_date = decided + timedelta(seconds=6)
    operator.execute_complete(context, answer("bob", decided))
    wait_until(lambda: of_tasks.metrics(), "the metric")
    [sent] = of_tasks.metrics()
    assert 50_000 < sent.value < 100_000
