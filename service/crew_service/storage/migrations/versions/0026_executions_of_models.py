"""Count the executions of each model: `executions` counts each one once, at the first model that it used."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    op.add_column("usage_sums", sa.Column("of_model", sa.Integer, nullable=False, server_default="0"))
    op.execute("UPDATE usage_sums SET of_model = executions")
