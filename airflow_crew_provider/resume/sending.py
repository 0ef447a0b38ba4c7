"""One try to hand an answer on: sent once, and only to the draft it was given for.

* An answer is sent at most once, through crashes, retries and clears: the record of its POST says what an earlier try
  did, and where that is not known, what the service shows decides (`draft_check`).
* A Flow is answered by the way its question came, the service's own refusal of a second answer included.
* A try ends when the draft no longer waits, so that the next task does not take the old pause for a new question.
"""

from __future__ import annotations

import time
from typing import Any, NoReturn

from airflow_crew_provider.api.answers import ReviewAnswer
from airflow_crew_provider.compat.task_state import Attempt, task_state_of
from airflow_crew_provider.exceptions import CrewBadRequest, CrewError, CrewOutcomeUnknown
from airflow_crew_provider.flows import answers
from airflow_crew_provider.flows.webhooks import AnswerAddress
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.kickoff import request
from airflow_crew_provider.kickoff.post_record import PostRecord, Sender, fingerprint
from airflow_crew_provider.models import Json, Resumed, Webhooks
from airflow_crew_provider.resume.draft_check import DraftCheck
from airflow_crew_provider.stored_names import NOT_SENT, RESUME_STATE
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, CrewTryFailed, fail_task
from airflow_crew_provider.wait.poller import Poller

# For how many seconds a resume waits at most until its draft no longer waits.
SETTLING = 30.0


