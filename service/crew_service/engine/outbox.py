"""Delivers webhooks independently of crews, in order for each execution, and keeps the undeliverable ones.

An event loop task works through one queue at a time. An owner, who holds a token and may name any number of receivers,
gets a few of these tasks. A receiver counts as slow until it has answered. A slow receiver gets one task; all of an
owner's slow receivers together get half of the owner's tasks, and all slow receivers together get half of all tasks.
This way, no owner waits for another owner's receivers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import aiohttp
from sqlalchemy.engine import Row

from crew_service.engine import machine, retrying, sending
from crew_service.engine.background import Background
from crew_service.engine.crew import Cancellation, Cancelled
from crew_service.engine.flow_webhook import FlowWebhook
from crew_service.engine.membership import Membership
from crew_service.engine.metrics import Metrics
from crew_service.engine.names import Names, OwnNames
from crew_service.engine.paths import ROOT
from crew_service.storage import webhooks
from crew_service.storage.availability import DatabaseUnavailable
from crew_service.storage.database import Database

log = logging.getLogger(__name__)

IDLE = 1.0  # seconds between polls when nothing was posted
PER_OWNER = 8  # tasks per owner
PER_RECEIVER = 6  # tasks for a receiver that answers; fewer than PER_OWNER, because it may stop answering
SLOW_PER_OWNER = 4  # tasks for all of an owner's receivers that have not answered, or did not last time
THREADS = 4  # for the database: each keeps memory for the largest bodies it has read
NEWEST = 1024  # receivers known to answer
NEWEST_PER_OWNER = 64
KEPT_SESSIONS = 16  # each with a connection, for receivers that answer
TURN = 50  # webhooks that a queue sends before other queues of its receiver get a turn
FIRST_PAUSE = 1.0  # seconds before the second try; doubles from then on, up to an hour
KEEP_TRYING = 86400.0  # seconds after which a webhook is abandoned, regardless of the number of attempts
UNFORESEEN = 60.0  # seconds before a queue is retried after an unexpected error
GRACE = 3.0  # seconds to record a delivery when the service stops, after those that the delivery may take
LARGE = 512 * 1024  # characters: the largest body held in memory as a whole; larger ones are read in pieces this long


Receiver = tuple[str, str]  # its owner, and the scheme and host of its address


class Newest:
    """The newest receivers of one kind; their number is limited because an owner can name any number."""

    def __init__(self) -> None:
        self._known: OrderedDict[Receiver, None] = OrderedDict()

    def __contains__(self, receiver: Receiver) -> bool:
        return receiver in self._known

    def all(self) -> list[Receiver]:
        return list(self._known)

    def note(self, receiver: Receiver, *, is_one: bool) -> None:
        if not is_one:
            self._known.pop(receiver, None)
            return
        self._known[receiver] = None
        self._known.move_to_end(receiver)
        own = [known for known in self._known if known[0] == receiver[0]]
        if len(own) > NEWEST_PER_OWNER:
            del self._known[own[0]]
        elif len(self._known) > NEWEST:
            self._known.popitem(last=False)


class Room:
    """The free slots for each owner and receiver."""

    def __init__(self, slots: int, quick: Newest, at_work: Iterable[Receiver]) -> None:
        self._slots = slots
        self._quick = quick
        self._owners: Counter[str] = Counter()
        self._slow: Counter[str] = Counter()  # by owner
        self._receivers: Counter[Receiver] = Counter()
        for receiver in at_work:
            self._add(receiver)

    def take(self, receiver: Receiver) -> bool:
        """Take a slot if there is one."""
        has_place = self._has_place(receiver)
        if has_place:
            self._add(receiver)
        return has_place

    def taken(self, owner: str) -> int:
        return self._owners[owner]

    def full(self) -> list[str]:
        """Return the owners with no slots left."""
        return [owner for owner, number in self._owners.items() if number >= PER_OWNER]

    def full_of_slow(self) -> list[str]:
        """Return the owners with no slots left for slow receivers."""
        return [owner for owner, number in self._slow.items() if number >= SLOW_PER_OWNER]

    def _has_place(self, receiver: Receiver) -> bool:
        owner = receiver[0]
        if self._owners[owner] >= PER_OWNER or self._owners.total() >= self._slots:
            return False
        if receiver in self._quick:
            return self._receivers[receiver] < PER_RECEIVER
        few = self._slow[owner] < SLOW_PER_OWNER and self._slow.total() < max(1, self._slots // 2)
        return few and not self._receivers[receiver]

    def _add(self, receiver: Receiver) -> None:
        self._owners[receiver[0]] += 1
        self._receivers[receiver] += 1
        self._slow[receiver[0]] += receiver not in self._quick


class Withdrawn(Exception):
    """The webhook must no longer be sent."""


class StoredBody:
    """A large body, read piece by piece on each iteration, so that only one piece is in memory at a time."""

    def __init__(self, read: Callable[[int], str | None]) -> None:
        """:param read: returns the characters from a given offset on; None if the webhook was withdrawn"""
        self._read = read
        self.failure: Exception | None = None  # from the last iteration; the HTTP client reports it as its own error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        begin, self.failure = 0, None
        try:
            while piece := await asyncio.to_thread(self._read, begin):
                begin += len(piece)
                yield piece.encode()
            if piece is None:
                raise Withdrawn
        except Exception as error:
            self.failure = error
            raise


class Outbox:
    def __init__(
        self,
        database: Database,
        membership: Membership,
        metrics: Metrics,
        *,
        timeout: float,
        attempts: int,
        secret: str | None = None,
        flow_webhook: FlowWebhook | None = None,
    ) -> None:
        self._database = database
        self._membership = membership
        self._metrics = metrics
        self._attempts = attempts
        self._secret = secret
        self._flow_webhook = flow_webhook
        self._working: dict[str, tuple[Receiver, asyncio.Task[None]]] = {}  # by queue: its receiver and its task
        self._quick = Newest()  # those that answered last time; all others are slow
        self._names = Names()
        self._leaving = timeout + GRACE
        self._slots = machine.connections_out()
        self._sessions = sending.Sessions(timeout, most=min(KEPT_SESSIONS, self._slots // 4))
        self._loop = sending.Loop()
        self._has_threads = False
        self._large_question = asyncio.Lock()
        self._posted = asyncio.Event()
        self._stopping = Cancellation()
        self._has_left = Cancellation()  # after the time for current deliveries
        self.loop = Background("outbox", self._round, pause=0.0)
        self.start = self.loop.start

    def posted(self) -> None:
        """Signal that something may be due; callable from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._posted.set)

    def stop(self) -> None:
        self._stopping.set("the service is stopping")
        self.posted()
        self.loop.stop()
        self._loop.run_until_complete(self._leave())
        self._loop.close()

    def _round(self) -> None:
        if not self._has_threads:
            self._loop.set_default_executor(_threads())
            self._has_threads = True
        self._loop.run_until_complete(self._begin_due())

    async def _begin_due(self) -> None:
        """Start the deliveries that are due, and wait for more."""
        self._posted.clear()
        for queue in await asyncio.to_thread(self._claim):
            task = self._loop.create_task(self._work(queue))
            self._working[queue.id] = ((queue.owner, queue.receiver), task)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._posted.wait(), IDLE)

    async def _leave(self) -> None:
        """Let current deliveries finish and be recorded; cancel the rest, which are due again at the next start."""
        tasks = {task for _, task in self._working.values()}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._leaving)
            self._has_left.set("the service has stopped")
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._sessions.close()

    def _claim(self) -> list[Row[Any]]:
        """Claim due queues for which there are slots. Nothing is sent before the claim is stored."""
        working = dict(self._working)
        room = Room(self._slots, self._quick, (receiver for receiver, _ in working.values()))
        try:
            with self._database.reading() as connection:
                queues = webhooks.due(
                    connection,
                    self._membership.id,
                    now=self._database.now(),
                    quick=self._quick.all(),
                    full=room.full(),
                    full_of_slow=room.full_of_slow(),
                    at_work=list(working),
                    per_owner=PER_OWNER,
                    with_flows=self._flow_webhook is not None,
                )
            fairly = sorted(queues, key=lambda queue: room.taken(queue.owner) + queue.place)
            chosen = [queue.id for queue in fairly if room.take((queue.owner, queue.receiver))]
            if not chosen:
                return []
            with self._database.writing() as connection:
                return webhooks.claim(connection, self._membership.id, chosen)
        except DatabaseUnavailable:  # logged once where it is noticed
            return []
        except Exception:
            log.exception("webhooks cannot be claimed; trying again")
            return []

    async def _work(self, queue: Row[Any]) -> None:
        """Deliver the queue's webhooks one after another, until one must be retried or other queues get a turn."""
        receiver = (queue.owner, queue.receiver)
        try:
            webhook = await asyncio.to_thread(self._first, queue)
            turn = 0
            names = OwnNames(self._names, queue.owner)
            async with self._sessions.turn(receiver, names, keep=lambda: receiver in self._quick) as client:
                while webhook is not None:
                    turn += 1
                    try:
                        problem, is_sent = await self._deliver(client, queue, webhook), True
                    except Withdrawn:
                        problem, is_sent = None, False
                    settle = partial(self._settle, last=turn == TURN, is_sent=is_sent)
                    webhook = await asyncio.to_thread(settle, queue, webhook, problem)
        except (DatabaseUnavailable, Cancelled):  # the queue is still claimed and will be retried
            pass
        except Exception as error:
            if machine.is_trouble(error):  # it will be retried, and this does not count as an attempt
                await asyncio.sleep(machine.PAUSE)
                return
            log.exception("the webhooks of a queue are delayed", extra={"execution_id": queue.execution_id})
            await self._put_off(queue)
        finally:
            del self._working[queue.id]
            self._posted.set()

    async def _put_off(self, queue: Row[Any]) -> None:
        """Postpone a queue. If that cannot be stored, pause instead of retrying the queue at once, again and again."""

        def write() -> None:
            with self._database.writing() as connection:
                webhooks.put_off(connection, queue.id, due_at=self._database.now() + UNFORESEEN)

        try:
            await asyncio.to_thread(write)
        except Exception:
            log.exception("a queue cannot be postponed", extra={"execution_id": queue.execution_id})
            await asyncio.sleep(UNFORESEEN)

    def _first(self, queue: Row[Any]) -> Row[Any] | None:
        with self._database.reading() as connection:
            webhook = None if webhooks.must_wait(connection, queue.id) else webhooks.first(connection, queue.id)
        if webhook is None:
            with self._database.writing() as connection:
                if webhooks.hold(connection, queue.id, queue.claimed_by):
                    webhooks.release(connection, queue.id, due_at=webhooks.AT_ONCE)
        return webhook

    async def _deliver(self, client: aiohttp.ClientSession, queue: Row[Any], webhook: Row[Any]) -> str | None:
        try:
            problem = await self._send(client, queue, webhook)
        except (DatabaseUnavailable, Cancelled, Withdrawn):
            raise
        except Exception as error:
            if machine.is_trouble(error):
                raise
            problem = type(error).__name__  # its text may contain the address, and with it a secret
            log.error("a webhook cannot be sent: %s", problem, extra={"execution_id": queue.execution_id})
        self._note((queue.owner, queue.receiver), answered=sending.answered(problem))
        self._metrics.tried(queue.crew or ROOT, webhook.kind, "failed" if problem else "delivered")
        return problem

    def _note(self, receiver: Receiver, *, answered: bool) -> None:
        if answered and receiver not in self._quick:
            self._posted.set()  # queues that waited for the answer now have more slots
        self._quick.note(receiver, is_one=answered)

    async def _send(self, client: aiohttp.ClientSession, queue: Row[Any], webhook: Row[Any]) -> str | None:
        is_large, is_question = webhook.size > LARGE, webhook.kind == webhooks.FLOW
        # A question's whole body must be in memory to insert the answer address, so large ones are sent one at a time.
        # They all go to the same receiver, so no other receiver waits for them.
        async with self._large_question if is_large and is_question else contextlib.nullcontext():
            self._stopping.raise_if_set()  # there may not be enough time for its answer
            url, authentication, now = await asyncio.to_thread(self._address, queue)
            body: bytes | StoredBody
            if is_large and not is_question:
                body = StoredBody(lambda begin: self._read(webhook, begin, LARGE))
            else:
                body = await asyncio.to_thread(self._whole, webhook)
            problem = await sending.send(
                client,
                url,
                body,
                key=webhook.key,
                authentication=authentication,
                secret=self._secret_of(webhook),
                now=now,
            )
            if isinstance(body, StoredBody) and body.failure:
                raise body.failure
        return problem

    def _address(self, queue: Row[Any]) -> tuple[str, Any, float]:
        """Return the address, its authentication, and the timestamp to sign."""
        with self._database.reading() as connection:
            address = webhooks.address_of(connection, queue.id)
        if address is None:
            raise Withdrawn
        return *address, self._database.now()

    def _read(self, webhook: Row[Any], begin: int, most: int) -> str | None:
        with self._database.reading() as connection:
            return webhooks.body_of(connection, webhook, begin, most)

    def _whole(self, webhook: Row[Any]) -> bytes:
        body = self._read(webhook, 0, webhook.size)
        if body is None:
            raise Withdrawn
        if self._flow_webhook and webhook.kind == webhooks.FLOW:
            body = self._flow_webhook.with_answer(body)
        return body.encode()

    def _secret_of(self, webhook: Row[Any]) -> str | None:
        return self._flow_webhook.secret if self._flow_webhook and webhook.kind == webhooks.FLOW else self._secret

    def _settle(
        self, queue: Row[Any], webhook: Row[Any], problem: str | None, *, last: bool, is_sent: bool
    ) -> Row[Any] | None:
        """Store the result, however long the database takes, to prevent a second delivery; return the next webhook."""

        def write() -> Row[Any] | None:
            return self._settle_once(queue, webhook, problem, last=last or self._stopping.is_set())

        try:
            following, _ = retrying.until_available(write, self._has_left)
        except Cancelled:
            return None
        if is_sent:
            self._tell(webhook, queue.receiver, problem)
        if following is None:
            self._database.erased.set()
        return following

    def _settle_once(self, queue: Row[Any], webhook: Row[Any], problem: str | None, *, last: bool) -> Row[Any] | None:
        with self._database.writing() as connection:
            held = webhooks.hold(connection, queue.id, queue.claimed_by)
            if problem is None:
                webhooks.remove(connection, webhook)
            elif held and self._is_last_try(webhook):
                webhooks.give_up(connection, webhook, queue, problem, now=self._database.now())
            elif held:
                webhooks.count_attempt(connection, webhook)
                webhooks.release(connection, queue.id, due_at=self._database.now() + _pause(webhook.attempts))
                return None
            goes_on = held and not last and not webhooks.must_wait(connection, queue.id)
            following = webhooks.first(connection, queue.id) if goes_on else None
            if held and following is None:
                webhooks.release(connection, queue.id, due_at=webhooks.AT_ONCE)
        return following

    def _is_last_try(self, webhook: Row[Any]) -> bool:
        tries: int = webhook.attempts + 1
        return tries >= self._attempts or self._database.now() - float(webhook.created_at) > KEEP_TRYING

    def _tell(self, webhook: Row[Any], receiver: str, problem: str | None) -> None:
        """Log every final result, but only the first failed attempt, since a receiver may be down for hours."""
        extra = {"execution_id": webhook.execution_id, "webhook": webhook.kind, "receiver": receiver}
        if problem is None:
            log.info("webhook delivered", extra=extra)
        elif self._is_last_try(webhook):
            log.warning("webhook abandoned: %s, try %d", problem, webhook.attempts + 1, extra=extra)
        elif webhook.attempts == 0:
            log.warning("webhook not delivered: %s; retrying with growing pauses", problem, extra=extra)


def _threads() -> ThreadPoolExecutor:
    """Start all threads at once: if one failed to start later, `submit` would fail but still queue the work."""
    pool, together = ThreadPoolExecutor(THREADS, "outbox"), threading.Barrier(THREADS)
    try:
        for _ in range(THREADS):
            pool.submit(together.wait)
    except RuntimeError:
        together.abort()
        pool.shutdown(wait=False)
        raise
    return pool


def _pause(attempts: int) -> float:
    """Return the seconds until the next attempt, randomized so that recovering receivers are not flooded."""
    longest = retrying.growing(attempts, first=FIRST_PAUSE, factor=2.0, longest=webhooks.LONGEST_PAUSE)
    return longest * random.uniform(0.8, 1.0)  # noqa: S311
