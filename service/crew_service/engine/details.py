"""All details of one execution, in at most 1 MiB of JSON, which is also the basis of its page.

If the details are too large, long texts are truncated first, all to the same length. Next, the output's object, meta
and inputs are omitted, each as a whole. Finally, the oldest steps, tasks and rounds are omitted. Data beyond the limits
is not read from the database.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import NoResultFound

from crew_service.engine import output_files, paths, steps, usage
from crew_service.engine.crew import Crew
from crew_service.engine.origin import Origin, origin
from crew_service.engine.printed import MOST
from crew_service.engine.questions import Question, question_in
from crew_service.prices import Prices
from crew_service.storage import integrity, printed, queries, views, webhooks
from crew_service.storage import steps as stored_steps
from crew_service.storage.database import Database
from crew_service.storage.states import OVER, State
from crew_service.times import iso

LARGEST = 1024 * 1024  # bytes
LARGEST_WHOLE = 256 * 1024  # limit for each of `WHOLE`, both in characters and in bytes
WHOLE = ("output_json", "meta", "inputs")  # in the order in which they are omitted
LONGEST_TEXT = 256 * 1024  # characters of stored JSON per text
SHORTEST_TEXT = 64
FEW_ROUNDS = 4  # up to this many rounds are read without checking their sizes first
AROUND_OUTPUT = 1_000  # usual number of characters before the output in a stored task
LONGEST_NAME = 1_000
MOST_OUTCOMES = 50
MOST_STEPS = 50  # in total, for all tasks
LARGEST_STEPS = 256 * 1024  # bytes of JSON in one list of steps
HALF_SURROGATES = re.compile("[\ud800-\udfff]")
COMPLETED, RUNNING, PENDING, ERROR, NOT_STARTED = "completed", "running", "pending", "error", "not_started"

SHOWN = 100_000  # characters of text on the page; the whole text is a link away
PRINTED = 32 * 1024  # bytes of a crew's printed output on the page; the rest is a link away
TASKS, ROUNDS = 200, 1  # newest finished tasks and newest rounds on the page
LETTERS = 100  # undelivered webhooks on the page

Record = dict[str, Any]
Made = TypeVar("Made")


@dataclass(frozen=True)
class Found:
    """An execution that the caller may see; `etag` changes with each write, but at most every two seconds for steps."""

    id: str
    etag: str


@dataclass(frozen=True)
class Draft:
    """A draft or question that is waiting for a person."""

    execution_id: str
    task_id: str
    key: str
    agent: str
    text: str
    is_cut: bool
    round: int
    feedback: str  # the person's feedback on the earlier version
    before: str  # the earlier version
    question: str  # for a Flow
    outcomes: list[str] | None  # for a Flow: the choices; empty for text
    question_id: str  # for a Flow
    is_ask: bool  # a question in the middle of a task
    sha256: str  # hash of the whole text
    files: Sequence[Record]  # as listed; only on the execution's page
    origin: Origin | None


@dataclass(frozen=True)
class Shown:
    """The content of an execution's page."""

    row: Row[Any]
    record: Record
    draft: Draft | None
    letters: list[Row[Any]]
    printed: str  # for the organization only
    printed_is_cut: bool

    @property
    def is_over(self) -> bool:
        return self.row.state in OVER

    @property
    def origin(self) -> Origin | None:
        return origin(self.record["meta"])

    @property
    def finished(self) -> list[tuple[int, Record]]:
        """Return the finished tasks with their positions; the oldest may be omitted."""
        tasks = [task for task in self.record["tasks"] if task["state"] == COMPLETED]
        return list(enumerate(tasks, self.row.completed_tasks - len(tasks)))

    @property
    def begun(self) -> list[tuple[int, Record]]:
        """Return the unfinished tasks that have steps, with their expected positions."""
        tasks = [task for task in self.record["tasks"] if task["state"] != COMPLETED and task["steps"]]
        return list(enumerate(tasks, self.row.completed_tasks))


