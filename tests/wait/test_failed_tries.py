"""How a task's method ends: with one sentence, of the class that a retry policy names, after what is left to do."""

from __future__ import annotations

import pickle
import time
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_crew_provider.exceptions import CrewConnectionError, CrewError, CrewRateLimited
from airflow_crew_provider.task.drive import Worker
from airflow_crew_provider.wait import poller
from airflow_crew_provider.wait.outcomes import CrewTryFailed, ends_in_a_sentence, fail_task

LIMITED = CrewRateLimited(429, "POST", "/kickoff", "later", 7.0)


class Task:
    """A task whose method fails with an error, or returns."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.ends: list[Exception | None] = []

    def end_of_try(self, error: Exception | None) -> None:
        self.ends.append(error)

    @ends_in_a_sentence
    def execute(self) -> str:
        if isinstance(self.error, CrewError):
            fail_task(self.error, "A retry sends it again")
        if self.error:
            raise self.error
        return "done"


def failed() -> Any:
    with pytest.raises(CrewTryFailed) as error:
        Task(LIMITED).execute()
    return error.value


def test_a_failed_try_is_an_error_of_both_classes() -> None:
    error = failed()
    assert isinstance(error, CrewRateLimited)
    assert (error.status_code, error.retry_after, error.reason) == (429, 7.0, LIMITED)
    assert str(error) == f"{LIMITED}. A retry sends it again"
    kind = type(error)
    assert (kind.__name__, kind.__module__) == ("CrewTryFailed", "airflow_crew_provider.wait.outcomes")
    assert kind.__doc__ == CrewTryFailed.__doc__
    assert type(failed()) is kind


def test_a_failed_try_is_the_same_in_another_process() -> None:
    error = failed()
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.args, again.retry_after) == (str(error), error.args, 7.0)


@pytest.mark.parametrize("error", [LIMITED, RuntimeError("a bug")], ids=["expected", "bug"])
def test_a_task_hears_with_which_error_its_try_has_ended(error: Exception) -> None:
    task = Task(error)
    with pytest.raises((CrewTryFailed, RuntimeError)) as raised:
        task.execute()
    assert task.ends == [raised.value]


def test_a_task_hears_that_its_try_has_succeeded() -> None:
    task = Task()
    assert (task.execute(), task.ends) == ("done", [None])


def test_a_task_that_is_killed_has_not_ended_by_itself() -> None:
    task = Task(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        task.execute()
    assert task.ends == []


def test_a_task_without_its_own_end_ends_as_well() -> None:
    entry = ends_in_a_sentence(lambda task: "done")
    assert entry(SimpleNamespace()) == "done"


@pytest.mark.parametrize(
    ("error", "what_now", "said"),
    [
        (CrewConnectionError("away"), "", "away"),
        (CrewConnectionError("away"), "Nothing was sent", "away. Nothing was sent"),
        (CrewConnectionError("it ends. "), "", "it ends. "),
    ],
)
def test_a_sentence_says_what_follows_if_anything_does(error: CrewError, what_now: str, said: str) -> None:
    with pytest.raises(CrewTryFailed) as failure:
        fail_task(error, what_now)
    assert str(failure.value) == said


# --- a stop that no later try repeats ---


def test_a_patient_stop_gives_up_as_a_wait_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pauses take no time, and put the clock forward."""
    ahead = [0.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert len(slept) < 400, "it stops for ever"
        ahead[0] += seconds

    monkeypatch.setattr(poller, "time", SimpleNamespace(time=lambda: time.time() + ahead[0], sleep=sleep))
    refreshed: list[bool] = []

    def stop(kickoff_id: str) -> bool:
        raise CrewConnectionError(f"away from {kickoff_id}")

    hook: Any = SimpleNamespace(stop=stop, refresh=lambda *, at_once: refreshed.append(at_once))
    logged: list[Any] = []
    log = SimpleNamespace(warning=lambda *said: logged.append(said[0] % said[1:]))
    assert str(Worker(hook, log).stop("k-1", is_last=True)) == "away from k-1"
    assert 300 <= sum(slept) < 400
    assert min(slept) >= 1
    assert logged == ["Execution k-1 could not be stopped yet: away from k-1"] * len(slept)
    assert refreshed == [False] * len(slept)
