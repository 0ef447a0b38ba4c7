"""Webhooks that are to be delivered, in a queue for each execution and address, and those that were given up.

Each function is part of the caller's transaction. A queue is claimed by one process, so its webhooks leave in their
order and once. The claim ends with the process, as that of an execution does.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from typing import Any
from uuid import uuid4

from sqlalchemy import Text, and_, cast, delete, exists, func, insert, or_, select, true, update
from sqlalchemy.engine import Connection, Row
from sqlalchemy.sql import ColumnElement

from crew_service.storage.tables import dead_letters, executions, outbox, processes, webhook_queues

FLOW = "flow"  # the kind that announces the question of a Flow; only a service that has its secret may send it
QUESTIONS = ("human_input", FLOW)
AT_ONCE = 0.0  # when a queue is due whose address has not failed
LONGEST_PAUSE = 3600.0  # seconds; a due_at later than twice that means the clock was set back


def post(
    connection: Connection, execution_id: str, kind: str, hook: dict[str, Any], body: Any, *, now: float, key: str = ""
) -> None:
    """Put a webhook at the end of its queue; under the key that it was sent with, where it is sent again."""
    text = json.dumps(body)
    connection.execute(
        insert(outbox).values(
            key=key or str(uuid4()),
            queue_id=_queue(connection, execution_id, hook),
            execution_id=execution_id,
            kind=kind,
            body=text,
            size=len(text),
            attempts=0,
            created_at=now,
        )
    )


def _queue(connection: Connection, execution_id: str, hook: dict[str, Any]) -> str:
    """Return the queue's id; the queue cannot be removed before this transaction ends."""
    address = json.dumps([execution_id, hook["url"], hook.get("authentication")], sort_keys=True)
    queue_id = hashlib.sha256(address.encode()).hexdigest()
    touched = update(webhook_queues).where(webhook_queues.c.id == queue_id).values(execution_id=execution_id)
    if connection.execute(touched).rowcount == 0:
        connection.execute(
            insert(webhook_queues).values(
                id=queue_id,
                execution_id=execution_id,
                receiver=receiver(hook["url"]),
                url=hook["url"],
                authentication=hook.get("authentication"),
                due_at=AT_ONCE,
            )
        )
    return queue_id


def due(
    connection: Connection,
    process_id: str,
    *,
    now: float,
    per_receiver: int,
    without: Collection[str],
    with_flows: bool = True,
) -> list[Row[Any]]:
    """Return queues that this process has or can have, of each receiver the longest due; of some receivers none."""
    place = func.row_number().over(
        partition_by=webhook_queues.c.receiver, order_by=(webhook_queues.c.due_at, webhook_queues.c.id)
    )
    query = select(webhook_queues.c.id, webhook_queues.c.receiver, webhook_queues.c.due_at, place.label("place"))
    others = webhook_queues.c.receiver.not_in(without)
    known = true() if with_flows else ~exists().where(outbox.c.queue_id == webhook_queues.c.id, outbox.c.kind == FLOW)
    turn = query.where(_is_due(now), _free(process_id), others, known, ~_earlier_elsewhere()).subquery()
    chosen = select(turn.c.id, turn.c.receiver).where(turn.c.place <= per_receiver).order_by(turn.c.due_at)
    return list(connection.execute(chosen))


def _earlier_elsewhere() -> ColumnElement[bool]:
    """Whether another queue of the execution has an earlier webhook for this address: credentials make no order."""
    other, theirs = webhook_queues.alias(), outbox.alias()
    own = select(func.min(outbox.c.id)).where(outbox.c.queue_id == webhook_queues.c.id)
    same = and_(other.c.execution_id == webhook_queues.c.execution_id, other.c.id != webhook_queues.c.id)
    to = cast(other.c.url, Text) == cast(webhook_queues.c.url, Text)
    earlier = and_(theirs.c.queue_id == other.c.id, theirs.c.id < own.correlate(webhook_queues).scalar_subquery())
    return exists(select(other.c.id).where(same, to, earlier).correlate(webhook_queues))


