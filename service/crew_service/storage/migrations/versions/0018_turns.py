"""Add an index that finds the oldest queued execution of each owner, however many are queued."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"

QUEUED = sa.text("state = 'queued'")


def upgrade() -> None:
    columns = ["crew", "owner", "due_at"]
    op.create_index("executions_by_owners_turn", "executions", columns, sqlite_where=QUEUED, postgresql_where=QUEUED)
