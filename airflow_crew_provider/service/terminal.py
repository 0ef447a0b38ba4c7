"""What a person does at a terminal, on the database file itself: no token, and the service need not run."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Row

from .callers import Caller
from .desk import Decision, Desk, NotWaiting
from .states import OVER, State
from .store import Store, StoreUnusable

EVERYBODY = Caller()


def add_to(commands: argparse._SubParsersAction[Any], database: argparse.ArgumentParser) -> None:
    listing = commands.add_parser("list", parents=[database], help="the newest executions")
    listing.add_argument("--limit", type=int, default=20)
    listing.set_defaults(run=_list)
    status = commands.add_parser("status", parents=[database], help="one execution, with its tasks")
    status.add_argument("id")
    status.set_defaults(run=_status)
    resume = commands.add_parser("resume", parents=[database], help="decide for an execution that waits")
    resume.add_argument("id")
    decision = resume.add_mutually_exclusive_group(required=True)
    decision.add_argument("--approve", action="store_true", help="go on with the text as it is")
    decision.add_argument("--revise", metavar="FEEDBACK", help="run the task again with this feedback")
    resume.set_defaults(run=_resume)


def _list(arguments: argparse.Namespace) -> int:
    rows = _desk(arguments.db).latest(EVERYBODY, arguments.limit)
    for row in rows:
        _say(f"{_moment(row.created_at)}  {row.kickoff_id}  {row.state:<9}  {_news(row)}")
    if not rows:
        _say("No executions yet.")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    found = _desk(arguments.db).find(EVERYBODY, arguments.id)
    if found is None:
        return _unknown(arguments.id)
    row, tasks = found
    _say(f"execution  {row.id}")
    if row.kickoff_id != row.id:
        _say(f"polled as  {row.kickoff_id}")
    _say(f"state      {row.state}, since {_moment(row.updated_at)}, after {row.work_seconds:.1f} s of work")
    for task in tasks:
        _say(f"\n{task['task_id']} ({task['agent']}, {task['execution_time']:.1f} s)\n{task['output']}")
    if row.state == State.WAITING:
        _say(f"\n{row.gate['task_id']} waits for a person\n{row.gate['output']}")
        _say(f"\nDecide: airflow-crew-service resume {row.id} --approve | --revise FEEDBACK")
    if row.error:
        _say(f"\nerror\n{row.error}")
    return 0


def _resume(arguments: argparse.Namespace) -> int:
    desk = _desk(arguments.db)
    found = desk.find(EVERYBODY, arguments.id)
    if found is None:
        return _unknown(arguments.id)
    row, _ = found
    if row.state != State.WAITING:
        return _fail(f"{arguments.id} does not wait for a person; it is {row.state}. Nothing was changed.")
    gate = row.gate
    decision = Decision(
        row.id,
        gate["key"],
        is_approve=arguments.approve,
        feedback=arguments.revise or "Approved.",
        round=len(gate["rounds"]) + 1,
    )
    try:
        answer = desk.resume(EVERYBODY, decision, None, lambda kickoff_id: {"kickoff_id": kickoff_id})
    except NotWaiting:
        return _fail(f"{arguments.id} was decided by somebody else just now. Nothing was changed.")
    _say(f"Resumed; poll {answer['kickoff_id']}.")
    return 0


def _desk(database: str) -> Desk:
    if "://" not in database and not Path(database).is_file():
        raise StoreUnusable(f"There is no database {database!r}; name the one of the service with --db.")
    return Desk(Store(database))


def _news(row: Row[Any]) -> str:
    if row.state == State.WAITING:
        return f"{row.gate['task_id']} waits for a person"
    if row.error:
        return row.error[:80]
    return f"{row.completed_tasks} tasks done" + ("" if row.state in OVER else f", now {row.current_task or 'next'}")


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _unknown(some_id: str) -> int:
    return _fail(f"There is no execution {some_id!r} in this database; `airflow-crew-service list` shows them.")


def _fail(text: str) -> int:
    print(_plain(text), file=sys.stderr)  # noqa: T201
    return 1


def _say(text: str) -> None:
    print(_plain(text))  # noqa: T201


def _plain(text: str) -> str:
    """What a crew wrote must not steer the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)
