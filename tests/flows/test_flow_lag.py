"""When a Flow may be answered by its id: not before the status shows the question, and never after another one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from faults.variables import NamedVariables, Variables, stand_in_for_variables

from airflow_crew_provider.api.answers import ReviewAnswer
from airflow_crew_provider.exceptions import CrewConnectionError, CrewNotFound
from airflow_crew_provider.flows import answers
from airflow_crew_provider.inbox import rows, source
from airflow_crew_provider.inbox.flow_webhooks import AnswerAddress, FlowQuestion
from airflow_crew_provider.models import Execution, ExecutionState
from airflow_crew_provider.wait.outcomes import CrewAnswerNotTaken, CrewTryFailed

ANSWER = ReviewAnswer("e-1", "q-1", "Shorter.", False)
BY_ID = AnswerAddress(flow_id="f-1")
UNKNOWN = CrewNotFound(404, "GET", "/status/e-1", "no")


def seen(state: ExecutionState, **raw: Any) -> Execution:
    return Execution(kickoff_id="e-1", state=state, raw_state=str(state), flow_id="f-1", raw={"state": "x", **raw})


PAUSED, RUNNING = seen(ExecutionState.PENDING), seen(ExecutionState.RUNNING)


class Service:
    """A Flow's status, as it changes with each poll; the last one stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statuses: list[Any] = []
        self.polled: list[str] = []
        self.slept: list[float] = []
        self.now = 100.0
        clock = SimpleNamespace(time=lambda: self.now, sleep=self._sleep)
        monkeypatch.setattr(answers, "time", clock)
        connection = SimpleNamespace(flow_webhook_secret=None, kind="flow")
        self.hook = SimpleNamespace(connection=connection, crew_conn_id="crew_flow")

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def poll_patiently(self, kickoff_id: str) -> Execution:
        self.polled.append(kickoff_id)
        status = self.statuses[min(len(self.polled), len(self.statuses)) - 1]
        if isinstance(status, Exception):
            raise status
        return status

    def find(self, lag: float, *statuses: Any, answer: ReviewAnswer = ANSWER) -> AnswerAddress | None:
        self.statuses = [*statuses]
        poller: Any = self
        return answers.find_address(poller, answer, lag=lag)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    return Service(monkeypatch)


def test_a_lagging_status_is_polled_until_it_shows_the_question(service: Service) -> None:
    assert service.find(10.0, RUNNING, UNKNOWN, PAUSED) == BY_ID
    assert (service.polled, service.slept) == (["e-1"] * 3, [1.0, 1.0])


def test_a_short_lag_is_not_waited_for_beyond_its_limit(service: Service) -> None:
    assert service.find(0.25, RUNNING, PAUSED) == BY_ID
    assert service.slept == [0.25]


@pytest.mark.parametrize(
    ("status", "shown"),
    [(RUNNING, "the execution is running"), (UNKNOWN, "it does not know the execution")],
    ids=["running", "not found"],
)
def test_a_question_that_the_status_never_shows_is_not_answered(service: Service, status: Any, shown: str) -> None:
    with pytest.raises(CrewTryFailed) as error:
        service.find(2.0, status)
    assert str(error.value) == (
        f"The service does not show that the Flow e-1 is waiting for an answer: {shown}. "
        "Nothing was sent; a retry of this task checks again"
    )
    assert service.slept == [1.0, 1.0]


@pytest.mark.parametrize("status", [RUNNING, UNKNOWN], ids=["running", "not found"])
def test_any_state_will_do_after_a_possibly_delivered_answer(service: Service, status: Any) -> None:
    assert service.find(0.0, status) is None
    assert (len(service.polled), service.slept) == (1, [])


def test_a_service_following_the_specification_is_answered_like_a_crew(service: Service) -> None:
    plain = Execution(kickoff_id="e-1", state=ExecutionState.RUNNING, raw_state="running", raw={"status": "running"})
    assert service.find(10.0, plain) is None
    assert len(service.polled) == 1


# --- with an inbox ---


class Inbox:
    """What the inbox has of the Flow, in Airflow's Variables."""

    def __init__(self, variables: Variables) -> None:
        self._variables = variables

    def asks(self, request_id: str) -> None:
        question = FlowQuestion(request_id, "check", "Fine?", "Draft", ["yes", "no"], ["e-1"], "f-1")
        self._variables.set(rows.questions_key("crew_flow", "e-1"), [question.as_dict()], serialize_json=True)

    def keeps(self, address: AnswerAddress) -> AnswerAddress:
        self._variables.set(rows.answer_key("crew_flow", "q-1"), address.as_dict(), serialize_json=True)
        return address


@pytest.fixture
def inbox(service: Service, monkeypatch: pytest.MonkeyPatch) -> Inbox:
    service.hook.connection.flow_webhook_secret = "s"
    return Inbox(stand_in_for_variables(monkeypatch))


