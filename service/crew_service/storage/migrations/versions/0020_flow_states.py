"""Add the newest state of each Flow, which earlier releases stored with each finished method.

Services of an earlier release may run alongside this one: triggers maintain the table for them, and return an execution
with such a state to the queue when one of them claims it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"

OVER = "(NEW.state <> OLD.state AND NEW.state IN ('completed', 'stopped'))"
COPY = (
    "INSERT INTO flow_states (execution_id, state) "
    "SELECT NEW.id, state FROM flow_states WHERE execution_id = NEW.continued_from"
)
# Name, event, condition, and statement.
TRIGGERS = (
    (
        "flow_state_of_execution_deleted",
        "AFTER UPDATE OF state ON executions",
        f"WHEN {OVER}",
        "DELETE FROM flow_states WHERE execution_id = NEW.id",
    ),
    ("flow_state_deleted", "AFTER DELETE ON executions", "", "DELETE FROM flow_states WHERE execution_id = OLD.id"),
    ("flow_state_copied", "AFTER INSERT ON executions", "WHEN (NEW.continued_from IS NOT NULL)", COPY),
)
# An earlier release reads the execution again after its claim, and finds that it is not running. The pause lets it
# claim others meanwhile; it is shorter than any that a claim takes for a clock that was set back.
REFUSE = """
IF EXISTS (SELECT 1 FROM flow_states WHERE execution_id = NEW.id) AND NOT EXISTS (
    SELECT 1 FROM processes WHERE id = NEW.claimed_by AND release >= '0020'
) THEN
    NEW.state := OLD.state; NEW.claimed_by := NULL; NEW.segment := OLD.segment; NEW.started_at := OLD.started_at;
    NEW.due_at := NEW.counted_at + 1.5;
END IF;
RETURN NEW;
"""


def upgrade() -> None:
    op.create_table(
        "flow_states",
        sa.Column("execution_id", sa.String(36), primary_key=True),
        sa.Column("state", sa.LargeBinary, nullable=False),
    )
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    for name, event, when, step in TRIGGERS:
        if is_postgresql:
            _create(name, event, when, f"{step}; RETURN NULL;")
        else:
            op.execute(f"CREATE TRIGGER {name} {event} FOR EACH ROW {when} BEGIN {step}; END")
    if is_postgresql:
        claim = "WHEN (OLD.state = 'queued' AND NEW.state = 'running')"
        _create("flow_state_claimed", "BEFORE UPDATE OF state ON executions", claim, REFUSE)


def _create(name: str, event: str, when: str, body: str) -> None:
    op.execute(f"CREATE FUNCTION crew_{name}() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {body} END$$")
    op.execute(f"CREATE TRIGGER {name} {event} FOR EACH ROW {when} EXECUTE FUNCTION crew_{name}()")
