"""A webhook that was given up can be resent unchanged, even after its execution has ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add a column; letters from earlier releases have no value, and are sent as far as their execution allows."""
    op.add_column("dead_letters", sa.Column("hook", sa.JSON(none_as_null=True)))
