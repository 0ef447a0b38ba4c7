"""Each request as it is sent: method, path, headers and every field of the body."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.requests import LONGEST_ID, Kickoff, Resume, header_name, path_segment, webhook_fields
from airflow_crew_provider.api.responses import HttpResponse
from airflow_crew_provider.api.values import RenderedRecord
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import EditedOutput, HumanInputWebhook, Webhooks

URLS = Webhooks("https://x/task", "https://x/step", "https://x/crew")
URL_FIELDS = {
    "taskWebhookUrl": "https://x/task",
    "stepWebhookUrl": "https://x/step",
    "crewWebhookUrl": "https://x/crew",
}


def shape(call: endpoints.Call[Any]) -> tuple[Any, ...]:
    return call.method, call.path, call.body, dict(call.headers), call.starts_something


def test_get_inputs() -> None:
    assert shape(endpoints.inputs()) == ("GET", "/inputs", None, {}, False)


def test_a_kickoff_carries_its_inputs_and_no_unset_fields() -> None:
    assert shape(endpoints.kickoff(Kickoff(inputs={"a": 1}))) == ("POST", "/kickoff", {"inputs": {"a": 1}}, {}, True)


def test_a_kickoff_carries_meta_webhooks_and_key() -> None:
    request = Kickoff(inputs={}, meta={}, webhooks=URLS, idempotency_key="key-1")
    body = {"inputs": {}, "meta": {}, **URL_FIELDS}
    assert shape(endpoints.kickoff(request)) == ("POST", "/kickoff", body, {"Idempotency-Key": "key-1"}, True)


def test_a_flow_kickoff_may_continue_from_a_stored_state() -> None:
    call = endpoints.kickoff(Kickoff(inputs={}, restore_from="state-1"))
    assert call.body == {"inputs": {}, "restoreFromStateId": "state-1"}


def test_a_kickoff_that_continues_an_execution_names_no_other_state() -> None:
    request = Kickoff(inputs={}, restore_from="state-1", continue_from="k-1")
    assert endpoints.kickoff(request).body == {"inputs": {}, "continueFrom": "k-1"}


def test_only_what_may_wake_the_service_is_given_more_time() -> None:
    """A service that was scaled to zero starts with the first POST."""
    resume = Resume(execution_id="e", crew_task_id="t", human_feedback="", is_approve=True)
    assert [call.starts_cold for call in (endpoints.kickoff(Kickoff(inputs={})), endpoints.resume(resume))] == [
        True
    ] * 2
    assert [call.starts_cold for call in (endpoints.inputs(), endpoints.status("k-1"))] == [False] * 2


def test_get_status() -> None:
    assert shape(endpoints.status("a/b")) == ("GET", "/status/a%2Fb", None, {}, False)
    assert endpoints.status("a/b").polled == "a/b"
    seen = endpoints.read(endpoints.status("a/b"), HttpResponse(200, {}, b'{"status": "running"}'))
    assert seen.kickoff_id == "a/b"


def test_get_executions() -> None:
    assert shape(endpoints.executions()) == ("GET", "/executions?limit=20", None, {}, False)
    assert endpoints.executions("pending", 5).path == "/executions?state=pending&limit=5"


def test_get_the_details_of_an_execution() -> None:
    assert shape(endpoints.details("a/b")) == ("GET", "/executions/a%2Fb", None, {}, False)
    assert endpoints.details("a", '"v1"').headers == {"If-None-Match": '"v1"'}
    for call in (endpoints.ended_tasks("a/b"), endpoints.open_round("a/b")):
        assert shape(call) == ("GET", "/executions/a%2Fb", None, {}, False)


@pytest.mark.parametrize("is_approve", [True, False])
def test_a_resume_carries_every_field_in_both_spellings(is_approve: bool) -> None:
    request = Resume(execution_id="e", crew_task_id="t", human_feedback="Shorter", is_approve=is_approve)
    body = {
        **{"execution_id": "e", "executionId": "e", "task_id": "t", "taskId": "t"},
        **{"human_feedback": "Shorter", "humanFeedback": "Shorter", "is_approve": is_approve, "isApprove": is_approve},
    }
    assert shape(endpoints.resume(request)) == ("POST", "/resume", body, {}, True)


def test_a_flow_resume_carries_its_outcome_and_no_approval() -> None:
    request = Resume(execution_id="e", crew_task_id="t", human_feedback="x", is_approve=None, outcome="rework")
    body = {
        **{"execution_id": "e", "executionId": "e", "task_id": "t", "taskId": "t"},
        **{"human_feedback": "x", "humanFeedback": "x", "outcome": "rework"},
    }
    assert endpoints.resume(request).body == body


def test_a_resume_carries_webhooks_and_key() -> None:
    request = Resume(
        execution_id="e", crew_task_id="t", human_feedback="", is_approve=True, webhooks=URLS, idempotency_key="key-2"
    )
    call = endpoints.resume(request)
    assert URL_FIELDS.items() <= (call.body or {}).items()
    assert call.headers == {"Idempotency-Key": "key-2"}


def test_a_resume_carries_the_edited_draft_and_answered_drafts_hash() -> None:
    request = Resume(execution_id="e", crew_task_id="t", human_feedback="", is_approve=True)
    plain = endpoints.resume(request).body
    edited = replace(request, edited_output=EditedOutput("My text.", "h1"), output_sha256="h2")
    added = {"edited_output": {"text": "My text.", "output_sha256": "h1"}, "output_sha256": "h2"}
    assert endpoints.resume(edited).body == {**(plain or {}), **added}


@pytest.mark.parametrize("field", ["execution_id", "crew_task_id"])
def test_a_resume_without_an_id_is_refused(field: str) -> None:
    fields: dict[str, Any] = {"execution_id": "e", "crew_task_id": "t", field: ""}
    with pytest.raises(CrewInvalidInput):
        endpoints.resume(Resume(**fields, human_feedback="", is_approve=True))


@pytest.mark.parametrize("key", ["ключ", "a\nb", "é", "a\x7f"])
def test_a_key_unfit_for_headers_is_refused(key: str) -> None:
    resume = Resume(execution_id="e", crew_task_id="t", human_feedback="", is_approve=True, idempotency_key=key)
    for ask in (lambda: endpoints.kickoff(Kickoff(inputs={}, idempotency_key=key)), lambda: endpoints.resume(resume)):
        with pytest.raises(
            CrewInvalidInput, match=r"^The idempotency key contains characters that .*nothing was sent$"
        ):
            ask()


def test_a_stop_has_an_empty_object_as_its_body() -> None:
    assert shape(endpoints.stop("a b")) == ("POST", "/stop/a%20b", {}, {}, True)


@pytest.mark.parametrize(
    ("webhooks", "fields"),
    [
        (None, {}),
        (Webhooks(), {}),
        (Webhooks(step="https://x/step"), {"stepWebhookUrl": "https://x/step"}),
        (Webhooks(human_input=HumanInputWebhook("https://x/h")), {"humanInputWebhookUrl": "https://x/h"}),
        (
            Webhooks(human_input=HumanInputWebhook("https://x/h", token="t", username="u")),
            {"humanInputWebhook": {"url": "https://x/h", "authentication": {"strategy": "bearer", "token": "t"}}},
        ),
        (
            Webhooks(human_input=HumanInputWebhook("https://x/h", username="u", password="p")),
            {
                "humanInputWebhook": {
                    "url": "https://x/h",
                    "authentication": {"strategy": "basic", "username": "u", "password": "p"},
                }
            },
        ),
        (
            Webhooks(human_input=HumanInputWebhook("https://x/h", username="")),
            {
                "humanInputWebhook": {
                    "url": "https://x/h",
                    "authentication": {"strategy": "basic", "username": "", "password": ""},
                }
            },
        ),
    ],
)
def test_only_webhooks_that_are_set_are_sent(webhooks: Webhooks | None, fields: dict[str, Any]) -> None:
    assert webhook_fields(webhooks) == fields


def test_the_longest_id_is_sent_and_a_longer_one_refused() -> None:
    assert path_segment("x" * LONGEST_ID) == "x" * LONGEST_ID
    with pytest.raises(
        CrewInvalidInput, match=r"^An id of 2049 bytes is too long \(the limit is 2048\); nothing was sent$"
    ):
        path_segment("x" * (LONGEST_ID + 1))
    with pytest.raises(CrewInvalidInput, match="An id of 2050 bytes"):
        path_segment("ü" * 1025)


@pytest.mark.parametrize("identifier", ["", " ", ".", "..", "None", None, 7])
def test_what_is_no_id_is_named(identifier: Any) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        path_segment(identifier)
    assert str(error.value) == f"{identifier!r} is not a crew service id; nothing was sent"


RECORD = {"state": "completed", "kickoff_id": "k-1", "execution_id": "e-1", "output": "x" * 3_000_000}
REVIEW = {"execution_id": "e-1", "crew_task_id": "draft_task", "is_approve": True}
BOTH: Any = {**RECORD, **REVIEW}
RESUME: Any = {"execution_id": "e-1", "crew_task_id": "draft_task", "human_feedback": "", "is_approve": True}


@pytest.mark.parametrize(
    "form",
    [lambda given: given, json.dumps, str, lambda given: f"\n  {given}", RenderedRecord],
    ids=["XCom", "JSON", "text", "indented", "field"],
)
@pytest.mark.parametrize(
    ("record", "name", "field"),
    [
        (RECORD, "kickoff_id", "kickoff_id"),
        (RECORD, "execution_id", "execution_id"),
        (RECORD, "restore_from", "kickoff_id"),
        (REVIEW, "crew_task_id", "crew_task_id"),
        (REVIEW, "kickoff_id", "execution_id"),
    ],
)
def test_a_record_is_no_id_but_has_one(form: Any, record: Any, name: str, field: str) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        path_segment(form(record), name)
    assert str(error.value) == f"{name} must be an id, but is a record: pass its field {field!r}; nothing was sent"


@pytest.mark.parametrize(
    ("ask", "name"),
    [
        (lambda: endpoints.kickoff(Kickoff(inputs={}, restore_from=BOTH)), "restore_from"),
        (lambda: endpoints.resume(Resume(**{**RESUME, "execution_id": BOTH})), "execution_id"),
        (lambda: endpoints.resume(Resume(**{**RESUME, "crew_task_id": BOTH})), "crew_task_id"),
        (lambda: endpoints.details(BOTH), "execution_id"),
    ],
    ids=["kickoff", "resume", "question", "details"],
)
def test_a_record_instead_of_an_id_names_its_parameter(ask: Any, name: str) -> None:
    field = "kickoff_id" if name == "restore_from" else name
    with pytest.raises(CrewInvalidInput) as error:
        ask()
    assert str(error.value) == f"{name} must be an id, but is a record: pass its field {field!r}; nothing was sent"


@pytest.mark.parametrize(
    "field",
    [{"is_approve": None}, {"is_approve": "yes"}, {"is_approve": 1, "outcome": "rework"}, {"human_feedback": None}],
    ids=["neither", "text", "number", "no text"],
)
def test_a_resume_that_decides_nothing_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        endpoints.resume(Resume(**{**RESUME, **field}))
    assert str(error.value) == "is_approve must be a bool and human_feedback a string; nothing was sent"


@pytest.mark.parametrize("given", [{"output": "x" * 3_000_000}, ["x" * 3_000_000], [{"kickoff_id": "k-1"}] * 100_000])
def test_the_message_about_no_id_is_short(given: Any) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        path_segment(given)
    assert str(error.value).endswith(" characters) is not a crew service id; nothing was sent")
    assert len(str(error.value)) < 300


def test_half_a_surrogate_pair_is_no_id() -> None:
    with pytest.raises(CrewInvalidInput) as error:
        path_segment("a\ud800")
    assert str(error.value) == "An id with an unpaired surrogate cannot be sent; nothing was sent"
    assert error.value.__cause__ is None


def test_the_refusal_of_a_header_does_not_show_its_name() -> None:
    assert header_name("A header", "X-Team") == "X-Team"
    with pytest.raises(CrewInvalidInput) as error:
        header_name("A header", "secret word")
    assert str(error.value) == "A header is not allowed in HTTP; use letters, digits and hyphens. Nothing was sent"
