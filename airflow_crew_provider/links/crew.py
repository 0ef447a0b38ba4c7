"""Links from a task in Airflow's UI to its execution's page."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom

from airflow_crew_provider.stored_names import LINK_KEY


class CrewExecutionLink(BaseOperatorLink):
    """Link to the execution's page; empty if neither the service nor the connection provides one."""

    name = "Crew execution"

    @property
    def xcom_key(self) -> str:
        """The XCom key under which Airflow 3 finds the link."""
        return LINK_KEY

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the URL that the task pushed."""
        return XCom.get_value(key=LINK_KEY, ti_key=ti_key) or ""
