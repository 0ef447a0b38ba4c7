"""Serves real CrewAI crews. CrewAI is imported only in separate processes, never in this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crew_service.crewai.world import Place, world_of
from crew_service.engine.tool_rules import JournalOptions

if TYPE_CHECKING:
    from crew_service.crewai.crew import CrewAICrew

__all__ = ["load"]


def load(target: str, options: JournalOptions | None = None, place: Place | None = None) -> CrewAICrew:
    """Return the crew that TARGET names; raise `BadTarget` with a one-sentence reason if it cannot be served."""
    from crew_service.crewai.crew import CrewAICrew

    return CrewAICrew(target, options or JournalOptions(), place or Place(world_of(target)))
