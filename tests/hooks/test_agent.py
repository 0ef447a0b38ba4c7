"""A crew as an agent of common-ai: what it answers, and which class of error each fault is."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, AirflowTaskTimeout
from faults.dialects import PENDING_SPEC, SPEC
from faults.server import FaultServer
from faults.wire import RESET, SILENCE, NoReply, Reply
from simulated_airflow import TOKEN, Connect, TaskRun

from airflow_crew_provider.api.status import USAGE
from airflow_crew_provider.client import lookups
from airflow_crew_provider.exceptions import CrewConnectionError, CrewError, CrewRateLimited, CrewServerError
from airflow_crew_provider.hooks import agent as agents
from airflow_crew_provider.hooks.agent import CrewAgentFailed
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import ExecutionState
from scripts.stack.waiting import PATIENCE, wait_until

contract = pytest.importorskip("airflow.providers.common.ai.managed_agents", reason="needs common-ai")
errors = pytest.importorskip("airflow.providers.common.ai.exceptions")
Request = contract.ManagedAgentRequest
pytestmark = [pytest.mark.usefixtures("simulated_airflow"), pytest.mark.waits]
ASK, START, POLL, STOP = "GET /inputs", "POST /kickoff", "GET /status/k-1", "POST /stop/k-1"
STOPPED = {"status": "stopped", "kickoffId": "k-1"}


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "POLL_INTERVAL", 0.05)


@pytest.fixture(autouse=True)
def crew(server: FaultServer) -> None:
    server.on(ASK, {"inputs": ["topic"], "required": ["topic"]})
    server.on(START, {"kickoff_id": "k-1"})
    server.on(STOP, STOPPED)


def ask(prompt: str = "What is tea?", *, prompt_input: str | None = None, **more: Any) -> Any:
    return CrewHook(prompt_input=prompt_input).agent("newsroom").invoke(Request(prompt=prompt, **more))


def starts(server: FaultServer) -> int:
    return len(server.sent(START))


def failure(**more: Any) -> str:
    """Return what is said of a crew that may have been started; the task must not be tried again."""
    with pytest.raises(CrewAgentFailed) as failed:
        ask(**more)
    assert isinstance(failed.value, errors.ManagedAgentInvocationError)
    assert isinstance(failed.value, AirflowFailException)
    assert not isinstance(failed.value, CrewError)
    return str(failed.value)


def test_a_crew_tells_its_name_and_capabilities_without_a_request(server: FaultServer) -> None:
    bound = CrewHook("crew_b").agent("newsroom")
    assert isinstance(bound.hook, contract.BaseManagedAgentHook)
    assert bound.ref == contract.ManagedAgentRef("crewai.crew", "crew_b:newsroom")
    has = bound.capabilities
    assert (has.sessions, has.structured_output, has.usage, has.trace) == (False, True, True, True)
    assert server.requests == []


def test_the_prompt_is_the_input_and_the_output_the_answer(server: FaultServer) -> None:
    used = '{"total_tokens": 9, "prompt_tokens": 7, "completion_tokens": 2}'
    body = {**SPEC.completed, "result": {"output": '{"cups": 3}'}}
    server.on(POLL, SPEC.running, Reply(body=body, headers={USAGE: used}))
    answer = ask()
    assert json.loads(server.sent(START)[0].body)["inputs"] == {"topic": "What is tea?"}
    assert (answer.text, answer.structured, answer.raw) == ('{"cups": 3}', {"cups": 3}, body)
    assert (answer.usage, answer.trace_ref) == (contract.ManagedAgentUsage(7, 2), "k-1")


def test_a_service_that_reports_no_tokens_gives_no_usage(server: FaultServer) -> None:
    server.on(POLL, SPEC.completed)
    assert (ask().text, ask().usage, ask().structured) == ("the output", None, None)


# --- what the prompt goes to ---


@pytest.mark.parametrize(
    ("asked", "prompt_input", "taken"),
    [
        ({"inputs": ["topic", "tone"], "required": ["topic"]}, None, "topic"),
        ({"inputs": ["topic", "tone"], "required": ["topic"]}, "topic", "topic"),
        ({"inputs": ["topic", "tone"], "required": []}, "tone", "tone"),
        ({"inputs": ["topic"], "required": []}, None, "topic"),
        ({"inputs": ["topic"]}, None, "topic"),
    ],
)
def test_the_prompt_goes_to_the_named_or_only_possible_input(
    server: FaultServer, asked: Any, prompt_input: str | None, taken: str
) -> None:
    server.on(ASK, asked).on(POLL, SPEC.completed)
    ask(prompt_input=prompt_input)
    assert list(json.loads(server.sent(START)[0].body)["inputs"]) == [taken]


@pytest.mark.parametrize(
    ("asked", "prompt_input", "said"),
    [
        (
            {"inputs": ["topic", "tone"], "required": ["topic", "tone"]},
            "topic",
            "the crew asks for topic, tone, and requires",
        ),
        ({"inputs": ["topic", "tone"], "required": ["topic", "tone"]}, None, "only its prompt, as one input,"),
        (
            {"inputs": ["topic", "tone"]},
            "topic",
            "the crew asks for topic, tone, and does not report which it requires",
        ),
        ({"inputs": ["topic", "tone"], "required": ["tone"]}, "topic", "only its prompt, as 'topic',"),
        ({"inputs": ["topic"], "required": []}, "subject", "only its prompt, as 'subject'"),
        ({"inputs": [], "required": []}, None, "the crew asks for none, and requires none"),
    ],
)
def test_a_crew_unfit_for_one_prompt_is_refused_with_reason(
    server: FaultServer, asked: Any, prompt_input: str | None, said: str
) -> None:
    server.on(ASK, asked)
    with pytest.raises(errors.ManagedAgentInvocationError, match="Nothing was started") as refused:
        ask(prompt_input=prompt_input)
    assert said in str(refused.value)
    assert not isinstance(refused.value, AirflowFailException)
    assert starts(server) == 0


@pytest.mark.parametrize("more", [{"vendor_options": {"crew_conn_id": "other"}}, {"prompt": None, "messages": [{}]}])
def test_a_request_beyond_a_crews_capabilities_is_refused_with_reason(server: FaultServer, more: Any) -> None:
    with pytest.raises(errors.ManagedAgentInvocationError, match=r"A crew accepts only a prompt, not \w.*Nothing was"):
        CrewHook().agent("newsroom").invoke(Request(**{"prompt": "x", **more}))
    with pytest.raises(ValueError, match="session_id"):
        ask(session_id="s")
    assert server.requests == []


def test_a_request_without_a_prompt_is_refused(server: FaultServer) -> None:
    with pytest.raises(errors.ManagedAgentInvocationError, match=r"^A crew needs a prompt\. Nothing was started$"):
        CrewHook().agent("newsroom").invoke(Request(prompt=None, messages=[]))
    assert server.requests == []


# --- before anything is started ---


@pytest.mark.parametrize(
    ("endpoint", "fault", "error"),
    [
        (ASK, Reply(status=503), CrewServerError),
        (ASK, NoReply(RESET), CrewConnectionError),
        (ASK, Reply(status=429), CrewRateLimited),
        (START, Reply(status=429), CrewRateLimited),
    ],
)
def test_what_a_later_try_may_mend_goes_through(server: FaultServer, endpoint: str, fault: Any, error: type) -> None:
    server.on(endpoint, fault)
    with pytest.raises(error) as failed:
        ask()
    assert not isinstance(failed.value, AirflowFailException | errors.ManagedAgentInvocationError)


@pytest.mark.parametrize(
    ("endpoint", "fault"),
    [
        (ASK, Reply(status=400)),
        (ASK, Reply(status=401)),
        (ASK, Reply(status=404)),
        (START, Reply(status=403)),
        (START, Reply(status=422)),
    ],
)
def test_an_unfixable_failure_is_terminal_and_says_nothing_was_started(
    server: FaultServer, endpoint: str, fault: Any
) -> None:
    server.on(endpoint, fault)
    with pytest.raises(errors.ManagedAgentInvocationError, match="Nothing was started") as failed:
        ask()
    assert not isinstance(failed.value, AirflowFailException)
    assert TOKEN not in str(failed.value)


def test_a_prompt_that_the_service_refuses_may_be_written_anew(server: FaultServer) -> None:
    server.on(START, Reply(status=400, body={"detail": "topic is too long"}))
    with pytest.raises(errors.ManagedAgentRejected, match="topic is too long"):
        ask()


# --- from the kickoff on ---


@pytest.mark.row("N11")
@pytest.mark.parametrize(
    "fault",
    [NoReply(RESET), Reply(status=502), Reply(status=503), Reply(status=500), Reply(body=b"{"), Reply(body={})],
    ids=["reset", "502", "503", "500", "unreadable", "no id"],
)
def test_an_agent_with_an_unknown_kickoff_outcome_fails_for_good(server: FaultServer, fault: Any) -> None:
    server.on(START, fault)
    assert "A second kickoff could run the crew twice, so none is sent" in failure()
    assert starts(server) == 1


def test_a_crew_that_fails_fails_the_task_for_good(server: FaultServer) -> None:
    server.on(POLL, SPEC.failed)
    assert failure() == "The crew's execution k-1 failed: ValueError: bad input. Clear the task to ask again"
    assert server.sent(STOP) == []


def test_a_crew_that_asks_a_person_is_stopped(server: FaultServer) -> None:
    server.on(POLL, SPEC.running, PENDING_SPEC)
    said = failure()
    assert said.startswith(
        "The crew needs a person at task draft_task; an agent cannot wait for one. Execution k-1 was"
    )
    assert len(server.sent(STOP)) == 1


@pytest.mark.waits
@pytest.mark.parametrize("body", [SPEC.running, SPEC.unknown])
def test_a_crew_that_takes_too_long_is_stopped_first(server: FaultServer, body: Any) -> None:
    server.on(POLL, body)
    said = failure(timeout=2.0)  # the kickoff is part of it, on a busy machine too
    assert "The wait timed out" in said
    assert "Execution k-1 was stopped" in said
    assert len(server.sent(STOP)) == 1


def test_a_kickoff_takes_no_longer_than_the_request_allows(server: FaultServer) -> None:
    server.on(START, NoReply(SILENCE))
    assert "A second kickoff could run the crew twice" in failure(timeout=0.3)


def test_asking_for_inputs_counts_towards_the_requests_timeout(server: FaultServer) -> None:
    """The time may be over during it, or right after it; a later try may have more luck."""
    server.on(ASK, NoReply(SILENCE))
    with pytest.raises(CrewConnectionError):
        ask(timeout=0.3)
    server.on(ASK, {"inputs": ["topic"]})
    with pytest.raises(CrewConnectionError, match=r"0\.0 s expired\. Nothing was sent"):
        ask(timeout=0.0)
    assert starts(server) == 0


def test_polls_failing_for_good_are_a_failure_after_the_start(server: FaultServer) -> None:
    server.on(POLL, Reply(status=401))
    server.on(STOP, Reply(status=401))
    assert "Execution k-1 could not be stopped" in failure()


def test_polls_that_fail_for_a_while_are_forgiven(server: FaultServer) -> None:
    server.on(POLL, Reply(status=503), NoReply(RESET), SPEC.completed)
    assert ask().text == "the output"


# --- in the next try of the task ---


@pytest.fixture
def asking(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> TaskRun:
    """Return the task that asks, at a service that completes two executions."""
    task_run = TaskRun("ask")
    monkeypatch.setattr(agents, "get_current_context", task_run.context)
    server.on(START, {"kickoff_id": "k-1"}, {"kickoff_id": "k-2"})
    for each in ("k-1", "k-2"):
        server.on(f"GET /status/{each}", SPEC.completed).on(f"POST /stop/{each}", STOPPED)
    return task_run


@pytest.mark.row("N36")
def test_an_answered_question_is_not_repeated_when_another_one_fails(server: FaultServer, asking: TaskRun) -> None:
    assert ask("What is tea?").trace_ref == "k-1"
    server.on(START, Reply(status=429), {"kickoff_id": "k-2"})
    with pytest.raises(CrewRateLimited):
        ask("And coffee?")
    asking.retry()
    assert ask("What is tea?").trace_ref == "k-1"
    assert ask("And coffee?").trace_ref == "k-2"
    assert starts(server) == 3, "the first, the one that was refused, and the second"
    asking.retry()
    assert [ask("And coffee?").trace_ref, ask("What is tea?").trace_ref] == ["k-2", "k-1"]
    assert starts(server) == 3


@pytest.mark.row("N36")
def test_a_question_asked_twice_keeps_two_answers_across_tries(server: FaultServer, asking: TaskRun) -> None:
    for _ in range(2):
        assert [ask().trace_ref, ask().trace_ref] == ["k-1", "k-2"]
        asking.retry()
    assert starts(server) == 2


@pytest.mark.row("N36", "A2")
def test_a_try_after_a_dead_worker_continues_the_execution(server: FaultServer, asking: TaskRun) -> None:
    server.on(POLL, SPEC.running).on(STOP, 503)
    with pytest.raises(Ended), interrupted(Ended, lambda: server.sent(POLL)):
        ask()
    server.on(POLL, SPEC.running, SPEC.completed)
    asking.retry()
    assert (ask().trace_ref, starts(server)) == ("k-1", 1)


@pytest.mark.row("N36")
def test_an_expired_limit_denies_no_earlier_execution(server: FaultServer, asking: TaskRun) -> None:
    assert ask().trace_ref == "k-1"
    asking.retry()
    with pytest.raises(CrewConnectionError) as failed:
        ask(timeout=0.0)
    assert "Nothing was started" not in str(failed.value)
    asking.retry()
    assert ask().trace_ref == "k-1"


@pytest.mark.row("N36")
def test_an_execution_that_was_stopped_is_followed_by_another(server: FaultServer, asking: TaskRun) -> None:
    server.on(POLL, SPEC.failed)
    failure()
    asking.retry()
    assert ask().trace_ref == "k-2"


@pytest.mark.row("N36", "A1")
@pytest.mark.parametrize("keyed", [True, False])
def test_an_unknown_kickoff_is_resent_only_under_its_key(
    server: FaultServer, asking: TaskRun, connect: Connect, keyed: bool
) -> None:
    connect(server.url, idempotency_keys=keyed)
    server.on(START, NoReply(RESET), {"kickoff_id": "k-1"})
    failure()
    asking.retry()
    if not keyed:
        assert "An earlier try sent a kickoff for this question; its outcome is unknown" in failure()
        assert starts(server) == 1
        return
    assert ask().trace_ref == "k-1"
    first, second = server.sent(START)
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert first.body == second.body


@pytest.mark.row("N36", "N22")
def test_a_kickoff_sent_without_its_key_is_not_resent(server: FaultServer, asking: TaskRun, connect: Connect) -> None:
    server.on(START, NoReply(RESET), {"kickoff_id": "k-1"})
    failure()
    connect(server.url, idempotency_keys=True)
    asking.retry()
    assert "An earlier try sent a kickoff for this question; its outcome is unknown" in failure()
    assert starts(server) == 1


@pytest.mark.row("N36", "A7")
def test_a_clear_asks_anew_and_stops_what_still_runs(server: FaultServer, asking: TaskRun) -> None:
    assert ask().trace_ref == "k-1"
    server.on(POLL, SPEC.running)
    asking.clear()
    assert ask().trace_ref == "k-2"
    assert len(server.sent(STOP)) == 1


@pytest.mark.row("N36", "A35")
def test_the_answers_of_a_deleted_run_are_not_taken_over(server: FaultServer, asking: TaskRun, variables: Any) -> None:
    assert ask().trace_ref == "k-1"
    asking.run_started += timedelta(hours=1)
    assert ask().trace_ref == "k-2"


@pytest.mark.row("N36", "A35")
@pytest.mark.parametrize("same_try", [True, False])
def test_a_run_set_to_queued_keeps_its_answers(
    server: FaultServer, asking: TaskRun, variables: Any, same_try: bool
) -> None:
    assert ask().trace_ref == "k-1"
    if same_try:
        asking.retry()
        assert ask().trace_ref == "k-1"
    asking.run_started += timedelta(hours=1)
    if not same_try:
        asking.retry()
    assert ask().trace_ref == "k-1"
    assert ask().trace_ref == "k-2"  # a further question of this try
    assert starts(server) == 2


class Ended(BaseException):
    """Such as a worker's end."""


