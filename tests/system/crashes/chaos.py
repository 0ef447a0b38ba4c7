"""Chaos: many executions through proxies that disturb at random, while workers, triggerers and the service are killed.

What is drawn follows from one seed; when it meets whom does not, since real processes are at work.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from faults.lagging import LaggingProxy
from faults.proxy import ALL_FAULTS, LATE_POSTS
from held import looks
from review_verdict import Call, Decided, Verdict, answered
from reviewer import Question

from scripts.stack import AirflowApi, AirflowStack, CrewService, DagRun, wait_until
from scripts.stack.runs import FINISHED

UNKNOWN = "A second kickoff could run the crew twice, so none is sent"
CREW = {
    "inputs": ["topic"],
    "tasks": [
        {"id": "research", "agent": "Researcher", "seconds": 3.0, "output": "Notes on {topic}."},
        {
            "id": "write",
            "agent": "Writer",
            "seconds": 3.0,
            "human_input": "review",  # unless the input `review` says no
            "output": "Draft {revision} on {topic}",
            "revised": "Draft {revision} on {topic}, {feedback}",
        },
    ],
}
ASKING_CREW = {
    "inputs": ["topic"],
    "tasks": [
        {
            "id": "pay",
            "agent": "Accountant",
            "seconds": 3.0,
            "steps": [
                {"tool": "pay", "arguments": {"for": "{topic}, first"}, "result": "paid", "ask": "tool"},
                {"ask": "question", "question": "Who gets the receipt for {topic}?"},
                {"tool": "pay", "arguments": {"for": "{topic}, second"}, "result": "paid", "ask": "tool"},
            ],
            "output": "Paid for {topic}",
        },
    ],
}
CREWS: dict[str, tuple[dict[str, Any], str]] = {  # with the dialect of each
    "spec": (CREW, "spec"),
    "live": (CREW, "live"),
    "asks": (ASKING_CREW, "spec"),
}
ASKS = "chaos_asks"
# How the executions are shared out: the DAG, the dialect, whether the service honours idempotency keys, the share.
SHARES = (
    ("chaos_deferred", "spec", True, 0.2),
    ("chaos_deferred", "live", True, 0.1),
    ("chaos_deferred", "live", False, 0.1),
    ("chaos_worker", "spec", True, 0.1),
    ("chaos_review", "spec", True, 0.2),
    ("chaos_review", "spec", False, 0.1),
    (ASKS, "spec", True, 0.1),
    (ASKS, "spec", False, 0.1),
)
GROUP = "article.crew."  # of the DAG with reviews
# Short, since a retry waits as long again for a POST that was lost.
TIMEOUTS = {"timeout": 5, "kickoff_timeout": 10}

Services = dict[str, CrewService]  # by their crew in CREWS


@dataclass
class Part:
    """A DAG run with its share of the topics, and the proxy that its traffic takes."""

    run: DagRun
    topics: list[str]
    service: CrewService
    dialect: str
    with_keys: bool
    proxy: LaggingProxy
    conn_id: str
    connection: dict[str, Any]
    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def asks(self) -> bool:
        return self.run.dag_id == ASKS

    @property
    def reviewed(self) -> bool:
        return self.asks or self.run.dag_id == "chaos_review"

    @property
    def kickoff(self) -> str:
        """The task that starts the executions."""
        return f"{GROUP}kickoff" if self.reviewed else "crew"

    @property
    def last(self) -> str:
        """The task that returns the completed record."""
        return f"{GROUP}result" if self.reviewed else "crew"

    @property
    def name(self) -> str:
        return f"{self.run.dag_id}, {self.dialect} dialect, {'with' if self.with_keys else 'without'} idempotency keys"


@contextmanager
def parts(airflow: AirflowStack, services: Services, size: int, seed: int, rate: float) -> Iterator[list[Part]]:
    """Start all runs, each through a proxy of its own."""
    with ExitStack() as stack:
        started, topics = [], [f"chaos {seed} {number}" for number in range(size)]
        for number, (dag_id, dialect, with_keys, share) in enumerate(SHARES):
            service = services["asks" if dag_id == ASKS else dialect]
            proxy = stack.enter_context(
                LaggingProxy(service.url, seed=seed + number, rate=rate, faults=(*ALL_FAULTS, *LATE_POSTS))
            )
            conn_id = f"crew_chaos_{seed}_{number}"
            extra = json.dumps({**TIMEOUTS, "idempotency_keys": with_keys})
            connection = {**service.connection, "host": proxy.url, "extra": extra}
            airflow.api.add_connection(conn_id, **connection)
            last = number == len(SHARES) - 1
            mine = [topics.pop() for _ in range(len(topics) if last else round(size * share))]
            run = airflow.api.trigger(dag_id, {"crew": conn_id, "topics": mine})
            started.append(Part(run, mine, service, dialect, with_keys, proxy, conn_id, connection))
        yield started


def executions(service: CrewService) -> list[dict[str, Any]]:
    """Return the service's own list."""
    with sqlite3.connect(service.folder / "service.db") as database:
        rows = database.execute("SELECT id, state, inputs, meta, output FROM executions").fetchall()
    return [
        {"id": i, "state": s, "topic": json.loads(n)["topic"], "meta": json.loads(m), "output": json.loads(o or "null")}
        for i, s, n, m, o in rows
    ]


