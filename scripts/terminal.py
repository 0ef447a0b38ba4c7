"""Prints lines for a person at a terminal: the time since the start, a subject, and what happened."""

from __future__ import annotations

import sys
import textwrap
import time

COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
WIDTH = 88


def paint(text: str, colour: str) -> str:
    return f"\033[{COLOURS[colour]}m{text}\033[0m" if sys.stdout.isatty() else text


class Story:
    """Reports what happens, line by line."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def report(self, subject: str, what: str, colour: str = "bold") -> None:
        clock = paint(f"{time.monotonic() - self._start:6.1f} s", "dim")
        print(f"{clock}  {paint(f'{subject:<24}', colour)} {what}", flush=True)

    def quote(self, title: str, text: str) -> None:
        """Show a longer text, indented and with a bar in the margin."""
        print(f"\n{'':10}{paint(title, 'bold')}")
        for line in text.strip().splitlines():
            for part in textwrap.wrap(line, WIDTH) or [""]:
                print(f"{'':10}{paint('|', 'dim')} {part}")
        print(flush=True)
