"""Each key of an output as an XCom of its own, as `multiple_outputs` of Airflow does with what a function returns."""

from __future__ import annotations

import logging
from typing import Any

from airflow_crew_provider.compat import supervisor
from airflow_crew_provider.core.output_schema import listed
from airflow_crew_provider.core.stored_names import (
    EXECUTION_ID_KEY,
    KICKOFF_ID_KEY,
    LINK_KEY,
    POSTED_KEY,
    REFUSED_KEY,
    RESUME_KEY,
    REVIEW_KEY,
)
from airflow_crew_provider.models import Json
from airflow_crew_provider.tasks.outcomes import CrewTaskFailed
from airflow_crew_provider.tasks.output_rules import still_there

log = logging.getLogger(__name__)

# Under these the task pushes values of its own, or they are looked for in every task: the audit trail reads answers.
OWN = (KICKOFF_ID_KEY, EXECUTION_ID_KEY, LINK_KEY, REVIEW_KEY, REFUSED_KEY, RESUME_KEY)
# Airflow's schedulers obey the second: before 3.0 of any task, and some values of it end them.
TAKEN = ("return_value", "skipmixin_key", *OWN)
# Links of Airflow's pages; the inbox looks a registration up by its key alone.
TAKEN_BEGINNINGS = ("_link_", POSTED_KEY)
# Airflow writes the key into a URL as it is: the value would be stored under another key, or as another task's.
UNFIT = set("?#/%\\\x7f").union(map(chr, range(32)))
SHOWN = 60
LONGEST_KEY = 512  # what Airflow's database holds


def push_keys(context: Any, kickoff_id: str, output: Any) -> None:
    """Push each key of a completed output; nothing if one of them cannot be pushed.

    `airflow dags test` cannot push keys outside ASCII, which a worker pushes: the log names them.

    :raises CrewTaskFailed: the output is no object, or has such a key; another try would find the same
    """
    left_out = []
    for key, value in _checked(kickoff_id, output).items():
        try:
            context["ti"].xcom_push(key=key, value=value)
        except UnicodeError:
            if key.isascii() or not supervisor.is_in_process():
                raise
            left_out.append(repr(key[:SHOWN]))
    if left_out:
        log.warning("`airflow dags test` cannot push the keys %s of the output; a worker pushes them", listed(left_out))


def _checked(kickoff_id: str, output: Any) -> Json:
    if not isinstance(output, dict):
        problem = f"is not an object but {type(output).__name__}"
    else:
        problems = [f"{key[:SHOWN]!r} {why}" for key in output if (why := _problem_with(key))]
        if not problems:
            return output
        problem = f"has keys that cannot be XComs: {listed(problems)}"
    raise CrewTaskFailed(f"multiple_outputs: the output of execution {kickoff_id} {problem}. {still_there()}")


def _problem_with(key: str) -> str:
    if key in TAKEN or key.startswith(TAKEN_BEGINNINGS):
        return "is a name of XComs that Airflow or this provider writes"
    if not 0 < len(key) <= LONGEST_KEY:
        return f"does not have 1 to {LONGEST_KEY} characters"
    if key in (".", ".."):
        return "is a part of a path"
    return "contains ?, #, /, %, a backslash or a control character" if set(key) & UNFIT else ""
