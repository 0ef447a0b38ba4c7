"""The newest printed output of each execution, in pieces; each function runs in the caller's transaction."""

from __future__ import annotations

from sqlalchemy import bindparam, delete, func, insert, select
from sqlalchemy.engine import Connection

from crew_service.storage.tables import executions, printed

PIECE = 32 * 1024  # characters
MINE = printed.c.execution_id == bindparam("key")
LENGTH = select(func.max(printed.c.upto)).where(MINE)
LAST = (
    select(printed.c.text, printed.c.upto)
    .where(MINE, printed.c.upto > LENGTH.correlate(None).scalar_subquery() - bindparam("most"))
    .order_by(printed.c.upto)
)


def add(connection: Connection, execution_id: str, text: str, *, most: int, follows_gap: bool = False) -> None:
    """Append text and delete everything before the last `most` bytes; store nothing for a deleted execution.

    What came before a gap is deleted: its last line would seem to continue in the text.
    """
    locked = select(executions.c.id).where(executions.c.id == execution_id).with_for_update()
    if connection.execute(locked).one_or_none() is None:
        return
    mine = printed.c.execution_id == execution_id
    upto = length(connection, execution_id) + (most if follows_gap else 0)
    pieces = []
    for start in range(0, len(text), PIECE):
        piece = text[start : start + PIECE]
        upto += len(piece.encode())
        pieces.append({"execution_id": execution_id, "upto": upto, "text": piece})
    connection.execute(insert(printed), pieces)
    connection.execute(delete(printed).where(mine, printed.c.upto <= upto - most))


def last(connection: Connection, execution_id: str, *, most: int) -> tuple[str, bool]:
    """Return the last `most` bytes, and whether there was earlier output."""
    pieces = list(connection.execute(LAST, {"key": execution_id, "most": most}))
    text = "".join(piece.text for piece in pieces).encode()
    return text[-most:].decode(errors="ignore"), bool(pieces) and pieces[-1].upto > most


def length(connection: Connection, execution_id: str) -> int:
    """Return the number of bytes printed so far, or more if output was lost: it grows with each piece."""
    return connection.execute(LENGTH, {"key": execution_id}).scalar() or 0
