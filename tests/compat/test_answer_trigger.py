"""The trigger that waits for a person before Airflow 3.3: a task that comes back at once counts as dead there."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.module_loading import import_string
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.triggers.base import TriggerEvent

pytest.importorskip("airflow.models.hitl", reason="needs Airflow 3.1")

from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse

from airflow_crew_provider.compat import answer_trigger, deferral
from airflow_crew_provider.compat.answer_trigger import NO_ANSWER, NO_FORM
from airflow_crew_provider.operators.review import CrewReviewOperator
from airflow_crew_provider.review import airflow_form

ANSWER = {"chosen_options": ["approve"], "params_input": {"human_feedback": "Fine."}}


@pytest.fixture
def trigger(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the trigger of a review that is parked as before Airflow 3.3, as a triggerer loads it."""
    monkeypatch.setattr(airflow_form, "TaskAwaitingInput", None)
    review = CrewReviewOperator(task_id="review", pending={})
    with pytest.raises(TaskDeferred) as deferred:
        airflow_form.park(review, {"ti": SimpleNamespace(id=uuid.uuid4())}, timedelta(hours=1), {})
    path, arguments = deferred.value.trigger.serialize()
    return import_string(path)(**arguments)


@pytest.mark.row("A13")
def test_a_ready_answer_waits_until_its_task_left_the_worker(trigger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[Any] = []

    async def sleep(seconds: float) -> None:
        happened.append(seconds)

    async def run(self: Any) -> AsyncIterator[TriggerEvent]:
        happened.append("polled")
        yield TriggerEvent(ANSWER)

    monkeypatch.setattr(answer_trigger, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(answer_trigger.HITLTrigger, "run", run)
    assert asyncio.run(anext(trigger.run())) == TriggerEvent(ANSWER)
    paused, polled = happened
    assert 0 < paused <= deferral.NOTICED_AFTER
    assert polled == "polled"


@pytest.mark.row("A3", "A13")
def test_another_triggerer_goes_on_with_the_same_wait(trigger: Any) -> None:
    path, arguments = trigger.serialize()
    again = import_string(path)(**arguments)
    assert again.serialize() == trigger.serialize()
    assert again.not_before > time.time()
    assert (again.options, list(again.params)) == (["approve", "revise"], ["human_feedback"])


# --- a look that ends also without an answer ----------------------------------------------------------------

EARLIER = str(uuid.uuid4())
UNANSWERED = {"response_received": False, "chosen_options": None, "params_input": {}, "responded_by_user": None}
ANSWERED = {
    "response_received": True,
    "chosen_options": ["approve"],
    "params_input": {"human_feedback": ""},
    "responded_by_user": SimpleNamespace(id="7", name="Ann"),
    "responded_at": datetime(2026, 11, 20, 12, tzinfo=UTC),
}


def failing(status: int) -> AirflowRuntimeError:
    return AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": status}))


class Triggerer:
    """Answers a trigger as its supervisor does."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.asked_for = answer, set[str]()

    def send(self, msg: Any) -> Any:
        self.asked_for.add(str(msg.ti_id))
        if isinstance(self.answer, Exception):
            raise self.answer
        return SimpleNamespace(**self.answer)


def look(monkeypatch: pytest.MonkeyPatch, answer: Any, until: str | None = None) -> Any:
    """Look once for the answer to the form of an earlier attempt, in another process; return the event."""
    monkeypatch.setattr(deferral, "NOTICED_AFTER", 0.0)
    review = CrewReviewOperator(task_id="review", pending={})
    with pytest.raises(TaskDeferred) as deferred:
        airflow_form.find_answer(review, {"ti": SimpleNamespace(id=uuid.uuid4())}, until, {}, EARLIER)
    path, arguments = deferred.value.trigger.serialize()
    triggerer = Triggerer(answer)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", triggerer, raising=False)
    event = asyncio.run(anext(import_string(path)(**arguments).run()))
    assert triggerer.asked_for == {EARLIER}
    return event.payload


@pytest.mark.row("A26")
@pytest.mark.parametrize("until", [None, "2026-01-01T00:00:00+00:00"], ids=["no deadline", "after the deadline"])
@pytest.mark.parametrize(("answer", "missing"), [(UNANSWERED, NO_ANSWER), (failing(404), NO_FORM)])
def test_a_look_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, answer: Any, missing: str, until: str | None
) -> None:
    event = look(monkeypatch, answer, until)
    assert airflow_form.found_nothing({"event": event}) == missing


@pytest.mark.row("A26")
def test_a_look_finds_the_answer_to_an_earlier_attempts_form(monkeypatch: pytest.MonkeyPatch) -> None:
    event = look(monkeypatch, ANSWERED)
    assert airflow_form.found_nothing({"event": event}) is None
    assert (event["chosen_options"], event["responded_by_user"]["id"]) == (["approve"], "7")


@pytest.mark.row("A26")
def test_a_look_that_fails_for_another_reason_finds_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AirflowRuntimeError):
        look(monkeypatch, failing(500))
