"""What operations see of a task's execution: metrics, OpenLineage's facet, and the extra of asset events."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import Asset

from airflow_crew_provider.compat import metrics
from airflow_crew_provider.models import ExecutionState, Json

UNKNOWN = "unknown"


class ReportingTask:
    """A mixin of tasks that start, resume or wait for an execution."""

    crew_conn_id: str
    outlets: Any

    def report(
        self,
        context: Any,
        state: ExecutionState,
        kickoff_id: str,
        *,
        execution_id: str | None = None,
        usage: Json | None = None,
    ) -> None:
        """Note how the execution stands, and let the events of the task's outlets say it."""
        root = execution_id or getattr(self, "execution_id", None) or kickoff_id
        seen = {"crew_conn_id": self.crew_conn_id, "kickoff_id": kickoff_id, "execution_id": root, "state": str(state)}
        self.__dict__["_report"] = {**seen, "usage": usage}
        for outlet in self.outlets or ():
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra.update(self._report)

    def report_unknown(self, request: str) -> None:
        """Note that a POST may have arrived; ``request`` is ``kickoff`` or ``resume``."""
        metrics.outcome_unknown(self.crew_conn_id, request)
        self.__dict__["_report"] = {**self._report, "state": UNKNOWN}

    def get_openlineage_facets_on_start(self) -> Any:
        """Return what OpenLineage is told; it calls this and the two below, so its package is there."""
        from airflow_crew_provider.tasks.lineage import lineage_of

        inputs = getattr(self, "inputs", None)
        return lineage_of(self.crew_conn_id, sorted(map(str, inputs)) if isinstance(inputs, dict) else [], self._report)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return what OpenLineage is told of a task that succeeded."""
        return self.get_openlineage_facets_on_start()

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """Return what OpenLineage is told of a task that failed."""
        return self.get_openlineage_facets_on_start()

    @property
    def _report(self) -> Json:
        return self.__dict__.get("_report") or {}
