"""`airflow-crew-service webhooks`: what no receiver took, listed and sent again."""

from __future__ import annotations

import argparse
from typing import Any

from crew_service.engine.dead_letters import DeadLetters
from crew_service.engine.principals import Principal
from crew_service.options import positive
from crew_service.storage.database import Database
from crew_service.terminal_output import fail, iso, moment, say, say_json, table

EVERYBODY = Principal()


def add_to(commands: Any, database: argparse.ArgumentParser, opened: Any) -> None:
    parser = commands.add_parser("webhooks", help="webhooks that were given up")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("list", parents=[database], help="the newest of them")
    listing.add_argument("--limit", type=positive(int), default=20, help="how many at most (%(default)s)")
    listing.add_argument("--json", action="store_true", help="for programs")
    listing.set_defaults(run=lambda arguments: _list(opened(arguments.db), arguments))
    resend = actions.add_parser("resend", parents=[database], help="deliver them again, by a service that runs")
    which = resend.add_mutually_exclusive_group(required=True)
    which.add_argument("id", nargs="*", default=[], help="ids from the list")
    which.add_argument("--all", action="store_true")
    resend.set_defaults(run=lambda arguments: _resend(opened(arguments.db), arguments))


def _list(database: Database, arguments: argparse.Namespace) -> int:
    letters = DeadLetters(database).latest(EVERYBODY, arguments.limit)
    if arguments.json:
        say_json([_record(letter) for letter in letters])
    elif letters:
        rows = [
            (moment(each.given_up_at), each.key, each.execution_id, each.kind, each.attempts, each.problem, each.url)
            for each in letters
        ]
        say(table(("given up", "id", "execution", "kind", "tries", "problem", "address"), rows))
    else:
        say("No webhook was given up.")
    return 0


def _record(letter: Any) -> dict[str, Any]:
    shown = {name: getattr(letter, name) for name in ("execution_id", "kind", "url", "attempts", "problem")}
    moments = {name: iso(getattr(letter, name)) for name in ("created_at", "given_up_at")}
    return {"id": letter.key, **shown, **moments}


def _resend(database: Database, arguments: argparse.Namespace) -> int:
    letters = DeadLetters(database)
    if arguments.all:
        sent, unknown = letters.resend_all(EVERYBODY), []
    else:
        unknown = [key for key in arguments.id if not letters.resend(EVERYBODY, key)]
        sent = len(arguments.id) - len(unknown)
    if sent or not unknown:
        say(f"{sent} webhook{' is' if sent == 1 else 's are'} sent again.")
    for key in unknown:
        fail(f"There is no webhook {key!r} among those that were given up; `webhooks list` shows them.")
    return 1 if unknown else 0
