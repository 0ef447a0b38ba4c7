"""A Flow's own persistence, except for pauses, which the service stores in its database."""

from __future__ import annotations

from typing import Any

from crewai.flow.persistence import FlowPersistence

from crew_service.crewai.internals.wrapping import concrete, do_nothing

PAUSES = ("save_pending_feedback", "clear_pending_feedback")


@concrete
class Nothing(FlowPersistence):
    """Stores nothing. Without a persistence, CrewAI would store pauses with one of its own."""

    persistence_type: str = "crew-service"


def without_pauses(own: FlowPersistence | None) -> Any:
    """Return a Flow's persistence, which from now on stores no questions to people."""
    persistence: Any = Nothing() if own is None else own  # type: ignore[abstract]
    for name in PAUSES:
        object.__setattr__(persistence, name, do_nothing)
    return persistence
