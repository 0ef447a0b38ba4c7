"""The steps of a wait, taken by hand."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_crew_provider.api.budget import NO_BUDGET, Budget
from airflow_crew_provider.compat import metrics
from airflow_crew_provider.exceptions import (
    CrewConnectionError,
    CrewError,
    CrewExecutionFailed,
    CrewProtocolError,
    CrewTimeout,
    to_json,
)
from airflow_crew_provider.models import Execution, ExecutionState, Json, WrittenFile
from airflow_crew_provider.stored_names import EXECUTION_KEY, LINK_KEY
from airflow_crew_provider.task.drive import Defer, Do, Fetch, Pause, PollOnce, PollUntilOver
from airflow_crew_provider.task.waiting import CrewOverBudget, Wait
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, CrewTryFailed, in_short
from airflow_crew_provider.wait.output import OutputRules
from airflow_crew_provider.wait.watch import (
    COMPLETED,
    FAILED,
    GAVE_UP,
    OVER_BUDGET,
    PENDING,
    SEEN,
    TIMEOUT,
    Outcome,
    Watch,
)

USED = {"total_tokens": 9, "cost_usd": 0.5}
FILE = WrittenFile("a.txt", 1, 3, "0" * 64, view="/view/a")


class Log(list[str]):
    """What was logged, as lines."""

    def info(self, message: str, *given: object) -> None:
        self.append(message % given)


@dataclass
class Connection:
    """The connection, as far as a wait uses it; a broken one cannot be looked up."""

    is_broken: bool = False
    flow_webhook_secret: str = ""

    def link(self, kickoff_id: str, execution_id: str | None, view: str | None) -> str:
        return f"{kickoff_id} of {execution_id} at {view}"

    def page(self, view: str | None) -> str:
        return f"https://crew.example{view}"


class Hook:
    """The hook, as far as a wait uses it."""

    crew_conn_id = "crew_default"

    def __init__(self, log: Log) -> None:
        self.log, self.given = log, Connection()
        self.client = SimpleNamespace(send=lambda call, **_: [FILE])

    @property
    def connection(self) -> Connection:
        if self.given.is_broken:
            raise CrewConnectionError("no such connection")
        return self.given

    def mask(self, text: str) -> str:
        return text.replace("hunter2", "***")

    mask_for_log = mask


@dataclass
class Task:
    """The parts of a task on which its wait depends."""

    deferrable: bool = True
    poll_in_worker: float = 0.0
    crew_conn_id: str = "crew_default"
    cancel_on_kill: bool = True
    budget: Budget = NO_BUDGET
    watched_budget: Budget = NO_BUDGET
    multiple_outputs: bool = True
    output_rules: OutputRules = field(default_factory=OutputRules)
    reported: list[Any] = field(default_factory=list)
    files: list[Json] = field(default_factory=list)

    def report(
        self,
        context: Any,
        state: ExecutionState,
        kickoff_id: str,
        *,
        execution_id: str | None,
        usage: Json | None,
    ) -> None:
        assert (kickoff_id, execution_id, "ti" in context) == ("k-1", "e-1", True)
        self.reported.append((state, usage))

    def report_files(self, context: Any, record: Json) -> None:
        assert "ti" in context
        self.files += record.get("files", [])


class Waits(Wait):
    """A wait with what it has logged and pushed."""

    def __init__(self, task: Task, watch: Watch, *, inbox: Json | None = None, view: str | None = None) -> None:
        self.logged = Log()
        self.pushed: Json = {}
        ti = SimpleNamespace(
            dag_id="dag", run_id="run", task_id="wait", map_index=-1, xcom_push=lambda key, value: self.push(key, value)
        )
        self.hook = Hook(self.logged)
        worker: Any = SimpleNamespace(hook=self.hook, log=self.logged, context={"ti": ti})
        super().__init__(task, worker, watch, inbox=inbox, execution_id="e-1", view=view)  # type: ignore[arg-type]

    def push(self, key: str, value: Any) -> None:
        assert key not in self.pushed
        self.pushed[key] = value


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was counted for Airflow's metrics."""
    counted: list[Any] = []

    def incr(name: str, number: int, *, tags: Json) -> None:
        counted.append((name, number, tags))

    monkeypatch.setattr(metrics, "_stats", lambda _: SimpleNamespace(incr=incr))
    return counted


