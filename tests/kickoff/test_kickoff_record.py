"""What a kickoff remembers of its earlier tries: a clear is not a retry, and no record is read as empty."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException
from faults.server import FaultServer
from faults.variables import Variables, keep_in_variables
from faults.wire import RESET, NoReply, Reply
from simulated_airflow import Connect, TaskRun, die_after_recording, run

from airflow_crew_provider.compat import version
from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.task.attempt import Attempt, Relation
from airflow_crew_provider.task.store import NEVER_EXPIRE
from airflow_crew_provider.wait.outcomes import CrewTaskFailed

pytestmark = pytest.mark.usefixtures("simulated_airflow")
POST = "POST /kickoff"
RUNNING = {"status": "running"}
Death = Callable[[TaskRun, CrewKickoffOperator], None]


def kickoff(**more: Any) -> CrewKickoffOperator:
    return CrewKickoffOperator(**{"task_id": "kickoff", "inputs": {"topic": "AI"}, "deferrable": False, **more})


@pytest.fixture(autouse=True)
def two_executions(server: FaultServer) -> None:
    server.on(POST, {"kickoff_id": "k-1"}, {"kickoff_id": "k-2"}).on("GET /inputs", {"inputs": ["topic"]})
    server.on("GET /status/k-1", RUNNING).on("POST /stop/k-1", {"status": "stopped"})


# --- a clear and a retry ------------------------------------------------------------------------------------


LOOKS_ALIKE = "a retry and a clear look alike. This try counts as a retry"


@pytest.mark.row("A34")
@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize(("try_number", "retries"), [(2, 1), (3, 0)])
def test_a_clear_resembling_a_retry_starts_nothing_until_cleared_again(
    server: FaultServer, try_number: int, retries: int, counted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    task_run = TaskRun(retries=2)
    die_after_recording(task_run, kickoff(retries=2))
    task_run.try_number, task_run.retries = try_number - 1, retries
    assert task_run.clear(counted=counted).max_tries == 2  # as before
    assert run(kickoff(retries=retries), task_run) == "k-1"
    assert len(server.sent(POST)) == 1
    assert server.sent("POST /stop/k-1") == []
    assert caplog.text.count(LOOKS_ALIKE) == 1
    assert "clear it once more" in caplog.text
    die_after_recording(task_run.clear(counted=counted), kickoff(retries=retries))
    assert len(server.sent(POST)) == 2
    assert caplog.text.count(LOOKS_ALIKE) == 1


@pytest.mark.row("A34")
@pytest.mark.parametrize("retries", [0, 1, 2, 5])
@pytest.mark.parametrize("others_cleared", [0, 1])
@pytest.mark.parametrize("try_number", [2, 3])
def test_a_retry_after_retries_were_edited_takes_the_execution_up(
    server: FaultServer, retries: int, others_cleared: int, try_number: int
) -> None:
    task_run = TaskRun(retries=2)
    die_after_recording(task_run, kickoff(retries=2))
    task_run.try_number = try_number - 1
    task_run.clears += others_cleared
    assert run(kickoff(retries=retries), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 1
    assert server.sent("POST /stop/k-1") == []


@pytest.mark.row("A17")
def test_a_try_ending_before_it_sends_remembers_the_clear(server: FaultServer) -> None:
    task_run = TaskRun()
    assert run(kickoff(), task_run) == "k-1"
    server.on("GET /inputs", Reply(status=401), {"inputs": ["topic"]})
    with pytest.raises(CrewTaskFailed):
        run(kickoff(), task_run.clear())
    assert run(kickoff(), task_run.retry()) == "k-2"


@pytest.mark.row("A17")
@pytest.mark.parametrize(
    ("kept", "now", "cleared"),
    [
        ({"max_tries": 2, "retries": 2}, Attempt(2, 3, 2), True),
        ({"max_tries": 2, "retries": 2}, Attempt(2, 2, 2), False),
        ({"max_tries": 2, "retries": 2, "over": True}, Attempt(2, 2, 2), False),
        ({"max_tries": 2, "retries": 2, "clears": 0}, Attempt(2, 2, 2, 1), False),
        ({"max_tries": 2, "retries": 2, "clears": 0, "over": True}, Attempt(2, 2, 2, 1), False),
        ({"max_tries": 3, "retries": 2, "clears": 1, "over": True}, Attempt(4, 3, 2, 2), False),
        ({"max_tries": 3, "retries": 2, "clears": 1, "over": True}, Attempt(3, 4, 2, 2), True),
        ({"max_tries": 2, "retries": 2, "over": True}, Attempt(2, 2, 1), False),
        ({"max_tries": 2, "retries": 2, "over": True}, Attempt(2, 2, 0), False),
        ({"max_tries": 2, "retries": 2, "clears": 0}, Attempt(2, 2, 1, 1), False),
        ({"max_tries": 2, "retries": 2, "clears": 1}, Attempt(2, 2, 1, 1), False),
        ({"max_tries": 2, "retries": 2}, Attempt(3, 2, 1, 1), False),
        ({"max_tries": 2}, Attempt(2, 2, 1), False),  # as release 0.1 wrote it
        ({}, Attempt(2, 2, 1), False),
    ],
)
def test_a_clear_is_distinguished_from_a_retry(kept: Any, now: Attempt, cleared: bool) -> None:
    assert (now.relation_to(kept) is Relation.CLEAR) == cleared


@pytest.mark.row("N27")
@pytest.mark.since_airflow("3.3")  # before, the record goes with the last step
def test_a_task_dead_after_finishing_is_retried_despite_neighbour_clears(
    server: FaultServer,
) -> None:
    task_run = TaskRun()
    assert run(kickoff(), task_run) == "k-1"  # and Airflow never learned of it
    task_run.clears += 1
    assert run(kickoff(), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 1
    assert run(kickoff(), task_run.clear()) == "k-2"


@pytest.mark.since_airflow("3.0")  # 2.11 has no inbox to remove old records, so they go as the task succeeds
@pytest.mark.row("A5", "A17")
def test_a_clear_stops_the_execution_of_a_successful_kickoff(server: FaultServer, variables: Any) -> None:
    task_run = TaskRun()
    assert run(kickoff(), task_run) == "k-1"
    assert run(kickoff(), task_run.clear()) == "k-2"
    assert len(server.sent("POST /stop/k-1")) == 1


# --- a DAG run that was deleted, and created again under its id ------------------------------------------------


@pytest.fixture(params=[2, 4], ids=["the same max_tries", "other max_tries"])
def left_by_a_deleted_run(server: FaultServer, variables: Any, request: pytest.FixtureRequest) -> TaskRun:
    """Return a task instance that finds the record of one that had its name; before Airflow 3.3 it stays behind.

    The deleted one had been cleared, or had other retries: this must not look like a clear of the new one.
    """
    deleted = TaskRun(retries=request.param)
    die_after_recording(deleted, kickoff())
    return TaskRun(store=deleted.store)


@pytest.mark.row("A22")
def test_the_execution_of_a_deleted_run_is_not_taken_over(server: FaultServer, left_by_a_deleted_run: TaskRun) -> None:
    assert run(kickoff(), left_by_a_deleted_run) == "k-2"
    assert not server.sent("POST /stop/k-1")


@pytest.mark.row("A22")
def test_a_try_that_starts_nothing_forgets_a_deleted_run(server: FaultServer, left_by_a_deleted_run: TaskRun) -> None:
    server.on("GET /inputs", 503, {"inputs": ["topic"]}).on(POST, Reply(status=429), {"kickoff_id": "k-2"})
    with pytest.raises(AirflowException):
        run(kickoff(), left_by_a_deleted_run)
    assert run(kickoff(), left_by_a_deleted_run.retry()) == "k-2"


@pytest.mark.row("A35")
def test_a_deleted_run_is_not_adopted_after_an_unexecuted_try(
    server: FaultServer, left_by_a_deleted_run: TaskRun
) -> None:
    left_by_a_deleted_run.retry()
    die_after_recording(left_by_a_deleted_run, kickoff())
    assert not server.sent("POST /stop/k-1")
    assert run(kickoff(), left_by_a_deleted_run.retry()) == "k-2"
    assert len(server.sent(POST)) == 2


COUNTS = "The DAG run has started again without a clear. What this task did before still counts"


@pytest.mark.row("A35", "N11")
@pytest.mark.parametrize("known", [True, False], ids=["this Airflow", "before Airflow 3"])
@pytest.mark.parametrize("lost", [False, True])
def test_a_run_set_to_queued_is_the_same_run(
    server: FaultServer, variables: Any, known: bool, lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    task_run = TaskRun()
    task_run.run_after = task_run.run_after if known else None
    if lost:
        server.on(POST, NoReply(RESET), {"kickoff_id": "k-2"})
        with pytest.raises(CrewTaskFailed):
            run(kickoff(), task_run)
    else:
        die_after_recording(task_run, kickoff())
    task_run.run_started += timedelta(minutes=5)
    if lost:
        with pytest.raises(CrewTaskFailed, match="its outcome is unknown"):
            run(kickoff(), task_run.retry())
    else:
        die_after_recording(task_run.retry(), kickoff())
    assert len(server.sent(POST)) == 1
    assert caplog.text.count(COUNTS) == 1
    assert run(kickoff(), task_run.clear()) == "k-2"


@pytest.mark.row("A35")
@pytest.mark.parametrize("started_again", [True, False])
def test_a_run_is_the_same_after_a_neighbour_was_cleared(
    server: FaultServer, variables: Any, started_again: bool
) -> None:
    task_run = TaskRun()
    die_after_recording(task_run, kickoff())
    task_run.clears += 1
    task_run.run_started += timedelta(minutes=started_again)
    assert run(kickoff(), task_run.retry()) == "k-1"


@pytest.mark.row("A35", "A22")
@pytest.mark.parametrize(
    ("kept", "same_run"),
    [
        ({"try_number": 1, "clears": 0, "run_started": 5.0}, True),
        ({"try_number": 1, "clears": 0, "run_started": 4.0}, True),  # set to queued, for all that is known
        ({"try_number": 1, "clears": 0, "run_started": 4.0, "run_after": 3.0}, True),
        ({"try_number": 1, "clears": 0, "run_started": 4.0, "run_after": 2.0}, False),
        ({"try_number": 1, "clears": 1, "run_started": 4.0}, False),
        ({"try_number": 2, "clears": 0, "run_started": 4.0}, False),
        ({"try_number": 2, "clears": 0, "run_started": 5.0}, True),  # the same try again
        ({"try_number": 1, "clears": 0}, True),  # as development versions of 0.2.0 wrote it
        ({"try_number": 1, "run_started": 4.0}, True),
        ({}, True),
    ],
)
def test_a_record_belongs_to_this_run_unless_marked_otherwise(kept: Any, same_run: bool) -> None:
    assert (Attempt(2, 2, 2, 0, 5.0, 3.0).relation_to(kept) is not Relation.OTHER_RUN) is same_run
    assert Attempt(2, 2, 2, 0).relation_to(kept) is not Relation.OTHER_RUN


# --- a clear that empties the task state store, as since Airflow 3.4 ---------------------------------------


@pytest.fixture
def emptied_by_clears(monkeypatch: pytest.MonkeyPatch) -> None:
    if NEVER_EXPIRE is None:
        pytest.skip("this Airflow has no task state store")
    monkeypatch.setattr(version, "RELEASE", (3, 4))


@pytest.mark.row("A5")
def test_a_cleared_kickoff_stops_the_execution_of_before(server: FaultServer, emptied_by_clears: None) -> None:
    task_run = TaskRun()
    die_after_recording(task_run, kickoff())
    assert run(kickoff(), task_run.clear()) == "k-2"
    assert len(server.sent("POST /stop/k-1")) == 1


@pytest.mark.row("A7")
def test_a_kickoff_cleared_after_its_end_names_the_previous_execution(
    server: FaultServer, emptied_by_clears: None, log_text: Callable[[], str]
) -> None:
    task_run = TaskRun()
    assert run(kickoff(), task_run) == "k-1"
    assert run(kickoff(), task_run.clear()) == "k-2"
    assert "The task was cleared. Execution k-1 was stopped. Starting a new execution" in log_text()


@pytest.mark.row("A7")
def test_what_was_kept_before_an_upgrade_is_found(
    server: FaultServer, emptied_by_clears: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_run = TaskRun()
    with monkeypatch.context() as before:
        before.setattr(version, "RELEASE", (3, 3))
        die_after_recording(task_run, kickoff())
        assert task_run.store.kept
    assert run(kickoff(), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 1


# --- a record that cannot be read or written ----------------------------------------------------------------


@pytest.mark.row("A14")
@pytest.mark.parametrize("reads", [1, 2, 1000])
def test_an_unreadable_record_is_not_taken_for_empty(server: FaultServer, variables: Any, reads: int) -> None:
    task_run = TaskRun()
    die_after_recording(task_run, kickoff())
    variables.unreadable = reads
    if reads > 1:
        with pytest.raises(AirflowException, match=r"could not be|does not read") as error:
            run(kickoff(), task_run.retry())
        assert not isinstance(error.value, CrewTaskFailed)
        variables.unreadable = 0
    assert run(kickoff(), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 1


@pytest.mark.row("A14")
@pytest.mark.since_airflow("3.0")  # before, a task can ask for the names
@pytest.mark.parametrize("reads", range(1, 12))
def test_unreadable_records_are_not_missing_where_airflow_lists_no_variables(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch, reads: int
) -> None:
    variables, task_run = keep_in_variables(monkeypatch, Variables()), TaskRun()
    assert run(kickoff(), task_run) == "k-1"
    variables.unreadable = reads
    with suppress(AirflowException):
        run(kickoff(), task_run.retry())
    variables.unreadable = 0
    assert run(kickoff(), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 1


@pytest.mark.row("A14")
def test_a_record_under_another_fernet_key_is_not_missing(server: FaultServer, variables: Any) -> None:
    task_run = TaskRun()
    die_after_recording(task_run, kickoff())
    variables.encrypted = set(variables.kept)
    with pytest.raises(AirflowException, match=r"cannot be decrypted.*This try sent nothing") as error:
        run(kickoff(), task_run.retry())
    assert not isinstance(error.value, CrewTaskFailed), "a retry finds it once the key is back"
    variables.encrypted = set()
    assert run(kickoff(), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 1


@pytest.mark.row("A14")
def test_a_record_that_airflow_does_not_store_stops_the_kickoff(server: FaultServer, variables: Any) -> None:
    variables.writable = False
    with pytest.raises(AirflowException, match="does not read back as it was stored"):
        run(kickoff(check_inputs=False))
    assert server.requests == []


@pytest.mark.row("A14")
def test_nothing_but_the_record_is_left_in_the_variables(server: FaultServer, variables: Any) -> None:
    server.on(POST, NoReply(RESET))
    with pytest.raises(CrewTaskFailed):
        run(kickoff())
    copy, name = sorted(variables.kept)
    assert name.startswith("crew_task__kickoff__")
    assert copy.startswith("crew_kickoff__kickoff__")


@pytest.mark.row("A14")
@pytest.mark.since_airflow("3.3")  # before, Variables serve, as in the tests above
def test_a_state_store_that_fails_stops_the_kickoff(server: FaultServer, connect: Connect) -> None:
    task_run = TaskRun()
    task_run.store.get = lambda key: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(AirflowException, match="could not be read"):
        run(kickoff(), task_run)
    assert server.requests == []


def test_a_kickoff_with_an_unstored_intent_is_not_sent(
    server: FaultServer, a_memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_run = TaskRun()

    def time_out(key: str, value: Any, **more: Any) -> None:
        raise TimeoutError("the API server is away")

    monkeypatch.setattr(a_memory, "set", time_out)
    with pytest.raises(AirflowException, match=r"could not be stored.*No execution was started") as error:
        run(kickoff(), task_run)
    assert "unknown" not in str(error.value)
    assert not server.sent(POST)
