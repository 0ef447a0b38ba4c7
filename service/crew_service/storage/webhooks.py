"""Undelivered webhooks, in one queue per execution and address, and undeliverable ones.

Each function runs in the caller's transaction. Only one process at a time can claim a queue, so that its webhooks are
sent once and in order. The claim ends with the process, like a claim on an execution.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from functools import cache, lru_cache
from typing import Any
from uuid import uuid4

from sqlalchemy import (
    Text,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.engine import Connection, Row
from sqlalchemy.sql import ColumnElement, Select

from crew_service.budgets import ORGANIZATION
from crew_service.storage import owners
from crew_service.storage.tables import dead_letters, executions, outbox, processes, webhook_queues

FLOW = "flow"  # announces a Flow's question; only a service with the Flow's secret may send it
QUESTIONS = ("human_input", FLOW)
AT_ONCE = 0.0  # the due time of a queue whose address has not failed
LONGEST_PAUSE = 3600.0  # seconds; a due_at more than twice as far ahead means the clock was set back


def post(
    connection: Connection, execution_id: str, kind: str, hook: dict[str, Any], body: Any, *, now: float, key: str = ""
) -> None:
    """Append a webhook to its queue, with the given key or a new one."""
    _put(connection, execution_id, kind, hook, json.dumps(body), now=now, key=key or str(uuid4()))


def _put(
    connection: Connection, execution_id: str, kind: str, hook: dict[str, Any], text: str, *, now: float, key: str
) -> None:
    values = {
        "key": key,
        "queue_id": _queue(connection, execution_id, hook),
        "execution_id": execution_id,
        "kind": kind,
        "body": text,
        "size": len(text),
        "attempts": 0,
        "created_at": now,
    }
    connection.execute(insert(outbox), values)  # passed separately: SQLAlchemy caches a statement with its values


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
    quick: Collection[tuple[str, str]],
    full: Collection[str],
    full_of_slow: Collection[str],
    at_work: Collection[str],
    per_owner: int,
    with_flows: bool = True,
) -> list[Row[Any]]:
    """Return queues that this process has claimed or may claim: per owner, a few to quick and a few to slow receivers.

    The order is fair: each of an owner's quick and slow receivers gets a first place before any gets a second, and so
    does each owner.

    :param quick: pairs of an owner and a receiver that has answered; all others are slow
    :param full: owners without a free place
    :param full_of_slow: owners without a place for a slow receiver
    """
    parameters = {
        "now": now,
        "process": process_id,
        "quick": list(quick),
        "full": list(full),
        "slow": list(full_of_slow),
    }
    parameters |= {"at_work": list(at_work), "per_owner": per_owner}
    return list(connection.execute(_due(with_flows), parameters))


@lru_cache
def _due(with_flows: bool) -> Select[Any]:
    """Build the statement once: building it costs several times as much as running it."""

    def any_of(name: str) -> Any:
        return bindparam(name, expanding=True)

    owner, named = _owner(), webhook_queues.c.receiver
    columns = [webhook_queues.c.id, named, webhook_queues.c.due_at, owner.label("owner")]
    known = true() if with_flows else ~exists().where(outbox.c.queue_id == webhook_queues.c.id, outbox.c.kind == FLOW)
    others = and_(webhook_queues.c.id.not_in(any_of("at_work")), owner.not_in(any_of("full")))
    is_free = _free(bindparam("process"))
    query = select(*columns, tuple_(owner, named).in_(any_of("quick")).label("is_quick")).select_from(_with_execution())
    each = query.where(_is_due(bindparam("now")), is_free, others, known, ~_earlier_elsewhere()).subquery()
    turn = func.row_number().over(partition_by=(each.c.owner, each.c.receiver), order_by=(each.c.due_at, each.c.id))
    wanted = or_(each.c.is_quick, each.c.owner.not_in(any_of("slow")))
    ranked = select(each, turn.label("turn")).where(wanted).subquery()
    fairly = (ranked.c.turn, ranked.c.due_at, ranked.c.id)
    place = func.row_number().over(partition_by=(ranked.c.owner, ranked.c.is_quick), order_by=fairly)
    few = ranked.c.turn <= bindparam("per_owner")
    placed = select(ranked, place.label("place")).where(few).subquery()
    chosen = select(placed.c.id, placed.c.owner, placed.c.receiver, placed.c.place)
    return chosen.where(placed.c.place <= bindparam("per_owner")).order_by(placed.c.place, placed.c.due_at)


def _with_execution() -> Any:
    return webhook_queues.outerjoin(executions, executions.c.id == webhook_queues.c.execution_id)


def _owner() -> ColumnElement[str]:
    """Return the token's holder; queues whose execution is gone share one owner."""
    return case((executions.c.id.is_(None), ""), else_=func.coalesce(owners.label(executions), ORGANIZATION))


