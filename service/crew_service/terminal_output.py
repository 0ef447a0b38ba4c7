"""How the commands of a terminal print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

from tabulate import tabulate


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text: str = tabulate(list(rows), headers=list(headers), tablefmt="plain", disable_numparse=True)
    return text


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def iso(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")


def say(text: str) -> None:
    print(_plain(text))  # noqa: T201


def say_json(value: Any) -> None:
    print(json.dumps(value, indent=2))  # noqa: T201


def fail(text: str) -> int:
    print(_plain(text), file=sys.stderr)  # noqa: T201
    return 1


def _plain(text: str) -> str:
    """Replace control characters: the output of a crew must not control the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)
