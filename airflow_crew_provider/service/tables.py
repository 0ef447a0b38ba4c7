"""What is stored. Texts of users and crews stand in JSON columns, so that no character of theirs can break a write."""

from __future__ import annotations

from sqlalchemy import JSON, Column, Float, Index, Integer, MetaData, String, Table

VERSION = 1  # of these tables; a database of another version is refused, since its columns differ

metadata = MetaData()

executions = Table(
    "executions",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("kickoff_id", String(36), nullable=False, unique=True),  # what is polled; differs after a live resume
    Column("owner", String),  # name of the user token; null for the organization
    Column("state", String(16), nullable=False),
    Column("segment", Integer, nullable=False, default=0),  # whose reports count
    Column("created_at", Float, nullable=False),
    Column("due_at", Float, nullable=False),  # when queued: not to be claimed before
    Column("updated_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("work_seconds", Float, nullable=False, default=0.0),
    Column("counted_at", Float),  # up to when the work is in work_seconds
    Column("inputs", JSON, nullable=False),
    Column("meta", JSON(none_as_null=True)),
    Column("webhooks", JSON(none_as_null=True)),  # with credentials; erased at the end
    Column("completed_tasks", Integer, nullable=False, default=0),
    Column("current_task", JSON(none_as_null=True)),
    Column("current_agent", JSON(none_as_null=True)),
    Column("last_task", JSON(none_as_null=True)),
    Column("last_step", JSON(none_as_null=True)),
    Column("gate", JSON(none_as_null=True)),  # task_id, key, output, agent, state, rounds, is_approve
    Column("asked", JSON, nullable=False),  # every task_id that a person was ever asked with
    Column("tasks", JSON(none_as_null=True)),  # of a completed one, so that a look is one read
    Column("output", JSON(none_as_null=True)),
    Column("output_json", JSON(none_as_null=True)),
    Column("usage", JSON(none_as_null=True)),
    Column("error", JSON(none_as_null=True)),
    Index("executions_by_turn", "state", "due_at"),
    Index("executions_by_age", "created_at"),
    Index("executions_by_owner", "owner", "created_at"),
    Index("executions_by_end", "ended_at"),
)

results = Table(
    "results",
    metadata,
    Column("execution_id", String(36), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("task", JSON, nullable=False),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("execution_id", String(36), nullable=False, index=True),
    Column("kind", String(16), nullable=False),
    Column("url", JSON, nullable=False),
    Column("body", JSON, nullable=False),
    Column("attempts", Integer, nullable=False, default=0),
    Column("due_at", Float, nullable=False, index=True),
)

answers = Table(
    "answers",  # to requests with an Idempotency-Key
    metadata,
    Column("caller", String, primary_key=True),
    Column("endpoint", String(16), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    Column("execution_id", String(36), index=True),
    Column("answer", JSON, nullable=False),
    Column("created_at", Float, nullable=False),
)
