"""What the inbox stores: the names of its Variables, and the shape of a registration. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

from airflow_crew_provider.core.inbox_addresses import Registration
from airflow_crew_provider.core.stored_names import INBOX_BOX_KEY, INBOX_NEWEST_KEY, INBOX_REGISTRATION_KEY
from airflow_crew_provider.models import Json

TASK = ("dag_id", "run_id", "task_id", "map_index")


def registration_key(registration_id: str) -> str:
    """Return the name of the Variable that holds a registration; the id itself is part of an address."""
    return INBOX_REGISTRATION_KEY + _digest(registration_id)


def messages_key(registration_id: str) -> str:
    """Return the name of the Variable that holds what arrived under a registration."""
    return INBOX_BOX_KEY + _digest(registration_id)


def _digest(*names: str) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:40]


@dataclass(frozen=True)
class RegisteredTask:
    """A registration, and the task instance that made it.

    :param kickoff_id: what the service returned for it; None until its answer has arrived
    """

    registration: Registration
    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    kickoff_id: str | None = None

    @classmethod
    def of(cls, value: Any) -> RegisteredTask | None:
        """Read what was stored; None if it is not a registration."""
        try:
            return cls(Registration(**value["registration"]), **{name: value[name] for name in (*TASK, "kickoff_id")})
        except (TypeError, KeyError):
            return None

    def as_dict(self) -> Json:
        """Return plain JSON."""
        named = {name: getattr(self, name) for name in (*TASK, "kickoff_id")}
        return {"registration": self.registration.as_dict(), **named}

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
        return INBOX_NEWEST_KEY + _digest(self.dag_id, self.run_id, execution_id)

    @property
    def newest(self) -> tuple[str, Json] | None:
        """Name and value by which a resume retires the earlier registrations of its execution."""
        execution_id = self.registration.execution_id
        if execution_id is None:
            return None
        value = {"at": self.registration.at, "dag_id": self.dag_id, "run_id": self.run_id}
        return self.newest_key(execution_id), value
