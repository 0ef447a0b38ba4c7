"""Logs JSON lines or text, with the execution's id if there is one. Tokens and bodies are never logged.

Only the fields below are taken from a log record: JSON formatters from libraries write every field, even those that
other packages attach.
"""

from __future__ import annotations

import json
import logging
import sys

from crew_service.times import iso

FIELDS = ("execution_id", "webhook", "receiver")


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": iso(record.created, "milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class TextLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={getattr(record, name)}" for name in FIELDS if hasattr(record, name))
        return super().formatMessage(record) + fields


FORMATS: dict[str, type[logging.Formatter]] = {"json": JsonLines, "text": TextLines}
LEVELS = ("debug", "info", "warning", "error")


def configure(style: str = "json", level: str = "info") -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATS[style]())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
