"""Where the answer to a Flow's question is sent: the address that came with it, to hosts of the connection only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from faults.dialects import SPEC, UNKNOWN_LIVE
from faults.server import FaultServer
from faults.variables import Variables
from faults.wire import SILENCE, NoReply
from simulated_airflow import TOKEN, Connect

from airflow_crew_provider.api.answers import ReviewAnswer
from airflow_crew_provider.exceptions import CrewInvalidInput, CrewOutcomeUnknown, CrewUnauthorized
from airflow_crew_provider.flows import answers
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.inbox import rows
from airflow_crew_provider.inbox.flow_webhooks import AnswerAddress
from airflow_crew_provider.models import Resumed
from airflow_crew_provider.wait.outcomes import CrewAnswerNotTaken
from airflow_crew_provider.wait.poller import Poller

CONN = "crew_flow"
POLL = "GET /status/e-1"
ANSWER = ReviewAnswer("e-1", "q-1", "Shorter.", False)
CALLBACK = AnswerAddress("https://a.example:8443/respond?token=0123456789", "0123456789", "f-1")
PAUSED = {"state": "PAUSED", "kickoff_id": "e-1", "flow_id": "f-9"}


@pytest.fixture
def flow(server: FaultServer, connect: Connect) -> Callable[..., CrewHook]:
    """Return a hook of the server; arguments are the connection's Extra."""

    def flow(**extra: Any) -> CrewHook:
        connect(server.url, conn_id=CONN, **{"callback_hosts": ["a.example:8443"], **extra})
        return CrewHook(CONN)

    return flow


@pytest.fixture
def receiver() -> Iterator[FaultServer]:
    """Where a callback leads, elsewhere than the deployment."""
    with FaultServer() as receiver:
        yield receiver.on("POST /respond*", {"status": "accepted"})


def arrived(variables: Variables, value: Any) -> None:
    """Store how the question is answered, as the inbox does."""
    variables.set(rows.answer_key(CONN, "q-1"), json.dumps(value))


def find(hook: CrewHook) -> AnswerAddress | None:
    return answers.find_address(Poller(hook), ANSWER)


def test_the_address_that_came_by_the_inbox_comes_first(
    flow: Callable[..., CrewHook], server: FaultServer, inbox_variables: Variables
) -> None:
    arrived(inbox_variables, CALLBACK.as_dict())
    assert find(flow(flow_webhook_secret="s", kind="flow")) == CALLBACK
    assert find(flow()) is None, "without the secret, nothing can have arrived"
    assert server.requests == []


def test_a_question_that_was_answered_is_not_answered_again(
    flow: Callable[..., CrewHook], inbox_variables: Variables
) -> None:
    arrived(inbox_variables, rows.USED)
    with pytest.raises(CrewAnswerNotTaken) as error:
        find(flow(flow_webhook_secret="s", kind="flow"))
    assert str(error.value) == "The question q-1 was already answered; nothing was sent"


@pytest.mark.parametrize("secret", [{}, {"flow_webhook_secret": "s"}], ids=["plain", "secret"])
def test_a_flow_that_waits_is_answered_by_its_id(
    flow: Callable[..., CrewHook], server: FaultServer, inbox_variables: Variables, secret: dict[str, str]
) -> None:
    server.on(POLL, PAUSED)
    assert find(flow(kind="flow", **secret)) == AnswerAddress(None, None, "f-9")
    assert len(server.sent(POLL)) == 1


@pytest.mark.parametrize(
    ("seen", "extra"),
    [
        (PAUSED, {"kind": "crew"}),
        (PAUSED, {}),
        ({"status": "pending", "flow_id": "f-9"}, {"kind": "flow"}),
        ({**PAUSED, "state": "RUNNING"}, {"kind": "flow"}),
        ({**PAUSED, "flow_id": None}, {"kind": "flow"}),
        (UNKNOWN_LIVE, {"kind": "flow"}),
        (SPEC.unknown, {"kind": "flow"}),
    ],
    ids=["crew", "kind-unknown", "specification", "running", "no-id", "not-found-live", "not-found"],
)
def test_all_else_is_answered_as_a_crew_is(
    flow: Callable[..., CrewHook], server: FaultServer, seen: Any, extra: dict[str, str]
) -> None:
    server.on(POLL, seen)
    assert find(flow(**extra)) is None


def test_an_unpollable_flow_is_not_answered_like_a_crew(flow: Callable[..., CrewHook], server: FaultServer) -> None:
    server.on(POLL, 401)
    with pytest.raises(CrewUnauthorized):
        find(flow(kind="flow"))


