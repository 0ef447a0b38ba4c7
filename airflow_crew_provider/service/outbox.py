"""Delivers webhooks off the crew's path: durable until delivered or, after a bounded number of tries, given up.

Redirects are never followed, so that a credential reaches no one but the address it was given for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
from sqlalchemy import Row, delete, select, update

from .metrics import Metrics
from .store import Store
from .tables import executions, outbox

log = logging.getLogger(__name__)

IDLE = 1.0  # seconds between looks when nothing was posted
LOOK = 500  # deliveries looked at in one go
AT_ONCE = 32  # deliveries in flight
PER_RECEIVER = 8  # of these to one receiver, so that a slow one does not hold up the others
FIRST_PAUSE = 1.0  # seconds before the second try; doubles from then on


class Outbox:
    def __init__(self, store: Store, metrics: Metrics, *, timeout: float, attempts: int) -> None:
        self._store = store
        self._count = metrics.webhooks
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._attempts = attempts
        self._lanes: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        # A look-up of a name holds a thread, and may hang: never all of them, since the database needs some too.
        self._loop.set_default_executor(ThreadPoolExecutor(AT_ONCE + 8, "outbox"))
        self._posted = asyncio.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def posted(self) -> None:
        """Something may be due; callable from every thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._posted.set)

    def stop(self) -> None:
        """Deliveries in flight are cut; they are due again at the next start."""
        self._stopping = True
        self.posted()
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        async with aiohttp.ClientSession(timeout=self._timeout) as session:
            while not self._stopping:
                self._posted.clear()
                for row in await asyncio.to_thread(self._due):
                    self._begin(session, row)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._posted.wait(), IDLE)
            for delivery in self._lanes.values():
                delivery.cancel()
            await asyncio.gather(*self._lanes.values(), return_exceptions=True)

    def _due(self) -> list[Row[Any]]:
        query = (
            select(outbox, executions.c.webhooks)
            .join(executions, executions.c.id == outbox.c.execution_id)
            .where(outbox.c.due_at <= time.time())
            .order_by(outbox.c.id)
            .limit(LOOK)
        )
        with self._store.reading() as connection:
            return list(connection.execute(query))

    def _begin(self, session: aiohttp.ClientSession, row: Row[Any]) -> None:
        """Start a delivery, one at a time for each execution and address, a few for each receiver."""
        lane = (row.execution_id, row.url)
        receiver = _receiver(row.url)
        busy = sum(1 for _, url in self._lanes if _receiver(url) == receiver)
        if lane in self._lanes or busy >= PER_RECEIVER or len(self._lanes) >= AT_ONCE:
            return
        self._lanes[lane] = self._loop.create_task(self._deliver(session, row))

    async def _deliver(self, session: aiohttp.ClientSession, row: Row[Any]) -> None:
        try:
            problem = await self._send(session, row)
            await asyncio.to_thread(self._settle, row, problem)
        except Exception:
            log.exception("delivery lost", extra={"execution_id": row.execution_id})
        finally:
            del self._lanes[row.execution_id, row.url]
            self._posted.set()

    async def _send(self, session: aiohttp.ClientSession, row: Row[Any]) -> str | None:
        """None once the receiver took it, else what went wrong."""
        try:
            async with session.post(row.url, json=row.body, headers=_proof(row), allow_redirects=False) as answer:
                return None if 200 <= answer.status < 300 else f"HTTP {answer.status}"
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return type(error).__name__

    def _settle(self, row: Row[Any], problem: str | None) -> None:
        attempts = row.attempts + 1
        told = {"execution_id": row.execution_id, "webhook": row.kind, "receiver": _receiver(row.url)}
        with self._store.writing() as connection:
            if problem is None or attempts >= self._attempts:
                connection.execute(delete(outbox).where(outbox.c.id == row.id))
            else:
                due_at = time.time() + FIRST_PAUSE * 2**row.attempts
                values = {"attempts": attempts, "due_at": due_at}
                connection.execute(update(outbox).where(outbox.c.id == row.id).values(values))
        self._count.labels(row.kind, "failed" if problem else "delivered").inc()
        if problem:
            log.warning("webhook not delivered: %s, try %d", problem, attempts, extra=told)
        else:
            log.info("webhook delivered", extra=told)


def _receiver(url: str) -> str:
    """Scheme and host: the rest of an address may hold a secret, and is never logged."""
    scheme, _, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    return f"{scheme}://{authority.rpartition('@')[2]}"


def _proof(row: Row[Any]) -> dict[str, str]:
    """The Authorization that was asked for; it stands with the execution and goes with its end."""
    hook = (row.webhooks or {}).get("human_input", {}) if row.kind == "human_input" else {}
    match hook.get("authentication"):
        case {"strategy": "bearer", "token": token}:
            return {"Authorization": f"Bearer {token}"}
        case {"strategy": "basic", "username": username, "password": password}:
            pair = f"{username}:{password}".encode()
            return {"Authorization": f"Basic {b64encode(pair).decode()}"}
    return {}