def wait(task: Task, *, inbox: Json | None = None, view: str | None = None, **watch: Any) -> Waits:
    return Waits(task, Watch(kickoff_id="k-1", **{"started": 0.0, **watch}), inbox=inbox, view=view)


def execution(state: ExecutionState, **more: Any) -> Execution:
    return Execution(kickoff_id="k-1", state=state, raw_state=str(state), **more)


def end_of(steps: Any, reply: Any) -> Any:
    with pytest.raises(StopIteration) as end:
        steps.send(reply)
    return end.value.value


# --- polls and deferrals ---


def test_a_wait_polls_once_and_defers_with_what_it_knows() -> None:
    waiting = wait(Task(), deadline=60.0, inbox={"registration": "r-1", "url": "u"})
    waiting.watch.narrator.ended = 2
    steps = waiting.begin()
    assert next(steps) == PollOnce(waiting.watch)
    deferred = steps.send(None)
    assert isinstance(deferred, Defer)
    assert deferred.kwargs == {
        "waiting": {"started": 0.0, "deadline": 60.0, "ended": 2, "kickoff_id": "k-1", "inbox": "r-1"}
    }
    with pytest.raises(AssertionError, match=r"^nothing follows a deferral$"):
        steps.send(None)


@pytest.mark.parametrize("inbox", [None, {"registration": "r-1"}])
def test_the_trigger_goes_on_with_the_workers_watch(inbox: Json | None) -> None:
    deferred: Any = next(wait(Task(cancel_on_kill=False, crew_conn_id="crew_other"), inbox=inbox).go_on())
    trigger = deferred.trigger
    assert (trigger.kickoff_id, trigger.crew_conn_id, trigger.cancel_on_kill) == ("k-1", "crew_other", False)
    assert trigger.inbox == inbox
    assert deferred.kwargs["waiting"]["inbox"] == (inbox and "r-1")


@pytest.mark.parametrize(("deadline", "timeout"), [(None, None), (0.0, timedelta(minutes=10))])
def test_airflow_ends_a_wait_well_after_its_deadline(deadline: float | None, timeout: timedelta | None) -> None:
    deferred: Any = next(wait(Task(), deadline=deadline).go_on())
    assert deferred.timeout == timeout


@pytest.mark.parametrize("begin", [Wait.begin, Wait.go_on])
def test_a_wait_that_is_not_deferrable_stays_in_its_worker(begin: Any) -> None:
    waiting = wait(Task(deferrable=False))
    steps = begin(waiting)
    assert next(steps) == PollUntilOver(waiting.watch)
    assert steps.send(outcome := Outcome(COMPLETED, "k-1")) == Fetch(waiting.watch, outcome)


def test_a_poll_in_the_worker_is_repeated_before_the_deferral() -> None:
    waiting = wait(Task(poll_in_worker=1e12), poll_interval=30.0)
    steps = waiting.begin()
    assert isinstance(next(steps), PollOnce)
    pause = steps.send(None)
    assert isinstance(pause, Pause)
    assert 0 < pause.seconds <= 6
    assert isinstance(steps.send(None), PollOnce)
    assert isinstance(steps.send(Outcome(COMPLETED, "k-1")), Fetch)
    assert waiting.watch.poll_interval == 30.0


@pytest.mark.parametrize(("poll_in_worker", "step"), [(0.3, Defer), (3.0, Pause)])
def test_no_poll_in_the_worker_is_later_than_it_may(poll_in_worker: float, step: type) -> None:
    """The pause is about a second."""
    steps = wait(Task(poll_in_worker=poll_in_worker), started=time.time()).begin()
    next(steps)
    assert isinstance(steps.send(None), step)


