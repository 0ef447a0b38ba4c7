"""The questions of Flows: the names under which Airflow keeps them, and their outcomes as words to choose from. Pure.

A crew asks for approval or a revision; a Flow may route on any words (observed Flows, the pause).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_crew_provider.api.answers import approval_meant, outcome_meant
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.flows.webhooks import AnswerAddress, FlowQuestion
from airflow_crew_provider.models import Json
from airflow_crew_provider.stored_names import FLOW_ANSWER_KEY, FLOW_PREFIX, FLOW_QUESTIONS_KEY, FLOW_RUN_KEY

KEPT_FOR = timedelta(days=60)  # at most, and where no DAG run is known
MOST_QUESTIONS = 20  # of one execution, with their drafts; older ones are dropped
_UNTIL = "Inbox of the crew provider, kept until "


def questions_key(crew_conn_id: str, execution_id: str) -> str:
    """Return the name of the Variable that holds the questions of an execution."""
    return FLOW_QUESTIONS_KEY + _digest(crew_conn_id, execution_id)


def answer_key(crew_conn_id: str, request_id: str) -> str:
    """Return the name of the Variable that holds how a question is answered; Airflow masks it by its name."""
    return FLOW_ANSWER_KEY + _digest(crew_conn_id, request_id)


def _digest(*names: str) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:40]


def description(now: datetime, kept_for: timedelta | None = None) -> str:
    """Return what a Variable says of itself, by which it is found when its time is over."""
    return _UNTIL + (now + (KEPT_FOR if kept_for is None else kept_for)).astimezone(UTC).isoformat(timespec="seconds")


def is_over(key: str, said: str | None, now: datetime) -> bool:
    """Whether a Variable is one of the inbox and its time is over."""
    mine = key.startswith(FLOW_PREFIX) and (said or "").startswith(_UNTIL)
    return mine and (said or "") < _UNTIL + now.astimezone(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class FlowRun:
    """A DAG run that started an execution, or waits for it: the questions of the execution go with it."""

    crew_conn_id: str
    execution_id: str
    dag_id: str
    run_id: str

    @classmethod
    def of(cls, text: str | None) -> FlowRun | None:
        """Read what was stored; None if it is something else."""
        try:
            return cls(**json.loads(text or "null"))
        except (TypeError, ValueError):
            return None

    @property
    def key(self) -> str:
        """Return the name of its Variable."""
        return FLOW_RUN_KEY + _digest(self.crew_conn_id, self.execution_id, self.dag_id, self.run_id)

    @property
    def description(self) -> str:
        """What its Variable says of itself."""
        return f"Inbox of the crew provider, for {self.run_id} of {self.dag_id}; removed within a day of its end"

    def as_dict(self) -> Json:
        """Return plain JSON."""
        return asdict(self)


@dataclass(frozen=True)
class FlowQuestions:
    """The questions of an execution, the oldest first."""

    questions: list[FlowQuestion] = field(default_factory=list)

    @classmethod
    def of(cls, text: str | None) -> FlowQuestions:
        """Read what was stored."""
        return cls([FlowQuestion(**each) for each in json.loads(text)] if text else [])

    def asking(self, question: FlowQuestion) -> str:
        """Return what is stored with a question added."""
        return json.dumps([each.as_dict() for each in [*self.questions, question][-MOST_QUESTIONS:]])


def stored_answer(address: AnswerAddress) -> str:
    """Return what is stored of an address."""
    return json.dumps(address.as_dict())


USED = "{}"  # stored in place of a used address, so that a repeated webhook is recognized


def read_answer(text: str | None) -> AnswerAddress | None:
    """Read what was stored of an address; None if there is none or it is used up."""
    value: Any = json.loads(text) if text else None
    return AnswerAddress(**value) if value else None


ASKED_FIELDS = ("question", "outcomes", "flow_id")


def asked_in(pending: Json) -> Json:
    """Return what a Flow asks in a pending record; empty for a crew."""
    return {name: pending[name] for name in ASKED_FIELDS if pending.get(name) is not None}


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


def approving(shown: Json, options: Sequence[str]) -> list[str] | None:
    """Return the choice that approves; None where the Flow offers none that can only mean it."""
    outcomes = outcomes_of(shown)
    meant = outcome_meant(True, outcomes) if outcomes else options[0]
    return None if meant is None else [meant]


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