class Details:
    """Details of one crew's executions."""

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
        self._base = repr((dialect, crew.tasks))

    def found(self, head: Row[Any]) -> Found:
        visible = queries.Calm.of(head).seen(self._database.now())
        written = (
            head.id,
            head.kickoff_id,
            head.segment,
            head.writes - head.calm_writes,
            visible,
            head.state,
            head.held_until,
        )
        return Found(
            head.id, f'"{hashlib.sha256(repr((self._base, self._prices, *written)).encode()).hexdigest()[:32]}"'
        )

    def text(self, execution_id: str) -> bytes | None:
        """Return the JSON; None if the execution was deleted in the meantime."""
        return self._read(execution_id, lambda connection, row: fitted(self._record(connection, row)))

    def version(self, execution: Found, *, with_printed: bool) -> tuple[str, list[Row[Any]]]:
        """Return a value that changes with anything that the page shows, and the undelivered webhooks to show."""
        with self._database.reading() as connection:
            letters = webhooks.letters(connection, owner=None, execution_id=execution.id, limit=LETTERS)
            upto = printed.length(connection, execution.id) if with_printed else None
        return hashlib.sha256(repr((execution.etag, letters, upto)).encode()).hexdigest(), letters

    def shown(self, execution_id: str, letters: list[Row[Any]], *, with_printed: bool) -> Shown | None:
        def read(connection: Connection, row: Row[Any]) -> Shown:
            record = self._record(connection, row, tasks=TASKS, rounds=ROUNDS)
            fitted(record)
            last = printed.last(connection, row.id, most=PRINTED) if with_printed else ("", False)
            return Shown(row, record, _recorded_draft(connection, row, record), letters, *last)

        return self._read(execution_id, read)

    def whole_text(self, execution_id: str, part: str, *, with_printed: bool) -> str | None:
        """Return a complete text: `draft`, `output`, `printed`, or a task's output, by the task's position."""
        with self._database.reading() as connection:
            if part == "draft":
                question = views.question(connection, execution_id)
                return question_in(question).output if question else None
            if part == "printed":
                return printed.last(connection, execution_id, most=MOST)[0] if with_printed else None
            position = paths.whole(part)
            if position is None and part != "output":
                return None
            value = views.whole(connection, execution_id, position)
        return value["output"] if isinstance(value, dict) else value if isinstance(value, str) else None

    def _read(self, execution_id: str, make: Callable[[Connection, Row[Any]], Made]) -> Made | None:
        with suppress(NoResultFound):  # deleted between two statements
            for _ in range(2):
                with self._database.reading() as connection:
                    row = views.small(connection, execution_id)
                    if row is None:
                        return None
                    if integrity.is_readable(row):
                        return make(connection, row)
                self._mend(execution_id)
        return None

    def _record(
        self,
        connection: Connection,
        row: Row[Any],
        *,
        tasks: int = views.MOST_RESULTS,
        rounds: int = views.MOST_ROUNDS,
    ) -> Record:
        """Return the details with up to this many of the newest finished tasks and rounds."""
        left_out: list[str] = []
        sizes = views.result_sizes(connection, row.id, most=tasks)
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
            "held_until": _iso(row.held_until) if row.state == State.QUEUED else None,
            "usage": self._prices.priced(usage.so_far(row)),
            "continued_from": row.continued_from,
            usage.CHAIN: self._prices.priced(usage.chain(row)),
            "error": texts["error"][0],
            "output": texts["output"][0],
            "output_json": wholes["output_json"],
            "tasks": self._with_steps(connection, row, self._tasks(connection, row, sizes, most), left_out),
            "rounds": self._rounds(connection, row, rounds),
            "files": self._files(connection, row, left_out),
            "view": paths.view(row.id),
            "left_out": left_out,
        }
        if any(is_cut for _, is_cut in texts.values()):
            record["cut"] = True
        if sizes and sizes[0][0] > 0:
            left_out.append("tasks")
        if len(record["rounds"]) < len(_listed(row.asked)):
            left_out.append("rounds")  # too many, or from an earlier release, which stored none
        return record

    def _files(self, connection: Connection, row: Row[Any], left_out: list[str]) -> list[Record]:
        rows = output_files.listed(connection, row.id) or []
        if len(rows) > output_files.LISTED:
            left_out.append("files")
        return [each.as_dict() for each in rows[: output_files.LISTED]]

    def files(self, execution_id: str) -> list[output_files.ListedFile] | None:
        """Return all files of an execution; None if it is unknown."""
        with self._database.reading() as connection:
            return output_files.listed(connection, execution_id)

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
        """Return the finished tasks, the started ones and, for a crew, those that have not started."""
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

    def _with_steps(
        self, connection: Connection, row: Row[Any], tasks: list[Record], left_out: list[str]
    ) -> list[Record]:
        """Add the newest steps to their tasks; if several tasks have the same id, to the last of them."""
        by_id = {task["task_id"]: task for task in tasks if task["state"] != NOT_STARTED}
        newest = stored_steps.newest(connection, row.id, most=MOST_STEPS + 1)
        if len(newest) > MOST_STEPS:
            left_out.append("steps")
        for each in newest[-MOST_STEPS:]:
            if task := by_id.get(each.task_id):
                task["steps"].append(steps.told(each, row, self._prices))
        return tasks

    def steps(self, execution_id: str, *, after: int, most: int) -> Record | None:
        """Return steps in order, fewer if they are large, and the number of the step to continue after.

        Return None for an unknown execution.
        """
        with self._database.reading() as connection:
            row = views.small(connection, execution_id)
            if row is None:
                return None
            rows = stored_steps.listed(connection, execution_id, after=after, most=most + 1)
        listed: list[Record] = []
        room = LARGEST_STEPS
        for each in rows[:most]:
            step = steps.listed(each, row, self._prices)
            room -= len(json.dumps(step, ensure_ascii=False).encode())
            if room < 0 and listed:
                break
            listed.append(step)
        return {"steps": listed, "next": listed[-1]["number"] if len(rows) > len(listed) else None}

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
        word = ERROR if row.state in OVER else PENDING if waits else RUNNING
        used = usage.of_task(task.get("usage"))
        return {
            **_task(task_id, str(task.get("agent") or ""), word),
            "started_at": _iso(task.get("started_at")),
            "usage": self._prices.priced(used),
        }

    def _rounds(self, connection: Connection, row: Row[Any], newest: int) -> list[Record]:
        few = min(newest, len(_listed(row.asked))) <= FEW_ROUNDS
        most = LONGEST_TEXT if few else _room(views.round_sizes(connection, row.id, newest))
        listed = [_round(each, most) for each in views.round_starts(connection, row.id, newest, most=most)]
        number = len(_listed(row.asked))
        if row.state == State.WAITING and (not listed or listed[-1]["number"] < number):
            listed.append(_asked_before(*views.question_start(connection, row.id, most=LONGEST_TEXT), row, number))
        return listed


