"""Add steps (model and tool calls as people see them, kept with the execution), and counts of their writes.

Services of an earlier release may delete executions alongside this one, so a trigger deletes their steps.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

JSON = sa.JSON(none_as_null=True)
DELETE = "DELETE FROM steps WHERE execution_id = OLD.id;"


def upgrade() -> None:
    for name in ("calm_writes", "calm_shown"):
        op.add_column("executions", sa.Column(name, sa.Integer, nullable=False, server_default="0"))
    op.add_column("executions", sa.Column("calm_at", sa.Float))
    op.create_table(
        "steps",
        sa.Column("execution_id", sa.String(36), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("segment", sa.Integer, nullable=False),
        sa.Column("task_id", sa.JSON, nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("name", sa.JSON, nullable=False),
        sa.Column("agent", sa.JSON, nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("began_at", sa.Float, nullable=False),
        sa.Column("seconds", sa.Float),
        sa.Column("usage", JSON),
        sa.Column("arguments", JSON),
        sa.Column("result", JSON),
        sa.Column("from_journal", sa.Boolean, nullable=False),
        sa.Column("is_cut", sa.Boolean, nullable=False),
    )
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"CREATE TRIGGER steps_deleted AFTER DELETE ON executions FOR EACH ROW BEGIN {DELETE} END")
    else:
        body = f"BEGIN {DELETE} RETURN NULL; END"
        op.execute(f"CREATE FUNCTION crew_steps_deleted() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
        event = "AFTER DELETE ON executions FOR EACH ROW"
        op.execute(f"CREATE TRIGGER steps_deleted {event} EXECUTE FUNCTION crew_steps_deleted()")
