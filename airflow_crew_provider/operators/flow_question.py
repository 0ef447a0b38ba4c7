"""The question of a Flow in a review: its outcomes are the words to choose from. Pure.

A crew asks for approval or a revision; a Flow may route on any words (observed Flows, the pause).
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_crew_provider.core.feedback import approval_meant, outcome_meant
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Json

FIELDS = ("question", "outcomes", "flow_id")


def asked_in(pending: Json) -> Json:
    """Return what a Flow asks in a pending record; empty for a crew."""
    return {name: pending[name] for name in FIELDS if pending.get(name) is not None}


def is_of_flow(shown: Json) -> bool:
    """Whether a Flow asks, and no crew."""
    return shown.get("question") is not None or bool(outcomes_of(shown))


def feedback_hint(shown: Json) -> str:
    """Return what the form says under the field for feedback; an empty record is a crew's."""
    if outcomes_of(shown):
        return "Goes along with your choice"
    return "Your answer" if is_of_flow(shown) else "What to change; needed for a revision"


def outcomes_of(shown: Json) -> list[str]:
    """Return the outcomes that a Flow offers; none for a crew and for a Flow that takes any text."""
    return list(shown.get("outcomes") or [])


def at_deadline(shown: Json, options: Sequence[str], policy: str | Json) -> list[str] | None:
    """Return what is chosen when nobody answers in time; None if the task fails then.

    :raises CrewInvalidInput: the Flow offers no outcome that the policy can only mean
    """
    if policy == "fail":
        return None
    approves, outcomes = policy == "approve", outcomes_of(shown)
    if not outcomes:
        return [options[0] if approves else options[1]]
    meant = outcome_meant(approves, outcomes)
    if meant is None:
        raise CrewInvalidInput(
            f"on_timeout={policy!r} does not determine which outcome of the Flow is meant ({', '.join(outcomes)}); "
            "nobody was asked and nothing was sent. Use on_timeout='fail' with this Flow"
        )
    return [meant]


def refuse_approvals_of(shown: Json, approvals: int) -> None:
    """Refuse to ask for several approvals where no outcome is one.

    :raises CrewInvalidInput: the outcomes of the Flow are not an approving and a revising one
    """
    outcomes = outcomes_of(shown)
    if approvals > 1 and outcomes and approval_meant(outcomes[0], outcomes) is None:
        raise CrewInvalidInput(
            f"{approvals} approvals were asked for, and the outcomes of the Flow ({', '.join(outcomes)}) are not an "
            "approving and a revising one; nobody was asked and nothing was sent"
        )


def chosen(shown: Json, option: str, options: Sequence[str]) -> Json:
    """Return what a choice says: whether it approves and, of a Flow, which outcome it is."""
    outcomes = outcomes_of(shown)
    if outcomes:
        return {"is_approve": approval_meant(option, outcomes), "outcome": option}
    of_flow = {"outcome": None} if shown.get("question") is not None else {}
    return {"is_approve": option == options[0], **of_flow}
