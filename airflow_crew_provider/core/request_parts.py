"""The parts that requests are made of: an id as a path segment, the fields of webhooks, the header of a key. No I/O."""

from __future__ import annotations

from urllib.parse import quote

from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import HumanInputWebhook, Json, Webhooks

LONGEST_ID = 2048
# The first two are no path segments; the last is what a template makes of a value that is missing.
NO_IDS = (".", "..", "None")


def path_segment(identifier: str) -> str:
    """Quote an id as one path segment; what cannot be one is refused."""
    if not isinstance(identifier, str) or not identifier.strip() or identifier in NO_IDS:
        raise CrewInvalidInput(f"{identifier!r} is not an id of the crew service; nothing was sent")
    try:
        size = len(identifier.encode())
    except UnicodeEncodeError:
        raise CrewInvalidInput("An id with half a surrogate pair cannot be sent; nothing was sent") from None
    if size > LONGEST_ID:
        raise CrewInvalidInput(f"An id of {size} bytes is longer than {LONGEST_ID}; nothing was sent")
    return quote(identifier, safe="")


def webhook_fields(webhooks: Webhooks | None) -> Json:
    """Return the body's fields for the webhooks that are set."""
    if webhooks is None:
        return {}
    fields: Json = {
        "taskWebhookUrl": webhooks.task,
        "stepWebhookUrl": webhooks.step,
        "crewWebhookUrl": webhooks.crew,
        **_human_input_field(webhooks.human_input),
    }
    return {name: value for name, value in fields.items() if value}


def _human_input_field(webhook: HumanInputWebhook | None) -> Json:
    if webhook is None:
        return {}
    if webhook.token:
        credential = {"strategy": "bearer", "token": webhook.token}
    elif webhook.username is not None:
        credential = {"strategy": "basic", "username": webhook.username, "password": webhook.password or ""}
    else:
        return {"humanInputWebhookUrl": webhook.url}
    return {"humanInputWebhook": {"url": webhook.url, "authentication": credential}}


def idempotency(key: str | None) -> dict[str, str]:
    """Return the header that lets a service recognize a repeated request."""
    return {"Idempotency-Key": key} if key else {}
