"""What a reviewer sees, the validity and meaning of an answer, and decisions without a person. Pure functions.

When the task starts to wait, it stores the content shown, and the answer applies to that content: by the time the
answer arrives, the record may render differently.

A draft is checked against a schema if it may become the output: drafts from a Flow, or from any task but the crew's
last, are not checked. A draft that does not match may be sent back with its violations before a person sees it. That
happens at most once per execution, counted with those that it continues, and never in the last round or after a person
has seen the draft. Otherwise, the person sees the draft with its violations, and nothing else can approve it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_crew_provider.api import asks
from airflow_crew_provider.api.answers import APPROVAL, DraftId, reads_like_approval
from airflow_crew_provider.api.values import record_of, record_or_none
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Json, output_sha256, shown
from airflow_crew_provider.questions import question_in
from airflow_crew_provider.questions.drafts import SHOWN_CHARACTERS, code, text_of
from airflow_crew_provider.questions.kinds import VIOLATIONS, Unreadable, asked_in
from airflow_crew_provider.review.people import REVISE
from airflow_crew_provider.stored_names import (
    AUTO_APPROVED,
    BY_SCHEMA,
    EDIT_FIELD,
    FEEDBACK_FIELD,
    NOT_SHOWN,
    SCHEMA_REVISION,
    SENT_FEEDBACK,
    VALIDATION,
)
from airflow_crew_provider.wait.schema import matching, refuse_bad_schema, validator_of
from airflow_crew_provider.wait.watch import COMPLETED, PENDING

TEXTS = (FEEDBACK_FIELD, EDIT_FIELD)


def problem_with(event: Json, options: Sequence[str], fields: Collection[str], revise: str | None) -> str | None:
    """Return why an event is not a valid answer, as the end of a sentence; None if it is valid.

    :param options: the choices
    :param revise: the choice that needs feedback, if any; it requests a revision unless it is the only one
    :param fields: the names of the form's fields
    """
    if event.get("error_type") == VALIDATION:
        return f"it does not fit the form: {code(event.get('error'))}"
    chosen, filled_in = event.get("chosen_options") or [], event.get("params_input") or {}
    if len(chosen) != 1 or chosen[0] not in options:
        return f"it chose {_listed(chosen)}, but the form has {_listed(options)}"
    if filled_in and set(filled_in) != set(fields):
        return f"its fields are {_listed(filled_in)}, but the form has {_listed(fields)}"
    no_text = next((name for name in TEXTS if not isinstance(filled_in.get(name), str | None)), None)
    if no_text:
        return f"its field {code(no_text)} must be a string"
    feedback = filled_in.get(FEEDBACK_FIELD)
    if chosen[0] == revise and not (feedback or "").strip():
        return "it requests a revision without saying what to change" if options[1:] else "the answer is empty"
    return None


def _listed(names: Collection[Any]) -> str:
    return ", ".join(code(name) for name in list(names)[:10]) or "nothing"


def notice(who: str, problem: str) -> str:
    """Return the notice that an answer was not accepted, to be shown with the next question."""
    return f"The last answer by {code(who)} was not accepted because {problem}."


# --- the content shown ---


def pending_record(value: Any) -> Json:
    """Return the record of a draft to review, or a completed one.

    :raises CrewInvalidInput: the value is not such a record
    """
    pending = {"state": PENDING, **record_of(value, "pending")}
    missing = [name for name in ("execution_id", "crew_task_id", "output") if pending.get(name) is None]
    if missing and pending["state"] != COMPLETED:
        raise CrewInvalidInput(f"The pending record is missing {', '.join(missing)}; nobody was asked")
    if pending["state"] != COMPLETED and isinstance(question_in(pending), Unreadable):
        raise CrewInvalidInput(
            "This release cannot read the crew's mid-task question. Nobody was asked, and execution "
            f"{pending['execution_id']} stays paused. Upgrade this provider, or answer through "
            "the service"
        )
    if not has_its_draft(pending):
        raise CrewInvalidInput(
            f"{_changed(pending)}. Nobody was asked, and execution {pending['execution_id']} stays paused. "
            "Clear the wait and this task to review the crew's text"
        )
    return pending


def has_its_draft(pending: Json) -> bool:
    """Whether a record's output still matches the hash that the wait gave it; records from release 0.1 have none."""
    named = pending.get("output_sha256")
    return named is None or output_sha256(pending.get("output")) in (named, pending.get("object_sha256"))