class Resuming:
    """One try of `CrewResumeOperator`.

    :param task: the operator
    :param answer: of the person
    :param webhooks: to send along, as `checked_webhooks` has read them
    """

    def __init__(self, context: Any, task: Any, answer: ReviewAnswer, webhooks: Webhooks | str | None) -> None:
        self._context, self._task, self._answer, self._webhooks = context, task, answer, webhooks
        self._hook: CrewHook = task.hook
        self._log, self._poller = task.log, Poller(self._hook)
        # An answer is taken once, also by a task that was cleared.
        attempt = Attempt.of(context, task).with_clears_as_retries()
        self._record = PostRecord(task_state_of(context, RESUME_STATE), attempt, fingerprint(answer.request))
        self._record.forget_deleted_run()
        self._check = DraftCheck(self._poller, answer, self._record, SETTLING)
        self._resumed: Resumed | None = None

    def kickoff_id(self) -> str:
        """Hand the answer on, unless an earlier try has; return the id to poll next."""
        record, answer = self._record, self._answer
        if record.same_request and record.kickoff_id:
            answers.used_up(self._hook, answer)
            return self._go_on("This answer was sent before")
        address = answers.address_of(self._poller, answer, lag=0.0 if record.same_request else SETTLING)
        if address is not None:
            return self._answer_flow(address)
        webhooks = request.with_credentials(self._webhooks, self._hook)
        try:
            if self._check.is_taken(request.sender_of(webhooks, self._hook, record)):
                return self._go_on("An earlier try has sent this answer")
        except CrewTaskFailed as refused:
            if not (self._task.has_next_round and self._check.edited_too_late):
                raise
            return self._hand_on(refused)
        return self._send(webhooks)

    def said(self, kickoff_id: str) -> Json:
        """Return what the task says about the answer, for its XCom; in a try that found it sent, no more than that."""
        said = self._resumed or Resumed(kickoff_id, "sent before")
        draft = {"draft_sha256": self._check.draft.output_sha256, "resumed_at": self._check.resumed_at}
        return {**self._answer.request, **vars(said), **draft}

    def _send(self, webhooks: Webhooks | str | None) -> str:
        if self._record.same_request:
            keyed = self._hook.connection.idempotency_keys
            because = "the idempotency key stays the same" if keyed else "the same draft still waits"
            self._log.info("The outcome of an earlier try's answer is not known, and %s. Sending it again", because)
        sender, added = (
            request.sender_of(webhooks, self._hook, self._record),
            request.added_address(webhooks, self._hook),
        )
        key = self._record.intend(sender, added=added, **self._check.noted)
        try:
            resumed = self._hook.resume(
                self._answer.execution_id,
                self._answer.crew_task_id,
                self._answer.human_feedback,
                self._answer.is_approve,
                outcome=self._answer.outcome,
                edited_output=self._answer.edit,
                output_sha256=self._check.hash_to_send,
                webhooks=request.webhooks_to_send(
                    webhooks, self._context, self._hook, self._record, self._answer.execution_id
                ),
                idempotency_key=key if self._hook.connection.idempotency_keys else None,
            )
        except CrewError as error:
            if self._check.was_taken_after_all(error):
                return self._go_on("An earlier try has sent this answer; the draft no longer waits")
            if self._task.has_next_round and self._check.came_too_late(error):
                self._record.failed(error)
                return self._hand_on(error)
            self._not_resumed(error)
        self._record.note(kickoff_id=resumed.kickoff_id, resumed_at=time.time())
        request.tell_inbox(self._context, self._record)
        self._resumed = resumed
        self._tell(resumed)
        self._let_settle(resumed.kickoff_id)
        return resumed.kickoff_id

    def _answer_flow(self, address: AnswerAddress) -> str:
        """Answer by the way the question came; the id to poll stays the same."""
        answers.check(self._hook, address)
        sender = Sender.of(self._hook.connection)
        if address.callback_url is None and self._check.is_taken(sender):
            return self._go_on("An earlier try has sent this answer")
        self._record.intend(sender, **self._check.noted)
        try:
            resumed = self._resumed = answers.send(self._hook, self._answer, address)
        except CrewError as error:
            self._not_resumed(error)
        self._record.note(kickoff_id=resumed.kickoff_id, resumed_at=time.time())
        answers.used_up(self._hook, self._answer)
        self._tell(resumed)
        return resumed.kickoff_id

    def _hand_on(self, refused: Exception) -> str:
        """Let the next wait bring a new draft to its reviewer, whose edit of an older one is not applied."""
        self._log.warning("The edited draft is not applied. %s. The next wait hands the new draft on", refused)
        self._resumed = Resumed(self._answer.execution_id, NOT_SENT, "The draft has changed since it was edited")
        return self._answer.execution_id

    def _go_on(self, why: str) -> str:
        """Return the id by which an earlier try of this task is to be followed."""
        kickoff_id = self._record.kickoff_id or self._check.draft.execution_id
        self._log.info("%s; execution %s goes on", why, kickoff_id)
        if not self._record.kickoff_id:
            self._record.done(kickoff_id)
        request.tell_inbox(self._context, self._record, again=True)
        self._let_settle(kickoff_id)
        return kickoff_id

    def _not_resumed(self, error: CrewError) -> NoReturn:
        if self._record.failed(error):
            # A refused edit may still wait for an answer; the service says what is wrong with it.
            is_over = isinstance(error, CrewBadRequest) and not self._answer.edit
            who = ": it was answered by somebody else, or is over" if is_over else ""
            fail_task(error, f"This answer was not accepted{who}")
        self._record.note(lost_at=time.time())
        self._task.report_unknown("resume")
        if isinstance(error, CrewOutcomeUnknown):
            fail_task(error, "A retry of this task finds out whether the answer was accepted before it sends it again")
        raise CrewTryFailed(str(error)) from error

    def _tell(self, resumed: Resumed) -> None:
        self._log.info(
            "Sent the answer (%s) to task %s of execution %s: %s; poll %s from now on",
            self._answer.outcome or ("approved" if self._answer.is_approve else "revise"),
            self._answer.crew_task_id,
            self._answer.execution_id,
            resumed.message or resumed.status or "taken",
            resumed.kickoff_id,
        )

    def _let_settle(self, kickoff_id: str) -> None:
        """Wait until the old pause is gone, so that the next task does not take it for a new question."""
        draft = self._check.draft
        if kickoff_id == draft.execution_id and not self._check.goes_on():
            self._log.info("Execution %s is still shown with the draft that was answered", kickoff_id)
