"""Everything that is known of one execution, in at most 1 MiB of JSON.

What is too large is cut or left out in this order: texts are cut, all of them at the same length; inputs, meta and the
output as an object go as a whole; then the oldest tasks and rounds. Nothing larger is read from the database.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from sqlalchemy.engine import Connection, Row

from crew_service.engine import paths, usage
from crew_service.engine.crew import Crew
from crew_service.prices import Prices
from crew_service.storage import integrity, views
from crew_service.storage.database import Database
from crew_service.storage.states import State

LARGEST = 1024 * 1024  # bytes
LARGEST_WHOLE = 256 * 1024  # characters, and bytes, of inputs, meta and the object of an output
WHOLE = ("output_json", "meta", "inputs")  # in the order in which they go
LONGEST_TEXT = 256 * 1024  # characters of stored JSON
SHORTEST_TEXT = 64
AROUND_OUTPUT = 1_000  # characters of a stored task before its output, as a rule
LONGEST_NAME = 1_000
MOST_OUTCOMES = 50
HALF_SURROGATES = re.compile("[\ud800-\udfff]")
COMPLETED, RUNNING, PENDING, ERROR, NOT_STARTED = "completed", "running", "pending", "error", "not_started"
WORDS = {  # of the specification, for a task that has begun and is not finished
    State.QUEUED: RUNNING,
    State.RUNNING: RUNNING,
    State.WAITING: RUNNING,
    State.FAILED: ERROR,
    State.STOPPED: ERROR,
}

Record = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """An execution that the caller may see; `etag` changes with each write of it."""

    id: str
    etag: str


class Details:
    """Of the executions of one crew."""

    def __init__(
        self,
        database: Database,
        crew: Crew,
        *,
        dialect: str,
        prices: Prices,
        word: Callable[[State], str],
        mend: Callable[[str], None],
    ) -> None:
        self._database = database
        self._crew = crew
        self._dialect = dialect
        self._prices = prices
        self._word = word
        self._mend = mend
        self._base = repr((dialect, prices, crew.tasks))

    def found(self, head: Row[Any]) -> Found:
        written = (head.id, head.kickoff_id, head.segment, head.writes, head.state)
        return Found(head.id, f'"{hashlib.sha256(repr((self._base, *written)).encode()).hexdigest()[:32]}"')

    def text(self, execution_id: str) -> bytes | None:
        """Return the JSON; None for an execution that was deleted meanwhile."""
        for _ in range(2):
            with self._database.reading() as connection:
                row = views.small(connection, execution_id)
                if row is None:
                    return None
                if integrity.is_readable(row):
                    return fitted(self._record(connection, row))
            self._mend(execution_id)
        return None

    def _record(self, connection: Connection, row: Row[Any]) -> Record:
        left_out: list[str] = []
        sizes = views.result_sizes(connection, row.id)
        most = _room([size for _, size in sizes])
        wholes = self._wholes(connection, row.id, left_out)
        texts = views.starts(connection, row.id, ("output", "error"), most=LONGEST_TEXT)
        record: Record = {
            "execution_id": row.id,
            "kickoff_ids": self._ids(connection, row, left_out),
            "crew": row.crew,
            "dialect": self._dialect,
            "state": self._word(row.state),
            "inputs": wholes["inputs"],
            "meta": wholes["meta"],
            "created_at": _iso(row.created_at),
            "started_at": _iso(row.started_at),
            "ended_at": _iso(row.ended_at),
            "work_seconds": round(row.work_seconds, 3),
            "usage": self._prices.priced(usage.so_far(row)),
            "error": texts["error"][0],
            "output": texts["output"][0],
            "output_json": wholes["output_json"],
            "tasks": self._tasks(connection, row, sizes, most),
            "rounds": self._rounds(connection, row),
            "view": paths.view(row.id),
            "left_out": left_out,
        }
        if any(is_cut for _, is_cut in texts.values()):
            record["cut"] = True
        if sizes and sizes[0][0] > 0:
            left_out.append("tasks")
        if len(record["rounds"]) < len(_listed(row.asked)):
            left_out.append("rounds")  # too many, or asked by an earlier release, which kept none
        return record

    def _ids(self, connection: Connection, row: Row[Any], left_out: list[str]) -> list[str]:
        earlier = views.earlier_ids(connection, row.id)
        if len(earlier) >= views.MOST_IDS:
            left_out.append("kickoff_ids")
        return list(dict.fromkeys((row.id, *earlier, row.kickoff_id)))

    def _wholes(self, connection: Connection, execution_id: str, left_out: list[str]) -> Record:
        values: Record = {}
        for name, stored in views.wholes(connection, execution_id, WHOLE, most=LARGEST_WHOLE).items():
            try:
                values[name] = None if stored is None else views.DECODER.decode(stored)
                is_large = len(_json(values[name])) > LARGEST_WHOLE
            except (ValueError, RecursionError):
                is_large = True
            if is_large:
                values[name] = None
                left_out.append(name)
        return values

    def _tasks(self, connection: Connection, row: Row[Any], sizes: list[tuple[int, int]], most: int) -> list[Record]:
        """Return the finished tasks, those that have begun, and of a crew those that have not."""
        finished = []
        if sizes:
            started = views.result_starts(connection, row.id, since=sizes[0][0], most=most)
            finished = [self._finished(each, most) for each in started]
        open_tasks = row.open_tasks if isinstance(row.open_tasks, dict) else {}
        if row.state == State.COMPLETED:
            open_tasks = {}
        elif row.current_task is not None and row.current_task not in open_tasks:
            open_tasks = {**open_tasks, row.current_task: {"agent": row.current_agent}}
        begun = [self._begun(row, name, task) for name, task in open_tasks.items() if isinstance(task, dict)]
        known = {task["task_id"] for task in (*finished, *begun)}
        crew = self._crew.tasks if self._crew.kind == "crew" and row.state != State.COMPLETED else []
        place = {task.id: place for place, task in enumerate(crew)}
        begun.sort(key=lambda task: place.get(task["task_id"], len(place)))
        return [*finished, *begun, *(_task(each.id, each.agent, NOT_STARTED) for each in crew if each.id not in known)]

    def _finished(self, row: Row[Any], most: int) -> Record:
        task, cut = views.fields(row.task)
        figures = row.figures if isinstance(row.figures, dict) else {}
        output = task.get("output")
        used = usage.of_task(figures.get("usage"))
        return {
            **_task(str(task.get("task_id", "")), str(task.get("agent", "")), COMPLETED),
            "name": str(task.get("name") or task.get("task_id", "")),
            "started_at": _iso(figures.get("started_at")),
            "seconds": figures.get("seconds", task.get("execution_time")),
            "output": output if isinstance(output, str) else None,
            "usage": self._prices.priced(used),
            **({"cut": True} if row.task_length > most and (cut == "output" or output is None) else {}),
        }

    def _begun(self, row: Row[Any], task_id: str, task: Record) -> Record:
        waits = row.state == State.WAITING and task_id == row.current_task
        used = usage.of_task(task.get("usage"))
        return {
            **_task(task_id, str(task.get("agent") or ""), PENDING if waits else WORDS[row.state]),
            "started_at": _iso(task.get("started_at")),
            "usage": self._prices.priced(used),
        }

    def _rounds(self, connection: Connection, row: Row[Any]) -> list[Record]:
        found = [_round(each) for each in views.round_starts(connection, row.id, most=LONGEST_TEXT)]
        number = len(_listed(row.asked))
        if row.state == State.WAITING and (not found or found[-1]["number"] < number):
            found.append(_asked_before(*views.gate_start(connection, row.id, most=LONGEST_TEXT), row, number))
        return found


def _task(task_id: str, agent: str, state: str) -> Record:
    names = {"task_id": task_id, "name": task_id, "agent": agent, "state": state}
    return {**names, "started_at": None, "seconds": None, "output": None, "usage": None}


def _round(row: Row[Any]) -> Record:
    texts = {
        name: views.begun(getattr(row, name), getattr(row, f"{name}_length"), LONGEST_TEXT)
        for name in ("question", "draft", "human_feedback")
    }
    is_cut = row.draft_is_cut or any(cut for _, cut in texts.values())
    return {
        "number": row.number,
        "task_id": str(row.task_id),
        "asked_at": _iso(row.asked_at),
        "question": texts["question"][0],
        "outcomes": row.outcomes,
        "draft": texts["draft"][0],
        "output_sha256": row.output_sha256,
        "decided_at": _iso(row.decided_at),
        "is_approve": row.is_approve,
        "outcome": row.outcome,
        "human_feedback": texts["human_feedback"][0],
        "edited": row.edited,
        "by": row.by,
        **({"cut": True} if is_cut else {}),
    }


def _asked_before(gate: Record, cut: str | None, row: Row[Any], number: int) -> Record:
    """What an earlier release has asked stands in the execution alone."""
    names = ("question", "outcomes", "output_sha256")
    undecided = dict.fromkeys(("decided_at", "is_approve", "outcome", "human_feedback", "edited", "by"))
    asked = {"number": number, "task_id": str(gate.get("task_id", row.current_task)), "asked_at": _iso(row.updated_at)}
    record = {**asked, **{name: gate.get(name) for name in names}, "draft": gate.get("output"), **undecided}
    return record if cut is None else {**record, "cut": True}


def _room(sizes: list[int]) -> int:
    """Return how much of each stored task is read, so that all of them together are as large as the answer."""
    left, most = LARGEST, LONGEST_TEXT
    for place, size in enumerate(sorted(sizes)):
        most = left // (len(sizes) - place)
        if size > most:
            break
        left -= size
    return min(max(most, SHORTEST_TEXT) + AROUND_OUTPUT, LONGEST_TEXT)


def fitted(record: Record) -> bytes:
    """Return a record as JSON, cut until it fits."""
    for holder, name, most in _names(record):
        _cut(holder, name, most)
    text = _json(record)
    longest = LONGEST_TEXT
    while len(text) > LARGEST and longest > SHORTEST_TEXT:
        longest //= 2
        for holder, name in _texts(record):
            _cut(holder, name, longest)
        text = _json(record)
    for name in WHOLE:
        if len(text) > LARGEST and record[name] is not None:
            record[name] = None
            record["left_out"].append(name)
            text = _json(record)
    for name in ("tasks", "rounds"):
        while len(text) > LARGEST and record[name]:
            del record[name][: len(record[name]) // 8 + 1]
            record["left_out"] = list(dict.fromkeys((*record["left_out"], name)))
            text = _json(record)
    return text


def _texts(record: Record) -> list[tuple[Record, str]]:
    """Return where the long texts stand."""
    return [
        *((record, name) for name in ("output", "error")),
        *((task, "output") for task in record["tasks"]),
        *((each, name) for each in record["rounds"] for name in ("question", "draft", "human_feedback")),
    ]


def _names(record: Record) -> list[tuple[Record, str, int]]:
    """Return where the texts stand that are short as a rule, and how long they may be."""
    for each in record["rounds"]:
        outcomes = _listed(each["outcomes"])
        if len(outcomes) > MOST_OUTCOMES or any(len(str(one)) > LONGEST_NAME for one in outcomes):
            each |= {"outcomes": [str(one)[:LONGEST_NAME] for one in outcomes[:MOST_OUTCOMES]], "cut": True}
    return [
        *((task, name, LONGEST_NAME) for task in record["tasks"] for name in ("task_id", "name", "agent")),
        *((each, name, LONGEST_NAME) for each in record["rounds"] for name in ("task_id", "outcome")),
    ]


def _cut(holder: Record, name: str, most: int) -> None:
    if isinstance(holder[name], str) and len(holder[name]) > most:
        holder[name] = holder[name][:most]
        holder["cut"] = True


def _json(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return HALF_SURROGATES.sub("\ufffd", text).encode()


def _iso(moment: Any) -> str | None:
    return datetime.fromtimestamp(moment, timezone.utc).isoformat() if isinstance(moment, int | float) else None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
