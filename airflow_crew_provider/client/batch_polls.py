"""Polls of many waits that fall due within a moment of each other, sent as one request.

Law: only the answer to its own poll may end a wait, or count as a failure of it. Any trouble with the request of many
means polling alone, and asking for many again later: a gateway may pass the documented paths only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from airflow_crew_provider.client.deployment import LARGE_BODY
from airflow_crew_provider.core import batch_status, endpoints
from airflow_crew_provider.core.batch_status import OFFER, PATH
from airflow_crew_provider.core.endpoints import Call
from airflow_crew_provider.core.responses import HttpResponse
from airflow_crew_provider.exceptions import CrewError

MOMENT = 0.1  # seconds: less than a tenth of the shortest usual poll interval
# How long waits poll alone after trouble, in seconds; doubled each time, up to the second.
ALONE, LONGEST_ALONE = 30.0, 900.0

# None: poll alone
Answer = HttpResponse | None


class BatchPolls:
    """Collects the polls of one session.

    :param send: performs a call
    :param errors: what it raises when there is no answer
    """

    def __init__(
        self, send: Callable[[Call[Any]], Awaitable[HttpResponse]], errors: tuple[type[Exception], ...]
    ) -> None:
        self._send = send
        self._errors: tuple[type[Exception], ...] = (*errors, CrewError)
        self._offered, self._troubles, self._not_before = False, 0, 0.0
        self._due: list[tuple[str, asyncio.Future[Answer]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    @property
    def offered(self) -> bool:
        """Whether the service offers it, and no trouble was met a short time ago."""
        return self._offered and time.monotonic() >= self._not_before

    def note(self, answer: HttpResponse) -> None:
        """Read from the answer to a single poll whether the service offers it."""
        self._offered = answer.headers.get(OFFER) == PATH

    def ask(self, kickoff_id: str) -> asyncio.Future[Answer]:
        """Poll together with all others that poll within a moment."""
        loop = asyncio.get_running_loop()
        asked: asyncio.Future[Answer] = loop.create_future()
        if not self._due:
            loop.call_later(MOMENT, self._send_all)
        self._due.append((kickoff_id, asked))
        return asked

    def _send_all(self) -> None:
        due, self._due = [each for each in self._due if not each[1].done()], []
        ids = list(dict.fromkeys(kickoff_id for kickoff_id, _ in due))
        for portion in batch_status.portions(ids):
            chosen = set(portion)
            task = asyncio.ensure_future(self._ask([each for each in due if each[0] in chosen], portion))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _ask(self, due: list[tuple[str, asyncio.Future[Answer]]], ids: list[str]) -> None:
        answers: dict[str, HttpResponse] = {}
        try:
            if len(ids) > 1:
                answers = await self._answers(ids)
        finally:
            for kickoff_id, asked in due:
                if not asked.done():
                    asked.set_result(answers.get(kickoff_id))

    async def _answers(self, ids: list[str]) -> dict[str, HttpResponse]:
        if self._troubles:
            self._poll_alone()  # the others, while this one finds out
        try:
            answers = await self._read(batch_status.statuses(ids))
        except self._errors:
            answers = {}
        if answers:
            self._troubles, self._not_before = 0, 0.0
        else:
            self._troubles += 1
            self._poll_alone()
        return answers

    def _poll_alone(self) -> None:
        self._not_before = time.monotonic() + min(ALONE * 2 ** min(self._troubles - 1, 10), LONGEST_ALONE)

    async def _read(self, call: Call[dict[str, HttpResponse]]) -> dict[str, HttpResponse]:
        answer = await self._send(call)
        if len(answer.body) > LARGE_BODY:
            return await asyncio.to_thread(endpoints.read, call, answer)
        return endpoints.read(call, answer)
