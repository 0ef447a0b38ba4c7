"""How the engine's records cross to a crew's process and back: as the fields of the dataclass, with its name."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from crew_service.crewai.channel import Message
from crew_service.engine.crew import (
    Completed,
    Job,
    PendingReview,
    Progress,
    ReviewDecision,
    Round,
    StepDone,
    TaskDone,
    TaskStarted,
    TokensUsed,
)

PROGRESS = {kind.__name__: kind for kind in (TaskStarted, StepDone, TaskDone, TokensUsed)}
OUTCOMES = {kind.__name__: kind for kind in (Completed, PendingReview)}


def packed(record: Progress | Completed | PendingReview) -> Message:
    return {"type": type(record).__name__, **vars(record)}


def unpacked(message: Message) -> Any:
    """Read a progress or an outcome; None for messages of another type."""
    kind = {**PROGRESS, **OUTCOMES}.get(message["type"])
    return kind(**{name: value for name, value in message.items() if name != "type"}) if kind else None


def job_message(job: Job) -> Message:
    gate = asdict(job.gate) if job.gate else None
    names = ("execution_id", "inputs", "done", "restore_from")
    return {**{name: getattr(job, name) for name in names}, "gate": gate}


def job_from(message: Message) -> Job:
    gate = decision_from(message["gate"]) if message["gate"] else None
    return Job(message["execution_id"], message["inputs"], message["done"], gate, restore_from=message["restore_from"])


def decision_from(fields: Message) -> ReviewDecision:
    return ReviewDecision(**{**fields, "rounds": tuple(Round(**each) for each in fields["rounds"])})
