"""The stored data. Text from users and crews is stored as JSON, so that no character in it can make a write fail.

A change here requires a migration in `migrations/versions`; a test compares the two.
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
    Column("kickoff_id", String(36), nullable=False, unique=True),  # the polled id; a live resume changes it
    Column("crew", String(64), nullable=False, server_default=""),  # name of the served crew; empty at the root
    Column("owner", String),  # name of the user token; null for the organization
    Column("crew_token", Boolean),  # whether the token is one of the crew's own; null if an earlier release wrote it
    Column("state", String(16), nullable=False),
    Column("segment", Integer, nullable=False, default=0),  # counts the claims; only the latest segment may write
    Column("writes", Integer, nullable=False, server_default="0"),  # by this segment, so that none is applied twice
    Column("claimed_by", String(36)),  # the process running it; null if none
    # Writes by this segment and earlier ones that may become visible later, such as those for steps: their number,
    # their number before the last two-second period with such a write, and the time of the last one.
    Column("calm_writes", Integer, nullable=False, server_default="0"),
    Column("calm_shown", Integer, nullable=False, server_default="0"),
    Column("calm_at", Float),
    Column("steps", Integer, nullable=False, server_default="0"),  # the number of the newest one
    Column("kills", Integer, nullable=False, server_default="0"),  # of its crew's process since its last new step
    Column("losses", Integer, nullable=False, server_default="0"),  # of services that ran it, since its last progress
    Column("lost_at", BigInteger),  # its progress at the last loss
    Column("created_at", Float, nullable=False),
    Column("due_at", Float, nullable=False),  # if queued: do not claim it earlier
    Column("had_begun", Boolean),  # before its newest claim; null if an earlier release claimed it
    Column("interrupted_at", Float),  # if queued: when it lost its place
    Column("updated_at", Float, nullable=False),
    Column("started_at", Float),  # time of the first claim after which it began
    Column("ended_at", Float),
    Column("aged_from", Float),  # its end by the database's clock, from which its retention counts
    Column("work_seconds", Float, nullable=False, default=0.0),
    Column("tokens", Integer, nullable=False, server_default="0"),  # used by language models so far
    Column("limits", JSON(none_as_null=True)),  # max_seconds and max_tokens, if set by the kickoff
    Column("counted_at", Float),  # the time up to which work_seconds includes the work
    Column("inputs", JSON, nullable=False),
    Column("files", JSON(none_as_null=True)),  # of the inputs: see `engine.files.InputFile`
    Column("restore_from", String(255)),  # the id of a state from which a Flow continues
    Column("continued_from", String(36)),  # the id of the failed execution that it continues
    Column("earlier_usage", JSON(none_as_null=True)),  # of all executions that it continues
    Column("meta", JSON(none_as_null=True)),
    Column("dag_id", String(250)),  # from `meta.airflow`, to list one DAG's executions
    Column("trace", JSON(none_as_null=True)),  # `traceparent` and `tracestate` of the kickoff and of the latest answer
    Column("webhooks", JSON(none_as_null=True)),  # with credentials; erased at the end
    Column("completed_tasks", Integer, nullable=False, default=0),
    Column("current_task", JSON(none_as_null=True)),
    Column("current_agent", JSON(none_as_null=True)),
    Column("last_task", JSON(none_as_null=True)),
    Column("last_step", JSON(none_as_null=True)),
    Column("gate", JSON(none_as_null=True)),  # the question to a person: see `engine.questions`
    Column("answer_by", Float),  # if waiting: when the service answers the question itself; null: never
    Column("asked", JSON, nullable=False),  # every task_id that was ever part of a question
    Column("tasks", JSON(none_as_null=True)),  # of a completed execution, so that a poll reads one row
    Column("output", JSON(none_as_null=True)),
    Column("output_json", JSON(none_as_null=True)),
    Column("usage", JSON(none_as_null=True)),  # totals
    Column("model_usage", JSON(none_as_null=True)),  # tokens by model, if models are known
    Column("open_tasks", JSON(none_as_null=True)),  # started_at and tokens by model of unfinished tasks
    Column("booked", JSON(none_as_null=True)),  # the part of the usage, by model, that `usage_sums` contains
    Column("booked_tokens", Integer, nullable=False, server_default="0"),  # `tokens` at that time
    Column("held_until", Float),  # if queued: when the budget that holds it begins anew; see `engine.budgets`
    Column("error", JSON(none_as_null=True)),
    Column("failure", JSON(none_as_null=True)),  # data for an execution that continues it; null if none can
    Index("executions_by_turn", "state", "crew", "due_at"),
    Index(
        "executions_by_owners_turn",
        "crew",
        "owner",
        "due_at",
        sqlite_where=text("state = 'queued'"),
        postgresql_where=text("state = 'queued'"),
    ),
    Index(
        "executions_by_interruption",
        "crew",
        "due_at",
        sqlite_where=text("state = 'queued' AND interrupted_at IS NOT NULL"),
        postgresql_where=text("state = 'queued' AND interrupted_at IS NOT NULL"),
    ),
    Index(
        "executions_by_hold",
        "crew",
        "held_until",
        sqlite_where=text("held_until IS NOT NULL"),
        postgresql_where=text("held_until IS NOT NULL"),
    ),
    Index(
        "executions_by_deadline",
        "answer_by",
        sqlite_where=text("answer_by IS NOT NULL"),
        postgresql_where=text("answer_by IS NOT NULL"),
    ),
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
    Column("digest", String(64)),  # of the task as declared at that time
)

journal = Table(
    "journal",  # calls in unfinished tasks, from which the tasks continue after a crash; maintained by triggers
    metadata,
    Column("execution_id", String(36), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("task_id", JSON, nullable=False),  # empty for a call outside any task, such as a crew planner's
    Column("part", String(64), nullable=False),  # of the task: its review round, or a nested task
    Column("kind", String(8), nullable=False),  # model or tool
    Column("key", String(64), nullable=False),  # the request, and how often it was made before
    Column("within", String(64)),  # the key of the tool call that made this call
    Column("name", JSON, nullable=False),  # the model's or the tool's
    Column("began_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("answer", LargeBinary),  # JSON
    Column("once", Boolean),  # whether its tool may run only once
    Column("prepare", Boolean),  # whether it is made again, for its effect in the process, when its task begins again
    Column("decision", JSON(none_as_null=True)),  # a person's: outcome until it is carried out, text and arguments
    Column("digest", String(64)),  # of the task as declared at that time
)

flow_states = Table(
    "flow_states",  # the newest state of each unfinished Flow; maintained by triggers
    metadata,
    Column("execution_id", String(36), primary_key=True),
    Column("state", LargeBinary, nullable=False),  # read only by the crew's process
)

steps = Table(
    "steps",  # model and tool calls as people see them, kept as long as the execution
    metadata,
    Column("execution_id", String(36), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("segment", Integer, nullable=False),  # the segment that started it; it cannot be running in another one
    Column("task_id", JSON, nullable=False),  # empty outside any task
    Column("kind", String(8), nullable=False),  # model or tool
    Column("name", JSON, nullable=False),
    Column("agent", JSON, nullable=False),  # the agent's role
    Column("state", String(8), nullable=False),  # running, done, failed or unknown
    Column("began_at", Float, nullable=False),
    Column("seconds", Float),
    Column("usage", JSON(none_as_null=True)),  # for a model
    Column("arguments", JSON(none_as_null=True)),  # the beginning of a JSON text, without secrets
    Column("result", JSON(none_as_null=True)),  # likewise
    Column("from_journal", Boolean, nullable=False),
    Column("is_cut", Boolean, nullable=False),
)

files = Table(
    "files",  # from callers and from crews; triggers delete them with their execution, and their pieces with them
    metadata,
    Column("id", String(43), primary_key=True),  # cannot be guessed
    Column("owner", String, nullable=False),
    Column("execution_id", String(36)),  # null until an execution uses it
    Column("size", BigInteger, nullable=False),  # reserved, until it is complete
    Column("sha256", String(64)),  # null until it is complete
    Column("content_type", String(64)),
    Column("changed_at", Float, nullable=False),
    Column("name", String),  # of a file that the crew has written; null for a caller's
    Column("version", Integer),
    Column("task_id", JSON),
    Column("round", Integer),  # in which a person was shown it; null if nobody was
    Column("is_draft", Boolean),
    Index("files_by_execution", "execution_id", "size"),
    Index(
        "files_by_owner",
        "owner",
        sqlite_where=text("execution_id IS NULL"),
        postgresql_where=text("execution_id IS NULL"),
    ),
)

file_pieces = Table(
    "file_pieces",  # of at most one MiB
    metadata,
    Column("file_id", String(43), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
)

rounds = Table(
    "rounds",  # questions to people and their decisions, kept as long as the execution
    metadata,
    Column("execution_id", String(36), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("task_id", JSON, nullable=False),
    Column("asked_at", Float, nullable=False),
    Column("question", JSON(none_as_null=True)),
    Column("outcomes", JSON(none_as_null=True)),
    Column("draft", JSON, nullable=False),  # truncated if long
    Column("draft_is_cut", Boolean, nullable=False),
    Column("output_sha256", String(64)),  # of the complete draft
    Column("decided_at", Float),
    Column("is_approve", Boolean),
    Column("outcome", JSON(none_as_null=True)),
    Column("human_feedback", JSON(none_as_null=True)),
    Column("edited", Boolean),
    Column("ask", JSON(none_as_null=True)),  # for a question in the middle of a task; without long arguments
    Column("by", String),
)

printed = Table(
    "printed",  # the newest MiB of a crew's printed output; a trigger deletes it with the execution
    metadata,
    Column("execution_id", String(36), primary_key=True),
    Column("upto", BigInteger, primary_key=True, autoincrement=False),  # bytes printed up to its end, or more
    Column("text", Text, nullable=False),  # without NUL characters, since PostgreSQL rejects them
)

earlier_kickoff_ids = Table(
    "earlier_kickoff_ids",  # ids under which an execution was polled; maintained by a trigger
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("kickoff_id", String(36), nullable=False, unique=True),
    Column("execution_id", String(36), nullable=False, index=True),
)

webhook_queues = Table(
    "webhook_queues",  # one per execution and address; a queue's webhooks are delivered one after another
    metadata,
    Column("id", String(64), primary_key=True),
    Column("execution_id", String(36), nullable=False, index=True),
    Column("receiver", String, nullable=False),  # scheme and host of the address
    Column("url", JSON, nullable=False),  # with credentials, like authentication; deleted after the last delivery
    Column("authentication", JSON(none_as_null=True)),
    Column("due_at", Float, nullable=False),  # 0: at once
    Column("claimed_by", String(36)),  # the process delivering it
    Index("webhook_queues_by_turn", "receiver", "due_at"),
)

outbox = Table(
    "outbox",  # undelivered webhooks, the oldest in a queue first
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("key", String(36), nullable=False),  # sent with the webhook; the same for every attempt
    Column("queue_id", String(64), nullable=False),
    Column("execution_id", String(36), nullable=False, index=True),
    Column("kind", String(16), nullable=False),
    Column("body", Text, nullable=False),  # JSON as sent
    Column("size", Integer, nullable=False),  # characters of the body, known without reading it
    Column("attempts", Integer, nullable=False, default=0),
    Column("created_at", Float, nullable=False),
    Index("outbox_by_queue", "queue_id", "id"),
)

dead_letters = Table(
    "dead_letters",  # undeliverable webhooks, kept as long as their execution
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("key", String(36), nullable=False, unique=True),
    Column("execution_id", String(36), nullable=False, index=True),
    Column("kind", String(16), nullable=False),
    Column("url", JSON, nullable=False),  # without credentials
    Column("hook", JSON(none_as_null=True)),  # with credentials, for another attempt; deleted with the letter
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
    "counts",  # executions by state and dead letters, maintained by triggers; several rows of one counter add up
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("crew", String(64), nullable=False),
    Column("what", String(16), nullable=False),  # a state, or `given up`
    Column("number", Integer, nullable=False),
)

usage_sums = Table(
    "usage_sums",  # of tokens, by the hour in which the database first saw them; several rows of one key add up
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("hour", Integer, nullable=False),  # hours since 1970, UTC
    Column("crew", String(64), nullable=False),
    Column("owner", String),  # null for the organization
    Column("crew_token", Boolean),  # as of the execution
    Column("model", String, nullable=False),  # empty if unknown
    Column("executions", Integer, nullable=False),  # whose first tokens these are
    Column("of_model", Integer, nullable=False, server_default="0"),  # executions whose first of this model these are
    Column("total_tokens", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("unpriced", BigInteger, nullable=False),  # tokens whose price was unknown, and calls without token counts
    Column("cost_usd", Float, nullable=False),  # of the other tokens
    Index("usage_sums_by_hour", "hour", "crew", "owner"),
)

prices = Table(
    "prices",  # of models, from an installed CrewAI, so that all machines price alike; the newest release's count
    metadata,
    Column("source", String(64), primary_key=True),  # CrewAI's version
    Column("entries", JSON, nullable=False),
)

processes = Table(
    "processes",  # processes that run executions on this database; when one dies, another deletes its row
    metadata,
    Column("id", String(36), primary_key=True),
    Column("beat", Integer, nullable=False),  # increases while the process runs
    Column("host", String, nullable=False),
    Column("release", String(32)),  # the last migration of its release; null for releases that did not report it
    Column("started_at", Float, nullable=False),
)

sessions = Table(
    "sessions",  # browser sessions
    metadata,
    Column("key_hash", String(64), primary_key=True),  # of the cookie, which must be kept as secret as a token
    Column("crew", String(64), nullable=False),
    Column("owner", String),  # name of the user token; null for the organization
    Column("form_key", String(64), nullable=False),
    Column("expires_at", Float, nullable=False, index=True),
)

questions = Table(
    "questions",  # Flows' questions to people; each is answered once, and later replies get that answer
    metadata,
    Column("id", String(36), primary_key=True),
    Column("execution_id", String(36), nullable=False, index=True),
    Column("asked_at", Float, nullable=False),
    Column("announced_at", Float, index=True),  # by a flow webhook; null until one is sent
    Column("answered_at", Float),
    Column("answered_by", String),
)

releases = Table(
    "releases",  # releases that may use this database: one row
    metadata,
    Column("newest", String(32), primary_key=True),  # the newest one's last migration
    Column("oldest", String(32), nullable=False),  # the oldest one's last migration
)
