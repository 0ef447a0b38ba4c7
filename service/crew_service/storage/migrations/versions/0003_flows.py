"""Add Flows: the id of the state that a Flow starts from, and its questions to people."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add a column and a table."""
    op.add_column("executions", sa.Column("restore_from", sa.String(255)))
    op.create_table(
        "questions",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("execution_id", sa.String(36), nullable=False, index=True),
        sa.Column("asked_at", sa.Float, nullable=False),
        sa.Column("announced_at", sa.Float, index=True),
        sa.Column("answered_at", sa.Float),
        sa.Column("answered_by", sa.String),
    )
