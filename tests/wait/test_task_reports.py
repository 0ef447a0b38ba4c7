"""What a task has noted of its execution, as OpenLineage reads it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_crew_provider.models import ExecutionState
from airflow_crew_provider.wait.task import CrewTask

pytest.importorskip("openlineage.client")


class Task(CrewTask):
    """A task that does nothing."""

    def __init__(self, **more: Any) -> None:
        super().__init__(task_id="task")
        self.crew_conn_id = "crew_a"
        self.__dict__.update(more)


def facet(task: Task) -> dict[str, Any]:
    """Return the fields of the facet that are known."""
    names = ("connId", "inputNames", "kickoffId", "executionId", "state", "totalTokens", "costUsd")
    crew = task.get_openlineage_facets_on_start().run_facets["crew"]
    return {name: getattr(crew, name) for name in names if getattr(crew, name) is not None}


@pytest.mark.parametrize(
    ("inputs", "names"), [({"b": 1, "a": 2}, ["a", "b"]), ("{{ a_template }}", []), ({1: "x"}, ["1"]), (None, [])]
)
def test_only_the_sorted_names_of_inputs_are_reported(inputs: Any, names: list[str]) -> None:
    assert facet(Task(inputs=inputs)) == {"connId": "crew_a", "inputNames": names}


def test_the_newest_report_counts() -> None:
    task = Task()
    task.report({}, ExecutionState.RUNNING, "k-1")
    task.report({}, ExecutionState.COMPLETED, "k-2", execution_id="k-1", usage={"total_tokens": 5, "cost_usd": 0.5})
    known = {"connId": "crew_a", "inputNames": []}
    ended = {"kickoffId": "k-2", "executionId": "k-1", "state": "completed", "totalTokens": 5, "costUsd": 0.5}
    assert facet(task) == {**known, **ended}


def test_the_root_is_the_tasks_execution_or_the_kickoff_itself() -> None:
    for task, root in ((Task(execution_id="k-0"), "k-0"), (Task(execution_id=None), "k-1"), (Task(), "k-1")):
        task.report({}, ExecutionState.RUNNING, "k-1")
        assert facet(task)["executionId"] == root


def test_a_lost_answer_keeps_the_ids_that_are_known() -> None:
    task = Task()
    task.report({}, ExecutionState.RUNNING, "k-1")
    task.report_unknown("resume")
    assert (facet(task)["kickoffId"], facet(task)["state"]) == ("k-1", "unknown")
