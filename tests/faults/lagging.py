"""A `FaultProxy` for reviews: a status that lags behind a resume, and a 404 on a poll while a draft waits.

It can also begin to refuse polls of many, as a gateway that passes only the four documented paths.
"""

from __future__ import annotations

import json
import time
from random import Random
from typing import Any
from urllib.parse import unquote

from faults.proxy import POLL, RESUME, FaultProxy, Injected, call_of
from faults.wire import Answer, Reply, Request

LAG = (2.0, 12.0)  # seconds
REFUSALS = (302, 403, 406, 413, 451, 500, 503)  # of polls of many
SHARE = 0.6  # of the resumes that are taken


class LaggingProxy(FaultProxy):
    """Disturb as `FaultProxy` does, and with the state of each execution in mind."""

    def __init__(self, upstream: str, *, seed: int, **more: Any) -> None:
        self._paused: dict[str, Any] = {}  # by id: the last status that showed a draft waiting
        self._lags_until: dict[str, float] = {}
        self._moments = Random(seed)
        self._refusal: int | None = None
        super().__init__(upstream, seed=seed, **more)

    def refuse_polls_of_many(self, status: int) -> None:
        """Refuse them from now on, for good."""
        self._refusal = status

    def _decide(self, request: Request) -> Answer:
        if self._refusal and call_of(request) == POLL and not _polled(request):
            self._note("N28", f"polls of many are refused with {self._refusal}", POLL, request, reached=False)
            return Reply(status=self._refusal, body={"detail": "a fault"}, headers={"Location": "/elsewhere"})
        if call_of(request) == POLL and _polled(request) in self._paused and self._happens(self.rate):
            self._note("N23", "unknown while a draft waits", POLL, request, reached=False)
            return Reply(status=404, body={"detail": "a fault: 404"})
        return super()._decide(request)

    def _forward(self, request: Request, call: str) -> Reply:
        reply = super()._forward(request, call)
        if reply.status >= 300:
            return reply
        if call == POLL:
            return self._as_shown(_polled(request), reply)
        if call == RESUME and self.rate and self._happens(SHARE):
            execution_id = request.json["execution_id"]
            if execution_id in self._paused:
                self._lags_until[execution_id] = time.monotonic() + self._moments.uniform(*LAG)
                self._note("N21", "status lags behind the resume", RESUME, request, reached=True)
        return reply

    def _as_shown(self, polled: str, reply: Reply) -> Reply:
        body = json.loads(reply.body)
        shown = self._status(polled, body) if polled else {"statuses": self._statuses(body["statuses"])}
        return Reply(status=reply.status, body=shown, headers=reply.headers)

    def _statuses(self, found: dict[str, Any]) -> dict[str, Any]:
        return {name: each and {**each, "body": self._status(name, each["body"])} for name, each in found.items()}

    def _status(self, execution_id: str, now: dict[str, Any]) -> Any:
        if time.monotonic() < self._lags_until.get(execution_id, 0.0):
            return self._paused.get(execution_id, now)
        if now.get("status") == "pending":
            self._paused[execution_id] = now
        else:
            self._paused.pop(execution_id, None)
        return now

    def _happens(self, share: float) -> bool:
        with self._lock:
            return self._moments.random() < share

    def _note(self, row: str, name: str, call: str, request: Request, *, reached: bool) -> None:
        with self._lock:
            self.injected.append(Injected(time.time(), row, name, call, request.target, reached))


def _polled(request: Request) -> str:
    """Return the id that a poll asks for; nothing for a poll of many."""
    return unquote(request.target.rpartition("/status/")[2]) if "/status/" in request.target else ""
