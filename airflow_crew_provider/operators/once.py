"""At most once: what a task writes down before and after a POST, and what the next try makes of it.

A retry keeps the task instance's `max_tries`, a clear raises it: so the two are told apart.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_crew_provider.exceptions import (
    CrewBadRequest,
    CrewConnectionError,
    CrewError,
    CrewInvalidInput,
    CrewMissingInputs,
    CrewNotFound,
    CrewRateLimited,
    CrewUnauthorized,
)
from airflow_crew_provider.hooks.memory import Memory
from airflow_crew_provider.models import Json, canonical_json

# After these it is certain that the service started nothing.
REFUSED = (
    CrewInvalidInput,
    CrewConnectionError,
    CrewBadRequest,
    CrewUnauthorized,
    CrewNotFound,
    CrewMissingInputs,
    CrewRateLimited,
)
# By these a service that honours the key tells also what became of the same request when it was sent before: it would
# have repeated its answer. Other refusals come before it looks.
SETTLES = (CrewBadRequest, CrewMissingInputs)


class Earlier(StrEnum):
    """What an earlier run of the same task did."""

    NOTHING = "nothing"
    DONE = "done"  # by an earlier try, with an id
    UNKNOWN = "unknown"  # by an earlier try, whose answer was never recorded
    ANOTHER = "another"  # before the task was cleared, or for another request


@dataclass
class Ledger:
    """The record of one POST of one task instance.

    :param memory: where the record is kept between tries
    :param fingerprint: what names the request; another fingerprint is another request
    :param max_tries: of the task instance that runs
    """

    memory: Memory
    fingerprint: str
    max_tries: int

    def __post_init__(self) -> None:
        self.record: Json = self.memory.recall()
        self._sent_before = False

    @property
    def earlier(self) -> Earlier:
        """Judge the record that was found."""
        if not self.record.get("fingerprint"):
            return Earlier.NOTHING
        if self.record.get("max_tries") != self.max_tries:
            return Earlier.ANOTHER
        if not self.record.get("kickoff_id"):
            return Earlier.UNKNOWN
        return Earlier.DONE if self.same_request else Earlier.ANOTHER

    @property
    def same_request(self) -> bool:
        """Whether the record is of this very request."""
        return self.record.get("fingerprint") == self.fingerprint

    @property
    def kickoff_id(self) -> str | None:
        """The id that was recorded."""
        return self.record.get("kickoff_id")

    def intend(self, **more: Any) -> str:
        """Write down that the POST is about to be sent; return its idempotency key, kept if it is sent again."""
        self._sent_before = self.earlier is Earlier.UNKNOWN
        same = self._sent_before and self.same_request
        key = self.record.get("idempotency_key") if same else None
        self.record = {
            "fingerprint": self.fingerprint,
            "max_tries": self.max_tries,
            "idempotency_key": key or str(uuid.uuid4()),
            "intended_at": time.time(),
            **more,
        }
        self.memory.keep(self.record)
        return self.record["idempotency_key"]

    def done(self, kickoff_id: str) -> None:
        """Write down the id that the POST was answered with."""
        self.record = {**self.record, "kickoff_id": kickoff_id}
        self.memory.keep(self.record)

    def failed(self, error: CrewError) -> bool:
        """Take the intent back if nothing can have happened, now or before; return whether that is so."""
        if not isinstance(error, SETTLES if self._sent_before else REFUSED):
            return False
        self.memory.forget()
        self.record = {}
        return True


def fingerprint(request: Json) -> str:
    """Name a request by its content."""
    return hashlib.sha256(canonical_json(request).encode("utf-8", "surrogatepass")).hexdigest()
