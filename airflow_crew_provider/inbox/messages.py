"""What the inbox authenticates webhooks by, and what they have reported. Pure and bounded.

A registration belongs to one kickoff or resume. Its bearer token lets the question to a person in; its progress
URLs, which the service calls without authentication, hold a capability that never ends a wait for a person. Our side
keeps only their hashes. A message is stored once; a repeated one changes nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from secrets import token_urlsafe
from typing import Any
from urllib.parse import quote

from airflow_crew_provider.api.endpoints import LONGEST_ID
from airflow_crew_provider.api.status import json_object_in, object_fields
from airflow_crew_provider.exceptions import CrewProtocolError
from airflow_crew_provider.models import (
    REGION_FIELDS,
    Execution,
    ExecutionState,
    HumanInputWebhook,
    Json,
    Webhooks,
    canonical_json,
)
from airflow_crew_provider.stored_names import INBOX_BOX_KEY, INBOX_NEWEST_KEY, INBOX_REGISTRATION_KEY

WORD = "inbox"  # what operators take as `webhooks`

Secret = Callable[[str], str]


@dataclass(frozen=True)
class Registration:
    """What our side keeps of the addresses that were given to the service.

    :param id: unguessable, part of each address
    :param human_input: SHA-256 of the bearer token
    :param progress: SHA-256 of the capability in the progress URLs
    :param execution_id: the root execution of a resume; None for a kickoff, whose id is not known yet
    :param at: when it was made, in epoch seconds
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
        """Read what was stored; None if it is not a registration."""
        try:
            return cls(**value)
        except TypeError:
            return None


def matches(given: str, kept: str) -> bool:
    """Whether a secret is the one whose hash was kept, in constant time."""
    return hmac.compare_digest(digest(given), kept)


def digest(secret: str) -> str:
    """Hash a secret of full entropy."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def fresh(purpose: str) -> str:
    """Make a secret at random."""
    return token_urlsafe(32)


def repeatable(token: str, idempotency_key: str) -> Secret:
    """Return secrets that come out the same when a request is repeated with its key, as its body must.

    Neither the connection's token nor the key, which is random, is enough to find them.
    """

    def secret(purpose: str) -> str:
        made = hmac.digest(token.encode(), f"{idempotency_key}:{purpose}".encode(), "sha256")
        return urlsafe_b64encode(made).decode().rstrip("=")

    return secret


def secrets_of(webhooks: Webhooks) -> tuple[str, str]:
    """Return what must not show in a log of these webhooks: the token, and the capability."""
    assert webhooks.human_input
    assert webhooks.human_input.token
    assert webhooks.task
    return webhooks.human_input.token, webhooks.task.split("/")[-2]


def registered(inbox_url: str, execution_id: str | None, secret: Secret = fresh) -> tuple[Registration, Webhooks]:
    """Return what our side keeps, and the webhooks to send."""
    id_, token, capability = (secret(purpose) for purpose in ("id", "human_input", "progress"))
    base = inbox_url.rstrip("/")
    progress_url = f"{base}/progress/{id_}/{capability}"
    kept = Registration(id_, digest(token), digest(capability), execution_id, time.time())
    human_input = HumanInputWebhook(f"{base}/human-input/{id_}", token=token)
    return kept, Webhooks(f"{progress_url}/task", f"{progress_url}/step", f"{progress_url}/crew", human_input)


# --- how registrations are stored ---


TASK_FIELDS = ("dag_id", "run_id", "task_id", "map_index")


def registration_key(registration_id: str) -> str:
    """Return the name of the Variable that holds a registration; the id itself is part of an address."""
    return INBOX_REGISTRATION_KEY + _hash(registration_id)


def messages_key(registration_id: str) -> str:
    """Return the name of the Variable that holds what arrived under a registration."""
    return INBOX_BOX_KEY + _hash(registration_id)


def _hash(*names: str) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:40]


@dataclass(frozen=True)
class RegisteredTask:
    """A registration, and the task instance that made it.

    :param kickoff_id: what the service returned for it; None until its answer has arrived
    :param region_id: of the iteration of a loop, with its ``region_index``; None outside of loops
    """

    registration: Registration
    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    kickoff_id: str | None = None
    region_id: str | None = None
    region_index: int | None = None

    @classmethod
    def of(cls, value: Any) -> RegisteredTask | None:
        """Read what was stored; None if it is not a registration."""
        try:
            named = {name: value[name] for name in (*TASK_FIELDS, "kickoff_id")}
            region = {name: value.get(name) for name in REGION_FIELDS}
            return cls(Registration(**value["registration"]), **named, **region)
        except (TypeError, KeyError):
            return None

    def as_dict(self) -> Json:
        """Return plain JSON."""
        named = {name: getattr(self, name) for name in (*TASK_FIELDS, "kickoff_id")}
        region = {name: getattr(self, name) for name in REGION_FIELDS} if self.region_id else {}
        return {"registration": self.registration.as_dict(), **named, **region}

    @property
    def key(self) -> str:
        """Where it is stored."""
        return registration_key(self.registration.id)

    @property
    def messages_key(self) -> str:
        """Where that is stored which arrives."""
        return messages_key(self.registration.id)

    @property
    def root(self) -> str | None:
        """The id of the first kickoff, if it is known yet."""
        return self.registration.execution_id or self.kickoff_id

    @property
    def description(self) -> str:
        """What its Variables say of themselves."""
        return f"Inbox of the crew provider, for {self.run_id} of {self.dag_id}; removed within a day of its end"

    def posted(self, kickoff_id: str) -> RegisteredTask:
        """Return it with the id that the service returned."""
        return replace(self, kickoff_id=kickoff_id)

    def newest_key(self, execution_id: str) -> str:
        """Where it is stored which resume of an execution was the last to register in this run."""
        return INBOX_NEWEST_KEY + _hash(self.dag_id, self.run_id, execution_id)

    @property
    def newest(self) -> tuple[str, Json] | None:
        """Name and value by which a resume retires the earlier registrations of its execution."""
        execution_id = self.registration.execution_id
        if execution_id is None:
            return None
        value = {"at": self.registration.at, "dag_id": self.dag_id, "run_id": self.run_id}
        return self.newest_key(execution_id), value


# --- what arrives ---


MOST_QUESTIONS = 50  # of one registration; a service asks once
LONGEST_LINE = 200
TASK, STEP, CREW = "task", "step", "crew"


@dataclass(frozen=True)
class HumanInputRequest:
    """A task of the crew waits for a person (observed dialect, Waiting for a person)."""

    task_id: str
    output: str
    kickoff_id: str | None
    execution_id: str | None

    @classmethod
    def read(cls, body: Any) -> HumanInputRequest:
        """Read a webhook's body."""
        task_id, kickoff_id, execution_id = (_id(body, name) for name in ("task_id", "kickoff_id", "execution_id"))
        if not task_id or not (kickoff_id or execution_id):
            raise CrewProtocolError("The webhook lacks task_id, or both kickoff_id and execution_id")
        return cls(task_id, draft_text(body.get("task_output")), kickoff_id, execution_id)

    @property
    def ids(self) -> set[str]:
        """The ids under which the service knows the execution."""
        return {each for each in (self.kickoff_id, self.execution_id) if each}

    def as_execution(self, kickoff_id: str) -> Execution:
        """Return what a poll would have returned if the status showed the question."""
        return pending_execution(kickoff_id, self.task_id, self.output)


