"""Webhook credentials and messages, limited in size. This module does no I/O.

A registration belongs to one kickoff or resume. Its bearer token authenticates questions for a person; its progress
URLs, which the service calls without authentication, contain a capability that does not authenticate questions. Airflow
stores only hashes of both. A question, like the crew's success, is stored only once; a repeated one changes nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from secrets import token_urlsafe
from typing import Any
from urllib.parse import quote

from airflow_crew_provider.api.requests import path_segment
from airflow_crew_provider.api.status import asked_fields, json_object_in, object_fields, short_name
from airflow_crew_provider.exceptions import CrewError, CrewProtocolError
from airflow_crew_provider.models import (
    Execution,
    ExecutionState,
    HumanInputWebhook,
    Json,
    Webhooks,
    canonical_json,
)

WORD = "inbox"  # the value of an operator's `webhooks` argument that selects the inbox

Secret = Callable[[str], str]


@dataclass(frozen=True)
class Registration:
    """The stored record of the addresses given to the service.

    :param id: unguessable, part of each address
    :param human_input: SHA-256 of the bearer token
    :param progress: SHA-256 of the capability in the progress URLs
    :param execution_id: the root execution of a resume; None for a kickoff, whose id is not known yet
    :param at: when it was created, in epoch seconds
    """

    id: str
    human_input: str
    progress: str
    execution_id: str | None
    at: float

    def as_dict(self) -> Json:
        """Return plain JSON."""
        return asdict(self)

    @classmethod
    def of(cls, value: Any) -> Registration | None:
        """Read a stored value; return None if it is not a registration."""
        try:
            return cls(**value)
        except TypeError:
            return None


def matches(secret: str, stored: str) -> bool:
    """Compare a secret with the stored hash, in constant time."""
    return hmac.compare_digest(digest(secret), stored)


def digest(secret: str) -> str:
    """Hash a high-entropy secret, for which a fast hash is enough."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def fresh(purpose: str) -> str:
    """Create a random secret."""
    return token_urlsafe(32)


def repeatable(token: str, idempotency_key: str) -> Secret:
    """Return a function that derives the same secrets, and so the same body, for a request repeated with the same key.

    Neither the connection's token nor the random key is enough to derive them.
    """

    def secret(purpose: str) -> str:
        made = hmac.digest(token.encode(), f"{idempotency_key}:{purpose}".encode(), "sha256")
        return urlsafe_b64encode(made).decode().rstrip("=")

    return secret


def secrets_of(webhooks: Webhooks) -> tuple[str, str]:
    """Return the parts of these webhooks to mask in logs: the token and the capability."""
    assert webhooks.human_input
    assert webhooks.human_input.token
    assert webhooks.task
    return webhooks.human_input.token, webhooks.task.split("/")[-2]


def registered(inbox_url: str, execution_id: str | None, secret: Secret = fresh) -> tuple[Registration, Webhooks]:
    """Create a registration; return the record to store and the webhooks to send."""
    id_, token, capability = (secret(purpose) for purpose in ("id", "human_input", "progress"))
    base = inbox_url.rstrip("/")
    progress_url = f"{base}/progress/{id_}/{capability}"
    registration = Registration(id_, digest(token), digest(capability), execution_id, time.time())
    human_input = HumanInputWebhook(f"{base}/human-input/{id_}", token=token)
    return registration, Webhooks(f"{progress_url}/task", f"{progress_url}/step", f"{progress_url}/crew", human_input)


# --- messages ---


MOST_QUESTIONS = 50  # per registration; a service normally asks only once
LONGEST_LINE = 200
TASK, STEP, CREW = "task", "step", "crew"


@dataclass(frozen=True)
class HumanInputRequest:
    """A crew task's request for a person's input (observed dialect, Waiting for a person)."""

    task_id: str
    output: str
    kickoff_id: str | None
    execution_id: str | None
    asked: Json | None = None  # by a Flow or in the middle of a task; release 0.2 neither stores nor reads it

    @classmethod
    def read(cls, body: Any) -> HumanInputRequest:
        """Read a webhook's body."""
        task_id, kickoff_id, execution_id = (id_in(body, name) for name in ("task_id", "kickoff_id", "execution_id"))
        if not task_id or not (kickoff_id or execution_id):
            raise CrewProtocolError("The webhook lacks task_id, or both kickoff_id and execution_id")
        named = {name: body[name] for name in ("question", "outcomes", "ask") if body.get(name) is not None}
        return cls(task_id, draft_text(body.get("task_output")), kickoff_id, execution_id, named or None)

    @property
    def ids(self) -> set[str]:
        """The ids that the service uses for the execution."""
        return {each for each in (self.kickoff_id, self.execution_id) if each}

    def as_execution(self, kickoff_id: str) -> Execution:
        """Return the execution as a poll would if the status showed the question."""
        return pending_execution(kickoff_id, self.task_id, self.output, **asked_fields(self.asked or {}))

    def as_dict(self) -> Json:
        """Return plain JSON; for a draft, the same as in release 0.2."""
        return {name: value for name, value in asdict(self).items() if name != "asked" or value is not None}


