"""Delivers webhooks off the crew's path, in order for each execution, and keeps the undeliverable ones.

A task of the event loop works through one queue at a time. A receiver has a few of these tasks, one that does not
answer fewer, and those that do not answer have half of all tasks together: the others' webhooks never wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
from sqlalchemy.engine import Row

from crew_service.engine import retrying, sending
from crew_service.engine.crew import Cancellation, Cancelled
from crew_service.engine.flow_webhook import FlowWebhook
from crew_service.engine.membership import Membership
from crew_service.engine.metrics import Metrics
from crew_service.engine.paths import ROOT
from crew_service.storage import webhooks
from crew_service.storage.availability import DatabaseUnavailable
from crew_service.storage.database import Database

log = logging.getLogger(__name__)

IDLE = 1.0  # seconds between two polls when nothing was posted
QUEUES = 256  # worked on at once
PER_RECEIVER = 8  # of these for one receiver
PER_SILENT_RECEIVER = 4  # for one that did not answer the last time
TURN = 50  # webhooks of a queue before others of its receiver may go first
FIRST_PAUSE = 1.0  # seconds before the second try; doubles from then on, up to an hour
KEEP_TRYING = 86400.0  # seconds after which a webhook that was tried is given up, however few its tries were
UNFORESEEN = 60.0  # seconds before a queue is tried again that failed in a way that nobody has foreseen
GRACE = 3.0  # seconds that deliveries have to end when the service stops
LARGE = 256 * 1024  # bytes from which a body counts as large
LARGE_AT_ONCE = 2  # large bodies in memory


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
        self._timeout = timeout
        self._attempts = attempts
        self._secret = secret
        self._flow_webhook = flow_webhook
        self._working: dict[str, tuple[str, asyncio.Task[None]]] = {}  # queue: its receiver and its task
        self._silent: set[str] = set()  # receivers that did not answer the last time
        self._loop = asyncio.new_event_loop()
        # A look-up of a name holds a thread, and may hang: never all of them, since the database needs some too.
        self._loop.set_default_executor(ThreadPoolExecutor(QUEUES + 8, "outbox"))
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)
        self._posted = asyncio.Event()
        self._stopping = Cancellation()
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def posted(self) -> None:
        """Something may be due; callable from every thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._posted.set)

    def stop(self) -> None:
        self._stopping.set("the service stops")
        self.posted()
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        async with sending.session(self._timeout) as client:
            while not self._stopping.is_set():
                self._posted.clear()
                for queue in await asyncio.to_thread(self._claim):
                    task = self._loop.create_task(self._work(client, queue))
                    self._working[queue.id] = (queue.receiver, task)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._posted.wait(), IDLE)
            await self._leave()

    async def _leave(self) -> None:
        """Let what is under way be answered and stored; what takes longer is cut, and due again at the next start."""
        tasks = {task for _, task in self._working.values()}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=GRACE)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _claim(self) -> list[Row[Any]]:
        """Take what is due and has room. Nothing is sent before the claim is stored, so not while it cannot be."""
        try:
            with self._database.reading() as connection:
                found = webhooks.due(
                    connection,
                    self._membership.id,
                    now=self._database.now(),
                    per_receiver=2 * PER_RECEIVER,  # those at work are among them
                    without=self._full(),
                    with_flows=self._flow_webhook is not None,
                )
            chosen = self._with_room(found)
            if not chosen:
                return []
            with self._database.writing() as connection:
                return webhooks.claim(connection, self._membership.id, chosen)
        except DatabaseUnavailable:  # logged where it is noticed, once
            return []
        except Exception:
            log.exception("webhooks cannot be claimed; trying again")
            return []

    def _full(self) -> list[str]:
        busy = self._busy()
        return [receiver for receiver, number in busy.items() if number >= self._room_of(receiver)]

    def _busy(self) -> Counter[str]:
        return Counter(receiver for receiver, _ in list(self._working.values()))

    def _room_of(self, receiver: str) -> int:
        return PER_SILENT_RECEIVER if receiver in self._silent else PER_RECEIVER

    def _with_room(self, found: list[Row[Any]]) -> list[str]:
        busy, chosen = self._busy(), []
        silent = sum(number for receiver, number in busy.items() if receiver in self._silent)
        for queue in found:
            is_silent = queue.receiver in self._silent
            full = busy[queue.receiver] >= self._room_of(queue.receiver) or busy.total() >= QUEUES
            if queue.id in self._working or full or (is_silent and silent >= QUEUES // 2):
                continue
            silent += is_silent
            busy[queue.receiver] += 1
            chosen.append(queue.id)
        return chosen

    async def _work(self, client: aiohttp.ClientSession, queue: Row[Any]) -> None:
        """Deliver the queue's webhooks one after another, until one is not taken or others are to go first."""
        try:
            webhook = await asyncio.to_thread(self._first, queue)
            turn = 0
            while webhook is not None:
                turn += 1
                problem = await self._deliver(client, queue, webhook)
                webhook = await asyncio.to_thread(self._settle, queue, webhook, problem, last=turn == TURN)
        except DatabaseUnavailable:  # the queue is still claimed, and is taken up again
            pass
        except Exception:
            log.exception("webhooks of a queue are delayed", extra={"execution_id": queue.execution_id})
            await self._put_off(queue)
        finally:
            del self._working[queue.id]
            self._posted.set()

    async def _put_off(self, queue: Row[Any]) -> None:
        """Pause, whether or not that can be stored: else the queue is taken up again at once, for ever."""

        def write() -> None:
            with self._database.writing() as connection:
                webhooks.put_off(connection, queue.id, due_at=self._database.now() + UNFORESEEN)

        try:
            await asyncio.to_thread(write)
        except Exception:
            log.exception("a queue cannot be put off", extra={"execution_id": queue.execution_id})
            await asyncio.sleep(UNFORESEEN)

    def _first(self, queue: Row[Any]) -> Row[Any] | None:
        with self._database.reading() as connection:
            webhook = None if webhooks.must_wait(connection, queue.id) else webhooks.first(connection, queue.id)
        if webhook is None:
            with self._database.writing() as connection:
                webhooks.release(connection, queue.id, due_at=webhooks.AT_ONCE)
        return webhook

    async def _deliver(self, client: aiohttp.ClientSession, queue: Row[Any], webhook: Row[Any]) -> str | None:
        try:
            problem = await self._send(client, queue, webhook)
        except DatabaseUnavailable:
            raise
        except Exception as error:
            problem = type(error).__name__  # its text may hold the address, and with that a secret
            log.error("a webhook cannot be sent: %s", problem, extra={"execution_id": queue.execution_id})
        (self._silent.discard if sending.answered(problem) else self._silent.add)(queue.receiver)
        self._metrics.tried(queue.crew or ROOT, webhook.kind, "failed" if problem else "delivered")
        return problem

    async def _send(self, client: aiohttp.ClientSession, queue: Row[Any], webhook: Row[Any]) -> str | None:
        async with self._large if webhook.size > LARGE else contextlib.nullcontext():
            found = await asyncio.to_thread(self._read, queue, webhook)
            if found is None:
                return None
            url, authentication, body, now = found
            return await sending.send(
                client,
                url,
                body,
                key=webhook.key,
                authentication=authentication,
                secret=self._secret_of(webhook),
                now=now,
            )

    def _read(self, queue: Row[Any], webhook: Row[Any]) -> tuple[str, Any, bytes, float] | None:
        """Return address, authentication, body, and the moment that is signed; None of one that was withdrawn."""
        with self._database.reading() as connection:
            body = webhooks.body_of(connection, webhook.id)
            if body is None:
                return None
            url, authentication = webhooks.address_of(connection, queue.id)
        if self._flow_webhook and webhook.kind == webhooks.FLOW:
            body = self._flow_webhook.with_answer(body)
        return url, authentication, body.encode(), self._database.now()

    def _secret_of(self, webhook: Row[Any]) -> str | None:
        return self._flow_webhook.secret if self._flow_webhook and webhook.kind == webhooks.FLOW else self._secret

    def _settle(self, queue: Row[Any], webhook: Row[Any], problem: str | None, *, last: bool) -> Row[Any] | None:
        """Store what came of it, however long the database takes, and return what is next: it is not sent again."""

        def write() -> Row[Any] | None:
            return self._settle_once(queue, webhook, problem, last=last or self._stopping.is_set())

        try:
            following, _ = retrying.until_available(write, self._stopping)
        except Cancelled:
            return None
        self._tell(webhook, queue.receiver, problem)
        if following is None:
            self._database.erased.set()
        return following

    def _settle_once(self, queue: Row[Any], webhook: Row[Any], problem: str | None, *, last: bool) -> Row[Any] | None:
        with self._database.writing() as connection:
            held = webhooks.hold(connection, queue.id, queue.claimed_by)
            if problem is None:
                webhooks.remove(connection, webhook.id)
            elif held and self._is_last_try(webhook):
                webhooks.give_up(connection, webhook, queue, problem, now=self._database.now())
            elif held:
                webhooks.count_attempt(connection, webhook.id)
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
        """Log every end; of the tries in between only the first, since a receiver may be away for hours."""
        extra = {"execution_id": webhook.execution_id, "webhook": webhook.kind, "receiver": receiver}
        if problem is None:
            log.info("webhook delivered", extra=extra)
        elif self._is_last_try(webhook):
            log.warning("webhook given up: %s, try %d", problem, webhook.attempts + 1, extra=extra)
        elif webhook.attempts == 0:
            log.warning("webhook not delivered: %s; it is tried again with growing pauses", problem, extra=extra)


def _pause(attempts: int) -> float:
    """Seconds until the next try, spread so that receivers which come back are not met by everything at once."""
    longest = min(FIRST_PAUSE * 2.0 ** min(attempts, 30), webhooks.LONGEST_PAUSE)
    return longest * random.uniform(0.8, 1.0)  # noqa: S311
