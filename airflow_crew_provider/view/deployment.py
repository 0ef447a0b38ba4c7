"""Asks a deployment about one execution for the tab: one request a look-up, and never a token in what it returns."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from airflow.providers.common.compat.sdk import redact

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.exceptions import CrewApiError, CrewError, CrewNotFound
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.view.execution import Seen, Target, of_details, of_status

TIMEOUT = 10.0  # seconds; somebody looks at the page meanwhile
WITHOUT_DETAILS = (403, 404, 405, 501)  # also of a gateway that passes the specified endpoints alone
LONGEST_PROBLEM = 300

log = logging.getLogger(__name__)


def look_up(target: Target, before: Seen | None) -> Seen:
    """Return what the deployment says now; after a failure what it said before, and why it says nothing now."""
    known = before or Seen(has_details=bool(target.view))
    try:
        hook = CrewHook(target.crew_conn_id)
        if hook.look_up(target.crew_conn_id).conn_type != CrewHook.conn_type:
            # Its password is for somebody else.
            return known.failed(f"Connection {target.crew_conn_id!r} is not of the type {CrewHook.conn_type}.")
        link = hook.connection.link(target.kickoff_id, target.execution_id, target.view)
        link = link if link.startswith(("http://", "https://")) else ""
        asked = _details if known.has_details else _status
        return asked(hook, target, known, Seen(link=link, mask=hook.mask))
    except CrewNotFound:
        return known.failed("The deployment does not know this execution (any more).")
    except CrewError as error:
        return known.failed(_one_line(str(error)))
    except Exception:
        log.exception("An execution could not be looked up for its tab")
        return known.failed("It could not be looked up; the log of the API server says why.")


def _details(hook: CrewHook, target: Target, known: Seen, now: Seen) -> Seen:
    call = endpoints.details(target.execution_id, known.etag if known.found else None)
    try:
        answer = hook.client.send(call, timeout=TIMEOUT)
    except CrewApiError as error:
        if error.status_code not in WITHOUT_DETAILS:
            raise
        # The status not now, since it has been asked once already; and no details any more.
        return replace(now, found=known.found, has_details=None)
    if answer.found is None:
        return replace(now, found=known.found, etag=known.etag, has_details=True)
    found = of_details(answer.found, hook.mask, partial(redact, name="inputs"))
    return replace(now, found=found, etag=answer.etag, has_details=True)


def _status(hook: CrewHook, target: Target, known: Seen, now: Seen) -> Seen:
    execution = hook.client.send(endpoints.status(target.kickoff_id), timeout=TIMEOUT)
    if execution.view and known.has_details is not None:
        # A deployment with details says there which DAG has started the execution; until then nothing is shown of it.
        return replace(now, found=known.found, has_details=True)
    return replace(now, found=of_status(execution, hook.mask), has_details=known.has_details)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_PROBLEM else f"{line[:LONGEST_PROBLEM]}…"
