"""How a Flow's question is answered, what that is answered with, and what of it no error may show."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from faults.server import FaultServer
from faults.wire import SILENCE, NoReply, Reply

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.addresses import Place, allowed
from airflow_crew_provider.api.answers import ReviewAnswer
from airflow_crew_provider.api.responses import HttpResponse, masker
from airflow_crew_provider.client.deployment import Deployment
from airflow_crew_provider.exceptions import CrewApiError, CrewOutcomeUnknown
from airflow_crew_provider.flows import answers
from airflow_crew_provider.flows.answers import respond, resume_feedback
from airflow_crew_provider.inbox.flow_webhooks import AnswerAddress
from airflow_crew_provider.models import Resumed

ANSWER = ReviewAnswer("e-1", "q-1", "Shorter.", None, outcome="rework")
PLAIN = ReviewAnswer("e-1", "q-1", "Shorter.", False)
HIDE = masker(["secret"])


def reply(body: Any, status: int = 200) -> HttpResponse:
    return HttpResponse(status, {}, body if isinstance(body, bytes) else json.dumps(body).encode())


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://x.example/respond?token=secret", "/respond?token=secret"),
        ("https://x.example/a/respond", "/a/respond"),
        ("https://x.example", "/"),
    ],
)
def test_a_callback_is_requested_at_its_path_without_showing_it(url: str, target: str) -> None:
    callback = allowed(url, "https://x.example", ())
    assert callback
    call = respond(callback, ANSWER)
    assert (call.method, call.path, call.target) == ("POST", "to the callback of request q-1", target)
    assert call.body == {"feedback": "Shorter.", "source": "airflow", "outcome": "rework"}
    assert call.starts_something
    assert "secret" not in repr(call)


def test_without_a_callback_the_flow_is_named() -> None:
    call = resume_feedback("f-1", PLAIN)
    assert (call.method, call.path, call.target) == ("POST", "/resume_feedback", "")
    assert call.starts_cold, "the deployment may have been scaled to zero"
    assert call.body == {"flow_id": "f-1", "feedback": "Shorter.", "source": "airflow"}


CALLBACK = "http://a.example:8443/respond?token=a-secret"


def answered_through(proxy: FaultServer, answer: Any) -> Resumed:
    own = Deployment("http://x.example/crew", "token", 60.0, 0.5, True, proxy.url, (("X-Key", "key"),))
    connection = SimpleNamespace(deployment=own, callback_hosts=("a.example:8443",))
    hook: Any = SimpleNamespace(connection=connection, crew_conn_id="crew")
    proxy.on("POST *", answer)
    return answers.send(hook, ANSWER, AnswerAddress(CALLBACK, "respond-secret"))


def test_callbacks_are_reached_like_the_deployment_without_token_or_headers() -> None:
    with FaultServer() as proxy:
        assert answered_through(proxy, {"status": "accepted"}).status == "accepted"
        [request] = proxy.requests
    assert request.target == CALLBACK
    assert not {"authorization", "x-key"} & set(request.headers)


@pytest.mark.parametrize("verify", [True, False, "/ca.pem"])
def test_a_callback_is_trusted_like_the_deployment(verify: bool | str) -> None:
    own = Deployment("https://x.example/crew", "token", 60.0, 7.0, verify, "http://proxy.example", (("X-Key", "key"),))
    place = allowed("https://a.example:8443/respond", own.base_url, ("a.example:8443",))
    assert place
    connection: Any = SimpleNamespace(deployment=own)
    assert answers._receiver(connection, place) == Deployment(
        "https://a.example:8443", timeout=7.0, verify=verify, proxy="http://proxy.example"
    )


def test_a_callback_has_as_long_as_a_kickoff() -> None:
    half_a_second = r"no complete response within 0\.5 s|read timeout=0\.[45]"  # whichever limit comes first
    with FaultServer() as proxy, pytest.raises(CrewOutcomeUnknown, match=half_a_second):
        answered_through(proxy, NoReply(SILENCE))


def test_a_refusal_by_a_callback_shows_none_of_its_secrets() -> None:
    refusal = Reply(status=400, body=b'{"detail": "token a-secret of respond-secret"}')
    with FaultServer() as proxy, pytest.raises(CrewApiError) as error:
        answered_through(proxy, refusal)
    assert "token *** of ***" in str(error.value)


Ask = Callable[[], endpoints.Call[Resumed]]
CALLS: list[Ask] = [
    partial(respond, Place("https://x.example", "/r"), ANSWER),
    partial(resume_feedback, "f-1", ANSWER),
]


@pytest.mark.parametrize("ask", CALLS, ids=["callback", "flow"])
@pytest.mark.parametrize("body", [{"status": "accepted"}, {}])
def test_an_accepted_answer_continues_under_the_same_id(ask: Ask, body: Any) -> None:
    assert endpoints.read(ask(), reply(body)) == Resumed("e-1", "accepted")


@pytest.mark.parametrize("ask", CALLS, ids=["callback", "flow"])
@pytest.mark.parametrize("status", ["error", "failed", "NOT FOUND"])
def test_an_answer_to_which_an_error_is_reported_is_unknown(ask: Ask, status: str) -> None:
    with pytest.raises(CrewOutcomeUnknown) as error:
        endpoints.read(ask(), reply({"status": status, "message": "no such Flow"}))
    assert str(error.value) == (
        "The answer to the Flow returned 200 and reported an error (no such Flow); "
        "it is unknown whether the service acted on the request"
    )


@pytest.mark.parametrize("ask", CALLS, ids=["callback", "flow"])
@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "; the service does not report by whom"),
        ({"responded_by": None, "responded_at": ""}, "; the service does not report by whom"),
        ({"responded_at": "noon"}, " at noon; the service does not report by whom"),
        ({"responded_by": "Ada", "responded_at": "2026-11-20"}, " by Ada at 2026-11-20"),
        ({"responded_by": "Ada", "responded_at": 5}, " by Ada"),
        ({"request": {"responded_by": "Ada", "responded_at": "noon"}}, " by Ada at noon"),
        ({"responded_by": "Top", "responded_at": "noon", "request": {"responded_by": "Ada"}}, " by Ada at noon"),
        ({"responded_by": {"name": "Ada", "email": "a@x.example", "id": 7}}, " by Ada"),
        ({"responded_by": {"email": "a@x.example", "id": 7}}, " by a@x.example"),
        ({"responded_by": {"id": 7}}, " by 7"),
        ({"responded_by": {}}, "; the service does not report by whom"),
        ({"responded_by": "x" * 300}, " by " + "x" * 200),
        ({"responded_by": "a secret", "responded_at": "secret"}, " by a *** at ***"),
        ({"request": []}, "; the service does not report by whom"),
    ],
)
def test_an_answer_that_comes_second_learns_who_was_first(ask: Ask, body: Any, told: str) -> None:
    resumed = endpoints.read(ask(), reply(body, 409), HIDE)
    assert resumed == Resumed("e-1", "already_responded", f"the question was already answered{told}")


@pytest.mark.parametrize("ask", CALLS, ids=["callback", "flow"])
def test_an_answer_of_which_nothing_is_known_is_unknown(ask: Ask) -> None:
    with pytest.raises(CrewOutcomeUnknown) as error:
        endpoints.read(ask(), reply(b"a secret", 200), HIDE)
    assert str(error.value) == (
        "The answer to the Flow returned 200 with a body that is not JSON: a ***; "
        "it is unknown whether the service acted on the request"
    )
    with pytest.raises(CrewApiError):
        endpoints.read(ask(), reply({}, 401))
