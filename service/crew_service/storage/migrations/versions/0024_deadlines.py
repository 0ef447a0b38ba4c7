"""Add when the service itself answers a question that nobody has answered."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    op.add_column("executions", sa.Column("answer_by", sa.Float))
    has_one = sa.text("answer_by IS NOT NULL")
    op.create_index(
        "executions_by_deadline",
        "executions",
        ["answer_by"],
        sqlite_where=has_one,
        postgresql_where=has_one,
    )
