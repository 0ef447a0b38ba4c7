"""Polls of many waits that fall due within a moment of each other, sent as one request.

Law: each wait gets what a poll of its own would have got. An error of the request is a failed poll of each of them; a
wait that the answer leaves out polls by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from airflow_crew_provider.client.deployment import LARGE_BODY
from airflow_crew_provider.core import batch_status
from airflow_crew_provider.core.batch_status import OFFER, PATH
from airflow_crew_provider.core.endpoints import Call
from airflow_crew_provider.core.responses import HttpResponse
from airflow_crew_provider.exceptions import CrewProtocolError

MOMENT = 0.1  # seconds: less than a tenth of the shortest usual poll interval

# None: poll individually
Answer = HttpResponse | Exception | None


class BatchPolls:
    """Collects the polls of one session.

    :param send: performs a call
    :param errors: what it raises when there is no answer
    """

    def __init__(
        self, send: Callable[[Call[Any]], Awaitable[HttpResponse]], errors: tuple[type[Exception], ...]
    ) -> None:
        self.offered = self._refused = False
        self._send, self._errors = send, errors
        self._due: list[tuple[str, asyncio.Future[Answer]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    def note(self, answer: HttpResponse) -> None:
        """Read from the answer to a single poll whether the service supports it; use it until it refuses."""
        self.offered = not self._refused and answer.headers.get(OFFER) == PATH

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
        other: Answer = None
        try:
            answers, other = await self._answers(ids) if len(ids) > 1 else ({}, None)
        except self._errors as error:
            other = error
        finally:
            for kickoff_id, asked in due:
                if not asked.done():
                    asked.set_result(answers.get(kickoff_id, other))

    async def _answers(self, ids: list[str]) -> tuple[dict[str, HttpResponse], Answer]:
        """Return the answers by id, and what all others get."""
        call = batch_status.statuses(ids)
        answer = await self._send(call)
        if answer.status in batch_status.REFUSALS:
            return self._refuse()
        if not 200 <= answer.status < 300:
            return {}, answer
        try:
            if len(answer.body) > LARGE_BODY:
                return await asyncio.to_thread(call.read, answer, str), None
            return call.read(answer, str), None
        except CrewProtocolError:
            return self._refuse()

    def _refuse(self) -> tuple[dict[str, HttpResponse], None]:
        self._refused, self.offered = True, False
        return {}, None