def claim(connection: Connection, process_id: str, queue_ids: list[str]) -> list[Row[Any]]:
    """Take these queues, as far as no other process was quicker; each with its crew."""
    wanted = webhook_queues.c.id.in_(queue_ids)
    connection.execute(update(webhook_queues).where(wanted, _free(process_id)).values(claimed_by=process_id))
    of_crew = webhook_queues.outerjoin(executions, executions.c.id == webhook_queues.c.execution_id)
    of_queue = [webhook_queues.c[name] for name in ("id", "execution_id", "receiver", "claimed_by")]
    query = select(*of_queue, executions.c.crew).select_from(of_crew)
    return list(connection.execute(query.where(wanted, webhook_queues.c.claimed_by == process_id)))


def _is_due(now: float) -> ColumnElement[bool]:
    return or_(webhook_queues.c.due_at <= now, webhook_queues.c.due_at > now + 2 * LONGEST_PAUSE)


def _free(process_id: str) -> ColumnElement[bool]:
    """Claimed by nobody else that lives."""
    claimed_by = webhook_queues.c.claimed_by
    return or_(claimed_by.is_(None), claimed_by == process_id, claimed_by.not_in(select(processes.c.id)))


HEAD = [outbox.c[name] for name in ("id", "key", "queue_id", "execution_id", "kind", "size", "attempts", "created_at")]


def first(connection: Connection, queue_id: str) -> Row[Any] | None:
    """Return the webhook whose turn it is, without its body, which may be large."""
    query = select(*HEAD).where(outbox.c.queue_id == queue_id).order_by(outbox.c.id).limit(1)
    return connection.execute(query).one_or_none()


def address_of(connection: Connection, queue_id: str) -> tuple[str, Any]:
    """Return the address of a queue and its authentication.

    :raises ValueError: it cannot be read
    """
    query = select(webhook_queues.c.url, webhook_queues.c.authentication).where(webhook_queues.c.id == queue_id)
    url, authentication = connection.execute(query).one()
    if not isinstance(url, str) or not isinstance(authentication, (dict, type(None))):
        raise ValueError("the stored address cannot be read")
    return url, authentication


def body_of(connection: Connection, webhook_id: int) -> str | None:
    return connection.execute(select(outbox.c.body).where(outbox.c.id == webhook_id)).scalar_one_or_none()


def must_wait(connection: Connection, queue_id: str) -> bool:
    """Whether what is first here has to let an earlier webhook for the same address go first."""
    query = select(webhook_queues.c.id).where(webhook_queues.c.id == queue_id, _earlier_elsewhere())
    return connection.execute(query).first() is not None


def hold(connection: Connection, queue_id: str, process_id: str) -> bool:
    """Lock a claimed queue for this transaction; False when it is claimed no more."""
    mine = and_(webhook_queues.c.id == queue_id, webhook_queues.c.claimed_by == process_id)
    return connection.execute(select(webhook_queues.c.id).where(mine).with_for_update()).one_or_none() is not None


def remove(connection: Connection, webhook_id: int) -> None:
    connection.execute(delete(outbox).where(outbox.c.id == webhook_id))


def count_attempt(connection: Connection, webhook_id: int) -> None:
    connection.execute(update(outbox).where(outbox.c.id == webhook_id).values(attempts=outbox.c.attempts + 1))


def put_off(connection: Connection, queue_id: str, *, due_at: float) -> None:
    """Count a try of whatever is first in the queue, and let the others go first, without reading anything of it."""
    oldest = select(func.min(outbox.c.id)).where(outbox.c.queue_id == queue_id).scalar_subquery()
    connection.execute(update(outbox).where(outbox.c.id == oldest).values(attempts=outbox.c.attempts + 1))
    values = {"claimed_by": None, "due_at": due_at}
    connection.execute(update(webhook_queues).where(webhook_queues.c.id == queue_id).values(values))


