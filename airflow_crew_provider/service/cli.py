"""`airflow-crew-service`: serve a crew, and look at its executions from a terminal."""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import sys
from typing import Any

from . import lock, logs, terminal
from .callers import BadToken
from .dialects import DIALECTS
from .server import bind, server
from .settings import Settings
from .store import StoreUnusable
from .targets import BadTarget, load


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except (BadTarget, BadToken, StoreUnusable, lock.AlreadyServed) as error:
        return _refuse(str(error))
    except BrokenPipeError:  # the reader of a list has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="airflow-crew-service", description="A crew behind the Crew Execution API.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    database = argparse.ArgumentParser(add_help=False)
    database.add_argument(
        "--db", default="crew-service.db", metavar="FILE", help="SQLite file, or a SQLAlchemy URL (%(default)s)"
    )
    _add_serve(commands, database)
    terminal.add_to(commands, database)
    return parser


def _add_serve(commands: Any, database: argparse.ArgumentParser) -> None:
    serve = commands.add_parser("serve", parents=[database], help="serve one crew over HTTP")
    option = serve.add_argument
    option("--host", default="127.0.0.1")
    option("--port", type=int, default=8300)
    option(
        "--crew",
        default="demo",
        metavar="TARGET",
        help="demo, a scenario (*.json), package.module:NAME or file.py:NAME (%(default)s)",
    )
    option("--dialect", choices=sorted(DIALECTS), default="spec", help="(%(default)s)")
    option("--token", help="of the organization; also as CREW_SERVICE_TOKEN; by default one is made and printed")
    option("--user-token", action="append", default=[], metavar="NAME=TOKEN", type=_user_token)
    option("--workers", type=_positive(int), metavar="N", help="executions that run at once (32; CrewAI crews: 4)")
    option("--time-limit", type=_positive(float), default=3600.0, metavar="SECONDS", help="(%(default)g)")
    option("--max-body", type=_positive(int), default=1024 * 1024, metavar="BYTES", help="(%(default)d)")
    option("--keep-days", type=_positive(float), default=30.0, metavar="DAYS", help="(%(default)g)")
    serve.set_defaults(run=_serve)


def _positive(kind: type) -> Any:
    def positive(text: str) -> Any:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError("must be greater than 0")
        return value

    return positive


def _user_token(text: str) -> tuple[str, str]:
    name, _, token = text.partition("=")
    if not (name and token):
        raise argparse.ArgumentTypeError("expected NAME=TOKEN")
    return name, token


def _serve(arguments: argparse.Namespace) -> int:
    crew = load(arguments.crew)
    given = arguments.token or os.environ.get("CREW_SERVICE_TOKEN")
    settings = Settings(
        token=given or secrets.token_urlsafe(32),
        user_tokens=arguments.user_token,
        dialect=arguments.dialect,
        database=arguments.db,
        workers=arguments.workers,
        time_limit=arguments.time_limit,
        max_body=arguments.max_body,
        keep_days=arguments.keep_days,
    )
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(bind(arguments.host, arguments.port))
        except OSError as error:
            return _refuse(f"Cannot listen on {arguments.host}:{arguments.port}: {error.strerror}.")
        serving = server(settings, crew)
        if "://" not in settings.database:
            stack.enter_context(lock.held(settings.database))
        if not given:
            print(settings.token, flush=True)  # noqa: T201
        _greet(arguments, listener.getsockname()[1])
        logs.configure()
        signal.signal(signal.SIGTERM, _leave)
        with contextlib.suppress(KeyboardInterrupt):
            serving.run(sockets=[listener])
        return 0 if serving.started else 1


def _leave(signum: int, frame: Any) -> None:
    """The server stops by itself at a signal and raises it again afterwards: then all is done."""
    raise SystemExit(0)


def _greet(arguments: argparse.Namespace, port: int) -> None:
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    place = f"http://{host}:{port}"
    text = f"Serving {arguments.crew} ({arguments.dialect} dialect) at {place}; manual: {place}/docs"
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def _refuse(text: str) -> int:
    print(text, file=sys.stderr)  # noqa: T201
    return 2
