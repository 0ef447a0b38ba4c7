"""Real CrewAI crews behind the service. CrewAI itself is imported only in processes of its own, never here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crew_service.engine.tool_rules import JournalOptions

if TYPE_CHECKING:
    from crew_service.crewai.crew import CrewAICrew

__all__ = ["load"]


def load(target: str, options: JournalOptions | None = None) -> CrewAICrew:
    """Describe the crew that TARGET names; `BadTarget` says in one sentence why it cannot be served."""
    from crew_service.crewai.crew import CrewAICrew

    return CrewAICrew(target, options or JournalOptions())
