"""Every state of an execution and every move between states; a write that would make any other move changes nothing."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class State(str, Enum):
    QUEUED = "queued"  # waits for a place in the pool
    RUNNING = "running"
    WAITING = "waiting"  # for a person; `pending` in the specification
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"

    __str__ = str.__str__  # like StrEnum, which requires Python 3.11


class Move(NamedTuple):
    sources: frozenset[State]
    target: State


OVER = frozenset({State.COMPLETED, State.FAILED, State.STOPPED})

CLAIM = Move(frozenset({State.QUEUED}), State.RUNNING)
NOTE = Move(frozenset({State.RUNNING}), State.RUNNING)  # progress
REQUEUE = Move(frozenset({State.RUNNING}), State.QUEUED)  # the process running it is gone
WAIT = Move(frozenset({State.RUNNING}), State.WAITING)
RESUME = Move(frozenset({State.WAITING}), State.QUEUED)
COMPLETE = Move(frozenset({State.RUNNING}), State.COMPLETED)
FAIL = Move(frozenset({State.RUNNING}), State.FAILED)
GIVE_UP = Move(frozenset({State.WAITING}), State.FAILED)  # by a person's decision
STOP = Move(frozenset({State.QUEUED, State.RUNNING, State.WAITING}), State.STOPPED)
