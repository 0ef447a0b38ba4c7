"""The operator that hands a person's answer back, once, and only to the draft it was given for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import AirflowException, BaseOperator, XComArg

from airflow_crew_provider import api
from airflow_crew_provider.exceptions import CrewBadRequest, CrewError, CrewInvalidInput, CrewOutcomeUnknown
from airflow_crew_provider.hooks.crew import CrewHook, HasHook
from airflow_crew_provider.hooks.memory import memory_of
from airflow_crew_provider.hooks.waits import CrewTaskFailed, fail_task
from airflow_crew_provider.links.crew import CrewExecutionLink, push_link
from airflow_crew_provider.models import Execution, ExecutionState, Json, Resumed, Webhooks, output_sha256
from airflow_crew_provider.operators.answering import (
    feedback_to_send,
    reads_like_approval,
    record_of,
    strict_bool,
)
from airflow_crew_provider.operators.once import Ledger, fingerprint
from airflow_crew_provider.operators.webhooks import (
    checked_webhooks,
    refuse_literal_credentials,
    tell_inbox,
    webhooks_to_send,
    with_credentials,
)

MEMORY = "crew_resume"
# The XCom that holds what was sent and what the service said to it, for the audit.
ANSWER = "crew_resume"
EXECUTION_ID = "execution_id"
FIELDS = ("execution_id", "crew_task_id", "human_feedback", "is_approve")
# How long the old pause may still show after a resume, in seconds.
SETTLING = 15.0


@dataclass(frozen=True)
class Answer:
    """A person's answer as it is sent."""

    execution_id: str
    crew_task_id: str
    human_feedback: str
    is_approve: bool
    output_sha256: str | None = None


