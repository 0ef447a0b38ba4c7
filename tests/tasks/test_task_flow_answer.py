"""Where the answer to a Flow's question is sent: the address that came with it, to hosts of the connection only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_crew_provider.api.answers import ReviewAnswer
from airflow_crew_provider.client import client as client_module
from airflow_crew_provider.client.deployment import CrewConnection, Deployment
from airflow_crew_provider.exceptions import CrewInvalidInput, CrewNotFound, CrewServerError
from airflow_crew_provider.flows import answers, source
from airflow_crew_provider.flows.webhooks import AnswerAddress
from airflow_crew_provider.models import Execution, ExecutionState, Resumed

OWN = Deployment("https://x.example", "token", 5.0, 7.0, "/ca.pem", "http://proxy", (("X-Key", "secret"),))
ANSWER = ReviewAnswer("e-1", "q-1", "Shorter.", False)
CALLBACK = AnswerAddress("https://a.example:8443/respond?token=0123456789", "0123456789", "f-1")


class Variables:
    """The Variables of the inbox, by connection and question."""

    def __init__(self, **stored: Any) -> None:
        self.stored = {("crew_flow", name): value for name, value in stored.items()}

    def address_of(self, *names: str) -> Any:
        return self.stored.get(names) or None

    def is_used_up(self, *names: str) -> bool:
        return self.stored.get(names) == ""

    def used_up(self, *names: str) -> None:
        self.stored[names] = ""


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Variables:
    variables = Variables()
    for name in ("address_of", "is_used_up", "used_up"):
        monkeypatch.setattr(source, name, getattr(variables, name))
    return variables


def hook(seen: Any = None, **more: Any) -> Any:
    connection = CrewConnection(OWN, callback_hosts=("a.example:8443",), **more)
    asked: list[str] = []

    def poll_patiently(execution_id: str) -> Any:
        asked.append(execution_id)
        if isinstance(seen, Exception):
            raise seen
        return seen

    made = SimpleNamespace(connection=connection, crew_conn_id="crew_flow", poll_patiently=poll_patiently, asked=asked)
    made.hook = made
    return made


def paused(live: bool = True, state: ExecutionState = ExecutionState.PENDING, flow_id: str | None = "f-9") -> Execution:
    raw = {"state": "PAUSED"} if live else {"status": "pending"}
    return Execution(kickoff_id="e-1", state=state, raw_state="x", flow_id=flow_id, raw=raw)


def test_the_address_that_came_by_the_inbox_comes_first(variables: Variables) -> None:
    variables.stored["crew_flow", "q-1"] = CALLBACK
    asked = hook(paused(), flow_webhook_secret="s", kind="flow")
    assert answers.address_of(asked, ANSWER) is CALLBACK
    assert asked.asked == []
    assert answers.address_of(hook(), ANSWER) is None


def test_a_question_that_was_answered_is_not_answered_again(variables: Variables) -> None:
    variables.stored["crew_flow", "q-1"] = ""
    with pytest.raises(CrewInvalidInput) as error:
        answers.address_of(hook(flow_webhook_secret="s", kind="flow"), ANSWER)
    assert str(error.value) == "The question q-1 was answered before; nothing was sent"


@pytest.mark.parametrize("secret", [None, "s"])
def test_a_flow_that_waits_is_answered_by_its_id(variables: Variables, secret: str | None) -> None:
    asked = hook(paused(), flow_webhook_secret=secret, kind="flow")
    assert answers.address_of(asked, ANSWER) == AnswerAddress(None, None, "f-9")
    assert asked.asked == ["e-1"]


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        (paused(), "crew"),
        (paused(), None),
        (paused(live=False), "flow"),
        (paused(state=ExecutionState.RUNNING), "flow"),
        (paused(flow_id=None), "flow"),
        (CrewNotFound(404, "GET", "/status/e-1", "no"), "flow"),
    ],
    ids=str,
)
def test_all_else_is_answered_as_a_crew_is(variables: Variables, seen: Any, kind: str | None) -> None:
    assert answers.address_of(hook(seen, kind=kind), ANSWER) is None


def test_a_flow_that_cannot_be_polled_is_not_answered_as_a_crew_is(variables: Variables) -> None:
    with pytest.raises(CrewServerError):
        answers.address_of(hook(CrewServerError(500, "GET", "/status/e-1", "no"), kind="flow"), ANSWER)


@pytest.mark.parametrize(
    "address",
    [
        AnswerAddress("https://x.example/respond", flow_id="f"),
        AnswerAddress("https://x.example/respond"),
        CALLBACK,
        AnswerAddress(flow_id="f"),
    ],
)
def test_an_address_at_a_host_of_the_connection_is_taken(address: AnswerAddress) -> None:
    answers.check(hook(), address)


def test_an_address_elsewhere_is_refused_and_not_shown() -> None:
    with pytest.raises(CrewInvalidInput) as error:
        answers.check(hook(), AnswerAddress("https://evil.example/respond?token=secret", flow_id="f"))
    assert str(error.value) == (
        "The answer would go to a host that connection 'crew_flow' does not allow: neither its Host nor one of "
        "callback_hosts in its Extra. Nothing was sent"
    )


@pytest.mark.parametrize("flow_id", [None, ""])
def test_without_an_address_nothing_is_sent(flow_id: str | None) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        answers.check(hook(), AnswerAddress(flow_id=flow_id))
    assert str(error.value) == ("The webhook of this question gave neither callback_url nor flow_id; nothing was sent")


class Client:
    """Remembers to whom which call was sent."""

    sent: list[Any]

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment

    def send(self, call: Any, **more: Any) -> Resumed:
        self.sent.append((self.deployment, call, more))
        return Resumed("e-1", "accepted")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(client_module, "Client", Client)
    Client.sent = []
    return Client.sent


def test_a_callback_gets_neither_the_token_nor_the_headers_of_the_deployment(sent: list[Any]) -> None:
    assert answers.send(hook(), ANSWER, CALLBACK) == Resumed("e-1", "accepted")
    [(to, call, more)] = sent
    assert to == Deployment("https://a.example:8443", timeout=7.0, verify="/ca.pem", proxy="http://proxy")
    assert (to.token, to.headers) == ("", ())
    assert call.target == "/respond?token=0123456789"
    assert call.body == {"feedback": "Shorter.", "source": "airflow"}
    assert more == {"secrets": CALLBACK.secrets}


def test_without_a_callback_the_deployment_is_asked(sent: list[Any]) -> None:
    asked = hook()
    asked.client = Client(OWN)
    assert answers.send(asked, ANSWER, AnswerAddress(flow_id="f-9")) == Resumed("e-1", "accepted")
    [(to, call, more)] = sent
    assert (to, call.path, more) == (OWN, "/resume_feedback", {})
    assert call.body == {"flow_id": "f-9", "feedback": "Shorter.", "source": "airflow"}


@pytest.mark.parametrize("secret", ["s", None])
@pytest.mark.parametrize("stored", [CALLBACK, None], ids=["stored", "none"])
def test_an_address_is_removed_once_it_was_used(variables: Variables, secret: str | None, stored: Any) -> None:
    variables.stored["crew_flow", "q-1"] = stored
    answers.used_up(hook(flow_webhook_secret=secret), ANSWER)
    assert variables.stored["crew_flow", "q-1"] == ("" if secret and stored else stored)