def _earlier_elsewhere() -> ColumnElement[bool]:
    """Return a condition: another queue of the execution has an earlier webhook to this address, with any token."""
    other, theirs = webhook_queues.alias(), outbox.alias()
    own = select(func.min(outbox.c.id)).where(outbox.c.queue_id == webhook_queues.c.id)
    same = and_(other.c.execution_id == webhook_queues.c.execution_id, other.c.id != webhook_queues.c.id)
    to = cast(other.c.url, Text) == cast(webhook_queues.c.url, Text)
    earlier = and_(theirs.c.queue_id == other.c.id, theirs.c.id < own.correlate(webhook_queues).scalar_subquery())
    return exists(select(other.c.id).where(same, to, earlier).correlate(webhook_queues))


def claim(connection: Connection, process_id: str, queue_ids: list[str]) -> list[Row[Any]]:
    """Claim the queues that no other process has claimed in the meantime; return each with its crew and owner."""
    wanted = webhook_queues.c.id.in_(queue_ids)
    connection.execute(update(webhook_queues).where(wanted, _free(process_id)).values(claimed_by=process_id))
    return list(connection.execute(_claimed(), {"ids": queue_ids, "process": process_id}))


@lru_cache
def _claimed() -> Select[Any]:
    of_queue = [webhook_queues.c[name] for name in ("id", "execution_id", "receiver", "claimed_by")]
    query = select(*of_queue, executions.c.crew, _owner().label("owner")).select_from(_with_execution())
    mine = webhook_queues.c.claimed_by == bindparam("process")
    return query.where(webhook_queues.c.id.in_(bindparam("ids", expanding=True)), mine)


def _is_due(now: Any) -> ColumnElement[bool]:
    return or_(webhook_queues.c.due_at <= now, webhook_queues.c.due_at > now + 2 * LONGEST_PAUSE)


def _free(process_id: Any) -> ColumnElement[bool]:
    """Return a condition: no other running process has claimed the queue."""
    claimed_by = webhook_queues.c.claimed_by
    return or_(claimed_by.is_(None), claimed_by == process_id, claimed_by.not_in(select(processes.c.id)))


HEAD = [outbox.c[name] for name in ("id", "key", "queue_id", "execution_id", "kind", "size", "attempts", "created_at")]


def first(connection: Connection, queue_id: str) -> Row[Any] | None:
    """Return the next webhook without its body, which may be large."""
    query = select(*HEAD).where(outbox.c.queue_id == queue_id).order_by(outbox.c.id).limit(1)
    return connection.execute(query).one_or_none()


def _is(webhook: Row[Any]) -> ColumnElement[bool]:
    """Return a condition: the row still has this webhook. SQLite gives the id of a withdrawn one to the next."""
    return and_(outbox.c.id == webhook.id, outbox.c.key == webhook.key)


def address_of(connection: Connection, queue_id: str) -> tuple[str, Any] | None:
    """Return a queue's address and authentication; None if its last webhook was withdrawn.

    :raises ValueError: if they cannot be read
    """
    query = select(webhook_queues.c.url, webhook_queues.c.authentication).where(webhook_queues.c.id == queue_id)
    if (row := connection.execute(query).one_or_none()) is None:
        return None
    url, authentication = row
    if not isinstance(url, str) or not isinstance(authentication, (dict, type(None))):
        raise ValueError("the stored address cannot be read")
    return url, authentication


def body_of(connection: Connection, webhook: Row[Any], begin: int, most: int) -> str | None:
    """Return at most `most` characters of a body after the first `begin`, or None if the webhook was withdrawn."""
    piece = func.substr(outbox.c.body, begin + 1, most)
    return connection.execute(select(piece).where(_is(webhook))).scalar_one_or_none()


def must_wait(connection: Connection, queue_id: str) -> bool:
    """Return whether the queue's next webhook must wait for an earlier one to the same address."""
    query = select(webhook_queues.c.id).where(webhook_queues.c.id == queue_id, _earlier_elsewhere())
    return connection.execute(query).first() is not None


def hold(connection: Connection, queue_id: str, process_id: str) -> bool:
    """Lock a claimed queue for this transaction; return False if it is no longer claimed."""
    mine = and_(webhook_queues.c.id == queue_id, webhook_queues.c.claimed_by == process_id)
    return connection.execute(select(webhook_queues.c.id).where(mine).with_for_update()).one_or_none() is not None


def remove(connection: Connection, webhook: Row[Any]) -> None:
    connection.execute(delete(outbox).where(_is(webhook)))


def count_attempt(connection: Connection, webhook: Row[Any]) -> None:
    connection.execute(update(outbox).where(_is(webhook)).values(attempts=outbox.c.attempts + 1))


