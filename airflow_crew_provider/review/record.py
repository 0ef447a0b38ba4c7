"""The state of a review's question, kept between tries so that no answer is lost.

Asking again removes any answer. So a try that finds the draft already shown does not ask again: an answer given in the
meantime counts. Up to Airflow 3.3, the question survives retries and clears; from 3.4 on, it belongs to the attempt
that asked it, whose id is stored. Nobody can answer it after that attempt ends, so a later attempt that finds no answer
asks again.

The record is read once each time a worker runs the task, and written before the task does anything else; `task.record`
has its moves. If Airflow stores no state, there is no record when an answer arrives; the answer is accepted anyway.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from airflow_crew_provider.api.answers import DraftId
from airflow_crew_provider.exceptions import CrewError
from airflow_crew_provider.models import Json
from airflow_crew_provider.stored_names import REVIEW_STATE
from airflow_crew_provider.task.attempt import Attempt, Relation
from airflow_crew_provider.task.record import PLAIN_OF_QUESTION, UNOPENED, QuestionState, Rejected, StoredQuestion
from airflow_crew_provider.task.store import Store, Stored, TaskStateUnavailable
from airflow_crew_provider.wait.outcomes import fail_task

log = logging.getLogger(__name__)

BEGUN, DONE = "begun", "done"
ASKS_LATER = "Nobody was asked; a retry of this task will ask"


class QuestionRecord:
    """The record of a task's question, read once each time a worker runs the task."""

    def __init__(self, memory: Store, attempt: Attempt) -> None:
        self._memory, self._attempt = memory, attempt
        stored = memory.recall()
        self.kept = StoredQuestion.from_json(stored)
        relation = attempt.relation_to(self.kept.attempt)
        self.cleared = relation is Relation.CLEAR
        if UNOPENED in stored and relation not in (Relation.CLEAR, Relation.OTHER_RUN):
            raise TaskStateUnavailable(stored[UNOPENED])

    @classmethod
    def of(cls, stored: Stored, attempt: Attempt) -> QuestionRecord:
        """Return the record of the running task's question; fail if it cannot be read."""
        try:
            return cls(stored.part(REVIEW_STATE, PLAIN_OF_QUESTION), attempt)
        except CrewError as error:
            fail_task(error, "Nobody was asked; any answer is kept")

    def begin_try(self) -> None:
        """Forget the question of a deleted DAG run with the same id; call this first in a try."""
        before = self.kept.attempt
        self._attempt.tell_doubt(before)
        if before and self._attempt.relation_to(before) is Relation.OTHER_RUN:
            self.kept, self.cleared = StoredQuestion(), False
            self._must_keep(ASKS_LATER)

    def is_open_for(self, draft: DraftId) -> bool:
        """Whether the question about this draft still counts; once it has ended, only clearing the task asks again."""
        return self.is_about(draft) and not (self.cleared and self.kept.state is QuestionState.OVER)

    def is_about(self, draft: DraftId) -> bool:
        """Whether the last question was about this draft, even if it was asked before a clear."""
        return self.kept.draft == draft

    @property
    def in_doubt(self) -> bool:
        """Whether an earlier try was lost while it asked, so that the question may or may not exist."""
        return self.kept.state is QuestionState.IN_DOUBT

    def mark_asking(self, draft: DraftId, until: str | None, by: str | None = None) -> None:
        """Record that the question is about to be asked.

        If the task owns the form, only the first try does this: later, Airflow may hold an answer about an older draft
        even if the record is gone. An attempt's own form has no older answer.

        :param by: the attempt that will own the form; None if the task owns it
        """
        if by is None:
            was_asked = self.kept != StoredQuestion() or self._attempt.try_number > 1
        else:
            was_asked = by == self.kept.asked_by
        if was_asked:
            return
        asking = replace(self._known_of(draft), until=until, doubt=True, asked_by=by)
        self.kept = self.kept.moved("ask", asking)
        self.cleared = False
        self._must_keep(ASKS_LATER)

    def mark_asked(
        self,
        draft: DraftId,
        until: str | None,
        terms: Json | None = None,
        *,
        again: bool = False,
        doubt: bool = False,
        by: str | None = None,
        at: datetime | None = None,
    ) -> None:
        """Record that the question is open, or still in ``doubt``; ``again`` notifies people once more.

        :param at: when it was asked, if that was just now
        """
        known = self._known_of(draft)
        question = replace(
            known,
            since=known.since or datetime.now(UTC).isoformat(),
            until=until,
            notified=None if again else known.notified,
            asked_at=at.isoformat() if at else self.about(draft).asked_at,
            terms=terms,
            asked_by=by or self.kept.asked_by,
            doubt=doubt,
        )
        self.kept = self.kept.moved("look" if doubt else "asked", question)
        self.cleared = False
        self._keep()

    def _known_of(self, draft: DraftId) -> StoredQuestion:
        """Return a fresh record that keeps some fields if the last one is about the same draft."""
        before = self.about(draft)
        carried = {name: getattr(before, name) for name in ("since", "notified", "told", "approvals", "terms")}
        return self.kept.anew(self._attempt, draft=draft, **carried)

    def mark_looking(self, content: Json, *, once_more: bool = False) -> None:
        """Record the content shown, because Airflow does not pass it back after a lookup that fails or times out."""
        self._keep(shown=content, once_more=once_more or self.kept.once_more)

    def since(self, draft: DraftId) -> datetime:
        """Return when the question about this draft was opened; the current time if it is not open."""
        since = self.about(draft).since
        return datetime.fromisoformat(since) if since else datetime.now(UTC)

    def began_after(self, draft: DraftId, at: Any) -> bool:
        """Whether the question was opened after this time, e.g. after a clear; False if unknown."""
        since = self.about(draft).since
        return since is not None and at is not None and at < datetime.fromisoformat(since)

    @property
    def asked_at(self) -> datetime | None:
        """The time at which the open question was asked; None if the record is from an older release."""
        at = self.kept.asked_at
        return datetime.fromisoformat(at) if at else None

    def about(self, draft: DraftId) -> StoredQuestion:
        """Return what is on record about this draft; nothing is if a clear has followed."""
        return StoredQuestion() if self.cleared or not self.is_about(draft) else self.kept

    def begin_to_notify(self, step: str = "") -> bool:
        """Record that people are about to be notified; return False if an earlier try has notified them.

        If a try dies in a notifier, only one more try calls it, so that a notifier cannot kill every try.

        :param step: the name of an escalation step; empty for the question itself
        """
        before = self.kept.told.get(step) if step else self.kept.notified
        if before != DONE:
            self.mark_notified(step, DONE if before == BEGUN else BEGUN)
        return before != DONE

    def mark_notified(self, step: str = "", how: str = DONE) -> None:
        """Record that people were notified, by default to the end."""
        self._keep(**({"told": {**self.kept.told, step: how}} if step else {"notified": how}))

    @property
    def approvals(self) -> list[Json]:
        """The approvals of this draft so far, one per person."""
        return [] if self.cleared else list(self.kept.approvals)

    def add_approval(self, approval: Json) -> list[Json]:
        """Record one more approval, before its answer is removed to ask the next person; return all approvals."""
        approvals = [*self.approvals, approval]
        self.kept = replace(self.kept, approvals=approvals)
        self._must_keep("The approval is kept; a retry of this task uses it")
        return approvals

    def reject_draft(self, draft: DraftId) -> None:
        """Record that a person has rejected the draft, before the answer is removed to ask again."""
        text = Rejected.of(draft)
        if text not in self.kept.rejected:
            self.kept = replace(self.kept, rejected=[*self.kept.rejected, text])
            self._must_keep("The rejection is kept; a retry of this task uses it")

    def mark_sent_back(self, draft: DraftId) -> None:
        """Record that a schema sends this draft back."""
        sent = replace(self.kept.anew(self._attempt), sent_back=draft)
        self.kept = self.kept.moved("send_back", sent)
        self._must_keep("The draft was not sent back; a retry of this task will do so")

    def forget(self, *, everything: bool = False) -> None:
        """Forget the question and its answer, because the task's next question may be about an identical draft.

        :param everything: whether to forget the facts about drafts, too, because they are from a deleted DAG run
        """
        known = StoredQuestion() if everything else self.kept.anew(self._attempt)
        # Drop the attempt too, or a later question in the same try would look like one from a deleted run.
        self.kept = self.kept.moved("forget", replace(known, attempt={}))
        self._must_keep(ASKS_LATER)

    def close(self) -> None:
        """Record that the question was answered or timed out.

        The record is kept on every version of Airflow: Airflow may still lose the task, and a try without the record
        would ask again.
        """
        self.kept = self.kept.moved("close", replace(self.kept, shown=None, over=True))
        self._must_keep("The answer is kept; a retry of this task uses it")

    def _must_keep(self, otherwise: str) -> None:
        self._memory.change(self.kept.to_json(), partial(fail_task, what_now=otherwise))

    def _keep(self, **more: Any) -> None:
        self.kept = replace(self.kept, **more)
        self._memory.change(self.kept.to_json(), _warn)


def _warn(problem: CrewError) -> None:
    log.warning("%s. The question is open; if this try is lost, the next one may ask again", problem)
