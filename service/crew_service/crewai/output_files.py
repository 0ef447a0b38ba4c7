"""Writes the file of an approved task as CrewAI writes that of any other, and keeps all of them in their folders."""

from __future__ import annotations

import json
from pathlib import Path

from crewai import TaskOutput

from crew_service.engine.crew import CrewFailed


def save(output: TaskOutput, path: str, *, make_directory: bool) -> None:
    place = Path(path).expanduser()
    if make_directory:
        place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(_content(output), encoding="utf-8")


def check(declared: str, path: str) -> None:
    """Refuse a path that inputs have led out of the folder that the crew names, by default the working directory."""
    folder = Path(f"{declared.partition('{')[0]}_").parent.resolve()
    if not Path(path).expanduser().resolve().is_relative_to(folder):
        raise CrewFailed(f"The inputs lead the output_file {declared!r} out of its folder; no task was run.")


def _content(output: TaskOutput) -> str:
    if output.json_dict:
        return json.dumps(output.json_dict, ensure_ascii=False, indent=2)
    return output.pydantic.model_dump_json() if output.pydantic else output.raw
