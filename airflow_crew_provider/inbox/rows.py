"""The inbox's Variables: their names, contents and lifetimes. This module does no I/O.

Names end in a hash, so they reveal no address or id::

    crew_inbox_of_        registration                          the registration, and the task that made it
    crew_inbox_box_       registration                          its messages
    crew_inbox_newest_    DAG, run, execution                   the latest registered resume of the execution
    crew_flow_run_        connection, execution, DAG, run       this run started the execution, or is waiting for it
    crew_flow_questions_  connection, execution                 a Flow's questions, for each id of the execution
    crew_flow_secret_     connection, request                   how to answer a question, until it is answered

The first, third and fourth contain a DAG run (`dag_id`, `run_id`) and are removed with it, together with the records
that belong to them. The run that a Flow's question belongs to may be unknown, so its description contains an expiry
date.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_crew_provider.inbox.flow_webhooks import AnswerAddress, FlowQuestion
from airflow_crew_provider.inbox.messages import Registration
from airflow_crew_provider.models import REGION_FIELDS, Json
from airflow_crew_provider.stored_names import (
    FLOW_ANSWER_KEY,
    FLOW_PREFIX,
    FLOW_QUESTIONS_KEY,
    FLOW_RUN_KEY,
    INBOX_BOX_KEY,
    INBOX_NEWEST_KEY,
    INBOX_REGISTRATION_KEY,
    hashed,
)

TASK_FIELDS = ("dag_id", "run_id", "task_id", "map_index")


def _of_run(dag_id: str, run_id: str) -> str:
    """Return the description of a Variable that is removed with a DAG run."""
    return f"Inbox of the crew provider, for {run_id} of {dag_id}; removed within a day of its end"


# --- registrations ---


def registration_key(registration_id: str) -> str:
    """Return the name of a registration's Variable; it contains only a hash, because the id is part of an address."""
    return INBOX_REGISTRATION_KEY + hashed(registration_id)


def messages_key(registration_id: str) -> str:
    """Return the name of the Variable with a registration's messages."""
    return INBOX_BOX_KEY + hashed(registration_id)


@dataclass(frozen=True)
class RegisteredTask:
    """A registration, and the task instance that made it.

    :param kickoff_id: the id that the service returned for it; None until the response arrives
    :param region_id: identifies the loop iteration, together with ``region_index``; None outside loops
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
        """Read a stored value; return None if it is not a registration."""
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
        """Its Variable's name."""
        return registration_key(self.registration.id)

    @property
    def messages_key(self) -> str:
        """The name of the Variable for its messages."""
        return messages_key(self.registration.id)

    @property
    def root(self) -> str | None:
        """The id of the first kickoff, if already known."""
        return self.registration.execution_id or self.kickoff_id

    @property
    def description(self) -> str:
        """The description of its Variables."""
        return _of_run(self.dag_id, self.run_id)

    def newest_key(self, execution_id: str) -> str:
        """Return the name of the Variable with the latest registered resume of an execution in this run."""
        return INBOX_NEWEST_KEY + hashed(self.dag_id, self.run_id, execution_id)

    @property
    def newest(self) -> tuple[str, Json] | None:
        """The name and value of the Variable by which a resume retires earlier registrations; None for a kickoff."""
        execution_id = self.registration.execution_id
        if execution_id is None:
            return None
        value = {"at": self.registration.at, "dag_id": self.dag_id, "run_id": self.run_id}
        return self.newest_key(execution_id), value


# --- questions from Flows ---


KEPT_FOR = timedelta(days=60)  # unless removed earlier together with a DAG run
AFTER_ANSWER = timedelta(days=1)  # by then, a repeated webhook is refused because of its age
MOST_QUESTIONS = 20  # per execution, with their drafts; older ones are dropped
USED: Json = {}  # stored instead of a used address, so that a repeated webhook is recognized
_UNTIL = "Inbox of the crew provider, kept until "


def questions_key(crew_conn_id: str, execution_id: str) -> str:
    """Return the name of the Variable with an execution's questions."""
    return FLOW_QUESTIONS_KEY + hashed(crew_conn_id, execution_id)


def answer_key(crew_conn_id: str, request_id: str) -> str:
    """Return the name of the Variable with a question's callback; Airflow masks the value because of the name."""
    return FLOW_ANSWER_KEY + hashed(crew_conn_id, request_id)


def kept_until(now: datetime, kept_for: timedelta | None = None) -> str:
    """Return a Variable's description, which contains its expiry date."""
    return _UNTIL + (now + (KEPT_FOR if kept_for is None else kept_for)).astimezone(UTC).isoformat(timespec="seconds")


def is_over(key: str, description: str | None, now: datetime) -> bool:
    """Return whether a Variable belongs to a Flow's question and has expired."""
    mine = key.startswith(FLOW_PREFIX) and (description or "").startswith(_UNTIL)
    return mine and (description or "") < _UNTIL + now.astimezone(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class FlowRun:
    """A DAG run that started an execution or is waiting for it; the execution's questions are removed with the run."""

    crew_conn_id: str
    execution_id: str
    dag_id: str
    run_id: str

    @classmethod
    def of(cls, value: Any) -> FlowRun | None:
        """Read a stored value; return None if it is not a run."""
        try:
            return cls(**value)
        except TypeError:
            return None

    @property
    def key(self) -> str:
        """The name of its Variable."""
        return FLOW_RUN_KEY + hashed(self.crew_conn_id, self.execution_id, self.dag_id, self.run_id)

    @property
    def description(self) -> str:
        """The description of its Variable."""
        return _of_run(self.dag_id, self.run_id)

    def as_dict(self) -> Json:
        """Return plain JSON."""
        return asdict(self)


def questions_in(value: Any) -> list[FlowQuestion]:
    """Read an execution's stored questions, oldest first; return none if there is nothing."""
    return [FlowQuestion(**each) for each in value or ()]


def with_question(questions: list[FlowQuestion], question: FlowQuestion) -> list[Json]:
    """Return the value to store, with a question added."""
    return [each.as_dict() for each in [*questions, question][-MOST_QUESTIONS:]]


@dataclass(frozen=True)
class Asked:
    """A Flow's questions as stored under each id of its execution; a webhook need not contain all of its ids."""

    lists: list[list[FlowQuestion]]

    @classmethod
    def of(cls, values: Iterable[Any]) -> Asked:
        """Read the values stored under the ids."""
        return cls([questions_in(value) for value in values])

    @property
    def newest_first(self) -> list[FlowQuestion]:
        """All questions; those that no other one follows are first."""
        every = {each.id: each for questions in self.lists for each in reversed(questions)}
        return sorted(every.values(), key=self._is_followed)

    def take_answer(self, request_id: str, address: AnswerAddress | None) -> bool:
        """Return whether an answer reaches a question: at its callback, or by the Flow's id if it is the newest.

        A Flow keeps one question under its id, the last that it asked. An earlier one was answered elsewhere, whatever
        became of the later one.
        """
        if address is not None and address.callback_url is not None:
            return True
        having = [each for each in self.lists if any(question.id == request_id for question in each)]
        return all(each[-1].id == request_id for each in having or filter(None, self.lists))

    def _is_followed(self, question: FlowQuestion) -> bool:
        return not self.take_answer(question.id, None)


def address_in(value: Any) -> AnswerAddress | None:
    """Read the address for an answer; return None if none is stored or the question was answered."""
    return AnswerAddress(**value) if value else None
