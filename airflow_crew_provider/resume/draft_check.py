"""Compares the draft that was answered with the one that waits, right before an answer is sent.

A status that does not show which draft waits never counts as permission to send. After a POST whose answer was lost
the service may act late: as long again as it is given to answer. Until then a draft that still waits proves nothing.
"""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Any

from airflow_crew_provider.api.answers import Draft, ReviewAnswer, hash_of
from airflow_crew_provider.exceptions import CrewBadRequest, CrewError, CrewNotFound, CrewProtocolError
from airflow_crew_provider.kickoff.post_record import Earlier, PostRecord, Sender
from airflow_crew_provider.models import Execution, ExecutionState, Json
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, CrewTryFailed
from airflow_crew_provider.wait.poller import Poller


class Verdict(StrEnum):
    """Whether an answer may be sent."""

    SEND = "send"  # the draft that was answered waits
    TAKEN = "taken"  # by what can be seen, an earlier try has sent it
    ANOTHER_DRAFT = "another draft"  # waits
    NOT_WAITING = "not waiting"  # for any answer
    UNKNOWN = "unknown"  # an earlier try may have sent it, and the service does not show what came of it
    HIDDEN = "hidden"  # the service does not show the execution


def judge(answer: ReviewAnswer, draft: Draft, seen: Execution, *, sent_before: bool) -> Verdict:
    """Compare the draft that was answered with what the service shows.

    Live deployments do not show it; there every question has a task id of its own, so no other draft can be hit.

    :param sent_before: whether an earlier try may have sent this answer
    """
    if seen.is_live:
        return Verdict.UNKNOWN if sent_before else Verdict.SEND
    if seen.state is ExecutionState.NOT_FOUND:
        return Verdict.HIDDEN
    if draft.waits_in(seen):
        return Verdict.SEND
    if seen.state is ExecutionState.PENDING:
        return Verdict.TAKEN if sent_before and _may_follow(answer, seen) else Verdict.ANOTHER_DRAFT
    return Verdict.TAKEN if sent_before else Verdict.NOT_WAITING


def _may_follow(answer: ReviewAnswer, seen: Execution) -> bool:
    """Whether this answer can have led to the draft that waits: an approval goes on, a revision stays at its task."""
    if answer.is_approve is None:
        return True  # a Flow goes wherever its outcome leads
    return answer.is_approve is not (seen.crew_task_id == answer.crew_task_id)


SHORTEST, LONGEST = 0.2, 5.0


