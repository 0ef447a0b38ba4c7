"""The log lines on tasks that a crew has finished: each once, with what the service reports of it."""

from __future__ import annotations

from typing import Any

import pytest
from watched import T0, S, seen, watch

from airflow_crew_provider.exceptions import CrewServerError
from airflow_crew_provider.models import Execution, TaskResult
from airflow_crew_provider.wait.narrator import MOST_TOLD
from airflow_crew_provider.wait.watch import (
    COMPLETED,
    PENDING,
    RESULTS_WITHIN,
    Refresh,
    Results,
    Sleep,
    StatusRequest,
    Watch,
    steps,
)

RESEARCH = TaskResult(task_id="research", agent="Researcher", output="x", execution_time=1234.04)
WRITE = TaskResult(task_id="write\nforged", agent=None, output="x", execution_time=None)
CHECK = TaskResult(task_id="check", agent="Checker\nforged", output="x", execution_time=0.0)
RESEARCHED = "Execution k-1: task research by Researcher has ended after 1,234.0 s"
WRITTEN = "Execution k-1: task write forged has ended"
CHECKED = "Execution k-1: task check by Checker forged has ended after 0.0 s"


def at(task: str | None, ended: int | None = None, **more: Any) -> Execution:
    return seen(**{"current_task": task, "completed_tasks": ended, **more})


def told(one: Watch, reply: Execution, *results: TaskResult, after: float = 0) -> list[str]:
    return one.narrator.ended_tasks("k-1", reply, results, now=T0 + after)


def test_each_result_is_told_once() -> None:
    one = watch()
    assert told(one, at("research", 0)) == []
    assert told(one, at("check", 2), RESEARCH, WRITE) == [RESEARCHED, WRITTEN]
    assert told(one, at("check", 2), RESEARCH, WRITE) == []
    assert told(one, at("check", 1), RESEARCH, WRITE) == [], "a status that lags"
    assert told(one, at(None, 3, state=S.COMPLETED), RESEARCH, WRITE, CHECK) == [CHECKED]
    assert one.narrator.ended == 3


def test_a_name_is_cut_and_may_be_missing() -> None:
    long = TaskResult(task_id="t" * 61, agent="a" * 61, output="x", execution_time=None)
    nameless = TaskResult(task_id=None, agent="Researcher", output="x", execution_time=2)
    assert told(watch(), at(None, 2), long, nameless) == [
        f"Execution k-1: task {'t' * 60} by {'a' * 60} has ended",
        "Execution k-1: a task by Researcher has ended after 2.0 s",
    ]


def test_a_result_not_yet_in_the_status_is_told_later() -> None:
    one = watch()
    assert told(one, at("write", 1), RESEARCH, WRITE) == [RESEARCHED]
    assert told(one, at("check", 2), RESEARCH, WRITE) == [WRITTEN]


def test_results_in_the_status_count_as_finished_tasks() -> None:
    one = watch()
    assert one.narrator.has_ended_tasks(at(None)) is False
    reply = at(None, 1, state=S.PENDING, tasks=(RESEARCH, WRITE))
    assert one.narrator.has_ended_tasks(reply) is True
    assert told(one, reply, *reply.tasks) == [RESEARCHED, WRITTEN]
    assert one.narrator.has_ended_tasks(reply) is False
    assert one.narrator.has_ended_tasks(at(None, 3)) is True


def test_a_wait_that_shall_not_tell_of_tasks_does_not() -> None:
    one = watch(ended=None)
    assert one.narrator.has_ended_tasks(at(None, 1)) is False
    assert told(one, at("write", 1), RESEARCH) == []


@pytest.mark.parametrize("state", [S.ERROR, S.NOT_FOUND])
def test_an_execution_not_at_work_reports_no_task_news(state: S) -> None:
    one = watch()
    assert told(one, at("research", 0)) == []
    assert told(one, at(None, 1, state=state), RESEARCH) == []


