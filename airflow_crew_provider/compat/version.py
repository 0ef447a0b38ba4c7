"""Features that can only be detected from Airflow's version number."""

from __future__ import annotations

import airflow

RELEASE = tuple(int(part) for part in airflow.__version__.split(".")[:2])


def has_inbox() -> bool:
    """Whether the API server mounts plugins' FastAPI applications (Airflow 3.0 and newer)."""
    return RELEASE >= (3, 0)


def masks_variables() -> bool:
    """Whether the REST API masks Variables by their names, and workers have no Fernet key (Airflow 3.0 and newer)."""
    return RELEASE >= (3, 0)


def has_human_in_the_loop() -> bool:
    """Whether a task can ask a person a question (Airflow 3.1 and newer)."""
    return RELEASE >= (3, 1)


def has_retry_policies() -> bool:
    """Whether a policy decides about a task's retries (Airflow 3.3 and newer)."""
    return RELEASE >= (3, 3)


def has_form_per_attempt() -> bool:
    """Whether each attempt has its own form, which is replaced if the task asks again (Airflow 3.4 and newer).

    Before that, one form follows the task through retries and clears and keeps its first text.
    """
    return RELEASE >= (3, 4)


def clears_discard_task_state() -> bool:
    """Whether clearing a task empties its task state store unless asked to keep it (Airflow 3.4 and newer)."""
    return RELEASE >= (3, 4)


def has_views_by_operator() -> bool:
    """Whether a plugin's view can be limited to the tasks of certain operators (Airflow 3.4 and newer)."""
    return RELEASE >= (3, 4)


def has_loops() -> bool:
    """Whether a task group can repeat until a decision stops it (Airflow 3.4 and newer)."""
    return RELEASE >= (3, 4)
