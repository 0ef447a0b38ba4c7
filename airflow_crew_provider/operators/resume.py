"""The operator that sends a person's answer, once, and only to the draft it was given for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import AirflowException, BaseOperator, XComArg

from airflow_crew_provider.compat.attempt import Attempt
from airflow_crew_provider.compat.task_state import task_state_of
from airflow_crew_provider.core.feedback import reads_like_approval, record_of
from airflow_crew_provider.core.flow_webhooks import AnswerAddress
from airflow_crew_provider.core.outcome import COMPLETED
from airflow_crew_provider.core.request_parts import path_segment
from airflow_crew_provider.core.review import FIELDS, ReviewAnswer
from airflow_crew_provider.core.stored_names import EXECUTION_ID_KEY, NOT_SENT, RESUME_KEY, RESUME_STATE
from airflow_crew_provider.exceptions import CrewBadRequest, CrewError, CrewInvalidInput, CrewOutcomeUnknown
from airflow_crew_provider.hooks.crew import CrewHook, HasHook
from airflow_crew_provider.links.crew import CrewExecutionLink, push_link
from airflow_crew_provider.models import ExecutionState, Json, Resumed, Webhooks
from airflow_crew_provider.tasks import flow_answer
from airflow_crew_provider.tasks.draft_check import DraftCheck
from airflow_crew_provider.tasks.outcomes import CrewTaskFailed, fail_task
from airflow_crew_provider.tasks.post_record import PostRecord, fingerprint
from airflow_crew_provider.tasks.reports import ReportingTask
from airflow_crew_provider.tasks.sender import Sender
from airflow_crew_provider.tasks.webhooks import (
    added_address,
    checked_webhooks,
    refuse_literal_credentials,
    sender_of,
    tell_inbox,
    webhooks_to_send,
    with_credentials,
)

# For how many seconds a resume waits at most until its draft no longer waits.
SETTLING = 30.0


class CrewResumeOperator(HasHook, ReportingTask, BaseOperator):
    """Hand a person's answer to an execution that waits for it, once; return the kickoff id to poll next.

    Given a completed record it sends nothing and returns the record's kickoff id.

    :param review: the review of `CrewReviewOperator`, or the completed record that it passed on; instead of the four
        fields below (templated)
    :param execution_id: the id of the first kickoff (templated)
    :param crew_task_id: the service's id of the task that waits (templated)
    :param human_feedback: what the person says; a rejection needs it (templated)
    :param is_approve: a bool, or the words true or false; anything else is refused (templated)
    :param outcome: of a Flow: the chosen outcome; then ``is_approve`` may be left out (templated)
    :param webhooks: the kickoff's webhooks again, or the word ``inbox``; with None notifications stop (templated)
    :param has_next_round: whether a wait and a review of a new draft follow; then an edit of a draft that somebody else
        has sent back is not sent and the task succeeds, else it fails
    :param crew_conn_id: the connection of type ``crew`` (templated)
    """

    template_fields: Sequence[str] = ("review", *FIELDS, "webhooks", "crew_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"review": "json", "webhooks": "json"}
    operator_extra_links = (CrewExecutionLink(),)
    ui_color = "#e8e4f8"

    def __init__(
        self,
        *,
        review: Json | str | XComArg | None = None,
        execution_id: str | XComArg | None = None,
        crew_task_id: str | XComArg | None = None,
        human_feedback: str | XComArg | None = None,
        is_approve: bool | str | XComArg | None = None,
        outcome: str | XComArg | None = None,
        webhooks: Webhooks | Json | str | XComArg | None = None,
        has_next_round: bool = False,
        crew_conn_id: str = CrewHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        refuse_literal_credentials(webhooks)
        self.review: Any = review
        self.execution_id = execution_id
        self.crew_task_id = crew_task_id
        self.human_feedback = human_feedback
        self.is_approve = is_approve
        self.outcome = outcome
        self.webhooks = webhooks.as_dict() if isinstance(webhooks, Webhooks) else webhooks
        self.has_next_round = has_next_round
        self.crew_conn_id = crew_conn_id
        self._given: ReviewAnswer | None = None
        self._resumed: Resumed | None = None

    def execute(self, context: Any) -> str:
        """Send the answer, or find what an earlier run of this task has sent."""
        try:
            completed = self._completed()
            if completed is not None:
                return self._pass_on(context, completed)
            kickoff_id = self._resume(context)
            record = self._record(kickoff_id)
            self.report(context, ExecutionState.RUNNING, kickoff_id, execution_id=record["execution_id"])
            context["ti"].xcom_push(key=RESUME_KEY, value=record)
            context["ti"].xcom_push(key=EXECUTION_ID_KEY, value=record["execution_id"])
            push_link(context, self.hook.connection.console_url, kickoff_id, record["execution_id"])
        except CrewError as error:
            fail_task(error)
        return kickoff_id

    def _completed(self) -> Json | None:
        """Return the completed record that a review has passed on; None for an answer of a person."""
        if self.review is None:
            return None
        given = record_of(self.review, "review")
        return given if given.get("state") == COMPLETED else None

    def _pass_on(self, context: Any, completed: Json) -> str:
        kickoff_id, execution_id = completed.get("kickoff_id") or "", completed.get("execution_id") or ""
        for each in (kickoff_id, execution_id):
            path_segment(each)
        self.log.info("Execution %s is completed; there is nothing to answer and nothing is sent", execution_id)
        context["ti"].xcom_push(key=EXECUTION_ID_KEY, value=execution_id)
        push_link(context, self.hook.connection.console_url, kickoff_id, execution_id)
        return kickoff_id

    def _resume(self, context: Any) -> str:
        answer = self._given = self._answer()
        webhooks = checked_webhooks(self.webhooks)
        # An answer is taken once, also by a task that was cleared.
        attempt = Attempt.of(context, self).with_clears_as_retries()
        record = PostRecord(task_state_of(context, RESUME_STATE), attempt, fingerprint(answer.request))
        record.forget_deleted_run()
        check = self._check = DraftCheck(self.hook, answer, record, SETTLING)
        if record.same_request and record.kickoff_id:
            flow_answer.used_up(self.hook, answer)
            return self._go_on(context, record, "This answer was sent before")
        address = flow_answer.address_of(self.hook, answer, lag=0.0 if record.same_request else SETTLING)
        if address is not None:
            return self._answer_flow(context, answer, address, record)
        webhooks = with_credentials(webhooks, self.hook)
        try:
            if check.is_taken(sender_of(webhooks, self.hook, record)):
                return self._go_on(context, record, "An earlier try has sent this answer")
        except CrewTaskFailed as refused:
            if not (self.has_next_round and check.edited_too_late):
                raise
            return self._hand_on(answer, refused)
        return self._send(context, answer, webhooks, record)

    def _hand_on(self, answer: ReviewAnswer, refused: Exception) -> str:
        """Let the next wait bring a new draft to its reviewer, whose edit of an older one is not applied."""
        self.log.warning("The edited draft is not applied. %s. The next wait hands the new draft on", refused)
        self._resumed = Resumed(answer.execution_id, NOT_SENT, "The draft has changed since it was edited")
        return answer.execution_id

    def _answer(self) -> ReviewAnswer:
        given = [name for name in FIELDS if getattr(self, name) is not None]
        if self.review is not None and given:
            raise CrewInvalidInput(
                f"Give either review or the four fields, not both ({', '.join(given)}); nothing was sent"
            )
        source = record_of(self.review, "review") if self.review is not None else {n: getattr(self, n) for n in FIELDS}
        answer = ReviewAnswer.of(source)
        if answer.outcome is None and answer.is_approve and not reads_like_approval(answer.human_feedback):
            self.log.warning(
                "The approval carries a text. A live deployment decides by the text alone and may run the task again"
            )
        return answer

    def _send(self, context: Any, answer: ReviewAnswer, webhooks: Webhooks | str | None, record: PostRecord) -> str:
        if record.same_request:
            keyed = self.hook.connection.idempotency_keys
            because = "the idempotency key stays the same" if keyed else "the same draft still waits"
            self.log.info("The outcome of an earlier try's answer is not known, and %s. Sending it again", because)
        sender, added = sender_of(webhooks, self.hook, record), added_address(webhooks, self.hook)
        key = record.intend(sender, added=added, **self._check.noted)
        try:
            resumed = self.hook.resume(
                answer.execution_id,
                answer.crew_task_id,
                answer.human_feedback,
                answer.is_approve,
                outcome=answer.outcome,
                edited_output=answer.edit,
                output_sha256=self._check.hash_to_send,
                webhooks=webhooks_to_send(webhooks, context, self.hook, record, answer.execution_id),
                idempotency_key=key if self.hook.connection.idempotency_keys else None,
            )
        except CrewError as error:
            if self._check.was_taken_after_all(error):
                return self._go_on(context, record, "An earlier try has sent this answer; the draft no longer waits")
            if self.has_next_round and self._check.came_too_late(error):
                record.failed(error)
                return self._hand_on(answer, error)
            self._not_resumed(record, error)
        record.note(kickoff_id=resumed.kickoff_id, resumed_at=time.time())
        tell_inbox(context, record)
        self._resumed = resumed
        self._tell(answer, resumed)
        self._let_settle(resumed.kickoff_id)
        return resumed.kickoff_id

    def _answer_flow(self, context: Any, answer: ReviewAnswer, address: AnswerAddress, record: PostRecord) -> str:
        """Answer by the way the question came; the id to poll stays the same."""
        flow_answer.check(self.hook, address)
        sender = Sender.of(self.hook.connection)
        if address.callback_url is None and self._check.is_taken(sender):
            return self._go_on(context, record, "An earlier try has sent this answer")
        record.intend(sender, **self._check.noted)
        try:
            resumed = self._resumed = flow_answer.send(self.hook, answer, address)
        except CrewError as error:
            self._not_resumed(record, error)
        record.note(kickoff_id=resumed.kickoff_id, resumed_at=time.time())
        flow_answer.used_up(self.hook, answer)
        self._tell(answer, resumed)
        return resumed.kickoff_id

    def _go_on(self, context: Any, record: PostRecord, why: str) -> str:
        """Return the id by which an earlier try of this task is to be followed."""
        kickoff_id = record.kickoff_id or self._check.draft.execution_id
        self.log.info("%s; execution %s goes on", why, kickoff_id)
        if not record.kickoff_id:
            record.done(kickoff_id)
        tell_inbox(context, record, again=True)
        self._let_settle(kickoff_id)
        return kickoff_id

    def _not_resumed(self, record: PostRecord, error: CrewError) -> NoReturn:
        if record.failed(error):
            # A refused edit may still wait for an answer; the service says what is wrong with it.
            is_over = isinstance(error, CrewBadRequest) and not (self._given and self._given.edit)
            who = ": it was answered by somebody else, or is over" if is_over else ""
            fail_task(error, f"This answer was not accepted{who}")
        record.note(lost_at=time.time())
        self.report_unknown("resume")
        if isinstance(error, CrewOutcomeUnknown):
            fail_task(error, "A retry of this task finds out whether the answer was accepted before it sends it again")
        raise AirflowException(str(error)) from error

    def _record(self, kickoff_id: str) -> Json:
        """Return the record of the service's answer; empty in a run that found the answer already sent."""
        assert self._given
        said = self._resumed or Resumed(kickoff_id, "sent before")
        decided_at = record_of(self.review, "review").get("decided_at") if self.review is not None else None
        draft = {"draft_sha256": self._check.draft.output_sha256, "resumed_at": self._check.resumed_at}
        return {**self._given.request, "decided_at": decided_at, **vars(said), **draft}

    def _tell(self, answer: ReviewAnswer, resumed: Resumed) -> None:
        self.log.info(
            "Sent the answer (%s) to task %s of execution %s: %s; poll %s from now on",
            answer.outcome or ("approved" if answer.is_approve else "revise"),
            answer.crew_task_id,
            answer.execution_id,
            resumed.message or resumed.status or "taken",
            resumed.kickoff_id,
        )

    def _let_settle(self, kickoff_id: str) -> None:
        """Wait until the old pause is gone, so that the next task does not take it for a new question."""
        draft = self._check.draft
        if kickoff_id == draft.execution_id and not self._check.goes_on():
            self.log.info("Execution %s is still shown with the draft that was answered", kickoff_id)
