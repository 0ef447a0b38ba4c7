"""Mark the calls in the journal that are made again, for their effect in the process, when their task begins again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.add_column("journal", sa.Column("prepare", sa.Boolean))
