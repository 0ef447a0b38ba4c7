"""A webhook that was given up can be sent again as it was, also after the end of its execution."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add a column; letters of earlier releases have none, and are sent as far as their execution knows."""
    op.add_column("dead_letters", sa.Column("hook", sa.JSON(none_as_null=True)))
