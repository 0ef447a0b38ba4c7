"""Webhooks as users give them to operators. A literal credential is refused: it would stand in rendered fields.

The word ``inbox`` stands for addresses of this Airflow's own inbox, made anew for each POST.
"""

from __future__ import annotations

from typing import Any

from airflow_crew_provider.core.inbox_addresses import WORD
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.hooks import inbox
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import HumanInputWebhook, Json, Webhooks
from airflow_crew_provider.tasks.post_record import PostRecord
from airflow_crew_provider.tasks.sender import Sender

SECRET_FIELDS = ("token", "username", "password")


def refuse_literal_credentials(webhooks: Any) -> None:
    """Refuse at parse time what must not reach the rendered fields, the serialized DAG or a log."""
    human = webhooks.human_input if isinstance(webhooks, Webhooks) else None
    if isinstance(webhooks, dict):
        human = webhooks.get("human_input")
    for name in SECRET_FIELDS:
        value = getattr(human, name, None) if isinstance(human, HumanInputWebhook) else None
        if isinstance(human, dict):
            value = human.get(name)
        if value is not None:
            raise CrewInvalidInput(
                f"webhooks.human_input.{name} would be readable in the rendered fields; "
                "put the credential into an Airflow connection and name it by conn_id"
            )


def checked_webhooks(webhooks: Any) -> Webhooks | str | None:
    """Read the rendered webhooks; the word ``inbox`` stays as it is."""
    if webhooks == WORD:
        return WORD
    refuse_literal_credentials(webhooks)
    try:
        return Webhooks.of(webhooks)
    except (TypeError, ValueError) as error:
        problem = str(error)
    raise CrewInvalidInput(f"{problem}. Nothing was sent")


def with_credentials(checked: Webhooks | str | None, hook: CrewHook) -> Webhooks | str | None:
    """Look credentials up before a POST is intended: one that is missing is no unknown outcome."""
    return checked if isinstance(checked, str) else hook.with_credentials(checked)


def check_inbox(checked: Webhooks | str | None, hook: CrewHook) -> None:
    """Refuse the word ``inbox`` before a POST is intended where there is none."""
    if isinstance(checked, str):
        inbox.check(hook)


def webhooks_to_send(
    checked: Webhooks | str | None, context: Any, hook: CrewHook, ledger: PostRecord, execution_id: str | None = None
) -> Webhooks | None:
    """Return what the POST that the ledger intends carries; for the inbox, register first."""
    if not isinstance(checked, str):
        return checked
    key, url = ledger.record["idempotency_key"], ledger.added.get("inbox_url")
    registration, webhooks = inbox.register(context, hook, key, execution_id, url)
    ledger.note(inbox=registration.as_dict())
    return webhooks


def added_address(checked: Webhooks | str | None, hook: CrewHook) -> Json:
    """Return the inbox's URL as a POST's record keeps it, so that sent again it names the same addresses."""
    url = hook.connection.inbox_url if isinstance(checked, str) else None
    # One with a user and a password in it is not stored: if it changes, the request is another one.
    return {"inbox_url": url} if url and "@" not in url else {}


def sender_of(checked: Webhooks | str | None, hook: CrewHook, ledger: PostRecord) -> Sender:
    """Return the sender of a POST; of one that may be sent again, with the addresses that it had first."""
    connection = hook.connection
    before = ledger.added_before(keyed=connection.idempotency_keys)
    return Sender.of(connection, checked, before.get("inbox_url"))


def tell_inbox(context: Any, ledger: PostRecord, *, again: bool = False) -> None:
    """Record the answer's id for the inbox, if the POST went with it; ``again`` when an earlier try sent it."""
    if ledger.record.get("inbox") and ledger.kickoff_id:
        inbox.posted(context, ledger.record["inbox"], ledger.kickoff_id, again=again)
