"""Where a task's records lie: what is found after a loss, an upgrade or a setting, and who can read it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException
from faults.server import FaultServer
from faults.variables import Variables, stand_in_for_variables
from faults.wire import RESET, NoReply, Reply
from simulated_airflow import TaskRun, run

from airflow_crew_provider.operators.crew import CrewKickoffOperator
from airflow_crew_provider.stored_names import KICKOFF_STATE, REVIEW_STATE, RUN_STATE, TASK_RECORD
from airflow_crew_provider.task.record import PLAIN_OF_QUESTION, PLAIN_OF_RUN, UNOPENED
from airflow_crew_provider.task.store import VERSION, TaskRecord, TaskStateUnavailable, record_of
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, CrewTryFailed

pytestmark = [pytest.mark.usefixtures("simulated_airflow"), pytest.mark.since_airflow("3.0")]

POST = "POST /kickoff"
IDENTITY = {"dag_id": "dag", "run_id": "run", "task_id": "kickoff", "map_index": -1}
DRAFT = "Confidential: coffee will be dearer."


@pytest.fixture
def server(server: FaultServer) -> FaultServer:
    server.on("GET /inputs", {"inputs": ["topic"]})
    server.on("POST /stop/k-1", {"status": "stopped"})
    server.on("GET /status/k-1", {"status": "running"}).on("GET /status/k-2", {"status": "running"})
    return server.on(POST, {"kickoff_id": "k-1"}, {"kickoff_id": "k-2"})


def kickoff(**arguments: Any) -> CrewKickoffOperator:
    return CrewKickoffOperator(**{"task_id": "kickoff", "inputs": {"topic": "tea"}, **arguments})


def lose(a_memory: Variables, task_run: TaskRun) -> None:
    """Lose the record of a kickoff wherever it is."""
    task_run.store.kept.clear()
    for key in [each for each in a_memory.kept if each.startswith(f"{TASK_RECORD}__")]:
        del a_memory.kept[key]


# --- the same try again ---


@pytest.mark.row("A37")
def test_a_try_that_runs_again_under_its_number_starts_nothing(server: FaultServer) -> None:
    task_run = TaskRun()
    assert [run(kickoff(), task_run) for _ in range(4)] == ["k-1"] * 4
    assert len(server.sent(POST)) == 1


@pytest.mark.row("A37")
def test_a_same_try_sends_nothing_that_may_have_arrived(server: FaultServer) -> None:
    server.on(POST, NoReply(RESET), {"kickoff_id": "k-2"})
    task_run = TaskRun()
    for _ in range(2):
        with pytest.raises(CrewTaskFailed, match="unknown"):
            run(kickoff(), task_run)
    assert len(server.sent(POST)) == 1


@pytest.mark.row("A37")
@pytest.mark.parametrize("status", [422, 429])
def test_a_same_try_sends_again_what_was_certainly_refused(server: FaultServer, status: int) -> None:
    server.on(POST, Reply(status=status, body=b'{"detail": "no"}'), {"kickoff_id": "k-1"})
    task_run = TaskRun()
    with pytest.raises(AirflowException):
        run(kickoff(), task_run)
    assert run(kickoff(), task_run) == "k-1"
    assert len(server.sent(POST)) == 2


# --- a record that nobody empties ---


@pytest.mark.row("A39")
def test_an_emptied_state_store_loses_nothing(server: FaultServer, a_state_store: None) -> None:
    task_run = TaskRun()
    assert run(kickoff(), task_run) == "k-1"
    task_run.store.kept.clear()  # [state_store] clear_on_success
    assert run(kickoff(), task_run.clear()) == "k-2"
    assert len(server.sent("POST /stop/k-1")) == 1


@pytest.mark.row("A52")
def test_a_record_from_before_an_upgrade_of_airflow_is_found(server: FaultServer, variables: Any) -> None:
    task_run = TaskRun()
    assert run(kickoff(), task_run) == "k-1"
    with pytest.MonkeyPatch.context() as upgraded:
        from faults.variables import keep_beside_state_store

        keep_beside_state_store(upgraded)
        assert run(kickoff(), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 1


@pytest.mark.row("A52")
def test_a_run_that_began_in_the_state_store_goes_on(server: FaultServer, a_memory: Any, a_state_store: None) -> None:
    task_run = TaskRun()
    assert run(kickoff(), task_run) == "k-1"
    shared = task_run.store.get(KICKOFF_STATE)
    record = {name: value for name, value in shared.items() if name not in ("version", "digest")}
    task_run.store.set(KICKOFF_STATE, record)  # as the last release wrote it
    a_memory.kept.clear()
    assert run(kickoff(), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 1


@pytest.mark.row("A52")
@pytest.mark.usefixtures("a_state_store")
def test_a_worker_of_the_last_release_finds_the_post(server: FaultServer) -> None:
    task_run = TaskRun()
    assert run(kickoff(), task_run) == "k-1"
    shared = task_run.store.get(KICKOFF_STATE)
    assert (shared["kickoff_id"], bool(shared["fingerprint"])) == ("k-1", True)


@pytest.mark.row("A52")
@pytest.mark.usefixtures("a_state_store")
def test_what_the_last_releases_worker_wrote_later_counts(server: FaultServer) -> None:
    task_run = TaskRun()
    assert run(kickoff(), task_run) == "k-1"
    later = {**task_run.store.get(KICKOFF_STATE), "kickoff_id": "k-2"}  # which keeps fields that it does not know
    task_run.store.set(KICKOFF_STATE, later)
    assert run(kickoff(), task_run.retry()) == "k-2"
    assert len(server.sent(POST)) == 1


@pytest.mark.row("A52")
@pytest.mark.usefixtures("a_state_store")
def test_a_reference_of_a_missing_backend_is_not_nothing(server: FaultServer) -> None:
    task_run = TaskRun()
    task_run.store.set(KICKOFF_STATE, {"__airflow_state_ref__": "s3://bucket/record"})
    with pytest.raises(CrewTryFailed, match="state_store_backend"):
        run(kickoff(), task_run.retry())
    assert server.sent(POST) == []


@pytest.mark.row("A52")
@pytest.mark.parametrize(
    "value",
    [
        *('["a list"]', '"text"', "null", "no JSON"),
        *('{"version": 99}', '{"version": "x"}', "{}", '{"version": 1}', '{"version": true}'),
    ],
)
def test_what_is_no_record_is_an_error(server: FaultServer, variables: Variables, value: str) -> None:
    task_run = TaskRun()
    assert run(kickoff(), task_run) == "k-1"
    (key,) = (each for each in variables.kept if each.startswith(TASK_RECORD))
    variables.kept[key] = value
    with pytest.raises(CrewTryFailed, match="cannot be read"):
        run(kickoff(), task_run.retry())
    assert len(server.sent(POST)) == 1


@pytest.mark.row("A52")
def test_null_is_an_error_where_airflow_names_no_variables(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    unnamed, task_run = stand_in_for_variables(monkeypatch, Variables()), TaskRun()
    assert run(kickoff(), task_run) == "k-1"
    unnamed.kept = dict.fromkeys(unnamed.kept, "null")
    with pytest.raises(CrewTryFailed, match="cannot be read"):
        run(kickoff(), task_run.retry())
    assert len(server.sent(POST)) == 1


@pytest.mark.row("A52", "A54")
def test_a_retry_without_its_record_sends_nothing(server: FaultServer, a_memory: Variables) -> None:
    task_run = TaskRun()
    assert run(kickoff(), task_run) == "k-1"
    lose(a_memory, task_run)
    assert run(kickoff(), task_run.retry()) == "k-1"
    assert len(server.sent(POST)) == 1


@pytest.mark.row("A52", "A54")
def test_a_lost_record_of_an_unanswered_post_is_noticed(server: FaultServer, a_memory: Variables) -> None:
    server.on(POST, NoReply(RESET), {"kickoff_id": "k-2"})
    task_run = TaskRun()
    with pytest.raises(CrewTaskFailed, match="unknown"):
        run(kickoff(), task_run)
    lose(a_memory, task_run)
    with pytest.raises(CrewTaskFailed, match="unknown"):
        run(kickoff(), task_run.retry())
    assert len(server.sent(POST)) == 1


@pytest.mark.row("A52")
def test_a_separate_part_is_read_until_the_record_has_it(variables: Variables) -> None:
    part = TaskRecord(IDENTITY).part(REVIEW_STATE, PLAIN_OF_QUESTION)
    earlier = {"draft": ["k-1", "t", "hash"], "until": "then", "dag_id": "dag", "run_id": "run"}
    variables.kept[part.earlier_key] = json.dumps(earlier)
    assert part.recall() == {"draft": ["k-1", "t", "hash"], "until": "then"}
    part.keep({"over": True})
    TaskRecord(IDENTITY).part(RUN_STATE, PLAIN_OF_RUN).keep({"execution_id": "k-1"})
    assert TaskRecord(IDENTITY).part(REVIEW_STATE, PLAIN_OF_QUESTION).recall() == {"over": True}
    part.forget()
    assert TaskRecord(IDENTITY).part(REVIEW_STATE, PLAIN_OF_QUESTION).recall() == {}


@pytest.mark.row("A52")
def test_what_a_worker_without_the_common_record_wrote_later_counts(server: FaultServer, variables: Variables) -> None:
    task_run = TaskRun()
    assert run(kickoff(), task_run) == "k-1"
    part = TaskRecord(IDENTITY).part(KICKOFF_STATE, None)
    copy = json.loads(variables.kept[part.earlier_key])
    variables.kept[part.earlier_key] = json.dumps({**copy, "kickoff_id": "k-2"})
    assert run(kickoff(), task_run.retry()) == "k-2"
    assert len(server.sent(POST)) == 1


@pytest.mark.row("A52", "A54")
def test_a_clear_without_its_record_stops_the_execution(server: FaultServer, a_memory: Variables) -> None:
    task_run = TaskRun()
    assert run(kickoff(), task_run) == "k-1"
    lose(a_memory, task_run)
    assert run(kickoff(), task_run.clear()) == "k-2"
    assert len(server.sent("POST /stop/k-1")) == 1


@pytest.mark.row("A52", "A35")
@pytest.mark.parametrize("tried_again", [TaskRun.retry, TaskRun.clear])
def test_a_first_try_that_died_before_it_executed_left_nothing(server: FaultServer, tried_again: Any) -> None:
    assert run(kickoff(), tried_again(TaskRun())) == "k-1"


@pytest.mark.row("A52")
def test_a_refused_kickoff_after_a_failed_execution_is_no_loss(server: FaultServer) -> None:
    task_run = TaskRun()
    assert run(kickoff(), task_run) == "k-1"
    server.on("GET /status/k-1", {"status": "error", "error": "no"})
    server.on(POST, Reply(status=429, body=b'{"detail": "no"}'), {"kickoff_id": "k-2"})
    with pytest.raises(AirflowException):
        run(kickoff(), task_run.retry())
    assert run(kickoff(), task_run.retry()) == "k-2"


# --- who can read it ---


@pytest.mark.row("A47")
@pytest.mark.parametrize(
    ("name", "record"),
    [
        (RUN_STATE, {"execution_id": "k-1", "review": {"output": DRAFT}, "decisions": [{"human_feedback": DRAFT}]}),
        (REVIEW_STATE, {"draft": ["k-1", "t", "hash"], "shown": {"output": DRAFT}, "told": {f"60 {DRAFT}": "done"}}),
    ],
)
def test_variables_hold_no_text_in_the_clear(variables: Variables, name: str, record: dict[str, Any]) -> None:
    plain = {RUN_STATE: PLAIN_OF_RUN, REVIEW_STATE: PLAIN_OF_QUESTION}[name]
    kept = TaskRecord(IDENTITY).part(name, plain)
    kept.keep(record)
    assert TaskRecord(IDENTITY).part(name, plain).recall() == record
    assert DRAFT not in json.dumps(variables.kept)
    rows = {key: value for key, value in variables.kept.items() if "secret" not in key}
    (row,) = (json.loads(value) for value in rows.values())
    assert (row["dag_id"], row["run_id"], row["version"]) == ("dag", "run", VERSION)
    part = row["parts"][name]
    assert {*record} - {"review", "decisions", "shown", "told"} <= {*part}
    (secret,) = {*variables.kept} - {*rows}
    assert part["sealed_with"] == secret


@pytest.mark.row("A47")
def test_texts_without_their_key_leave_the_ids_readable(variables: Variables) -> None:
    kept = TaskRecord(IDENTITY).part(RUN_STATE, PLAIN_OF_RUN)
    kept.keep({"execution_id": "k-1", "review": {"output": DRAFT}})
    for key in [each for each in variables.kept if "secret" in each]:
        del variables.kept[key]
    found = kept.recall()
    assert "cannot be opened" in found.pop(UNOPENED)
    assert found == {"execution_id": "k-1"}


@pytest.mark.row("A47")
def test_a_key_is_never_replaced(variables: Variables) -> None:
    TaskRecord(IDENTITY).part(RUN_STATE, PLAIN_OF_RUN).keep({"review": {"output": DRAFT}})
    kept = TaskRecord(IDENTITY).part(RUN_STATE, PLAIN_OF_RUN)
    record = kept.recall()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(variables, "get", lambda key, **how: {}[key])  # Airflow says so of a failed read, too
        with pytest.raises(TaskStateUnavailable):
            kept.keep(record)
    assert TaskRecord(IDENTITY).part(RUN_STATE, PLAIN_OF_RUN).recall() == record


def test_a_task_outside_a_run_keeps_nothing(a_state_store: None) -> None:
    store = record_of({"task_state_store": None}).part(KICKOFF_STATE, None)
    store.keep({"kickoff_id": "k-1"})
    assert store.recall() == {}