def refuse_changed(value: Any, draft: Json) -> None:
    """Refuse an answer if the output in the record no longer matches its hash.

    A missing record, or an intact one about another draft, is ignored: the answer is for the draft that was shown.
    """
    pending = record_or_none(value)
    if pending is not None and not has_its_draft(pending):
        raise CrewInvalidInput(
            f"{_changed(pending)}. The answer was not sent, and execution {draft['execution_id']} stays paused. "
            "Clear the wait and this task to continue"
        )


def _changed(pending: Json) -> str:
    return (
        "The output of the pending record was changed after the wait returned it: its hash does not match "
        f"output_sha256, {pending['output_sha256']}"
    )


def shown_draft(pending: Json) -> Json:
    """Return the part of a pending record to show to a person, and the hash of the whole draft."""
    output, text = pending["output"], text_of(pending["output"])
    draft = {
        **{name: pending[name] for name in ("execution_id", "crew_task_id")},
        "crew_task_name": pending.get("crew_task_name"),
        "agent": question_in(pending).author,
        "output_sha256": pending.get("output_sha256") or output_sha256(output),
        "output": output if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS],
        "characters": len(text),
        **asked_in(pending),
        **{name: pending[name] for name in ("view", "files") if pending.get(name)},
        **({"takes_edited_output": True} if pending.get("takes_edited_output") is True else {}),
        **({"dialect": "live"} if pending.get("dialect") == "live" else {}),
    }
    return draft if isinstance(output, str) else {**draft, "language": "json"}


def whole_draft(pending: Json | None, draft: Json) -> Any:
    """Return the draft that was shown, or only the part shown if the record is gone or is about another draft."""
    if pending is None or any(pending.get(name) is None for name in ("execution_id", "crew_task_id", "output")):
        return draft["output"]
    return pending["output"] if DraftId.of(shown_draft(pending)) == DraftId.of(draft) else draft["output"]


# --- the review ---


def review_of(draft: Json, answer: Json, *, choice: Json, feedback: str, reviewer: Json | None) -> Json:
    """Return a review that binds the answer to the draft that was shown."""
    return {
        "execution_id": draft["execution_id"],
        "crew_task_id": draft["crew_task_id"],
        **choice,
        **({"ask": draft["ask"]} if draft.get("ask") else {}),
        "human_feedback": feedback,
        "reviewer": {"id": reviewer["id"], "name": reviewer["name"]} if reviewer else None,
        "decided_at": answer["responded_at"].isoformat(),
        "output_sha256": draft["output_sha256"],
        AUTO_APPROVED: None,
        **({"view": draft["view"]} if draft.get("view") else {}),
    }


def with_text_to_send(review: Json, draft: Json) -> Json:
    """Return a review that leaves out its comment when it is sent, if the crew would misread it."""
    comment = review["human_feedback"]
    is_left_out = review["is_approve"] and question_in(draft).reads_no_comment and comment.strip()
    return {**review, SENT_FEEDBACK: APPROVAL} if is_left_out and not reads_like_approval(comment) else review


def decided_by(review: Json) -> str | None:
    """Return the person or rule that decided; None for the deadline."""
    if review.get(SCHEMA_REVISION) == BY_SCHEMA:
        return "the schema"
    if review.get(AUTO_APPROVED):
        return "auto_approve"
    if review.get(NOT_SHOWN):
        return "the form's limits"
    return (review.get("reviewer") or {}).get("id")


