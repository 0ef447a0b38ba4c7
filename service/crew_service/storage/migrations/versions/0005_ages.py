"""Measure ages by the database's clock, not by that of the machine that recorded the end of an execution."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

UNKNOWN = sa.text("aged_from IS NULL AND ended_at IS NOT NULL")


def upgrade() -> None:
    """Add a column. The service fills it in for ended executions: it is unknown which clock recorded their end."""
    op.add_column("executions", sa.Column("aged_from", sa.Float))
    op.create_index("executions_by_retention", "executions", ["aged_from"])
    op.create_index(
        "executions_without_age", "executions", ["ended_at"], sqlite_where=UNKNOWN, postgresql_where=UNKNOWN
    )
