"""A logger that keeps its warnings."""

from __future__ import annotations

from typing import Any


class WarningLog:
    """The warnings, as they are written."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def warning(self, text: str, *values: Any) -> None:
        self.lines.append(text % values)
