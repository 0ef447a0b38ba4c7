"""Executions of ten steps while their services are killed at random: what was made again, and whether it may be.

A killed service loses the answers that it had not stored. The beginning of a tool is stored before it runs, with all
that came before it, and so is the end of a tool that may run only once, before its crew goes on. So two calls at most
are made again after one kill, and of these the second is a model's.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import psutil
import requests
from sqlalchemy import create_engine, text

from scripts.stack import CrewService
from scripts.stack.background import BackgroundWork
from scripts.stack.processes import Component
from scripts.stack.waiting import PATIENCE, wait_until
from tests.service.crewai.four_tasks import asked_for
from tests.service.crewai.openai_server import OpenAI

CREWS = Path(__file__).parents[2] / "service" / "crewai" / "crews"
CREW = f"{CREWS / 'ten_steps.py'}:ten"
TASKS = ("first", "second")
TOOLS = ("note", "pay")
ONCE = "pay"
CALLS = ("model 1", "note", "model 2", "pay", "model 3")  # of each task, in their order
AFTER_UNSTORED = ("model 1", "model 2")  # asked while the answer of the call before is still on its way
UNKNOWN = f"The tool {ONCE} may run only once, but it is unknown whether it did its work"
PAUSE_BETWEEN_KILLS = (1.0, 6.0)
SECONDS = (0.2, 2.0)  # that a model, or a tool, takes


class Call(NamedTuple):
    case: str
    task: str
    name: str

    @property
    def place(self) -> int:
        """How many calls of the execution come before it."""
        return TASKS.index(self.task) * len(CALLS) + CALLS.index(self.name)

    def __str__(self) -> str:
        return f"{self.case}, {self.task} task, {self.name}"


class Model:
    """Answers each chat by what it holds, and counts what it was asked."""

    def __init__(self, seed: int) -> None:
        self.asked: Counter[Call] = Counter()
        self._lock = threading.Lock()
        self._random = Random(seed)
        self.server = OpenAI()
        self.server.script = self._answer

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        task, case = asked_for(body)
        done = sum(turn["role"] == "tool" for turn in body["messages"])
        with self._lock:
            self.asked[Call(case, task, f"model {done + 1}")] += 1
            seconds = self._random.uniform(*SECONDS)
        time.sleep(seconds)
        if done == len(TOOLS):
            return {"role": "assistant", "content": f"{task} done"}
        function = {"name": TOOLS[done], "arguments": json.dumps({"what": task})}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"call{done}", "type": "function", "function": function}],
        }


@dataclass(frozen=True)
class Left:
    """What a kill has left of an execution."""

    execution_id: str
    segment: int
    answered: int  # how many of its calls have an answer that is stored


@dataclass
class Verdict:
    repeated: list[str] = field(default_factory=list)  # as it may be
    unknown: list[str] = field(default_factory=list)  # executions that ended since nobody knows what a tool has done
    wrong: list[str] = field(default_factory=list)

    def judge(self, case: str, state: str, error: str, made: Counter[Call], lost: list[int]) -> None:
        """Compare the calls that an execution has made with what its kills have left of it.

        :param lost: of each segment that was killed, how many calls had an answer
        """
        is_unknown = state == "failed" and UNKNOWN in error
        if is_unknown:
            self.unknown.append(f"{case}: {error}")
        elif state != "completed":
            self.wrong.append(f"{case}: {state} {error}")
        for call in (Call(case, task, name) for task in TASKS for name in CALLS):
            times, may = made[call], 1 + sum(_may_be_lost(call, answered) for answered in lost)
            if times > may or (times == 0 and not is_unknown):
                self.wrong.append(f"{call}: made {times} times, may be {may}; answers left by each kill: {lost}")
            elif times > 1:
                self.repeated.append(f"{call}: made {times} times, its answer was lost with a service")


def _may_be_lost(call: Call, answered: int) -> bool:
    """Whether a call may have been made whose answer a kill has not left."""
    if call.place == answered:
        return call.name != ONCE
    return call.place == answered + 1 and call.name in AFTER_UNSTORED


class Killer(BackgroundWork):
    """Kills services, alone or with the processes of their crews, looks what is left, and starts them again."""

    def __init__(self, services: list[CrewService], database: str, seed: int) -> None:
        super().__init__()
        self.kills: Counter[str] = Counter()
        self.left: list[Left] = []
        self._services, self._random = services, Random(seed)
        self._engine = create_engine(database)

    def work(self) -> None:
        while not self.over.wait(self._random.uniform(*PAUSE_BETWEEN_KILLS)):
            if not self.rows("SELECT 1 FROM journal WHERE answer IS NOT NULL LIMIT 1"):
                continue  # as long as services start, a kill would meet nothing
            service = self._random.choice(self._services)
            component = service.group.components[service.name]
            if self._random.random() < 0.5:
                component.kill()
                self.kills["service killed with its crews"] += 1
            else:
                psutil.Process(component.session).kill()
                wait_until(partial(_has_ended, component), "the end of the service")
                self.kills["service killed, not its crews"] += 1
            self.left += self._look()
            service.start()

    def rows(self, query: str, **values: Any) -> list[Any]:
        """Read the services' database."""
        with self._engine.connect() as connection:
            return list(connection.execute(text(query), values))

    def _look(self) -> list[Left]:
        running = self.rows("SELECT id, segment, completed_tasks FROM executions WHERE state = 'running'")
        entries = "SELECT 1 FROM journal WHERE execution_id = :id AND answer IS NOT NULL"
        return [
            Left(row.id, row.segment, row.completed_tasks * len(CALLS) + len(self.rows(entries, id=row.id)))
            for row in running
        ]


