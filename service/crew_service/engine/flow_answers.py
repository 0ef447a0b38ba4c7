"""Answers to a Flow's question that do not name a task: sent to a flow webhook's address, or with a Flow's id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Row

from crew_service.engine.decisions import AlreadyAnswered, BadResponseToken, Decision, NotWaiting, UnknownExecution
from crew_service.engine.executions import Executions
from crew_service.engine.flow_webhook import FlowWebhook
from crew_service.engine.principals import Principal, is_key
from crew_service.engine.questions import question_in
from crew_service.storage import questions
from crew_service.storage.database import Database
from crew_service.storage.states import State
from crew_service.times import iso


@dataclass(frozen=True)
class FlowAnswer:
    feedback: str
    outcome: str | None = None
    source: str | None = None


class FlowAnswers:
    def __init__(self, database: Database, executions: Executions, webhook: FlowWebhook | None) -> None:
        self._database = database
        self._executions = executions
        self._webhook = webhook

    def check_token(self, question_id: str, token: str) -> None:
        """Check the token in a webhook's address, without a database query, because anyone can send a request."""
        if self._webhook is None or not self._webhook.is_token(question_id, token):
            raise BadResponseToken("the token is not valid for this question")

    def respond(self, question_id: str, answer: FlowAnswer) -> dict[str, Any]:
        """Accept the single answer that a webhook's address allows; the caller has checked its token."""
        with self._database.reading() as connection:
            question = questions.find(connection, question_id)
        row = self._executions.asked(Principal(), question.execution_id) if question else None
        if question is None or row is None:
            raise BadResponseToken("there is no such question")
        return self._answer(Principal(), row, question, answer, by=_named(answer.source))

    def resume(self, caller: Principal, flow_id: str, answer: FlowAnswer) -> dict[str, Any]:
        """Answer the Flow's current question."""
        row = self._executions.asked(caller, flow_id)
        if row is None:
            raise UnknownExecution("no such execution")
        waiting = question_in(row.gate) if row.state == State.WAITING else None
        with self._database.reading() as connection:
            # The current question is the one in the row, regardless of timestamps.
            current = questions.find(connection, waiting.question_id) if waiting and waiting.question_id else None
            question = current or questions.latest_of(connection, row.id)
        if question is None:
            raise NotWaiting("the Flow has not asked a question yet")
        return self._answer(caller, row, question, answer, by=caller.key)

    def _answer(
        self, caller: Principal, row: Row[Any], question: Row[Any], answer: FlowAnswer, *, by: str
    ) -> dict[str, Any]:
        """Resume the execution with the answer, unless another answer came first."""
        waiting = question_in(row.gate) if row.state == State.WAITING else None
        if waiting is None or waiting.question_id != question.id:
            raise self._too_late(question.id)
        decision = Decision(row.id, waiting.key, None, answer.feedback, outcome=answer.outcome, question_id=question.id)

        def accepted(kickoff_id: str, decision: Decision) -> dict[str, Any]:
            receipt = {"flow_id": row.id, "method_name": waiting.task_id, "responded_by": by, "responded_at": iso(now)}
            return {"status": "accepted", "request": {"id": question.id, "status": "responded", **receipt}}

        now = self._database.now()
        try:
            return self._executions.resume(caller, decision, None, accepted, answered_by=by)
        except NotWaiting:
            raise self._too_late(question.id) from None

    def _too_late(self, question_id: str) -> AlreadyAnswered | NotWaiting:
        with self._database.reading() as connection:
            question = questions.find(connection, question_id)
        if question is None or question.answered_at is None:
            return NotWaiting("the Flow is no longer waiting for this answer")
        return AlreadyAnswered(question.answered_by, question.answered_at)


def _named(source: str | None) -> str:
    """Return the name that a webhook's receiver gave; `callback` if it gave none or a token holder's."""
    name = (source or "").strip()
    return "callback" if not name or is_key(name) else name
