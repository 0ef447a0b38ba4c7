"""Add the files that callers upload, and those of each execution.

Services of an earlier release may run alongside this one: triggers delete an execution's files with it, return an
execution with files to the queue when one of them claims it, and hand its files on when one of them continues it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"

DELETED = "DELETE FROM files WHERE execution_id = OLD.id"
PIECES = "DELETE FROM file_pieces WHERE file_id = OLD.id"
# See migration 0020 for both the claim and the pause.
REFUSE = """
IF NOT EXISTS (SELECT 1 FROM processes WHERE id = NEW.claimed_by AND release >= '0022') THEN
    NEW.state := OLD.state; NEW.claimed_by := NULL; NEW.segment := OLD.segment; NEW.started_at := OLD.started_at;
    NEW.due_at := NEW.counted_at + 1.5;
END IF;
RETURN NEW;
"""
# This release stores the files with the new execution itself, since its caller has to name the same ones.
HAND_ON = """
NEW.files := (SELECT files FROM executions WHERE id = NEW.continued_from);
IF NEW.files IS NOT NULL THEN
    UPDATE files SET execution_id = NEW.id WHERE execution_id = NEW.continued_from;
END IF;
RETURN NEW;
"""


def upgrade() -> None:
    op.add_column("executions", sa.Column("files", sa.JSON(none_as_null=True)))
    op.create_table(
        "files",
        sa.Column("id", sa.String(43), primary_key=True),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("execution_id", sa.String(36)),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.String(64)),
        sa.Column("content_type", sa.String(64)),
        sa.Column("changed_at", sa.Float, nullable=False),
    )
    is_unused = sa.text("execution_id IS NULL")
    op.create_index("files_by_execution", "files", ["execution_id", "size"])
    op.create_index("files_by_owner", "files", ["owner"], sqlite_where=is_unused, postgresql_where=is_unused)
    op.create_table(
        "file_pieces",
        sa.Column("file_id", sa.String(43), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"CREATE TRIGGER files_deleted AFTER DELETE ON executions FOR EACH ROW BEGIN {DELETED}; END")
        op.execute(f"CREATE TRIGGER file_pieces_deleted AFTER DELETE ON files FOR EACH ROW BEGIN {PIECES}; END")
        return
    op.execute("ALTER TABLE file_pieces ALTER COLUMN data SET STORAGE EXTERNAL")  # not compressed
    _create("files_deleted", "AFTER DELETE ON executions", "", f"{DELETED}; RETURN NULL;")
    _create("file_pieces_deleted", "AFTER DELETE ON files", "", f"{PIECES}; RETURN NULL;")
    claim = "WHEN (OLD.state = 'queued' AND NEW.state = 'running' AND NEW.files IS NOT NULL)"
    _create("files_claimed", "BEFORE UPDATE OF state ON executions", claim, REFUSE)
    continued = "WHEN (NEW.continued_from IS NOT NULL AND NEW.files IS NULL)"
    _create("files_handed_on", "BEFORE INSERT ON executions", continued, HAND_ON)


def _create(name: str, event: str, when: str, body: str) -> None:
    op.execute(f"CREATE FUNCTION crew_{name}() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {body} END$$")
    op.execute(f"CREATE TRIGGER {name} {event} FOR EACH ROW {when} EXECUTE FUNCTION crew_{name}()")
