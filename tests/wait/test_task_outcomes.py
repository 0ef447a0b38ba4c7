"""How a wait ends in a worker: which errors are final, what they say, and until when a wait lasts."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowSensorTimeout
from warning_log import WarningLog

from airflow_crew_provider.api.answers import DraftId
from airflow_crew_provider.compat.retries import at_least
from airflow_crew_provider.exceptions import (
    CrewApiError,
    CrewBadRequest,
    CrewConnectionError,
    CrewError,
    CrewExecutionFailed,
    CrewInvalidInput,
    CrewNotFound,
    CrewOutcomeUnknown,
    CrewProtocolError,
    CrewRateLimited,
    CrewServerError,
    CrewUnauthorized,
    CrewWebPage,
)
from airflow_crew_provider.models import Execution, ExecutionState, TaskResult
from airflow_crew_provider.task.drive import Worker
from airflow_crew_provider.wait import outcomes
from airflow_crew_provider.wait import poller as poller_module
from airflow_crew_provider.wait import watch as watch_module
from airflow_crew_provider.wait.narrator import Progress
from airflow_crew_provider.wait.outcomes import (
    NET,
    CrewAnswerNotTaken,
    CrewTaskFailed,
    CrewTryFailed,
    ends_in_a_sentence,
    fail_task,
    is_final,
    is_over,
    seconds,
)
from airflow_crew_provider.wait.watch import (
    COMPLETED,
    FAILED,
    FORGIVEN,
    GAVE_UP,
    PENDING,
    SEEN,
    TIMEOUT,
    AnsweredDraft,
    Outcome,
    Watch,
    fate_of_stop,
)

WHERE = ("POST", "/kickoff", "no")
FINAL = [
    CrewConnectionError("no", permanent=True),
    CrewBadRequest(400, *WHERE),
    CrewNotFound(404, *WHERE),
    CrewInvalidInput("no"),
    CrewExecutionFailed("k-1", "no"),
]
PASSING = [
    CrewConnectionError("no"),
    CrewServerError(500, *WHERE),
    CrewRateLimited(429, *WHERE),
    CrewApiError(408, *WHERE),
    CrewApiError(425, *WHERE),
    CrewOutcomeUnknown("no"),
    CrewProtocolError("no"),
    CrewWebPage("no"),
]


@pytest.mark.parametrize("error", FINAL, ids=lambda error: type(error).__name__)
def test_an_error_that_comes_again_ends_the_task_for_good(error: CrewError) -> None:
    assert is_final(error) is True
    with pytest.raises(CrewTaskFailed) as raised:
        fail_task(error, "Now this")
    assert isinstance(raised.value, AirflowFailException)
    assert str(raised.value) == f"{error}. Now this"
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
def test_an_error_that_may_pass_is_left_to_the_retries(error: CrewError) -> None:
    assert is_final(error) is False
    with pytest.raises(AirflowException) as raised:
        fail_task(error)
    assert not isinstance(raised.value, AirflowFailException)
    assert str(raised.value) == str(error)
    assert raised.value.__cause__ is error


def test_what_now_leaves_no_full_stop_behind() -> None:
    with pytest.raises(AirflowException, match=r"^no\. XX$"):
        fail_task(CrewOutcomeUnknown("no"), "XX. ")


@pytest.mark.parametrize(("said", "shown"), [("No ink.", "No ink"), ("No ink", "No ink"), ("No ...", "No ...")])
def test_a_failure_message_ends_with_exactly_one_full_stop(said: str, shown: str) -> None:
    failure = CrewExecutionFailed("k-1", said)
    assert (str(failure), failure.error) == (f"The crew's execution k-1 failed: {shown}", said)


# --- a failure in one sentence ---


class Task:
    """A task that fails, with the hook that it has used, if any."""

    def __init__(self, error: Exception, place: str | None = "Connection 'crew' (https://x)") -> None:
        self.error = error
        if place is not None:
            self._hook = SimpleNamespace(place=place)

    @ends_in_a_sentence
    def execute(self) -> None:
        raise self.error


def failure_of(task: Task) -> Any:
    with pytest.raises(type(task.error)) as failure:
        task.execute()
    assert failure.value is task.error
    return failure.value


@pytest.mark.parametrize("kind", [CrewTaskFailed, CrewTryFailed, AirflowSensorTimeout])
@pytest.mark.parametrize("said", ["It failed", "It failed."])
def test_a_failure_names_the_connection_that_the_task_has_used(kind: type[Exception], said: str) -> None:
    assert str(failure_of(Task(kind(said)))) == "It failed. Connection 'crew' (https://x)"


@pytest.mark.parametrize(
    "task",
    [
        Task(CrewTaskFailed("It failed."), None),
        Task(CrewTaskFailed("It failed. Connection 'crew' (https://x) is wrong.")),
        Task(CrewInvalidInput("It failed.")),
        Task(RuntimeError("It failed.")),
    ],
    ids=["no connection", "named already", "of the client, which names it", "a bug"],
)
def test_any_other_failure_keeps_its_words(task: Task) -> None:
    said = str(task.error)
    assert str(failure_of(task)) == said


def test_a_failure_keeps_its_cause_for_callbacks_only() -> None:
    class Cleared(Task):
        @ends_in_a_sentence
        def execute(self) -> None:
            fail_task(PASSING[0])

    task = Cleared(CrewTryFailed())
    with pytest.raises(CrewTryFailed) as failure:
        task.execute()
    assert (failure.value.__cause__, failure.value.__context__) == (None, None)
    assert failure.value.reason is PASSING[0]  # type: ignore[attr-defined]


# --- retries ---


DELAY, OWN_DELAY = timedelta(seconds=10), timedelta(minutes=5)


@pytest.mark.parametrize(
    ("default_args", "least", "retries", "delay"),
    [
        (None, 2, 2, DELAY),
        ({}, 0, 0, DELAY),
        ({"retries": None}, 2, 2, DELAY),
        ({"retries": 0}, 2, 2, DELAY),
        ({"retries": 5, "owner": "ann"}, 2, 5, DELAY),
        ({"retries": "3"}, 2, 3, DELAY),
        ({"retry_delay": OWN_DELAY}, 3, 3, OWN_DELAY),
    ],
)
def test_a_task_has_its_dags_retries_but_some_at_least(
    default_args: Any, least: int, retries: int, delay: timedelta
) -> None:
    assert at_least(default_args, least) == {"retries": retries, "retry_delay": delay}
    assert at_least(None)["retries"] == 2


def test_a_task_has_airflows_configured_retries_if_higher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__DEFAULT_TASK_RETRIES", "6")
    assert [at_least(given)["retries"] for given in (None, {"retries": 1}, {"retries": 8})] == [6, 2, 8]


# --- times ---


@pytest.mark.parametrize(
    ("given", "read"),
    [(None, None), (0, 0.0), (5, 5.0), ("2.5", 2.5), (timedelta(minutes=1), 60.0), (1e9, 1e9)],
)
def test_a_time_is_read(given: Any, read: float | None) -> None:
    assert seconds(given) == read


@pytest.mark.parametrize("given", [-1, "soon", "", True, False, [], float("nan"), float("inf"), timedelta(-1)])
def test_what_is_no_time_is_refused_by_its_name(given: Any) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        seconds(given, "timeout")
    said = f"timeout must be a number of seconds or a timedelta, not {given!r}. Nothing was sent"
    assert str(error.value) == said
    with pytest.raises(CrewInvalidInput, match=r"^a time must be"):
        seconds(given)


@pytest.fixture
def noon(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(outcomes.time, "time", lambda: 1000.0)
    return 1000.0


def context(start: Any = None) -> dict[str, Any]:
    return {"ti": SimpleNamespace(start_date=start)}


STARTED = datetime.fromtimestamp(900, UTC)


@pytest.mark.parametrize(
    ("timeout", "execution_timeout", "start", "deadline"),
    [
        (None, None, None, None),
        (60, None, None, 1060.0),
        (None, timedelta(seconds=50), None, 1050.0),
        (None, timedelta(seconds=50), STARTED, 950.0),
        (60, timedelta(seconds=50), None, 1050.0),
        (40, timedelta(seconds=50), None, 1040.0),
        (0, None, None, 1000.0),
    ],
)
def test_a_wait_ends_at_the_earlier_of_two_timeouts(
    noon: float, timeout: Any, execution_timeout: Any, start: Any, deadline: float | None
) -> None:
    assert outcomes.deadline_of(context(start), timeout, execution_timeout) == deadline


def test_unstarted_tasks_count_from_now_and_bad_timeouts_are_named(noon: float) -> None:
    assert outcomes.deadline_of({"ti": object()}, None, timedelta(seconds=5)) == 1005.0
    with pytest.raises(CrewInvalidInput, match=r"^timeout must be"):
        outcomes.deadline_of(context(), "soon", None)


def test_airflows_own_timeout_comes_well_after_the_deadline(noon: float) -> None:
    assert outcomes.fallback_timeout(None) is None
    assert outcomes.fallback_timeout(1010.0) == timedelta(seconds=NET + 10)
    assert outcomes.fallback_timeout(990.0) == timedelta(seconds=NET)


@pytest.mark.parametrize(
    ("stopped", "fate"),
    [
        (None, "Execution k-1 was not stopped and may still be active"),
        (True, "Execution k-1 was stopped"),
        (
            False,
            "Execution k-1 could not be stopped: the service refused or does not support stopping, or it has already "
            "ended",
        ),
        (CrewProtocolError("odd"), "Execution k-1 could not be stopped (odd) and may still be active"),
    ],
)
def test_the_fate_of_an_execution_is_reported(stopped: Any, fate: str) -> None:
    assert fate_of_stop("k-1", stopped) == fate


class Hook:
    """Waits as it is told, and remembers the watch that it was given."""

    def __init__(self, kind: str, message: str = "") -> None:
        self._kind, self._message = kind, message

    def wait(self, watch: Watch) -> Outcome:
        self.watch = watch
        watch.progress.last = execution(ExecutionState.COMPLETED)
        return Outcome(self._kind, watch.kickoff_id, self._message)


def execution(state: ExecutionState) -> Execution:
    return Execution(kickoff_id="k-1", state=state, raw_state=str(state))


def watch(**more: Any) -> Watch:
    return Watch(**{"kickoff_id": "k-1", "started": time.time(), **more})


@pytest.mark.parametrize("kind", [COMPLETED, PENDING])
def test_what_the_worker_saw_itself_is_not_fetched_again(kind: str) -> None:
    seen = execution(ExecutionState(kind))
    hook: Any = Hook(GAVE_UP)
    assert outcomes.ended(hook, watch(progress=Progress(last=seen)), Outcome(kind, "k-1")) is seen


@pytest.mark.parametrize("kind", [COMPLETED, PENDING])
@pytest.mark.parametrize("interval", [0.5, 60.0])
def test_what_a_trigger_saw_is_fetched(noon: float, kind: str, interval: float) -> None:
    hook: Any = Hook(COMPLETED)
    answered = AnsweredDraft(DraftId("k-1", "t"), noon + 60)
    running = Progress(last=execution(ExecutionState.RUNNING))
    first = watch(poll_interval=interval, progress=running, answered=answered)
    assert outcomes.ended(hook, first, Outcome(kind, "k-1")) is hook.watch.progress.last
    again = hook.watch
    assert (again.kickoff_id, again.started, again.deadline) == ("k-1", noon, noon + FORGIVEN)
    assert again.poll_interval == min(interval, 5.0)
    assert (again.wait_past_pending, again.report_seen) == (kind == COMPLETED, kind == PENDING)
    assert again.answered is answered
    assert again.narrator.ended is None, "tasks that the trigger has logged are not logged again"


@pytest.mark.parametrize("kind", [SEEN, FAILED, GAVE_UP])
def test_what_follows_a_question_is_the_waits_outcome(kind: str) -> None:
    hook: Any = Hook(kind, "why")
    assert outcomes.ended(hook, watch(), Outcome(PENDING, "k-1")) == Outcome(kind, "k-1", "why")


@pytest.mark.parametrize(("first", "second"), [(COMPLETED, GAVE_UP), (COMPLETED, FAILED), (PENDING, TIMEOUT)])
def test_an_unfetchable_result_raises_an_error_that_says_so(first: str, second: str) -> None:
    hook: Any = Hook(second, "too late")
    with pytest.raises(CrewProtocolError) as error:
        outcomes.ended(hook, watch(), Outcome(first, "k-1"))
    said = f"Execution k-1 was seen as {first}, but its result could not be fetched: too late"
    assert str(error.value) == said


@pytest.mark.parametrize("state", ExecutionState)
def test_only_a_completed_or_failed_execution_has_ended(state: ExecutionState) -> None:
    assert is_over(execution(state)) is (state in (ExecutionState.COMPLETED, ExecutionState.ERROR))


def test_an_execution_is_not_over_because_a_poll_failed() -> None:
    assert is_over(CrewNotFound(404, *WHERE)) is False


@pytest.mark.parametrize(("advice", "said"), [("clear it", "No draft waits; clear it"), ("", "No draft waits")])
def test_an_answer_without_effect_states_the_fact_before_advice(advice: str, said: str) -> None:
    error = CrewAnswerNotTaken("No draft waits", advice)
    assert (str(error), error.fact) == (said, "No draft waits")


def test_a_completion_line_contains_what_the_service_reports() -> None:
    tasks = [
        TaskResult(task_id=f"t{number}", agent=agent, output="x", execution_time=1.0)
        for number, agent in enumerate(("Ann", "Bob\nforged", "Ann"))
    ]
    known = {"tasks": tuple(tasks), "execution_time": 38.25, "usage": {"total_tokens": 1250, "cost_usd": 0.5}}
    execution = Execution(
        kickoff_id="k-1", state=ExecutionState.COMPLETED, raw_state="completed", output="A text.", **known
    )
    assert outcomes.in_short(execution, "https://crew.example.com/k-1") == (
        "Execution k-1 has completed: 38.2 s of work, 3 tasks by Ann, Bob forged, 1,250 tokens, 0.5 USD, "
        "an output of 7 characters. https://crew.example.com/k-1"
    )
    bare = Execution(kickoff_id="k-1", state=ExecutionState.COMPLETED, raw_state="completed")
    assert outcomes.in_short(bare, "") == "Execution k-1 has completed: an output of 0 characters"


@pytest.mark.parametrize(
    ("agents", "said"),
    [
        ([None], "1 task"),
        ([None, None], "2 tasks"),
        (["a"], "1 task by a"),
        ([*"abcde"], "5 tasks by a, b, c, d, e"),
        ([*"abcdea"], "6 tasks by a, b, c, d, e"),
        ([*"abcdef"], "6 tasks by a, b, c, d, e and others"),
    ],
)
def test_a_completion_line_names_at_most_five_agents(agents: list[str | None], said: str) -> None:
    tasks = tuple(TaskResult(task_id="t", agent=agent, output="x", execution_time=None) for agent in agents)
    execution = Execution(
        kickoff_id="k-1", state=ExecutionState.COMPLETED, raw_state="completed", output="x", tasks=tasks
    )
    expected = f"Execution k-1 has completed: {said}, an output of 1 characters"
    assert outcomes.in_short(execution, "") == expected


# --- an execution over its budget ---


BUSY = CrewServerError(503, "POST", "/stop/k-1", "busy")
WHAT_NOW = "A retry would fail too; raise the limit, or make the crew use less, and clear the kickoff to start again"


class Service:
    """Answers requests to stop an execution one after the other, the last for ever; time passes by sleeping."""

    crew_conn_id = "crew_default"

    def __init__(self, *answers: bool | CrewError, shows: Any = None) -> None:
        self.client, self.answers, self.shows = self, [*answers], shows
        self.now, self.slept, self.renewed, self.polls = 1000.0, list[float](), list[bool](), 0

    def stop(self, kickoff_id: str) -> bool:
        assert kickoff_id == "k-1"
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, CrewError):
            raise answer
        return answer

    def send(self, call: Any, *, timeout: float | None) -> Any:
        assert call.path == "/status/k-1"
        self.polls += 1
        if isinstance(self.shows, CrewError):
            raise self.shows
        return self.shows

    def refresh(self, *, at_once: bool) -> bool:
        self.renewed.append(at_once)
        raise CrewConnectionError("Airflow is away")

    def sleep(self, seconds: float) -> None:
        assert len(self.slept) < 200, "it waits for ever"
        self.slept.append(seconds)
        self.now += seconds


def over_budget(service: Any, monkeypatch: pytest.MonkeyPatch, log: Any) -> str:
    monkeypatch.setattr(poller_module, "time", SimpleNamespace(time=lambda: service.now, sleep=service.sleep))
    monkeypatch.setattr(watch_module, "random", SimpleNamespace(random=lambda: 0.5))
    with pytest.raises(CrewTaskFailed) as failure:
        Worker(service, log).fail_over_budget("k-1", "used 7 tokens, more than max_total_tokens of 5")
    said = str(failure.value)
    assert said.startswith("Execution k-1 used 7 tokens, more than max_total_tokens of 5. ")
    assert said.endswith(f". {WHAT_NOW}")
    return said.removesuffix(f". {WHAT_NOW}").partition(" of 5. ")[2]


@pytest.mark.row("N33")
@pytest.mark.parametrize(
    ("stopped", "shows", "fate"),
    [
        (True, None, "Execution k-1 was stopped"),
        (False, execution(ExecutionState.COMPLETED), "Execution k-1 has ended"),
        (False, execution(ExecutionState.ERROR), "Execution k-1 has ended"),
        (
            False,
            execution(ExecutionState.RUNNING),
            "Execution k-1 could not be stopped: the service refused or does not support stopping, so it keeps running",
        ),
        (
            False,
            execution(ExecutionState.NOT_FOUND),
            "Execution k-1 could not be stopped: the service refused or does not support stopping, or it has already "
            "ended",
        ),
        (
            False,
            BUSY,
            "Execution k-1 could not be stopped: the service refused or does not support stopping, or it has already "
            "ended",
        ),
        (
            CrewUnauthorized(401, "POST", "/stop/k-1", "no"),
            None,
            f"Execution k-1 could not be stopped ({CrewUnauthorized(401, 'POST', '/stop/k-1', 'no')}) and may still be "
            "active",
        ),
    ],
    ids=["stopped", "completed", "failed", "runs on", "not shown", "not known", "refused"],
)
def test_an_execution_over_its_budget_fails_with_its_fate(
    monkeypatch: pytest.MonkeyPatch, stopped: Any, shows: Any, fate: str
) -> None:
    service = Service(stopped, shows=shows)
    assert over_budget(service, monkeypatch, WarningLog()) == fate
    assert (service.slept, service.polls) == ([], 1 if stopped is False else 0)


@pytest.mark.row("N33")
def test_a_stop_is_tried_again_while_the_service_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    service, log = Service(BUSY, BUSY, True), WarningLog()
    assert over_budget(service, monkeypatch, log) == "Execution k-1 was stopped"
    assert log.lines == [f"Execution k-1 could not be stopped yet: {BUSY}"] * 2
    assert service.slept == pytest.approx([1.1, 2.0])
    assert service.renewed == [False, False], "the connection may have moved; a recent look-up is enough"


@pytest.mark.row("N33")
def test_a_stop_is_given_up_as_a_wait_is(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(BUSY)
    fate = f"Execution k-1 could not be stopped ({BUSY}) and may still be active"
    assert over_budget(service, monkeypatch, WarningLog()) == fate
    assert FORGIVEN < service.now - 1000.0 < FORGIVEN + 10