@pytest.mark.parametrize(
    ("seen", "pushed"), [("/page/1", ["/page/1"]), ("/page/0", []), (None, []), ("", [])], ids=repr
)
def test_the_link_is_pushed_again_with_a_new_page(seen: str | None, pushed: list[str]) -> None:
    waiting = wait(Task(), view="/page/0")
    for _ in range(2):
        steps = waiting.poll_once()
        assert next(steps) == PollOnce(waiting.watch)
        waiting.watch.progress.last = execution(ExecutionState.RUNNING, view=seen)
        assert end_of(steps, None) is None
    about = {"kickoff_id": "k-1", "execution_id": "e-1", "crew_conn_id": "crew_default"}
    assert [waiting.pushed] == (
        [{EXECUTION_KEY: {**about, "view": view}, LINK_KEY: f"k-1 of e-1 at {view}"} for view in pushed] or [{}]
    )


def test_a_poll_that_failed_pushes_nothing() -> None:
    waiting = wait(Task())
    steps = waiting.poll_once()
    next(steps)
    assert end_of(steps, outcome := Outcome(GAVE_UP, "k-1")) is outcome
    assert waiting.pushed == {}


# --- the end of a wait ---


@pytest.mark.parametrize("state", [ExecutionState.COMPLETED, ExecutionState.PENDING])
def test_a_wait_ends_with_the_execution_that_was_fetched(state: ExecutionState) -> None:
    task, seen = Task(), execution(state, usage=USED)
    waiting = wait(task)
    steps = waiting.ended(Outcome(str(state), "k-1"))
    assert isinstance(next(steps), Fetch)
    assert end_of(steps, seen) is seen
    assert (task.reported, task.multiple_outputs) == ([(state, USED)], False)
    assert waiting.watch.progress.known is True


def test_a_completed_execution_is_counted_and_logged_in_short(counted: list[Any]) -> None:
    waiting = wait(Task(crew_conn_id="crew_other"))
    steps = waiting.ended(Outcome(COMPLETED, "k-1"))
    next(steps)
    done = execution(ExecutionState.COMPLETED, usage=USED, execution_time=1.5, view="/a%20b/hunter2")
    end_of(steps, done)
    tags = {"conn_id": "crew_other"}
    assert counted == [
        ("crew.execution.completed", 1, tags),
        ("crew.execution.tokens", 9, tags),
        ("crew.execution.cost_usd_micros", 500_000, tags),
    ]
    assert waiting.logged == [in_short(done, "k-1 of e-1 at /a%20b/***")]


NOTES = "Execution k-1 has continued: it was answered elsewhere, or its status was outdated. The wait continues"


def test_an_execution_that_has_continued_meanwhile_is_waited_for_again() -> None:
    waiting = wait(Task())
    steps = waiting.ended(Outcome(PENDING, "k-1"))
    next(steps)
    deferred = steps.send(Outcome(SEEN, "k-1"))
    assert isinstance(deferred, Defer)
    assert deferred.trigger.known is True
    assert waiting.logged == [NOTES]


def test_an_execution_that_has_failed_meanwhile_lets_its_task_decide() -> None:
    waiting = wait(Task())
    steps = waiting.ended(Outcome(PENDING, "k-1"))
    next(steps)
    with pytest.raises(CrewExecutionFailed, match="no ink"):
        steps.send(Outcome(FAILED, "k-1", "no ink"))
    assert waiting.logged == []


def test_a_question_that_the_wait_passes_is_not_reported() -> None:
    task, asked = Task(), execution(ExecutionState.PENDING)
    steps = wait(task, wait_past_pending=True).ended(Outcome(PENDING, "k-1"))
    next(steps)
    assert (end_of(steps, asked), task.reported, task.multiple_outputs) == (asked, [], True)


def test_a_question_has_its_files_if_the_service_lists_them() -> None:
    waiting = wait(Task())
    steps = waiting.ended(Outcome(PENDING, "k-1"))
    next(steps)
    asked = execution(ExecutionState.PENDING, has_details=True)
    listed = steps.send(asked)
    assert isinstance(listed, Do)
    files = listed.do(None)
    assert [(each["name"], each["url"]) for each in files] == [("a.txt", "https://crew.example/view/a")]
    assert end_of(steps, files).files == files


