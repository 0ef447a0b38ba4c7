"""Links from a task in Airflow's UI to the execution in the service's console."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom

from airflow_crew_provider.core.stored_names import LINK_KEY


class CrewExecutionLink(BaseOperatorLink):
    """Leads to the execution's page; empty where the connection names no console."""

    name = "Crew execution"

    @property
    def xcom_key(self) -> str:
        """XCom key under which Airflow 3 finds the link."""
        return LINK_KEY

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the URL that the task pushed."""
        return XCom.get_value(key=LINK_KEY, ti_key=ti_key) or ""


def push_link(context: Any, console_url: str | None, kickoff_id: str, execution_id: str | None = None) -> None:
    """Push the link's URL before the task waits, so that it shows meanwhile.

    Without a console it is pushed empty: Airflow logs an error for a link whose XCom is missing.
    """
    named = {"{kickoff_id}": kickoff_id, "{execution_id}": execution_id or kickoff_id}
    url = console_url or ""
    for placeholder, identifier in named.items():
        url = url.replace(placeholder, quote(identifier, safe=""))
    context["ti"].xcom_push(key=LINK_KEY, value=url)