@dataclass(frozen=True)
class InboxMessages:
    """Everything that arrived under one registration; of all questions but the newest only the id."""

    registration: str
    question: Json | None = None
    asked: list[str] = field(default_factory=list)
    tasks: int = 0
    steps: int = 0
    last: str = ""
    succeeded: bool = False

    @classmethod
    def of(cls, value: Any, registration: str) -> InboxMessages:
        """Read what was stored; what belongs to another registration does not count."""
        if isinstance(value, dict) and value.get("registration") == registration:
            return cls(**value)
        return cls(registration)

    def as_dict(self) -> Json:
        """Return plain JSON."""
        return asdict(self)

    @property
    def newest(self) -> HumanInputRequest | None:
        """The open question, as far as webhooks report it."""
        return HumanInputRequest(**self.question) if self.question else None

    @property
    def full(self) -> bool:
        """Whether the limit of questions is reached."""
        return len(self.asked) >= MOST_QUESTIONS

    def asking(self, question: HumanInputRequest) -> InboxMessages:
        """Return the messages with a question added."""
        return replace(self, question=asdict(question), asked=[*self.asked, question.task_id])

    def with_progress(self, kind: str, body: Any) -> InboxMessages:
        """Return the messages with progress added."""
        if not isinstance(body, dict):
            raise CrewProtocolError("The webhook is not an object")
        if kind == CREW:
            return replace(self, succeeded=True, last="the crew has succeeded")
        if kind == TASK:
            line = f"task {body.get('name') or '?'} of {body.get('agent') or '?'} is done"
            return replace(self, tasks=self.tasks + 1, last=_line(line))
        line = str(body.get("thought") or body.get("tool") or body.get("result") or "a step")
        return replace(self, steps=self.steps + 1, last=_line(line))

    @property
    def progress(self) -> str:
        """Return the latest progress in one line."""
        return f"{self.tasks} tasks and {self.steps} steps, the last: {self.last}" if self.last else ""


def draft_text(output: Any) -> str:
    """Return the draft that a webhook carries as text, whatever JSON it is."""
    return output if isinstance(output, str) else "" if output is None else canonical_json(output)


def pending_execution(kickoff_id: str, crew_task_id: str, output: str, **more: Any) -> Execution:
    """Return an execution that waits for a person, as a webhook says."""
    return Execution(
        kickoff_id=kickoff_id,
        state=ExecutionState.PENDING,
        raw_state="reported by webhook",
        output=output,
        **object_fields(json_object_in(output)),
        crew_task_id=crew_task_id,
        **more,
    )


def is_of_another(ids: set[str], root: str | None, posted: str | None) -> bool:
    """Whether a message is of another execution than the one that a registration was made for.

    :param root: the first kickoff's id, if it is known yet
    :param posted: the id that the service gave when it was given the registration, if it is known yet
    """
    known = {each for each in (root, posted) if each}
    if posted is None:
        return bool(known) and not ids & known
    return not ids <= known


def completed_asset(crew_conn_id: str) -> str:
    """Return the URI of the asset that changes when an execution is completed."""
    return f"crew://{quote(crew_conn_id, safe='')}/completed"


def completed_id(body: Any) -> str:
    """Return the id of the execution that a crew's webhook reports as completed; nothing else of it is read."""
    kickoff_id = _id(body, "kickoff_id")
    if not kickoff_id:
        raise CrewProtocolError("The webhook lacks kickoff_id")
    return kickoff_id


def _id(body: Any, name: str) -> str | None:
    value = body.get(name) if isinstance(body, dict) else None
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value.encode("utf-8", "replace")) <= LONGEST_ID:
        raise CrewProtocolError(f"The webhook's {name} is not an id")
    return value


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…"
