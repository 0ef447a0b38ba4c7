"""Stores questions for people in Airflow, and finds their answers. Needs Airflow 3.1 or newer.

Before Airflow 3.4, a task keeps one form through retries and clears: asking again removes the answer and keeps the
text. From 3.4 on, each attempt has its own form: asking again replaces it, and a retry or a clear starts without one.
The answer to an earlier attempt's form stays with that attempt, where a triggerer can read it.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from airflow.providers.common.compat.sdk import BaseOperator, ParamValidationError, TaskDeferred

from airflow_crew_provider.compat import deferral, version
from airflow_crew_provider.compat.supervisor import supervisor
from airflow_crew_provider.models import Json
from airflow_crew_provider.questions.drafts import code, draft_in
from airflow_crew_provider.stored_names import EDIT_FIELD, FEEDBACK_FIELD, NUMBER_FIELD

if not version.has_human_in_the_loop():
    raise ImportError(
        "Asking a person a question needs Airflow 3.1 or newer, which has human-in-the-loop tasks; "
        "on older versions, let a person answer elsewhere and pass the four fields to CrewResumeOperator"
    )

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Param
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.execution_time.comms import CreateHITLDetailPayload

from airflow_crew_provider.compat.answer_trigger import NO_ANSWER, NO_FORM, AnswerTrigger

try:
    from airflow.sdk.exceptions import TaskDeferralError, TaskDeferralTimeout
except ImportError:  # before Airflow 3.2
    from airflow.exceptions import TaskDeferralError, TaskDeferralTimeout  # type: ignore[no-redef]
try:
    from airflow.sdk.exceptions import TaskAwaitingInput  # Airflow 3.3
except ImportError:
    TaskAwaitingInput = None  # type: ignore[assignment, misc]

__all__ = ["NO_FORM", "HITLOperator", "TaskDeferralError", "TaskDeferralTimeout"]  # imported for others

UNSET = Param().value  # of a param without a default
FIELD = ("value", "description", "schema")  # what a form shows of a field
OUR_FIELDS = (FEEDBACK_FIELD, EDIT_FIELD, NUMBER_FIELD)
# Time limits in seconds for a triggerer to look for an answer; afterwards the task continues without one. An earlier
# attempt's answer cannot be found later, so the second limit leaves time to replace a lost triggerer.
LOOKING, LOOKING_AT_EARLIER = 30.0, 120.0
# The clocks of Airflow's machines differ, and a form shows its deadline to the minute.
GRACE = timedelta(minutes=1)


def form_params(own: dict[str, Param], hint: str, draft: str | None = None, title: str = "Draft") -> ParamsDict:
    """Return the params for the task's form: the author's own and the feedback field, but not the DAG's.

    :param own: the author's own
    :param hint: the hint below the feedback field
    :param draft: the text that the person may edit; None for no field
    :param title: the title of that field
    """
    fields = {FEEDBACK_FIELD: _text_field("", "Feedback", hint)}
    if draft is not None:
        fields[EDIT_FIELD] = _text_field(draft, title, f"Edit the {title.lower()} if you like")
    return ParamsDict({**own, **fields})


def fields_of(operator: BaseOperator) -> Json:
    """Return the fields that the DAG's author added to the form, as plain JSON."""
    own = {name: param.serialize() for name, param in own_params(operator).items() if name not in OUR_FIELDS}
    fields = {name: {each: field[each] for each in FIELD if field[each] is not UNSET} for name, field in own.items()}
    return dict(json.loads(json.dumps(fields, default=str)))


def params_of(fields: Json, operator: BaseOperator) -> dict[str, Param]:
    """Return the params for such fields, and the task's question number, if any."""
    params = {}
    for name, field in fields.items():
        params[name] = Param(field.get("value", UNSET), field["description"], schema=field["schema"])
        params[name].source = "task"
    return {**params, **{name: each for name, each in own_params(operator).items() if name == NUMBER_FIELD}}


def no_params() -> ParamsDict:
    """Return the params for a form without fields; without these, Airflow would use the DAG's."""
    return ParamsDict()


def own_params(operator: BaseOperator) -> dict[str, Param]:
    """Return the task's own params, without the DAG's, which Airflow merges into them."""
    own: Any = operator.params
    params = {name: own.get_param(name) for name in own}
    if hasattr(ParamsDict, "filter_params_by_source"):
        return {name: param for name, param in params.items() if param.source == "task"}
    # Airflow 3.1 does not record where a param comes from; one equal to the DAG's is treated as the DAG's.
    of_dag = operator.dag.params if operator.has_dag() else ParamsDict()
    the_dags = {name: of_dag.get_param(name).serialize() for name in of_dag}
    return {name: param for name, param in params.items() if the_dags.get(name) != param.serialize()}


def _text_field(text: str, title: str, hint: str) -> Param:
    field = Param(
        text,
        type=["string", "null"],
        format="multiline",
        title=title,
        description=hint,
    )
    field.source = "task"  # Airflow 3.2 shows no other fields
    return field


def ask_with_number(operator: BaseOperator, number: int) -> None:
    """Give the task's form the hidden field that identifies the question being answered."""
    field = Param(number, type="integer", const=number, title="Question")
    field.source = "task"
    operator.params = ParamsDict({**own_params(operator), NUMBER_FIELD: field})


def timed_out(event: Json) -> bool:
    """Whether the event is from the deadline; a person's answer always names the person."""
    return "error" not in event and bool(event.get("timedout") or not event.get("responded_by_user"))


