"""How Airflow keeps a question to a person: an answered one can be opened again, a text once shown never changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.providers.common.compat.sdk import ParamValidationError

from airflow_crew_provider.hooks.waits import CrewTaskFailed
from airflow_crew_provider.models import Json

try:
    from airflow.sdk.exceptions import TaskAwaitingInput  # Airflow 3.3
except ImportError:
    from airflow.providers.common.compat.sdk import TaskDeferred as TaskAwaitingInput  # type: ignore[assignment]

__all__ = ["ParamValidationError", "TaskAwaitingInput", "name_of", "refuse_stale", "timed_out"]


def timed_out(event: Json) -> bool:
    """Whether the deadline answered; a person's answer always carries a person."""
    return bool(event.get("timedout")) or not event.get("responded_by_user")


def name_of(event: Json) -> str:
    """Name who answered, for the log."""
    user = event.get("responded_by_user") or {}
    return str(user.get("name") or user.get("id") or "the deadline")


def refuse_stale(operator: Any, context: Any, signs: Sequence[str]) -> None:
    """Fail if Airflow would show an earlier draft: it keeps the first text of a task through retries and clears.

    Asking twice with the same text is the same as once.
    """
    shown = _stored_body(operator, context)
    if shown is None or all(sign in shown for sign in signs):
        return
    raise CrewTaskFailed(
        "Airflow still holds the draft of an earlier run of this task and cannot show the new one, so nobody was asked "
        "and nothing was sent. The execution stays paused at the service; start a new DAG run instead of clearing "
        "this one, or answer with CrewResumeOperator"
    )


def _stored_body(operator: Any, context: Any) -> str | None:
    """Write the question and return the text that Airflow holds; None where no supervisor runs this task."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import CreateHITLDetailPayload

    supervisor = getattr(task_runner, "SUPERVISOR_COMMS", None)
    if supervisor is None:
        return None
    question = CreateHITLDetailPayload(
        ti_id=context["ti"].id,
        options=operator.options,
        subject=operator.subject,
        body=operator.body,
        defaults=operator.defaults,
        multiple=operator.multiple,
        params=operator.serialized_params,
        assigned_users=operator.assigned_users or [],
    )
    body = getattr(supervisor.send(msg=question), "body", None)
    return body if isinstance(body, str) else None
