"""Compares the draft that was answered with the one that waits, right before an answer is sent.

After a POST whose answer was lost the service may act late: as long again as it is given to answer. Until then a draft
that still waits proves nothing.
"""

from __future__ import annotations

import time
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException

from airflow_crew_provider.core.review import ReviewAnswer, Verdict, hash_of, judge
from airflow_crew_provider.exceptions import CrewBadRequest, CrewError, CrewNotFound
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import Execution, ExecutionState, Json
from airflow_crew_provider.tasks.outcomes import CrewTaskFailed
from airflow_crew_provider.tasks.post_record import Earlier, PostRecord
from airflow_crew_provider.tasks.sender import Sender

SHORTEST, LONGEST = 0.2, 5.0


class DraftCheck:
    """Decides whether an answer may be sent, by its record and by what the service shows.

    :param record: of the POSTs of this answer
    :param lag: for how many seconds a status may show what was before a POST
    """

    def __init__(self, hook: CrewHook, answer: ReviewAnswer, record: PostRecord, lag: float) -> None:
        self._hook, self._answer, self._record, self._lag = hook, answer, record, lag
        # Read now: a further POST replaces the record.
        self._sent_before, self._unsettled = record.same_request, record.earlier is Earlier.UNKNOWN
        self.draft = answer.draft(record.record.get("draft_sha256") if self._sent_before else None)
        self._keyed = hook.connection.idempotency_keys
        self._patience = hook.connection.deployment.kickoff_timeout

    @property
    def resumed_at(self) -> float:
        """When the service took the answer, in epoch seconds."""
        return float(self._record.record.get("resumed_at") or time.time())

    @property
    def noted(self) -> Json:
        """Return what the record of a POST must hold, so that a later try can check what came of it."""
        return {"draft_sha256": self.draft.output_sha256, "patience": self._patience}

    def is_taken(self, sender: Sender) -> bool:
        """Return whether an earlier try has sent the answer; raise if it must not be sent."""
        settle = self._unsettled and not (self._sent_before and self._keyed)
        seen = self._look_when_settled() if settle else self._look()
        verdict = judge(self._answer, self.draft, seen, sent_before=self._sent_before)
        if verdict is Verdict.HIDDEN:
            raise AirflowException(self._not_shown(seen.raw_state))
        # Given four fields, whether another draft waits is for the service to judge.
        if verdict is Verdict.ANOTHER_DRAFT and (self._sent_before or self._answer.output_sha256):
            raise CrewTaskFailed(self._another_draft(seen))
        if self._sent_before:
            return self._is_taken_by_now(seen, verdict, sender)
        if verdict is Verdict.NOT_WAITING and self._answer.output_sha256:
            raise CrewTaskFailed(self._not_waiting(seen))
        if self.draft.waits_in(seen):
            self.draft = self._answer.draft(hash_of(seen))
        return False

    def was_taken_after_all(self, error: CrewError) -> bool:
        """Whether a refusal only says that an earlier POST has arrived; one with a key would not be refused."""
        if not self._sent_before or self._keyed or not isinstance(error, CrewBadRequest):
            return False
        seen = self._look()
        return judge(self._answer, self.draft, seen, sent_before=True) in (Verdict.TAKEN, Verdict.SEND)

    def goes_on(self) -> bool:
        """Wait until the service shows that the draft no longer waits; False if it still does when the lag is over."""
        until = self.resumed_at + self._lag
        began = time.time()
        while (now := time.time()) < until:
            seen: Any = self._hook.poll(self.draft.execution_id, until - now + 1)
            if isinstance(seen, Execution) and not self.draft.waits_in(seen):
                return True
            time.sleep(min(_pause(now - began), max(0.0, until - time.time())))
        return False

    def _is_taken_by_now(self, seen: Execution, verdict: Verdict, sender: Sender) -> bool:
        by_key = self._keyed and seen.state is not ExecutionState.PENDING
        if verdict is Verdict.TAKEN and not by_key:
            return True
        if verdict is Verdict.UNKNOWN and not self._keyed:
            raise CrewTaskFailed(self._unknown("The service does not report it."))
        changes = self._record.changes(sender)
        if changes:
            raise CrewTaskFailed(self._unknown(f"Since then {' and '.join(changes)} changed."))
        return False

    def _look(self) -> Execution:
        try:
            return self._hook.poll_patiently(self._answer.execution_id)
        except CrewNotFound as error:
            problem = str(error)
        raise AirflowException(self._not_shown(problem))

    def _look_when_settled(self) -> Execution:
        # The connection may have been edited since the POST.
        record = self._record.record
        patience = max(self._patience, record.get("patience", 0))
        lost_at = record.get("lost_at") or record.get("intended_at", 0) + patience
        began = time.time()
        while self.draft.waits_in(seen := self._look()) and time.time() < lost_at + patience + self._lag:
            time.sleep(_pause(time.time() - began))
        return seen

    # --- what is said ---

    def _not_shown(self, problem: str) -> str:
        return (
            f"The service does not show execution {self._answer.execution_id} ({problem}), so the draft that waits "
            "cannot be compared with the one that was answered. Nothing was sent; a retry of this task compares again"
        )

    def _another_draft(self, seen: Execution) -> str:
        return (
            f"Execution {self._answer.execution_id} waits with another draft than the one that was answered (task "
            f"{seen.crew_task_id} now, {self._answer.crew_task_id} then). This answer was not sent and changed "
            "nothing; review the new draft"
        )

    def _not_waiting(self, seen: Execution) -> str:
        return (
            f"Execution {self._answer.execution_id} does not wait for an answer, it is {seen.state}: somebody else has "
            "answered it, or it was stopped. This answer was not sent"
        )

    def _unknown(self, why: str) -> str:
        return (
            f"An earlier try sent this answer to execution {self._answer.execution_id}, and its outcome is unknown. "
            f"{why} Sending it again could apply it twice, so nothing was sent now. If the crew still waits, answer by "
            "hand"
        )


def _pause(waited: float) -> float:
    return min(max(SHORTEST, waited / 5), LONGEST)