@dataclass(frozen=True)
class InboxMessages:
    """All messages for one registration; only the ids of older questions are kept."""

    registration: str
    question: Json | None = None
    asked: list[str] = field(default_factory=list)
    tasks: int = 0
    steps: int = 0
    last: str = ""
    succeeded: bool = False

    @classmethod
    def of(cls, value: Any, registration: str) -> InboxMessages:
        """Read a stored value; ignore another registration's messages."""
        if isinstance(value, dict) and value.get("registration") == registration:
            return cls(**value)
        return cls(registration)

    def as_dict(self) -> Json:
        """Return plain JSON."""
        return asdict(self)

    @property
    def newest(self) -> HumanInputRequest | None:
        """The latest question that a webhook reported."""
        return HumanInputRequest(**self.question) if self.question else None

    @property
    def full(self) -> bool:
        """Whether the limit on questions has been reached."""
        return len(self.asked) >= MOST_QUESTIONS

    def asking(self, question: HumanInputRequest) -> InboxMessages:
        """Return the messages with a question added."""
        return replace(self, question=question.as_dict(), asked=[*self.asked, question.task_id])

    def with_progress(self, kind: str, body: Json) -> InboxMessages:
        """Return the messages with progress added."""
        if kind == CREW:
            return replace(self, succeeded=True, last="the crew has succeeded")
        if kind == TASK:
            line = f"task {body.get('name') or '?'} of {body.get('agent') or '?'} is done"
            return replace(self, tasks=self.tasks + 1, last=_line(line))
        line = str(body.get("thought") or body.get("tool") or body.get("result") or "a step")
        return replace(self, steps=self.steps + 1, last=_line(line))

    @property
    def progress(self) -> str:
        """The latest progress, on one line."""
        return f"{self.tasks} tasks and {self.steps} steps; latest: {self.last}" if self.last else ""


def draft_text(output: Any) -> str:
    """Return a webhook's draft as text, whatever its JSON type."""
    return output if isinstance(output, str) else "" if output is None else canonical_json(output)


def pending_execution(kickoff_id: str, crew_task_id: str, output: str, **more: Any) -> Execution:
    """Return an execution that is waiting for a person, as reported by a webhook."""
    return Execution(
        kickoff_id=kickoff_id,
        state=ExecutionState.PENDING,
        raw_state="reported by webhook",
        output=output,
        **object_fields(json_object_in(output)),
        crew_task_id=crew_task_id,
        shown_task=short_name(crew_task_id),
        **more,
    )


def is_of_another(ids: set[str], root: str | None, posted: str | None) -> bool:
    """Return whether a message is about an execution other than its registration's.

    :param root: the first kickoff's id, if already known
    :param posted: the id that the service returned for the registered kickoff, if already known
    """
    known = {each for each in (root, posted) if each}
    if posted is None:
        return bool(known) and not ids & known
    return not ids <= known


def completed_asset(crew_conn_id: str) -> str:
    """Return the URI of the asset that changes when an execution completes."""
    return f"crew://{quote(crew_conn_id, safe='')}/completed"


def completed_id(body: Any) -> str:
    """Return the id of the execution that a crew's webhook reports as completed; ignore everything else."""
    kickoff_id = id_in(body, "kickoff_id")
    if not kickoff_id:
        raise CrewProtocolError("The webhook lacks kickoff_id")
    return kickoff_id


def id_in(body: Any, name: str) -> str | None:
    """Return an id that a webhook names; None if it names none.

    :raises CrewProtocolError: no task could poll or answer it
    """
    value = body.get(name) if isinstance(body, dict) else None
    if value is None:
        return None
    try:
        path_segment(value)
    except CrewError:
        raise CrewProtocolError(f"The webhook's {name} is not an id") from None
    return str(value)


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…"
