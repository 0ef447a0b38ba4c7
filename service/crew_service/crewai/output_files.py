"""Writes the file of an approved task as CrewAI writes the file of any other."""

from __future__ import annotations

import json
from pathlib import Path

from crewai import TaskOutput


def save(output: TaskOutput, path: str, *, make_directory: bool) -> None:
    place = Path(path).expanduser()
    if make_directory:
        place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(_content(output), encoding="utf-8")


def _content(output: TaskOutput) -> str:
    if output.json_dict:
        return json.dumps(output.json_dict, ensure_ascii=False, indent=2)
    return output.pydantic.model_dump_json() if output.pydantic else output.raw
