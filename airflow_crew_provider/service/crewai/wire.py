"""How the engine's records cross to a crew's process and back: as the fields of the dataclass, with its name."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from airflow_crew_provider.service.crews import (
    Completed,
    Gate,
    Job,
    Progress,
    Round,
    StepDone,
    TaskDone,
    TaskStarted,
    Waiting,
)

from .channel import Message

PROGRESS = {kind.__name__: kind for kind in (TaskStarted, StepDone, TaskDone)}
OUTCOMES = {kind.__name__: kind for kind in (Completed, Waiting)}


def packed(record: Progress | Completed | Waiting) -> Message:
    return {"type": type(record).__name__, **vars(record)}


def unpacked(message: Message) -> Any:
    """Read a progress or an outcome; None for messages of another type."""
    kind = {**PROGRESS, **OUTCOMES}.get(message["type"])
    return kind(**{name: value for name, value in message.items() if name != "type"}) if kind else None


def job_message(job: Job) -> Message:
    gate = asdict(job.gate) if job.gate else None
    return {"execution_id": job.execution_id, "inputs": job.inputs, "done": job.done, "gate": gate}


def job_from(message: Message) -> Job:
    gate = message["gate"]
    if gate:
        gate = Gate(**{**gate, "rounds": tuple(Round(**each) for each in gate["rounds"])})
    return Job(message["execution_id"], message["inputs"], message["done"], gate)
