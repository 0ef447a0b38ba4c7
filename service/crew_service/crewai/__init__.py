"""Serves real CrewAI crews. Only separate processes import CrewAI, never this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crew_service.engine.tool_rules import JournalOptions

if TYPE_CHECKING:
    from crew_service.crewai.crew import CrewAICrew

__all__ = ["load"]


def load(target: str, options: JournalOptions | None = None) -> CrewAICrew:
    """Describe the crew that TARGET names, or raise `BadTarget` with the reason in one sentence."""
    from crew_service.crewai.crew import CrewAICrew

    return CrewAICrew(target, options or JournalOptions())
