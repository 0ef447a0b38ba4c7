"""Commands for people at a terminal. They open the database directly, so they need no token and no running service.

They print tables for people and JSON for programs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sqlalchemy.engine import Row
from tabulate import tabulate

from crew_service.engine.asks import ANSWER
from crew_service.engine.dead_letters import DeadLetters
from crew_service.engine.decisions import AlreadyOver, BadAnswer, Decision, NotWaiting, UnknownExecution
from crew_service.engine.executions import Executions, Start
from crew_service.engine.principals import Principal
from crew_service.engine.questions import question_in, question_of
from crew_service.http import bodies
from crew_service.options import positive
from crew_service.storage import claims, counts
from crew_service.storage.availability import DatabaseUnavailable
from crew_service.storage.database import Database, DatabaseUnusable
from crew_service.storage.states import OVER, State
from crew_service.times import iso

EVERYBODY = Principal()
STARTED = (State.RUNNING, State.WAITING, State.COMPLETED, State.FAILED)  # only reached after a start


def add_to(commands: argparse._SubParsersAction[Any], database: argparse.ArgumentParser) -> None:
    output = argparse.ArgumentParser(add_help=False)
    output.add_argument("--json", action="store_true", help="print JSON, for programs")
    listing = commands.add_parser("list", parents=[database, output], help="list the newest executions")
    listing.add_argument("--limit", type=positive(int), default=20, help="maximum number (%(default)s)")
    listing.add_argument("--state", choices=[str(state) for state in State], help="only executions in this state")
    listing.set_defaults(run=_list)
    status = commands.add_parser("status", parents=[database, output], help="show one execution with its tasks")
    status.add_argument("id", type=_utf8)
    status.set_defaults(run=_status)
    _add_kickoff(commands, [database, output])
    resume = commands.add_parser("resume", parents=[database, output], help="answer a waiting execution")
    resume.add_argument("id", type=_utf8)
    decision = resume.add_mutually_exclusive_group(required=True)
    decision.add_argument("--approve", action="store_true", help="continue with the text unchanged")
    decision.add_argument("--revise", metavar="FEEDBACK", type=_text, help="run the task again with this feedback")
    decision.add_argument("--outcome", type=_text, help="choose one of a question's outcomes")
    decision.add_argument("--answer", metavar="TEXT", type=_text, help="answer a question with text")
    resume.set_defaults(run=_resume)
    stop = commands.add_parser("stop", parents=[database, output], help="stop an execution")
    stop.add_argument("id", type=_utf8)
    stop.set_defaults(run=_stop)
    queue = commands.add_parser("queue", parents=[database], help="print the length of each crew's queue, as JSON")
    queue.set_defaults(run=_queue)
    _add_webhooks(commands, database)


def _add_kickoff(commands: argparse._SubParsersAction[Any], parents: list[argparse.ArgumentParser]) -> None:
    kickoff = commands.add_parser("kickoff", parents=parents, help="queue an execution for a running service")
    kickoff.add_argument("inputs", nargs="*", metavar="NAME=VALUE", type=_input, help="an input, as text")
    kickoff.add_argument("--inputs", dest="more", metavar="JSON", type=_object, default={}, help="inputs of any type")
    kickoff.add_argument("--name", type=_utf8, default="", help="name of the crew, if the service has several")
    kickoff.set_defaults(run=_kickoff)


def _queue(arguments: argparse.Namespace) -> int:
    """Print what an autoscaler asks; `oldest_seconds` is null if nothing is queued."""
    database = _opened(arguments.db)
    with database.reading() as connection:
        now = database.now()
        rows = claims.queues(connection, now=now)
    say_json(
        [
            {
                "crew": row.crew,
                "queued": row.queued,
                "held": row.held,
                "oldest_seconds": None if row.oldest is None else round(max(0.0, now - row.oldest), 3),
                "running": row.running,
            }
            for row in rows
        ]
    )
    return 0


def _add_webhooks(commands: argparse._SubParsersAction[Any], database: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("webhooks", help="list or resend undelivered webhooks")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("list", parents=[database], help="list the newest undelivered webhooks")
    listing.add_argument("--limit", type=positive(int), default=20, help="maximum number (%(default)s)")
    listing.add_argument("--json", action="store_true", help="print JSON, for programs")
    listing.set_defaults(run=_list_webhooks)
    resend = actions.add_parser("resend", parents=[database], help="resend webhooks through a running service")
    which = resend.add_mutually_exclusive_group(required=True)
    which.add_argument("id", nargs="*", type=_utf8, default=[], help="ids from the list")
    which.add_argument("--all", action="store_true")
    resend.set_defaults(run=_resend_webhooks)


def _input(text: str) -> tuple[str, str]:
    name, separator, value = _utf8(text).partition("=")
    if not (name and separator):
        raise argparse.ArgumentTypeError("expected NAME=VALUE")
    return name, value


def _text(text: str) -> str:
    if not text.strip():  # perhaps from an unset shell variable
        raise argparse.ArgumentTypeError("must not be empty")
    return _utf8(text)


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("must be valid UTF-8") from None
    return text


def _object(text: str) -> dict[str, Any]:
    """Accept what a request may contain: crews, clients and databases cannot read any other JSON."""
    try:
        return bodies.parse(_utf8(text).encode(), None)
    except bodies.BadBody as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


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
    moments = _moments(row, "created_at", "updated_at", "ended_at")
    return {**{name: getattr(row, name) for name in names}, **moments, "work_seconds": round(row.work_seconds, 3)}


def _status(arguments: argparse.Namespace) -> int:
    execution = _executions(arguments.db).find(EVERYBODY, arguments.id)
    if execution is None:
        return _unknown(arguments.id)
    row, tasks = execution
    if arguments.json:
        question = question_of(row)
        pending = question and {"task_id": question.task_id, "output": question.output}
        say_json({**_record(row), "tasks": tasks, "output": row.output, "pending": pending})
        return 0
    say(f"execution  {row.id}")
    if row.kickoff_id != row.id:
        say(f"polled as  {row.kickoff_id}")
    say(f"state      {row.state}, since {moment(row.updated_at)}, after {row.work_seconds:.1f} s of work")
    for task in tasks:
        say(f"\n{task['task_id']} ({task['agent']}, {task['execution_time']:.1f} s)\n{task['output']}")
    if row.state == State.WAITING:
        say(f"\n{row.current_task} is waiting for a person\n{question_in(row.gate).output}")
        say(f"\n{_how_to_decide(row)}")
    if row.error:
        say(f"\nerror\n{row.error}")
    return 0


def _how_to_decide(row: Row[Any]) -> str:
    outcomes = question_in(row.gate).outcomes
    if outcomes is None:
        ways = "--approve | --revise FEEDBACK"
    elif outcomes in ([], [ANSWER]):
        ways = "--answer TEXT"
    else:
        ways = f"--outcome {'|'.join(outcomes)}"
    return f"Decide: airflow-crew-service resume {row.id} {ways}"


def _kickoff(arguments: argparse.Namespace) -> int:
    database = _opened(arguments.db)
    answer = Executions(database, crew=arguments.name).kickoff(
        EVERYBODY, Start({**arguments.more, **dict(arguments.inputs)}), None
    )
    with contextlib.suppress(DatabaseUnavailable):  # the execution is queued either way
        _warn_of_unknown(database, arguments.name, answer["kickoff_id"])
    return _answer(arguments, answer, f"Queued; poll {answer['kickoff_id']}.")


def _warn_of_unknown(database: Database, crew: str, kickoff_id: str) -> None:
    """Warn that the name may be wrong; the database does not record which crews are being served."""
    with database.reading() as connection:
        stored = counts.stored(connection)
    known = {name for (name, state), number in stored.items() if state in STARTED and number > 0}
    if crew in known or not (crew or known):
        return
    named = f"named {crew!r}" if crew else "without a name"
    fail(
        f"Warning: no crew {named} has run on this database. If no service serves it, the execution stays queued; "
        f"`airflow-crew-service stop {kickoff_id}` ends it."
    )


def _stop(arguments: argparse.Namespace) -> int:
    try:
        _executions(arguments.db).stop(EVERYBODY, arguments.id)
    except UnknownExecution:
        return _unknown(arguments.id)
    except AlreadyOver as error:
        return fail(f"{arguments.id} has already ended; it is {error.state}. Nothing was changed.")
    return _answer(arguments, {"status": "stopped", "kickoff_id": arguments.id}, "Stopped.")


def _resume(arguments: argparse.Namespace) -> int:
    executions = _executions(arguments.db)
    execution = executions.find(EVERYBODY, arguments.id)
    if execution is None:
        return _unknown(arguments.id)
    row, _ = execution
    if row.state != State.WAITING:
        return fail(f"{arguments.id} is not waiting for a person; it is {row.state}. Nothing was changed.")
    question = question_in(row.gate)
    may_ask_for_text = question.outcomes is not None  # unlike a draft
    decision = Decision(
        row.id,
        question.key,
        is_approve=None if arguments.outcome or arguments.answer else arguments.approve,
        feedback=arguments.answer or arguments.revise or ("" if may_ask_for_text else "Approved."),
        round=question.round,
        outcome=arguments.outcome or (ANSWER if arguments.answer and question.is_ask else None),
        question_id=question.question_id,
    )
    try:
        answer = executions.resume(EVERYBODY, decision, None, lambda kickoff_id, _: {"kickoff_id": kickoff_id})
    except BadAnswer as refusal:
        return fail(f"{str(refusal).rstrip('.')}. Nothing was changed. {_how_to_decide(row)}")
    except NotWaiting as refusal:
        return fail(f"{arguments.id} cannot be answered: {refusal}. Nothing was changed.")
    return _answer(arguments, answer, f"Resumed; poll {answer['kickoff_id']}.")


def _list_webhooks(arguments: argparse.Namespace) -> int:
    letters = DeadLetters(_opened(arguments.db)).latest(EVERYBODY, arguments.limit)
    if arguments.json:
        say_json([_record_of_webhook(letter) for letter in letters])
    elif letters:
        rows = [
            (moment(each.given_up_at), each.key, each.execution_id, each.kind, each.attempts, each.problem, each.url)
            for each in letters
        ]
        say(table(("abandoned", "id", "execution", "kind", "tries", "problem", "address"), rows))
    else:
        say("No webhooks have been abandoned.")
    return 0


def _record_of_webhook(letter: Any) -> dict[str, Any]:
    fields = {name: getattr(letter, name) for name in ("execution_id", "kind", "attempts", "problem")}
    moments = _moments(letter, "created_at", "given_up_at")
    return {"id": letter.key, "url": str(letter.url), **fields, **moments}


def _resend_webhooks(arguments: argparse.Namespace) -> int:
    letters = DeadLetters(_opened(arguments.db))
    if arguments.all:
        sent, unknown = letters.resend_all(EVERYBODY), []
    else:
        unknown = [key for key in arguments.id if not letters.resend(EVERYBODY, key)]
        sent = len(arguments.id) - len(unknown)
    if sent or not unknown:
        say(f"{sent} webhook{'' if sent == 1 else 's'} will be sent again.")
    for key in unknown:
        fail(f"There is no abandoned webhook {key!r}; see `webhooks list`.")
    return 1 if unknown else 0


def _answer(arguments: argparse.Namespace, record: dict[str, Any], sentence: str) -> int:
    if arguments.json:
        say_json(record)
    else:
        say(sentence)
    return 0


def _opened(database: str) -> Database:
    if "://" not in database and not Path(database).is_file():
        raise DatabaseUnusable(f"There is no database {database!r}; set --db to the service's database.")
    return Database(database)


def _executions(database: str) -> Executions:
    return Executions(_opened(database))


def _news(row: Row[Any]) -> str:
    if row.state == State.WAITING:
        return f"{row.current_task} is waiting for a person"
    if row.error:
        return str(row.error)[:80]
    return f"{row.completed_tasks} tasks done" + ("" if row.state in OVER else f", now {row.current_task or 'next'}")


def _unknown(some_id: str) -> int:
    return fail(f"There is no execution {some_id!r} in this database; `airflow-crew-service list` shows them.")


# --- output ---


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text: str = tabulate(list(rows), headers=list(headers), tablefmt="plain", disable_numparse=True)
    return text


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _moments(row: Any, *names: str) -> dict[str, str | None]:
    known = {name: getattr(row, name) for name in names}
    return {name: None if moment is None else iso(moment, "milliseconds") for name, moment in known.items()}


def say(text: str) -> None:
    print(_plain(text))  # noqa: T201


def say_json(value: Any) -> None:
    print(json.dumps(value, indent=2))  # noqa: T201


def fail(text: str) -> int:
    print(_plain(text), file=sys.stderr)  # noqa: T201
    return 1


def _plain(text: str) -> str:
    """Replace control characters: a crew's output must not control the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)
