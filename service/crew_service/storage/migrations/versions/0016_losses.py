"""Count the services that were lost while running an execution that made no progress."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.add_column("executions", sa.Column("losses", sa.Integer, nullable=False, server_default="0"))
    op.add_column("executions", sa.Column("lost_at", sa.BigInteger))
