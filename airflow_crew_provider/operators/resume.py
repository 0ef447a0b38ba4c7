"""The operator that sends a person's answer once, and only for the draft that the person saw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

from airflow.providers.common.compat.sdk import XComArg

from airflow_crew_provider.api.answers import FIELDS, ReviewAnswer
from airflow_crew_provider.api.requests import EXECUTION_ID, path_segment
from airflow_crew_provider.api.values import record_of
from airflow_crew_provider.compat.arguments import TaskArguments
from airflow_crew_provider.compat.rendered_fields import HidesRecords
from airflow_crew_provider.exceptions import CrewError, CrewInvalidInput
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.kickoff.request import SendsWebhooks, checked_webhooks, given_webhooks
from airflow_crew_provider.links.crew import CrewExecutionLink
from airflow_crew_provider.models import ExecutionState, Json, Webhooks
from airflow_crew_provider.resume.sending import Resuming
from airflow_crew_provider.stored_names import EXECUTION_ID_KEY, RESUME_KEY
from airflow_crew_provider.task.drive import Worker
from airflow_crew_provider.wait.outcomes import ends_in_a_sentence, fail_task
from airflow_crew_provider.wait.task import CrewTask, push_execution, push_execution_of
from airflow_crew_provider.wait.watch import COMPLETED


class CrewResumeOperator(SendsWebhooks, HidesRecords, CrewTask):
    """Send a person's answer once to the waiting execution; return the kickoff id to poll next.

    Given a completed record, it sends nothing and returns the record's kickoff id.

    :param review: the review from `CrewReviewOperator`, or the completed record that it passed on; replaces the fields
        below, up to ``outcome`` (templated)
    :param execution_id: the id of the first kickoff (templated)
    :param crew_task_id: the service's id for the waiting task (templated)
    :param human_feedback: the person's feedback; required for a rejection (templated)
    :param is_approve: a bool, or the word true or false; any other value is an error (templated)
    :param outcome: for a Flow, the chosen outcome; for a question in the middle of a task, the word that answers it;
        with either, you can omit ``is_approve`` (templated)
    :param webhooks: the kickoff's webhooks again, or ``"inbox"``; None ends notifications (templated)
    :param has_next_round: whether another wait and review follow. If somebody else has since sent back the draft that
        the person edited, the edit is then dropped and the task succeeds; without a next round, the task fails
    :param crew_conn_id: the connection of type ``crew`` (templated)
    """

    hook_class = CrewHook
    fields_with_records = ("review",)
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
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.review: Any = review
        self.execution_id = execution_id
        self.crew_task_id = crew_task_id
        self.human_feedback = human_feedback
        self.is_approve = is_approve
        self.outcome = outcome
        self.webhooks = given_webhooks(webhooks)
        self.has_next_round = has_next_round
        self.crew_conn_id = crew_conn_id

    @ends_in_a_sentence
    def execute(self, context: Any) -> str:
        """Send the answer, unless an earlier run of this task has already sent it."""
        try:
            is_given_by_fields = self.review is None and any(getattr(self, name) is not None for name in FIELDS)
            review = None if is_given_by_fields else record_of(self.review, "review")
            if review and review.get("state") == COMPLETED:
                return self._pass_on(context, review)
            answer, worker = self._answer(review), Worker(self.hook, self.log, context)
            resuming = Resuming(self, worker, answer, checked_webhooks(self.webhooks))
            kickoff_id = worker.drive(resuming.send_once())
            record = review or {}
            decision = {"decided_at": record.get("decided_at"), **resuming.said(kickoff_id).to_json()}
            self.report(context, ExecutionState.RUNNING, kickoff_id, execution_id=answer.execution_id)
            context["ti"].xcom_push(key=RESUME_KEY, value=decision)
            context["ti"].xcom_push(key=EXECUTION_ID_KEY, value=answer.execution_id)
            push_execution(context, self.hook, kickoff_id, answer.execution_id, record.get("view"))
        except CrewError as error:
            fail_task(error)
        return kickoff_id

    def _pass_on(self, context: Any, completed: Json) -> str:
        kickoff_id, execution_id = completed.get("kickoff_id") or "", completed.get("execution_id") or ""
        path_segment(kickoff_id)
        path_segment(execution_id, EXECUTION_ID)
        self.log.info("Execution %s has completed; there is nothing to answer, so nothing is sent", execution_id)
        context["ti"].xcom_push(key=EXECUTION_ID_KEY, value=execution_id)
        push_execution_of(context, self.crew_conn_id, completed, self.log)
        return kickoff_id

    def _answer(self, review: Json | None) -> ReviewAnswer:
        fields = {name: getattr(self, name) for name in FIELDS}
        names = [name for name, value in fields.items() if value is not None]
        if review is not None and names:
            raise CrewInvalidInput(
                f"Pass either review or the four fields, not both ({', '.join(names)}); nothing was sent"
            )
        return ReviewAnswer.of(fields if review is None else review)