@pytest.mark.parametrize(
    ("outcome", "error", "said"),
    [
        (Outcome(FAILED, "k-1", "no ink"), CrewExecutionFailed, "The crew's execution k-1 failed: no ink"),
        (Outcome(TIMEOUT, "k-1", "too late"), CrewTimeout, "too late"),
        (Outcome(GAVE_UP, "k-1", "away"), CrewTryFailed, "away. A retry of this task polls again"),
    ],
    ids=lambda given: getattr(given, "kind", None) or getattr(given, "__name__", None),
)
def test_a_wait_without_a_result_lets_its_task_decide(outcome: Outcome, error: type[Exception], said: str) -> None:
    with pytest.raises(error) as raised:
        next(wait(Task()).ended(outcome))
    assert str(raised.value) == said


def test_a_wait_that_gave_up_names_its_last_error() -> None:
    last = CrewProtocolError("no JSON")
    with pytest.raises(CrewTryFailed) as raised:
        next(wait(Task()).ended(Outcome(GAVE_UP, "k-1", "away", error=to_json(last))))
    assert (type(raised.value.__cause__), str(raised.value.__cause__)) == (CrewProtocolError, "no JSON")


@pytest.mark.parametrize(
    ("outcome", "limits"),
    [
        (Outcome(FAILED, "k-1", "no ink", usage=USED), {"budget": Budget(5)}),
        (Outcome(OVER_BUDGET, "k-1", usage=USED), {"watched_budget": Budget(5)}),
    ],
    ids=["failed", "over budget"],
)
def test_the_present_limits_of_a_task_decide(counted: list[Any], outcome: Outcome, limits: Json) -> None:
    task = Task(crew_conn_id="crew_other", **limits)
    with pytest.raises(CrewOverBudget) as over:
        next(wait(task).ended(outcome))
    assert (over.value.kickoff_id, over.value.args) == ("k-1", ("k-1", over.value.passed))
    assert "max_total_tokens" in over.value.passed
    assert task.reported == [(ExecutionState.ERROR, USED)]
    assert counted[:2] == [
        ("crew.execution.failed", 1, {"conn_id": "crew_other"}),
        ("crew.execution.tokens", 9, {"conn_id": "crew_other"}),
    ]


def test_a_failed_execution_is_reported_with_its_usage(counted: list[Any]) -> None:
    task = Task()
    with pytest.raises(CrewExecutionFailed) as failed:
        next(wait(task).ended(Outcome(FAILED, "k-1", "no ink", usage=USED)))
    assert failed.value.kickoff_id == "k-1"
    assert task.reported == [(ExecutionState.ERROR, USED)]
    assert counted[0] == ("crew.execution.failed", 1, {"conn_id": "crew_default"})


@pytest.mark.parametrize("kind", [TIMEOUT, GAVE_UP])
@pytest.mark.parametrize(
    ("of_outcome", "of_poll", "used"), [(USED, None, USED), (None, USED, USED), (USED, {"total_tokens": 1}, USED)]
)
def test_a_wait_without_an_end_reports_what_was_used(
    kind: str, of_outcome: Json | None, of_poll: Json | None, used: Json
) -> None:
    task = Task()
    waiting = wait(task)
    waiting.watch.progress.last = execution(ExecutionState.RUNNING, usage=of_poll)
    with pytest.raises((CrewTimeout, CrewTryFailed)):
        next(waiting.ended(Outcome(kind, "k-1", usage=of_outcome)))
    assert task.reported == [(ExecutionState.RUNNING, used)]


def test_a_wait_that_saw_nothing_reports_no_usage() -> None:
    task = Task()
    with pytest.raises(CrewTimeout):
        next(wait(task).ended(Outcome(TIMEOUT, "k-1")))
    assert task.reported == [(ExecutionState.RUNNING, None)]


