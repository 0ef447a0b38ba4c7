"""Add details of an execution: its tokens by task and model, the rounds of its reviews, and its earlier ids.

Rows from earlier releases have none of these. Services of an earlier release may write alongside this one, so triggers
store the ids, and delete an execution's details together with it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

JSON = sa.JSON(none_as_null=True)
TABLES = ("rounds", "earlier_kickoff_ids")  # with rows that are deleted with their execution
# Name, event, condition, and the statements.
TRIGGERS = (
    (
        "kickoff_id_kept",
        "UPDATE OF kickoff_id",
        "WHEN (OLD.kickoff_id <> NEW.kickoff_id AND OLD.kickoff_id <> OLD.id)",
        "INSERT INTO earlier_kickoff_ids (kickoff_id, execution_id) VALUES (OLD.kickoff_id, OLD.id);",
    ),
    (
        "details_deleted",
        "DELETE",
        "",
        " ".join(f"DELETE FROM {table} WHERE execution_id = OLD.id;" for table in TABLES),  # noqa: S608
    ),
)


def upgrade() -> None:
    for name, kind in (("started_at", sa.Float), ("model_usage", JSON), ("open_tasks", JSON)):
        op.add_column("executions", sa.Column(name, kind))
    op.add_column("results", sa.Column("figures", JSON))
    op.create_table(
        "rounds",
        sa.Column("execution_id", sa.String(36), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("task_id", sa.JSON, nullable=False),
        sa.Column("asked_at", sa.Float, nullable=False),
        sa.Column("question", JSON),
        sa.Column("outcomes", JSON),
        sa.Column("draft", sa.JSON, nullable=False),
        sa.Column("draft_is_cut", sa.Boolean, nullable=False),
        sa.Column("output_sha256", sa.String(64)),
        sa.Column("decided_at", sa.Float),
        sa.Column("is_approve", sa.Boolean),
        sa.Column("outcome", JSON),
        sa.Column("human_feedback", JSON),
        sa.Column("edited", sa.Boolean),
        sa.Column("by", sa.String),
    )
    op.create_table(
        "earlier_kickoff_ids",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("kickoff_id", sa.String(36), nullable=False, unique=True),
        sa.Column("execution_id", sa.String(36), nullable=False, index=True),
    )
    for name, event, when, steps in TRIGGERS:
        if op.get_bind().dialect.name == "sqlite":
            op.execute(f"CREATE TRIGGER {name} AFTER {event} ON executions FOR EACH ROW {when} BEGIN {steps} END")
        else:
            body = f"BEGIN {steps} RETURN NULL; END"
            op.execute(f"CREATE FUNCTION crew_{name}() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
            event = f"AFTER {event} ON executions FOR EACH ROW {when}"
            op.execute(f"CREATE TRIGGER {name} {event} EXECUTE FUNCTION crew_{name}()")
