"""The parameters of each task that waits, and what it reports of its executions."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import Asset
from faults.variables import Variables

from airflow_crew_provider.api.budget import NO_BUDGET, Budget
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import ExecutionState, Json
from airflow_crew_provider.stored_names import USAGE_KEY, USAGE_STATE
from airflow_crew_provider.task.waiting import WaitingTask
from airflow_crew_provider.wait.output import OutputRules

USED = {"total_tokens": 9}
SCHEMA = {"type": "object"}


class Waiting(WaitingTask):
    """A task that waits."""

    crew_conn_id = "crew_default"

    def __init__(self, **parameters: Any) -> None:
        super().__init__(task_id="wait", **parameters)


# --- parameters ---


@pytest.mark.parametrize(
    ("given", "rules"),
    [
        ({}, OutputRules()),
        (
            {
                "output_schema": SCHEMA,
                "max_total_tokens": 5,
                "max_cost": 1.5,
                "on_unknown_usage": "ignore",
                "output_to": Path("/a/b"),
                "files_to": Path("/c"),
            },
            OutputRules(SCHEMA, Budget(5, 1.5), "ignore", "/a/b", False, "/c"),
        ),
        ({"multiple_outputs": True}, OutputRules(multiple_outputs=True)),
    ],
    ids=["none", "all", "keys"],
)
def test_parameters_are_the_rules_for_a_completed_execution(given: Json, rules: OutputRules) -> None:
    task = Waiting(**given)
    assert task.output_rules == rules
    assert task.budget == rules.budget
    assert task.multiple_outputs is rules.multiple_outputs


def test_other_parameters_are_those_of_airflow() -> None:
    assert Waiting(retries=2).retries == 2


@pytest.mark.parametrize(
    ("given", "watched"),
    [({}, Budget(5)), ({"stop_over_budget": True}, Budget(5)), ({"stop_over_budget": False}, NO_BUDGET)],
)
def test_only_a_watched_budget_stops_an_execution(given: Json, watched: Budget) -> None:
    assert Waiting(max_total_tokens=5, **given).watched_budget == watched


@pytest.mark.parametrize(("name", "kind"), [("output_to", "a file or an object"), ("files_to", "a folder")])
def test_an_empty_path_is_refused_by_name(name: str, kind: str) -> None:
    with pytest.raises(CrewInvalidInput) as refused:
        Waiting(**{name: " "})
    assert str(refused.value) == f"{name} must be the path of {kind}, not ' '"


def test_rules_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(CrewInvalidInput, match="multiple_outputs"):
        Waiting(multiple_outputs=True, output_to="/a")


# --- reports ---


class OutletEvents(dict[str, SimpleNamespace]):
    """The events of outlets, by URI: on Airflow 3.0, an outlet has no hash."""

    def __getitem__(self, outlet: Any) -> SimpleNamespace:
        return self.setdefault(outlet.uri, SimpleNamespace(extra={}))


class Tries:
    """The tries of a task, each with what it pushed."""

    def __init__(self, **parameters: Any) -> None:
        self.parameters = parameters
        self.number = 0

    def next(self) -> Waiting:
        self.number += 1
        self.pushed: Json = {}
        self.ti = SimpleNamespace(
            dag_id="dag",
            run_id="run",
            task_id="wait",
            map_index=-1,
            try_number=self.number,
            max_tries=3,
            xcom_push=lambda key, value: self.pushed.update({key: value}),
        )
        self.events = OutletEvents()
        self.context = {
            "ti": self.ti,
            "task_state_store": SimpleNamespace(get=lambda key: None),
            "outlet_events": self.events,
        }
        task = Waiting(**self.parameters)
        task.new_worker(self.context)
        return task

    @property
    def executions(self) -> Any:
        return self.pushed.get(USAGE_KEY)


def entry(number: int, state: str) -> Json:
    return {"execution_id": f"e-{number}", "kickoff_id": f"k-{number}", "state": state, "usage": USED}


def report(tries: Tries, task: Waiting, number: int, state: ExecutionState) -> None:
    task.report(tries.context, state, f"k-{number}", execution_id=f"e-{number}", usage=USED)


def test_a_worker_is_that_of_its_try() -> None:
    tries, source = Tries(), object()
    task = tries.next()
    worker = task.new_worker(tries.context, source)  # type: ignore[arg-type]
    assert task.worker is worker
    assert (worker.hook, worker.log, worker.context) == (task.hook, task.log, tries.context)
    assert worker.poller._source is source


def test_a_task_pushes_what_its_executions_used(a_memory: Variables) -> None:
    tries = Tries()
    task = tries.next()
    report(tries, task, 1, ExecutionState.COMPLETED)
    task.end_of_try(None)
    assert tries.executions == {"executions": [entry(1, "completed")]}
    assert a_memory.kept == {}


def test_a_failed_try_leaves_its_executions_to_the_next(a_memory: Variables) -> None:
    tries = Tries(retries=2)
    task = tries.next()
    report(tries, task, 1, ExecutionState.ERROR)
    task.end_of_try(RuntimeError("failed"))
    [kept] = a_memory.kept.values()
    assert json.loads(kept)["parts"][USAGE_STATE]["retries"] == 2
    task = tries.next()
    report(tries, task, 2, ExecutionState.COMPLETED)
    task.end_of_try(None)
    assert tries.executions == {"executions": [entry(1, "error"), entry(2, "completed")]}


def test_a_task_that_ends_before_it_began_pushes_nothing() -> None:
    Waiting().end_of_try(None)


def test_a_report_is_added_to_the_events_of_outlets() -> None:
    drafts = Asset("crew://drafts")
    tries = Tries(outlets=[drafts])
    report(tries, tries.next(), 1, ExecutionState.RUNNING)
    assert tries.events[drafts].extra == {
        "crew_conn_id": "crew_default",
        "kickoff_id": "k-1",
        "execution_id": "e-1",
        "state": "running",
        "usage": USED,
    }
