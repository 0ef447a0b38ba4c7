"""Add the printed output of crews, and the DAG that started an execution.

Rows from earlier releases have neither. Services of an earlier release may delete executions alongside this one, so a
trigger deletes their printed output.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

DELETE = "DELETE FROM printed WHERE execution_id = OLD.id;"


def upgrade() -> None:
    op.add_column("executions", sa.Column("dag_id", sa.String(250)))
    op.create_index("executions_by_dag", "executions", ["crew", "dag_id", "created_at"])
    op.create_table(
        "printed",
        sa.Column("execution_id", sa.String(36), primary_key=True),
        sa.Column("upto", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("text", sa.Text, nullable=False),
    )
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"CREATE TRIGGER printed_deleted AFTER DELETE ON executions FOR EACH ROW BEGIN {DELETE} END")
    else:
        body = f"BEGIN {DELETE} RETURN NULL; END"
        op.execute(f"CREATE FUNCTION crew_printed_deleted() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
        event = "AFTER DELETE ON executions FOR EACH ROW"
        op.execute(f"CREATE TRIGGER printed_deleted {event} EXECUTE FUNCTION crew_printed_deleted()")