@contextmanager
def interrupted(error: type[BaseException], when: Callable[[], object]) -> Iterator[None]:
    """Raise an error in this thread as Airflow does at a signal, as soon as a condition holds."""

    def interrupt() -> None:
        wait_until(when, "the request")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def handle(*_: Any) -> None:
        raise error

    before = signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.row("N34")
def test_an_agent_waits_where_the_connection_points_by_now(
    server: FaultServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "WHILE_POLLING", 0.0)
    with FaultServer() as new:
        new.on(POLL, SPEC.completed)
        server.on(POLL, SPEC.running, lambda request: connect(new.url) or Reply(status=503))
        assert ask(timeout=60).trace_ref == "k-1"
        assert new.sent(POLL)


def test_a_task_that_is_ended_from_outside_stops_the_crew(server: FaultServer, log_text: Callable[[], str]) -> None:
    server.on(POLL, SPEC.running)
    with pytest.raises(Ended), interrupted(Ended, lambda: server.sent(POLL)):
        ask()
    assert len(server.sent(STOP)) == 1
    assert "Execution k-1 was stopped" in log_text()


def test_a_task_ended_during_kickoff_says_the_crew_may_run(server: FaultServer, log_text: Callable[[], str]) -> None:
    server.on(START, NoReply(SILENCE))
    with pytest.raises(Ended), interrupted(Ended, lambda: server.sent(START)):
        ask()
    assert "may be running" in log_text()


