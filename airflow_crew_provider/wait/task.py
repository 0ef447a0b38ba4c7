"""What all tasks share: the hook, the execution's link, outlet events and lineage."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import Asset, BaseOperator

from airflow_crew_provider.client.crew import ConnectedCrew
from airflow_crew_provider.compat import metrics
from airflow_crew_provider.compat.execution_record import record_execution
from airflow_crew_provider.exceptions import CrewConnectionError, CrewError
from airflow_crew_provider.models import ExecutionState, Json
from airflow_crew_provider.stored_names import EXECUTION_KEY, LINK_KEY
from airflow_crew_provider.wait.outcomes import fail_task

UNKNOWN = "unknown"


class CrewTask(BaseOperator):
    """The base class of all tasks; it provides the connection's hook and the execution's link, events and lineage."""

    crew_conn_id: str
    hook_class: type[ConnectedCrew] = ConnectedCrew
    has_ended = False  # whether the task has returned or failed; see `ends_in_a_sentence`
    _hook: ConnectedCrew | None = None
    _report: Json | None = None

    @property
    def hook(self) -> ConnectedCrew:
        """The hook of the connection, created on first use, when the connection id has been rendered."""
        if self._hook is None:
            try:
                self._hook = self.hook_class(self.crew_conn_id)
            except CrewError as error:
                fail_task(error)
        return self._hook

    def report(
        self,
        context: Any,
        state: ExecutionState,
        kickoff_id: str,
        *,
        execution_id: str | None = None,
        usage: Json | None = None,
    ) -> None:
        """Record the state of the execution, and add it to the task's outlet events."""
        root = execution_id or getattr(self, "execution_id", None) or kickoff_id
        fields = {
            "crew_conn_id": self.crew_conn_id,
            "kickoff_id": kickoff_id,
            "execution_id": root,
            "state": str(state),
        }
        self._report = {**fields, "usage": usage}
        self._add_to_outlets(context, self._report)

    def report_files(self, context: Any, record: Json) -> None:
        """Add the paths of copied files to the task's outlet events, where a completed record lists files."""
        if (files := record.get("files")) is not None:
            self._add_to_outlets(context, {"files": [file["path"] for file in files if file["path"]]})

    def _add_to_outlets(self, context: Any, facts: Json) -> None:
        for outlet in self.outlets or ():
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra.update(facts)

    def report_unknown(self, request: str) -> None:
        """Record that a POST may have arrived; ``request`` is ``kickoff`` or ``resume``."""
        metrics.outcome_unknown(self.crew_conn_id, request)
        self._report = {**(self._report or {}), "state": UNKNOWN}

    def get_openlineage_facets_on_start(self) -> Any:
        """Return the lineage; only OpenLineage calls this, at the start and the end, so it must be installed."""
        from airflow_crew_provider.wait.lineage import lineage_of

        inputs = getattr(self, "inputs", None)
        names = sorted(map(str, inputs)) if isinstance(inputs, dict) else []
        return lineage_of(self.crew_conn_id, names, self._report or {})


def push_execution(
    context: Any,
    hook: ConnectedCrew,
    kickoff_id: str,
    execution_id: str | None = None,
    view: str | None = None,
    *,
    is_own: bool = False,
) -> None:
    """Push the task's execution before the task waits, and record that it belongs to this DAG run.

    :param is_own: whether this try started it
    :raises CrewError: the connection cannot be used
    """
    about = _about(hook.crew_conn_id, kickoff_id, execution_id, view)
    record_execution(context, about, is_own=is_own)
    _announce(context, hook, about)


def push_view(context: Any, hook: ConnectedCrew, kickoff_id: str, execution_id: str | None, view: str) -> None:
    """Push the link again once a status has named the execution's page."""
    _announce(context, hook, _about(hook.crew_conn_id, kickoff_id, execution_id, view))


def push_execution_of(context: Any, crew_conn_id: str, record: Json, log: Any) -> None:
    """Push the execution of a record; the record is another task's XCom, so it proves nothing on its own."""
    execution_id = record["execution_id"]
    about = _about(crew_conn_id, record.get("kickoff_id") or execution_id, execution_id, record.get("view"))
    try:
        _announce(context, ConnectedCrew(crew_conn_id), about)
    except CrewError as error:
        log.info("No link to the execution: %s", error)


def _about(crew_conn_id: str, kickoff_id: str, execution_id: str | None, view: str | None) -> Json:
    ids = {"kickoff_id": kickoff_id, "execution_id": execution_id or kickoff_id}
    return {**ids, "crew_conn_id": crew_conn_id, "view": view}


def _announce(context: Any, hook: ConnectedCrew, about: Json) -> None:
    """Push the execution and the URL of its link, which is empty if there is no page.

    An empty URL is pushed too, because Airflow logs an error for a link whose XCom is missing. If the connection cannot
    be looked up now, the execution is pushed without a link.
    """
    try:
        url = hook.connection.link(about["kickoff_id"], about["execution_id"], about["view"])
    except CrewConnectionError as error:
        hook.log.warning("No link to the execution: %s", error)
        url = ""
    context["ti"].xcom_push(key=EXECUTION_KEY, value=about)
    context["ti"].xcom_push(key=LINK_KEY, value=url)
