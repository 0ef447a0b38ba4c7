"""A person's decision as it was sent, and the exceptions that refuse it or other requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from crew_service.engine.drafts import EditedOutput
from crew_service.storage.states import State

NO_FEEDBACK = "human_feedback: Field required"


class Refused(Exception):
    """The request was refused and changed nothing; the message states why."""


class UnknownExecution(Refused):
    pass


class UnknownTask(Refused):
    pass


class NotWaiting(Refused):
    pass


class AlreadyOver(Refused):
    def __init__(self, state: State) -> None:
        super().__init__(f"the execution has ended: {state}")
        self.state = state


class BadAnswer(Refused):
    """The answer does not fit the question; the message explains why."""


class AnotherDraft(BadAnswer):
    """The answer is for a draft that is no longer waiting."""


class BadResponseToken(Refused):
    """The answer was sent to an address that does not come from a flow webhook."""


class AlreadyAnswered(Refused):
    def __init__(self, by: str, at: float) -> None:
        super().__init__("the question was already answered")
        self.by = by
        self.at = at


@dataclass(frozen=True)
class Decision:
    execution_id: str
    task_id: str
    is_approve: bool | None  # None: only a Flow's outcome or text decides
    feedback: str
    webhooks: dict[str, Any] | None = None  # None: unchanged
    round: int | None = None  # the number of the answer that was shown, from 1; None: the latest
    outcome: str | None = None  # chosen from the question's outcomes
    question_id: str | None = None  # the question that this answers
    edit: EditedOutput | None = None  # of a crew's draft, or of a call's arguments
    lacks_feedback: bool = False  # an approval or rejection alone, which is enough for a call in the middle of a task
    draft_sha256: str | None = None  # hash of the answered draft; None: any waiting draft
    is_expiry: bool = False  # the service's own answer, at the question's deadline
