"""Add the files that crews write.

A service of an earlier release may run alongside this one, but would not give an execution the files that it has
written: a trigger returns such an execution to the queue when one of them claims it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"

# See migration 0020.
REFUSE = """
IF NOT EXISTS (SELECT 1 FROM processes WHERE id = NEW.claimed_by AND release >= '0023')
    AND EXISTS (SELECT 1 FROM files WHERE execution_id = NEW.id AND name IS NOT NULL) THEN
    NEW.state := OLD.state; NEW.claimed_by := NULL; NEW.segment := OLD.segment; NEW.started_at := OLD.started_at;
    NEW.due_at := NEW.counted_at + 1.5;
END IF;
RETURN NEW;
"""


def upgrade() -> None:
    op.add_column("files", sa.Column("name", sa.String))
    op.add_column("files", sa.Column("version", sa.Integer))
    op.add_column("files", sa.Column("task_id", sa.JSON))
    op.add_column("files", sa.Column("round", sa.Integer))
    op.add_column("files", sa.Column("is_draft", sa.Boolean))
    if op.get_bind().dialect.name == "sqlite":
        return
    op.execute(
        f"CREATE FUNCTION crew_output_files_claimed() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {REFUSE} END$$"
    )
    op.execute(
        "CREATE TRIGGER output_files_claimed BEFORE UPDATE OF state ON executions FOR EACH ROW "
        "WHEN (OLD.state = 'queued' AND NEW.state = 'running') EXECUTE FUNCTION crew_output_files_claimed()"
    )
