"""Compares the answered draft with the waiting one right before an answer is sent.

If the service does not show the execution, nothing is sent. If the response to a POST was lost, the service may still
act on the POST until another timeout has passed; until then, a draft that is still waiting proves nothing. After a
request for a revision, it proves nothing even after that, because the crew may have written the same text again; then
the number of the question decides.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.answers import APPROVAL, DraftId, ReviewAnswer, hash_of
from airflow_crew_provider.api.asks import task_of
from airflow_crew_provider.api.values import is_uuid
from airflow_crew_provider.client.crew import ConnectedCrew
from airflow_crew_provider.exceptions import (
    CrewBadRequest,
    CrewError,
    CrewNotFound,
    CrewProtocolError,
    CrewTooLarge,
)
from airflow_crew_provider.inbox.messages import Registration
from airflow_crew_provider.inbox.source import has_asked
from airflow_crew_provider.kickoff.post_record import Earlier, PostRecord, Sender
from airflow_crew_provider.models import Execution, ExecutionState, Json
from airflow_crew_provider.task.attempt import Relation
from airflow_crew_provider.task.drive import Get, Pause, Poll, PollPatiently, Steps
from airflow_crew_provider.task.record import SentAnswer, StoredPost
from airflow_crew_provider.wait.narrator import in_few_words
from airflow_crew_provider.wait.outcomes import CrewAnswerNotTaken, CrewTaskFailed, CrewTryFailed
from airflow_crew_provider.wait.watch import is_transient


class CrewEditTooLate(CrewAnswerNotTaken):
    """Somebody else requested a revision of the draft that was edited; the next wait finds the new draft."""


class Verdict(StrEnum):
    """The verdict on whether an answer may be sent."""

    SEND = "send"  # the answered draft is waiting
    TAKEN = "taken"  # an earlier try apparently sent the answer
    ANOTHER_DRAFT = "another draft"  # a draft other than the answered one is waiting
    NOT_WAITING = "not waiting"  # the execution is not waiting for an answer
    UNKNOWN = "unknown"  # an earlier try may have sent the answer, and the service does not show the outcome
    HIDDEN = "hidden"  # the service does not show the execution


def judge(answer: ReviewAnswer, draft: DraftId, execution: Execution, *, sent_before: bool) -> Verdict:
    """Compare the answered draft with the one in the service's status.

    Live deployments do not show a draft, but each of their questions has its own task id, so an answer cannot reach
    another draft.

    :param sent_before: whether an earlier try may have sent this answer
    """
    if execution.is_live:
        return Verdict.UNKNOWN if sent_before else Verdict.SEND
    if execution.state is ExecutionState.NOT_FOUND:
        return Verdict.HIDDEN
    if draft.waits_in(execution):
        return Verdict.SEND
    if execution.state is ExecutionState.PENDING:
        return Verdict.TAKEN if sent_before and _may_follow(answer, execution) else Verdict.ANOTHER_DRAFT
    return Verdict.TAKEN if sent_before else Verdict.NOT_WAITING


def _may_follow(answer: ReviewAnswer, execution: Execution) -> bool:
    """Return whether this answer could have led to the current pause.

    After an approval, another task is waiting; after a revision, the same one. After the answer to a question in the
    middle of a task, anything but that question may follow.
    """
    if answer.in_the_middle:
        return execution.crew_task_id != answer.crew_task_id
    if answer.is_approve is None:
        return True  # any step of a Flow may follow an outcome
    return answer.is_approve is not (_task_of(execution) == answer.crew_task_id)


def _task_of(execution: Execution) -> str | None:
    """Return the id of the waiting task, even if the question was asked in the middle of it."""
    return task_of(execution.crew_task_id) if execution.ask and execution.crew_task_id else execution.crew_task_id


SHORTEST, LONGEST = 0.2, 5.0


class DraftCheck:
    """Decides whether an answer may be sent, based on its record and the service's status, as steps.

    :param record: the record of this answer's POSTs
    :param lag: how many seconds a status may lag behind a POST
    :param clock: returns the time, in epoch seconds
    """

    def __init__(
        self,
        hook: ConnectedCrew,
        answer: ReviewAnswer,
        record: PostRecord,
        lag: float,
        clock: Callable[[], float],
    ) -> None:
        self._hook, self._answer, self._record, self._lag, self._clock = hook, answer, record, lag, clock
        # Read these now, because another POST replaces the record.
        self.sent_before, self._unsettled = record.same_request, record.earlier is Earlier.UNKNOWN
        before = SentAnswer.of(record.newest)
        self.draft = answer.draft(before.draft_sha256 if self.sent_before else None)
        self._may_be_known_by_key = record.was_keyed(keyed=True)
        self._patience = hook.connection.deployment.kickoff_timeout
        # Another POST with the same key must be identical.
        self._sends_hash = before.sends_hash and self.sent_before
        self._leaves_out_comment = before.leaves_out_comment and self.sent_before
        self._open_round = before.open_round if self.sent_before else None

    @property
    def was_keyed(self) -> bool:
        """Whether the service knows an earlier try's answer by its key, with the connection of this time."""
        return self._may_be_known_by_key and self._hook.connection.idempotency_keys

    @property
    def resumed_at(self) -> float:
        """The time at which the service accepted the answer, in epoch seconds."""
        return SentAnswer.of(self._record.newest).resumed_at or self._clock()

    @property
    def noted(self) -> Json:
        """The fields that a later try needs to check the outcome of the POST."""
        return SentAnswer(
            self.draft.output_sha256,
            self._patience,
            self._sends_hash,
            self._leaves_out_comment,
            self._open_round,
            self._answer.execution_id,
            self._answer.crew_task_id,
            self._answer.decision,
        ).to_json()

    @property
    def hash_to_send(self) -> str | None:
        """The hash that makes the service refuse the answer if another draft is waiting when it arrives."""
        return self._answer.output_sha256 if self._sends_hash else None

    @property
    def feedback_to_send(self) -> str:
        """The text to send: a live deployment would take a comment on an approved draft for a revision."""
        return APPROVAL if self._leaves_out_comment else self._answer.human_feedback

    def check_before_sending(self, sender: Callable[[], Sender]) -> Steps[bool]:
        """Return whether an earlier try sent the answer; raise an error if it must not be sent.

        :param sender: returns the sender with the connection of that time: polls may look it up again
        """
        execution = yield from self._look_conclusively()
        verdict = judge(self._answer, self.draft, execution, sent_before=self.sent_before)
        if execution.is_live and not self.sent_before and (other := self._other_answer()):
            self._refuse_second(other)
        if verdict is Verdict.SEND and self.sent_before and self._may_see_same_text:
            verdict = yield from self._judge_by_round(execution)
        self._sends_hash = self._sends_hash or (execution.checks_draft and not self.sent_before)
        if execution.is_live and not self.sent_before:
            self._leaves_out_comment = self._answer.approves_with_comment and is_uuid(self._answer.crew_task_id)
        if verdict is Verdict.HIDDEN:
            raise CrewTryFailed(self._not_shown(in_few_words(self._hook.mask(execution.raw_state))))
        takes_edit = execution.takes_edited_output or self._answer.in_the_middle  # or a tool's changed arguments
        if self._answer.edit and verdict is Verdict.SEND and not takes_edit:
            raise CrewAnswerNotTaken(self._takes_no_edit(), "clear the review to ask again")
        # Without a hash, i.e. if the answer is not from a review, the service decides whether another draft is waiting.
        if verdict is Verdict.ANOTHER_DRAFT and (self.sent_before or self._answer.output_sha256):
            is_late_edit = not self.sent_before and self._is_revised(execution)
            raise (CrewEditTooLate if is_late_edit else CrewAnswerNotTaken)(self._another_draft(execution))
        if self.sent_before:
            return self._is_taken_by_now(execution, verdict, sender())
        if verdict is Verdict.NOT_WAITING and self._answer.output_sha256:
            raise (CrewEditTooLate if self._is_revised(execution) else CrewAnswerNotTaken)(self._not_waiting(execution))
        if self.draft.waits_in(execution):
            self.draft = self._answer.draft(hash_of(execution))
            self._open_round = yield from self._round_of(execution)
        return False

    def was_taken_after_all(self, error: CrewError) -> Steps[bool]:
        """Return whether a refusal only means that an earlier POST arrived; with a key, a resent POST is accepted."""
        if not self.sent_before or self.was_keyed or not isinstance(error, CrewBadRequest):
            return False
        verdict = judge(self._answer, self.draft, (yield from self._look()), sent_before=True)
        if verdict is Verdict.SEND:
            return (yield from self._no_longer_waits(self._clock() + self._lag))
        return verdict is Verdict.TAKEN

    def came_too_late(self, error: CrewError) -> Steps[bool]:
        """Return whether an edit was refused because its draft was answered between the poll and the POST."""
        if self._answer.edit is None or self.sent_before or not isinstance(error, CrewBadRequest):
            return False
        reply = yield Poll(self.draft.execution_id)
        return isinstance(reply, Execution) and self._is_revised(reply) and not self.draft.waits_in(reply)

    def is_still_open(self, error: CrewError) -> Steps[bool]:
        """Return whether what the person wrote was refused and the question is still open.

        A service may refuse a tool's changed arguments, and any answer that is too long.
        """
        are_arguments = isinstance(error, CrewBadRequest) and self._answer.in_the_middle and self._answer.edit
        if self.sent_before or not (are_arguments or isinstance(error, CrewTooLarge)):
            return False
        reply = yield Poll(self.draft.execution_id)
        return isinstance(reply, Execution) and self.draft.waits_in(reply)

    def _is_revised(self, execution: Execution) -> bool:
        """Return whether an edit is too late because somebody else requested a revision.

        The next wait finds the new draft. Right after an approval, the service may briefly report the same task, so
        the next wait checks again.
        """
        # Use the raw response, because `Execution.current_task` is for display and has its secrets masked.
        now = execution.raw.get("current_task")
        at = {ExecutionState.PENDING: _task_of(execution), ExecutionState.RUNNING: now}.get(execution.state)
        return self._answer.edit is not None and at == self._answer.crew_task_id

    def wait_until_answered(self) -> Steps[bool]:
        """Wait until the status no longer shows the draft as waiting; return False if it still does after the lag."""
        return self._no_longer_waits(self.resumed_at + self._lag)

    def _no_longer_waits(self, until: float) -> Steps[bool]:
        began = self._clock()
        while (now := self._clock()) < until:
            reply = yield Poll(self.draft.execution_id, until - now + 1)
            if isinstance(reply, Execution) and reply.state_is_known and not self.draft.waits_in(reply):
                return True
            yield Pause(min(_pause(now - began), max(0.0, until - self._clock())))
        return False

    def _other_answer(self) -> StoredPost | None:
        """Return another answer that has reached the same question, or may still reach it.

        A live deployment does not show this, and might apply a second answer. The id of a Flow's question is a name: a
        later question may have it too, so an answer that the service has accepted does not count.
        """
        posts, question = self._record.newest.unsettled, (self._answer.execution_id, self._answer.crew_task_id)
        may_count = (post for post in posts if is_uuid(self._answer.crew_task_id) or not post.kickoff_id)
        answers = ((post, SentAnswer.of(post)) for post in may_count)
        return next((post for post, sent in answers if (sent.execution_id, sent.crew_task_id) == question), None)

    def _refuse_second(self, other: StoredPost) -> None:
        """Refuse a second answer, unless the first one is lost and a user has cleared the task after this message.

        Once the execution has asked its next question, this one is no longer open, so no answer is sent at all. That
        question goes to the address that only the lost answer named. The status shows nothing: it reads the same
        before and after an answer, whose continuation has another id.
        """
        record, noted = self._record, SentAnswer.of(self._record.newest)
        registration = Registration.of(other.inbox)
        if not other.kickoff_id and not noted.moved_on and registration and has_asked(registration.id):
            record.note(moved_on=True)
        noted = SentAnswer.of(record.newest)
        if not other.kickoff_id and not noted.moved_on:
            if noted.told and record.attempt.relation_to(noted.told) is Relation.CLEAR:
                return
            if not noted.told:
                record.note(told=record.attempt.as_dict())
        raise CrewAnswerNotTaken(self._answered(other, moved_on=noted.moved_on))

    def _is_taken_by_now(self, execution: Execution, verdict: Verdict, sender: Sender) -> bool:
        by_key = self.was_keyed and execution.state is not ExecutionState.PENDING
        if verdict is Verdict.TAKEN and not by_key:
            return True
        if verdict is Verdict.UNKNOWN and not self.was_keyed:
            raise CrewTaskFailed(self._unknown("The service does not report it."))
        changes = self._record.changes(sender)
        if changes:
            raise CrewTaskFailed(self._unknown(f"Since then, {' and '.join(changes)} changed."))
        return False

    @property
    def _may_see_same_text(self) -> bool:
        """Whether the same text may be waiting at the same task again after this answer, if sent without a key.

        After an approval, the crew moves on, and each question in the middle of a task has its own id.
        """
        moves_on = self._answer.is_approve is True and self._answer.outcome is None
        return not (self.was_keyed or self._answer.in_the_middle or moves_on)

    def _judge_by_round(self, execution: Execution) -> Steps[Verdict]:
        """Compare the numbers of the waiting and the answered question, whose drafts are identical."""
        now = yield from self._round_of(execution)
        if now is None or self._open_round is None:
            raise CrewTaskFailed(self._unknown("It is not known whether the crew has written the same text again."))
        return Verdict.SEND if now == self._open_round else Verdict.TAKEN

    def _round_of(self, execution: Execution) -> Steps[int | None]:
        if not self._may_see_same_text or execution.is_live or not execution.has_details:
            return None
        try:
            number: int | None = yield Get(endpoints.open_round(execution.kickoff_id))
            return number
        except CrewError as error:
            is_reported = is_transient(error) and type(error) is not CrewProtocolError
            if not self.sent_before or not is_reported:
                return None  # not reported, e.g. behind a gateway, or only needed if this answer is lost
            raise CrewTryFailed(self._not_shown(str(error))) from error

    def _look(self) -> Steps[Execution]:
        try:
            execution: Execution = yield PollPatiently(self._answer.execution_id)
            return execution
        except (CrewNotFound, CrewProtocolError) as error:
            raise CrewTryFailed(self._not_shown(str(error))) from error

    def _look_conclusively(self) -> Steps[Execution]:
        """Poll until the result is conclusive; with a key, one poll is, unless the connection has changed by then."""
        if self.sent_before and self.was_keyed:
            execution = yield from self._look()
            if self.was_keyed:
                return execution
        return (yield from self._look_when_settled())

    def _look_when_settled(self) -> Steps[Execution]:
        """Poll until the result is conclusive.

        A waiting draft proves nothing while a lost POST may still arrive, or while a lagging status may show one that
        this task has just answered. A running crew proves nothing until even a lagging status would show its draft.
        """
        began = self._clock()
        sent = SentAnswer.of(self._record.newest)
        shows_answered_until = began
        if self._unsettled or (self._record.kickoff_id and self._is_about_same(sent)):
            taken = sent.resumed_at and sent.resumed_at + self._lag
            shows_answered_until = taken or sent.arrives_until(self._patience, self._lag)
        lags_until = began + self._lag
        while True:
            execution, now = (yield from self._look()), self._clock()
            waits = now < shows_answered_until and self.draft.waits_in(execution)
            works = now < lags_until and execution.state is ExecutionState.RUNNING and not execution.is_live
            if not (waits or works):
                return execution
            yield Pause(_pause(now - began))

    def _is_about_same(self, sent: SentAnswer) -> bool:
        return self.draft in (sent.draft, sent.draft._replace(output_sha256=None))

    # --- messages ---

    @property
    def _sent_nothing(self) -> str:
        """What is known of the answer, where this try does not send it."""
        if not self.sent_before:
            return "Nothing was sent"
        return "An earlier try sent this answer, and its outcome is unknown. This try sent nothing"

    def _not_shown(self, problem: str) -> str:
        return (
            f"The service does not show the state of execution {self._answer.execution_id} ({problem}), so its draft "
            f"cannot be compared with the answered one. {self._sent_nothing}; a retry of this task compares again"
        )

    def _another_draft(self, execution: Execution) -> str:
        now = execution.shown_task or execution.crew_task_id
        fate = self._sent_nothing if self.sent_before else "This answer was not sent and changed nothing"
        if self._answer.in_the_middle:
            return (
                f"The question {self._answer.crew_task_id} of execution {self._answer.execution_id} is no longer "
                f"open; {now} is waiting. {fate}; review that instead"
            )
        return (
            f"Execution {self._answer.execution_id} is waiting with a different draft from the one that was answered "
            f"(task {now} now, {self._answer.crew_task_id} then). {fate}; review the new draft"
        )

    def _answered(self, other: StoredPost, *, moved_on: bool) -> str:
        question = f"The question {self._answer.crew_task_id} of execution {self._answer.execution_id}"
        lost = "; its outcome was unknown, but the execution has continued since" if moved_on else ""
        by = f"({_in_short(SentAnswer.of(other))}{lost}) by an earlier run of this task"
        if other.kickoff_id or moved_on:
            return (
                f"{question} was already answered {by}. This answer was not sent and changed nothing; clear the "
                "kickoff to start again"
            )
        return (
            f"{question} may already have been answered {by}, whose outcome is unknown. This answer was not sent and "
            "changed nothing; to send it, clear this task once more"
        )

    def _not_waiting(self, execution: Execution) -> str:
        or_by_us = ""
        for post in self._record.newest.unsettled:
            sent = SentAnswer.of(post)
            if self.draft != sent.draft:
                continue
            if post.kickoff_id:
                return self._answered(post, moved_on=False)
            or_by_us = (
                f", or the answer of an earlier run of this task ({_in_short(sent)}), whose outcome was unknown, has "
                "arrived"
            )
        return (
            f"Execution {self._answer.execution_id} is not waiting for an answer; it is {execution.state}: it was "
            f"answered elsewhere, or it was stopped{or_by_us}. This answer was not sent"
        )

    def _takes_no_edit(self) -> str:
        return (
            f"The service no longer accepts an edited draft of execution {self._answer.execution_id}. "
            f"{self._sent_nothing}, and the draft is still waiting"
        )

    def _unknown(self, why: str) -> str:
        return (
            f"An earlier try sent this answer to execution {self._answer.execution_id}, and its outcome is unknown. "
            f"{why} Sending it again could apply it twice, so nothing was sent. If the crew is still waiting, answer "
            "by hand"
        )


def _in_short(sent: SentAnswer) -> str:
    at = datetime.fromtimestamp(sent.resumed_at or sent.intended_at, UTC)
    return f"{sent.decision}, {at:%Y-%m-%d %H:%M} UTC"


def _pause(waited: float) -> float:
    return min(max(SHORTEST, waited / 5), LONGEST)
