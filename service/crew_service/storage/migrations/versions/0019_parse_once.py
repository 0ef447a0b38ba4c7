"""Delete a finished task's journal after parsing the task once, even if SQLite cannot parse it.

A service of an earlier release cannot share a SQLite file, so the trigger can be replaced.
"""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision = "0018"

# A subquery is evaluated once, not for each row. SQLite cannot parse JSON with more than 1000 levels.
OF_TASK = "(SELECT json_extract(NEW.task, '$.task_id') WHERE json_valid(NEW.task))"
DELETE = f"DELETE FROM journal WHERE execution_id = NEW.execution_id AND json_extract(task_id, '$') = {OF_TASK};"  # noqa: S608


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TRIGGER journal_of_task_deleted")
        op.execute(f"CREATE TRIGGER journal_of_task_deleted AFTER INSERT ON results FOR EACH ROW BEGIN {DELETE} END")
