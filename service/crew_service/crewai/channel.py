"""Messages between the service and a crew's process: one JSON object per line, sent over a socket.

Lines that are not JSON objects are dropped: their process was killed while writing them. The engine's records are sent
as the fields of their dataclass plus its name.
"""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import asdict
from typing import Any

from crew_service.engine.crew import (
    Completed,
    FilePiece,
    InputFile,
    Job,
    JournalEntry,
    Outcome,
    PendingQuestion,
    PendingReview,
    Progress,
    ReviewDecision,
    Round,
    Step,
    StepDone,
    StepsReplayed,
    TaskDone,
    TaskStarted,
    TokensUsed,
)

LINK_CLOSED = 98  # exit code of a process whose crew closed its end of the socket
LARGEST = 64 * 1024 * 1024  # bytes per message; ample for text that people read, such as a crew's output
LARGEST_ANSWER = 48 * 1024 * 1024  # bytes of an outcome: the next process gets it in a message with more
FORK, LEAVE = b"f", b"l"  # requests to a fork server
READY = b"\0"  # a fork server can fork; anything else that it sends first is why it cannot
UNBORN = "unborn"  # sent if a process could not start for lack of resources, and so has done nothing

Message = dict[str, Any]

PROGRESS = {
    kind.__name__: kind for kind in (TaskStarted, StepDone, TaskDone, TokensUsed, Step, StepsReplayed, FilePiece)
}
OF_JOB = ("execution_id", "inputs", "done", "restore_from", "steps")  # sent unchanged
OUTCOMES = {kind.__name__: kind for kind in (Completed, PendingReview, PendingQuestion)}
PAUSES = (PendingReview.__name__, PendingQuestion.__name__)  # message types


class MessageTooLarge(Exception):
    """The other side sent a message larger than this side accepts."""


class Channel:
    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._sending = threading.Lock()
        self._received = bytearray()
        self._searched = 0

    def send(self, message: Message) -> None:
        self.send_line(line_of(message))

    def send_line(self, line: bytes) -> None:
        with self._sending:
            self._link.sendall(line)

    def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message, or None when the connection ends; raise `TimeoutError` if none arrives in time."""
        while True:
            line = self._next_line()
            if line is None:
                self._link.settimeout(timeout)
                if not self._fill():
                    return None
            elif (message := _parsed(line)) is not None:
                return message

    def close(self) -> None:
        self._link.close()

    def _next_line(self) -> bytes | None:
        end = self._received.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._received)
            return None
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        self._searched = 0
        return line

    def _fill(self) -> bool:
        try:
            data = self._link.recv(65536)
        except ConnectionError:
            return False
        self._received += data
        if len(self._received) > LARGEST:
            raise MessageTooLarge(f"more than {LARGEST} bytes in one message")
        return bool(data)


def line_of(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _parsed(line: bytes) -> Message | None:
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


# --- records ---


def packed(record: Progress | JournalEntry | Outcome) -> Message:
    nested = {"entry": vars(record.entry)} if isinstance(record, PendingQuestion) else {}
    return {"type": type(record).__name__, **vars(record), **nested}


def too_large(answer: Message, line: bytes) -> str | None:
    """Return why an outcome cannot be sent; None if it can."""
    if len(line) <= LARGEST_ANSWER:
        return None
    what = "The crew's answer"
    if answer["type"] in PAUSES:
        what = "It asks a person, but nobody was asked: the question, with all results that are needed after it,"
    return f"{what} takes {len(line) >> 20} MiB, and at most {LARGEST_ANSWER >> 20} MiB are kept."


def unpacked(message: Message) -> Any:
    """Decode a progress record, an outcome or a journal entry; return None for other message types."""
    kind = {**PROGRESS, **OUTCOMES, JournalEntry.__name__: JournalEntry}.get(message["type"])
    fields = {name: value for name, value in message.items() if name != "type"}
    if kind is PendingQuestion:
        fields["entry"] = JournalEntry(**fields["entry"])
    return kind(**fields) if kind else None


def is_awaited(progress: Progress) -> bool:
    """Whether the crew waits until this progress is stored."""
    return bool(getattr(progress, "is_awaited", False))


def job_message(job: Job) -> Message:
    decision = asdict(job.decision) if job.decision else None
    files = [asdict(file) for file in job.files]
    return {**{name: getattr(job, name) for name in OF_JOB}, "decision": decision, "files": files}


def job_from(message: Message) -> Job:
    decision = decision_from(message["decision"]) if message["decision"] else None
    files = [InputFile(**each) for each in message["files"]]
    fields = {name: message[name] for name in OF_JOB}
    return Job(**fields, decision=decision, files=files, flow_state=lambda: message.get("flow_state"))


def decision_from(fields: Message) -> ReviewDecision:
    return ReviewDecision(**{**fields, "rounds": tuple(Round(**each) for each in fields["rounds"])})
