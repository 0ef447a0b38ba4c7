"""Simulates what Airflow does around an operator, without its processes: tries, deferrals, clears, stored state.

Triggers run as they do in a triggerer: rebuilt from what is stored, in an event loop of their own.
"""

from __future__ import annotations

import asyncio
import copy
import importlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, TaskDeferred

from airflow_crew_provider.compat import supervisor
from airflow_crew_provider.compat.version import clears_discard_task_state
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.triggers.crew import CrewStatusTrigger
from airflow_crew_provider.wait.poller import Poller
from airflow_crew_provider.wait.watch import COMPLETED, FAILED, GAVE_UP, PENDING, SEEN, TIMEOUT, Outcome, Watch
from scripts.stack.waiting import PATIENCE

TOKEN = "a-token-that-nobody-may-see"
Connect = Callable[..., None]
WORKER, TRIGGERER, POKE = "worker", "triggerer", "poke"
PATHS = (WORKER, TRIGGERER, POKE)


class StateStore:
    """The task state store of Airflow 3.3: JSON, no None, kept over tries and clears."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def get(self, key: str, default: Any = None) -> Any:
        return json.loads(self.kept[key]) if key in self.kept else default

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        if value is None:
            raise ValueError("None is not a value of the store")
        self.kept[key] = json.dumps(value, allow_nan=False)

    def delete(self, key: str) -> None:
        self.kept.pop(key, None)


@dataclass
class TaskRun:
    """A task instance: ``context()`` for a try; `retry` and `clear` do to it what Airflow does."""

    task_id: str = "kickoff"
    retries: int = 2
    store: StateStore = field(default_factory=StateStore)
    try_number: int = 1
    clears: int = 0
    run_started: datetime = field(default_factory=lambda: datetime.now(UTC))
    run_after: datetime | None = field(default_factory=lambda: datetime.now(UTC))  # None before Airflow 3
    xcom: dict[str, Any] = field(default_factory=dict)
    upstream: dict[str, TaskRun] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.max_tries = self.retries

    def retry(self) -> TaskRun:
        self.try_number += 1
        self.xcom = {}
        return self

    def clear(self, *, counted: bool = True) -> TaskRun:
        """Clear the task; ``counted`` is False for Airflow before 3.2 while the DAG run goes on."""
        self.max_tries = self.try_number + self.retries
        self.clears += counted
        if clears_discard_task_state():
            self.store.kept.clear()
        return self.retry()

    def context(self) -> dict[str, Any]:
        ti = SimpleNamespace(
            dag_id="dag",
            run_id="run",
            task_id=self.task_id,
            map_index=-1,
            try_number=self.try_number,
            max_tries=self.max_tries,
            start_date=datetime.now(UTC),
            xcom_push=lambda key, value: self.xcom.__setitem__(key, json.loads(json.dumps(value))),
            xcom_pull=self._pull,
            get_first_reschedule_date=lambda context: None,
        )
        dag_run = SimpleNamespace(clear_number=self.clears, start_date=self.run_started, run_after=self.run_after)
        return {"ti": ti, "task_instance": ti, "dag_run": dag_run, "task_state_store": self.store}

    def _pull(self, task_ids: list[str] | str | None = None, key: str = "return_value", **more: Any) -> Any:
        """Return what tasks upstream have pushed, as Airflow does for several task ids; None without such a task."""
        if not isinstance(task_ids, list):
            return None
        return [self.upstream[each].xcom.get(key) if each in self.upstream else None for each in task_ids]


def run(operator: Any, task_run: TaskRun | None = None) -> Any:
    """Execute an operator to its end; what it defers to runs as in a triggerer, and each part in a fresh process."""
    context = (task_run or TaskRun(operator.task_id)).context()
    try:
        return fresh(operator).execute(context)
    except TaskDeferred as deferral:
        deferred = deferral
    while True:
        event = fire(deferred.trigger)
        kwargs = {**json.loads(json.dumps(deferred.kwargs or {})), "event": event}
        try:
            return fresh(operator).resume_execution(deferred.method_name, kwargs, context)
        except TaskDeferred as deferral:
            deferred = deferral


def die_after_recording(task_run: TaskRun, operator: Any) -> None:
    """Execute an operator in a worker that dies right after it has recorded the answer to its POST."""
    context = task_run.context()

    def die(key: str, value: Any) -> None:
        raise KeyboardInterrupt

    context["ti"].xcom_push = die
    with pytest.raises(KeyboardInterrupt):
        operator.execute(context)


def tell_states(monkeypatch: pytest.MonkeyPatch, state: Callable[[str], Any], **process: Any) -> None:
    """Let Airflow 3 tell the state of a task by its id, or fail to, as its processes ask it.

    :param process: more of Airflow's module in this process, as ``SUPERVISOR_COMMS`` of one that has a supervisor
    """

    def get_task_states(*, run_ids: list[str], task_ids: list[str], map_index: int | None, **dag: Any) -> Any:
        names = [each if map_index in (-1, None) else f"{each}_{map_index}" for each in task_ids]
        return {run_id: {name: state(name) for name in names} for run_id in run_ids}

    asked = SimpleNamespace(get_task_states=get_task_states)
    monkeypatch.setattr(supervisor, "task_runner", SimpleNamespace(RuntimeTaskInstance=asked, **process))


def fresh(operator: Any) -> Any:
    """Return the operator as another process has it: nothing is left of what it learned."""
    return copy.copy(operator)


def stored(trigger: Any) -> Any:
    """Return the trigger as a triggerer rebuilds it from the database."""
    path, kwargs = trigger.serialize()
    module, name = path.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)(**json.loads(json.dumps(kwargs)))


def fire(trigger: Any) -> Any:
    """Return the payload of the trigger's one event, as it crosses to a worker."""

    async def wait() -> Any:
        rebuilt = stored(trigger)
        try:
            async for event in rebuilt.run():
                return json.loads(json.dumps(event.payload))
        finally:
            await rebuilt.cleanup()

    return asyncio.run(asyncio.wait_for(wait(), PATIENCE))


def wait(path: str, *, timeout: float | None = None, **watching: Any) -> Outcome:
    """Wait for execution k-1 as a worker, a triggerer or a poking sensor does, and return how it ended."""
    options = {"poll_interval": 0.05, **watching}
    if path == POKE:
        return _poke(timeout, **options)
    now = time.time()
    watch = Watch(kickoff_id="k-1", started=now, deadline=now + timeout if timeout else None, **options)
    if path == WORKER:
        return Poller(CrewHook()).wait(watch)
    while True:
        outcome = Outcome.from_event(fire(CrewStatusTrigger.of(watch, "crew_default", False)))
        if outcome.kind != SEEN:
            return outcome
        watch.progress.known = True


def _poke(timeout: float | None, poll_interval: float, **options: Any) -> Outcome:
    sensor = CrewStatusSensor(
        task_id="wait",
        kickoff_id="k-1",
        poke_interval=poll_interval,
        timeout=timeout or 60,
        deferrable=False,
        **options,
    )
    try:
        record = run(sensor)
    except AirflowException as error:
        return Outcome(_kind(error), "k-1", str(error))
    return Outcome({"completed": COMPLETED, "pending": PENDING}[record["state"]], "k-1", "", record["crew_task_id"])


def _kind(error: AirflowException) -> str:
    name = type(error).__name__
    return {"AirflowSensorTimeout": TIMEOUT, "CrewTaskFailed": FAILED}.get(name, GAVE_UP)
