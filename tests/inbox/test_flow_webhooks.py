"""The signed webhook by which a Flow asks for a person (observed Flows, the pause): proof, shapes, what is secret."""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import UTC, datetime
from typing import Any

import pytest
import standardwebhooks

from airflow_crew_provider.api.requests import LONGEST_ID
from airflow_crew_provider.exceptions import CrewProtocolError
from airflow_crew_provider.inbox.flow_webhooks import (
    LONGEST_OUTCOME,
    LONGEST_URL,
    MOST_OUTCOMES,
    AnswerAddress,
    FlowQuestion,
    is_signed,
    read,
)
from airflow_crew_provider.models import Execution, ExecutionState

SECRET, RAW, AT = "whsec-ü", b'{"id": "1"}', 1_900_000_000
CALLBACK = "https://x.example/human_feedback_requests/1/respond?token=0123456789"
BODY = {
    **{"event_type": "new_request", "id": "q-1", "status": "pending", "flow_id": "f-1", "method_name": "check"},
    **{"message": "May this go out?", "output": "Draft", "emit": ["publish", "drop"], "callback_url": CALLBACK},
    **{"response_token": "0123456789", "flow_execution_id": "x-1"},
}
NO_ID = "The webhook lacks id, or both flow_id and flow_execution_id"


def signed(raw: bytes = RAW, at: str = str(AT), secret: str = SECRET) -> str:
    return "sha256=" + hmac.new(secret.encode(), at.encode("latin-1") + b"." + raw, hashlib.sha256).hexdigest()


def is_taken(signature: str | None = None, at: str = str(AT), *, now: float = AT, prefix: str = "x-crewai-") -> bool:
    headers = {f"{prefix}signature": signature or signed(at=at), f"{prefix}timestamp": at}
    return is_signed(SECRET, headers, RAW, now=now)


@pytest.mark.parametrize("prefix", ["x-crewai-", "x-"])
@pytest.mark.parametrize("late", [-300, 0, 300])
def test_a_signature_holds_for_five_minutes_under_either_name(prefix: str, late: int) -> None:
    assert is_taken(now=AT + late, prefix=prefix) is True


@pytest.mark.parametrize("late", [-300.5, 300.5])
def test_a_signature_of_another_time_does_not_hold(late: float) -> None:
    assert is_taken(now=AT + late) is False


@pytest.mark.parametrize(
    "signature",
    [
        *(signed(b"other"), signed(secret="other"), signed(at=str(AT + 1)), signed()[:-1], signed().upper()),
        *("", "sha256=", "ü", "€", signed().removeprefix("sha256=")),
    ],
)
def test_another_signature_is_refused(signature: str) -> None:
    headers = {"x-crewai-signature": signature, "x-crewai-timestamp": str(AT)}
    assert is_signed(SECRET, headers, RAW, now=AT) is False


@pytest.mark.parametrize("at", ["", "soon", "-5", "1.5", f" {AT}", "²", "0" * 6 + str(AT)])
def test_an_invalid_time_is_refused_even_if_signed(at: str) -> None:
    assert is_taken(at=at, now=int(at) if at.isdecimal() and at.isascii() else 0) is False


STANDARD = "whsec_" + base64.b64encode(bytes(range(24))).decode()
OTHER = "whsec_" + base64.b64encode(bytes(24)).decode()


def by_standard(secret: str = STANDARD, at: int = AT, id_: str = "q-1", raw: bytes = RAW) -> dict[str, str]:
    """Sign as the package does that the standard publishes."""
    signature = standardwebhooks.Webhook(secret).sign(id_, datetime.fromtimestamp(at, UTC), raw.decode())
    return {"webhook-id": id_, "webhook-timestamp": str(at), "webhook-signature": signature}


def by_crewai(secret: str = STANDARD, at: str = str(AT)) -> dict[str, str]:
    return {"x-crewai-signature": signed(at=at, secret=secret), "x-crewai-timestamp": at}


@pytest.mark.row("F2")
@pytest.mark.parametrize("size", [24, 25, 26, 27, 28])
def test_standard_secrets_of_any_length_are_base64_with_optional_padding(size: int) -> None:
    secret = "whsec_" + base64.b64encode(bytes(range(size))).decode()
    for each in (secret, secret.rstrip("=")):
        assert is_signed(each, by_standard(secret), RAW, now=AT) is True


@pytest.mark.row("F2")
def test_a_secret_with_non_base64_characters_is_no_standard_one() -> None:
    assert is_signed(STANDARD[:10] + "-" + STANDARD[10:], by_standard(), RAW, now=AT) is False


@pytest.mark.row("F2")
@pytest.mark.parametrize("headers", [by_standard(), by_crewai(), {**by_standard(), **by_crewai()}])
@pytest.mark.parametrize("late", [-300, 300])
def test_a_webhook_is_proven_by_the_signature_that_it_carries(headers: dict[str, str], late: int) -> None:
    assert is_signed(STANDARD, headers, RAW, now=AT + late) is True
    assert is_signed(STANDARD, headers, RAW + b" ", now=AT) is False


