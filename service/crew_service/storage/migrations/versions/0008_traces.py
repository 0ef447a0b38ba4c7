"""An execution keeps the trace context of its kickoff, and of the last answer of a person."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add a column; executions of earlier releases have none, and their next segment begins a trace."""
    op.add_column("executions", sa.Column("trace", sa.JSON(none_as_null=True)))
