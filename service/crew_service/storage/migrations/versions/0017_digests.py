"""Store the digest of the task that made a call, so that the task is recognized under another id."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.add_column("journal", sa.Column("digest", sa.String(64)))
