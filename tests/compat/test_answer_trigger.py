"""The trigger that waits for a person before Airflow 3.3: a task that comes back at once counts as dead there."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.module_loading import import_string
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.triggers.base import TriggerEvent

pytest.importorskip("airflow.models.hitl", reason="needs Airflow 3.1")

from airflow_crew_provider.compat import answer_trigger, deferral, human_in_the_loop
from airflow_crew_provider.operators.review import CrewReviewOperator


@pytest.fixture
def trigger(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the trigger of a review that is parked as before Airflow 3.3, as a triggerer loads it."""
    monkeypatch.setattr(human_in_the_loop, "TaskAwaitingInput", None)
    review = CrewReviewOperator(task_id="review", pending={})
    with pytest.raises(TaskDeferred) as deferred:
        human_in_the_loop.park(review, {"ti": SimpleNamespace(id=uuid.uuid4())}, timedelta(hours=1), {})
    path, arguments = deferred.value.trigger.serialize()
    return import_string(path)(**arguments)


@pytest.mark.row("A13")
def test_a13_an_answer_that_is_there_waits_until_its_task_has_left_the_worker(
    trigger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[Any] = []

    async def sleep(seconds: float) -> None:
        happened.append(seconds)

    async def run(self: Any) -> AsyncIterator[TriggerEvent]:
        happened.append("polled")
        yield TriggerEvent("the answer")

    monkeypatch.setattr(answer_trigger, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(answer_trigger.HITLTrigger, "run", run)
    assert asyncio.run(anext(trigger.run())) == TriggerEvent("the answer")
    paused, polled = happened
    assert 0 < paused <= deferral.NOTICED_AFTER
    assert polled == "polled"


@pytest.mark.row("A3", "A13")
def test_a3_another_triggerer_goes_on_with_the_same_wait(trigger: Any) -> None:
    path, arguments = trigger.serialize()
    again = import_string(path)(**arguments)
    assert again.serialize() == trigger.serialize()
    assert again.not_before > time.time()
    assert (again.options, list(again.params)) == (["approve", "revise"], ["human_feedback"])
