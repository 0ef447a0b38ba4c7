"""How Airflow stores a question to a person: an answered one can be opened again, its text never changes.

Needs Airflow 3.1. Tried on 3.1.8, 3.2.2 and 3.3.2.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from airflow.providers.common.compat.sdk import ParamValidationError, TaskDeferred

from airflow_crew_provider.compat import deferral
from airflow_crew_provider.compat.supervisor import supervisor
from airflow_crew_provider.core.edited_output import draft_in
from airflow_crew_provider.core.stored_names import EDIT_FIELD, FEEDBACK_FIELD
from airflow_crew_provider.models import Json

try:
    from airflow.providers.standard.operators.hitl import HITLOperator
    from airflow.sdk import Param
    from airflow.sdk.definitions.param import ParamsDict
    from airflow.sdk.execution_time.comms import CreateHITLDetailPayload

    from airflow_crew_provider.compat.answer_trigger import AnswerTrigger
except Exception as error:  # each version of Airflow before 3.1 fails here in its own way
    raise ImportError(
        "A task that asks a person needs Airflow 3.1 or newer, which has human-in-the-loop tasks; "
        "on older versions let a person answer elsewhere and pass the four fields to CrewResumeOperator"
    ) from error

try:
    from airflow.sdk.exceptions import TaskDeferralError, TaskDeferralTimeout
except ImportError:  # before Airflow 3.2
    from airflow.exceptions import TaskDeferralError, TaskDeferralTimeout  # type: ignore[no-redef]
try:
    from airflow.sdk.exceptions import TaskAwaitingInput  # Airflow 3.3
except ImportError:
    TaskAwaitingInput = None  # type: ignore[assignment, misc]

__all__ = [
    "HITLOperator",
    "Param",
    "ParamValidationError",
    "TaskDeferralError",
    "TaskDeferralTimeout",
    "find_answer",
    "form_params",
    "name_of",
    "no_params",
    "park",
    "shows_another_draft",
    "timed_out",
]

# For how many seconds a trigger may look for an answer; without a triggerer the task goes on after them too.
LOOKING = 30.0


def form_params(operator: Any, hint: str, draft: str | None = None) -> ParamsDict:
    """Return the params of the task's form: its own and the feedback, without those of its DAG.

    Airflow merges the DAG's params into the task's.

    :param hint: what stands under the field for feedback
    :param draft: the text that the person may edit; None for no such field
    """
    fields = {FEEDBACK_FIELD: _text_field("", "Feedback", hint)}
    if draft is not None:
        fields[EDIT_FIELD] = _text_field(draft, "Draft", "Edit it where you want to")
    return ParamsDict({**_own_params(operator), **fields})


def no_params() -> ParamsDict:
    """Return the params of a form without fields, which Airflow fills with those of the DAG otherwise."""
    return ParamsDict()


def _own_params(operator: Any) -> dict[str, Param]:
    params = {name: operator.params.get_param(name) for name in operator.params}
    if hasattr(ParamsDict, "filter_params_by_source"):
        return {name: param for name, param in params.items() if param.source == "task"}
    # Airflow 3.1 does not say where a param comes from; one that equals the DAG's is the DAG's.
    of_dag = operator.dag.params if operator.has_dag() else ParamsDict()
    return {name: param for name, param in params.items() if not _has(of_dag, name, param)}


def _has(params: ParamsDict, name: str, param: Param) -> bool:
    return name in params and params.get_param(name).serialize() == param.serialize()


def _text_field(text: str, title: str, hint: str) -> Param:
    field = Param(
        text,
        type=["string", "null"],
        format="multiline",
        title=title,
        description=hint,
    )
    field.source = "task"  # Airflow 3.2 shows no others
    return field


def timed_out(event: Json) -> bool:
    """Whether the deadline answered; the answer of a person always names the person."""
    return "error" not in event and bool(event.get("timedout") or not event.get("responded_by_user"))


def name_of(event: Json) -> str:
    """Return the name of the reviewer, for the log."""
    user = event.get("responded_by_user") or {}
    return str(user.get("name") or user.get("id") or ("somebody" if "error" in event else "the deadline"))


def shows_another_draft(operator: Any, context: Any, signs: Sequence[str]) -> bool:
    """Ask, and return whether Airflow shows an earlier draft: it keeps the first form through retries and clears.

    Asking again removes an answer that is there.

    :param signs: texts that the form must hold
    """
    stored = _stored_form(operator, context)
    if not isinstance(getattr(stored, "body", None), str):
        return False
    is_another = stored.options != operator.options or draft_in(stored.params) != draft_in(operator.serialized_params)
    return is_another or not all(sign in stored.body for sign in signs)


def _stored_form(operator: Any, context: Any) -> Any:
    """Write the question and return the one that Airflow holds; None where no supervisor runs this task."""
    line = supervisor()
    if line is None:
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
    return line.send(msg=question)


def find_answer(operator: Any, context: Any, until: str | None, kwargs: Json) -> NoReturn:
    """Defer, and come back with the answer that is there; without one `resume_execution` gets a deferral that failed.

    No worker can read an answer, and asking again removes it. A task that parks with an answer there is queued again at
    once, for which Airflow fails it (see `deferral`); a trigger can let it leave its worker first.
    """
    raise TaskDeferred(
        trigger=_trigger(operator, context, datetime.fromisoformat(until) if until else None),
        method_name="execute_complete",
        kwargs=kwargs,
        timeout=timedelta(seconds=deferral.NOTICED_AFTER + LOOKING),
    )


def park(operator: Any, context: Any, timeout: timedelta | None, kwargs: Json) -> NoReturn:
    """Free the worker slot until somebody answers; if an answer exists already, the task resumes.

    :param kwargs: what `execute_complete` is called with, beside the event
    """
    until = datetime.now(UTC) + timeout if timeout else None
    operator.hitl_summary_extra["timeout_datetime"] = until.isoformat() if until else None
    if TaskAwaitingInput is not None:
        raise TaskAwaitingInput(method_name="execute_complete", kwargs=kwargs, timeout=timeout)
    raise TaskDeferred(trigger=_trigger(operator, context, until), method_name="execute_complete", kwargs=kwargs)


def _trigger(operator: Any, context: Any, until: datetime | None) -> AnswerTrigger:
    return AnswerTrigger(
        not_before=time.time() + deferral.NOTICED_AFTER,
        ti_id=context["ti"].id,
        options=operator.options,
        defaults=operator.defaults,
        params=operator.serialized_params,
        multiple=operator.multiple,
        timeout_datetime=until,
    )
