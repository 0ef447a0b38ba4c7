"""Add whether an execution had begun before its newest claim, which was a 0 in `interrupted_at`."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    op.add_column("executions", sa.Column("had_begun", sa.Boolean))
    executions = sa.table("executions", sa.column("had_begun", sa.Boolean), sa.column("interrupted_at", sa.Float))
    could_not_begin = executions.update().where(executions.c.interrupted_at == 0.0)
    op.execute(could_not_begin.values(had_begun=False, interrupted_at=None))
