"""Add the journal, with the answers to model and tool calls in unfinished tasks, and the release of each process.

Services of an earlier release may finish tasks and executions alongside this one, so triggers delete entries that are
no longer needed.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

# PostgreSQL cannot read JSON that contains a NUL character. Evaluated once, not for each row.
WITHOUT_ZERO = r"CAST(replace(CAST({} AS text), '\u0000', '\u0001') AS json)"
OF_TASK = f"(SELECT {WITHOUT_ZERO.format('NEW.task')} ->> 'task_id')"

# Name, event, condition, and which rows to delete; both sides store a task's name as JSON.
TRIGGERS = (
    (
        "journal_of_task_deleted",
        "INSERT ON results",
        "",
        {
            "sqlite": "execution_id = NEW.execution_id "
            "AND json_extract(task_id, '$') = json_extract(NEW.task, '$.task_id')",
            "postgresql": "execution_id = NEW.execution_id "
            f"AND {WITHOUT_ZERO.format('task_id')} #>> '{{}}' = {OF_TASK}",
        },
    ),
    (
        "journal_of_execution_deleted",
        "UPDATE OF state ON executions",
        "WHEN (NEW.state <> OLD.state AND NEW.state IN ('completed', 'stopped'))",
        {"": "execution_id = NEW.id"},
    ),
    ("journal_deleted", "DELETE ON executions", "", {"": "execution_id = OLD.id"}),
)


def upgrade() -> None:
    op.add_column("executions", sa.Column("steps", sa.Integer, nullable=False, server_default="0"))
    op.add_column("executions", sa.Column("kills", sa.Integer, nullable=False, server_default="0"))
    op.add_column("processes", sa.Column("release", sa.String(32)))
    op.create_table(
        "journal",
        sa.Column("execution_id", sa.String(36), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("task_id", sa.JSON, nullable=False),
        sa.Column("part", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("within", sa.String(64)),
        sa.Column("name", sa.JSON, nullable=False),
        sa.Column("began_at", sa.Float, nullable=False),
        sa.Column("ended_at", sa.Float),
        sa.Column("answer", sa.LargeBinary),
    )
    dialect = op.get_bind().dialect.name
    for name, event, when, rows in TRIGGERS:
        step = f"DELETE FROM journal WHERE {rows.get(dialect) or rows['']};"  # noqa: S608
        if dialect == "sqlite":
            op.execute(f"CREATE TRIGGER {name} AFTER {event} FOR EACH ROW {when} BEGIN {step} END")
        else:
            body = f"BEGIN {step} RETURN NULL; END"
            op.execute(f"CREATE FUNCTION crew_{name}() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
            op.execute(f"CREATE TRIGGER {name} AFTER {event} FOR EACH ROW {when} EXECUTE FUNCTION crew_{name}()")
