"""Record which releases may use the database, so that two consecutive ones can share it during a rollout."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the table; its only row is written after each upgrade."""
    op.create_table(
        "releases",
        sa.Column("newest", sa.String(32), primary_key=True),
        sa.Column("oldest", sa.String(32), nullable=False),
    )
