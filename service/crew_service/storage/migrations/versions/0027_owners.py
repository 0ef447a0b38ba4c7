"""Add what distinguishes owners of the same name, and which executions lost their place to an interruption."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    op.add_column("executions", sa.Column("crew_token", sa.Boolean))
    op.add_column("usage_sums", sa.Column("crew_token", sa.Boolean))
    op.add_column("executions", sa.Column("interrupted_at", sa.Float))
    was_interrupted = sa.text("state = 'queued' AND interrupted_at IS NOT NULL")
    op.create_index(
        "executions_by_interruption",
        "executions",
        ["crew", "due_at"],
        sqlite_where=was_interrupted,
        postgresql_where=was_interrupted,
    )