@pytest.mark.parametrize("outcome", [Outcome(SEEN, "k-1"), Outcome(OVER_BUDGET, "k-1", usage=USED)])
def test_an_outcome_that_ends_nothing_continues_the_wait(outcome: Outcome) -> None:
    """A limit that has been raised since the trigger fired is no longer exceeded."""
    steps = wait(Task(budget=Budget(5), watched_budget=Budget(50))).ended(outcome)
    deferred = next(steps)
    assert isinstance(deferred, Defer)
    assert deferred.trigger.known is True


@pytest.mark.parametrize(("budget", "is_over"), [(Budget(5), True), (Budget(50), False)])
def test_a_question_of_an_execution_over_budget_is_not_asked(budget: Budget, is_over: bool) -> None:
    task, asked = Task(watched_budget=budget), execution(ExecutionState.PENDING, usage=USED)
    steps = wait(task).ended(Outcome(PENDING, "k-1"))
    next(steps)
    if is_over:
        with pytest.raises(CrewOverBudget) as over:
            steps.send(asked)
        assert over.value.kickoff_id == "k-1"
        assert "max_total_tokens" in over.value.passed
    else:
        assert end_of(steps, asked) is asked
    assert task.reported == [(ExecutionState.ERROR if is_over else ExecutionState.PENDING, USED)]


def test_a_completed_execution_is_judged_by_the_rules_alone() -> None:
    steps = wait(Task(watched_budget=Budget(5))).ended(Outcome(COMPLETED, "k-1"))
    next(steps)
    done = execution(ExecutionState.COMPLETED, usage=USED)
    assert end_of(steps, done) is done


def test_a_result_that_cannot_be_fetched_fails_the_try() -> None:
    steps = wait(Task()).ended(Outcome(COMPLETED, "k-1"))
    next(steps)
    with pytest.raises(CrewTryFailed, match=r"^the service is away$"):
        steps.throw(CrewConnectionError("the service is away"))


@pytest.mark.since_airflow("3.0")  # which has the inbox
@pytest.mark.parametrize(("flow_id", "is_noted"), [("flow-1", True), ("k-1", False), (None, False)])
def test_the_run_of_a_flow_with_another_id_is_noted(a_memory: Any, flow_id: str | None, is_noted: bool) -> None:
    waiting = wait(Task())
    waiting.hook.given.flow_webhook_secret = "secret"
    steps = waiting.ended(Outcome(PENDING, "k-1"))
    next(steps)
    end_of(steps, execution(ExecutionState.PENDING, flow_id=flow_id))
    noted = [json.loads(each) for each in a_memory.kept.values()]
    assert [(each["execution_id"], each["run_id"]) for each in noted] == [("flow-1", "run")] * is_noted


# --- a wait that was resumed ---

WAITED: Json = {"started": 5.0, "deadline": 70.0, "ended": 2}


def test_a_resumed_wait_has_what_it_stored() -> None:
    task = Task()
    waiting = wait(task)
    waiting.watch.kickoff_id = ""
    steps = waiting.resumed(Outcome(COMPLETED, "k-1").to_event(), WAITED)
    assert next(steps) == Fetch(waiting.watch, Outcome(COMPLETED, "k-1"))
    watch = waiting.watch
    assert (watch.kickoff_id, watch.started, watch.deadline, watch.narrator.ended) == ("k-1", 5.0, 70.0, 2)
    assert task.reported == [(ExecutionState.RUNNING, None)]


@pytest.mark.parametrize(("waiting", "started"), [(None, 0.0), ({"started": 5.0, "deadline": None}, 5.0)])
def test_a_wait_of_an_earlier_release_stored_less(waiting: Json | None, started: float) -> None:
    resumed = wait(Task())
    next(resumed.resumed(Outcome(COMPLETED, "k-1").to_event(), waiting))
    assert (resumed.watch.started, resumed.watch.narrator.ended) == (started, 0)


