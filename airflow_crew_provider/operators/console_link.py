"""The link from a review to the service's console."""

from __future__ import annotations

from typing import Any

from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.links.crew import push_link
from airflow_crew_provider.models import Json


def link_to_console(context: Any, crew_conn_id: str, pending: Json, log: Any) -> None:
    """Return the link to the console; None if the connection is missing or cannot be read."""
    try:
        console = CrewHook(crew_conn_id).connection.console_url
    except Exception as error:  # each version of Airflow has its own for a connection that is not there
        log.info("No link to the execution: %s", error)
        return
    push_link(context, console, pending.get("kickoff_id") or pending["execution_id"], pending["execution_id"])
