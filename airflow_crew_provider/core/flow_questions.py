"""The questions that arrived for one execution of a Flow, and the names under which Airflow keeps them. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_crew_provider.core.flow_webhooks import AnswerAddress, FlowQuestion
from airflow_crew_provider.core.stored_names import FLOW_ANSWER_KEY, FLOW_PREFIX, FLOW_QUESTIONS_KEY, FLOW_RUN_KEY
from airflow_crew_provider.models import Json

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
