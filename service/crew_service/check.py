"""Describes crews as `serve` would serve them, for `airflow-crew-service check`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from crew_service.engine.crew import Crew
from crew_service.engine.printed import masked, secrets_of


def report(crews: Mapping[str, Crew]) -> str:
    """List each crew's inputs, tasks, tools and rules, and what is off, without the values of secrets."""
    return "\n\n".join(masked("\n".join(_lines(name, crew)), _secrets(crew)) for name, crew in crews.items())


def _lines(name: str, crew: Crew) -> Iterable[str]:
    known = [*crew.tools, *([] if crew.knows_all_tools else ["others, which are unknown until a task runs"])]
    rows = {
        "inputs": [f"{each} (required)" if each in crew.required else each for each in crew.inputs],
        "tasks": [f"{task.id} (asks a person)" if task.human_input else task.id for task in crew.tasks],
        "tools": known,
        "rules": [f"{rule}" if crew.has_tool(rule) else f"{rule} (matches no known tool)" for rule in crew.rules],
        "off": crew.off,
    }
    yield f"{name or 'crew'} ({crew.kind})"
    yield from (f"  {row:8}{', '.join(values) or 'none'}" for row, values in rows.items())


def _secrets(crew: Crew) -> list[str]:
    return [*secrets_of(os.environ), *crew.secrets]
