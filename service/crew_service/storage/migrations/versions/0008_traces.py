"""Store the trace context of an execution's kickoff, and of the latest answer by a person."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add a column; it is null in executions from earlier releases, whose next segment begins a trace."""
    op.add_column("executions", sa.Column("trace", sa.JSON(none_as_null=True)))
