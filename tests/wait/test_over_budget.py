"""Row N33: an execution that is seen over its budget is stopped by a worker, and no retry starts another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSensorTimeout, TaskDeferred
from faults.dialects import PENDING_SPEC, SPEC
from faults.server import FaultServer
from faults.wire import RESET, NoReply, Reply
from sampling import crossed
from simulated_airflow import StateStore, TaskRun, die_after_recording, run
from waiting_tasks import POLL, completed, in_both_places, kickoff_that_waits, sensor_that_waits

from airflow_crew_provider.api.status import USAGE
from airflow_crew_provider.wait import watch
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, CrewTryFailed
from airflow_crew_provider.wait.watch import OVER_BUDGET, Outcome

pytestmark = [pytest.mark.usefixtures("simulated_airflow"), pytest.mark.waits, pytest.mark.row("N33")]
START, STOP = "POST /kickoff", "POST /stop/k-1"
STOPPED = {"status": "stopped", "kickoffId": "k-1"}
FIGURES = "Execution k-1 used 1250 tokens, more than max_total_tokens of 1000"


def used(tokens: int, body: Any = SPEC.running) -> Reply:
    return Reply(body=body, headers={USAGE: f'{{"total_tokens": {tokens}}}'})


def kickoff(**more: Any) -> Any:
    return kickoff_that_waits(**{"max_total_tokens": 1000, "deferrable": False, **more})


def sensor(**more: Any) -> Any:
    return sensor_that_waits(**{"max_total_tokens": 1000, "deferrable": False, **more})


@pytest.fixture(autouse=True)
def crew(server: FaultServer) -> None:
    server.on("GET /inputs", {"inputs": []})
    server.on(START, {"kickoff_id": "k-1"}, {"kickoff_id": "k-2"})
    server.on(STOP, STOPPED)


def sent(server: FaultServer, endpoint: str) -> int:
    return sum(f"{each.method} {each.target}" == endpoint for each in server.requests)


def failure(operator: Any, task_run: TaskRun | None = None) -> str:
    with pytest.raises(CrewTaskFailed) as failed:
        run(operator, task_run)
    assert isinstance(failed.value, AirflowFailException)
    return str(failed.value)


@in_both_places
@pytest.mark.parametrize("made", [kickoff, sensor])
def test_a_running_execution_over_its_budget_is_stopped(server: FaultServer, made: Any, deferrable: bool) -> None:
    server.on(POLL, used(400), used(1000), used(1250))
    said = failure(made(deferrable=deferrable))
    assert said.startswith(f"{FIGURES}. Execution k-1 was stopped")
    assert sent(server, STOP) == 1


@in_both_places
@pytest.mark.parametrize("made", [kickoff, sensor])
def test_nobody_is_asked_about_an_execution_over_its_budget(server: FaultServer, made: Any, deferrable: bool) -> None:
    server.on(POLL, used(1250, PENDING_SPEC))
    assert failure(made(deferrable=deferrable)).startswith(f"{FIGURES}. Execution k-1 was stopped")


def test_a_cost_is_a_budget_too(server: FaultServer) -> None:
    server.on(POLL, Reply(body=SPEC.running, headers={USAGE: '{"cost_usd": 0.75}'}))
    assert failure(sensor(max_cost=0.5)).startswith("Execution k-1 cost 0.75 USD, more than max_cost of 0.5. ")


@in_both_places
@pytest.mark.parametrize("total", ['"total_tokens": 0, ', ""])
def test_parts_that_a_total_leaves_out_count(server: FaultServer, deferrable: bool, total: str) -> None:
    parts = f'{{{total}"prompt_tokens": 1000, "completion_tokens": 250}}'
    server.on(POLL, Reply(body=SPEC.running, headers={USAGE: parts}))
    assert failure(sensor(deferrable=deferrable)).startswith(f"{FIGURES}. Execution k-1 was stopped")


@in_both_places
def test_what_is_known_of_a_cost_may_be_over_already(server: FaultServer, deferrable: bool) -> None:
    """One model has no price, so the cost of the execution is not known; that of the others alone is over."""
    models = '{"dear": {"cost_usd": 0.75}, "without-a-price": {"cost_usd": null}}'
    server.on(POLL, Reply(body=SPEC.running, headers={USAGE: f'{{"cost_usd": null, "by_model": {models}}}'}))
    said = failure(sensor(max_cost=0.5, deferrable=deferrable))
    assert said.startswith("Execution k-1 cost at least 0.75 USD, more than max_cost of 0.5. Execution k-1 was stopped")


@pytest.mark.parametrize("deferrable", [False, True])
def test_what_is_not_known_to_be_over_is_not_stopped(server: FaultServer, deferrable: bool) -> None:
    server.on(POLL, SPEC.running, used(1000), used(1000, completed("done")))
    assert run(kickoff(deferrable=deferrable))["usage"] == {"total_tokens": 1000}
    assert sent(server, STOP) == 0


@pytest.mark.parametrize("made", [kickoff, sensor])
def test_an_execution_may_be_let_to_its_end(server: FaultServer, made: Any) -> None:
    server.on(POLL, used(1250), used(1250, completed("done")))
    assert "its output is still available from the service" in failure(made(deferrable=True, stop_over_budget=False))
    assert sent(server, STOP) == 0


@in_both_places
def test_a_retry_finds_the_record_and_starts_nothing(server: FaultServer, deferrable: bool) -> None:
    """Also where the service no longer says what a stopped execution has used, and the inputs are others by now."""
    server.on(POLL, used(1250), SPEC.failed)
    task_run = TaskRun()
    failure(kickoff(deferrable=deferrable), task_run)
    assert failure(kickoff(deferrable=deferrable), task_run.retry()).startswith(f"{FIGURES}. ")
    assert failure(kickoff(inputs={"a": 1}, check_inputs=False), task_run.retry()).startswith(f"{FIGURES}. ")
    assert sent(server, START) == 1


class DiesOnceItIsRecorded(StateStore):
    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        super().set(key, value, retention=retention)
        if "over_budget" in value:
            raise KeyboardInterrupt


@pytest.mark.usefixtures("a_state_store")
def test_a_worker_dying_before_the_stop_leaves_it_to_retries(server: FaultServer) -> None:
    server.on(POLL, used(1250))
    task_run = TaskRun(store=DiesOnceItIsRecorded())
    with pytest.raises(KeyboardInterrupt):
        run(kickoff(), task_run)
    assert sent(server, STOP) == 0
    task_run.store.__class__ = StateStore
    assert failure(kickoff(), task_run.retry()).startswith(f"{FIGURES}. Execution k-1 was stopped")
    assert (sent(server, START), sent(server, STOP)) == (1, 1)


def test_an_execution_ended_over_budget_is_not_followed_by_another(server: FaultServer) -> None:
    server.on(POLL, used(1250, SPEC.failed))
    server.on(STOP, Reply(status=400, body={"detail": "Cannot stop execution. Current state: error"}))
    task_run = TaskRun()
    die_after_recording(task_run, kickoff())
    assert failure(kickoff(), task_run.retry()).startswith(f"{FIGURES}. Execution k-1 has ended")
    assert sent(server, START) == 1


def test_one_that_failed_within_its_budget_is(server: FaultServer) -> None:
    server.on(POLL, used(900, SPEC.failed))
    server.on("GET /status/k-2", completed("done"))
    task_run = TaskRun()
    die_after_recording(task_run, kickoff())
    assert run(kickoff(on_unknown_usage="ignore"), task_run.retry())["kickoff_id"] == "k-2"


def test_a_clear_starts_another(server: FaultServer) -> None:
    server.on(POLL, used(1250), used(1250, SPEC.failed))
    server.on("GET /status/k-2", used(5, completed("done")))
    task_run = TaskRun()
    failure(kickoff(), task_run)
    assert run(kickoff(), task_run.clear())["kickoff_id"] == "k-2"


@pytest.mark.parametrize("status", [404, 405])
def test_an_unstoppable_execution_is_reported_as_still_running(server: FaultServer, status: int) -> None:
    server.on(POLL, used(1250))
    server.on(STOP, Reply(status=status, body={"detail": "no such path"}))
    problem = "the service refused or does not support stopping, so it keeps running"
    assert f"could not be stopped: {problem}" in failure(kickoff())


def test_a_service_that_does_not_answer_is_asked_again(server: FaultServer, log_text: Callable[[], str]) -> None:
    server.on(POLL, used(1250))
    server.on(STOP, NoReply(RESET), Reply(status=503), STOPPED)
    assert "Execution k-1 was stopped" in failure(kickoff())
    assert "Execution k-1 could not be stopped yet" in log_text()


PAGE = "<html><body>Back soon</body></html>"


@pytest.mark.row("N39")
@pytest.mark.parametrize("made", [kickoff, sensor])
def test_a_stop_that_a_page_answers_is_repeated(server: FaultServer, made: Any, log_text: Callable[[], str]) -> None:
    server.on(POLL, used(1250))
    server.on(STOP, Reply(body=PAGE), Reply(status=404, body=PAGE), Reply(status=404, body="no backend"), STOPPED)
    assert failure(made()).startswith(f"{FIGURES}. Execution k-1 was stopped")
    assert sent(server, STOP) == 4
    assert "could not be stopped yet: POST /stop returned 404 with a body that is not JSON: no backend" in log_text()


@pytest.mark.row("N39")
def test_a_stop_that_only_pages_answer_is_told_as_unknown(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "FORGIVEN", 0.0)
    server.on(POLL, used(1250)).on(STOP, Reply(body=PAGE))
    said = failure(kickoff())
    assert "could not be stopped (POST /stop returned 200 with a body that is not JSON: Back soon)" in said
    assert "and may still be active" in said
    assert "refused" not in said
    assert sent(server, STOP) == watch.LEAST_FAILURES


@pytest.mark.row("N39")
def test_a_retry_stops_what_a_page_kept_from_being_stopped(server: FaultServer) -> None:
    server.on(POLL, SPEC.running).on(STOP, Reply(status=404, body=PAGE), STOPPED)
    task_run = TaskRun()
    with pytest.raises(CrewTryFailed, match="A retry of this task stops it"):
        run(kickoff(timeout=0.1), task_run)
    assert "Execution k-1 was stopped" in failure(kickoff(timeout=0.1), task_run.retry())
    assert (sent(server, START), sent(server, STOP)) == (1, 2)


@pytest.mark.row("N39")
@pytest.mark.parametrize(("made", "deferrable"), crossed(["a sensor", "a last try"], [False, True]))
def test_a_timeout_stop_is_repeated_if_no_try_follows(server: FaultServer, made: str, deferrable: bool) -> None:
    server.on(POLL, SPEC.running).on(STOP, Reply(body=PAGE), Reply(status=503), STOPPED)
    limits = {"timeout": 0.1, "deferrable": deferrable}
    task = sensor(cancel_on_timeout=True, **limits) if made == "a sensor" else kickoff(**limits)
    with pytest.raises((AirflowSensorTimeout, CrewTaskFailed), match="Execution k-1 was stopped"):
        run(task, TaskRun(task.task_id, retries=0))
    assert sent(server, STOP) == 3


@pytest.mark.row("N39")
def test_the_last_try_repeats_a_stop_left_by_earlier_ones(server: FaultServer) -> None:
    server.on(POLL, SPEC.running).on(STOP, *[Reply(body=PAGE)] * 3, STOPPED)
    task_run = TaskRun(retries=1)
    with pytest.raises(CrewTryFailed, match="A retry of this task stops it"):
        run(kickoff(timeout=0.1), task_run)
    assert "Execution k-1 was stopped" in failure(kickoff(timeout=0.1), task_run.retry())
    assert (sent(server, START), sent(server, STOP)) == (1, 4)


def test_both_waits_on_an_overspent_execution_fail_with_the_figures(server: FaultServer) -> None:
    server.on(POLL, used(1250), used(1250), used(1250, SPEC.failed))
    server.on(STOP, STOPPED, Reply(status=400, body={"detail": "Cannot stop execution. Current state: error"}))
    assert failure(sensor()).startswith(f"{FIGURES}. Execution k-1 was stopped")
    assert failure(sensor()).startswith(f"{FIGURES}. Execution k-1 has ended")


def test_a_budget_that_was_raised_meanwhile_counts(server: FaultServer) -> None:
    event = Outcome(OVER_BUDGET, "k-1", usage={"total_tokens": 1250}).to_event()
    operator = sensor(max_total_tokens=2000, deferrable=True)
    with pytest.raises(TaskDeferred):
        operator.execute_complete(TaskRun().context(), event=event, waiting={"started": 1.0, "deadline": None})
    assert server.requests == []


def test_a_retry_polls_its_earlier_execution_once_before_it_waits(server: FaultServer) -> None:
    task_run = TaskRun()
    die_after_recording(task_run, kickoff())
    before = sent(server, POLL)
    server.on(POLL, used(400), used(400, SPEC.completed))
    assert run(kickoff(), task_run.retry())["state"] == "completed"
    assert sent(server, POLL) - before == 2
