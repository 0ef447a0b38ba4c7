"""An execution keeps the trace context of its kickoff and of a person's latest answer."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add a column; executions of earlier releases have no value, so their next segment starts a trace."""
    op.add_column("executions", sa.Column("trace", sa.JSON(none_as_null=True)))
