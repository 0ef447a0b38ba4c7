"""One try of a resume: it sends the answer, but only for the draft that the person saw.

* An answer is sent at most once, across crashes, retries and clears: the record of its POST shows what an earlier try
  did; if that is unknown, the service's status decides (`draft_check`).
* A Flow is answered through its question's channel; the service itself refuses a second answer.
* After sending, a try waits a short time until the draft is no longer waiting, so that the next task does not mistake
  the old pause for a new question.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn, Protocol

from airflow_crew_provider.api.answers import ReviewAnswer
from airflow_crew_provider.api.requests import Resume
from airflow_crew_provider.exceptions import CrewBadRequest, CrewConnectionError, CrewError, CrewTooLarge
from airflow_crew_provider.flows import answers
from airflow_crew_provider.inbox.flow_webhooks import AnswerAddress
from airflow_crew_provider.kickoff.post_record import (
    CrewPostLost,
    PostRecord,
    Sender,
    SendOnce,
    fingerprint,
    unanswered,
)
from airflow_crew_provider.kickoff.webhooks import PostWebhooks, tell_inbox
from airflow_crew_provider.models import Json, Resumed, Webhooks
from airflow_crew_provider.resume.draft_check import CrewEditTooLate, DraftCheck
from airflow_crew_provider.resume.record import ResumeRecord
from airflow_crew_provider.stored_names import ALREADY, NOT_SENT, RESUME_STATE, SENT_FEEDBACK, STILL_OPEN
from airflow_crew_provider.task.attempt import Attempt
from airflow_crew_provider.task.drive import Do, Steps, Worker
from airflow_crew_provider.task.record import AnswerState, SentAnswer
from airflow_crew_provider.wait.outcomes import CrewAnswerNotTaken, CrewTryFailed, fail_task, is_final

# Maximum number of seconds to wait until the draft is no longer waiting.
SETTLING = 30.0
FINDS_OUT = "A retry of this task finds out whether the answer was accepted before sending it again"
ANSWER_IN_SHORT = "unless somebody else has answered, the question is still open: clear the review to ask again"


class ResumeTask(Protocol):
    """The parts of the operator that a single try uses."""

    has_next_round: bool

    def report_unknown(self, request: str) -> None:
        """Record that a POST may have arrived."""


class Resuming:
    """One try of a resume, as steps.

    :param answer: the person's answer
    :param webhooks: webhooks to send, from `checked_webhooks`
    :param accepted: called with the id to poll when the service has accepted the answer, before that is on record
    :param if_cleared: what to do after an error for which the task is not retried
    """

    def __init__(
        self,
        task: ResumeTask,
        worker: Worker,
        answer: ReviewAnswer,
        webhooks: Webhooks | str | None,
        accepted: Callable[[str], None] = lambda kickoff_id: None,
        if_cleared: str = "To continue, clear this task",
    ) -> None:
        self._task, self._context, self._answer, self._webhooks = task, worker.context, answer, webhooks
        self._hook, self._log, self._poller, self._accepted = worker.hook, worker.log, worker.poller, accepted
        self._if_cleared = if_cleared
        # An answer is sent once, even if the task was cleared.
        attempt, name = Attempt.of(self._context, task), fingerprint(answer.request)
        try:
            self._record = PostRecord(worker.record.part(RESUME_STATE, None), attempt, name, clears_count=False)
            self._record.begin_try()
        except CrewError as error:
            fail_task(error, f"This try sent nothing. {FINDS_OUT}")
        self._check: DraftCheck
        self._resumed: Resumed | None = None
        self._leaves_question_open = False

    def send_once(self) -> Steps[str]:
        """Send the answer, unless an earlier try has sent it; return the id to poll next."""
        was_sent = self._record.same_request
        try:
            self._check = DraftCheck(self._hook, self._answer, self._record, SETTLING, time.time)
            return (yield from self._send_unless_sent())
        except CrewError as error:
            fate, by_retry = "This answer was not sent", "A retry of this task sends it"
            if self._resumed is not None or (was_sent and self._record.kickoff_id):
                fate, by_retry = "The service has accepted this answer", "A retry of this task continues"
            elif was_sent:
                fate, by_retry = "An earlier try sent this answer, and its outcome is unknown", FINDS_OUT
            fail_task(error, f"{fate}. {self._if_cleared if is_final(error) else by_retry}")

    def _send_unless_sent(self) -> Steps[str]:
        record, answer = self._record, self._answer
        if answer.is_nobodys:
            return (yield from self._leave_to_service("Nobody answered in time"))
        if record.same_request and record.kickoff_id:
            answers.used_up(self._hook, answer)
            return (yield from self._go_on("This answer was already sent"))
        try:
            address: AnswerAddress | None = yield Do(
                answers.find_address, self._poller, answer, lag=0.0 if record.same_request else SETTLING
            )
        except CrewAnswerNotTaken as over:
            if not record.same_request:
                raise
            return (yield from self._go_on(f"An earlier try sent this answer. {over.fact}"))
        if address is not None:
            return (yield from self._answer_flow(address))
        webhooks = PostWebhooks(self._webhooks, self._hook, record)
        try:
            if (yield from self._check.check_before_sending(lambda: webhooks.sender)):
                return (yield from self._go_on("An earlier try sent this answer"))
        except CrewAnswerNotTaken as refused:
            if answer.is_late(time.time()):
                return (yield from self._leave_to_service(f"This answer came after the deadline. {refused}"))
            if not (isinstance(refused, CrewEditTooLate) and self._task.has_next_round):
                raise
            return self._hand_on(refused)
        webhooks.check()
        return (yield from self._send(webhooks))

    @property
    def registration(self) -> Json | None:
        """The inbox registration that was sent with the answer."""
        return self._record.newest.inbox

    @property
    def _sent(self) -> SentAnswer:
        return SentAnswer.of(self._record.newest)

    def said(self, kickoff_id: str) -> ResumeRecord:
        """Return the task's report on the answer; a try that found it already sent reports only that."""
        resumed = self._resumed or Resumed(kickoff_id, ALREADY if self._is_unused else "sent before")
        taken = {"taken": not self._is_unused and resumed.status != NOT_SENT}
        still_open = {STILL_OPEN: True} if self._leaves_question_open else {}
        return ResumeRecord(
            resumed.kickoff_id,
            self._answer.execution_id,
            self._answer.crew_task_id,
            self._check.draft.output_sha256,
            self._check.resumed_at,
            resumed.status,
            said={**self._answer.request, **self._left_out, **vars(resumed), **taken, **still_open},
        )

    @property
    def _is_unused(self) -> bool:
        """Whether the question had already been answered; if this answer was sent before, perhaps by it."""
        if self._resumed is None:
            return self._sent.state is AnswerState.UNUSED
        return self._resumed.status == ALREADY and not self._check.sent_before

    def _send(self, webhooks: PostWebhooks) -> Steps[str]:
        keyed = self._hook.connection.idempotency_keys
        if self._record.same_request:
            because = (
                "the idempotency key stays the same" if self._check.was_keyed else "the same draft is still waiting"
            )
            self._log.info("The outcome of an earlier try's answer is unknown, and %s. Sending it again", because)

        def post(key: str | None) -> Resumed:
            return self._hook.send_resume(
                Resume(
                    execution_id=self._answer.execution_id,
                    crew_task_id=self._answer.crew_task_id,
                    human_feedback=self._check.feedback_to_send,
                    is_approve=self._answer.is_approve,
                    outcome=self._answer.outcome,
                    edited_output=self._answer.edit,
                    output_sha256=self._check.hash_to_send,
                    webhooks=webhooks.registered(self._context, self._answer.execution_id),
                    idempotency_key=key,
                )
            )

        added, noted = webhooks.added, self._check.noted
        if self._left_out:
            self._log.info("The deployment decides by the text alone, so the comment on the approval is not sent")
        try:
            resumed: Resumed = yield SendOnce(self._record, post, webhooks.sender, keyed, added, self._taken, noted)
        except CrewPostLost as lost:
            self._fail_without_answer(lost.error)
        except CrewError as error:
            if (yield from self._check.was_taken_after_all(error)):
                return (yield from self._go_on("An earlier try sent this answer; the draft is no longer waiting"))
            if self._task.has_next_round:
                if (yield from self._check.came_too_late(error)):
                    return self._hand_on(error)
                if (yield from self._check.is_still_open(error)):
                    self._leaves_question_open = True
                    return self._hand_on(error, _why_refused(error))
            if isinstance(error, CrewBadRequest) and self._answer.is_late(time.time()):
                return (yield from self._leave_to_service(f"This answer came after the deadline. {error}"))
            self._fail_refused(error)
        tell_inbox(self._context, self._record)
        self._tell(resumed)
        yield from self._let_settle(resumed.kickoff_id)
        return resumed.kickoff_id

    def _answer_flow(self, address: AnswerAddress) -> Steps[str]:
        """Answer through the question's channel; the id to poll stays the same."""
        answers.check(self._hook, address)

        def sender() -> Sender:
            return Sender.of(self._hook.connection)

        if address.callback_url is None and (yield from self._check.check_before_sending(sender)):
            return (yield from self._go_on("An earlier try sent this answer"))

        def post(_: str | None) -> Resumed:
            return answers.send(self._hook, self._answer, address)

        try:
            resumed: Resumed = yield SendOnce(self._record, post, sender(), taken=self._taken, more=self._check.noted)
        except CrewPostLost as lost:
            self._fail_without_answer(lost.error)
        except CrewError as error:
            if self._check.sent_before:
                raise  # unlike a crew's, this answer was not compared with what is waiting
            self._fail_refused(error)
        answers.used_up(self._hook, self._answer)
        self._tell(resumed)
        return resumed.kickoff_id

    @property
    def _left_out(self) -> Json:
        sent = self._check.feedback_to_send
        return {} if sent == self._answer.human_feedback else {SENT_FEEDBACK: sent}

    def _taken(self, resumed: Resumed) -> Json:
        self._resumed = resumed
        self._accepted(resumed.kickoff_id)
        return self._sent.taken(time.time(), unused=self._is_unused)

    def _hand_on(self, refused: Exception, why: str = "The draft has changed since it was edited") -> str:
        """Leave the current draft to the next wait and its reviewer; what the person wrote is not applied."""
        edit = "The changed arguments are" if self._answer.in_the_middle else "The edited draft is"
        what = edit if self._answer.edit else "The answer is"
        self._log.warning("%s not applied. %s. The next wait passes on the current draft or question", what, refused)
        self._resumed = Resumed(self._answer.execution_id, NOT_SENT, why)
        return self._answer.execution_id

    def _leave_to_service(self, why: str) -> Steps[str]:
        """Send nothing: at the question's deadline, the service continues by itself, with nobody's answer."""
        self._log.info("%s; the Flow continues without an answer", why)
        self._resumed = Resumed(self._answer.execution_id, NOT_SENT, "Nobody answered by the question's deadline")
        yield from self._let_settle(self._answer.execution_id)
        return self._answer.execution_id

    def _go_on(self, why: str) -> Steps[str]:
        """Return the id to poll if an earlier try of this task sent the answer."""
        kickoff_id = self._record.kickoff_id or self._check.draft.execution_id
        self._log.info("%s; execution %s continues", why, kickoff_id)
        if not self._record.kickoff_id:
            self._record.record_id(kickoff_id)
        tell_inbox(self._context, self._record, again=True)
        yield from self._let_settle(kickoff_id)
        return kickoff_id

    def _fail_refused(self, error: CrewError) -> NoReturn:
        # A draft whose edit was refused may still be waiting; the service's message names the problem.
        if isinstance(error, CrewBadRequest):
            who = "" if self._answer.edit else ": the draft was answered elsewhere, or the execution has ended"
            raise CrewAnswerNotTaken(f"{error}. This answer was not accepted{who}") from error
        if isinstance(error, CrewTooLarge):
            raise CrewAnswerNotTaken(_why_refused(error), ANSWER_IN_SHORT) from error
        if self._check.sent_before or isinstance(error, CrewConnectionError):
            raise error  # it says nothing of the earlier POST, or nothing was sent
        what_now = self._if_cleared if is_final(error) else "A retry of this task sends it again"
        fail_task(error, f"This answer was not accepted. {what_now}")

    def _fail_without_answer(self, error: CrewError) -> NoReturn:
        self._task.report_unknown("resume")
        try:
            self._record.note(**self._sent.lost(time.time()))
        except CrewError as problem:  # a later try then counts from the latest time at which it can have been lost
            self._log.warning("%s", problem)
        raise CrewTryFailed(f"{unanswered(error)}. {FINDS_OUT}") from error

    def _tell(self, resumed: Resumed) -> None:
        answer = self._answer.decision
        if resumed.status == ALREADY:
            message = "The answer (%s) was not used: %s. Execution %s continues with the earlier answer"
            if self._check.sent_before:
                message = "The answer (%s) was sent again: %s, perhaps by an earlier try. Execution %s continues"
            self._log.warning(message, answer, resumed.message, self._answer.execution_id)
            return
        self._log.info(
            "Sent the answer (%s) to task %s of execution %s: %s; poll %s from now on",
            answer,
            self._answer.crew_task_id,
            self._answer.execution_id,
            resumed.message or resumed.status or "taken",
            resumed.kickoff_id,
        )

    def _let_settle(self, kickoff_id: str) -> Steps[None]:
        """Wait until the old pause is gone, so that the next task does not mistake it for a new question."""
        draft = self._check.draft
        if kickoff_id == draft.execution_id and not (yield from self._check.wait_until_answered()):
            self._log.info("Execution %s still shows the answered draft", kickoff_id)


def _why_refused(error: CrewError) -> str:
    """Return why the service refused what a person wrote, in a sentence that the person may read."""
    return f"{error}. This answer is too long and was not accepted" if isinstance(error, CrewTooLarge) else str(error)
