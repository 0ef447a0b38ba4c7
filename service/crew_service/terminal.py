"""The commands for a person at a terminal: they open the database itself, so they need no token and no service."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from sqlalchemy.engine import Row

from crew_service import terminal_webhooks
from crew_service.engine.decisions import BadAnswer
from crew_service.engine.executions import AlreadyOver, Decision, Executions, NotWaiting, Start, UnknownExecution
from crew_service.engine.principals import Principal
from crew_service.options import positive
from crew_service.storage.database import Database, DatabaseUnusable
from crew_service.storage.states import OVER, State
from crew_service.terminal_output import fail, iso, moment, say, say_json, table

EVERYBODY = Principal()


def add_to(commands: argparse._SubParsersAction[Any], database: argparse.ArgumentParser) -> None:
    output = argparse.ArgumentParser(add_help=False)
    output.add_argument("--json", action="store_true", help="for programs")
    listing = commands.add_parser("list", parents=[database, output], help="the newest executions")
    listing.add_argument("--limit", type=positive(int), default=20, help="how many at most (%(default)s)")
    listing.add_argument("--state", choices=[str(state) for state in State], help="only executions in this state")
    listing.set_defaults(run=_list)
    status = commands.add_parser("status", parents=[database, output], help="one execution, with its tasks")
    status.add_argument("id")
    status.set_defaults(run=_status)
    _add_kickoff(commands, [database, output])
    resume = commands.add_parser("resume", parents=[database, output], help="decide for an execution that waits")
    resume.add_argument("id")
    decision = resume.add_mutually_exclusive_group(required=True)
    decision.add_argument("--approve", action="store_true", help="go on with the text as it is")
    decision.add_argument("--revise", metavar="FEEDBACK", help="run the task again with this feedback")
    decision.add_argument("--outcome", help="choose one of the outcomes that a Flow offers")
    decision.add_argument("--answer", metavar="TEXT", help="answer a Flow in words")
    resume.set_defaults(run=_resume)
    stop = commands.add_parser("stop", parents=[database, output], help="stop an execution")
    stop.add_argument("id")
    stop.set_defaults(run=_stop)
    terminal_webhooks.add_to(commands, database, _opened)


def _add_kickoff(commands: argparse._SubParsersAction[Any], parents: list[argparse.ArgumentParser]) -> None:
    kickoff = commands.add_parser("kickoff", parents=parents, help="queue an execution for a service that runs")
    kickoff.add_argument("inputs", nargs="*", metavar="NAME=VALUE", type=_input, help="an input, as text")
    kickoff.add_argument("--inputs", dest="more", metavar="JSON", type=_object, default={}, help="inputs of any type")
    kickoff.add_argument("--name", default="", help="of the crew, where the service has several")
    kickoff.set_defaults(run=_kickoff)


def _input(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not (name and found):
        raise argparse.ArgumentTypeError("expected NAME=VALUE")
    return name, value


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value


def _list(arguments: argparse.Namespace) -> int:
    states = {State(arguments.state)} if arguments.state else set()
    rows = _executions(arguments.db).latest(EVERYBODY, arguments.limit, states, more=("inputs", "meta"))
    if arguments.json:
        say_json([_record(row) for row in rows])
    elif rows:
        lines = [(moment(row.created_at), row.kickoff_id, row.state, _news(row)) for row in rows]
        say(table(("started", "id", "state", ""), lines))
    else:
        say(f"There are no {arguments.state} executions." if arguments.state else "No executions yet.")
    return 0


def _record(row: Row[Any]) -> dict[str, Any]:
    names = ("id", "kickoff_id", "state", "owner", "inputs", "meta", "completed_tasks", "current_task", "error")
    moments = {name: iso(getattr(row, name)) for name in ("created_at", "updated_at", "ended_at")}
    return {**{name: getattr(row, name) for name in names}, **moments, "work_seconds": round(row.work_seconds, 3)}


def _status(arguments: argparse.Namespace) -> int:
    found = _executions(arguments.db).find(EVERYBODY, arguments.id)
    if found is None:
        return _unknown(arguments.id)
    row, tasks = found
    if arguments.json:
        gate = row.gate and {"task_id": row.gate["task_id"], "output": row.gate["output"]}
        say_json({**_record(row), "tasks": tasks, "output": row.output, "pending": gate})
        return 0
    say(f"execution  {row.id}")
    if row.kickoff_id != row.id:
        say(f"polled as  {row.kickoff_id}")
    say(f"state      {row.state}, since {moment(row.updated_at)}, after {row.work_seconds:.1f} s of work")
    for task in tasks:
        say(f"\n{task['task_id']} ({task['agent']}, {task['execution_time']:.1f} s)\n{task['output']}")
    if row.state == State.WAITING:
        say(f"\n{row.current_task} waits for a person\n{row.gate['output']}")
        say(f"\nDecide: airflow-crew-service resume {row.id} --approve | --revise FEEDBACK")
    if row.error:
        say(f"\nerror\n{row.error}")
    return 0


def _kickoff(arguments: argparse.Namespace) -> int:
    executions = Executions(_opened(arguments.db), crew=arguments.name)
    answer = executions.kickoff(EVERYBODY, Start({**arguments.more, **dict(arguments.inputs)}), None)
    return _answer(arguments, answer, f"Queued; poll {answer['kickoff_id']}.")


def _stop(arguments: argparse.Namespace) -> int:
    try:
        _executions(arguments.db).stop(EVERYBODY, arguments.id)
    except UnknownExecution:
        return _unknown(arguments.id)
    except AlreadyOver as error:
        return fail(f"{arguments.id} is over already; it is {error.state}. Nothing was changed.")
    return _answer(arguments, {"status": "stopped", "kickoff_id": arguments.id}, "Stopped.")


def _resume(arguments: argparse.Namespace) -> int:
    executions = _executions(arguments.db)
    found = executions.find(EVERYBODY, arguments.id)
    if found is None:
        return _unknown(arguments.id)
    row, _ = found
    if row.state != State.WAITING:
        return fail(f"{arguments.id} does not wait for a person; it is {row.state}. Nothing was changed.")
    gate = row.gate
    decision = Decision(
        row.id,
        gate["key"],
        is_approve=None if arguments.outcome or arguments.answer else arguments.approve,
        feedback=arguments.answer or arguments.revise or ("" if arguments.outcome else "Approved."),
        round=len(gate["rounds"]) + 1,
        outcome=arguments.outcome,
        question_id=gate.get("question_id"),
    )
    try:
        answer = executions.resume(EVERYBODY, decision, None, lambda kickoff_id: {"kickoff_id": kickoff_id})
    except BadAnswer as refusal:
        return fail(f"{refusal} Nothing was changed.")
    except NotWaiting:
        return fail(f"{arguments.id} was answered by somebody else in the meantime. Nothing was changed.")
    return _answer(arguments, answer, f"Resumed; poll {answer['kickoff_id']}.")


def _answer(arguments: argparse.Namespace, record: dict[str, Any], sentence: str) -> int:
    if arguments.json:
        say_json(record)
    else:
        say(sentence)
    return 0


def _opened(database: str) -> Database:
    if "://" not in database and not Path(database).is_file():
        raise DatabaseUnusable(f"There is no database {database!r}; name the one of the service with --db.")
    return Database(database)


def _executions(database: str) -> Executions:
    return Executions(_opened(database))


def _news(row: Row[Any]) -> str:
    if row.state == State.WAITING:
        return f"{row.current_task} waits for a person"
    if row.error:
        return str(row.error)[:80]
    return f"{row.completed_tasks} tasks done" + ("" if row.state in OVER else f", now {row.current_task or 'next'}")


def _unknown(some_id: str) -> int:
    return fail(f"There is no execution {some_id!r} in this database; `airflow-crew-service list` shows them.")
