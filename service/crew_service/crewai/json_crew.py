"""Crews that are described in JSON, as `crewai create crew` makes them: crew.jsonc beside a folder of agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crewai import Crew
from crewai.project import load_crew


class JsonCrew:
    """A crew from its file, and the values that the file gives for inputs."""

    def __init__(self, path: Path) -> None:
        loaded: tuple[Crew, dict[str, Any] | None] = load_crew(path)
        self.crew = loaded[0]
        self.defaults: dict[str, Any] = dict(loaded[1] or {})