@pytest.mark.parametrize("counts", [(0, 0, 1), (None, None, None)], ids=["counted", "not counted"])
def test_without_results_an_ended_task_is_told_with_observed_duration(
    counts: tuple[Any, Any, Any],
) -> None:
    one = watch()
    assert told(one, at(None, counts[0])) == []
    assert told(one, at("research\nforged", counts[0]), after=10) == []
    assert told(one, at("research\nforged", counts[1]), after=40) == []
    ended = ["Execution k-1: task research forged has ended after about 1 min"]
    assert told(one, at("write", counts[2]), after=70) == ended
    assert told(one, at("write", counts[2]), after=80) == []
    assert told(one, at(None, counts[2] and 2, state=S.COMPLETED), after=130) == [
        "Execution k-1: task write has ended after about 1 min"
    ]


def test_a_task_change_without_a_counted_end_is_no_end() -> None:
    one = watch()
    assert told(one, at("research", 0)) == []
    assert told(one, at("review of research", 0), after=10) == []
    assert told(one, at("review of research", 1), after=20) == [], "which of them has ended is not known"


def test_the_first_of_many_results_are_told_and_others_counted() -> None:
    many = [TaskResult(task_id=f"t{number}", agent=None, output="x", execution_time=None) for number in range(22)]
    lines = [f"Execution k-1: task t{number} has ended" for number in range(MOST_TOLD)]
    assert told(watch(), at(None, MOST_TOLD), *many) == lines
    assert told(watch(), at(None, 22), *many) == [*lines, "... and 2 more tasks"]


# --- the request for results ---


def said_in(reply: Execution, results: Any, **more: Any) -> tuple[list[str], Any]:
    """Return the lines on tasks in a wait that gets this reply and then results, and its next step."""
    said: list[str] = []
    walk = steps(watch(**more), lambda: T0, said.append)
    assert isinstance(next(walk), StatusRequest)
    try:
        step = walk.send(reply)
        while not isinstance(step, Sleep):
            step = walk.send(results if isinstance(step, Results) else False)
    except StopIteration as end:
        return said, end.value
    return [line for line in said if "has ended" in line], step


def test_results_are_requested_once_where_the_service_has_details() -> None:
    reply = at("write", 1, has_details=True)
    said: list[str] = []
    walk = steps(watch(), lambda: T0, said.append)
    next(walk)
    assert walk.send(reply) == Results(RESULTS_WITHIN)
    assert isinstance(walk.send([RESEARCH]), Sleep)
    assert said == [RESEARCHED, "Execution k-1 is running: 1 tasks, now write, 0 s so far"]
    next(walk)
    assert isinstance(walk.send(at("write", 1, has_details=True)), Sleep)


def test_results_are_requested_while_a_person_is_waited_for_too() -> None:
    reply = at("write", 1, state=S.PENDING, crew_task_id="write", has_details=True)
    lines, outcome = said_in(reply, [RESEARCH])
    assert (lines, outcome.kind) == ([RESEARCHED], PENDING)


def test_at_the_end_the_results_are_those_of_the_status() -> None:
    reply = at(None, 1, state=S.COMPLETED, output="x", tasks=(RESEARCH,), has_details=True)
    lines, outcome = said_in(reply, AssertionError("not requested"))
    assert (lines, outcome.kind) == ([RESEARCHED], COMPLETED)


@pytest.mark.parametrize("has_details", [True, False])
def test_without_results_a_wait_tells_what_it_saw_itself(has_details: bool) -> None:
    said: list[str] = []
    now = [T0]
    walk = steps(watch(), lambda: now[0], said.append)
    step = next(walk)
    for reply in (at("research", 0, has_details=has_details), at("write", 1, has_details=has_details)):
        step = walk.send(reply)
        if isinstance(step, Results):
            step = walk.send(CrewServerError(500, "GET", "/executions/k-1", "no"))
        assert not isinstance(step, Refresh)
        now[0] += 5
        next(walk)
    assert "Execution k-1: task research has ended after about 5 s" in said
