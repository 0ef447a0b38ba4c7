"""`airflow-crew-service`: serve crews, prepare an image, and list, show and resume executions from a terminal."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import os
import secrets
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crew_service import __version__, check, image, logs, options, terminal
from crew_service.budgets import BadBudget
from crew_service.engine import machine, paths
from crew_service.engine.container import Process
from crew_service.engine.crew import BadTarget, Crew
from crew_service.engine.health import WATCHED
from crew_service.engine.principals import BadToken
from crew_service.engine.printed import masked, secrets_of
from crew_service.engine.sending import STANDARD, standard_key
from crew_service.http.dialects import DIALECTS
from crew_service.http.server import server, unbounded
from crew_service.http.starting import Starting, bind, port
from crew_service.offline import openai_api
from crew_service.offline.answers import answers_of
from crew_service.prices import BadPrices
from crew_service.settings import Settings
from crew_service.storage import file_lock
from crew_service.storage.availability import DatabaseUnavailable
from crew_service.storage.database import DatabaseUnusable

UNUSABLE = (BadTarget, BadToken, BadPrices, BadBudget)  # options
DATABASE_VARIABLE = "CREW_SERVICE_DB"  # a URL may contain a password, which must not appear on a command line


def main(argv: list[str] | None = None, starting: Starting | None = None) -> int:
    """Run a command and return its exit code.

    :param starting: has been answering probes since before the modules of `serve` were imported
    """
    arguments = _parser().parse_args(argv, argparse.Namespace(starting=starting, target=None))
    if arguments.target:
        arguments.crew = [arguments.target, *(arguments.crew or [])]
    try:
        code: int = arguments.run(arguments)
        return code
    except (*UNUSABLE, DatabaseUnusable, DatabaseUnavailable, file_lock.AlreadyServed) as error:
        return _refuse(_said(error, arguments))
    except BrokenPipeError:  # the reader of the output has exited, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="airflow-crew-service", description="Serve crews over the Crew Execution API."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    database = argparse.ArgumentParser(add_help=False)
    database.add_argument(
        "--db",
        default=os.environ.get(DATABASE_VARIABLE) or Settings.database,
        metavar="FILE",
        help=f"SQLite file or SQLAlchemy URL; also {DATABASE_VARIABLE} ({Settings.database})",
    )
    _add_serve(commands, database)
    terminal.add_to(commands, database)
    return parser


def _add_serve(commands: Any, database: argparse.ArgumentParser) -> None:
    serve = commands.add_parser("serve", parents=[database], help="run crews, and serve them over HTTP")
    options.add_crews(serve)
    options.add_http(serve)
    serve.set_defaults(run=_serve)
    work = commands.add_parser(
        "work", parents=[database], help="run crews only, for services that share a PostgreSQL database"
    )
    options.add_crews(work)
    work.add_argument(
        "--max-executions",
        type=options.positive(int),
        metavar="N",
        help="end after this many segments; an execution that asks a person is several (no limit)",
    )
    work.add_argument(
        "--idle-exit",
        type=options.positive(float),
        metavar="SECONDS",
        help="end after finding nothing to run for this long (never)",
    )
    work.set_defaults(run=_work)
    checked = commands.add_parser(
        "check", parents=[database], help="load crews as `serve` would, and list what they have; needs no database"
    )
    options.add_crews(checked)
    options.add_http(checked)
    checked.set_defaults(run=_check)
    init = commands.add_parser("init", help="write the files for an image of a CrewAI project; keep existing ones")
    init.add_argument("folder", nargs="?", default=".", type=Path, metavar="DIR", help="project folder (%(default)s)")
    init.set_defaults(run=_init)
    model = commands.add_parser("offline-model", help="imitate OpenAI's API on this machine, without network access")
    model.add_argument("--port", type=port, default=8400, help="(%(default)s)")
    model.add_argument(
        "--answers", type=Path, metavar="FILE", help="JSON object that maps words in the question to answers"
    )
    model.set_defaults(run=_offline_model)


def _serve(arguments: argparse.Namespace) -> int:
    machine.return_freed_memory()
    token = options.token_of(arguments)
    with contextlib.ExitStack() as stack:
        try:
            starting = arguments.starting or Starting(bind(arguments.host, arguments.port))
        except OSError as error:
            return _refuse(f"Cannot listen on {arguments.host}:{arguments.port}: {error.strerror}.")
        listener = stack.enter_context(starting.listener)
        with starting:
            crews = options.crews_of(arguments)
            settings = options.settings_of(arguments, token or secrets.token_hex(32), crews)
            if problem := _problem(settings):
                return _refuse(problem)
            place = arguments.base_url or _place(arguments.host, listener.getsockname()[1])
            serving = server(dataclasses.replace(settings, base_url=place.rstrip("/")), crews)
        serving.waiting = starting.waiting
        if not token:
            print(settings.token, flush=True)  # noqa: T201
        _greet(arguments, crews, listener.getsockname()[1])
        logs.configure(arguments.log_format, arguments.log_level)
        signal.signal(signal.SIGTERM, _leave)
        gc.freeze()  # a collection of all that is loaded would use up the CPU time that a page's texts may take
        with contextlib.suppress(KeyboardInterrupt):
            serving.run(sockets=[listener])
        return 0 if serving.started else 1


def _problem(settings: Settings) -> str | None:
    """Return why these settings cannot be used; None if they can."""
    if not settings.works and not settings.database.startswith("postgres"):
        return "`serve --no-work` needs a PostgreSQL database, so that `work` processes can run the crews."
    if (reason := unbounded()) and not settings.unbounded_connections:
        return f"{reason}; install that, or add --unbounded-connections."
    if settings.flow_webhook and not settings.flow_webhook_secret:
        return "--flow-webhook needs --flow-webhook-secret: its receiver must be able to verify the sender."
    for secret in (settings.webhook_secret, settings.flow_webhook_secret):
        try:
            standard_key(secret or "")
        except ValueError:
            return f"After {STANDARD}, a webhook secret must be base64."
    return None


def _check(arguments: argparse.Namespace) -> int:
    """Return 0 if these crews can be served with these options; else 1, after one sentence."""
    try:
        crews = options.crews_of(arguments)
        problem = _problem(options.settings_of(arguments, "", crews))
    except UNUSABLE as error:
        problem = _said(error, arguments)
    if problem:
        print(masked(problem, secrets_of(os.environ)), file=sys.stderr)  # noqa: T201
        return 1
    print(check.report(crews))  # noqa: T201
    return 0


def _work(arguments: argparse.Namespace) -> int:
    """Run crews until a signal arrives. This process serves no requests, so its token is random."""
    machine.return_freed_memory()
    crews = options.crews_of(arguments)
    bounded = {"max_executions": arguments.max_executions}
    settings = options.settings_of(arguments, secrets.token_hex(32), crews, delivers=False, **bounded)
    process = Process(settings, crews, DIALECTS[arguments.dialect]())
    if process.database.is_sqlite:
        process.database.close()
        return _refuse(
            "`work` needs a PostgreSQL database that services share; only one service can use a SQLite file."
        )
    logs.configure(arguments.log_format, arguments.log_level)
    leave = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: leave.set())
    process.start()
    print("Running crews; this process serves no requests.", file=sys.stderr, flush=True)  # noqa: T201
    while not (leave.wait(WATCHED) or process.is_done(arguments.idle_exit)):
        process.health.watch()
    process.stop()
    return 0


def _init(arguments: argparse.Namespace) -> int:
    """Return 0 if all files were written, 1 if any of them already existed."""
    lines = image.write(arguments.folder)
    print("\n".join(lines))  # noqa: T201
    return int(any(line.startswith(image.LEFT) for line in lines))


def _offline_model(arguments: argparse.Namespace) -> int:
    answers = answers_of(arguments.answers)
    try:
        listener = bind("127.0.0.1", arguments.port)
    except OSError as error:
        return _refuse(f"Cannot listen on 127.0.0.1:{arguments.port}: {error.strerror}.")
    signal.signal(signal.SIGTERM, _leave)
    print("Start the crew service with these variables so that its crews use this model:")  # noqa: T201
    place = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    print(f"export OPENAI_BASE_URL={place} OPENAI_API_KEY=offline", flush=True)  # noqa: T201
    with listener, contextlib.suppress(KeyboardInterrupt):
        openai_api.serve(listener, answers)
    return 0


def _leave(signum: int, frame: Any) -> None:
    """Exit on the signal that the server raises again after shutting down."""
    raise SystemExit(0)


def _place(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _greet(arguments: argparse.Namespace, crews: Mapping[str, Crew], port: int) -> None:
    place = _place(arguments.host, port)
    for name, crew in crews.items():
        base = place + paths.of_crew(name)
        what = name or (arguments.crew or ["demo"])[0]
        text = f"Serving {what} ({crew.kind}, {arguments.dialect} dialect) at {base}; API documentation: {base}/docs"
        print(text, file=sys.stderr, flush=True)  # noqa: T201


def _said(error: Exception, arguments: argparse.Namespace) -> str:
    """Return an error's sentence, after the traceback of the crew's code if that is wanted."""
    trace = error.trace if isinstance(error, BadTarget) and getattr(arguments, "verbose", False) else ""
    return f"{trace}{error}"


def _refuse(text: str) -> int:
    print(text, file=sys.stderr)  # noqa: T201
    return 2
