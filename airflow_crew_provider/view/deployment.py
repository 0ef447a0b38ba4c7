"""Looks up an execution at its deployment for the tab: one request per lookup, and no token in any result.

Details name the DAG that started an execution. A deployment may refuse details temporarily, a gateway permanently.
After a refusal, the next lookup requests the status instead, and the one after that the details again. Meanwhile, the
run that started the execution shows the status (`execution.of_dag`); other runs show it once the details name their
DAG.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from airflow.providers.common.compat.sdk import redact

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.exceptions import CrewApiError, CrewError, CrewInvalidInput, CrewNotFound, CrewProtocolError
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import shown
from airflow_crew_provider.view.execution import Seen, Target, of_details, of_status, origin

TIMEOUT = 10.0  # seconds, while somebody is looking at the page
LONGEST_PROBLEM = 300
MAY_CHANGE = (401, 408, 425, 429)

log = logging.getLogger(__name__)


def look_up(target: Target, before: Seen | None) -> Seen:
    """Return the deployment's current answer; after a failure, the previous one and the reason."""
    known = before or Seen(has_details=bool(target.view))
    try:
        hook = hook_of(target.crew_conn_id)
        link = hook.connection.link(target.kickoff_id, target.execution_id, target.view)
        link = link if link.startswith(("http://", "https://")) else ""
        lookup = _details if known.has_details and not known.is_refused else _status
        return lookup(hook, target, known, Seen(link=link, mask=hook.mask))
    except CrewNotFound:
        return known.failed("The deployment does not know this execution, or no longer does.")
    except CrewError as error:
        return known.failed(_one_line(str(error)))
    except Exception:
        log.exception("An execution could not be looked up for the Crew tab")
        return known.failed("Unexpected error; see the API server's log.")


def hook_of(crew_conn_id: str) -> CrewHook:
    """Return the hook of a connection to a crew.

    :raises CrewInvalidInput: it leads elsewhere, and its password belongs to another service
    """
    hook = CrewHook(crew_conn_id)
    if hook.look_up(crew_conn_id).conn_type != CrewHook.conn_type:
        raise CrewInvalidInput(f"Connection {shown(crew_conn_id)} is not of type {CrewHook.conn_type}.")
    return hook


def _details(hook: CrewHook, target: Target, known: Seen, now: Seen) -> Seen:
    call = endpoints.details(target.execution_id, known.etag if known.found else None)
    try:
        answer = hook.client.send(call, timeout=TIMEOUT)
    except (CrewApiError, CrewProtocolError) as error:
        if not _is_refusal(error):
            raise
        return replace(now, found=known.found, has_details=True, is_refused=True, started_by=known.started_by)
    if answer.found is None:
        return replace(now, found=known.found, etag=known.etag, has_details=True, started_by=known.started_by)
    details = of_details(answer.found, hook.mask, partial(redact, name="inputs"), hook.connection.page)
    return replace(now, found=details, etag=answer.etag, has_details=True, started_by=origin(answer.found, target))


def _is_refusal(error: CrewApiError | CrewProtocolError) -> bool:
    """Whether a status request may succeed instead, e.g. behind a gateway that passes only the specified endpoints."""
    code = getattr(error, "status_code", 0)
    return code in (0, 501) or (code < 500 and code not in MAY_CHANGE)


def _status(hook: CrewHook, target: Target, known: Seen, now: Seen) -> Seen:
    execution = hook.client.send(endpoints.status(target.kickoff_id), timeout=TIMEOUT)
    if execution.view and not known.has_details:
        return replace(now, found=known.found, has_details=True)
    details = of_status(execution, hook.mask)
    return replace(now, found=details, has_details=known.has_details, started_by=known.started_by)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_PROBLEM else f"{line[:LONGEST_PROBLEM]}…"
