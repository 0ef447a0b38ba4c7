"""Makes review forms show why the last answer was refused, before Airflow 3.4. Uses Airflow's internals.

Up to 3.3, Airflow never changes the text of a question: a task that asks again only removes the answer. When the API
server removes an answer that the review refused, the reason is inserted before the text in the same transaction. From
3.4 on, the task that asks again sends the whole text.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

from airflow_crew_provider.api.status import json_object_in
from airflow_crew_provider.compat import version
from airflow_crew_provider.questions import Draft, Question, Terms, kinds
from airflow_crew_provider.questions.drafts import draft_in, is_edit, with_text_of_edit
from airflow_crew_provider.review.answer import notice, problem_with
from airflow_crew_provider.stored_names import EDIT_FIELD, FEEDBACK_FIELD

MODELS = "airflow.models.hitl"
_NOTICE = re.compile(r"\A\*\*The last answer by [^\n]*\*\*\n\n")
_IN_THE_MIDDLE = re.compile(rf"^(\*\*Round [^\n*]*\*\* )?{re.escape(kinds.IN_THE_MIDDLE)}", re.MULTILINE)

log = logging.getLogger(__name__)


def explain_refusals() -> None:
    """Listen for removed answers in a process that has loaded Airflow's models; no other process removes any."""
    models = sys.modules.get(MODELS)
    if models is None or version.has_form_per_attempt():
        return
    from sqlalchemy import event

    try:
        if not event.contains(models.HITLDetail, "before_update", _before_update):
            event.listen(models.HITLDetail, "before_update", _before_update)
    except Exception:
        log.exception("Review forms will not show why the last answer was refused; the tasks' logs will")


def _before_update(mapper: Any, connection: Any, detail: Any) -> None:
    try:
        if FEEDBACK_FIELD in (detail.params or {}) and detail.responded_at is None and _is_ours(connection, detail):
            _explain(detail)
    except Exception:
        log.exception("The form could not show why the last answer was refused")


def _is_ours(connection: Any, detail: Any) -> bool:
    """Whether this is a review's form: any task may use this field name, and before 3.1.3 nothing else marks it."""
    from airflow_crew_provider.compat.task_records import is_about_an_execution

    return is_about_an_execution(connection, detail.ti_id)


def _explain(detail: Any) -> None:
    """Insert the reason before the text, if any: an accepted answer may also be removed, to ask the next person."""
    from sqlalchemy import inspect

    state = inspect(detail)
    removed = {name: state.attrs[name].history.deleted for name in ("responded_at", "chosen_options", "params_input")}
    if not removed["responded_at"] or removed["responded_at"][0] is None:
        return
    before = {name: values[0] if values else getattr(detail, name) for name, values in removed.items()}
    text = _NOTICE.sub("", detail.body or "")
    problem = why_refused(before, text, list(detail.options), detail.params or {})
    who = (state.attrs.responded_by.history.deleted or [None])[0] or {}
    sentence = f"**{notice(str(who.get('name') or who.get('id') or 'somebody'), problem)}**\n\n" if problem else ""
    detail.body = sentence + text


def why_refused(answer: dict[str, Any], text: str, options: list[str], params: dict[str, Any]) -> str | None:
    """Return why an answer was refused, as far as the form shows it; None if it was accepted.

    For text that does not match a schema, only the task's log gives the reason.

    :param text: the form's text
    :param params: the form's fields
    """
    draft = draft_in(params)
    answer, question = with_text_of_edit(answer, draft), _question_on(text, options, draft)
    problem = problem_with(answer, options, list(params), question.needs_text(Terms(words=options)))
    edit = (answer["params_input"] or {}).get(EDIT_FIELD)
    if problem or not isinstance(draft, str) or not isinstance(edit, str) or not is_edit(draft, edit):
        return problem
    return question.edit_problem({"outcome": answer["chosen_options"][0]}, edit)


def _question_on(text: str, options: list[str], draft: Any) -> Question:
    """Return the question, recognized at the beginning of a line, where a quoted draft cannot contain the marker."""
    if _IN_THE_MIDDLE.search(text):
        known = (each for each in kinds.KINDS_IN_THE_MIDDLE.values() if set(options) <= set(each.words))
        arguments = json_object_in(draft) if isinstance(draft, str) else None
        return next(known, kinds.Unreadable)({"output": draft}, {"arguments": arguments})
    is_of_flow = f"\n{kinds.THE_QUESTION}" in f"\n{text}"
    return kinds.FlowQuestion({"outcomes": options}) if is_of_flow else Draft({"output": draft})