def _has_ended(component: Component) -> bool:
    return not component.alive


def start_all(services: list[CrewService], folder: Path, size: int) -> dict[str, str]:
    """Start executions in turn; return the case of each by its id."""
    cases = {}
    for number in range(size):
        service, case = services[number % len(services)], f"case-{number}"
        inputs = {"case": case, "log": str(folder / "effects"), "seconds": SECONDS[1] / 4}
        headers = {"Authorization": f"Bearer {service.token}"}
        answer = requests.post(f"{service.url}/kickoff", headers=headers, json={"inputs": inputs}, timeout=PATIENCE)
        assert answer.ok, answer.text
        cases[answer.json()["kickoff_id"]] = case
    return cases


def give_up_unknown(service: CrewService, killer: Killer) -> None:
    """Answer each question about a tool whose outcome is unknown, so that its execution fails."""
    headers = {"Authorization": f"Bearer {service.token}"}
    for row in killer.rows("SELECT kickoff_id FROM executions WHERE state = 'waiting'"):
        seen = requests.get(f"{service.url}/status/{row.kickoff_id}", headers=headers, timeout=PATIENCE).json()
        assert (seen["ask"]["kind"], seen["ask"]["tool"]) == ("unknown_outcome", ONCE)
        named = {"execution_id": row.kickoff_id, "task_id": seen["task_id"], "human_feedback": ""}
        body = {**named, "is_approve": False, "outcome": "fail"}
        answer = requests.post(f"{service.url}/resume", headers=headers, json=body, timeout=PATIENCE)
        assert answer.ok, answer.text


def effects(log: Path) -> Counter[Call]:
    """Count what the tools have done."""
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return Counter(Call(each["case"], each["task"], each["call"]) for each in done)


def judge(cases: dict[str, str], killer: Killer, made: Counter[Call]) -> Verdict:
    verdict = Verdict()
    for row in killer.rows("SELECT id, state, segment, error FROM executions"):
        # Of an execution that nobody has taken over yet, a later kill finds what the one before has left.
        lost = {each.segment: each.answered for each in killer.left if each.execution_id == row.id}
        earlier = [answered for segment, answered in lost.items() if segment < row.segment]
        verdict.judge(cases[row.id], row.state, str(row.error), made, earlier)
    return verdict


def table(killer: Killer, made: Counter[Call], verdict: Verdict, size: int) -> str:
    """Return what was killed and what came of it, as Markdown."""
    lines = ["| fault | times |", "|---|---|", *(f"| S1 {what} | {n} |" for what, n in sorted(killer.kills.items()))]
    lines += ["", *verdict.repeated, *verdict.unknown, ""]
    lines += [
        "| executions | calls | made again | ended, since an outcome is unknown | not allowed |",
        "|---|---|---|---|---|",
    ]
    figures = (size, made.total(), len(verdict.repeated), len(verdict.unknown), len(verdict.wrong))
    return "\n".join([*lines, f"| {' | '.join(map(str, figures))} |"])
