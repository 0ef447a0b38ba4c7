"""The tables of release 0.1."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the same tables as release 0.1."""
    op.create_table(
        "executions",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("kickoff_id", sa.String(36), nullable=False, unique=True),
        sa.Column("owner", sa.String),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("segment", sa.Integer, nullable=False),
        *(sa.Column(name, sa.Float, nullable=False) for name in ("created_at", "due_at", "updated_at")),
        sa.Column("ended_at", sa.Float),
        sa.Column("work_seconds", sa.Float, nullable=False),
        sa.Column("counted_at", sa.Float),
        sa.Column("inputs", sa.JSON, nullable=False),
        *(sa.Column(name, sa.JSON) for name in ("meta", "webhooks")),
        sa.Column("completed_tasks", sa.Integer, nullable=False),
        *(sa.Column(name, sa.JSON) for name in ("current_task", "current_agent", "last_task", "last_step", "gate")),
        sa.Column("asked", sa.JSON, nullable=False),
        *(sa.Column(name, sa.JSON) for name in ("tasks", "output", "output_json", "usage", "error")),
    )
    op.create_index("executions_by_turn", "executions", ["state", "due_at"])
    op.create_index("executions_by_age", "executions", ["created_at"])
    op.create_index("executions_by_owner", "executions", ["owner", "created_at"])
    op.create_index("executions_by_end", "executions", ["ended_at"])
    op.create_table(
        "results",
        sa.Column("execution_id", sa.String(36), primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("task", sa.JSON, nullable=False),
    )
    op.create_table(
        "outbox",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("execution_id", sa.String(36), nullable=False, index=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("url", sa.JSON, nullable=False),
        sa.Column("body", sa.JSON, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("due_at", sa.Float, nullable=False, index=True),
    )
    op.create_table(
        "answers",
        *(sa.Column(name, kind, primary_key=True) for name, kind in ANSWER_KEY.items()),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("execution_id", sa.String(36), index=True),
        sa.Column("answer", sa.JSON, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
    )


ANSWER_KEY = {"caller": sa.String(), "endpoint": sa.String(16), "key": sa.String(255)}
