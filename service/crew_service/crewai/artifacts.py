"""Keeps the artifacts of tasks among the execution's files, in CrewAI releases in which a task has an `artifact`.

Only what CrewAI documents is used: the field, which is an `Artifact` or True, and its `identifier`, `kind` and
`file_path`. CrewAI itself saves artifacts elsewhere, where other machines do not find them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from crew_service.crewai import output_files

FOLDER = "artifacts"
SUFFIXES = {"html": ".html", "svg": ".svg", "json": ".json", "markdown": ".md"}


def keep(task: Any, text: str) -> None:
    """Keep a finished task's artifact, if it has one.

    :param text: the task's output, which is the artifact unless that names another file
    """
    artifact = getattr(task, "artifact", None)
    if not artifact:
        return
    name = f"{FOLDER}/{_slug(getattr(artifact, 'identifier', None) or task.name or task.description)}"
    if path := getattr(artifact, "file_path", None):
        output_files.copy(f"{name}{Path(path).suffix}", Path(path))
    else:
        kind = getattr(artifact, "kind", None) or _kind(text)
        output_files.add(f"{name}{SUFFIXES.get(str(kind), '')}", text)


def _slug(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", str(text)).strip("-.")[:100] or "artifact"


def _kind(text: str) -> str:
    """Return the kind of an output for which none is given, as CrewAI documents it."""
    start = text.lstrip()[:15].lower()
    if start.startswith(("<!doctype html", "<html")):
        return "html"
    if start.startswith("<svg"):
        return "svg"
    try:
        return "json" if isinstance(json.loads(text), dict | list) else "markdown"
    except ValueError:
        return "markdown"
