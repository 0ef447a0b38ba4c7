"""`FaultProxy`: stands between Airflow and a real crew service, and does to their traffic what the fault matrix tells.

What it does is drawn by a seeded random and written down, so that a run can be told as a table.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import urlsplit

from faults.server import FaultServer
from faults.wire import RESET, SILENCE, Answer, NoReply, Reply, Request
from scripts.stack.waiting import PATIENCE

POLL, KICKOFF, RESUME, STOP, OTHER = "look", "kickoff", "resume", "stop", "other"
Forward = Callable[[], Reply]
NOT_FORWARDED = ("host", "connection", "content-length", "transfer-encoding")
LATE = (1.0, 8.0)  # seconds
A_GATEWAY = "<html><head><title>502</title></head><body><h1>502 Bad Gateway</h1></body></html>"


@dataclass(frozen=True)
class Fault:
    """One way to disturb one kind of call.

    :param row: of the fault matrix
    :param does: returns the answer; calls ``forward`` where the service is to be reached all the same
    :param weight: how often it is drawn, against the others of the same call
    """

    row: str
    name: str
    call: str
    does: Callable[[Forward, Random], Answer]
    weight: float = 1.0


@dataclass(frozen=True)
class Injected:
    """A fault as it happened; ``reached`` says whether the service had got the request by the time of the answer."""

    at: float
    row: str
    name: str
    call: str
    target: str
    reached: bool


def _instead(reply: Answer) -> Callable[[Forward, Random], Answer]:
    return lambda forward, random: reply


def _one_of(*replies: Answer) -> Callable[[Forward, Random], Answer]:
    return lambda forward, random: random.choice(replies)


def _after(reply: Answer) -> Callable[[Forward, Random], Answer]:
    """Let the service act, and lose its answer."""

    def does(forward: Forward, random: Random) -> Answer:
        forward()
        return reply

    return does


def _half(forward: Forward, random: Random) -> Answer:
    whole = forward()
    return Reply(
        status=whole.status, body=whole.body, headers=whole.headers, stop_after=len(whole.body) // 2, end=RESET
    )


def _slow(forward: Forward, random: Random) -> Answer:
    whole = forward()
    return Reply(status=whole.status, body=whole.body, headers=whole.headers, delay=random.uniform(0.5, 2.0))


def _late(forward: Forward, random: Random) -> Answer:
    """Give up as a gateway does, and let the request arrive later."""
    later = threading.Timer(random.uniform(*LATE), forward)
    later.daemon = True
    later.start()
    return _refusal(504)


def _refusal(status: int, **headers: str) -> Reply:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Reply(status=status, body={"detail": f"a fault: {status}"}, headers=named)


LOOK_FAULTS = (
    Fault("N1", "server error", POLL, _one_of(_refusal(500), _refusal(503), _refusal(504))),
    Fault("N1", "gateway page", POLL, _instead(Reply(status=502, body=A_GATEWAY))),
    Fault("N2", "asked to wait", POLL, _one_of(*(_refusal(429, Retry_After=x) for x in ("1", "-5", "soon")))),
    Fault("N3", "reset", POLL, _instead(NoReply(RESET))),
    Fault("N3", "reset after the answer began", POLL, _half),
    Fault("N4", "silence", POLL, _instead(NoReply(SILENCE)), 0.3),
    Fault("N4", "slow", POLL, _slow),
    Fault("N6", "unknown for a moment", POLL, _instead(_refusal(404))),
    Fault("N7", "not an answer", POLL, _one_of(*(Reply(body=x) for x in (b"", b"{", [], None, {"status": 5}, "<p>")))),
    Fault("N7", "unknown word", POLL, _instead(Reply(body={"status": "warming_up"}))),
)
# After these nothing was started, and the task's retry sends the request again.
REFUSED_POSTS = (
    Fault("N12", "asked to wait", KICKOFF, _instead(_refusal(429, Retry_After="1"))),
    Fault("N12", "asked to wait", RESUME, _instead(_refusal(429, Retry_After="1"))),
)
# After these nobody knows what the service did.
LOST_POSTS = tuple(
    Fault(row, name, call, does)
    for row, call in (("N11", KICKOFF), ("N13", RESUME))
    for name, does in (
        ("answer lost: reset", _after(NoReply(RESET))),
        ("answer lost: gateway", _after(Reply(status=502, body=A_GATEWAY))),
        ("answer lost: half of it", _half),
        ("answer lost: unreadable", _after(Reply(body=b"<html>ok</html>"))),
        ("service fails after it acted", _after(_refusal(500))),
        ("never arrived: reset", _instead(NoReply(RESET))),
        ("never arrived: gateway", _instead(_refusal(503))),
    )
)
# The gateway gives up, and the service acts later; for clients whose `kickoff_timeout` is longer than that.
LATE_POSTS = (Fault("N20", "gateway gives up, the service acts later", RESUME, _late, 3.0),)
ALL_FAULTS = (*LOOK_FAULTS, *REFUSED_POSTS, *LOST_POSTS)


class FaultProxy:
    """Forward to ``upstream``, and disturb a share of the calls: ``with FaultProxy(url, seed=7) as proxy: ...``.

    :param rate: the share of calls that meet a fault
    :param faults: what may happen; the constants of this module, or a choice of them
    """

    def __init__(
        self, upstream: str, *, seed: int, rate: float = 0.2, faults: Sequence[Fault] = ALL_FAULTS, **server: Any
    ) -> None:
        parts = urlsplit(upstream)
        assert parts.hostname
        self._host, self._port, self._base = parts.hostname, parts.port or 80, parts.path.rstrip("/")
        self.seed, self.rate, self.faults = seed, rate, tuple(faults)
        self.injected: list[Injected] = []
        self.forwarded: Counter[str] = Counter()
        self._random = Random(seed)
        self._lock = threading.Lock()
        self._server = FaultServer(self._decide, **server)
        self.url = self._server.url

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Refuse connections from now on."""
        self._server.close()

    def stop_faults(self) -> None:
        """Disturb nothing any more."""
        self.rate = 0.0

    @property
    def requests(self) -> list[Request]:
        """All requests that clients sent, disturbed or not."""
        return self._server.requests

    def table(self) -> str:
        """Return the faults injected, counted, as lines of a Markdown table."""
        counted = Counter((each.row, each.call, each.name) for each in self.injected)
        rows = [f"| {row} | {call} | {name} | {count} |" for (row, call, name), count in sorted(counted.items())]
        return "\n".join(["| row | call | fault | times |", "|---|---|---|---|", *rows])

    def _decide(self, request: Request) -> Answer:
        call = call_of(request)
        fault, random = self._draw(call)
        if fault is None:
            return self._forward(request, call)
        reached = False

        def forward() -> Reply:
            nonlocal reached
            reached = True
            return self._forward(request, call)

        answer = fault.does(forward, random)
        with self._lock:
            self.injected.append(Injected(time.time(), fault.row, fault.name, call, request.target, reached))
        return answer

    def _draw(self, call: str) -> tuple[Fault | None, Random]:
        with self._lock:
            random = Random(self._random.random())
        known = [fault for fault in self.faults if fault.call == call]
        if not known or random.random() >= self.rate:
            return None, random
        return random.choices(known, [fault.weight for fault in known])[0], random

    def _forward(self, request: Request, call: str) -> Reply:
        with self._lock:
            self.forwarded[call] += 1
        headers = {name: text for name, text in request.headers.items() if name not in NOT_FORWARDED}
        upstream = http.client.HTTPConnection(self._host, self._port, timeout=PATIENCE)
        try:
            upstream.request(request.method, self._base + request.target, request.body or None, headers)
            answer = upstream.getresponse()
            body = answer.read()
        except OSError as error:
            return Reply(status=502, body={"detail": f"the service did not answer: {error}"})
        finally:
            upstream.close()
        kept = {name: text for name, text in answer.getheaders() if name.lower() not in NOT_FORWARDED}
        return Reply(status=answer.status, body=body, headers=kept)


def call_of(request: Request) -> str:
    """Return which call of the API a request is."""
    path = urlsplit(request.target).path
    if request.method == "GET":
        return POLL if "/status/" in path or path.endswith("/statuses") else OTHER
    return next((call for call in (KICKOFF, RESUME, STOP) if f"/{call}" in path), OTHER)
