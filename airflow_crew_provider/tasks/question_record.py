"""The state of a review's question, kept between tries so that no answer is lost.

Airflow keeps a question and its answer through retries and clears; asking again removes the answer. So a try that finds
the draft shown already does not ask again: an answer that was given meanwhile counts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from airflow_crew_provider.compat.attempt import Attempt
from airflow_crew_provider.compat.task_state import TaskState, task_state_of
from airflow_crew_provider.core.stored_names import REVIEW_STATE
from airflow_crew_provider.exceptions import CrewError
from airflow_crew_provider.models import Json
from airflow_crew_provider.tasks.outcomes import fail_task

log = logging.getLogger(__name__)

BEGUN, DONE = "begun", "done"


class QuestionRecord:
    """The record of the question that a task has asked.

    Keys: ``draft`` that was shown, ``until`` when it is open, ``doubt`` while Airflow may not have the question yet,
    whether people were ``notified``, ``over`` once an answer or the deadline has ended it, and those of `Attempt`.
    """

    def __init__(self, memory: TaskState, attempt: Attempt) -> None:
        self._memory, self._attempt = memory, attempt
        self._record: Json = memory.recall()
        self.cleared = bool(self._record) and attempt.follows_clear(self._record)

    def is_open_for(self, draft: list[Any]) -> bool:
        """Whether the question about this draft stands; after its end only a clear asks anew."""
        return self._record.get("draft") == draft and not (self.cleared and self._record.get("over"))

    @property
    def in_doubt(self) -> bool:
        """Whether an earlier try was lost while it asked, so that the question stands or does not."""
        return bool(self._record.get("doubt"))

    @property
    def until(self) -> str | None:
        """The deadline that an earlier try has set; a clear begins anew."""
        return None if self.cleared else self._record.get("until")

    def asking(self, draft: list[Any], until: str | None) -> None:
        """Record that the question is asked now, before it is.

        Only by a first try: later Airflow may hold an answer to an older draft, although the record is gone.
        """
        if not self._record and self._attempt.try_number == 1:
            self._record = {**self._attempt.as_dict(), "draft": draft, "until": until, "doubt": True}
            self._must_keep("Nobody was asked; the retry of this task asks")

    def asked(self, draft: list[Any], until: str | None, *, again: bool = False, doubt: bool = False) -> None:
        """Record that the question is open, or still in ``doubt``; ``again`` notifies people once more."""
        notified = None if again or self.cleared else self._record.get("notified")
        self._record = {**self._attempt.as_dict(), "draft": draft, "until": until, "notified": notified}
        if doubt:
            self._record["doubt"] = True
        self.cleared = False
        self._keep()

    def notify(self, notifiers: Sequence[Any], context: Any) -> None:
        """Call the notifiers, unless an earlier try has; one that fails changes nothing about the question.

        A try that dies meanwhile is followed by one further attempt, so that a notifier that kills each try ends.
        """
        before = self._record.get("notified")
        if before == DONE:
            return
        self._keep(notified=DONE if before == BEGUN else BEGUN)
        for notifier in notifiers:
            try:
                notifier(context)
            except Exception:
                log.warning("A notifier failed; the question stays open", exc_info=True)
        self._keep(notified=DONE)

    def over(self) -> None:
        """Record that the question is answered, or timed out.

        The record stays on every version: Airflow may lose the task even now, and a try without it asks anew.
        """
        self._record = {**self._record, "over": True}
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


def question_of(context: Any, operator: Any) -> QuestionRecord:
    """Return what the task that runs remembers of its question; a try that cannot read it ends here."""
    try:
        return QuestionRecord(task_state_of(context, REVIEW_STATE), Attempt.of(context, operator))
    except CrewError as error:
        fail_task(error, "Nobody was asked now; an answer that was given is kept")
