"""Options of `serve` for operating it: tokens of users, limits, logs and the signature of webhooks."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from crew_service import logs
from crew_service.engine.principals import BadToken

USER_TOKENS = "CREW_SERVICE_USER_TOKENS"
WEBHOOK_SECRET = "CREW_SERVICE_WEBHOOK_SECRET"  # noqa: S105


def add_http(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--user-token", action="append", default=[], metavar="NAME=TOKEN", help="of a user; may be repeated")
    option("--user-tokens-file", metavar="FILE", help=f"lines of NAME=TOKEN; such lines also as {USER_TOKENS}")
    option("--webhook-secret", metavar="SECRET", help=f"signs outgoing webhooks; also as {WEBHOOK_SECRET}")


def add_logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log-format", choices=sorted(logs.FORMATS), default="json", help="(%(default)s)")
    parser.add_argument("--log-level", choices=logs.LEVELS, default="info", help="(%(default)s)")


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that these options make; a process that serves no requests has none of them."""
    if "user_token" not in arguments:
        return {}
    return {
        "user_tokens": user_tokens(arguments),
        "webhook_secret": arguments.webhook_secret or os.environ.get(WEBHOOK_SECRET) or None,
        "max_connections": arguments.max_connections,
    }


def user_tokens(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the names and tokens of the command line, of the file and of the environment."""
    lines = [("--user-token", line) for line in arguments.user_token]
    if arguments.user_tokens_file:
        lines += [(arguments.user_tokens_file, line) for line in _read(arguments.user_tokens_file)]
    lines += [(USER_TOKENS, line) for line in os.environ.get(USER_TOKENS, "").splitlines()]
    return [_pair(source, line.strip()) for source, line in lines if line.strip() and not line.startswith("#")]


def _read(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise BadToken(f"The tokens of users in {path!r} cannot be read: {reason}.") from None


def _pair(source: str, line: str) -> tuple[str, str]:
    """The line itself is not repeated: it may hold a token."""
    name, _, token = line.partition("=")
    if not (name.strip() and token.strip()):
        raise BadToken(f"A user's token in {source} is not of the form NAME=TOKEN.")
    return name.strip(), token.strip()