def too_late(event: Json, until: str | None) -> str | None:
    """Return a sentence about a person's answer that came after the deadline; None for any other event.

    Airflow accepts answers until it notices the deadline itself, which may be much later if its scheduler is down, or
    between two tries. What counts is when the person answered, not when the answer is delivered.
    """
    at = event.get("responded_at")
    if until is None or at is None or timed_out(event):
        return None
    end = datetime.fromisoformat(until)
    if at <= end + GRACE:
        return None
    who, deadline = name_of(event), f"{end:%Y-%m-%d %H:%M} UTC"
    return f"The answer from {who} does not count because it came after the deadline, {deadline}"


def deadline_event(chosen: Sequence[str]) -> Json:
    """Return the event for a deadline that makes this choice now."""
    decided = {"chosen_options": list(chosen), "params_input": {}, "responded_at": datetime.now(UTC)}
    return {**decided, "responded_by_user": None, "timedout": True}


def is_old_default(event: Json, chosen: Sequence[str] | None) -> bool:
    """Whether Airflow itself answered with a default that the review no longer has.

    Up to Airflow 3.3, a form keeps its first default, even if the DAG is edited and the task cleared afterwards.

    :param chosen: the choice that the deadline makes now; None if it makes none
    """
    return bool(event.get("timedout")) and event.get("chosen_options") != chosen


def name_of(event: Json) -> str:
    """Return the reviewer's name, for the log."""
    user = event.get("responded_by_user") or {}
    return str(user.get("name") or user.get("id") or ("somebody" if "error" in event else "the deadline"))


def problem_with_fields(operator: HITLOperator, context: Any, event: Json) -> str | None:
    """Return why Airflow rejects an answer's fields, as the end of a sentence; None if it accepts them."""
    fields = copy.deepcopy(operator.params)
    try:
        HITLOperator.execute_complete(operator, context, event)
    except (ValueError, ParamValidationError) as error:
        return f"it does not fit the form: {code(error)}"
    finally:
        operator.params = fields  # Airflow fills them with the answer, but the next question must be unchanged
    return None


def shows_another_draft(operator: HITLOperator, stored: Any, signs: Sequence[str]) -> bool:
    """Whether a stored form shows an earlier draft: Airflow keeps the first form across retries and clears.

    :param stored: the result of `ask`
    :param signs: strings that the form must contain
    """
    if not isinstance(getattr(stored, "body", None), str):
        return False
    is_another = stored.options != operator.options or draft_in(stored.params) != draft_in(operator.serialized_params)
    return is_another or not all(sign in stored.body for sign in signs)


def ask(operator: HITLOperator, context: Any) -> Any:
    """Write the question, removing any existing answer; return the form that Airflow stores.

    Returns None if no supervisor runs this task.
    """
    line = supervisor()
    if line is None:
        return None
    users: Any = operator.assigned_users or []  # Airflow has two classes for users
    question = CreateHITLDetailPayload(
        ti_id=context["ti"].id,
        options=operator.options,
        subject=operator.subject,
        body=operator.body,
        defaults=operator.defaults,
        multiple=operator.multiple,
        params=operator.serialized_params,
        assigned_users=users,
    )
    return line.send(msg=question)


def asking_attempt(context: Any) -> str | None:
    """Return the id of the attempt that owns the form when this task asks; None if the task owns it."""
    return str(context["ti"].id) if version.has_form_per_attempt() else None


def find_answer(
    operator: HITLOperator, context: Any, until: str | None, kwargs: Json, attempt: str | None = None
) -> NoReturn:
    """Defer, and resume with an existing answer, or with an event that `found_nothing` recognizes.

    No worker can read an answer, and asking again removes it. If a task starts to wait while an answer exists, Airflow
    queues it again at once and then fails it (see `deferral`); a trigger can wait until it has left its worker.

    :param attempt: the attempt that owns the form; None for the current one
    """
    is_earlier = attempt not in (None, str(context["ti"].id))
    end = datetime.fromisoformat(until) if until else None
    raise TaskDeferred(
        trigger=_trigger(operator, attempt or context["ti"].id, end, once=True),
        method_name="execute_complete",
        kwargs=kwargs,
        timeout=timedelta(seconds=deferral.NOTICED_AFTER + (LOOKING_AT_EARLIER if is_earlier else LOOKING)),
    )


def found_nothing(resumed_with: Json | None) -> str | None:
    """Return the result of a lookup that found no answer, or not even the form; None for any other resume."""
    event = (resumed_with or {}).get("event")
    missing = event.get("error_type") if isinstance(event, dict) else None
    return missing if missing in (NO_ANSWER, NO_FORM) else None


def park(operator: HITLOperator, context: Any, timeout: timedelta | None, kwargs: Json) -> NoReturn:
    """Free the worker slot until somebody answers; if an answer already exists, the task resumes with it.

    :param kwargs: arguments of `execute_complete` besides the event
    """
    until = datetime.now(UTC) + timeout if timeout else None
    operator.hitl_summary_extra["timeout_datetime"] = until.isoformat() if until else None
    if TaskAwaitingInput is not None:
        raise TaskAwaitingInput(method_name="execute_complete", kwargs=kwargs, timeout=timeout)
    trigger = _trigger(operator, context["ti"].id, until)
    raise TaskDeferred(trigger=trigger, method_name="execute_complete", kwargs=kwargs)


def _trigger(operator: HITLOperator, attempt: Any, until: datetime | None, *, once: bool = False) -> AnswerTrigger:
    return AnswerTrigger(
        not_before=time.time() + deferral.NOTICED_AFTER,
        once=once,
        ti_id=attempt,
        options=operator.options,
        defaults=operator.defaults,
        params=operator.serialized_params,
        multiple=operator.multiple,
        timeout_datetime=until,
    )
