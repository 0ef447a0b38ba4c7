"""The data that a task stores for the inbox: its registration before a POST, the returned id, and its DAG run.

The inbox runs in the API server; a task communicates with it through Variables (see `store`).
"""

from __future__ import annotations

import json
import logging
from typing import Any

from airflow.providers.common.compat.sdk import mask_secret

from airflow_crew_provider.client.crew import ConnectedCrew
from airflow_crew_provider.compat import variables
from airflow_crew_provider.compat.encryption import seal
from airflow_crew_provider.compat.task_instance import RelatedTask, pull_shared, push_shared, task_identity
from airflow_crew_provider.compat.version import has_inbox
from airflow_crew_provider.exceptions import CrewConnectionError, CrewInvalidInput
from airflow_crew_provider.inbox.messages import (
    WORD,
    InboxMessages,
    Registration,
    fresh,
    registered,
    repeatable,
    secrets_of,
)
from airflow_crew_provider.inbox.rows import FlowRun, RegisteredTask
from airflow_crew_provider.models import Json, Webhooks, reason, shown
from airflow_crew_provider.stored_names import MESSAGES_KEY, POSTED_KEY
from airflow_crew_provider.task.store import record_of

log = logging.getLogger(__name__)


def keep_registration(task: RegisteredTask, messages: InboxMessages) -> None:
    """Store a registration durably; keep messages that have already arrived for it.

    Where Airflow does not report which Variables exist, a failed read looks like no messages, so none are stored here:
    the API server does that with the first one.

    :param messages: the initial messages: those stored elsewhere before an upgrade, or none
    """
    put(task.key, task.as_dict(), task.description)
    if variables.has_variable(task.messages_key) is False:
        put(task.messages_key, messages.as_dict(), task.description, sealed=True)
    if task.newest:
        put(*task.newest, task.description)


def put(key: str, value: Json, description: str, *, sealed: bool = False) -> None:
    """Store a value, and verify that it is stored."""
    text = json.dumps(value)
    variables.keep(key, seal(text) if sealed else text, description)


def register(
    context: Any,
    hook: ConnectedCrew,
    idempotency_key: str,
    execution_id: str | None = None,
    inbox_url: str | None = None,
) -> tuple[Registration, Webhooks]:
    """Durably register this task's next POST with the inbox; return the record and the webhooks.

    :param inbox_url: for a repeated POST, the original inbox URL, which must not change; by default, the connection's
    """
    check(hook)
    connection = hook.connection
    assert connection.inbox_url
    again = connection.idempotency_keys
    secret = repeatable(connection.deployment.token, idempotency_key) if again else fresh
    registration, webhooks = registered(inbox_url or connection.inbox_url, execution_id, secret)
    for hidden in secrets_of(webhooks):
        mask_secret(hidden)
    try:
        keep_registration(RegisteredTask(registration, **task_identity(context)), InboxMessages(registration.id))
    except Exception as error:
        problem = reason(error)
    else:
        return registration, webhooks
    raise CrewConnectionError(f"The registration with the inbox could not be stored ({problem}); nothing was sent")


def check(hook: ConnectedCrew) -> None:
    """Raise an error if this version of Airflow has no inbox, or if the connection does not contain the inbox's URL."""
    if not has_inbox():
        raise CrewInvalidInput(
            "webhooks='inbox' needs Airflow 3, because older versions cannot serve the inbox. Nothing was sent; omit "
            "webhooks to wait by polling"
        )
    if not (hook.connection.inbox_url or "").startswith(("https://", "http://")):
        raise CrewInvalidInput(
            f"Connection {shown(hook.crew_conn_id)} has no inbox_url in its Extra, or its inbox_url is not an http or "
            "https address; webhooks='inbox' needs the URL at which the service reaches this Airflow's inbox, e.g. "
            "https://airflow.example.com/crew-inbox. Nothing was sent"
        )


def posted(context: Any, registration: Json, kickoff_id: str, *, again: bool = False) -> None:
    """Record the kickoff id that the service returned for a registration.

    :param again: whether an earlier try of the task sent the kickoff
    """
    stored = Registration.of(registration)
    if stored is None:
        return
    task = RegisteredTask(stored, **task_identity(context), kickoff_id=kickoff_id)
    # Before an upgrade, messages for an earlier try were kept in Airflow 3.3's task state.
    arrived = record_of(context).part(MESSAGES_KEY, ()).recall() if again else None
    keep_registration(task, InboxMessages.of(arrived, stored.id))
    push_shared(context, POSTED_KEY, _address(context, stored, kickoff_id))


def own_address(context: Any, registration: Json | None, kickoff_id: str) -> Json | None:
    """Return the address as `registered_address` does, for a task that registered the execution itself."""
    stored = Registration.of(registration)
    return _address(context, stored, kickoff_id) if stored else None


def _address(context: Any, registration: Registration, kickoff_id: str) -> Json:
    known = {"registration": registration.id, "kickoff_id": kickoff_id, "at": registration.at}
    return {**known, **task_identity(context)}


def registered_address(context: Any, task: RelatedTask, kickoff_id: str) -> Json | None:
    """Return the address from the upstream task that registered the execution with this id, or None."""
    upstream = task.get_flat_relatives(upstream=True) if task.has_dag() else ()
    tasks = sorted(each.task_id for each in upstream if _may_have_registered(each))
    if not tasks:
        return None
    values = pull_shared(context, tasks, POSTED_KEY)
    registrations = [each for each in values if isinstance(each, dict) and each.get("kickoff_id") == kickoff_id]
    return max(registrations, key=lambda each: each["at"], default=None)


def _may_have_registered(task: Any) -> bool:
    """Return whether a task may use the inbox: whether its `webhooks` argument is, or may become, ``inbox``."""
    if hasattr(task, "partial_kwargs"):
        # A mapped task may get the word when it is expanded, or from the DAG's defaults.
        webhooks = task.partial_kwargs.get("webhooks", WORD if "webhooks" in task.template_fields else None)
    else:
        webhooks = getattr(task, "webhooks", None)
    return webhooks is not None and not isinstance(webhooks, (dict, Webhooks))


def note_run(context: Any, hook: ConnectedCrew, execution_id: str) -> None:
    """Record which DAG run started an execution or is waiting for it, if the execution may be a Flow's.

    The inbox removes the execution's questions together with the DAG run's other records.
    """
    try:
        if hook.connection.flow_webhook_secret and has_inbox():
            task = task_identity(context)
            run = FlowRun(hook.crew_conn_id, execution_id, task["dag_id"], task["run_id"])
            put(run.key, run.as_dict(), run.description)
    except Exception as error:
        log.warning("Questions from execution %s may be kept after this DAG run: %s", execution_id, error)