@pytest.mark.row("F2")
@pytest.mark.parametrize(
    "headers",
    [
        {**by_standard(OTHER), **by_crewai()},
        {**by_standard(), **by_crewai(OTHER)},
        {**by_standard(at=AT - 301), **by_crewai()},
        {**by_standard(), **by_crewai(at=str(AT - 301))},
        {**by_standard(), "webhook-signature": "v2,x", **by_crewai()},
    ],
)
def test_where_it_carries_both_both_must_hold(headers: dict[str, str]) -> None:
    assert is_signed(STANDARD, headers, RAW, now=AT) is False


@pytest.mark.row("F2")
@pytest.mark.parametrize(
    "changed",
    [
        *({"webhook-id": "q-2"}, {"webhook-id": ""}, {"webhook-timestamp": str(AT + 1)}, {"webhook-timestamp": "soon"}),
        *({"webhook-signature": each} for each in ("v1,", "v1", ",", "\u00fc", "\u20ac", "v1a," + "x" * 44)),
        by_standard(OTHER),
    ],
)
def test_another_standard_signature_is_refused(changed: dict[str, str]) -> None:
    assert is_signed(STANDARD, {**by_standard(), **changed}, RAW, now=AT) is False


def test_during_secret_rotation_one_of_several_signatures_is_enough() -> None:
    signatures = [by_standard(OTHER)["webhook-signature"], "v1a,x", by_standard()["webhook-signature"]]
    assert is_signed(STANDARD, {**by_standard(), "webhook-signature": " ".join(signatures)}, RAW, now=AT) is True


@pytest.mark.parametrize("secret", ["whsec_", "whsec_no base64!", STANDARD.removeprefix("whsec_"), SECRET])
def test_a_nonstandard_secret_proves_nothing_by_the_standard(secret: str) -> None:
    assert is_signed(secret, by_standard(), RAW, now=AT) is False
    assert is_signed(secret, by_crewai(secret), RAW, now=AT) is True


def test_the_longest_time_is_read_and_non_ascii_is_refused() -> None:
    assert is_taken(at="0" * 5 + str(AT)) is True
    assert is_taken(signed(at="?"), at="€") is False


def test_without_headers_nothing_is_signed() -> None:
    assert is_signed(SECRET, {}, RAW, now=AT) is False
    assert is_signed(SECRET, {"x-crewai-timestamp": str(AT)}, RAW, now=AT) is False
    assert is_signed(SECRET, {"x-crewai-signature": signed()}, RAW, now=AT) is False


def nested(body: dict[str, Any], name: str = "event_type") -> dict[str, Any]:
    request = {key: value for key, value in body.items() if key not in ("event_type", "deployment_id")}
    return {"event": {name: body["event_type"]}, "request": request, "deployment": {"id": 7}}


def named(body: dict[str, Any]) -> dict[str, Any]:
    return {**nested(body), "event": body["event_type"]}


SHAPES = [dict, nested, lambda body: nested(body, "type"), lambda body: nested(body, "name"), named]


@pytest.mark.parametrize("shape", SHAPES, ids=["flat", "event_type", "type", "name", "text"])
def test_a_question_is_read_in_every_shape(shape: Any) -> None:
    asked = FlowQuestion("q-1", "check", "May this go out?", "Draft", ["publish", "drop"], ["f-1", "x-1"], "f-1")
    assert read(shape(BODY)) == (asked, AnswerAddress(CALLBACK, "0123456789", "f-1"))
    assert read(shape({**BODY, "event_type": "answered"})) is None


def test_fields_of_the_request_come_before_those_of_the_event() -> None:
    body = {"event": {"id": "event", "flow_id": "f", "message": "event"}, "id": "top", "request": {"id": "request"}}
    found = read(body)
    assert found
    assert (found[0].id, found[0].flow_id, found[0].question) == ("request", "f", "event")
    del body["request"]
    assert (read(body) or [None])[0] == FlowQuestion("top", "", "event", "", [], ["f"], "f")


@pytest.mark.parametrize(
    ("more", "asks"),
    [
        ({"event_type": "escalation"}, True),
        ({"event_type": None}, True),
        ({"event_type": ""}, True),
        ({"status": None}, True),
        ({"status": ""}, True),
        ({"event_type": "completed"}, False),
        ({"status": "responded"}, False),
    ],
)
def test_only_an_open_request_asks(more: dict[str, Any], asks: bool) -> None:
    assert (read({**BODY, **more}) is not None) is asks


def test_what_is_not_given_is_empty() -> None:
    assert read({"id": 7, "flow_execution_id": 8}) == (
        FlowQuestion("7", "", "", "", [], ["8"], None),
        AnswerAddress(None, None, None),
    )


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ({"kickoff_id": "k", "flow_id": "f", "flow_execution_id": "x"}, ["k", "f", "x"]),
        ({"kickoff_id": "k"}, ["k"]),
        ({"flow_id": 5}, ["5"]),
        ({"flow_execution_id": "x"}, ["x"]),
    ],
)
def test_an_execution_may_be_known_by_any_of_three_ids(given: dict[str, Any], ids: list[str]) -> None:
    found = read({"id": "q", **given})
    assert found
    assert found[0].ids == ids
    assert found[0].flow_id == (str(given["flow_id"]) if "flow_id" in given else None)


