"""The state of a review's question, kept between tries so that no answer is lost.

Asking again removes any answer. So a try that finds the draft already shown does not ask again: an answer given in the
meantime counts. Up to Airflow 3.3, the question survives retries and clears; from 3.4 on, it belongs to the attempt
that asked it, whose id is stored. Nobody can answer it after that attempt ends, so a later attempt that finds no answer
asks again.

The record is read once each time a worker runs the task, and written at each step. Its moves (`MOVES`)::

    nothing ──ask──> in doubt ──asked──> open ──close──> over
                        │  ^              │ ^              │
                        └──┴──────ask─────┘ └────asked─────┘

* If a try is lost after its question has ended, the next one looks for the answer again, with ``asked``. While it is
  uncertain whether Airflow ever had the question, a try looks for an answer with ``look``.
* An approval or a rejection is stored before its answer is removed to ask again, and does not change the state. After
  the question has ended, it comes from an answer that Airflow delivers again.
* ``send_back`` is a schema's answer; nobody is asked.
* If Airflow stores no state, there is no record when an answer arrives; the answer is accepted anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from airflow_crew_provider.exceptions import CrewError
from airflow_crew_provider.models import Json
from airflow_crew_provider.stored_names import REVIEW_STATE
from airflow_crew_provider.task.attempt import Attempt, Relation
from airflow_crew_provider.task.store import Store, check_move, store_of
from airflow_crew_provider.wait.outcomes import fail_task

log = logging.getLogger(__name__)

BEGUN, DONE = "begun", "done"
Draft = list[Any]  # execution, task and hash, as `identity_of` returns them


class State(StrEnum):
    """The state of a question."""

    NOTHING = "nothing"  # nobody has been asked
    IN_DOUBT = "in doubt"  # a try began to ask, so Airflow may or may not have the question
    OPEN = "open"
    OVER = "over"  # an answer or the deadline ended it


_ALL = tuple(State)
MOVES: dict[str, dict[State, State]] = {
    "ask": dict.fromkeys(_ALL, State.IN_DOUBT),
    "look": {State.IN_DOUBT: State.IN_DOUBT},
    "asked": dict.fromkeys(_ALL, State.OPEN),
    "send_back": dict.fromkeys(_ALL, State.NOTHING),
    "forget": dict.fromkeys(_ALL, State.NOTHING),
    "close": dict.fromkeys(_ALL, State.OVER),
}


@dataclass(frozen=True)
class StoredQuestion:
    """The stored record of a question. Empty fields are omitted.

    :param attempt: the try that asked, from `Attempt.as_dict`; its keys are stored alongside the others
    :param draft: the draft that was shown
    :param terms: the form's arguments, which determine whether an answer is valid
    :param since: when the question about this draft was first asked, ISO 8601
    :param until: its deadline, ISO 8601
    :param asked_at: when it was last asked
    :param doubt: whether it is unknown if Airflow has the question
    :param asked_by: the id of the attempt that owns the form, from Airflow 3.4 on
    :param notified: whether people were notified: `BEGUN` or `DONE`
    :param told: for each escalation step, whether its people were notified
    :param approvals: the approvals so far
    :param rejected: the rejected drafts, each as execution and hash
    :param sent_back: the draft that a schema sent back
    :param shown: the content shown, stored during a lookup
    :param once_more: whether this is the second lookup
    :param over: whether an answer or the deadline ended it
    """

    attempt: Json = field(default_factory=dict)
    draft: Draft | None = None
    terms: Json | None = None
    since: str | None = None
    until: str | None = None
    asked_at: str | None = None
    doubt: bool = False
    asked_by: str | None = None
    notified: str | None = None
    told: Json = field(default_factory=dict)
    approvals: list[Json] = field(default_factory=list)
    rejected: list[Draft] = field(default_factory=list)
    sent_back: Draft | None = None
    shown: Json | None = None
    once_more: bool = False
    over: bool = False

    @classmethod
    def from_json(cls, kept: Json) -> StoredQuestion:
        """Read a record from this release or an earlier one; unknown fields are ignored."""
        known = {name: kept[name] for name in _FIELDS if kept.get(name)}
        if known.get("rejected") is True:  # development versions of 0.2.0: the draft shown was rejected
            known["rejected"] = [_without_task(kept["draft"])]
        return cls(attempt={name: kept[name] for name in _OF_ATTEMPT if name in kept}, **known)

    def to_json(self) -> Json:
        """Return the JSON to store; empty if nothing is known."""
        known = asdict(self)
        return {**known.pop("attempt"), **{name: value for name, value in known.items() if value}}

    @property
    def state(self) -> State:
        """The state of the question."""
        if self.over:
            return State.OVER
        if self.doubt:
            return State.IN_DOUBT
        return State.NOTHING if self.draft is None else State.OPEN

    def moved(self, move: str, new: StoredQuestion) -> StoredQuestion:
        """Return the record after a move.

        :raises RuntimeError: `MOVES` does not allow it in this state
        """
        check_move("question", self.state, move, new.state, [MOVES[move].get(self.state)])
        return new

    def anew(self, attempt: Attempt, **known: Any) -> StoredQuestion:
        """Return a fresh record that keeps the facts about drafts, which stay valid until a new DAG run."""
        return StoredQuestion(attempt.as_dict(), sent_back=self.sent_back, rejected=self.rejected, **known)


_FIELDS = tuple(each.name for each in fields(StoredQuestion) if each.name != "attempt")
_OF_ATTEMPT = tuple(each.name for each in fields(Attempt))


class QuestionRecord:
    """The record of a task's question, read once each time a worker runs the task."""

    def __init__(self, memory: Store, attempt: Attempt) -> None:
        self._memory, self._attempt = memory, attempt
        self._record = StoredQuestion.from_json(memory.recall())
        self.cleared = attempt.relation_to(self._record.attempt) is Relation.CLEAR

    def begin_try(self) -> None:
        """Forget the question of a deleted DAG run with the same id; call this first in a try."""
        kept = self._record.attempt
        self._attempt.tell_doubt(kept)
        if kept and self._attempt.relation_to(kept) is Relation.OTHER_RUN:
            self._record, self.cleared = StoredQuestion(), False
            self._memory.forget()

    def is_open_for(self, draft: Draft) -> bool:
        """Whether the question about this draft still counts; once it has ended, only clearing the task asks again."""
        return self.is_about(draft) and not (self.cleared and self._record.state is State.OVER)

    def is_about(self, draft: Draft) -> bool:
        """Whether the last question was about this draft, even if it was asked before a clear."""
        return self._record.draft == draft

    @property
    def in_doubt(self) -> bool:
        """Whether an earlier try was lost while it asked, so that the question may or may not exist."""
        return self._record.state is State.IN_DOUBT

    def until(self, draft: Draft) -> str | None:
        """Return the deadline that an earlier try set for this draft; clearing the task resets it."""
        return self._about(draft).until

    def terms(self, draft: Draft) -> Json | None:
        """Return the terms under which an earlier try asked about this draft."""
        return self._about(draft).terms

    def terms_before_clear(self, draft: Draft) -> Json:
        """Return the terms of a form that has survived a clear; empty if there was no clear."""
        return self._record.terms or {} if self.cleared and self.is_about(draft) else {}

    @property
    def asked_by(self) -> str | None:
        """The attempt that owns the form; None if the task owns it, or if the record is from an older Airflow."""
        return self._record.asked_by

    def mark_asking(self, draft: Draft, until: str | None, by: str | None = None) -> None:
        """Record that the question is about to be asked.

        If the task owns the form, only the first try does this: later, Airflow may hold an answer about an older draft
        even if the record is gone. An attempt's own form has no older answer.

        :param by: the attempt that will own the form; None if the task owns it
        """
        if by is None:
            was_asked = self._record != StoredQuestion() or self._attempt.try_number > 1
        else:
            was_asked = by == self.asked_by
        if was_asked:
            return
        asking = replace(self._known_of(draft), until=until, doubt=True, asked_by=by)
        self._record = self._record.moved("ask", asking)
        self.cleared = False
        self._must_keep("Nobody was asked; a retry of this task will ask")

    def mark_asked(
        self,
        draft: Draft,
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
        asked = replace(
            known,
            since=known.since or datetime.now(UTC).isoformat(),
            until=until,
            notified=None if again else known.notified,
            asked_at=at.isoformat() if at else self._about(draft).asked_at,
            terms=terms,
            asked_by=by or self.asked_by,
            doubt=doubt,
        )
        self._record = self._record.moved("look" if doubt else "asked", asked)
        self.cleared = False
        self._keep()

    def _known_of(self, draft: Draft) -> StoredQuestion:
        """Return a fresh record that keeps some fields if the last one is about the same draft."""
        before = self._about(draft)
        carried = {name: getattr(before, name) for name in ("since", "notified", "told", "approvals", "terms")}
        return self._record.anew(self._attempt, draft=draft, **carried)

    def mark_looking(self, shown: Json, *, once_more: bool = False) -> None:
        """Record the content shown, because Airflow does not pass it back after a lookup that fails or times out."""
        self._keep(shown=shown, once_more=once_more or self._record.once_more)

    @property
    def is_looked_for_once_more(self) -> bool:
        """Whether this try's first lookup was lost and another was started."""
        return self._record.once_more

    @property
    def shown(self) -> Json | None:
        """The content that was shown when the lookup began."""
        return self._record.shown

    def since(self, draft: Draft) -> datetime:
        """Return when the question about this draft was opened; the current time if it is not open."""
        since = self._about(draft).since
        return datetime.fromisoformat(since) if since else datetime.now(UTC)

    def began_after(self, draft: Draft, at: Any) -> bool:
        """Whether the question was opened after this time, e.g. after a clear; False if unknown."""
        since = self._about(draft).since
        return since is not None and at is not None and at < datetime.fromisoformat(since)

    @property
    def asked_at(self) -> datetime | None:
        """The time at which the open question was asked; None if the record is from an older release."""
        at = self._record.asked_at
        return datetime.fromisoformat(at) if at else None

    def _about(self, draft: Draft) -> StoredQuestion:
        """Return the record if it is about this draft and no clear has followed, else an empty one."""
        return StoredQuestion() if self.cleared or not self.is_about(draft) else self._record

    def notify(self, notifiers: Sequence[Any], context: Any) -> None:
        """Call the notifiers, unless an earlier try has called them; a failing notifier does not affect the question.

        If a try dies in a notifier, only one more try calls them, so that a notifier cannot kill every try.
        """
        before = self._record.notified
        if before == DONE:
            return
        self._keep(notified=DONE if before == BEGUN else BEGUN)
        _call(notifiers, context)
        self._keep(notified=DONE)

    def notify_step(self, step: str, notifiers: Sequence[Any], context: Any) -> bool:
        """Call an escalation step's notifiers in the same way; return whether the step was still due."""
        before = self._record.told.get(step)
        if before == DONE:
            return False
        told = self._record.told
        self._keep(told={**told, step: DONE if before == BEGUN else BEGUN})
        _call(notifiers, context)
        self._keep(told={**told, step: DONE})
        return True

    @property
    def approvals(self) -> list[Json]:
        """The approvals of this draft so far, one per person."""
        return [] if self.cleared else list(self._record.approvals)

    def add_approval(self, approval: Json) -> list[Json]:
        """Record one more approval, before its answer is removed to ask the next person; return all approvals."""
        approvals = [*self.approvals, approval]
        self._record = replace(self._record, approvals=approvals)
        self._must_keep("The approval is kept; a retry of this task uses it")
        return approvals

    def was_rejected(self, draft: Draft) -> bool:
        """Whether a person has rejected this draft, even in an answer that was not accepted or before a clear."""
        return _without_task(draft) in self._record.rejected

    def reject_draft(self, draft: Draft) -> None:
        """Record that a person has rejected the draft, before the answer is removed to ask again."""
        if not self.was_rejected(draft):
            rejected = [*self._record.rejected, _without_task(draft)]
            self._record = replace(self._record, rejected=rejected)
            self._must_keep("The rejection is kept; a retry of this task uses it")

    @property
    def draft_sent_back(self) -> Draft | None:
        """The draft that a schema sent back, even if the task has been cleared since."""
        return self._record.sent_back

    def mark_sent_back(self, draft: Draft) -> None:
        """Record that a schema sends this draft back, which happens at most once per execution."""
        sent = replace(self._record.anew(self._attempt), sent_back=draft)
        self._record = self._record.moved("send_back", sent)
        self._must_keep("The draft was not sent back; a retry of this task will do so")

    def forget(self) -> None:
        """Forget the question and its answer, because the task's next question may be about an identical draft."""
        # Drop the attempt too, or a later question in the same try would look like one from a deleted run.
        self._record = self._record.moved("forget", replace(self._record.anew(self._attempt), attempt={}))
        self._must_keep("Nobody was asked; a retry of this task will ask")

    def close(self) -> None:
        """Record that the question was answered or timed out.

        The record is kept on every version of Airflow: Airflow may still lose the task, and a try without the record
        would ask again.
        """
        self._record = self._record.moved("close", replace(self._record, shown=None, over=True))
        self._must_keep("The answer is kept; a retry of this task uses it")

    def _must_keep(self, otherwise: str) -> None:
        try:
            self._memory.keep(self._record.to_json())
        except CrewError as error:
            fail_task(error, otherwise)

    def _keep(self, **more: Any) -> None:
        self._record = replace(self._record, **more)
        try:
            self._memory.keep(self._record.to_json())
        except CrewError as error:
            log.warning("%s. The question is open; if this try is lost, the next one may ask again", error)


def _without_task(draft: Draft) -> Draft:
    """Return a draft's execution and hash, without its task's id, which may change with each question."""
    return [draft[0], draft[2]]


def _call(notifiers: Sequence[Any], context: Any) -> None:
    for notifier in notifiers:
        try:
            notifier(context)
        except Exception:
            log.warning("A notifier failed; the question stays open", exc_info=True)


def question_of(context: Any, operator: object) -> QuestionRecord:
    """Return the running task's record of its question; fail if it cannot be read."""
    try:
        return QuestionRecord(store_of(context, REVIEW_STATE), Attempt.of(context, operator))
    except CrewError as error:
        fail_task(error, "Nobody was asked; any answer is kept")