def test_what_a_webhook_told_is_looked_up_at_once() -> None:
    waiting = wait(Task())
    steps = waiting.resumed(Outcome(SEEN, "k-1", "a webhook came").to_event(), WAITED)
    assert isinstance(next(steps), PollOnce)
    assert waiting.logged == ["Execution k-1: a webhook came"]
    assert waiting.watch.progress.known is True


def test_an_id_that_became_known_needs_no_poll() -> None:
    waiting = wait(Task())
    assert isinstance(next(waiting.resumed(Outcome(SEEN, "k-1").to_event(), WAITED)), Defer)
    assert waiting.logged == []


def test_an_event_that_cannot_be_read_is_no_end() -> None:
    with pytest.raises(CrewTryFailed) as failed:
        next(wait(Task()).resumed({"kind": "song"}, WAITED))
    assert str(failed.value).endswith(". The fate of the execution is unknown; a retry of this task polls again")
    assert isinstance(failed.value.__cause__, CrewError)


def test_a_resumed_wait_needs_no_connection_at_first() -> None:
    waiting = wait(Task())
    waiting.hook.given.is_broken = True
    assert isinstance(next(waiting.resumed(Outcome(COMPLETED, "k-1").to_event(), WAITED)), Fetch)


def test_without_a_trigger_one_poll_ends_the_wait() -> None:
    waiting = wait(Task(), started=1.0)
    steps = waiting.without_trigger("Trigger timeout")
    before = time.time()
    assert next(steps) == PollOnce(waiting.watch)
    assert before - 60 < waiting.watch.started
    assert before <= (waiting.watch.deadline or 0.0) <= time.time()
    assert isinstance(steps.send(Outcome(COMPLETED, "k-1")), Fetch)


def test_without_a_trigger_and_an_id_nothing_is_known() -> None:
    waiting = wait(Task())
    waiting.watch.kickoff_id = ""
    with pytest.raises(CrewTryFailed, match=r"^Trigger timeout\. The fate of the execution is unknown$"):
        next(waiting.without_trigger("Trigger timeout"))


# --- the result ---


def test_a_result_has_the_output_and_the_files() -> None:
    task = Task()
    waiting = wait(task)
    changed = waiting.result(execution(ExecutionState.COMPLETED, output="Text.", has_details=True))
    assert changed["output"] == "Text."
    assert [(each["name"], each["path"]) for each in changed["files"]] == [("a.txt", None)]
    assert task.files == changed["files"]
    assert waiting.pushed == {}


def test_a_service_without_files_adds_none_to_a_result() -> None:
    task = Task()
    assert wait(task).result(execution(ExecutionState.COMPLETED, output="Text.")) == {"output": "Text."}
    assert task.files == []


def test_each_key_of_a_result_is_pushed_if_wanted() -> None:
    waiting = wait(Task(output_rules=OutputRules(multiple_outputs=True)))
    done = execution(ExecutionState.COMPLETED, output='{"a": 1}', output_json={"a": 1})
    assert waiting.result(done) == {"output": {"a": 1}}
    assert waiting.pushed == {"a": 1}
    with pytest.raises(CrewTaskFailed, match=r"the output of execution k-1 is str"):
        waiting.result(replace(done, output_json=None))


def test_a_result_that_breaks_a_rule_tells_what_was_ignored() -> None:
    rules = OutputRules(budget=Budget(5), on_unknown_usage="ignore")
    waiting = wait(Task(output_rules=rules))
    waiting.logged.warning = waiting.logged.info  # type: ignore[attr-defined]
    waiting.result(execution(ExecutionState.COMPLETED, output="Text."))
    assert len(waiting.logged) == 1
    with pytest.raises(CrewTaskFailed, match="max_total_tokens"):
        waiting.result(execution(ExecutionState.COMPLETED, output="Text.", usage=USED))


def test_files_are_copied_to_the_folder_of_the_rules(tmp_path: Any) -> None:
    waiting = wait(Task(output_rules=OutputRules(files_to=str(tmp_path))))
    waiting.hook.client = SimpleNamespace(send=lambda call, **_: [])
    assert waiting.result(execution(ExecutionState.COMPLETED, output="Text.")) == {"output": "Text.", "files": []}
