"""The requests that start or change an execution: their fields, the rules of these, and the body of the POST.

Bodies have the field names of both dialects, the specification's and that of live deployments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote

from airflow_crew_provider import exceptions
from airflow_crew_provider.api.status import EDITS_FIELD, HASH_FIELD, LONGEST_ID
from airflow_crew_provider.api.values import plain_object
from airflow_crew_provider.models import EditedOutput, HumanInputWebhook, Json, Webhooks, shown

RENDERED_NONE = "None"  # what a template renders for a missing value
NO_IDS = (".", "..", RENDERED_NONE)  # the first two cannot be path segments
KICKOFF_ID, EXECUTION_ID, CREW_TASK_ID = IDS = ("kickoff_id", "execution_id", "crew_task_id")  # of records, too


@dataclass(frozen=True, kw_only=True)
class Kickoff:
    """A kickoff request (specification, section 4.2), which an operator passes through the hook to the call.

    ``webhooks`` may be ``inbox`` until its addresses are created right before the POST. ``files`` has the files'
    addresses by input name; before they are uploaded, their paths.
    """

    inputs: Json
    files: dict[str, str] | None = None
    webhooks: Webhooks | str | None = None
    meta: Json | None = None
    restore_from: str | None = None
    continue_from: str | None = None
    idempotency_key: str | None = None

    def checked(self) -> Kickoff:
        """Return the request as it can be sent: the rules of its fields, for operators and the hook.

        :raises CrewInvalidInput: it cannot be sent
        """
        inputs = plain_object(self.inputs, "inputs")
        if "id" in inputs:  # it makes live deployments overwrite records
            raise exceptions.CrewInvalidInput(
                "inputs.id is reserved by the service and overwrites records; nothing was sent"
            )
        if self.restore_from is not None:
            path_segment(self.restore_from, "restore_from")
        meta = None if self.meta is None else plain_object(self.meta, "meta")
        return replace(self, inputs=inputs, meta=meta)

    def body(self) -> Json:
        """Return the body of ``POST /kickoff``."""
        body: Json = {"inputs": self.inputs}
        if self.files:  # under both documented names
            body["input_files"] = body["inputFiles"] = self.files
        if self.meta is not None:
            body["meta"] = self.meta
        if self.continue_from is not None:
            body["continueFrom"] = self.continue_from
        elif self.restore_from is not None:  # the service accepts only one; a continued execution has its own state
            body["restoreFromStateId"] = self.restore_from
        return body | webhook_fields(self.webhooks)


@dataclass(frozen=True, kw_only=True)
class Resume:
    """A resume request (specification, section 2.3), including the outcome chosen for a Flow.

    :param output_sha256: the hash of the answered draft; only `airflow-crew-service` checks it
    """

    execution_id: str
    crew_task_id: str
    human_feedback: str
    is_approve: bool | None
    outcome: str | None = None
    webhooks: Webhooks | None = None
    idempotency_key: str | None = None
    edited_output: EditedOutput | None = None
    output_sha256: str | None = None

    def checked(self) -> Resume:
        """Return the request if it can be sent.

        :raises CrewInvalidInput: it cannot be sent
        """
        path_segment(self.execution_id, EXECUTION_ID)
        path_segment(self.crew_task_id, CREW_TASK_ID)
        decided = isinstance(self.is_approve, bool) or (self.is_approve is None and self.outcome)
        if not isinstance(self.human_feedback, str) or not decided:
            raise exceptions.CrewInvalidInput("is_approve must be a bool and human_feedback a string; nothing was sent")
        return self

    def body(self) -> Json:
        """Return the body of ``POST /resume`` (specification, section 4.4)."""
        body: Json = {
            "execution_id": self.execution_id,
            "executionId": self.execution_id,
            "task_id": self.crew_task_id,
            "taskId": self.crew_task_id,
            "human_feedback": self.human_feedback,
            "humanFeedback": self.human_feedback,
        }
        if self.is_approve is not None:
            body["is_approve"] = body["isApprove"] = self.is_approve
        if self.outcome is not None:
            body["outcome"] = self.outcome
        if self.edited_output is not None:
            body[EDITS_FIELD] = vars(self.edited_output)
        if self.output_sha256 is not None:
            body[HASH_FIELD] = self.output_sha256
        return body | webhook_fields(self.webhooks)


def path_segment(identifier: str, name: str = KICKOFF_ID) -> str:
    """Quote an id as one path segment; refuse an id that cannot be a segment.

    :param name: the parameter that it is for
    """
    if fields := _ids_in_record(identifier):
        field = name if name in fields else fields[0]
        raise exceptions.CrewInvalidInput(
            f"{name} must be an id, but is a record: pass its field {field!r}; nothing was sent"
        )
    if not isinstance(identifier, str) or not identifier.strip() or identifier in NO_IDS:
        raise exceptions.CrewInvalidInput(f"{shown(identifier)} is not a crew service id; nothing was sent")
    try:
        size = len(identifier.encode())
    except UnicodeEncodeError:
        raise exceptions.CrewInvalidInput("An id with an unpaired surrogate cannot be sent; nothing was sent") from None
    if size > LONGEST_ID:
        raise exceptions.CrewInvalidInput(
            f"An id of {size} bytes is too long (the limit is {LONGEST_ID}); nothing was sent"
        )
    return quote(identifier, safe="")


def _ids_in_record(value: object) -> list[str]:
    """Return the fields with ids of a record, or of a rendered template's text of one; empty for anything else."""
    if isinstance(value, Mapping):
        return [name for name in IDS if value.get(name)]
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return [name for name in IDS if re.search(rf"""(["']){name}\1\s*:""", value)]
    return []


# --- headers ---

# The HTTP libraries differ in what they refuse, and name the value or take the refusal for a failure of the network.
TOKEN = re.compile("[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2


def header_name(what: str, name: str) -> str:
    """Return a header's name if it can be sent; the error does not show it, because it may be a secret by mistake."""
    if TOKEN.fullmatch(name):
        return name
    raise exceptions.CrewInvalidInput(
        f"{what} is not allowed in HTTP; use letters, digits and hyphens. Nothing was sent"
    )


def header_value(what: str, value: str) -> str:
    """Return a header's value if it can be sent; the error does not show it."""
    if value.isascii() and value.isprintable():
        return value
    raise exceptions.CrewInvalidInput(
        f"{what} contains characters that are not allowed in HTTP headers; nothing was sent"
    )


# --- webhooks ---


def webhook_fields(webhooks: Webhooks | str | None) -> Json:
    """Return the body's fields for the webhooks that are set."""
    assert not isinstance(webhooks, str), "the inbox has no addresses yet"
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
