"""The operator that asks a person whether a costly execution's output may be used. Needs Airflow 3.1 or newer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar, Unpack

from airflow.providers.common.compat.sdk import AirflowSkipException, XComArg

from airflow_crew_provider.api.answers import DraftId
from airflow_crew_provider.api.budget import (
    ASK,
    FAIL,
    IGNORE,
    Budget,
    judged,
    refuse_bad_choice,
    refuse_bad_limit,
    used_in,
)
from airflow_crew_provider.api.values import record_or_none
from airflow_crew_provider.compat.arguments import QuestionArguments
from airflow_crew_provider.compat.retries import at_least
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.links.crew import CrewExecutionLink
from airflow_crew_provider.models import Json
from airflow_crew_provider.review import airflow_form
from airflow_crew_provider.review.answer import problem_with
from airflow_crew_provider.review.people import Escalation, refuse_several_choices, response_time, reviewers
from airflow_crew_provider.review.question import Asking, QuestionTask, people_of
from airflow_crew_provider.review.usage import APPROVE, REJECT, UsageRules, facts_of
from airflow_crew_provider.task.drive import Steps, drive
from airflow_crew_provider.task.store import record_of
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, ends_in_a_sentence
from airflow_crew_provider.wait.output import usage_not_reported
from airflow_crew_provider.wait.task import push_execution_of


class CrewUsageApprovalOperator(QuestionTask):
    """Return a completed record, but first get a person's approval if its execution used more than the DAG allows.

    On approval, the task passes the record on unchanged. On rejection, the task and those downstream are skipped, or
    the task fails. It sends nothing to the crew service. It also accepts the arguments ``notifiers`` and ``defaults``
    of `HITLOperator`.

    :param completed: the record of a completed execution (templated)
    :param max_total_tokens: tokens allowed without asking; this or `max_cost` is required
    :param max_cost: cost allowed without asking, in USD
    :param on_unknown_usage: what to do if the service does not report the usage needed to check a limit: ``ask`` the
        person, ``fail``, or ``ignore`` the limit
    :param response_timeout: how long to wait for the person, in seconds or as a timedelta; None for no deadline.
        At the deadline, the task fails or ``defaults`` decides
    :param assigned_users: the users who may answer, as ids or as dicts with ``id`` and ``name``; None for everybody
    :param fail_on_reject: fail instead of skipping
    :param crew_conn_id: the connection of type ``crew``, for the Crew tab and the link (templated)
    """

    template_fields: Sequence[str] = ("completed", "crew_conn_id")
    fields_with_records = ("completed",)
    operator_extra_links = (CrewExecutionLink(),)
    template_fields_renderers: ClassVar[dict[str, str]] = {"completed": "json"}

    def __init__(
        self,
        *,
        completed: Json | str | XComArg,
        max_total_tokens: int | None = None,
        max_cost: float | None = None,
        on_unknown_usage: str = ASK,
        response_timeout: float | timedelta | None = None,
        assigned_users: str | Json | Sequence[str | Json] | None = None,
        fail_on_reject: bool = False,
        crew_conn_id: str = CrewHook.default_conn_name,
        **kwargs: Unpack[QuestionArguments],
    ) -> None:
        if max_cost is None:
            refuse_bad_limit(max_total_tokens)
        refuse_bad_choice(on_unknown_usage, (ASK, FAIL, IGNORE))
        Budget(max_total_tokens, max_cost)  # refuses an invalid limit when the DAG file is parsed
        timeout, users = response_time(response_timeout), reviewers(assigned_users)
        # A retry looks for the answer again; a person's decision ends the task for good.
        arguments: dict[str, Any] = {**at_least(kwargs.get("default_args")), **kwargs}
        refuse_several_choices(arguments)
        super().__init__(
            subject="",
            options=[APPROVE, REJECT],
            response_timeout=timeout,
            assigned_users=users,
            **arguments,
        )
        self.params = airflow_form.no_params()
        self.completed: Any = completed
        self.max_total_tokens = max_total_tokens
        self.max_cost = max_cost
        self.on_unknown_usage = on_unknown_usage
        self.fail_on_reject = fail_on_reject
        self.crew_conn_id = crew_conn_id
        self.escalation = Escalation.of((), users, timeout)

    def rules(self) -> UsageRules:
        """Return the rules for the question, from the task's rendered arguments."""
        return UsageRules(self.completed, self.budget, self.escalation, people_of(self.assigned_users), self.defaults)

    @property
    def budget(self) -> Budget:
        """The usage allowed without asking."""
        return Budget(self.max_total_tokens, self.max_cost)

    @ends_in_a_sentence
    def execute(self, context: Any) -> Json:
        """Return the record, or wait for a person."""
        rules = self.rules()
        record = rules.record()
        if record.get("execution_id"):
            push_execution_of(context, self.crew_conn_id, record, self.log)
        stored, content = record_of(context), facts_of(record)
        question = Asking(stored, context, self, rules, begins=True)
        # A question that is open is decided by its answer, even if the DAG's limits have been edited since.
        if question.record.is_open_for(DraftId.of(content)) or self._needs_a_person(record):
            drive(question.go_on(content), stored)
        used = " and ".join(used_in(judged(record.get("usage"))))
        usage = f"used {used}" if used else "reports no usage"
        self.log.info("Execution %s %s; nobody was asked", record.get("execution_id"), usage)
        return record

    def execute_complete(
        self, context: Any, event: Json, until: str | None = None, shown: Json | None = None, **_: Any
    ) -> Json:
        """Return the record if it was approved; otherwise skip or fail."""
        assert shown is not None
        stored = record_of(context)
        return drive(self._decided(Asking(stored, context, self, self.rules()), event, until, shown), stored)

    def _decided(self, question: Asking[UsageRules], event: Json, until: str | None, content: Json) -> Steps[Json]:
        question.hold_to(content)

        def at_deadline() -> Json:
            if self.defaults:
                return airflow_form.deadline_event(self.defaults)
            question.record.close()
            raise CrewTaskFailed(
                f"Nobody decided within {self.response_timeout} whether the output of execution "
                f"{content['execution_id']} may be used, so it is not passed on; the service still has it"
            )

        event = yield from question.delivered(content, until, event, self.defaults, at_deadline)
        if question.came_too_late(content, until, event):
            event = at_deadline()
        question.refuse_late_approval(content, event)
        problem = problem_with(event, self.options, (), None)
        if problem:
            yield from question.refuse(content, until, event, problem)
        question.keep_rejection(content, event)
        record = self._approved(content) if event["chosen_options"] == [APPROVE] else None
        question.record.close()
        who, chosen = airflow_form.name_of(event), event["chosen_options"][0]
        message = f"{who} chose to {chosen} the output of execution {content['execution_id']}"
        if record is None:
            raise (CrewTaskFailed if self.fail_on_reject else AirflowSkipException)(message)
        self.log.info("%s", message)
        return record

    def _needs_a_person(self, record: Json) -> bool:
        unknown = self.budget.unknown_in(record.get("usage"))
        if self.budget.passed_by(record.get("usage")):
            return True
        if unknown and self.on_unknown_usage == FAIL:
            raise CrewTaskFailed(usage_not_reported(record.get("execution_id"), unknown))
        return bool(unknown) and self.on_unknown_usage == ASK

    def _approved(self, content: Json) -> Json:
        """Return the record that was approved; fail if the task now has another one."""
        now = record_or_none(self.completed) or {}
        if now and DraftId.of(facts_of(now)) == DraftId.of(content):
            return now
        by_now = f"that of execution {now.get('execution_id')}" if now else "gone"
        raise CrewTaskFailed(
            f"The output of execution {content['execution_id']} was approved, but the record passed to this task is "
            f"now {by_now}: an earlier task was cleared. Nothing is passed on; start a new DAG run"
        )