def test_an_address_at_a_host_of_the_connection_is_taken(flow: Callable[..., CrewHook], server: FaultServer) -> None:
    hook = flow()
    for address in (
        AnswerAddress(f"{server.url}/respond", flow_id="f"),
        AnswerAddress(f"{server.url}/respond"),
        CALLBACK,
        AnswerAddress(flow_id="f"),
    ):
        answers.check(hook, address)


@pytest.mark.parametrize("step", [answers.check, lambda hook, address: answers.send(hook, ANSWER, address)])
@pytest.mark.parametrize("host", ["evil.example", "evil.example\\@a.example:8443"])
def test_an_address_elsewhere_is_refused_and_not_shown(
    flow: Callable[..., CrewHook], step: Callable[..., Any], host: str
) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        step(flow(), AnswerAddress(f"https://{host}/respond?token=secret", flow_id="f"))
    assert str(error.value) == (
        "The answer would go to a host that connection 'crew_flow' does not allow: neither its Host nor one of "
        "callback_hosts in its Extra. Nothing was sent"
    )


@pytest.mark.parametrize("flow_id", [None, ""])
def test_without_an_address_nothing_is_sent(flow: Callable[..., CrewHook], flow_id: str | None) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        answers.check(flow(), AnswerAddress(flow_id=flow_id))
    assert str(error.value) == ("The webhook for this question had neither callback_url nor flow_id; nothing was sent")


def test_a_callback_gets_neither_token_nor_headers_of_the_deployment(
    flow: Callable[..., CrewHook], server: FaultServer, receiver: FaultServer
) -> None:
    hook = flow(headers={"X-Key": "a-key-of-the-deployment"}, callback_hosts=[receiver.url[7:]])
    address = AnswerAddress(f"{receiver.url}/respond?token=0123456789", "0123456789", "f-1")
    assert answers.send(hook, ANSWER, address) == Resumed("e-1", "accepted")
    [sent] = receiver.requests
    assert sent.target == "/respond?token=0123456789"
    assert sent.json == {"feedback": "Shorter.", "source": "airflow"}
    shown = str(dict(sent.headers))
    assert TOKEN not in shown
    assert "a-key-of-the-deployment" not in shown
    assert server.requests == []


def test_a_callback_is_reached_as_the_deployment_is(flow: Callable[..., CrewHook], receiver: FaultServer) -> None:
    receiver.on("POST *", {"status": "accepted"})
    hook = flow(proxy=receiver.url)  # which sees the whole address of a request to it
    address = AnswerAddress("http://a.example:8443/respond?token=0123456789", "0123456789", "f-1")
    answers.send(hook, ANSWER, address)
    assert receiver.requests[0].target == "http://a.example:8443/respond?token=0123456789"


def test_a_callback_may_take_as_long_as_a_deployment_post(flow: Callable[..., CrewHook], receiver: FaultServer) -> None:
    receiver.on("POST /respond*", NoReply(SILENCE))
    hook = flow(kickoff_timeout=0.3, callback_hosts=[receiver.url[7:]])
    with pytest.raises(CrewOutcomeUnknown):
        answers.send(hook, ANSWER, AnswerAddress(f"{receiver.url}/respond?token=0123456789"))


def test_without_a_callback_the_deployment_is_asked(flow: Callable[..., CrewHook], server: FaultServer) -> None:
    server.on("POST /resume_feedback", {"status": "accepted"})
    assert answers.send(flow(), ANSWER, AnswerAddress(flow_id="f-9")) == Resumed("e-1", "accepted")
    [sent] = server.requests
    assert (sent.target, sent.token) == ("/resume_feedback", f"Bearer {TOKEN}")
    assert sent.json == {"flow_id": "f-9", "feedback": "Shorter.", "source": "airflow"}


def test_an_address_is_removed_once_it_was_used(flow: Callable[..., CrewHook], inbox_variables: Variables) -> None:
    arrived(inbox_variables, CALLBACK.as_dict())
    answers.used_up(flow(flow_webhook_secret="s"), ANSWER)
    assert json.loads(inbox_variables.get(rows.answer_key(CONN, "q-1"))) == rows.USED


def test_without_an_address_there_is_nothing_to_remove(
    flow: Callable[..., CrewHook], inbox_variables: Variables
) -> None:
    answers.used_up(flow(flow_webhook_secret="s"), ANSWER)
    assert inbox_variables.kept == {}


def test_a_connection_without_a_secret_removes_no_address(
    flow: Callable[..., CrewHook], inbox_variables: Variables
) -> None:
    arrived(inbox_variables, CALLBACK.as_dict())
    answers.used_up(flow(), ANSWER)
    assert json.loads(inbox_variables.get(rows.answer_key(CONN, "q-1"))) == CALLBACK.as_dict()
