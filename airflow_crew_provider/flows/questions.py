"""Questions from Flows: their outcomes as choices. This module does no I/O.

A crew asks for approval or a revision; a Flow may route on any word (observed Flows, the pause).
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_crew_provider.api.answers import approval_meant, outcome_meant
from airflow_crew_provider.api.asks import ask_in
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Json

ASKED_FIELDS = ("question", "outcomes", "flow_id", "ask")


def asked_in(pending: Json) -> Json:
    """Return a pending record's fields for a Flow's question, or one in the middle of a task; empty for a draft."""
    return {name: pending[name] for name in ASKED_FIELDS if pending.get(name) is not None}


def is_of_flow(shown: Json) -> bool:
    """Return whether a Flow is asking; a crew's question in the middle of a task also has outcomes."""
    return ask_in(shown) is None and (shown.get("question") is not None or bool(outcomes_of(shown)))


def feedback_hint(shown: Json) -> str:
    """Return the hint below the form's feedback field; an empty record is treated as a crew's."""
    if outcomes_of(shown):
        return "Sent with your choice"
    return "Your answer" if is_of_flow(shown) else "What to change; required for a revision"


def outcomes_of(shown: Json) -> list[str]:
    """Return the outcomes that a Flow offers; none for a crew, or for a Flow that accepts any text."""
    return list(shown.get("outcomes") or []) if ask_in(shown) is None else []


def at_deadline(shown: Json, options: Sequence[str], policy: str | Json) -> list[str] | None:
    """Return the choice to make if nobody answers in time; None if the task should then fail.

    :raises CrewInvalidInput: the policy does not identify a single outcome of the Flow
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


def approving(shown: Json, options: Sequence[str]) -> list[str] | None:
    """Return the choice that approves; None if it is not clear which of the Flow's outcomes does."""
    outcomes = outcomes_of(shown)
    meant = outcome_meant(True, outcomes) if outcomes else options[0]
    return None if meant is None else [meant]


def refuse_approvals_of(shown: Json, approvals: int) -> None:
    """Refuse to require several approvals if a Flow's outcomes are not an approving and a revising one.

    :raises CrewInvalidInput: the Flow's outcomes are not an approving and a revising one
    """
    outcomes = outcomes_of(shown)
    if approvals > 1 and outcomes and approval_meant(outcomes[0], outcomes) is None:
        raise CrewInvalidInput(
            f"{approvals} approvals are required, but the outcomes of the Flow ({', '.join(outcomes)}) are not an "
            "approving and a revising one; nobody was asked and nothing was sent"
        )


def chosen(shown: Json, option: str, options: Sequence[str]) -> Json:
    """Return the meaning of a choice: whether it approves and, for a Flow, which outcome it is."""
    outcomes = outcomes_of(shown)
    if outcomes:
        return {"is_approve": approval_meant(option, outcomes), "outcome": option}
    of_flow = {"outcome": None} if is_of_flow(shown) else {}
    return {"is_approve": option == options[0], **of_flow}
