"""How long a review waited for its person, as a StatsD server receives it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow_stand_ins import PENDING
from faults.statsd import StatsdServer, receive

from airflow_crew_provider.operators.review import CrewReviewOperator
from scripts.stack.waiting import wait_until

pytestmark = pytest.mark.since_airflow("3.3")

ASKED = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture
def of_tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[StatsdServer]:
    yield from receive("airflow.sdk.observability", monkeypatch)


def test_the_time_between_question_and_answer_is_sent(context: dict[str, Any], of_tasks: StatsdServer) -> None:
    context["ti"].start_date = ASKED
    answer = {"chosen_options": ["approve"], "params_input": {"human_feedback": ""}, "timedout": False}
    event = {**answer, "responded_at": ASKED + timedelta(hours=2), "responded_by_user": {"id": "7", "name": "Ann"}}
    CrewReviewOperator(task_id="review", pending=PENDING, crew_conn_id="crew_a").execute_complete(context, event)
    wait_until(lambda: of_tasks.metrics(), "the metric")
    [sent] = of_tasks.metrics()
    assert (sent.name, sent.tags, sent.value, sent.kind) == ("review.duration", {"conn_id": "crew_a"}, 7_200_000, "ms")
