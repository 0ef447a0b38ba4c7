"""The draft that a person was shown, and what the person answered. Pure.

What was shown is kept when the task is parked, and an answer belongs to it: a record that is rendered again when the
answer comes may be another one.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from airflow_crew_provider.core.feedback import reads_like_approval, record_of, record_or_none
from airflow_crew_provider.core.outcome import COMPLETED, PENDING
from airflow_crew_provider.core.stored_names import BY_SCHEMA, SCHEMA_REVISION
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Json, output_sha256
from airflow_crew_provider.operators.flow_question import asked_in

# More than anybody reads in a form, and what a browser still draws at once.
SHOWN_CHARACTERS = 60_000
DRAFT = ("execution_id", "crew_task_id", "output_sha256")
VIOLATIONS = "violations"


def pending_record(given: Any) -> Json:
    """Return the record of a draft to review, or a completed one.

    :raises CrewInvalidInput: when it is neither
    """
    pending = {"state": PENDING, **record_of(given, "pending")}
    missing = [name for name in ("execution_id", "crew_task_id", "output") if pending.get(name) is None]
    if missing and pending["state"] != COMPLETED:
        raise CrewInvalidInput(f"The pending record lacks {', '.join(missing)}; nobody was asked")
    if not has_its_draft(pending):
        raise CrewInvalidInput(
            f"{_changed(pending)}. Nobody was asked, and execution {pending['execution_id']} stays paused at the "
            "service. Clear the wait and this task to review what the crew wrote"
        )
    return pending


def has_its_draft(pending: Json) -> bool:
    """Whether the output of a record still has the hash that the wait gave it; a record of release 0.1 has none."""
    named = pending.get("output_sha256")
    return named is None or output_sha256(pending.get("output")) in (named, pending.get("object_sha256"))


def refuse_changed(given: Any, shown: Json) -> None:
    """Refuse an answer when the output in the record is no longer the one that its hash is of.

    A record that is gone, or is about another draft by now, changes nothing: an answer is for the draft that was shown.
    """
    pending = record_or_none(given)
    if pending is not None and not has_its_draft(pending):
        raise CrewInvalidInput(
            f"{_changed(pending)}. The answer was not sent, and execution {shown['execution_id']} stays paused at the "
            "service. Clear the wait and this task to go on"
        )


def _changed(pending: Json) -> str:
    return (
        f"The output of the pending record was changed after the wait returned it: its hash is not output_sha256, "
        f"{pending['output_sha256']}"
    )


def shown_draft(pending: Json) -> Json:
    """Return what of a pending record a person is shown, and the hash of the whole draft."""
    output, text = pending["output"], text_of(pending["output"])
    shown = {
        **{name: pending[name] for name in DRAFT[:2]},
        "crew_task_name": pending.get("crew_task_name"),
        "agent": author_of(pending),
        "output_sha256": pending.get("output_sha256") or output_sha256(output),
        "output": output if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS],
        "characters": len(text),
        **asked_in(pending),
        **({"takes_edited_output": True} if pending.get("takes_edited_output") is True else {}),
    }
    return shown if isinstance(output, str) else {**shown, "language": "json"}


def text_of(output: Any) -> str:
    """Return a draft as it is shown."""
    text = output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)
    # No database takes these; the hash is of the draft as it came.
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def author_of(pending: Json) -> str | None:
    """Return the agent that wrote the draft, where the service reports it."""
    tasks = pending.get("tasks") or []
    named: Json = next((each for each in tasks if each.get("task_id") == pending.get("crew_task_id")), {})
    agent = pending.get("agent") or named.get("agent")
    return str(agent) if agent else None


def identity_of(shown: Json) -> list[Any]:
    """Return what distinguishes one draft from another."""
    return [shown[name] for name in DRAFT]


def whole_draft(pending: Json | None, shown: Json) -> Any:
    """Return the draft that was shown; only the part that was shown if the record is gone or about another draft."""
    if pending is None or any(pending.get(name) is None for name in ("execution_id", "crew_task_id", "output")):
        return shown["output"]
    return pending["output"] if identity_of(shown_draft(pending)) == identity_of(shown) else shown["output"]


def review_of(shown: Json, answer: Json, *, choice: Json, feedback: str, reviewer: Json | None) -> Json:
    """Return the review: an answer, bound to the draft that was shown."""
    return {
        "execution_id": shown["execution_id"],
        "crew_task_id": shown["crew_task_id"],
        **choice,
        "human_feedback": feedback,
        "reviewer": {"id": reviewer["id"], "name": reviewer["name"]} if reviewer else None,
        "decided_at": answer["responded_at"].isoformat(),
        "output_sha256": shown["output_sha256"],
    }


def decided_by(review: Json) -> str | None:
    """Name the person who decided, or the schema; None for the deadline."""
    if review.get(SCHEMA_REVISION) == BY_SCHEMA:
        return "the schema"
    return (review.get("reviewer") or {}).get("id")


def in_one_line(decision: Json) -> str:
    """Return a decision as one line of the log."""
    said = decision["human_feedback"]
    cut = said if len(said) <= 500 else f"{said[:500]} … ({len(said)} characters)"
    return (
        f"Review: {decision.get('outcome') or ('approved' if decision['is_approve'] else 'revision')} by "
        f"{decided_by(decision) or 'the deadline'} at {decision['decided_at']}, "
        f"execution {decision['execution_id']}, task {decision['crew_task_id']}, round {decision['round'] or '-'}, "
        f"draft sha256 {decision['output_sha256']}, feedback {json.dumps(cut, ensure_ascii=False)}"
    )


def of_all_approvals(review: Json, approvals: list[Json]) -> Json:
    """Return the review of the last of several people who have approved, with what each of them said.

    A text that only approves is left out of the feedback: a live deployment would not read several of them as one.
    """
    texts = [each["human_feedback"] for each in approvals]
    feedback = "\n\n".join(text for text in texts if text.strip() and not reads_like_approval(text))
    return {**review, "human_feedback": feedback, "approvals": approvals}


def no_answer(shown: Json, response_timeout: timedelta | None) -> str:
    """Say what became of a question that nobody has answered in time."""
    return (
        f"Nobody answered within {response_timeout}. Nothing was sent: execution {shown['execution_id']} stays paused "
        "at the service. Clear this task to ask again, or answer with CrewResumeOperator"
    )


def no_round_left(review: Json, max_rounds: int | None) -> str:
    """Say what became of a revision that was asked for in the last round."""
    return (
        f"A revision was asked for in the last of {max_rounds} rounds. It was not sent: execution "
        f"{review['execution_id']} stays paused at the service, at task {review['crew_task_id']}. Answer it with "
        "CrewResumeOperator, or raise max_rounds and start a new run"
    )