def draft_of(
    execution_id: str,
    question: Question,
    meta: Any,
    text: str | None = None,
    *,
    is_cut: bool = False,
    files: Sequence[Record] = (),
) -> Draft:
    """Return the waiting draft; `text`, if given, replaces the question's text."""
    text, rounds = str(question.output if text is None else text), question.rounds
    return Draft(
        execution_id,
        question.task_id,
        question.key,
        question.agent,
        text[:SHOWN],
        is_cut or len(text) > SHOWN,
        question.round,
        rounds[-1]["feedback"] if rounds else "",
        str(rounds[-1]["output"])[:SHOWN] if rounds else "",
        str(question.question or ""),
        question.outcomes,
        question.question_id or "",
        question.is_ask,
        question.output_sha256 or "",
        files,
        origin(meta),
    )


def _recorded_draft(connection: Connection, row: Row[Any], record: Record) -> Draft | None:
    stored = views.question(connection, row.id) if row.state == State.WAITING else None
    if stored is None or not record["rounds"]:
        return None
    newest = record["rounds"][-1]
    files = output_files.shown_with(record["files"], newest["number"])
    is_cut = newest.get("cut", False)
    return draft_of(row.id, question_in(stored), record["meta"], newest["draft"], is_cut=is_cut, files=files)


def _task(task_id: str, agent: str, state: str) -> Record:
    names = {"task_id": task_id, "name": task_id, "agent": agent, "state": state}
    return {**names, "started_at": None, "seconds": None, "output": None, "usage": None, "steps": []}


def _round(row: Row[Any], most: int) -> Record:
    texts = {
        name: views.begun(getattr(row, name), getattr(row, f"{name}_length"), most)
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
        "ask": row.ask,
        "by": row.by,
        **({"cut": True} if is_cut else {}),
    }


def _asked_before(start: Record, cut: str | None, row: Row[Any], number: int) -> Record:
    """Build the round for a question from an earlier release, which is stored only in the execution."""
    names = ("question", "outcomes", "output_sha256", "ask")
    undecided = dict.fromkeys(("decided_at", "is_approve", "outcome", "human_feedback", "edited", "by"))
    round_start = {
        "number": number,
        "task_id": str(start.get("task_id", row.current_task)),
        "asked_at": _iso(row.updated_at),
    }
    record = {**round_start, **{name: start.get(name) for name in names}, "draft": start.get("output"), **undecided}
    return record if cut is None else {**record, "cut": True}


def _room(sizes: list[int]) -> int:
    """Return how much of each stored text to read, so that together they just fill the response."""
    left, most = LARGEST, LONGEST_TEXT
    for place, size in enumerate(sorted(sizes)):
        most = left // (len(sizes) - place)
        if size > most:
            break
        left -= size
    return min(max(most, SHORTEST_TEXT) + AROUND_OUTPUT, LONGEST_TEXT)


def fitted(record: Record) -> bytes:
    """Return a record as JSON, truncated until it fits."""
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
    while len(text) > LARGEST and (tasks := [task for task in record["tasks"] if task["steps"]]):
        of_oldest = tasks[0]["steps"]
        del of_oldest[: len(of_oldest) // 2 + 1]
        record["left_out"] = list(dict.fromkeys((*record["left_out"], "steps")))
        text = _json(record)
    for name in ("tasks", "rounds", "files"):
        while len(text) > LARGEST and record[name]:
            del record[name][: len(record[name]) // 8 + 1]
            record["left_out"] = list(dict.fromkeys((*record["left_out"], name)))
            text = _json(record)
    return text


def _texts(record: Record) -> list[tuple[Record, str]]:
    """Return the places of strings that may be long."""
    return [
        *((record, name) for name in ("output", "error")),
        *((task, "output") for task in record["tasks"]),
        *((step, name) for task in record["tasks"] for step in task["steps"] for name in ("arguments", "result")),
        *((each, name) for each in record["rounds"] for name in ("question", "draft", "human_feedback")),
    ]


def _names(record: Record) -> list[tuple[Record, str, int]]:
    """Return the places and maximum lengths of strings that are usually short; truncate long outcomes right away."""
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
    return iso(moment) if isinstance(moment, int | float) else None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