class CrewResumeOperator(HasHook, BaseOperator):
    """Hand a person's answer to an execution that waits for it, once; return the kickoff id to poll next.

    :param review: the review of `CrewReviewOperator`; instead of the four fields below (templated)
    :param execution_id: the id of the first kickoff (templated)
    :param crew_task_id: the service's id of the task that waits (templated)
    :param human_feedback: what the person says; a rejection needs it (templated)
    :param is_approve: a bool, or the words true or false; anything else is refused (templated)
    :param webhooks: the kickoff's webhooks again, or the word ``inbox``; with None notifications stop (templated)
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
        webhooks: Webhooks | Json | str | XComArg | None = None,
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
        self.webhooks = webhooks.as_dict() if isinstance(webhooks, Webhooks) else webhooks
        self.crew_conn_id = crew_conn_id
        self._given: Answer | None = None
        self._resumed: Resumed | None = None

    def execute(self, context: Any) -> str:
        """Send the answer, or find what an earlier run of this task has sent."""
        try:
            kickoff_id = self._resume(context)
            told = self._told(kickoff_id)
            context["ti"].xcom_push(key=ANSWER, value=told)
            context["ti"].xcom_push(key=EXECUTION_ID, value=told["execution_id"])
            push_link(context, self.hook.connection.console_url, kickoff_id, told["execution_id"])
        except CrewError as error:
            fail_task(error)
        return kickoff_id

    def _resume(self, context: Any) -> str:
        answer = self._given = self._answer()
        webhooks = checked_webhooks(self.webhooks)
        # An answer is taken once, also by a task that was cleared: so no max_tries tells the two apart here.
        ledger = Ledger(memory_of(context, MEMORY), fingerprint(vars(answer)), max_tries=0)
        if ledger.same_request and ledger.kickoff_id:
            self.log.info("This answer was sent before; execution %s goes on", ledger.kickoff_id)
            tell_inbox(context, ledger, again=True)
            return ledger.kickoff_id
        sent_before = ledger.same_request
        if sent_before and not self.hook.connection.idempotency_keys:
            self._settle_unknown(answer, ledger)
            if ledger.kickoff_id:
                tell_inbox(context, ledger, again=True)
                return ledger.kickoff_id
        elif not sent_before and answer.output_sha256:
            self._check_draft(answer)
        return self._send(context, answer, webhooks, ledger)

    def _answer(self) -> Answer:
        given = [name for name in FIELDS if getattr(self, name) is not None]
        if self.review is not None and given:
            raise CrewInvalidInput(
                f"Give either review or the four fields, not both ({', '.join(given)}); nothing was sent"
            )
        source = record_of(self.review, "review") if self.review is not None else {n: getattr(self, n) for n in FIELDS}
        missing = [name for name in ("execution_id", "crew_task_id", "is_approve") if source.get(name) is None]
        if missing:
            raise CrewInvalidInput(f"The answer lacks {', '.join(missing)}; nothing was sent")
        is_approve = strict_bool(source["is_approve"])
        feedback = source.get("human_feedback") or ""
        if not isinstance(feedback, str):
            raise CrewInvalidInput("human_feedback is not a text; nothing was sent")
        self._warn_of_text(is_approve, feedback)
        for name in ("execution_id", "crew_task_id"):
            api.path_segment(source[name])
        return Answer(
            source["execution_id"],
            source["crew_task_id"],
            feedback_to_send(is_approve, feedback),
            is_approve,
            source.get("output_sha256"),
        )

    def _warn_of_text(self, is_approve: bool, feedback: str) -> None:
        if is_approve and feedback.strip() and not reads_like_approval(feedback):
            self.log.warning(
                "The approval carries a text. A live deployment decides by the text alone and may run the task again"
            )

    def _check_draft(self, answer: Answer) -> None:
        """Compare the draft that waits with the one that was answered, where the service shows it."""
        seen = self.hook.look_patiently(answer.execution_id)
        if seen is None or seen.state is ExecutionState.NOT_FOUND or _is_live(seen):
            return
        if seen.state is not ExecutionState.PENDING:
            raise CrewTaskFailed(
                f"Execution {answer.execution_id} does not wait for an answer, it is {seen.state}: somebody else has "
                "answered it, or it was stopped. This answer was not sent"
            )
        if not _is_of(answer, seen):
            raise CrewTaskFailed(
                f"Execution {answer.execution_id} waits with another draft than the one that was answered (task "
                f"{seen.crew_task_id} now, {answer.crew_task_id} then). This answer was not sent and changed nothing; "
                "review the new draft"
            )

    def _settle_unknown(self, answer: Answer, ledger: Ledger) -> None:
        """An earlier try may have sent this answer; find out by what the execution does now."""
        seen = self._settled(answer, ledger.record.get("intended_at", 0) + SETTLING)
        if seen is None or _is_live(seen):
            raise CrewTaskFailed(
                f"An earlier try sent this answer to execution {answer.execution_id} and its outcome is unknown: the "
                "service does not tell. Sending it again could apply it twice. If the crew still waits, answer by hand"
            )
        if _waits_for(answer, seen):
            self.log.info(
                "An earlier try did not get this answer through: the same draft still waits. Sending it again"
            )
            return
        self.log.info("An earlier try has sent this answer: execution %s is %s now", answer.execution_id, seen.state)
        ledger.done(answer.execution_id)

    def _send(self, context: Any, answer: Answer, webhooks: Webhooks | str | None, ledger: Ledger) -> str:
        webhooks = with_credentials(webhooks, self.hook)
        key = ledger.intend()
        try:
            resumed = self.hook.resume(
                answer.execution_id,
                answer.crew_task_id,
                answer.human_feedback,
                answer.is_approve,
                webhooks=webhooks_to_send(webhooks, context, self.hook, ledger, answer.execution_id),
                idempotency_key=key if self.hook.connection.idempotency_keys else None,
            )
        except CrewError as error:
            self._not_resumed(answer, ledger, error)
        ledger.done(resumed.kickoff_id)
        tell_inbox(context, ledger)
        self._resumed = resumed
        self._tell(answer, resumed)
        if resumed.kickoff_id == answer.execution_id:
            self._let_settle(answer)
        return resumed.kickoff_id

    def _not_resumed(self, answer: Answer, ledger: Ledger, error: CrewError) -> NoReturn:
        if ledger.failed(error):
            who = ": it was answered by somebody else, or is over" if isinstance(error, CrewBadRequest) else ""
            fail_task(error, f"This answer was not taken{who}")
        if isinstance(error, CrewOutcomeUnknown):
            fail_task(error, "A retry of this task finds out whether the answer was taken before it sends it again")
        raise AirflowException(str(error)) from error

    def _told(self, kickoff_id: str) -> Json:
        """Return the record of the service's answer; a run that found the answer sent already has no words of it."""
        assert self._given
        said = self._resumed or Resumed(kickoff_id, "sent before")
        decided_at = record_of(self.review, "review").get("decided_at") if self.review is not None else None
        return {**vars(self._given), "decided_at": decided_at, **vars(said)}

    def _tell(self, answer: Answer, resumed: Resumed) -> None:
        self.log.info(
            "Sent the answer (%s) to task %s of execution %s: %s; poll %s from now on",
            "approved" if answer.is_approve else "revise",
            answer.crew_task_id,
            answer.execution_id,
            resumed.message or resumed.status or "taken",
            resumed.kickoff_id,
        )

    def _let_settle(self, answer: Answer) -> None:
        """Wait until the old pause is gone, so that the next task does not take it for a new one."""
        until = time.time() + SETTLING
        while time.time() < until:
            seen = self.hook.look(answer.execution_id, SETTLING)
            if isinstance(seen, Execution) and not _waits_for(answer, seen):
                return
            time.sleep(0.2)
        self.log.warning("Execution %s was not seen to go on yet", answer.execution_id)

    def _settled(self, answer: Answer, until: float) -> Execution | None:
        """Look until the draft that was answered is gone, or the time is; return what was seen last."""
        while _waits_for(answer, seen := self.hook.look_patiently(answer.execution_id)) and time.time() < until:
            time.sleep(0.5)
        return seen


def _is_live(seen: Execution) -> bool:
    """Whether the service speaks the live dialect, where a task id is new at every gate."""
    return isinstance(seen.raw.get("state"), str)


def _waits_for(answer: Answer, seen: Execution | None) -> bool:
    return seen is not None and seen.state is ExecutionState.PENDING and _is_of(answer, seen)


def _is_of(answer: Answer, seen: Execution) -> bool:
    """Whether an answer was given to the draft that is seen waiting."""
    shown = seen.output if seen.output_json is None else seen.output_json
    same_text = answer.output_sha256 is None or answer.output_sha256 == output_sha256(shown)
    return same_text and seen.crew_task_id in (None, answer.crew_task_id)