def test_a_task_timeout_stops_the_crew_and_fails_for_good(server: FaultServer) -> None:
    server.on(POLL, SPEC.running)
    with interrupted(AirflowTaskTimeout, lambda: server.sent(POLL)):
        assert "Execution k-1 was stopped" in failure()
    assert len(server.sent(STOP)) == 1


def test_the_tasks_own_timeout_during_the_kickoff_fails_for_good(server: FaultServer) -> None:
    server.on(START, NoReply(SILENCE))
    with interrupted(AirflowTaskTimeout, lambda: server.sent(START)):
        assert "A second kickoff could run the crew twice" in failure()


def test_a_task_timeout_before_the_kickoff_is_left_to_airflow(server: FaultServer) -> None:
    server.on(ASK, NoReply(SILENCE))
    with pytest.raises(AirflowTaskTimeout), interrupted(AirflowTaskTimeout, lambda: server.sent(ASK)):
        ask()
    assert starts(server) == 0


# --- in common-ai ---


def test_failover_on_our_errors_alone_starts_no_second_crew(server: FaultServer) -> None:
    """By default a group goes to its next member on any error, so also after a kickoff of unknown outcome."""
    members = [CrewHook().agent(name) for name in ("first", "second")]
    narrow = contract.FailoverManagedAgentClient(members, failover_on=(CrewError,))
    server.on(START, Reply(status=502), {"kickoff_id": "k-1"}).on(POLL, SPEC.completed)
    with pytest.raises(CrewAgentFailed):
        narrow.invoke(Request(prompt="x"))
    assert starts(server) == 1
    server.on(START, Reply(status=429), {"kickoff_id": "k-1"})
    assert narrow.invoke(Request(prompt="x")).text == "the output"
    server.on(START, Reply(status=502), {"kickoff_id": "k-1"})
    before = starts(server)
    assert contract.FailoverManagedAgentClient(members).invoke(Request(prompt="x")).text == "the output"
    assert starts(server) - before == 2


