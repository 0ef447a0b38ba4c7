"""The state that one task stores between deferrals and tries; `task.record` has its moves.

A move changes the task's record, which is stored before anything else is done. The next question is one change of three
parts: its number, and the last question and answer, which are forgotten, since the next question may be identical.

A decision is stored before its answer is sent, with its execution, and no move drops it: what people decided about an
execution that failed afterwards is history, not state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from airflow_crew_provider.api.answers import DraftId
from airflow_crew_provider.models import Json
from airflow_crew_provider.review.record import ASKS_LATER, QuestionRecord
from airflow_crew_provider.stored_names import (
    NUMBER_FIELD,
    OTHER_QUESTION,
    REFUSAL,
    REJECTED_BEFORE,
    RESUME_STATE,
    RUN_STATE,
    VALIDATION,
)
from airflow_crew_provider.task.attempt import Attempt, Relation
from airflow_crew_provider.task.record import PLAIN_OF_RUN, UNOPENED, RunState, StoredRun
from airflow_crew_provider.task.store import Stored, TaskStateUnavailable
from airflow_crew_provider.wait.outcomes import fail_task
from airflow_crew_provider.wait.watch import AnsweredDraft

REATTACHES = "A retry of this task reattaches to it"


class RunRecord:
    """The record of one task, read once each time a worker runs the task.

    :param stored: the record of the task instance
    :raises TaskStateUnavailable: it cannot be read
    """

    def __init__(self, stored: Stored, attempt: Attempt) -> None:
        self._stored, self._attempt = stored, attempt
        self._memory = stored.part(RUN_STATE, PLAIN_OF_RUN)
        fields = self._memory.recall()
        self.kept, self._unopened = StoredRun.from_json(fields), fields.get(UNOPENED)

    def begin(self, execution_id: str, inbox: Json | None, *, now: float, continues: bool = False) -> None:
        """Begin a try with an execution that this try or an earlier one started.

        :param continues: whether another one continues the last one of this task, so that its questions go on, too
        """
        before, attempt = self.kept, self._attempt.as_dict()
        if before.execution_id == execution_id:
            works = None if before.state is RunState.ANSWERED else now
            new = replace(before, attempt=attempt, since=works, worked=0.0, over=False)
            self._move("again", new, REATTACHES)
            return
        self._forget_last_question(everything=self._is_of_another_run)
        new = StoredRun(execution_id, execution_id, attempt, inbox, now, decisions=self.decisions, earlier=before.form)
        if continues:
            answered = before.number - bool(before.draft)
            chain = [each for each in (*before.continues, before.execution_id) if each]
            new = replace(new, number=answered, earlier=before.form - answered, continues=chain)
        self._move("begin", new, REATTACHES)

    def look_again(self, *, now: float) -> None:
        """Record that a try polls again to find out whether the question on record is still open, if there is one."""
        if self.kept.state is RunState.ASKING:
            self._move("again", replace(self.kept, since=now), REATTACHES)

    @property
    def decisions(self) -> list[Json]:
        """All reviews of this DAG run's executions; none from a deleted run with the same id."""
        return [] if self._is_of_another_run else self.kept.decisions

    @property
    def decisions_on_this(self) -> list[Json]:
        """The reviews of the present execution and of those that it continues."""
        of_this = (*self.kept.continues, self.kept.execution_id)
        return [each for each in self.kept.decisions if each.get("execution_id") in of_this]

    @property
    def _is_of_another_run(self) -> bool:
        return self._attempt.relation_to(self.kept.attempt) is Relation.OTHER_RUN

    def number_of(self, draft: list[Any]) -> int:
        """Return a question's number: the last question's if it is unanswered and about this draft, else the next."""
        return self.kept.number if self.kept.draft == draft else self.kept.number + 1

    def ask(self, draft: list[Any], *, now: float) -> None:
        """Record that a person is about to be asked."""
        assert self.kept.since is not None
        worked = self.kept.worked + now - self.kept.since
        number = self.number_of(draft)
        if number != self.kept.number:
            self._forget_last_question()
        new = replace(self.kept, number=number, draft=draft, since=None, worked=worked)
        self._move("ask", new, ASKS_LATER)

    def _forget_last_question(self, *, everything: bool = False) -> None:
        """Forget the last question and its answer."""
        QuestionRecord.of(self._stored, self._attempt).forget(everything=everything)
        self._stored.part(RESUME_STATE, None).change({}, partial(fail_task, what_now=ASKS_LATER))

    def answer(self, review: Json) -> None:
        """Record an answer before it is sent."""
        decision = {**_without_draft(review), "round": self.kept.number}
        decisions = [*self.kept.decisions, decision]
        new = replace(self.kept, review=review, draft=None, decisions=decisions)
        self._move("answer", new, "The answer is kept; a retry of this task uses it")

    def send(
        self,
        reply: Json | None,
        *,
        now: float,
        kickoff_id: str | None = None,
        inbox: Json | None = None,
        answered: AnsweredDraft | None = None,
        unused: bool = False,
        refusal: str | None = None,
    ) -> None:
        """Record that the answer was processed.

        :param reply: the service's response; None if the answer was not sent or not accepted
        :param unused: whether the question had already been answered
        :param refusal: why the answer changed nothing
        """
        *before, decision = self.kept.decisions
        decision_sent = {**decision, "taken": reply is not None and not unused, "service": reply}
        if refusal:
            decision_sent[REFUSAL] = refusal
        sent = replace(self.kept, review=None, since=now, decisions=[*before, decision_sent])
        if reply is not None:
            last = {"draft": list(answered.draft), "until": answered.until} if answered else None
            polled = kickoff_id or sent.kickoff_id
            sent = replace(sent, kickoff_id=polled, inbox=inbox or sent.inbox, answered=last)
        self._move("send", sent, "The answer was sent exactly once" if reply else "A retry of this task compares again")

    def finish(self) -> None:
        """Record that the execution has completed."""
        self.kept = self.kept.moved("finish", replace(self.kept, over=True))
        if not self._unopened:
            self._memory.change(self.kept.to_json(), _reported_by_the_end)

    @property
    def answered(self) -> AnsweredDraft | None:
        """The draft that was answered last."""
        last = self.kept.answered
        return AnsweredDraft(DraftId(*last["draft"]), last["until"]) if last else None

    def deadline(self, limit: float | None) -> float | None:
        """Return the time at which the current wait must end, in epoch seconds.

        :param limit: the number of seconds that the crew may work
        """
        if limit is None or self.kept.since is None:
            return None
        return self.kept.since + limit - self.kept.worked

    def _move(self, move: str, new: StoredRun, otherwise: str) -> None:
        """Change the state.

        :param otherwise: what follows if that cannot be stored
        """
        self.kept.moved(move, new)
        if self._unopened and move != "begin":
            fail_task(TaskStateUnavailable(self._unopened), otherwise)
        self._memory.change(new.to_json(), partial(fail_task, what_now=otherwise))
        self.kept, self._unopened = new, None


def _reported_by_the_end(problem: TaskStateUnavailable) -> None:
    """Do nothing: the end of the task is stored in the same write, and a result is not lost because of the record."""


def _without_draft(review: Json) -> Json:
    edited = {"edited": True} if "edited_output" in review else {}
    # The question's own record lists the hashes of all rejected drafts; here, every review would repeat them.
    without = ("edited_output", "output", REJECTED_BEFORE)
    return {**{name: value for name, value in review.items() if name not in without}, **edited}


def bound_to(number: int, event: Json) -> Json:
    """Return the event, marked as invalid if it answers another question; an event at a deadline need not name one."""
    if "chosen_options" not in event or "error" in event:
        return event
    fields: Any = event.get("params_input") or {}
    named = fields.get(NUMBER_FIELD) if isinstance(fields, Mapping) else None
    if named == number or (named is None and not event.get("responded_by_user")):
        return event
    problem = f"it answers question {named}" if named is not None else f"it has no {NUMBER_FIELD}"
    invalid = {"error": f"{problem}, but this is question {number}", "error_type": VALIDATION}
    return {**event, **invalid, OTHER_QUESTION: named is not None}
