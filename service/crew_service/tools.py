"""Tools for the agents of CrewAI crews that this service runs."""

from __future__ import annotations

from crew_service.crewai.ask_person import AskPerson

__all__ = ["AskPerson"]
