"""Webhooks as a user gives them: a literal credential is refused, and the inbox is reached only where it is meant."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG
from faults.server import FaultServer
from faults.variables import Variables
from simulated_airflow import Connect, TaskRun

from airflow_crew_provider.client.deployment import Deployment
from airflow_crew_provider.compat.encryption import unseal
from airflow_crew_provider.decorators.crew import crew_task
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.inbox import rows
from airflow_crew_provider.inbox.messages import InboxMessages, Registration
from airflow_crew_provider.inbox.rows import RegisteredTask
from airflow_crew_provider.kickoff import request
from airflow_crew_provider.kickoff.post_record import PostRecord, Sender
from airflow_crew_provider.kickoff.webhooks import PostWebhooks, tell_inbox
from airflow_crew_provider.models import HumanInputWebhook, Webhooks
from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.stored_names import KICKOFF_STATE, MESSAGES_KEY, POSTED_KEY
from airflow_crew_provider.task.attempt import Attempt
from airflow_crew_provider.task.record import StoredPost
from airflow_crew_provider.task.store import record_of

URL = "https://x/h"
INBOX = "https://airflow.example/crew-inbox"


@pytest.mark.parametrize("name", ["token", "username", "password"])
@pytest.mark.parametrize("as_dict", [True, False])
def test_a_literal_credential_is_refused_by_its_name(name: str, as_dict: bool) -> None:
    given: Any = {"human_input": {"url": URL, name: ""}}
    if not as_dict:
        given = Webhooks(human_input=HumanInputWebhook(URL, **{name: "x"}))
    said = (
        f"webhooks.human_input.{name} would be readable in the rendered fields; "
        "put the credential into an Airflow connection and set conn_id"
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


@pytest.mark.parametrize(
    "given",
    [
        *("Inbox", 5, [], {"other": URL}, {"human_input": {"conn_id": "c"}}),
        *({"human_input": [URL]}, {"human_input": 5}, {"human_input": True}),
        *({"task": 5}, {"step": [URL]}, {"crew": "None"}, {"crew": "hooks.example.com/crew"}, Webhooks(task="ftp://a")),
        *({"human_input": {"url": 5}}, {"human_input": "hooks"}, Webhooks(human_input=HumanInputWebhook("hooks"))),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_sent(given: Any) -> None:
    with pytest.raises(CrewInvalidInput) as error:
        request.checked_webhooks(given)
    with pytest.raises((TypeError, ValueError)) as problem:
        Webhooks.of(given)
    assert str(error.value) == f"{problem.value}. Nothing was sent"
    assert error.value.__context__ is None


@pytest.fixture
def hook(server: FaultServer, connect: Connect) -> CrewHook:
    connect(server.url, inbox_url=INBOX)
    return CrewHook()


@pytest.mark.parametrize(
    ("webhooks", "inbox_url", "added"),
    [
        ("inbox", INBOX, {"inbox_url": INBOX}),
        ("inbox", "https://user:word@airflow.example", {}),
        ("inbox", None, {}),
        ("inbox", "", {}),
        (Webhooks(step=URL), INBOX, {}),
        (None, INBOX, {}),
    ],
)
def test_a_posts_inbox_is_stored_unless_it_carries_a_credential(
    webhooks: Any, inbox_url: str | None, added: Any
) -> None:
    hook: Any = SimpleNamespace(connection=SimpleNamespace(inbox_url=inbox_url), with_credentials=lambda given: given)
    assert PostWebhooks(webhooks, hook, None).added == added  # type: ignore[arg-type]


def test_a_webhook_is_sent_with_its_credentials() -> None:
    given = Webhooks(step=URL, human_input=HumanInputWebhook(URL, conn_id="receiver"))
    known = replace(given, human_input=HumanInputWebhook(URL, token="word"))
    hook: Any = SimpleNamespace(with_credentials={given: known}.__getitem__)
    assert PostWebhooks(given, hook, None).registered(None) == known  # type: ignore[arg-type]


@pytest.mark.parametrize("keyed", [True, False])
def test_a_resent_posts_sender_is_that_of_its_own_inbox(keyed: bool) -> None:
    connection: Any = SimpleNamespace(
        deployment=Deployment("https://x", "token"), inbox_url=INBOX, idempotency_keys=keyed
    )
    asked: list[bool] = []

    def added_before(*, keyed: bool) -> Any:
        asked.append(keyed)
        return {"inbox_url": "https://before.example"} if keyed else {}

    hook: Any = SimpleNamespace(connection=connection, with_credentials=lambda given: given)
    record: Any = SimpleNamespace(added_before=added_before)
    before = "https://before.example" if keyed else None
    assert PostWebhooks("inbox", hook, record).sender == Sender.of(connection, "inbox", before)
    assert PostWebhooks(None, hook, record).sender == Sender.of(connection)
    assert asked == [keyed, keyed]


def new_record(context: Any) -> PostRecord:
    return PostRecord(
        record_of(context).part(KICKOFF_STATE, None), Attempt.of(context, SimpleNamespace(retries=2)), "request"
    )


@pytest.mark.usefixtures("a_memory")
def test_credentials_are_looked_up_before_the_post(hook: CrewHook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_RECEIVER", '{"conn_type": "http", "login": "ann", "password": "word"}')
    context = TaskRun().context()
    webhooks = PostWebhooks(Webhooks(human_input=HumanInputWebhook(URL, conn_id="receiver")), hook, new_record(context))
    monkeypatch.delenv("AIRFLOW_CONN_RECEIVER")
    sent = webhooks.registered(context)
    assert sent
    assert sent.human_input
    assert (sent.human_input.username, sent.human_input.password) == ("ann", "word")


OPERATORS = pytest.mark.parametrize(
    "operator",
    [partial(CrewKickoffOperator, inputs={}), partial(CrewResumeOperator, review={})],
    ids=["start", "answer"],
)


@OPERATORS
@pytest.mark.parametrize("as_dict", [False, True])
def test_each_address_is_rendered_in_whatever_form_it_is(operator: Any, as_dict: bool) -> None:
    fields = {"crew": "{{ url }}", "human_input": HumanInputWebhook("{{ url }}", conn_id="hook")}
    task = operator(task_id="task", webhooks=fields if as_dict else Webhooks(**fields))
    task.render_template_fields({"url": URL})
    expected = Webhooks(crew=URL, human_input=HumanInputWebhook(URL, conn_id="hook"))
    assert request.checked_webhooks(task.webhooks) == expected


SECRET = {"human_input": {"url": URL, "token": "a-literal-token"}}
MAPPED: dict[str, Any] = {
    "kickoff": lambda: CrewKickoffOperator.partial(task_id="task", webhooks=SECRET).expand(inputs=[{}]),
    "resume": lambda: CrewResumeOperator.partial(task_id="task", webhooks=SECRET).expand(review=[{}]),
    "function": lambda: crew_task(lambda topic: {"topic": topic}, webhooks=SECRET).expand(topic=["tea"]),
}


@pytest.mark.parametrize("mapped", MAPPED)
def test_a_mapped_tasks_literal_credential_is_refused_when_parsed(mapped: str) -> None:
    with DAG("dag", schedule=None), pytest.raises(CrewInvalidInput, match=r"webhooks\.human_input\.token would be"):
        MAPPED[mapped]()


@pytest.mark.parametrize("given", [{"task": "hooks"}, {"human_input": {"url": 5}}], ids=str)
def test_the_hook_refuses_what_is_no_url(hook: CrewHook, server: FaultServer, given: Any) -> None:
    with pytest.raises(CrewInvalidInput, match=r"is not an http or https address; nothing was sent"):
        hook.kickoff({}, webhooks=given)
    with pytest.raises(CrewInvalidInput, match=r"is not an http or https address; nothing was sent"):
        hook.resume("k-1", "draft_task", "", True, webhooks=given)
    assert not server.requests


@pytest.mark.usefixtures("a_memory")
def test_a_users_own_webhooks_do_not_need_the_inbox(server: FaultServer, connect: Connect) -> None:
    connect(server.url)
    context = TaskRun().context()
    record = new_record(context)
    for given in (Webhooks(step=URL), None):
        webhooks = PostWebhooks(given, CrewHook(), record)
        webhooks.check()
        assert webhooks.registered(context) is given
    assert record.newest.inbox is None
    with pytest.raises(CrewInvalidInput, match="inbox"):
        PostWebhooks("inbox", CrewHook(), record).check()


@pytest.mark.since_airflow("3.0")
def test_an_inbox_registration_is_made_and_kept_in_the_record(hook: CrewHook, inbox_variables: Variables) -> None:
    context = TaskRun().context()
    record = new_record(context)
    record.intend(Sender.of(hook.connection, "inbox"))
    asked = PostWebhooks("inbox", hook, record)
    asked.check()
    webhooks = asked.registered(context, "e-1")
    assert webhooks
    assert webhooks.human_input
    kept = Registration.of(record.newest.inbox or {})
    assert kept
    assert (webhooks.human_input.url, kept.execution_id) == (f"{INBOX}/human-input/{kept.id}", "e-1")
    assert new_record(context).newest.inbox == kept.as_dict()
    stored = RegisteredTask.of(json.loads(inbox_variables.get(rows.registration_key(kept.id))))
    assert stored
    assert (stored.registration, stored.task_id, stored.kickoff_id) == (kept, "kickoff", None)


@pytest.mark.since_airflow("3.0")
def test_a_request_sent_with_another_inbox_keeps_its_address(hook: CrewHook, inbox_variables: Variables) -> None:
    context = TaskRun().context()
    record = new_record(context)
    record.intend(Sender.of(hook.connection, "inbox"), added={"inbox_url": "https://before.example/crew-inbox"})
    webhooks = PostWebhooks("inbox", hook, record).registered(context)
    assert webhooks
    assert str(webhooks.crew).startswith("https://before.example/crew-inbox/progress/")


@pytest.mark.since_airflow("3.0")
def test_a_request_with_the_same_key_has_the_same_addresses(
    server: FaultServer, connect: Connect, inbox_variables: Variables
) -> None:
    connect(server.url, inbox_url=INBOX, idempotency_keys=True)
    hook, context, found = CrewHook(), TaskRun().context(), []
    for key in ("key-1", "key-1", "key-2"):
        record = new_record(context)
        record.keep(StoredPost(fingerprint="request", idempotency_key=key))
        found.append(PostWebhooks("inbox", hook, record).registered(context))
    assert found[0] == found[1] != found[2]


@pytest.mark.since_airflow("3.0")
@pytest.mark.parametrize("again", [False, True])
def test_the_inbox_gets_the_id_of_the_answer(hook: CrewHook, inbox_variables: Variables, again: bool) -> None:
    task_run = TaskRun()
    context = task_run.context()
    record = new_record(context)
    record.intend(Sender.of(hook.connection, "inbox"))
    PostWebhooks("inbox", hook, record).registered(context)
    tell_inbox(context, record, again=again)
    assert POSTED_KEY not in task_run.xcom, "there is no answer yet"
    record.record_id("k-1")
    tell_inbox(context, record, again=again)
    assert record.newest.inbox
    posted, registration = task_run.xcom[POSTED_KEY], record.newest.inbox["id"]
    assert (posted["registration"], posted["kickoff_id"]) == (registration, "k-1")
    stored = RegisteredTask.of(json.loads(inbox_variables.get(rows.registration_key(registration))))
    assert stored
    assert stored.kickoff_id == "k-1"


@pytest.mark.since_airflow("3.0")
@pytest.mark.parametrize(("more", "found"), [({}, 0), ({"again": False}, 0), ({"again": True}, 1)])
def test_pre_upgrade_messages_are_kept_if_an_earlier_try_posted(
    hook: CrewHook, inbox_variables: Variables, more: Any, found: int
) -> None:
    context = TaskRun().context()
    record = new_record(context)
    record.intend(Sender.of(hook.connection, "inbox"))
    PostWebhooks("inbox", hook, record).registered(context)
    record.record_id("k-1")
    assert record.newest.inbox
    registration = record.newest.inbox["id"]
    arrived = InboxMessages(registration).with_progress("task", {"name": "draft"})
    inbox_variables.delete(rows.messages_key(registration))
    record_of(context).part(MESSAGES_KEY, ()).keep(arrived.as_dict())
    tell_inbox(context, record, **more)
    stored = json.loads(unseal(inbox_variables.get(rows.messages_key(registration))))
    assert stored["tasks"] == found


def test_without_a_registration_the_inbox_is_told_nothing(hook: CrewHook, a_memory: Variables) -> None:
    task_run = TaskRun()
    context = task_run.context()
    record = new_record(context)
    record.intend(Sender.of(hook.connection))
    record.record_id("k-1")
    tell_inbox(context, record)
    assert task_run.xcom == {}
