"""The loop that runs a task's steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_crew_provider.exceptions import CrewConnectionError, CrewError
from airflow_crew_provider.task.drive import Steps, drive
from airflow_crew_provider.wait.outcomes import CrewTryFailed


class Done(list[Any]):
    """A worker, as the steps that it has done."""

    def save(self) -> None:
        self.append("saved")


@dataclass
class Does:
    """A step that does what a test says."""

    what: Callable[[], Any]

    def do(self, worker: Any) -> Any:
        worker.append(self)
        return self.what()


def raises(error: BaseException) -> Does:
    def do() -> None:
        raise error

    return Does(do)


# --- the loop ---


def test_the_worker_does_each_step_and_returns_its_result() -> None:
    first, second, worker = Does(lambda: 1), Does(lambda: 2), Done()

    def steps() -> Steps[list[int]]:
        return [(yield first), (yield second)]

    assert drive(steps(), worker) == [1, 2]
    assert worker == ["saved", first, "saved", second, "saved"]


def test_what_failing_steps_have_changed_is_on_record_too() -> None:
    worker = Done()

    def steps() -> Steps[None]:
        raise CrewConnectionError("away")
        yield

    with pytest.raises(CrewConnectionError):
        drive(steps(), worker)
    assert worker == ["saved"]


def test_a_step_whose_record_cannot_be_stored_is_not_done() -> None:
    class Full(Done):
        def save(self) -> None:
            raise CrewConnectionError("full")

    def steps() -> Steps[str]:
        try:
            yield Does(lambda: "sent")
        except CrewConnectionError as error:
            raise CrewTryFailed(f"{error}; nothing was sent") from error
        return "sent"

    worker = Full()
    with pytest.raises(CrewConnectionError, match="full"):
        drive(steps(), worker)
    assert worker == []


def test_steps_may_catch_an_error_where_they_yielded_and_continue() -> None:
    refused = CrewConnectionError("away")

    def steps() -> Steps[Any]:
        try:
            yield raises(refused)
        except CrewError as error:
            return error, (yield Does(lambda: "afterwards"))

    assert drive(steps(), Done()) == (refused, "afterwards")


@pytest.mark.parametrize("end", [KeyboardInterrupt(), CrewConnectionError("away")])
def test_an_unhandled_error_ends_the_task_like_a_kill(end: BaseException) -> None:
    left: list[str] = []

    def steps() -> Steps[None]:
        try:
            yield raises(end)
        finally:
            left.append("cleaned up")

    with pytest.raises(type(end)):
        drive(steps(), Done())
    assert left == ["cleaned up"]