def give_up(connection: Connection, webhook: Row[Any], queue: Row[Any], problem: str, *, now: float) -> None:
    """Keep the webhook as a dead letter, with its token, which nobody is shown; a password in its address goes."""
    kept = select(outbox.c.body).where(outbox.c.id == webhook.id).scalar_subquery()
    try:
        url, authentication = address_of(connection, queue.id)
    except ValueError:
        url, authentication = queue.receiver, None
    url = without_credentials(url)
    connection.execute(
        insert(dead_letters).values(
            key=webhook.key,
            execution_id=webhook.execution_id,
            kind=webhook.kind,
            url=url,
            hook={"url": url, "authentication": authentication},
            body=kept,
            attempts=webhook.attempts + 1,
            problem=problem,
            created_at=webhook.created_at,
            given_up_at=now,
        )
    )
    remove(connection, webhook.id)


def release(connection: Connection, queue_id: str, *, due_at: float) -> None:
    """Give a queue back, or remove it with its credentials when it is empty."""
    if first(connection, queue_id) is None:
        connection.execute(delete(webhook_queues).where(webhook_queues.c.id == queue_id))
    else:
        values = {"claimed_by": None, "due_at": due_at}
        connection.execute(update(webhook_queues).where(webhook_queues.c.id == queue_id).values(values))


def withdraw_question(connection: Connection, execution_id: str) -> None:
    """Withdraw the webhook of a question that is answered or moot."""
    for table in (outbox, dead_letters):
        connection.execute(delete(table).where(table.c.execution_id == execution_id, table.c.kind.in_(QUESTIONS)))
    empty = ~exists().where(outbox.c.queue_id == webhook_queues.c.id)
    connection.execute(delete(webhook_queues).where(webhook_queues.c.execution_id == execution_id, empty))


def letters(
    connection: Connection,
    *,
    owner: str | None,
    limit: int,
    crew: str | None = None,
    execution_id: str | None = None,
    key: str | None = None,
    among: int | None = None,
) -> list[Row[Any]]:
    """Return the newest dead letters of whatever is given, without their bodies.

    :param among: how many of the newest of all are looked at
    """
    source: Any = dead_letters
    if among is not None:
        recent = select(dead_letters).order_by(dead_letters.c.given_up_at.desc(), dead_letters.c.id.desc())
        source = recent.limit(among).subquery()
    query = select(*(column for column in source.c if column.name not in ("body", "hook")))
    for column, value in ((source.c.key, key), (source.c.execution_id, execution_id)):
        if value is not None:
            query = query.where(column == value)
    for column, value in ((executions.c.owner, owner), (executions.c.crew, crew)):
        if value is not None:
            # Not as a join: SQLite would go through the executions of the crew.
            query = query.where(
                select(column).where(executions.c.id == source.c.execution_id).scalar_subquery() == value
            )
    newest = query.order_by(source.c.given_up_at.desc(), source.c.id.desc())
    return list(connection.execute(newest.limit(limit)))


def resend(connection: Connection, key: str, *, now: float) -> bool:
    """Put a dead letter back into a queue; False when there is none of that key."""
    letter = connection.execute(select(dead_letters).where(dead_letters.c.key == key)).one_or_none()
    if letter is None or connection.execute(delete(dead_letters).where(dead_letters.c.key == key)).rowcount == 0:
        return False
    hook = _hook_of(connection, letter)
    post(connection, letter.execution_id, letter.kind, hook, json.loads(letter.body), now=now, key=letter.key)
    return True


def _hook_of(connection: Connection, letter: Row[Any]) -> dict[str, Any]:
    """Return where it went, with the password in its address as long as the execution still has that."""
    query = select(executions.c.webhooks).where(executions.c.id == letter.execution_id)
    hook: dict[str, Any] = (connection.execute(query).scalar_one_or_none() or {}).get(letter.kind) or {}
    return hook if without_credentials(hook.get("url", "")) == letter.url else letter.hook or {"url": letter.url}


def receiver(url: str) -> str:
    """Scheme and host: the rest of an address may hold a secret, and is never logged."""
    scheme, _, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    return f"{scheme}://{authority.rpartition('@')[2]}".lower()


def without_credentials(url: str) -> str:
    """Without a parser, which could refuse what an earlier release has stored."""
    scheme, mark, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    return f"{scheme}{mark}{authority.rpartition('@')[2]}{rest[len(authority) :]}"
