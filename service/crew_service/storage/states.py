"""Every state of an execution and every move between them; a move from elsewhere is refused by the database."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class State(str, Enum):
    QUEUED = "queued"  # wants a place in the pool
    RUNNING = "running"
    WAITING = "waiting"  # for a person; `pending` in the specification
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"

    __str__ = str.__str__  # as with StrEnum, which Python 3.10 lacks


class Move(NamedTuple):
    sources: frozenset[State]
    target: State


OVER = frozenset({State.COMPLETED, State.FAILED, State.STOPPED})

CLAIM = Move(frozenset({State.QUEUED}), State.RUNNING)
NOTE = Move(frozenset({State.RUNNING}), State.RUNNING)  # progress
REQUEUE = Move(frozenset({State.RUNNING}), State.QUEUED)  # the process that ran it is gone
WAIT = Move(frozenset({State.RUNNING}), State.WAITING)
RESUME = Move(frozenset({State.WAITING}), State.QUEUED)
COMPLETE = Move(frozenset({State.RUNNING}), State.COMPLETED)
FAIL = Move(frozenset({State.RUNNING}), State.FAILED)
GIVE_UP = Move(frozenset({State.WAITING}), State.FAILED)  # by a person's decision
STOP = Move(frozenset({State.QUEUED, State.RUNNING, State.WAITING}), State.STOPPED)
