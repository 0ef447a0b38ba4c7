"""How a wait ended: what crosses from the triggerer to a worker, and is checked on arrival. No I/O."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from airflow_crew_provider.exceptions import CrewProtocolError
from airflow_crew_provider.models import Json

COMPLETED, PENDING, FAILED, GAVE_UP, TIMEOUT, SEEN = "completed", "pending", "failed", "gave_up", "timeout", "seen"
OVER_BUDGET = "over_budget"
# What travels in an event, and is stored with it; an error may be of megabytes.
LONGEST_MESSAGE = 2000
KINDS = (COMPLETED, PENDING, FAILED, GAVE_UP, TIMEOUT, SEEN, OVER_BUDGET)


@dataclass(frozen=True)
class Outcome:
    """How a wait ended. Small, so that it can cross from the triggerer to a worker; the result is fetched there.

    ``kind`` is one of `KINDS`: the execution completed, is pending or failed; the wait gave up polling or
    reached its deadline; (``seen``) the id is known now, which a wait that goes on must remember; or (``over_budget``)
    it used more than it may. ``usage`` has the figures of one that failed or is over its budget, where they are known.
    """

    kind: str
    kickoff_id: str
    message: str = ""
    crew_task_id: str | None = None
    usage: Json | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", shortened(self.message))

    def to_event(self) -> Json:
        """Return the trigger event's payload."""
        return asdict(self)

    @classmethod
    def from_event(cls, event: Any) -> Outcome:
        """Read a trigger event; one that is missing or malformed is an error, never a success."""
        fields = event if isinstance(event, dict) else {}
        kind, kickoff_id, task_id = fields.get("kind"), fields.get("kickoff_id"), fields.get("crew_task_id")
        if kind not in KINDS or not isinstance(kickoff_id, str) or not isinstance(task_id, str | None):
            raise CrewProtocolError(f"The trigger's event cannot be read: {str(event)[:200]}")
        used = fields.get("usage")
        usage = used if isinstance(used, dict) else None
        return cls(kind, kickoff_id, str(fields.get("message") or ""), task_id, usage)


def shortened(text: str) -> str:
    """Cut a text off that is too long for a message."""
    if len(text) <= LONGEST_MESSAGE:
        return text
    end = f"… ({len(text)} characters)"
    return text[: LONGEST_MESSAGE - len(end)] + end
