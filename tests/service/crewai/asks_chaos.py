"""Executions whose tool calls a scripted person approves, each killed at one point; effects are counted outside.

A case has one or two identical payments. At its point, a service, a crew's process or a client of the person is killed
by SIGKILL. The person answers by the specification alone, by the outcome, or with changed arguments, repeats an answer
whose response was lost under its idempotency key, and sends answers that must not count. A payment of unknown outcome
is looked up and then said to be done, made again, or given up.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import psutil
import requests
from crew_client import Command
from four_tasks import asked_for
from openai_server import OpenAI

from crew_service.engine.drafts import draft_sha256
from scripts.stack.waiting import PATIENCE, wait_until

WHAT = "rent"
OPEN = "service, while the question is open"
BEFORE = "service, before the tool"
IN_TOOL = "service, in the tool"
AFTER = "service, after the tool"
CREW = "crew's process, in the tool"
UNSENT = "client, before its answer is stored"
STORED = "client, after its answer is stored"
TWO = "none; two answers at once"
POINTS = (OPEN, BEFORE, IN_TOOL, AFTER, CREW, UNSENT, STORED, TWO)
HELD = {IN_TOOL: "began", CREW: "began", AFTER: "paid"}  # where the tool waits for the kill
# Sends a part of a request, says so, and reads no response.
CLIENT = """
import socket, sys
sent = sys.stdin.buffer.read()
link = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
link.sendall(sent)
print("sent", flush=True)
import time
time.sleep(600)
"""


def payments(body: dict[str, Any]) -> dict[str, Any]:
    """Answer as the model: make the payments of the case, one after the other."""
    _, case = asked_for(body)
    done = sum(turn["role"] == "tool" for turn in body["messages"])
    if done == int(case.rpartition("-")[2]):
        return {"role": "assistant", "content": "All done"}
    function = {"name": "pay", "arguments": json.dumps({"what": WHAT})}
    calls = [{"id": f"call{done}", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def model() -> OpenAI:
    server = OpenAI()
    server.script = payments
    return server


class Service:
    """A service that can be killed and started again, at another address."""

    def __init__(self, name: str, start: Callable[[], Command]) -> None:
        self.name = name
        self._start = start
        self._command = start()

    @property
    def url(self) -> str:
        return self._command.url

    def kill(self) -> None:
        self._command.kill()

    def start(self) -> None:
        self._command = self._start()


class Services:
    """The services of one database, and the kills of them, one at a time."""

    def __init__(self, services: list[Service], token: str, user_token: str) -> None:
        self.kills: Counter[str] = Counter()
        self.token, self.user_token = token, user_token
        self.lock = threading.RLock()
        self.all = services

    def any(self, random: Random) -> Service:
        return random.choice(self.all)

    def kill(self, name: str | None, random: Random) -> None:
        """Kill one and start it again."""
        with self.lock:
            service = next((each for each in self.all if each.name == name), None) or self.any(random)
            service.kill()
            service.start()


@dataclass
class Case:
    """One execution, and what the person has decided about it."""

    number: int
    seed: int
    services: Services
    log: Path
    wrong: list[str] = field(default_factory=list)
    approved: Counter[str] = field(default_factory=Counter)  # decisions that let the tool run, by its argument
    due: Counter[str] = field(default_factory=Counter)  # payments of approved calls
    decisions: Counter[str] = field(default_factory=Counter)
    given_up: bool = False
    killed: str = ""

    def __post_init__(self) -> None:
        self.random = Random(f"{self.seed}-{self.number}")
        self.point = POINTS[self.number % len(POINTS)]
        self.calls = self.random.choice((1, 2))
        self.name = f"case-{self.number}-{self.calls}"
        self.killed_at = self.random.randint(1, self.calls)

    def play(self) -> None:
        """Start the execution, answer its questions until it is over, and judge what it has done."""
        body = {"inputs": {"case": self.name, "log": str(self.log)}}
        self.id: str = self.send("/kickoff", body, key=str(uuid4())).json()["kickoff_id"]
        number = 0
        while (seen := self.until(number)) is not None:
            number += 1
            self.check_not_ahead()
            self.answer(seen, number)
        self.judge()

    # --- what the person sees ---

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.send(f"/status/{self.id}").json()
        return found

    def until(self, number: int) -> dict[str, Any] | None:
        """Return the next question; None once the execution is over."""

        def found() -> dict[str, Any] | None:
            seen = self.status()
            is_next = seen["status"] == "pending" and seen["ask"]["number"] > number
            return seen if is_next or seen["status"] in ("completed", "error") else None

        self.last = wait_until(found, f"the next question of {self.name}")
        return self.last if self.last["status"] == "pending" else None

    def effects(self, at: str) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [each for each in map(json.loads, lines) if (each["case"], each["at"]) == (self.name, at)]

    def made(self, at: str) -> Counter[str]:
        return Counter(each["what"] for each in self.effects(at))

    # --- what it answers ---

    def answer(self, seen: dict[str, Any], number: int) -> None:
        kind, arguments = seen["ask"]["kind"], seen["ask"]["arguments"]
        is_point = kind == "tool" and not self.killed and self.decisions.total() >= self.killed_at - 1
        self.check_refused(seen, number)
        body = {"execution_id": self.id, "task_id": seen["task_id"], "human_feedback": ""}
        if kind == "unknown_outcome":
            is_paid = self.made("paid")[arguments["what"]] >= self.due[arguments["what"]]
            word = "fail" if self.random.random() < 0.15 else ("done" if is_paid else "run_again")
            body |= {"outcome": word}
            self.given_up = word == "fail"
        elif not (is_point and self.point in HELD) and self.random.random() < 0.2:
            word = "deny"
            body |= {"is_approve": False}
        else:
            word = "approve"
            arguments, said = self.approval(seen, arguments, number)
            body |= said
            self.due[arguments["what"]] += 1
        self.decisions[word] += 1
        if word in ("approve", "run_again"):
            self.approved[arguments["what"]] += 1
        self.decide(body, number, seen) if is_point else self.send("/resume", body, key=str(uuid4()))

    def approval(self, seen: dict[str, Any], arguments: Any, number: int) -> tuple[Any, dict[str, Any]]:
        """Return the approved arguments, and the answer that says so in one of three ways."""
        way = self.random.choice(("outcome", "specification", "changed"))
        if way == "specification":
            return arguments, {"is_approve": True}
        if way == "changed":
            arguments = {**arguments, "what": f"{WHAT} {number}"}
            changed = {"text": json.dumps(arguments), "output_sha256": draft_sha256(seen["task_output"])}
            return arguments, {"outcome": "approve", "edited_output": changed}
        return arguments, {"outcome": "approve"}

    def check_refused(self, seen: dict[str, Any], number: int) -> None:
        """Send what must not count: an older number, another question's hash, another user's answer."""
        body = {"execution_id": self.id, "task_id": seen["task_id"], "human_feedback": "x", "outcome": "approve"}
        other = {"text": "{}", "output_sha256": draft_sha256("another question")}
        user = {"token": self.services.user_token}
        for wrong, code, more in (
            ({**body, "task_id": f"payments#{number - 1}"}, 404 if number == 1 else 400, {}),
            ({**body, "edited_output": other}, 400, {}),
            ({**body, "output_sha256": other["output_sha256"]}, 400, {}),
            (body, 404, user),
        ):
            said = self.send("/resume", wrong, **more)
            if said.status_code != code:
                self.wrong.append(f"{self.name}: {wrong} got {said.status_code} {said.text}")

    # --- its point ---

    def decide(self, body: dict[str, Any], number: int, seen: dict[str, Any]) -> None:
        """Answer, with the kill of this case."""
        self.killed, key = self.point, str(uuid4())
        if self.point in (OPEN, BEFORE):
            with self.services.lock:
                if self.point == BEFORE:
                    self.send("/resume", body, key=key)
                    time.sleep(self.random.choice((0.0, 0.1, 0.3)))
                self.services.kill(None, self.random)
        elif self.point in HELD:
            self.hold(body, key)
        elif self.point in (UNSENT, STORED):
            with self.services.lock:  # whose service another case does not kill
                self.kill_client(body, key, seen)
        elif self.point == TWO:
            self.race(body, key)
            return
        self.services.kills[self.point] += 1
        said = self.send("/resume", body, key=key)  # again, since its response was lost
        if said.status_code != 200:
            self.wrong.append(f"{self.name}: the repeated answer {number} got {said.status_code} {said.text}")

    def hold(self, body: dict[str, Any], key: str) -> None:
        """Kill while the tool waits at its point, which it leaves only in a later attempt."""
        at = HELD[self.point]
        before, held = len(self.effects(at)), Path(f"{self.log}-{self.name}-{at}")
        held.touch()
        self.send("/resume", body, key=key)
        [*_, last] = wait_until(lambda: found if len(found := self.effects(at)) > before else None, self.point)
        if self.point == CREW:
            with contextlib.suppress(psutil.NoSuchProcess):  # another case may have killed its service meanwhile
                psutil.Process(last["pid"]).kill()
        else:
            self.services.kill(last["service"], self.random)
        wait_until(lambda: not psutil.pid_exists(last["pid"]), "the end of the crew's process")
        held.unlink()

    def kill_client(self, body: dict[str, Any], key: str, seen: dict[str, Any]) -> None:
        """Kill the process that sends the answer: within its request, or when the answer is stored."""
        service = self.services.any(self.random)
        text = json.dumps(body).encode()
        about = {"Host": "x", "Authorization": f"Bearer {self.services.token}", "Content-Type": "application/json"}
        about |= {"Idempotency-Key": key, "Content-Length": str(len(text))}
        head = "".join(f"{name}: {value}\r\n" for name, value in about.items())
        request = f"POST /resume HTTP/1.1\r\n{head}\r\n".encode() + text
        if self.point == UNSENT:
            request = request[: self.random.randrange(len(request) - len(text), len(request))]
        command = [sys.executable, "-S", "-E", "-c", CLIENT, service.url.rpartition(":")[2]]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
            assert client.stdin
            assert client.stdout
            client.stdin.write(request)
            client.stdin.close()
            client.stdout.readline()
            if self.point == STORED:
                wait_until(lambda: self.status().get("task_id") != seen["task_id"], "the stored answer")
            client.kill()
        if self.point == UNSENT and self.status() != seen:
            self.wrong.append(f"{self.name}: half an answer counted")

    def race(self, body: dict[str, Any], key: str) -> None:
        """Send the answer and its repetition at once, under different keys: one counts."""
        codes: list[int] = []

        def send(key: str) -> None:
            codes.append(self.send("/resume", body, key=key).status_code)

        threads = [threading.Thread(target=send, args=[each]) for each in (key, str(uuid4()))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.services.kills[self.point] += 1
        if sorted(codes) != [200, 400]:
            self.wrong.append(f"{self.name}: two answers at once got {codes}")

    def send(
        self, path: str, body: dict[str, Any] | None = None, *, key: str = "", token: str = ""
    ) -> requests.Response:
        """Send a request to any service until one responds."""

        def responded() -> requests.Response | None:
            service = self.services.any(self.random)
            headers = {"Authorization": f"Bearer {token or self.services.token}"}
            headers |= {"Idempotency-Key": key} if key else {}
            method = "GET" if body is None else "POST"
            try:
                said = requests.request(method, f"{service.url}{path}", json=body, headers=headers, timeout=PATIENCE)
            except requests.ConnectionError:
                return None
            return said if said.status_code not in (429, 503) else None

        # A `Response` with an error is false.
        return wait_until(lambda: [said] if (said := responded()) is not None else None, f"a response to {path}")[0]

    # --- its verdict ---

    def check_not_ahead(self) -> None:
        """While a question is open, no call has run that nobody has allowed."""
        if ahead := self.made("began") - self.approved:
            self.wrong.append(f"{self.name}: run without an approval: {ahead}")

    def judge(self) -> None:
        self.check_not_ahead()
        paid = self.made("paid")
        if twice := paid - self.due:
            self.wrong.append(f"{self.name}: paid twice, or without an approval: {twice}")
        if (missing := self.due - paid) and not (self.given_up and missing.total() == 1):
            self.wrong.append(f"{self.name}: approved and not paid: {missing}, {self.last}")
        if (self.last["status"] == "error") is not self.given_up:
            self.wrong.append(f"{self.name}: {self.last}")


def play_all(cases: list[Case], *, at_once: int, until: float) -> list[Case]:
    """Play cases side by side; start none after `until`, by the monotonic clock. Return those that were played."""
    waiting, played, lock = list(reversed(cases)), [], threading.Lock()

    def work() -> None:
        while time.monotonic() < until:
            with lock:
                if not waiting:
                    return
                case = waiting.pop()
                played.append(case)
            try:
                case.play()
            except Exception as error:
                case.wrong.append(f"{case.name}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return played


def table(played: list[Case], services: Services) -> str:
    """Return what was killed and what came of it, as Markdown."""
    lines = ["| SIGKILL of | times |", "|---|---|"]
    lines += [f"| {point} | {times} |" for point, times in sorted(services.kills.items())]
    decisions = sum((case.decisions for case in played), Counter())
    said = ", ".join(f"{word} {times}" for word, times in sorted(decisions.items()))
    unknown = sum(decisions[word] for word in ("done", "run_again", "fail"))
    approved, paid = sum(case.due.total() for case in played), sum(len(case.effects("paid")) for case in played)
    wrong = sum(len(case.wrong) for case in played)
    lines += ["", f"Decisions: {said}", "", "| runs | approved calls | payments | asked as unknown | not allowed |"]
    return "\n".join(
        [*lines, "|---|---|---|---|---|", f"| {len(played)} | {approved} | {paid} | {unknown} | {wrong} |"]
    )
