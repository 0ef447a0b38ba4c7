"""What crews print, in pieces, of each execution the newest; each function is part of the caller's transaction."""

from __future__ import annotations

from sqlalchemy import delete, func, insert, select
from sqlalchemy.engine import Connection

from crew_service.storage.tables import executions, printed

PIECE = 32 * 1024  # characters


def add(connection: Connection, execution_id: str, text: str, *, most: int) -> None:
    """Append a text and delete what stands before the last `most` bytes; a deleted execution keeps nothing."""
    locked = select(executions.c.id).where(executions.c.id == execution_id).with_for_update()
    if connection.execute(locked).one_or_none() is None:
        return
    mine = printed.c.execution_id == execution_id
    upto = _upto(connection, execution_id)
    pieces = []
    for start in range(0, len(text), PIECE):
        piece = text[start : start + PIECE]
        upto += len(piece.encode())
        pieces.append({"execution_id": execution_id, "upto": upto, "text": piece})
    connection.execute(insert(printed), pieces)
    connection.execute(delete(printed).where(mine, printed.c.upto <= upto - most))


def last(connection: Connection, execution_id: str, *, most: int) -> tuple[str, bool]:
    """Return the last `most` bytes, and whether something was printed before."""
    mine = printed.c.execution_id == execution_id
    upto = _upto(connection, execution_id)
    pieces = select(printed.c.text).where(mine, printed.c.upto > upto - most).order_by(printed.c.upto)
    text = "".join(connection.execute(pieces).scalars()).encode()
    return text[-most:].decode(errors="ignore"), upto > most


def _upto(connection: Connection, execution_id: str) -> int:
    """Return how many bytes were printed by now."""
    newest = select(func.max(printed.c.upto)).where(printed.c.execution_id == execution_id)
    return connection.execute(newest).scalar() or 0
