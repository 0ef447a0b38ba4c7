"""Add sums of usage, which outlive executions, and mark the executions that a budget holds in the queue.

The service adds what is already stored, and what an earlier release stores: `booked` is the part of an execution's
usage that the sums contain.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.create_table(
        "usage_sums",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("hour", sa.Integer, nullable=False),
        sa.Column("crew", sa.String(64), nullable=False),
        sa.Column("owner", sa.String),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("executions", sa.Integer, nullable=False),
        sa.Column("total_tokens", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("unpriced", sa.BigInteger, nullable=False),
        sa.Column("cost_usd", sa.Float, nullable=False),
    )
    op.create_index("usage_sums_by_hour", "usage_sums", ["hour", "crew", "owner"])
    op.create_table(
        "prices",
        sa.Column("source", sa.String(64), primary_key=True),
        sa.Column("entries", sa.JSON, nullable=False),
    )
    op.add_column("executions", sa.Column("booked", sa.JSON(none_as_null=True)))
    op.add_column("executions", sa.Column("booked_tokens", sa.Integer, nullable=False, server_default="0"))
    op.add_column("executions", sa.Column("held_until", sa.Float))
    is_held = sa.text("held_until IS NOT NULL")
    op.create_index(
        "executions_by_hold", "executions", ["crew", "held_until"], sqlite_where=is_held, postgresql_where=is_held
    )