@pytest.mark.parametrize("address", [None, BY_ID], ids=["no address", "no callback"])
def test_after_another_question_an_answer_by_id_is_refused(service: Service, inbox: Inbox, address: Any) -> None:
    inbox.asks("q-2")
    if address:
        inbox.keeps(address)
    with pytest.raises(CrewAnswerNotTaken) as error:
        service.find(10.0, PAUSED)
    assert str(error.value) == "The Flow e-1 has asked another question since q-1; nothing was sent"
    assert service.polled == []


@pytest.mark.row("N19")
@pytest.mark.parametrize("variables", [Variables, NamedVariables], ids=["Airflow 3.0 to 3.2", "other versions"])
@pytest.mark.parametrize("address", [None, BY_ID], ids=["no address", "no callback"])
def test_questions_that_cannot_be_read_allow_no_answer_by_id(
    service: Service, monkeypatch: pytest.MonkeyPatch, variables: type[Variables], address: Any
) -> None:
    service.hook.connection.flow_webhook_secret = "s"
    kept = stand_in_for_variables(monkeypatch, variables())
    inbox = Inbox(kept)
    inbox.asks("q-2")
    if address:
        inbox.keeps(address)
    kept.unreadable = 100
    with pytest.raises(CrewConnectionError, match="inbox"):
        service.find(10.0, PAUSED)
    assert service.polled == []


@pytest.mark.parametrize("newest", [None, "q-1"])
def test_the_newest_question_is_answered_by_id(service: Service, inbox: Inbox, newest: str | None) -> None:
    if newest:
        inbox.asks(newest)
    assert service.find(10.0, PAUSED) == BY_ID
    address = inbox.keeps(AnswerAddress(flow_id="f-2"))
    assert service.find(10.0, PAUSED) == address, "as its webhook says"


def test_a_callback_reaches_its_own_question_only(service: Service, inbox: Inbox) -> None:
    inbox.asks("q-2")
    address = inbox.keeps(AnswerAddress("https://a.example/respond"))
    assert service.find(10.0, PAUSED) == address


class Flow:
    """A Flow that has asked twice, with its questions stored under one id of its execution, or each under another."""

    def __init__(self, variables: Variables, first: Any, second: Any, ids: list[list[str]]) -> None:
        stored: dict[str, list[Any]] = {}
        for request_id, address, of in zip(("q-1", "q-2"), (first, second), ids, strict=True):
            question = FlowQuestion(request_id, "check", "Fine?", f"Draft of {request_id}", ["yes"], of, "f-1")
            for each in of:
                stored.setdefault(each, []).append(question.as_dict())
            if address is not None:
                kept = address if address == rows.USED else address.as_dict()
                variables.set(rows.answer_key("crew_flow", request_id), kept, serialize_json=True)
        for each, questions in stored.items():
            variables.set(rows.questions_key("crew_flow", each), questions, serialize_json=True)


CALLBACK = AnswerAddress("https://a.example/respond", flow_id="f-1")
ADDRESSES = {"by id": BY_ID, "by callback": CALLBACK, "answered": rows.USED, "unknown": None}


@pytest.mark.row("F4")
@pytest.mark.parametrize("ids", [[["e-1"], ["e-1"]], [["f-1"], ["f-1"]], [["e-1", "f-1"], ["f-1"]]], ids=str)
@pytest.mark.parametrize(("first", "second"), itertools.product(ADDRESSES, repeat=2))
def test_a_question_is_offered_only_where_its_answer_arrives(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    log_text: Callable[[], str],
    first: str,
    second: str,
    ids: list[list[str]],
) -> None:
    service.hook.connection.flow_webhook_secret = "s"
    Flow(stand_in_for_variables(monkeypatch), ADDRESSES[first], ADDRESSES[second], ids)
    hook: Any = service.hook
    offered = asyncio.run(source.InboxSource(hook).read("e-1", PAUSED, blocking=True))
    assert isinstance(offered, Execution)
    taken = []
    for request_id in ("q-2", "q-1"):
        try:
            service.find(0.0, PAUSED, answer=replace(ANSWER, crew_task_id=request_id))
        except CrewAnswerNotTaken:
            continue
        taken.append(request_id)
    is_open = {"q-1": first.startswith("by"), "q-2": second.startswith("by")}
    assert offered.crew_task_id == next((each for each in taken if is_open[each]), None)
    assert ("q-1" in taken) == (first == "by callback"), "by its id, a Flow takes an answer to its newest question"
    is_left = is_open["q-1"] and offered.crew_task_id is None
    assert ("Nobody is asked the question q-1 again" in log_text()) == is_left
    assert ("q-2" in taken) >= is_open["q-2"]
