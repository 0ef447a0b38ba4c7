"""The tasks' side: operators register with the inbox, a real service calls it, and looks know what it was told."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models.variable import Variable
from airflow.utils.session import create_session
from faults.dialects import PENDING_SPEC
from faults.server import FaultServer
from faults.variables import keep_beside_state_store
from faults.wire import RESET, NoReply
from registered_run import RegisteredRun, StoredVariables, Task, store_variables
from simulated_airflow import tell_states
from sqlalchemy import select

from airflow_crew_provider.api.budget import Budget
from airflow_crew_provider.compat import deferral, version
from airflow_crew_provider.exceptions import CrewConnectionError, CrewInvalidInput
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.inbox import registering, store
from airflow_crew_provider.inbox.messages import repeatable
from airflow_crew_provider.inbox.rows import messages_key
from airflow_crew_provider.inbox.source import InboxSource
from airflow_crew_provider.models import Execution, ExecutionState, total_tokens
from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.stored_names import POSTED_KEY
from airflow_crew_provider.triggers import crew as triggers
from airflow_crew_provider.triggers.crew import CrewStatusTrigger
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, CrewTryFailed
from airflow_crew_provider.wait.poller import Poller
from airflow_crew_provider.wait.watch import OVER_BUDGET, PENDING, Outcome, Watch
from crew_service.local import LocalService, running_service
from scripts.stack import wait_until
from scripts.stack.waiting import PATIENCE

CREW = {
    "inputs": ["topic"],
    "tasks": [
        {
            "id": "write",
            "human_input": True,
            "output": "Draft {revision} on {topic}.",
            "revised": "{feedback}",
            "tokens": 1250,
        }
    ],
}
BEFORE_THE_INBOX = {"kickoff_id": "k", "crew_conn_id": "c", "poll_interval": 5.0, "started": 1.0, "deadline": None}


@pytest.fixture(scope="module")
def live() -> Iterator[LocalService]:
    with running_service(scenario=CREW, dialect="live") as service:
        yield service


@pytest.fixture
def connect(live: LocalService, dag_run: RegisteredRun, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the connection; a task reads Variables through its supervisor, which is the database here."""

    def connect(host: str = live.url, **extra: Any) -> None:
        fields = {"conn_type": "crew", "host": host, "password": live.token, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_CREW_LIVE", json.dumps(fields))

    store_variables(monkeypatch)
    connect(inbox_url=dag_run.inbox_url)
    return connect


def source_of(task: Task) -> InboxSource:
    return InboxSource(CrewHook("crew_live"), task.pushed[POSTED_KEY])


def poller_of(task: Task) -> Poller:
    hook = CrewHook("crew_live")
    return Poller(hook, InboxSource(hook, task.pushed[POSTED_KEY]))


def kickoff() -> CrewKickoffOperator:
    return CrewKickoffOperator(
        task_id="start", inputs={"topic": "tea"}, webhooks="inbox", crew_conn_id="crew_live", check_inputs=False
    )


def asked(poller: Poller, kickoff_id: str) -> Execution:
    """Wait until a look shows that a person is waited for."""

    def look() -> Execution | None:
        seen = poller.poll(kickoff_id)
        return seen if isinstance(seen, Execution) and seen.state is ExecutionState.PENDING else None

    found = wait_until(look, "a question")
    assert found
    return found


def test_each_gates_poll_returns_what_only_the_webhook_reports(dag_run: RegisteredRun, connect: Any) -> None:
    start = Task(dag_run, "start")
    kickoff_id = start.run(kickoff())
    first = asked(poller_of(start), kickoff_id)
    assert first.output == "Draft 1 on tea."

    answer = {"execution_id": kickoff_id, "crew_task_id": first.crew_task_id, "human_feedback": "Shorter."}
    resume = Task(dag_run, "answer")
    operator = CrewResumeOperator(
        task_id="answer", **answer, is_approve=False, webhooks="inbox", crew_conn_id="crew_live"
    )
    continued = resume.run(operator)
    second = asked(poller_of(resume), continued)

    assert continued != kickoff_id
    assert second.output == "Shorter."
    assert second.crew_task_id != first.crew_task_id
    record = second.record(kickoff_id)
    assert (record["state"], record["kickoff_id"], record["execution_id"]) == ("pending", continued, kickoff_id)


@pytest.mark.row("A46")
@pytest.mark.since_airflow("3.1")
def test_an_approval_with_a_comment_lets_a_live_crew_continue(dag_run: RegisteredRun, connect: Any) -> None:
    from airflow_crew_provider.operators.review import CrewReviewOperator

    start = Task(dag_run, "start")
    kickoff_id = start.run(kickoff())
    pending = asked(poller_of(start), kickoff_id).record()
    answer = {"chosen_options": ["approve"], "params_input": {"human_feedback": "Very nice, thank you."}}
    ann = {"responded_at": datetime.now(UTC), "responded_by_user": {"id": "7", "name": "Ann"}}
    review = CrewReviewOperator(task_id="review", pending=pending, crew_conn_id="crew_live")
    decided = Task(dag_run, "review").run(
        SimpleNamespace(execute=lambda context: review.execute_complete(context, {**answer, **ann}))
    )
    resume = CrewResumeOperator(task_id="answer", review=decided, crew_conn_id="crew_live")
    continued = Task(dag_run, "answer").run(resume)

    def ended() -> Execution | None:
        seen = CrewHook("crew_live").get_status(continued)
        return seen if seen.state in (ExecutionState.COMPLETED, ExecutionState.NOT_FOUND) else None

    last = wait_until(ended, "the crew to go on or to ask again")
    assert last
    assert (last.state, last.output) == (ExecutionState.COMPLETED, "Draft 1 on tea.")
    assert (decided["human_feedback"], decided["sent_feedback"]) == ("Very nice, thank you.", "Approved.")


def test_a_poll_in_the_triggerer_returns_the_same(dag_run: RegisteredRun, connect: Any) -> None:
    start = Task(dag_run, "start")
    kickoff_id = start.run(kickoff())
    asked(poller_of(start), kickoff_id)

    async def look() -> Any:
        poller = poller_of(start)
        await poller.hook.hold()
        try:
            watch = Watch(kickoff_id=kickoff_id, started=time.time())
            return await poller.await_outcome(watch), await source_of(start).was_asked(kickoff_id)
        finally:
            await poller.hook.release()

    outcome, was_asked = asyncio.run(look())
    assert outcome.kind == PENDING
    assert was_asked


@pytest.mark.parametrize("late", [False, True], ids=["at once", "by a busy triggerer"])
def test_a_question_during_deferral_is_found_before_the_next_poll(
    dag_run: RegisteredRun, connect: Any, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    monkeypatch.setattr(deferral, "NOTICED_AFTER", 0.2)
    monkeypatch.setattr(triggers, "SPREAD", 0.2)
    start = Task(dag_run, "start")
    kickoff_id = start.run(kickoff())
    asked(poller_of(start), kickoff_id)  # its webhook found no deferred task to wake
    watch = Watch(kickoff_id=kickoff_id, started=time.time(), poll_interval=10 * PATIENCE)
    trigger = CrewStatusTrigger.of(watch, "crew_live", cancel_on_kill=False, inbox=start.pushed[POSTED_KEY])
    if late:
        assert trigger.not_before
        trigger.not_before -= 10

    async def first_event() -> Any:
        async with asyncio.timeout(PATIENCE):
            return (await anext(trigger.run())).payload

    assert asyncio.run(first_event())["kind"] == PENDING


@pytest.mark.since_airflow("3.3")  # before, the record goes with the end of the task
def test_a_further_try_takes_over_the_execution_and_its_registration(dag_run: RegisteredRun, connect: Any) -> None:
    start = Task(dag_run, "start")
    kickoff_id = start.run(kickoff())
    before = start.pushed[POSTED_KEY]

    assert start.run(kickoff()) == kickoff_id
    assert start.pushed[POSTED_KEY] == before
    found = store.find(before["registration"])
    assert found
    assert (found.kickoff_id, found.task_id) == (kickoff_id, "start")


@pytest.mark.since_airflow("3.3")  # before, the record goes with the end of the task
def test_a_question_that_came_between_two_tries_is_not_lost(dag_run: RegisteredRun, connect: Any) -> None:
    start = Task(dag_run, "start")
    kickoff_id = start.run(kickoff())
    before = asked(poller_of(start), kickoff_id)

    assert start.run(kickoff()) == kickoff_id

    after = poller_of(start).poll(kickoff_id)
    assert isinstance(after, Execution)
    assert after.record() == before.record()


@pytest.mark.row("N33")
@pytest.mark.parametrize("in_triggerer", [False, True])
def test_a_question_by_webhook_hides_no_budget_that_is_passed(
    dag_run: RegisteredRun, connect: Any, in_triggerer: bool
) -> None:
    start = Task(dag_run, "start")
    kickoff_id = start.run(kickoff())
    assert total_tokens(asked(poller_of(start), kickoff_id).usage) == 1250
    watch = Watch(kickoff_id=kickoff_id, started=time.time(), poll_interval=0.1, budget=Budget(1000))
    outcome = await_outcome(start, watch) if in_triggerer else poller_of(start).wait(watch)
    assert (outcome.kind, total_tokens(outcome.usage)) == (OVER_BUDGET, 1250)


def await_outcome(task: Task, watch: Watch) -> Outcome:
    async def wait() -> Outcome:
        poller = poller_of(task)
        await poller.hook.hold()
        try:
            return await poller.await_outcome(watch)
        finally:
            await poller.hook.release()

    return asyncio.run(wait())


def started_unrecorded(dag_run: RegisteredRun) -> tuple[Task, str]:
    """Start an execution by a worker that dies before it writes the answer down; return its id too."""
    start = Task(dag_run, "start")
    kickoff_id = start.run(kickoff())
    [memory] = start.memory.values()
    del memory["kickoff_id"]
    return start, kickoff_id


@pytest.mark.since_airflow("3.3")  # before, the record goes with the end of the task
def test_a_repeated_request_keeps_its_body_where_keys_are_honoured(
    dag_run: RegisteredRun, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_beside_state_store(monkeypatch)
    connect(inbox_url=dag_run.inbox_url, idempotency_keys=True)
    start, kickoff_id = started_unrecorded(dag_run)

    assert start.run(kickoff()) == kickoff_id


@pytest.mark.row("N32")
@pytest.mark.since_airflow("3.3")
def test_a_repeated_request_keeps_its_body_after_the_inbox_moved(
    dag_run: RegisteredRun, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_beside_state_store(monkeypatch)
    connect(inbox_url=dag_run.inbox_url, idempotency_keys=True)
    start, kickoff_id = started_unrecorded(dag_run)
    connect(inbox_url="https://moved.example.com/crew-inbox", idempotency_keys=True)

    assert start.run(kickoff()) == kickoff_id


def test_a_repeated_requests_secrets_depend_on_token_and_key() -> None:
    made = {repeatable(token, key)(purpose) for token in "ab" for key in "cd" for purpose in ("id", "progress")}
    assert len(made) == 8
    assert repeatable("a", "c")("id") in made


def test_nothing_that_a_task_stores_or_shows_holds_a_secret(
    dag_run: RegisteredRun, connect: Any, server: FaultServer
) -> None:
    server.on("POST /kickoff", {"kickoff_id": "k"})
    connect(host=server.url, inbox_url=dag_run.inbox_url)
    start = Task(dag_run, "start")
    operator = kickoff()
    start.run(operator)
    [sent] = server.sent("POST /kickoff")
    token = sent.json["humanInputWebhook"]["authentication"]["token"]
    id_, capability = sent.json["taskWebhookUrl"].split("/")[-3:-1]
    trigger = CrewStatusTrigger("k", inbox=start.pushed[POSTED_KEY])
    with create_session(scoped=False) as session:
        rows = [(row.key, row.get_val()) for row in session.scalars(select(Variable))]
    stored = json.dumps([start.memory, start.pushed, trigger.serialize(), rows])
    assert id_ in stored
    assert token not in stored
    assert capability not in stored
    assert operator.webhooks == "inbox"


@pytest.mark.parametrize("extra", [{}, {"inbox_url": "airflow.example.com/crew-inbox"}])
def test_a_missing_inbox_address_prevents_sending_and_names_its_place(
    dag_run: RegisteredRun, connect: Any, extra: dict[str, str]
) -> None:
    connect(**extra)
    start = Task(dag_run, "start")
    with pytest.raises(CrewTaskFailed, match=r"'crew_live' has no inbox_url in its Extra.*Nothing was sent"):
        start.run(kickoff())
    assert start.memory == {}


@pytest.mark.since_airflow("3.3")  # before, the record goes with the end of the task
def test_a_missing_inbox_address_prevents_resending_an_answer(
    dag_run: RegisteredRun, connect: Any, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_beside_state_store(monkeypatch)
    server.on("GET /status/k-1", PENDING_SPEC).on("POST /resume", NoReply(RESET))
    answer = {"execution_id": "k-1", "crew_task_id": "draft_task", "human_feedback": "Shorter.", "is_approve": False}
    options = {"task_id": "answer", "webhooks": "inbox", "crew_conn_id": "crew_live"}
    connect(host=server.url, inbox_url=dag_run.inbox_url, idempotency_keys=True)
    task = Task(dag_run, "answer")
    with pytest.raises(CrewTryFailed, match="finds out whether the answer was accepted"):
        task.run(CrewResumeOperator(**answer, **options))
    before = json.dumps(task.memory)
    connect(host=server.url, idempotency_keys=True)
    with pytest.raises(CrewTaskFailed, match="'crew_live' has no inbox_url in its Extra"):
        task.run(CrewResumeOperator(**answer, **options))
    assert json.dumps(task.memory) == before
    assert len(server.sent("POST /resume")) == 1


def test_before_airflow_3_the_inbox_is_refused_with_a_sentence(
    dag_run: RegisteredRun, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "RELEASE", (2, 11))
    with pytest.raises(CrewInvalidInput, match=r"needs Airflow 3.*polling"):
        registering.check(CrewHook("crew_live"))


def test_a_failed_registration_says_why_in_a_short_message(
    dag_run: RegisteredRun, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(key: str, *_: Any, **__: Any) -> None:
        raise RuntimeError("no database " + "x" * 100_000)

    monkeypatch.setattr(StoredVariables, "set", broken)
    names = {"dag_id": dag_run.dag_id, "run_id": dag_run.run_id, "task_id": "start", "map_index": -1}
    with pytest.raises(CrewConnectionError, match=r"could not be stored \(RuntimeError: no database") as error:
        registering.register({"ti": SimpleNamespace(**names)}, CrewHook("crew_live"), "key")
    assert len(str(error.value)) < 400


def test_an_unreadable_inbox_leaves_the_wait_to_polling(
    dag_run: RegisteredRun, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Task(dag_run, "start")
    kickoff_id = start.run(kickoff())
    asked(poller_of(start), kickoff_id)

    def broken(key: str) -> None:
        raise RuntimeError("no database")

    monkeypatch.setattr(StoredVariables, "get", broken)
    seen = poller_of(start).poll(kickoff_id)
    assert isinstance(seen, Execution)
    assert seen.state is ExecutionState.NOT_FOUND


@pytest.mark.row("A8")
def test_a_trigger_stored_before_there_was_an_inbox_still_loads() -> None:
    trigger = CrewStatusTrigger(**BEFORE_THE_INBOX)
    assert trigger.inbox is None
    _, kwargs = CrewStatusTrigger("k", inbox={"registration": "r"}).serialize()
    assert CrewStatusTrigger(**kwargs).inbox == {"registration": "r"}


@pytest.mark.parametrize(("arrived", "state"), [(True, "success"), (False, "success"), (True, "failed")])
def test_a_woken_task_finishing_quickly_does_not_seem_user_ended(
    dag_run: RegisteredRun, connect: Any, monkeypatch: pytest.MonkeyPatch, arrived: bool, state: str
) -> None:
    start = Task(dag_run, "start")
    kickoff_id = start.run(kickoff())
    asked(poller_of(start), kickoff_id)
    if not arrived:
        StoredVariables.delete(messages_key(start.pushed[POSTED_KEY]["registration"]))
    # What Airflow says of the task by now: it has succeeded, as after a user's mark; or a user has marked it as failed.
    tell_states(monkeypatch, lambda task: state)
    trigger = CrewStatusTrigger(kickoff_id, "crew_live", cancel_on_kill=True, inbox=start.pushed[POSTED_KEY])
    trigger.task_instance = SimpleNamespace(dag_id=dag_run.dag_id, run_id="run", task_id="start", map_index=-1)

    asyncio.run(trigger.on_kill())

    status = CrewHook("crew_live").get_status(kickoff_id)
    assert status.raw_state == ("NOT FOUND" if arrived and state == "success" else "REVOKED")
