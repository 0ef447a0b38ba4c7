"""Add questions in the middle of a task: a person's decision on a call, and the subject of a round's question."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.add_column("journal", sa.Column("decision", sa.JSON(none_as_null=True)))
    op.add_column("rounds", sa.Column("ask", sa.JSON(none_as_null=True)))
