"""Queue webhooks per execution and address, and keep undeliverable ones as dead letters."""

from __future__ import annotations

import json
import time
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


WAITING = """
SELECT o.execution_id, o.kind, o.attempts, CAST(o.url AS TEXT) AS url, CAST(o.body AS TEXT) AS body,
       CAST(e.webhooks AS TEXT) AS webhooks
FROM outbox o JOIN executions e ON e.id = o.execution_id ORDER BY o.id
"""


def upgrade() -> None:
    """Carry over undelivered webhooks; all of them are due immediately."""
    connection = op.get_bind()
    waiting = connection.execute(sa.text(WAITING)).all()
    op.drop_table("outbox")
    queues, outbox = _create()
    keys: dict[tuple[str, str, str], str] = {}
    for row in waiting:
        queue = _queue(row)
        address = (row.execution_id, row.url, json.dumps(queue["authentication"], sort_keys=True))
        if address not in keys:
            keys[address] = str(uuid4())
            connection.execute(queues.insert().values(id=keys[address], **queue))
        connection.execute(outbox.insert().values(queue_id=keys[address], **_webhook(row)))


def _create() -> tuple[sa.Table, sa.Table]:
    queues = op.create_table(
        "webhook_queues",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("execution_id", sa.String(36), nullable=False, index=True),
        sa.Column("receiver", sa.String, nullable=False),
        sa.Column("url", sa.JSON, nullable=False),
        sa.Column("authentication", sa.JSON(none_as_null=True)),
        sa.Column("due_at", sa.Float, nullable=False),
        sa.Column("claimed_by", sa.String(36)),
    )
    op.create_index("webhook_queues_by_turn", "webhook_queues", ["receiver", "due_at"])
    outbox = op.create_table(
        "outbox",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("key", sa.String(36), nullable=False),
        sa.Column("queue_id", sa.String(64), nullable=False),
        sa.Column("execution_id", sa.String(36), nullable=False, index=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
    )
    op.create_index("outbox_by_queue", "outbox", ["queue_id", "id"])
    op.create_table(
        "dead_letters",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("key", sa.String(36), nullable=False, unique=True),
        sa.Column("execution_id", sa.String(36), nullable=False, index=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("url", sa.JSON, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("problem", sa.String, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("given_up_at", sa.Float, nullable=False, index=True),
    )
    return queues, outbox


def _queue(row: Any) -> dict[str, Any]:
    found = _read(row.url)
    url = found if isinstance(found, str) else ""  # a webhook without an address is given up when it is due
    scheme, _, rest = url.partition("://")
    hook = _object(_object(_read(row.webhooks)).get("human_input")) if row.kind == "human_input" else {}
    return {
        "execution_id": row.execution_id,
        "receiver": f"{scheme}://{rest.partition('/')[0].rpartition('@')[2]}",
        "url": url,
        "authentication": hook.get("authentication"),
        "due_at": 0.0,
    }


def _read(text: Any) -> Any:
    """Decode JSON; an unreadable row must not keep the service from starting."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _webhook(row: Any) -> dict[str, Any]:
    return {
        "key": str(uuid4()),
        "execution_id": row.execution_id,
        "kind": row.kind,
        "body": row.body,
        "size": len(row.body),
        "attempts": row.attempts,
        "created_at": time.time(),
    }