def put_off(connection: Connection, queue_id: str, *, due_at: float) -> None:
    """Count an attempt for the queue's next webhook and let other queues go first, without reading the webhook."""
    oldest = select(func.min(outbox.c.id)).where(outbox.c.queue_id == queue_id).scalar_subquery()
    connection.execute(update(outbox).where(outbox.c.id == oldest).values(attempts=outbox.c.attempts + 1))
    values = {"claimed_by": None, "due_at": due_at}
    connection.execute(update(webhook_queues).where(webhook_queues.c.id == queue_id).values(values))


def give_up(connection: Connection, webhook: Row[Any], queue: Row[Any], problem: str, *, now: float) -> None:
    """Keep the webhook as a dead letter, unless it was withdrawn; remove a password from its address.

    The letter has the webhook's token, which is never shown.
    """
    if connection.execute(select(outbox.c.id).where(_is(webhook))).first() is None:
        return
    body = select(outbox.c.body).where(_is(webhook)).scalar_subquery()
    try:
        url, authentication = address_of(connection, queue.id) or (queue.receiver, None)
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
            body=body,
            attempts=webhook.attempts + 1,
            problem=problem,
            created_at=webhook.created_at,
            given_up_at=now,
        )
    )
    remove(connection, webhook)


def release(connection: Connection, queue_id: str, *, due_at: float) -> None:
    """Release a queue that is held (`hold`), or remove it with its credentials if it is empty."""
    if first(connection, queue_id) is None:
        connection.execute(delete(webhook_queues).where(webhook_queues.c.id == queue_id))
    else:
        values = {"claimed_by": None, "due_at": due_at}
        connection.execute(update(webhook_queues).where(webhook_queues.c.id == queue_id).values(values))


def withdraw_question(connection: Connection, execution_id: str) -> None:
    """Withdraw the webhook for a question that is answered or obsolete."""
    # Lock the queues first, as a delivery does when it ends: otherwise, each could wait for the other.
    queues = select(webhook_queues.c.id).where(webhook_queues.c.execution_id == execution_id)
    connection.execute(queues.order_by(webhook_queues.c.id).with_for_update())
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
    """Return the newest dead letters that match the given arguments, without their bodies.

    :param among: how many of the newest dead letters to search
    """
    filters = {"key": key, "execution_id": execution_id, "owner": owner, "crew": crew, "among": among}
    parameters = {name: value for name, value in filters.items() if value is not None}
    return list(connection.execute(_letters(*parameters), {**parameters, "most": limit}))


@cache
def _letters(*names: str) -> Select[Any]:
    source: Any = dead_letters
    if "among" in names:
        recent = select(dead_letters).order_by(dead_letters.c.given_up_at.desc(), dead_letters.c.id.desc())
        source = recent.limit(bindparam("among")).subquery()
    query = select(*(column for column in source.c if column.name not in ("body", "hook")))
    for name in names:
        if name in ("key", "execution_id"):
            query = query.where(source.c[name] == bindparam(name))
        elif name in ("owner", "crew"):
            # Not a join: SQLite would scan the crew's executions.
            of_it = select(executions.c[name]).where(executions.c.id == source.c.execution_id)
            query = query.where(of_it.scalar_subquery() == bindparam(name))
    return query.order_by(source.c.given_up_at.desc(), source.c.id.desc()).limit(bindparam("most"))


def resend(connection: Connection, key: str, *, now: float) -> bool:
    """Put a dead letter back in a queue; return False if no letter has that key."""
    letter = connection.execute(select(dead_letters).where(dead_letters.c.key == key)).one_or_none()
    if letter is None:
        return False
    # Lock the execution, as every transaction that posts for it does: otherwise, two could add the same queue.
    connection.execute(select(executions.c.id).where(executions.c.id == letter.execution_id).with_for_update())
    if connection.execute(delete(dead_letters).where(dead_letters.c.key == key)).rowcount == 0:
        return False
    hook = _hook_of(connection, letter)
    _put(connection, letter.execution_id, letter.kind, hook, letter.body, now=now, key=letter.key)
    return True


def _hook_of(connection: Connection, letter: Row[Any]) -> dict[str, Any]:
    """Return the letter's destination, including the password in its address if the execution still has it."""
    query = select(executions.c.webhooks).where(executions.c.id == letter.execution_id)
    hook = _object(_object(connection.execute(query).scalar_one_or_none()).get(letter.kind))
    if without_credentials(str(hook.get("url", ""))) == letter.url:
        return hook
    return {"url": letter.url, **_object(letter.hook)}


def _object(value: Any) -> dict[str, Any]:
    """Return a stored object, or an empty one if unreadable."""
    return value if isinstance(value, dict) else {}


def receiver(url: str) -> str:
    """Return the scheme and host: the rest of an address may contain a secret, and is never logged."""
    scheme, _, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    return f"{scheme}://{authority.rpartition('@')[2]}".lower()


def without_credentials(url: str) -> str:
    """Remove credentials without a parser, which might reject an address that an earlier release stored."""
    scheme, mark, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    return f"{scheme}{mark}{authority.rpartition('@')[2]}{rest[len(authority) :]}"
