"""Asks a deployment about one execution for the tab: one request a look-up, and never a token in what it returns."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.exceptions import CrewApiError, CrewError, CrewNotFound
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import Execution
from airflow_crew_provider.view.execution import Seen, Target, of_details, of_status

TIMEOUT = 10.0  # seconds; somebody looks at the page meanwhile
WITHOUT_DETAILS = (404, 405, 501)
LONGEST_PROBLEM = 300

log = logging.getLogger(__name__)


def look_up(target: Target, before: Seen | None) -> Seen:
    """Return what the deployment says now; after a failure what it said before, and why it says nothing now."""
    known = before or Seen(has_details=bool(target.view))
    try:
        hook = CrewHook(target.crew_conn_id)
        link = hook.connection.link(target.kickoff_id, target.execution_id, target.view)
        link = link if link.startswith(("http://", "https://")) else ""
        asked = _details if known.has_details else _status
        return asked(hook, target, known, link)
    except CrewNotFound:
        return known.failed("The deployment does not know this execution (any more).")
    except CrewError as error:
        return known.failed(_one_line(str(error)))
    except Exception:
        log.exception("An execution could not be looked up for its tab")
        return known.failed("It could not be looked up; the log of the API server says why.")


def _details(hook: CrewHook, target: Target, known: Seen, link: str) -> Seen:
    call = endpoints.details(target.execution_id, known.etag if known.found else None)
    try:
        answer = hook.client.send(call, timeout=TIMEOUT)
    except CrewApiError as error:
        if error.status_code not in WITHOUT_DETAILS:
            raise
        # Not now: it has been asked once already.
        return Seen(known.found, "", known.at, has_details=False, link=link)
    found = known.found if answer.found is None else of_details(answer.found)
    etag = known.etag if answer.found is None else answer.etag
    return Seen(found, "", time.time(), etag, has_details=True, link=link)


def _status(hook: CrewHook, target: Target, known: Seen, link: str) -> Seen:
    execution = hook.client.send(endpoints.status(target.kickoff_id), timeout=TIMEOUT)
    # A deployment with details says there which DAG has started the execution; until then nothing is shown of it.
    has_details = bool(execution.view)
    found = known.found if has_details else of_status(_masked(execution, hook), target)
    return Seen(found, "", time.time(), has_details=has_details, link=link)


def _masked(execution: Execution, hook: CrewHook) -> Execution:
    """Return an execution whose texts show no secret, even where a deployment echoes one."""

    def mask(text: str | None) -> str | None:
        return None if text is None else hook.mask(text)

    tasks = tuple(replace(task, output=mask(task.output), agent=mask(task.agent)) for task in execution.tasks)
    shown = None if execution.output_json is None else json.loads(hook.mask(json.dumps(execution.output_json)))
    return replace(
        execution,
        tasks=tasks,
        output_json=shown,
        output=mask(execution.output),
        question=mask(execution.question),
        crew_task_id=mask(execution.crew_task_id),
    )


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_PROBLEM else f"{line[:LONGEST_PROBLEM]}…"
