"""Add executions that continue a failed one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("executions", sa.Column("continued_from", sa.String(36)))
    op.add_column("executions", sa.Column("earlier_usage", sa.JSON(none_as_null=True)))
    op.add_column("executions", sa.Column("failure", sa.JSON(none_as_null=True)))
    op.add_column("results", sa.Column("digest", sa.String(64)))
    op.add_column("journal", sa.Column("once", sa.Boolean))
    is_one = sa.text("continued_from IS NOT NULL")
    op.create_index(
        "executions_by_continued",
        "executions",
        ["continued_from"],
        unique=True,
        sqlite_where=is_one,
        postgresql_where=is_one,
    )
