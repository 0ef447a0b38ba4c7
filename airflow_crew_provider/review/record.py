"""The state of a review's question, kept between tries so that no answer is lost.

Asking again removes an answer. So a try that finds the draft shown already does not ask again: an answer that was given
meanwhile counts. Up to Airflow 3.3 the question stays through retries and clears; from 3.4 on it belongs to the attempt
that has asked it, whose id is kept. Nobody can answer it once that attempt is over, so a later one that finds no answer
there asks anew.

The record is read once for each visit of a worker, and written at each step::

    nothing ──asking──> in doubt ──asked──> open ──over──> over
                            ^                │ ^
                            └──a clear, or───┘ └─approved, rejected: one answer is taken, and the next is asked for
                               another draft
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_crew_provider.compat.task_state import Attempt, TaskState, task_state_of
from airflow_crew_provider.exceptions import CrewError
from airflow_crew_provider.models import Json
from airflow_crew_provider.stored_names import REVIEW_STATE
from airflow_crew_provider.wait.outcomes import fail_task

log = logging.getLogger(__name__)

BEGUN, DONE = "begun", "done"
# What a question about the same draft takes over from the one before.
CARRIED = ("since", "notified", "told", "approvals", "terms")
# What was found out about drafts, each by its name: nothing ends it but a new DAG run.
FOUND = ("sent_back", "rejected")


class QuestionRecord:
    """The record of the question that a task has asked.

    Keys: ``draft`` that was shown, the ``terms`` of its form, ``since`` and ``until`` when it is open, ``asked_at``
    when it was asked the last time, ``doubt`` while Airflow may not have the question yet, ``asked_by``: the id of the
    attempt that has the form, from Airflow 3.4 on, whether people were ``notified``, the steps of the escalation that
    were ``told``, the ``approvals`` that are not enough yet, the drafts that were ``rejected``, each by its execution
    and hash (True, as earlier releases have stored it, means this one), the draft that a schema has ``sent_back``,
    what was ``shown`` while an answer is looked for, and whether that is done ``once_more``, ``over`` once an answer or
    the deadline has ended it, and those of `Attempt`.
    """

    def __init__(self, memory: TaskState, attempt: Attempt) -> None:
        self._memory, self._attempt = memory, attempt
        self._record: Json = memory.recall()
        if self._record.get("rejected") is True:
            self._record = {**self._record, "rejected": [_without_task(self._record["draft"])]}
        self.cleared = bool(self._record) and attempt.follows_clear(self._record)

    def forget_deleted_run(self) -> None:
        """Forget the question of a DAG run that was deleted and created again under its id, where a try begins."""
        self._attempt.tell_doubt(self._record)
        if self._memory.outlives_run and not self._attempt.follows(self._record):
            self._record, self.cleared = {}, False
            self._memory.forget()

    def is_open_for(self, draft: list[Any]) -> bool:
        """Whether the question about this draft stands; after its end only a clear asks anew."""
        return self._record.get("draft") == draft and not (self.cleared and self._record.get("over"))

    @property
    def in_doubt(self) -> bool:
        """Whether an earlier try was lost while it asked, so that the question stands or does not."""
        return bool(self._record.get("doubt"))

    def until(self, draft: list[Any]) -> str | None:
        """Return the deadline that an earlier try has set for this draft; a clear begins anew."""
        return self._about(draft).get("until")

    def terms(self, draft: list[Any]) -> Json | None:
        """Return the terms by which an earlier try has asked about this draft."""
        return self._about(draft).get("terms")

    @property
    def asked_by(self) -> str | None:
        """The attempt that has the form; None where the form is the task's, or an older Airflow has recorded this."""
        return self._record.get("asked_by")

    def asking(self, draft: list[Any], until: str | None, by: str | None = None) -> None:
        """Record that the question is asked now, before it is.

        Where the form is the task's, only by a first try: later Airflow may hold an answer to an older draft, although
        the record is gone. An attempt's own form holds no older answer.

        :param by: the attempt that will have the form; None where the form is the task's
        """
        if by == self.asked_by if by else self._record or self._attempt.try_number > 1:
            return
        before = self._about(draft)
        self._record = {**self._begun(), "draft": draft, "until": until, "doubt": True}
        self._record |= {name: before[name] for name in CARRIED if before.get(name)}
        self._record |= {"asked_by": by} if by else {}
        self.cleared = False
        self._must_keep("Nobody was asked; the retry of this task asks")

    def asked(
        self,
        draft: list[Any],
        until: str | None,
        terms: Json | None = None,
        *,
        again: bool = False,
        doubt: bool = False,
        by: str | None = None,
        at: datetime | None = None,
    ) -> None:
        """Record that the question is open, or still in ``doubt``; ``again`` notifies people once more.

        :param at: when it was asked, by a visit that has asked it
        """
        by = by or self.asked_by
        before = self._about(draft)
        since = before.get("since") or datetime.now(UTC).isoformat()
        notified = None if again else before.get("notified")
        self._record = {**self._begun(), "draft": draft, "since": since, "until": until, "notified": notified}
        asked_at = at.isoformat() if at else before.get("asked_at")
        self._record |= {"asked_at": asked_at} if asked_at else {}
        self._record |= {"terms": terms} if terms else {}
        self._record |= {"asked_by": by} if by else {}
        self._record |= {name: before[name] for name in ("told", "approvals") if before.get(name)}
        if doubt:
            self._record["doubt"] = True
        self.cleared = False
        self._keep()

    def looking(self, shown: Json, *, once_more: bool = False) -> None:
        """Record what was shown: a look without an answer comes back from Airflow with nothing."""
        self._keep(shown=shown, **({"once_more": True} if once_more else {}))

    @property
    def is_looked_for_once_more(self) -> bool:
        """Whether the look that this try began with was lost, and another one was begun."""
        return bool(self._record.get("once_more"))

    @property
    def shown(self) -> Json | None:
        """What was shown when the look for an answer began."""
        return self._record.get("shown")

    def since(self, draft: list[Any]) -> datetime:
        """Return since when the question about this draft is open; now, if it is not."""
        since = self._about(draft).get("since")
        return datetime.fromisoformat(since) if since else datetime.now(UTC)

    @property
    def asked_at(self) -> datetime | None:
        """When the question was asked that is open now; None where an older release has recorded it."""
        at = self._record.get("asked_at")
        return datetime.fromisoformat(at) if at else None

    def _about(self, draft: list[Any]) -> Json:
        """Return what was recorded of this draft; before Airflow 3.3 a record outlives a run of the same name."""
        return {} if self.cleared or self._record.get("draft") != draft else self._record

    def notify(self, notifiers: Sequence[Any], context: Any) -> None:
        """Call the notifiers, unless an earlier try has; one that fails changes nothing about the question.

        A try that dies meanwhile is followed by one further attempt, so that a notifier that kills each try ends.
        """
        before = self._record.get("notified")
        if before == DONE:
            return
        self._keep(notified=DONE if before == BEGUN else BEGUN)
        _call(notifiers, context)
        self._keep(notified=DONE)

    def tell(self, step: str, notifiers: Sequence[Any], context: Any) -> bool:
        """Do the same for a step of escalation; return whether it had still to be done."""
        told = self._record.get("told") or {}
        before = told.get(step)
        if before == DONE:
            return False
        self._keep(told={**told, step: DONE if before == BEGUN else BEGUN})
        _call(notifiers, context)
        self._keep(told={**told, step: DONE})
        return True

    @property
    def approvals(self) -> list[Json]:
        """Who has approved this draft so far, each person once."""
        return [] if self.cleared else list(self._record.get("approvals") or [])

    def approved(self, approval: Json) -> list[Json]:
        """Record one more approval, before its answer is removed for the next one; return them all."""
        approvals = [*self.approvals, approval]
        self._record = {**self._record, "approvals": approvals}
        self._must_keep("The approval is kept; a retry of this task takes it")
        return approvals

    def was_rejected(self, draft: list[Any]) -> bool:
        """Whether a person has rejected this draft, also in a form that was not accepted, or before a clear."""
        return _without_task(draft) in self._rejected

    def rejected(self, draft: list[Any]) -> None:
        """Record that a person has rejected the draft, before the answer is removed for the next one."""
        if not self.was_rejected(draft):
            self._record = {**self._record, "rejected": [*self._rejected, _without_task(draft)]}
            self._must_keep("The rejection is kept; a retry of this task takes it")

    @property
    def _rejected(self) -> list[Any]:
        return self._record.get("rejected") or []

    def _begun(self) -> Json:
        """Return the record with which a question begins."""
        return {**self._attempt.as_dict(), **{name: self._record[name] for name in FOUND if self._record.get(name)}}

    @property
    def draft_sent_back(self) -> list[Any] | None:
        """The draft that a schema has sent back, whatever was cleared since."""
        return self._record.get("sent_back")

    def sent_back(self, draft: list[Any]) -> None:
        """Record that a schema sends this draft back, which it does once for an execution."""
        self._record = {**self._begun(), "sent_back": draft}
        self._must_keep("Nothing was sent back; a retry of this task does")

    def over(self) -> None:
        """Record that the question is answered, or timed out.

        The record stays on every version: Airflow may lose the task even now, and a try without it asks anew.
        """
        self._record = {name: self._record[name] for name in self._record if name != "shown"} | {"over": True}
        self._must_keep("The answer is kept; a retry of this task takes it")

    def _must_keep(self, otherwise: str) -> None:
        try:
            self._memory.keep(self._record)
        except CrewError as error:
            fail_task(error, otherwise)

    def _keep(self, **more: Any) -> None:
        self._record = {**self._record, **more}
        try:
            self._memory.keep(self._record)
        except CrewError as error:
            log.warning("%s. The question is open; if this try is lost, the next one may ask anew", error)


def _without_task(draft: list[Any]) -> list[Any]:
    """Return a draft's execution and hash: the id of its task may be another at each question."""
    return [draft[0], draft[2]]


def _call(notifiers: Sequence[Any], context: Any) -> None:
    for notifier in notifiers:
        try:
            notifier(context)
        except Exception:
            log.warning("A notifier failed; the question stays open", exc_info=True)


def question_of(context: Any, operator: Any) -> QuestionRecord:
    """Return what the task that runs remembers of its question; a try that cannot read it ends here."""
    try:
        return QuestionRecord(task_state_of(context, REVIEW_STATE), Attempt.of(context, operator))
    except CrewError as error:
        fail_task(error, "Nobody was asked now; an answer that was given is kept")
