"""Kickoff, rounds of review by a person, and the completed record, as one task group. Needs Airflow 3.1 or newer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import BaseOperator, TaskGroup, XComArg

from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.hooks.waits import CrewTaskFailed
from airflow_crew_provider.models import Json, Webhooks
from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.operators.resume import EXECUTION_ID
from airflow_crew_provider.sensors.crew import CrewStatusSensor

# Looking again costs nothing, and an execution that failed is not looked at again. Airflow now and then fails a task
# that is resumed in the moment in which it is put away (apache/airflow issues 66374 and 67287).
AGAIN: Json = {"retries": 2, "retry_delay": timedelta(seconds=5)}


class CrewResultOperator(BaseOperator):
    """Return the completed record, which the last of the waits that were needed has found.

    :param records: the records of all waits, those of skipped ones None (templated)
    """

    template_fields: Sequence[str] = ("records",)
    ui_color = "#d4f0d4"

    def __init__(self, *, records: list[Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.records = records

    def execute(self, context: Any) -> Json:
        """Return the record; an execution that waits for a person again, with no round left, fails the task."""
        found = [record for record in self.records if isinstance(record, dict)]
        if found and found[-1]["state"] == "completed":
            return found[-1]
        raise CrewTaskFailed(_no_round_left(found[-1] if found else {}))


def _no_round_left(record: Json) -> str:
    return (
        f"Execution {record.get('execution_id')} waits for a person once more, at task {record.get('crew_task_id')}, "
        "and no round of review is left. It is left paused at the service; raise max_rounds, or answer it by hand"
    )


class CrewReviewGroup(TaskGroup):
    """What `crew_with_review` returns."""

    @property
    def output(self) -> XComArg:
        """The completed record, to be handed to the next task."""
        return self.children[self.child_id("result")].output  # type: ignore[attr-defined]


def crew_with_review(
    *,
    group_id: str = "crew",
    inputs: Json | XComArg,
    max_rounds: int = 3,
    webhooks: Webhooks | Json | str | None = None,
    meta: Json | XComArg | None = None,
    crew_conn_id: str = CrewHook.default_conn_name,
    deferrable: bool = True,
    poll_interval: float = 10.0,
    timeout: float | None = None,
    cancel_on_kill: bool = True,
    review: Json | None = None,
) -> CrewReviewGroup:
    """Return a task group that runs a crew with up to ``max_rounds`` rounds of review by a person.

    Its last task, ``result``, returns the completed record, which is the group's ``output``; rounds that are not
    needed are skipped.

    :param inputs: what the crew asks for (templated)
    :param max_rounds: how many answers of a person there may be, over all gates of the crew
    :param webhooks: given at the kickoff and again at each resume, since the service does not carry them over
    :param meta: echoed by the service in webhooks (templated)
    :param deferrable: wait for the crew in the triggerer, without a worker slot
    :param poll_interval: the shortest pause between two looks, in seconds
    :param timeout: how long one wait for the crew may take, in seconds
    :param cancel_on_kill: stop the execution, best effort, when a user ends the kickoff or a wait
    :param review: arguments of `CrewReviewOperator`: ``assigned_users``, ``notifiers``, ``response_timeout``, ...
    """
    if max_rounds < 1:
        raise ValueError("max_rounds is at least 1")
    shared: Json = {"crew_conn_id": crew_conn_id}
    owned: Json = {**shared, "cancel_on_kill": cancel_on_kill}
    wait: Json = {**owned, **AGAIN, "deferrable": deferrable, "poke_interval": poll_interval}
    if timeout is not None:
        wait["timeout"] = timeout
    with CrewReviewGroup(group_id=group_id) as group:
        kickoff = CrewKickoffOperator(task_id="kickoff", inputs=inputs, webhooks=webhooks, meta=meta, **owned)
        waits = [CrewStatusSensor(task_id="wait", kickoff_id=kickoff.output, **wait)]
        asked: Json = {**shared, **(review or {}), "max_rounds": max_rounds}
        for number in range(1, max_rounds + 1):
            with TaskGroup(group_id=f"round_{number}", tooltip="Skipped if the crew is completed before"):
                decided = _review(round_number=number, pending=waits[-1].output, **asked)
                asked["previous"] = decided.output
                resume = CrewResumeOperator(task_id="resume", review=decided.output, webhooks=webhooks, **shared)
                # From the resume, not from the kickoff: the same id, and a graph with fewer lines.
                root = resume.output[EXECUTION_ID]  # type: ignore[index]
                waits.append(CrewStatusSensor(task_id="wait", kickoff_id=resume.output, execution_id=root, **wait))
        CrewResultOperator(
            task_id="result", records=[each.output for each in waits], trigger_rule="none_failed_min_one_success"
        )
    return group  # type: ignore[return-value]


def _review(**arguments: Any) -> BaseOperator:
    """Make the task of a round; imported late, so that this module tells of Airflow's version and not its import."""
    from airflow_crew_provider.operators.review import CrewReviewOperator

    return CrewReviewOperator(task_id="review", **arguments)