@pytest.mark.parametrize(("output", "draft"), [(None, ""), ("text", "text"), ({"b": 1, "a": 2}, '{"a":2,"b":1}')])
def test_the_draft_is_a_text_whatever_json_it_is(output: Any, draft: str) -> None:
    found = read({**BODY, "output": output})
    assert found
    assert found[0].output == draft


def problem(body: Any) -> str:
    with pytest.raises(CrewProtocolError) as error:
        read(body)
    assert error.value.__suppress_context__ or error.value.__context__ is None
    return str(error.value)


@pytest.mark.parametrize("body", [None, [], "text", 5])
def test_a_webhook_is_an_object(body: Any) -> None:
    assert problem(body) == "The webhook is not an object"


@pytest.mark.parametrize("body", [{"flow_id": "f"}, {"id": "q"}, {}])
def test_a_webhook_that_cannot_be_answered_is_refused(body: Any) -> None:
    assert problem(body) == NO_ID


@pytest.mark.parametrize("name", ["id", "flow_id", "kickoff_id", "flow_execution_id"])
@pytest.mark.parametrize("value", [True, 1.5, [], {}, "", "..", "x" * (LONGEST_ID + 1), "\ud800"])
def test_what_is_no_id_is_refused_by_its_name(name: str, value: Any) -> None:
    assert problem({**BODY, name: value}) == f"The webhook's {name} is not an id"


@pytest.mark.parametrize("name", ["event_type", "status", "method_name", "message", "callback_url", "response_token"])
@pytest.mark.parametrize("value", [5, [], {}, False])
def test_what_is_no_text_is_refused_by_its_name(name: str, value: Any) -> None:
    assert problem({**BODY, name: value}) == f"The webhook's {name} must be a string"


@pytest.mark.parametrize(
    "emit",
    ["publish", {}, 5, [1], [""], [" "], ["a", None], ["x"] * (MOST_OUTCOMES + 1), ["x" * (LONGEST_OUTCOME + 1)]],
    ids=lambda emit: str(emit)[:20],
)
def test_outcomes_are_words_and_not_too_many(emit: Any) -> None:
    assert problem({**BODY, "emit": emit}) == "The webhook's emit is not a list of words"


@pytest.mark.parametrize("emit", [[], ["a"], ["x"] * MOST_OUTCOMES, ["x" * LONGEST_OUTCOME]], ids=len)
def test_outcomes_are_read_as_they_are(emit: list[str]) -> None:
    found = read({**BODY, "emit": emit})
    assert found
    assert found[0].outcomes == emit
    assert (read({**BODY, "emit": None}) or [None])[0] == FlowQuestion(
        "q-1", "check", "May this go out?", "Draft", [], ["f-1", "x-1"], "f-1"
    )


def test_overlong_callbacks_are_cut_and_empty_ones_are_none() -> None:
    found = read({**BODY, "callback_url": "x" * (LONGEST_URL + 1), "response_token": ""})
    assert found
    assert found[1] == AnswerAddress("x" * LONGEST_URL, None, "f-1")
    assert (read({**BODY, "callback_url": ""}) or [None, None])[1] == AnswerAddress(None, "0123456789", "f-1")


def test_a_question_is_what_a_poll_would_have_shown() -> None:
    asked = FlowQuestion("q-1", "check", "Fine?", '{"a": 1}', ["yes"], ["f-1"], "f-1")
    execution = asked.as_execution("k-1")
    assert execution == Execution(
        kickoff_id="k-1",
        state=ExecutionState.PENDING,
        raw_state="reported by webhook",
        output='{"a": 1}',
        output_json={"a": 1},
        crew_task_id="q-1",
        question="Fine?",
        outcomes=["yes"],
        flow_id="f-1",
    )
    assert FlowQuestion(**asked.as_dict()) == asked


@pytest.mark.parametrize(
    ("address", "secrets"),
    [
        (AnswerAddress(), ()),
        (AnswerAddress(flow_id="a-long-flow-id"), ()),
        (AnswerAddress("https://x.example/", "short"), ("https://x.example/",)),
        (AnswerAddress("https://x.example/respond"), ("https://x.example/respond", "/respond")),
        (AnswerAddress("https://x.example/long-path"), ("https://x.example/long-path", "/long-path")),
        (AnswerAddress(None, "12345678"), ("12345678",)),
        (
            AnswerAddress("https://x.example/r?a=1%2B345678&b=c&d=abcdefgh", "0123456789"),
            (
                "https://x.example/r?a=1%2B345678&b=c&d=abcdefgh",
                "/r?a=1%2B345678&b=c&d=abcdefgh",
                "a=1%2B345678&b=c&d=abcdefgh",
                *("0123456789", "1+345678", "abcdefgh"),
            ),
        ),
    ],
)
def test_all_parts_of_an_answer_address_are_secret(address: AnswerAddress, secrets: Any) -> None:
    assert address.secrets == secrets
    assert AnswerAddress(**address.as_dict()) == address
