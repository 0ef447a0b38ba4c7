"""A stub of the engine: it stores what a crew reports as JSON, and gives the next segment nothing else."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from crew_service.engine.crew import (
    Cancellation,
    Completed,
    Crew,
    InputFile,
    Job,
    JournalEntry,
    PendingReview,
    Progress,
    ReviewDecision,
    Round,
    Step,
    TaskDone,
    TokensUsed,
)

CREWS = Path(__file__).parent / "crews"


class EngineStub:
    def __init__(self, crew: Crew, log: Path) -> None:
        self.crew = crew
        self.log = log
        self.inputs = {"topic": "ducks", "log": str(log)}
        self.cancelled = Cancellation()
        self.seen: list[Progress] = []
        self.used_by_segment: list[dict[str, int]] = []
        self.done: list[Any] = []
        self.gate: ReviewDecision | None = None
        self.rounds: tuple[Round, ...] = ()
        self.waiting: PendingReview | None = None
        self.execution_id = str(uuid4())  # also the name of a folder that tests side by side would share
        self.restore_from: str | None = None
        self.owner: str | None = None
        self.journal: dict[int, JournalEntry] = {}
        self.steps = 0
        self.flow_state: str | None = None
        self.files: dict[str, tuple[bytes, str, bool]] = {}  # content, type, and whether the inputs refer to it

    def segment(self) -> Completed | PendingReview:
        """Run one segment from what is stored."""
        self.used_by_segment.append({})
        job = Job(
            self.execution_id,
            _stored(self.inputs),
            _stored(self.done),
            self.gate,
            self.cancelled,
            restore_from=self.restore_from,
            owner=self.owner,
            steps=self.steps,
            recorded=lambda: list(self.journal.values()),
            flow_state=lambda: self.flow_state,
            files=[
                InputFile(name, name, len(data), sha256(data).hexdigest(), kind, inside)
                for name, (data, kind, inside) in self.files.items()
            ],
            read_file=lambda file: iter([self.files[file.name][0]]),
        )
        outcome = self.crew.run(job, self._keep)
        self.waiting = outcome if isinstance(outcome, PendingReview) else None
        if self.waiting:
            self.flow_state = self.waiting.flow_state or self.flow_state
        return outcome

    def approve(self, edited: str | None = None) -> Completed | PendingReview:
        return self._decide(True, "Approved.", edited=edited)

    def revise(self, feedback: str) -> Completed | PendingReview:
        return self._decide(False, feedback)

    def choose(self, outcome: str, feedback: str = "") -> Completed | PendingReview:
        return self._decide(True, feedback, outcome)

    def answer(self, text: str) -> Completed | PendingReview:
        return self._decide(True, text)

    def calls(self, *, of: str = "call") -> list[Any]:
        """List what the log has of a kind: the tasks that the model was asked for, or a callback's outputs."""
        return [entry[of] for entry in self.entries() if of in entry]

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    @property
    def used(self) -> dict[str, int]:
        """Sum up the tokens of all segments."""
        names = self.used_by_segment[-1]
        return {name: sum(used.get(name, 0) for used in self.used_by_segment) for name in names}

    def finished(self) -> list[str]:
        return [task["task_id"] for task in self.done]

    def _decide(
        self, is_approve: bool, feedback: str, outcome: str | None = None, *, edited: str | None = None
    ) -> Completed | PendingReview:
        assert self.waiting
        earlier = self.rounds if self.gate and self.gate.task_id == self.waiting.task_id else ()
        self.rounds = (*earlier, Round(edited or self.waiting.output, feedback))
        state = _stored(self.waiting.state)
        self.gate = ReviewDecision(self.waiting.task_id, is_approve, self.rounds, state, outcome)
        return self.segment()

    def _keep(self, progress: Progress) -> None:
        self.seen.append(type(progress)(**_stored(asdict(progress))))
        if isinstance(progress, TokensUsed):
            self.used_by_segment[-1] = progress.parts
        if isinstance(progress, TaskDone):
            self.done.append(_stored(progress.task))
            self.flow_state = progress.flow_state or self.flow_state
            ended = progress.task["task_id"]
            self.journal = {number: entry for number, entry in self.journal.items() if entry.task_id != ended}
        if isinstance(progress, Step):
            self.steps = max(self.steps, progress.number)
            if progress.is_kept:
                kept = {each.name: getattr(progress, each.name) for each in fields(JournalEntry)}
                self.journal[progress.number] = JournalEntry(**kept)


def _stored(value: Any) -> Any:
    return json.loads(json.dumps(value))


def alive(pid: int) -> bool:
    """Say whether the process is there; a zombie is not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
