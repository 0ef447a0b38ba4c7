"""A Flow's own persistence, except for pauses, which the service stores in its database."""

from __future__ import annotations

from typing import Any

from crewai.flow.persistence import FlowPersistence
from pydantic import PrivateAttr


class WithoutPauses(FlowPersistence):
    """Saves states with the Flow's own persistence, but does not save questions to people."""

    persistence_type: str = "crew-service"
    _own: Any = PrivateAttr(default=None)

    def __init__(self, own: FlowPersistence | None = None, **values: Any) -> None:
        super().__init__(**values)
        self._own = own

    def init_db(self) -> None:
        pass

    def save_state(self, flow_uuid: str, method_name: str, state_data: Any) -> None:
        if self._own is not None:
            self._own.save_state(flow_uuid, method_name, state_data)

    def load_state(self, flow_uuid: str) -> dict[str, Any] | None:
        return self._own.load_state(flow_uuid) if self._own is not None else None

    def save_pending_feedback(self, *args: Any, **values: Any) -> None:
        pass
