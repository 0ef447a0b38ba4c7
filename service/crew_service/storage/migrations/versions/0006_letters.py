"""Store what is needed to resend a dead letter unchanged, even after its execution has ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add a column; it is null in letters from earlier releases, which are resent with data from their execution."""
    op.add_column("dead_letters", sa.Column("hook", sa.JSON(none_as_null=True)))
