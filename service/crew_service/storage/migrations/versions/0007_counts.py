"""Add counts of executions and dead letters, which triggers maintain for all writers.

SQLite has one writer, so a trigger updates the count directly. On a server, two writers would wait for each other
there, so each adds its own row, and the service adds these up from time to time. On SQLite, a migration that recreates
one of the tables must also recreate its triggers.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

LETTER = "given up"  # the state under which a dead letter is counted; an execution is counted under its own
CREW_OF_LETTER = "coalesce((SELECT crew FROM executions WHERE id = {row}.execution_id), '')"
# Name, table, event, condition, and changes of counts: crew, what and number.
TRIGGERS = (
    ("executions_made", "executions", "INSERT", "", [("NEW.crew", "NEW.state", "+1")]),
    ("executions_deleted", "executions", "DELETE", "", [("OLD.crew", "OLD.state", "-1")]),
    (
        "executions_moved",
        "executions",
        "UPDATE OF state, crew",
        "WHEN (OLD.state <> NEW.state OR OLD.crew <> NEW.crew)",
        [("OLD.crew", "OLD.state", "-1"), ("NEW.crew", "NEW.state", "+1")],
    ),
    ("letters_made", "dead_letters", "INSERT", "", [(CREW_OF_LETTER.format(row="NEW"), f"'{LETTER}'", "+1")]),
    ("letters_deleted", "dead_letters", "DELETE", "", [(CREW_OF_LETTER.format(row="OLD"), f"'{LETTER}'", "-1")]),
)
STORED = "SELECT crew, state, count(*) FROM executions GROUP BY crew, state"
LETTERS = (
    f"SELECT crew, '{LETTER}', count(*) FROM dead_letters "  # noqa: S608
    "JOIN executions ON executions.id = execution_id GROUP BY crew"
)


def upgrade() -> None:
    """Create the triggers, then count existing rows: the triggers keep other writers out until this is committed."""
    op.create_table(
        "counts",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("crew", sa.String(64), nullable=False),
        sa.Column("what", sa.String(16), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
    )
    make = _on_sqlite if op.get_bind().dialect.name == "sqlite" else _on_postgresql
    for trigger in TRIGGERS:
        make(*trigger)
    for counted in (STORED, LETTERS):
        op.execute(f"INSERT INTO counts (crew, what, number) {counted}")
    op.create_index("executions_by_owner_and_state", "executions", ["crew", "owner", "state", "created_at"])


def _on_sqlite(name: str, table: str, event: str, when: str, counted: list[tuple[str, str, str]]) -> None:
    steps = "".join(
        f"INSERT INTO counts (crew, what, number) SELECT {crew}, {what}, 0 "  # noqa: S608
        f"WHERE NOT EXISTS (SELECT 1 FROM counts WHERE crew = {crew} AND what = {what}); "
        f"UPDATE counts SET number = number {number} WHERE crew = {crew} AND what = {what}; "
        for crew, what, number in counted
    )
    op.execute(f"CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW {when} BEGIN {steps}END")


def _on_postgresql(name: str, table: str, event: str, when: str, counted: list[tuple[str, str, str]]) -> None:
    rows = ", ".join(f"({crew}, {what}, {number})" for crew, what, number in counted)
    body = f"BEGIN INSERT INTO counts (crew, what, number) VALUES {rows}; RETURN NULL; END"  # noqa: S608
    op.execute(f"CREATE FUNCTION count_{name}() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
    op.execute(f"CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW {when} EXECUTE FUNCTION count_{name}()")