def decided(service: CrewService, execution_id: str) -> list[Decided]:
    """Return the questions of an execution with what the service took for their answers."""
    query = "SELECT ask, question, outcome, human_feedback FROM rounds WHERE execution_id = ? ORDER BY number"
    with sqlite3.connect(service.folder / "service.db") as database:
        rows = database.execute(query, (execution_id,)).fetchall()
    return [Decided(*(json.loads(each or "null") for each in row)) for row in rows]


def calls(service: CrewService, execution_id: str) -> list[Call]:
    """Return the calls of tools of an execution with their results."""
    query = "SELECT name, arguments, state, result FROM steps WHERE execution_id = ? ORDER BY number"
    with sqlite3.connect(service.folder / "service.db") as database:
        rows = database.execute(query, (execution_id,)).fetchall()
    return [
        Call(json.loads(n), json.loads(json.loads(a)), s, json.loads(json.loads(r or "null") or "null"))
        for n, a, s, r in rows
    ]


def own_api(airflow: AirflowStack) -> AirflowApi:
    """Return a client for another thread."""
    return AirflowApi(airflow.url, *next(iter(airflow.passwords.items())))


def check(part: Part, verdict: Verdict) -> None:
    """Compare every task of a run with the service's list: once with keys, never twice without, and both agree."""
    listed = [each for each in executions(part.service) if each["meta"]["airflow"]["run_id"] == part.run.run_id]
    details = answered(part.run) if part.reviewed else {}
    kickoffs, ends = _tasks(part.run, part.kickoff), _tasks(part.run, part.last)
    for index, kickoff in kickoffs.items():
        mine = [each for each in listed if each["meta"]["airflow"]["map_index"] == index]
        end = ends[index]["state"] if index in ends else "not mapped yet"
        who = f"{part.name}, map index {index}, {end}"
        if len(mine) > 1:
            verdict.doubled.append(f"{who}: started {len(mine)} times")
        elif end == "success":
            _agree(part, index, mine[0], details, verdict)
            part.outcomes["success"] += 1
        elif not part.with_keys and UNKNOWN in part.run.log(part.kickoff, kickoff["try_number"], index):
            part.outcomes[f"outcome unknown, executions: {len(mine)}"] += 1
        else:
            verdict.lost.append(f"{who}: {_last_words(part, index)}")
    assert part.outcomes.total() + len(verdict.lost) + len(verdict.doubled) >= len(part.topics)


def _tasks(run: DagRun, task_id: str) -> dict[int, dict[str, Any]]:
    return {task["map_index"]: task for task in run.tasks() if task["task_id"] == task_id}


def _last_words(part: Part, index: int) -> str:
    failed = [each for each in part.run.tasks() if each["map_index"] == index and each["state"] == "failed"]
    logs = [(each["task_id"], part.run.log(each["task_id"], each["try_number"], index)[-3000:]) for each in failed]
    return f"{logs or part.run.states()}"


def _agree(
    part: Part,
    index: int,
    execution: dict[str, Any],
    details: Mapping[Question, Mapping[str, Any]],
    verdict: Verdict,
) -> None:
    record, topic = part.run.xcom(part.last, map_index=index), execution["topic"]
    assert execution["state"] == "completed"
    assert record["execution_id"] == execution["id"]
    assert topic == part.topics[index]
    if not part.reviewed:
        assert record["output"] == f"Draft 1 on {topic}"
        return
    assert record["output"] == execution["output"]
    who = f"{part.name}, map index {index}"
    mine = [detail for (_, _, map_index), detail in details.items() if map_index == index]
    if part.asks:
        assert record["output"] == f"Paid for {topic}"
        found = decided(part.service, execution["id"])
        verdict.judge_questions_in_the_middle(who, mine, found, calls(part.service, execution["id"]))
        return
    assert f" on {topic}" in record["output"]
    verdict.judge_execution(who, mine, record["output"])


def wait_for_all(started: list[Part], seconds: float) -> None:
    def over() -> bool:
        return all(part.run.state in FINISHED for part in started)

    wait_until(over, "the end of all runs", patience=seconds, pause=2)


def table(started: list[Part], kills: Counter[str], moments: Counter[str], verdict: Verdict) -> str:
    """Return what was injected and what came of it, as Markdown."""
    faults = Counter((each.row, each.call, each.name) for part in started for each in part.proxy.injected)
    lines = ["| fault | times |", "|---|---|"]
    lines += [f"| {row} {call}: {name} | {times} |" for (row, call, name), times in sorted(faults.items())]
    lines += [f"| {what} | {times} |" for what, times in sorted(kills.items())]
    lines += ["", f"{sum(looks(part.proxy) for part in started)} looks at the status", ""]
    lines += ["| run | outcome | tasks |", "|---|---|---|"]
    lines += [f"| {part.name} | {what} | {n} |" for part in started for what, n in sorted(part.outcomes.items())]
    lines += ["", "| state of the task when it was answered | answers |", "|---|---|"]
    lines += [f"| {state} | {times} |" for state, times in sorted(moments.items())]
    lines += ["", "| answers | lost | doubled | to a draft that was not shown | wiped |", "|---|---|---|---|---|"]
    return "\n".join([*lines, f"| {verdict.row()} |"])
