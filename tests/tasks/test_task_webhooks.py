"""Webhooks as a user gives them: a literal credential is refused, and the inbox is reached only where it is meant."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.inbox import registering
from airflow_crew_provider.kickoff import request
from airflow_crew_provider.models import HumanInputWebhook, Webhooks

URL = "https://x/h"


@pytest.mark.parametrize("name", ["token", "username", "password"])
@pytest.mark.parametrize("as_dict", [True, False])
def test_a_literal_credential_is_refused_by_its_name(name: str, as_dict: bool) -> None:
    given: Any = {"human_input": {"url": URL, name: ""}}
    if not as_dict:
        given = Webhooks(human_input=HumanInputWebhook(URL, **{name: "x"}))
    said = (
        f"webhooks.human_input.{name} would be readable in the rendered fields; "
        "put the credential into an Airflow connection and name it by conn_id"
    )
    for check in (request.refuse_literal_credentials, request.checked_webhooks):
        with pytest.raises(CrewInvalidInput) as error:
            check(given)
        assert str(error.value) == said


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (None, None),
        ("inbox", "inbox"),
        ({"task": URL}, Webhooks(task=URL)),
        ({"human_input": URL}, Webhooks(human_input=HumanInputWebhook(URL))),
        ({"human_input": {"url": URL, "conn_id": "c"}}, Webhooks(human_input=HumanInputWebhook(URL, conn_id="c"))),
        (Webhooks(step=URL), Webhooks(step=URL)),
    ],
)
def test_what_is_right_is_read(given: Any, read: Any) -> None:
    assert request.checked_webhooks(given) == read


@pytest.mark.parametrize("given", ["Inbox", 5, [], {"other": URL}, {"human_input": {"conn_id": "c"}}])
def test_what_is_wrong_is_refused_before_anything_is_sent(given: Any) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        request.checked_webhooks(given)
    with pytest.raises((TypeError, ValueError)) as problem:
        Webhooks.of(given)
    assert str(error.value) == f"{problem.value}. Nothing was sent"
    assert error.value.__context__ is None


def test_credentials_are_looked_up_except_for_the_inbox() -> None:
    hook: Any = SimpleNamespace(with_credentials=lambda given: ("looked up", given))
    assert request.with_credentials("inbox", hook) == "inbox"
    assert request.with_credentials(None, hook) == ("looked up", None)
    given = Webhooks(task=URL)
    assert request.with_credentials(given, hook) == ("looked up", given)


class Record:
    """The record of a POST, as far as webhooks use it."""

    def __init__(self, kickoff_id: str | None = None, **record: Any) -> None:
        self.kickoff_id, self.record = kickoff_id, {"idempotency_key": "key", **record}
        self.added: dict[str, Any] = record.get("added", {})

    def note(self, **more: Any) -> None:
        self.record |= more


def test_for_the_inbox_a_registration_is_made_and_kept_in_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    registration = SimpleNamespace(as_dict=lambda: {"id": "r"})

    def register(*arguments: Any) -> Any:
        calls.append(arguments)
        return registration, Webhooks(task=URL)

    monkeypatch.setattr(registering, "register", register)
    monkeypatch.setattr(registering, "check", lambda *arguments: calls.append(arguments))
    record: Any = Record()
    hook: Any = object()
    assert request.webhooks_to_send("inbox", "context", hook, record, "e-1") == Webhooks(task=URL)
    assert calls == [("context", hook, "key", "e-1", None)]
    assert record.record == {"idempotency_key": "key", "inbox": {"id": "r"}}
    request.check_inbox("inbox", hook)
    assert calls[1:] == [(hook,)]
    request.check_inbox(Webhooks(), hook)
    request.check_inbox(None, hook)
    given = Webhooks(step=URL)
    assert request.webhooks_to_send(given, "context", hook, record) is given
    assert len(calls) == 2


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("record", [Record("k-1", inbox={"id": "r"}), Record("k-1"), Record(None, inbox={"id": "r"})])
def test_the_inbox_gets_an_id_only_where_both_are_known(
    monkeypatch: pytest.MonkeyPatch, record: Any, again: bool
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(registering, "posted", lambda *arguments, again: calls.append((*arguments, again)))
    request.tell_inbox("context", record, again=again)
    expected = [("context", {"id": "r"}, "k-1", again)]
    assert calls == (expected if record.kickoff_id and record.record.get("inbox") else [])
    if not again:
        request.tell_inbox("context", record)
        assert calls == (expected * 2 if expected and calls else [])
