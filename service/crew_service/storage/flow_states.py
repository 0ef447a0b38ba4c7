"""The newest state of each Flow that has not completed, as its crew's process encoded it.

Each function runs in the caller's transaction. Triggers delete a state when its execution completes, is stopped or is
deleted, and copy that of a failed one if an earlier release continues it. On PostgreSQL, a trigger also keeps a release
that does not know this table from claiming an execution that has a state.
"""

from __future__ import annotations

from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.engine import Connection

from crew_service.storage.tables import flow_states

# Built once: building a statement costs several times as much as running it.
GET = select(flow_states.c.state).where(flow_states.c.execution_id == bindparam("id"))
PUT = update(flow_states).where(flow_states.c.execution_id == bindparam("id")).values(state=bindparam("state"))
ADD = insert(flow_states)


def get(connection: Connection, execution_id: str) -> str | None:
    state = connection.execute(GET, {"id": execution_id}).scalar()
    return None if state is None else bytes(state).decode("ascii")


def put(connection: Connection, execution_id: str, state: str) -> None:
    """Replace the state."""
    values = {"id": execution_id, "state": state.encode("ascii")}
    if not connection.execute(PUT, values).rowcount:
        connection.execute(ADD, {"execution_id": execution_id, "state": values["state"]})


def hand_on(connection: Connection, execution_id: str, *, into: str) -> None:
    """Give a failed execution's state to the one that continues it; no other can."""
    mine = flow_states.c.execution_id == execution_id
    connection.execute(update(flow_states).where(mine).values(execution_id=into))
