"""Files in pieces, from callers and from crews; each function runs in the caller's transaction."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import and_, case, delete, func, insert, select, update
from sqlalchemy.engine import Connection, Row
from sqlalchemy.sql import Select

from crew_service.storage import transactions
from crew_service.storage.states import State
from crew_service.storage.tables import executions, file_pieces, files

IS_UNUSED = files.c.execution_id.is_(None)
OF_EXECUTION = "execution "  # begins the owner of what an execution's crew sends
IS_COMPLETE = files.c.sha256.is_not(None)


def lock(connection: Connection) -> None:
    """Let nobody else begin a file until this transaction ends, so that sizes add up."""
    transactions.lock_name(connection, "files")


def total(connection: Connection, *, unused_of: str | None = None) -> int:
    """Return the bytes of all files, or of an owner's unused ones."""
    query = select(func.coalesce(func.sum(files.c.size), 0))
    if unused_of is not None:
        query = query.where(files.c.owner == unused_of, IS_UNUSED)
    return int(connection.execute(query).scalar_one())


def begin(connection: Connection, file_id: str, *, owner: str, size: int, now: float) -> None:
    connection.execute(insert(files).values(id=file_id, owner=owner, size=size, changed_at=now))


def put(connection: Connection, file_id: str, number: int, data: bytes, *, now: float) -> bool:
    """Add a piece, perhaps once more; return False if the file was deleted meanwhile."""
    changed = update(files).where(files.c.id == file_id).values(changed_at=now)
    if not connection.execute(changed).rowcount:
        return False
    connection.execute(delete(file_pieces).where(file_pieces.c.file_id == file_id, file_pieces.c.number == number))
    connection.execute(insert(file_pieces), {"file_id": file_id, "number": number, "data": data})
    return True


def complete(connection: Connection, file_id: str, *, now: float, **values: Any) -> bool:
    """Make it a file; return False if it was deleted meanwhile."""
    done = update(files).where(files.c.id == file_id).values(changed_at=now, **values)
    return connection.execute(done).rowcount == 1


def find(connection: Connection, owner: str, ids: Collection[str]) -> list[Row[Any]]:
    """Return an owner's complete files, used or not."""
    return list(connection.execute(select(files).where(files.c.id.in_(ids), files.c.owner == owner, IS_COMPLETE)))


def take(connection: Connection, owner: str, ids: Collection[str], *, into: str) -> set[str]:
    """Give an owner's unused files to an execution; return the ids of those that were."""
    mine = (files.c.id.in_(ids), files.c.owner == owner, IS_UNUSED, IS_COMPLETE)
    connection.execute(update(files).where(*mine).values(execution_id=into))
    taken = select(files.c.id).where(files.c.id.in_(ids), files.c.execution_id == into)
    return set(connection.execute(taken).scalars())


def piece(connection: Connection, file_id: str, number: int) -> bytes | None:
    query = select(file_pieces.c.data).where(file_pieces.c.file_id == file_id, file_pieces.c.number == number)
    content = connection.execute(query).scalar()
    return None if content is None else bytes(content)


def delete_pieces(connection: Connection, of: Select[Any], *, most: int) -> bool:
    """Delete some of the pieces of the files with these ids; return whether there were any."""
    some = select(file_pieces.c.file_id, file_pieces.c.number).where(file_pieces.c.file_id.in_(of)).limit(most)
    rows = connection.execute(some).all()
    for row in rows:
        mine = (file_pieces.c.file_id == row.file_id, file_pieces.c.number == row.number)
        connection.execute(delete(file_pieces).where(*mine))
    return bool(rows)


def discard(connection: Connection, ids: Collection[str]) -> None:
    """Delete those that no execution uses."""
    connection.execute(delete(files).where(files.c.id.in_(ids), IS_UNUSED))


def unused_since(connection: Connection, before: float, *, most: int) -> list[str]:
    """Return uploads that have not grown since; a running execution may go on with its own after a long outage."""
    running = select(OF_EXECUTION + executions.c.id).where(executions.c.state == State.RUNNING)
    query = select(files.c.id).where(IS_UNUSED, files.c.changed_at < before, files.c.owner.not_in(running)).limit(most)
    return list(connection.execute(query).scalars())


# --- files that crews write ---


IS_OUTPUT = files.c.name.is_not(None)
EARLIER_ROUND = 0  # of drafts that were rejected before the execution was continued
NEWEST_FIRST = (files.c.changed_at.desc(), files.c.name, files.c.version.desc())


def outputs(connection: Connection, execution_id: str) -> list[Row[Any]]:
    """Return the files that an execution has written, newest first."""
    mine = select(files).where(files.c.execution_id == execution_id, IS_OUTPUT)
    return list(connection.execute(mine.order_by(*NEWEST_FIRST)))


def given(connection: Connection, execution_id: str) -> tuple[list[dict[str, Any]], float] | None:
    """Return the files that an execution's caller gave, in their stored form, and when; None without an execution."""
    row = connection.execute(
        select(executions.c.files, executions.c.created_at).where(executions.c.id == execution_id)
    ).first()
    return None if row is None else (row.files or [], row.created_at)


def versions(connection: Connection, execution_id: str, name: str) -> list[Row[Any]]:
    """Return an output's versions, newest first."""
    mine = (files.c.execution_id == execution_id, files.c.name == name)
    return list(connection.execute(select(files).where(*mine).order_by(files.c.version.desc())))


def change(connection: Connection, ids: Collection[str], **values: Any) -> None:
    if ids:
        connection.execute(update(files).where(files.c.id.in_(ids)).values(**values))


def delete_ids(connection: Connection, ids: Collection[str]) -> None:
    if ids:
        connection.execute(delete(files).where(files.c.id.in_(ids)))


def hand_on(connection: Connection, execution_id: str, *, into: str) -> None:
    """Give what an execution has written to the one that continues it, whose rounds are counted anew."""
    mine = (files.c.execution_id == execution_id, IS_OUTPUT)
    number = case((and_(files.c.is_draft, files.c.round.is_not(None)), EARLIER_ROUND), else_=files.c.round)
    connection.execute(update(files).where(*mine).values(execution_id=into, round=number))
