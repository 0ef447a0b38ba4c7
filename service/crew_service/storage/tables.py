"""What is stored. Texts of users and crews stand in JSON columns, so that no character of theirs can break a write.

A change here needs a migration in `migrations/versions`; a test compares the two.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)

metadata = MetaData()

executions = Table(
    "executions",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("kickoff_id", String(36), nullable=False, unique=True),  # what is polled; differs after a live resume
    Column("crew", String(64), nullable=False, server_default=""),  # name of the served crew; empty at the root
    Column("owner", String),  # name of the user token; null for the organization
    Column("state", String(16), nullable=False),
    Column("segment", Integer, nullable=False, default=0),  # counts the claims; only the latest may write
    Column("writes", Integer, nullable=False, server_default="0"),  # of this segment, so that none is applied twice
    Column("claimed_by", String(36)),  # the process that runs it; null when none does
    # Writes of this segment and of earlier ones that need not be seen at once, such as those of steps; how many of
    # them there were before the last two seconds with one, and when the last one was.
    Column("calm_writes", Integer, nullable=False, server_default="0"),
    Column("calm_shown", Integer, nullable=False, server_default="0"),
    Column("calm_at", Float),
    Column("steps", Integer, nullable=False, server_default="0"),  # the number of the newest one
    Column("kills", Integer, nullable=False, server_default="0"),  # of its crew's process, since its last new step
    Column("created_at", Float, nullable=False),
    Column("due_at", Float, nullable=False),  # when queued: not to be claimed before
    Column("updated_at", Float, nullable=False),
    Column("started_at", Float),  # when it was first claimed
    Column("ended_at", Float),
    Column("aged_from", Float),  # when it ended, by the database's clock: retention counts from here
    Column("work_seconds", Float, nullable=False, default=0.0),
    Column("tokens", Integer, nullable=False, server_default="0"),  # used by a language model so far
    Column("limits", JSON(none_as_null=True)),  # max_seconds and max_tokens, where the kickoff gave its own
    Column("counted_at", Float),  # up to when the work is in work_seconds
    Column("inputs", JSON, nullable=False),
    Column("restore_from", String(255)),  # the id of a state that a Flow goes on from
    Column("continued_from", String(36)),  # the id of the failed execution that it goes on from
    Column("earlier_usage", JSON(none_as_null=True)),  # of all executions that it continues
    Column("meta", JSON(none_as_null=True)),
    Column("dag_id", String(250)),  # of `meta.airflow`, for a list of one DAG
    Column("trace", JSON(none_as_null=True)),  # `traceparent` and `tracestate` of the kickoff, and of the last answer
    Column("webhooks", JSON(none_as_null=True)),  # with credentials; erased at the end
    Column("completed_tasks", Integer, nullable=False, default=0),
    Column("current_task", JSON(none_as_null=True)),
    Column("current_agent", JSON(none_as_null=True)),
    Column("last_task", JSON(none_as_null=True)),
    Column("last_step", JSON(none_as_null=True)),
    # task_id, key, output, agent, state, rounds, is_approve; of a Flow also question, outcomes, outcome; of a question
    # in the middle of a task also question, outcomes, ask, arguments, entry, failure, before
    Column("gate", JSON(none_as_null=True)),
    Column("asked", JSON, nullable=False),  # every task_id that a person was ever asked with
    Column("tasks", JSON(none_as_null=True)),  # of a completed one, so that a poll is one read
    Column("output", JSON(none_as_null=True)),
    Column("output_json", JSON(none_as_null=True)),
    Column("usage", JSON(none_as_null=True)),  # the totals
    Column("model_usage", JSON(none_as_null=True)),  # tokens by model, as far as models are known
    Column("open_tasks", JSON(none_as_null=True)),  # started_at and tokens by model of tasks that are not finished
    Column("error", JSON(none_as_null=True)),
    Column("failure", JSON(none_as_null=True)),  # what another execution goes on from; null where none can
    Index("executions_by_turn", "state", "crew", "due_at"),
    Index("executions_by_age", "created_at"),
    Index("executions_by_crew", "crew", "created_at"),
    Index("executions_by_dag", "crew", "dag_id", "created_at"),
    Index("executions_by_state", "crew", "state", "created_at"),
    Index("executions_by_owner", "crew", "owner", "created_at"),
    Index("executions_by_owner_and_state", "crew", "owner", "state", "created_at"),
    Index("executions_by_end", "ended_at"),
    Index("executions_by_retention", "aged_from"),
    Index(
        "executions_without_age",
        "ended_at",
        sqlite_where=text("aged_from IS NULL AND ended_at IS NOT NULL"),
        postgresql_where=text("aged_from IS NULL AND ended_at IS NOT NULL"),
    ),
    Index(
        "executions_by_continued",
        "continued_from",
        unique=True,
        sqlite_where=text("continued_from IS NOT NULL"),
        postgresql_where=text("continued_from IS NOT NULL"),
    ),
    Index(
        "executions_by_process",
        "claimed_by",
        sqlite_where=text("claimed_by IS NOT NULL"),
        postgresql_where=text("claimed_by IS NOT NULL"),
    ),
)

results = Table(
    "results",
    metadata,
    Column("execution_id", String(36), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("task", JSON, nullable=False),
    Column("figures", JSON(none_as_null=True)),  # started_at, seconds, and usage by model
    Column("digest", String(64)),  # of the task as the crew declared it then
)

journal = Table(
    "journal",  # of calls in tasks that are not finished, by which these go on after a crash; kept by triggers
    metadata,
    Column("execution_id", String(36), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("task_id", JSON, nullable=False),  # empty: of a call outside any task, as the crew's planner makes
    Column("part", String(64), nullable=False),  # of the task: the round of its review, or a nested task
    Column("kind", String(8), nullable=False),  # model or tool
    Column("key", String(64), nullable=False),  # by what was asked, and how often before
    Column("within", String(64)),  # the key of the tool that has made this call
    Column("name", JSON, nullable=False),  # of the model or the tool
    Column("began_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("answer", LargeBinary),  # JSON
    Column("once", Boolean),  # whether it is of a tool that may run only once
    Column("decision", JSON(none_as_null=True)),  # of a person: outcome, until it is carried out, text and arguments
)

steps = Table(
    "steps",  # what people see of calls of models and tools, kept as long as the execution
    metadata,
    Column("execution_id", String(36), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("segment", Integer, nullable=False),  # in which it began: another one does not run it
    Column("task_id", JSON, nullable=False),  # empty outside any task
    Column("kind", String(8), nullable=False),  # model or tool
    Column("name", JSON, nullable=False),
    Column("agent", JSON, nullable=False),  # its role
    Column("state", String(8), nullable=False),  # running, done, failed or unknown
    Column("began_at", Float, nullable=False),
    Column("seconds", Float),
    Column("usage", JSON(none_as_null=True)),  # of a model
    Column("arguments", JSON(none_as_null=True)),  # the beginning of a JSON text, without secrets
    Column("result", JSON(none_as_null=True)),  # the same
    Column("from_journal", Boolean, nullable=False),
    Column("is_cut", Boolean, nullable=False),
)

rounds = Table(
    "rounds",  # what people were asked and what they decided, kept as long as the execution
    metadata,
    Column("execution_id", String(36), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("task_id", JSON, nullable=False),
    Column("asked_at", Float, nullable=False),
    Column("question", JSON(none_as_null=True)),
    Column("outcomes", JSON(none_as_null=True)),
    Column("draft", JSON, nullable=False),  # its beginning, where it is long
    Column("draft_is_cut", Boolean, nullable=False),
    Column("output_sha256", String(64)),  # of the whole draft
    Column("decided_at", Float),
    Column("is_approve", Boolean),
    Column("outcome", JSON(none_as_null=True)),
    Column("human_feedback", JSON(none_as_null=True)),
    Column("edited", Boolean),
    Column("ask", JSON(none_as_null=True)),  # of a question in the middle of a task; without long arguments
    Column("by", String),
)

printed = Table(
    "printed",  # the newest MiB of what the crew printed; deleted with the execution by a trigger
    metadata,
    Column("execution_id", String(36), primary_key=True),
    Column("upto", BigInteger, primary_key=True, autoincrement=False),  # bytes printed so far, with this piece
    Column("text", Text, nullable=False),  # without zero characters, which PostgreSQL refuses
)

earlier_kickoff_ids = Table(
    "earlier_kickoff_ids",  # under which an execution was polled; kept by a trigger
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("kickoff_id", String(36), nullable=False, unique=True),
    Column("execution_id", String(36), nullable=False, index=True),
)

webhook_queues = Table(
    "webhook_queues",  # one for each execution and address, whose webhooks are delivered one after another
    metadata,
    Column("id", String(64), primary_key=True),
    Column("execution_id", String(36), nullable=False, index=True),
    Column("receiver", String, nullable=False),  # scheme and host of the address
    Column("url", JSON, nullable=False),  # with credentials, as authentication is; gone with the last delivery
    Column("authentication", JSON(none_as_null=True)),
    Column("due_at", Float, nullable=False),  # 0: at once
    Column("claimed_by", String(36)),  # the process that delivers it
    Index("webhook_queues_by_turn", "receiver", "due_at"),
)

outbox = Table(
    "outbox",  # webhooks that are to be delivered, the oldest of a queue first
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("key", String(36), nullable=False),  # sent along, the same at every try
    Column("queue_id", String(64), nullable=False),
    Column("execution_id", String(36), nullable=False, index=True),
    Column("kind", String(16), nullable=False),
    Column("body", Text, nullable=False),  # JSON as it is sent
    Column("size", Integer, nullable=False),  # characters of the body, known before it is read
    Column("attempts", Integer, nullable=False, default=0),
    Column("created_at", Float, nullable=False),
    Index("outbox_by_queue", "queue_id", "id"),
)

dead_letters = Table(
    "dead_letters",  # webhooks that no receiver took, kept as long as their execution
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("key", String(36), nullable=False, unique=True),
    Column("execution_id", String(36), nullable=False, index=True),
    Column("kind", String(16), nullable=False),
    Column("url", JSON, nullable=False),  # without credentials
    Column("hook", JSON(none_as_null=True)),  # with them, for another try; gone with the letter
    Column("body", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("problem", String, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("given_up_at", Float, nullable=False, index=True),
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

counts = Table(
    "counts",  # of executions by state and of dead letters, kept by triggers; several rows of one thing add up
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("crew", String(64), nullable=False),
    Column("what", String(16), nullable=False),  # a state, or `given up`
    Column("number", Integer, nullable=False),
)

processes = Table(
    "processes",  # that run executions on this database; one that dies is deleted by another
    metadata,
    Column("id", String(36), primary_key=True),
    Column("beat", Integer, nullable=False),  # grows while the process lives
    Column("host", String, nullable=False),
    Column("release", String(32)),  # the last migration that it knows; null before it could say so
    Column("started_at", Float, nullable=False),
)

sessions = Table(
    "sessions",  # of browsers
    metadata,
    Column("key_hash", String(64), primary_key=True),  # of the cookie, which is worth a token
    Column("crew", String(64), nullable=False),
    Column("owner", String),  # name of the user token; null for the organization
    Column("form_key", String(64), nullable=False),
    Column("expires_at", Float, nullable=False, index=True),
)

questions = Table(
    "questions",  # that Flows have asked people, so that each is answered once and a second answer learns by whom
    metadata,
    Column("id", String(36), primary_key=True),
    Column("execution_id", String(36), nullable=False, index=True),
    Column("asked_at", Float, nullable=False),
    Column("announced_at", Float, index=True),  # by a flow webhook; null until one is sent
    Column("answered_at", Float),
    Column("answered_by", String),
)

releases = Table(
    "releases",  # that may work on this database: one row
    metadata,
    Column("newest", String(32), primary_key=True),  # its last migration
    Column("oldest", String(32), nullable=False),  # the last migration that the oldest of them knows
)