class DraftCheck:
    """Decides whether an answer may be sent, by its record and by what the service shows.

    :param record: of the POSTs of this answer
    :param lag: for how many seconds a status may show what was before a POST
    """

    def __init__(self, poller: Poller, answer: ReviewAnswer, record: PostRecord, lag: float) -> None:
        self._poller, self._answer, self._record, self._lag = poller, answer, record, lag
        # Read now: a further POST replaces the record.
        self._sent_before, self._unsettled = record.same_request, record.earlier is Earlier.UNKNOWN
        self.draft = answer.draft(record.record.get("draft_sha256") if self._sent_before else None)
        self._keyed = poller.hook.connection.idempotency_keys
        self._patience = poller.hook.connection.deployment.kickoff_timeout
        # A further POST with the same key must be the same.
        self._sends_hash = bool(record.record.get("sends_hash")) and self._sent_before
        self.edited_too_late = False  # whether an edit was refused, since somebody else has asked for a revision

    @property
    def resumed_at(self) -> float:
        """When the service took the answer, in epoch seconds."""
        return float(self._record.record.get("resumed_at") or time.time())

    @property
    def noted(self) -> Json:
        """Return what the record of a POST must hold, so that a later try can check what came of it."""
        sends_hash = {"sends_hash": True} if self._sends_hash else {}
        return {"draft_sha256": self.draft.output_sha256, "patience": self._patience, **sends_hash}

    @property
    def hash_to_send(self) -> str | None:
        """The hash by which the service refuses the answer if another draft waits by the time that it arrives."""
        return self._answer.output_sha256 if self._sends_hash else None

    def is_taken(self, sender: Sender) -> bool:
        """Return whether an earlier try has sent the answer; raise if it must not be sent."""
        seen = self._look() if self._sent_before and self._keyed else self._look_when_settled()
        verdict = judge(self._answer, self.draft, seen, sent_before=self._sent_before)
        self._sends_hash = self._sends_hash or (seen.checks_draft and not self._sent_before)
        if verdict is Verdict.HIDDEN:
            raise CrewTryFailed(self._not_shown(seen.raw_state))
        if self._answer.edit and verdict is Verdict.SEND and not seen.takes_edited_output:
            raise CrewTaskFailed(self._takes_no_edit())
        # Given four fields, whether another draft waits is for the service to judge.
        if verdict is Verdict.ANOTHER_DRAFT and (self._sent_before or self._answer.output_sha256):
            self.edited_too_late = not self._sent_before and self._is_revised(seen)
            raise CrewTaskFailed(self._another_draft(seen))
        if self._sent_before:
            return self._is_taken_by_now(seen, verdict, sender)
        if verdict is Verdict.NOT_WAITING and self._answer.output_sha256:
            self.edited_too_late = self._is_revised(seen)
            raise CrewTaskFailed(self._not_waiting(seen))
        if self.draft.waits_in(seen):
            self.draft = self._answer.draft(hash_of(seen))
        return False

    def was_taken_after_all(self, error: CrewError) -> bool:
        """Whether a refusal only says that an earlier POST has arrived; one with a key would not be refused."""
        if not self._sent_before or self._keyed or not isinstance(error, CrewBadRequest):
            return False
        verdict = judge(self._answer, self.draft, self._look(), sent_before=True)
        return verdict is Verdict.TAKEN or (verdict is Verdict.SEND and self._no_longer_waits(time.time() + self._lag))

    def came_too_late(self, error: CrewError) -> bool:
        """Whether a refusal of an edit says that its draft was answered between the look and the POST."""
        if self._answer.edit is None or self._sent_before or not isinstance(error, CrewBadRequest):
            return False
        seen: Any = self._poller.poll(self.draft.execution_id)
        return isinstance(seen, Execution) and self._is_revised(seen) and not self.draft.waits_in(seen)

    def _is_revised(self, seen: Execution) -> bool:
        """Whether an edit is too late since somebody else has asked for a revision.

        The wait that follows finds the new draft. Right after an approval the service names the same task for a
        moment, so that wait checks it once more.
        """
        # As the service gives it: `current_task` is for people, with secrets masked.
        now = seen.raw.get("current_task")
        at = {ExecutionState.PENDING: seen.crew_task_id, ExecutionState.RUNNING: now}.get(seen.state)
        return self._answer.edit is not None and at == self._answer.crew_task_id

    def goes_on(self) -> bool:
        """Wait until the service shows that the draft no longer waits; False if it still does when the lag is over."""
        return self._no_longer_waits(self.resumed_at + self._lag)

    def _no_longer_waits(self, until: float) -> bool:
        began = time.time()
        while (now := time.time()) < until:
            seen: Any = self._poller.poll(self.draft.execution_id, until - now + 1)
            if isinstance(seen, Execution) and seen.state_is_known and not self.draft.waits_in(seen):
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
            return self._poller.poll_patiently(self._answer.execution_id)
        except (CrewNotFound, CrewProtocolError) as error:
            problem = str(error)
        raise CrewTryFailed(self._not_shown(problem))

    def _look_when_settled(self) -> Execution:
        """Look until what is shown proves something.

        A draft that waits does not while a lost POST may still arrive, and neither does a crew at work until a status
        that lags would show its draft.
        """
        began = time.time()
        arrives_until, lags_until = self._arrives_until() if self._unsettled else began, began + self._lag
        while True:
            seen, now = self._look(), time.time()
            waits = now < arrives_until and self.draft.waits_in(seen)
            works = now < lags_until and seen.state is ExecutionState.RUNNING and not seen.is_live
            if not (waits or works):
                return seen
            time.sleep(_pause(now - began))

    def _arrives_until(self) -> float:
        """Return until when the POST whose answer was lost may arrive, and show."""
        record = self._record.record
        # The connection may have been edited since the POST.
        patience = max(self._patience, record.get("patience", 0))
        lost_at = record.get("lost_at") or record.get("intended_at", 0) + patience
        return float(lost_at + patience + self._lag)

    # --- what is said ---

    def _not_shown(self, problem: str) -> str:
        return (
            f"The service does not show what execution {self._answer.execution_id} does ({problem}), so the draft that "
            "waits cannot be compared with the one that was answered. Nothing was sent; a retry of this task compares "
            "again"
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

    def _takes_no_edit(self) -> str:
        return (
            f"The service does not offer to take an edited draft of execution {self._answer.execution_id} any more. "
            "Nothing was sent, and the draft still waits; clear the review to ask again"
        )

    def _unknown(self, why: str) -> str:
        return (
            f"An earlier try sent this answer to execution {self._answer.execution_id}, and its outcome is unknown. "
            f"{why} Sending it again could apply it twice, so nothing was sent now. If the crew still waits, answer by "
            "hand"
        )


def _pause(waited: float) -> float:
    return min(max(SHORTEST, waited / 5), LONGEST)