def in_one_line(decision: Json) -> str:
    """Return a decision as one log line."""
    feedback = decision["human_feedback"]
    cut = feedback if len(feedback) <= 500 else f"{feedback[:500]} … ({len(feedback)} characters)"
    summary = question_in(decision).summary
    why = f" ({summary})" if summary else ""
    unread = ", which the crew does not read" if SENT_FEEDBACK in decision else ""
    return (
        f"Review: {decision.get('outcome') or ('approved' if decision['is_approve'] else 'revision')}{why} by "
        f"{decided_by(decision) or 'the deadline'} at {decision['decided_at']}, "
        f"execution {decision['execution_id']}, task {decision['crew_task_id']}, round {decision['round'] or '-'}, "
        f"draft sha256 {decision['output_sha256']}, feedback {json.dumps(cut, ensure_ascii=False)}{unread}"
    )


def of_all_approvals(review: Json, approvals: list[Json]) -> Json:
    """Return the last approver's review, with the feedback from all approvers.

    Texts that only approve are omitted: a live deployment would not read several of them together as an approval.
    """
    texts = [each["human_feedback"] for each in approvals]
    feedback = "\n\n".join(text for text in texts if text.strip() and not reads_like_approval(text))
    return {**review, "human_feedback": feedback, "approvals": approvals}


def no_round_left(review: Json, max_rounds: int | None) -> str:
    """Return the message for a revision requested in the last round."""
    return (
        f"A revision was requested in the last of {max_rounds} rounds. It was not sent: execution "
        f"{review['execution_id']} stays paused at task {review['crew_task_id']}. Answer it with "
        "CrewResumeOperator, or raise max_rounds and start a new run"
    )


# --- decisions by a schema ---


EARLIER = "earlier"
FAIL = "fail"


def refuse_bad_policy(output_schema: Any, on_schema_mismatch: str) -> None:
    """Refuse invalid arguments when the DAG file is parsed."""
    if output_schema is not None:
        refuse_bad_schema(output_schema)
    if on_schema_mismatch not in (FAIL, REVISE):
        raise ValueError(f"on_schema_mismatch must be 'fail' or 'revise', not {shown(on_schema_mismatch)}")
    if on_schema_mismatch == REVISE and output_schema is None:
        raise ValueError("on_schema_mismatch='revise' needs output_schema")


def violations_of(schema: Any, pending: Json) -> list[str]:
    """Return a draft's violations of the output schema; none for a draft that will not become the output.

    If the service does not report progress, every draft from a crew is treated as the output.
    """
    if schema is None or not question_in(pending).is_plain or _tasks_follow(pending):
        return []
    return matching(validator_of(schema), pending["output"])[1]


def revision_by_schema(draft: Json) -> Json:
    """Return the review that requests a revision with the violations as feedback."""
    feedback = (
        "The output does not match the required schema. Violations, each with its path: "
        f"{draft[VIOLATIONS]}. Return the whole output again, corrected to match it"
    )
    return {**_without_person(draft, {"is_approve": False}, feedback), SCHEMA_REVISION: BY_SCHEMA}


# --- other decisions without a person ---


def denial_unseen(draft: Json) -> Json:
    """Return the review that denies a tool call because the form cannot show all of it."""
    feedback = (
        "Denied, because the call could not be shown to a person in full: its arguments are unreadable, or longer "
        f"than {SHOWN_CHARACTERS:,} characters. Use a shorter call"
    )
    return {**_without_person(draft, {"is_approve": False, "outcome": asks.DENY}, feedback), NOT_SHOWN: True}


def approval_by_rule(draft: Json, reason: str) -> Json:
    """Return the review with which ``auto_approve`` approves a draft."""
    return {**_without_person(draft, {"is_approve": True}), AUTO_APPROVED: reason}


def _without_person(draft: Json, choice: Json, feedback: str = "") -> Json:
    """Return the review for a choice made now, without a person."""
    now = {"responded_at": datetime.now(UTC)}
    return review_of(draft, now, choice=choice, feedback=feedback, reviewer=None)


def _tasks_follow(pending: Json) -> bool:
    done, total = pending.get("completed_tasks"), pending.get("total_tasks")
    return isinstance(done, int) and isinstance(total, int) and total - done > 1
