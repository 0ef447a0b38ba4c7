"""Let several processes share several crews: claims with an owner, limits per execution, shared sessions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add columns and tables. Executions that release 0.1 was running have no claim, so the service requeues them."""
    for column in (
        sa.Column("crew", sa.String(64), nullable=False, server_default=""),
        sa.Column("writes", sa.Integer, nullable=False, server_default="0"),
        sa.Column("claimed_by", sa.String(36)),
        sa.Column("tokens", sa.Integer, nullable=False, server_default="0"),
        sa.Column("limits", sa.JSON),
    ):
        op.add_column("executions", column)
    _replace_indices()
    op.create_table(
        "processes",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("beat", sa.Integer, nullable=False),
        sa.Column("host", sa.String, nullable=False),
        sa.Column("started_at", sa.Float, nullable=False),
    )
    op.create_table(
        "sessions",
        sa.Column("key_hash", sa.String(64), primary_key=True),
        sa.Column("crew", sa.String(64), nullable=False),
        sa.Column("owner", sa.String),
        sa.Column("form_key", sa.String(64), nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False, index=True),
    )


def _replace_indices() -> None:
    """Include the crew, since every query of the API filters by one."""
    for name in ("executions_by_turn", "executions_by_owner"):
        op.drop_index(name, "executions")
    op.create_index("executions_by_turn", "executions", ["state", "crew", "due_at"])
    op.create_index("executions_by_crew", "executions", ["crew", "created_at"])
    op.create_index("executions_by_state", "executions", ["crew", "state", "created_at"])
    op.create_index("executions_by_owner", "executions", ["crew", "owner", "created_at"])
    claimed = sa.text("claimed_by IS NOT NULL")
    op.create_index(
        "executions_by_process", "executions", ["claimed_by"], sqlite_where=claimed, postgresql_where=claimed
    )