@pytest.fixture
def consulted() -> Any:
    """Return an agent with common-ai's test model, which consults each of its tools once and says what they said."""
    pydantic_ai = pytest.importorskip("pydantic_ai")
    toolsets = pytest.importorskip("airflow.providers.common.ai.toolsets.managed_agent")
    toolset = toolsets.ManagedAgentToolset(CrewHook().agent("newsroom"), tool_name="ask_newsroom", timeout=PATIENCE)
    return pydantic_ai.Agent("test", toolsets=[toolset])


def test_an_agent_consults_a_crew_of_the_real_service(connect: Connect, consulted: Any) -> None:
    local = pytest.importorskip("crew_service.local", reason="needs the crew service")
    scenario = {"inputs": ["topic"], "tasks": [{"id": "write", "tokens": 5, "output": "All on {topic}."}]}
    with local.running_service(scenario=scenario) as service:
        connect(service.url, token=service.token)
        assert consulted.run_sync("Ask the newsroom.").output == '{"ask_newsroom":"All on a."}'
        assert [each.state for each in CrewHook().list_executions()] == [ExecutionState.COMPLETED]


def test_the_agents_task_is_not_tried_again_after_the_start(server: FaultServer, consulted: Any) -> None:
    server.on(POLL, SPEC.failed)
    with pytest.raises(AirflowFailException, match="execution k-1 failed"):
        consulted.run_sync("Ask the newsroom.")


def test_the_kickoff_names_the_task_that_asks(server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.on(POLL, SPEC.completed)
    monkeypatch.setattr(agents, "get_current_context", TaskRun("ask").context)
    ask()
    identity = {"dag_id": "dag", "run_id": "run", "task_id": "ask", "map_index": -1}
    assert json.loads(server.sent(START)[0].body)["meta"] == {"airflow": identity}


def test_without_common_ai_a_hook_says_what_to_install() -> None:
    code = """
import sys
sys.modules["airflow.providers.common.ai.exceptions"] = None  # as where nothing of it is installed
from airflow_crew_provider.hooks.crew import CrewHook
try:
    CrewHook().agent("newsroom")
except Exception as error:
    print(type(error).__name__, error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert "AirflowOptionalProviderFeatureException 'newsroom' cannot be used as an agent" in run.stdout
    assert "cannot be used as an agent: install airflow-crew-provider[common-ai]" in run.stdout
