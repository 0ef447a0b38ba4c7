"""Questions to people. Each round, its draft and its decision are kept with the execution.

Flows' questions also have ids: each is announced once and answered once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.engine import Connection, Row

from crew_service.storage import integrity
from crew_service.storage.states import State
from crew_service.storage.tables import executions, questions, rounds

LONGEST_ARGUMENTS = 4_000  # characters of a call's arguments that a round stores in addition to its text
LONGEST_DRAFT = 256 * 1024  # characters of a draft or answer that a round stores


def open_round(
    connection: Connection, execution_id: str, number: int, question: Mapping[str, Any], *, now: float
) -> None:
    """Store a question to a person."""
    connection.execute(insert(rounds).values(**_asked(execution_id, number, question), asked_at=now))


def close_round(
    connection: Connection, row: Row[Any], question: Mapping[str, Any], decision: Mapping[str, Any], *, now: float
) -> None:
    """Store the decision on a waiting execution's question, and the question if an earlier release did not store it."""
    decision = {**decision, "human_feedback": decision["human_feedback"][:LONGEST_DRAFT], "decided_at": now}
    number = len(row.asked)
    mine = update(rounds).where(rounds.c.execution_id == row.id, rounds.c.number == number)
    if connection.execute(mine.values(**decision)).rowcount == 0:
        question_fields = {**_asked(row.id, number, question), "asked_at": row.updated_at}
        connection.execute(insert(rounds).values({**question_fields, **decision}))


def _asked(execution_id: str, number: int, question: Mapping[str, Any]) -> dict[str, Any]:
    draft = str(question["output"])
    return {
        "execution_id": execution_id,
        "number": number,
        **{name: question[name] for name in ("task_id", "question", "outcomes", "output_sha256")},
        "draft": draft[:LONGEST_DRAFT],
        "draft_is_cut": len(draft) > LONGEST_DRAFT,
        "ask": _short(question["ask"]) if question["ask"] else None,
    }


def _short(ask: Mapping[str, Any]) -> dict[str, Any]:
    is_long = len(json.dumps(ask["arguments"])) > LONGEST_ARGUMENTS
    return {**ask, "arguments": None, "cut": True} if is_long else {**ask}


def ask(connection: Connection, question_id: str, execution_id: str, *, now: float) -> None:
    connection.execute(insert(questions).values(id=question_id, execution_id=execution_id, asked_at=now))


def close(connection: Connection, question_id: str | None, *, by: str, now: float) -> None:
    """Record the answer to a Flow's question; others have no id."""
    query = update(questions).where(questions.c.id == question_id)
    connection.execute(query.values(answered_at=now, answered_by=by))


def approved(connection: Connection, execution_id: str) -> set[int]:
    """Return the numbers of the rounds that were decided, and not by sending the draft back."""
    decided = (rounds.c.execution_id == execution_id, rounds.c.decided_at.is_not(None))
    query = select(rounds.c.number).where(*decided, rounds.c.is_approve.is_not(False))
    return set(connection.execute(query).scalars())


def find(connection: Connection, question_id: str) -> Row[Any] | None:
    return connection.execute(select(questions).where(questions.c.id == question_id)).one_or_none()


def latest_of(connection: Connection, execution_id: str) -> Row[Any] | None:
    query = select(questions).where(questions.c.execution_id == execution_id)
    return connection.execute(query.order_by(questions.c.asked_at.desc()).limit(1)).one_or_none()


UNANNOUNCED = (
    select(questions.c.id, questions.c.execution_id)
    .join(executions, executions.c.id == questions.c.execution_id)
    .where(questions.c.announced_at.is_(None))
)


def any_unannounced(connection: Connection) -> bool:
    return connection.execute(UNANNOUNCED.limit(1)).first() is not None


def claim_unannounced(connection: Connection, *, now: float) -> list[tuple[str, Row[Any]]]:
    """Mark questions as announced before they are announced, so that each is announced at most once.

    Return those still waiting, and those whose status is unknown because their execution cannot be read. Their
    executions are locked first, as by an answer or a stop; those that somebody is changing are left for later.
    """
    wanted = UNANNOUNCED.limit(100).with_for_update(of=executions, skip_locked=True)
    waiting = []
    for question_id, execution_id in connection.execute(wanted).all():
        mine = update(questions).where(questions.c.id == question_id, questions.c.announced_at.is_(None))
        if connection.execute(mine.values(announced_at=now)).rowcount == 0:
            continue
        row = connection.execute(select(executions).where(executions.c.id == execution_id)).one()
        if row.state != State.WAITING:
            continue
        if not integrity.is_readable(row) or row.gate.get("question_id") == question_id:
            waiting.append((question_id, row))
    return waiting
