"""The operator that lets a person approve a draft or send it back in Airflow. Needs Airflow 3.1 or newer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Unpack

from airflow.providers.common.compat.sdk import AirflowSkipException, XComArg

from airflow_crew_provider.api.asks import APPROVE, DENY
from airflow_crew_provider.compat.arguments import QuestionArguments
from airflow_crew_provider.compat.retries import at_least
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.links.crew import CrewExecutionLink
from airflow_crew_provider.models import Json
from airflow_crew_provider.questions import Draft
from airflow_crew_provider.review import people
from airflow_crew_provider.review.airflow_form import form_params, own_params
from airflow_crew_provider.review.decision import ReviewPolicy, ReviewRules, begin_review, end_review
from airflow_crew_provider.review.people import REVISE
from airflow_crew_provider.review.question import QuestionTask
from airflow_crew_provider.task.drive import drive
from airflow_crew_provider.task.store import record_of
from airflow_crew_provider.wait.outcomes import ends_in_a_sentence
from airflow_crew_provider.wait.task import push_execution_of
from airflow_crew_provider.wait.watch import COMPLETED


class CrewReviewOperator(QuestionTask):
    """Show a draft or an agent's question to a person and return the review, without holding a worker slot meanwhile.

    A completed record needs no review: the task returns it, and `CrewResumeOperator` passes it on.

    It also accepts `HITLOperator` arguments such as ``notifiers``. ``execution_timeout`` limits this task's own
    work, not the time the person takes.

    :param pending: the record of an execution that is waiting for a person (templated)
    :param subject: the headline; by default the crew's task, its agent and the round (templated)
    :param body: Markdown to show instead of the generated page (templated)
    :param previous: the previous round's review, shown along with the changes to the draft since then (templated)
    :param round_number: this round's number, starting at 1
    :param max_rounds: the maximum number of rounds; a revision request in the last one fails the task
    :param response_timeout: how long to wait for the person, in seconds or as a timedelta; None for no deadline
    :param assigned_users: the users who may answer, as ids or as dicts with ``id`` and ``name``; None for everybody
    :param on_timeout: what to do at the deadline: ``fail``, ``{"revise": "text"}``, or ``approve``
    :param on_tool_timeout: the same for a tool call awaiting approval: ``deny``, ``fail``, or ``approve``
    :param options: labels for the two buttons, the approving one first; a Flow's outcomes replace them
    :param escalate: pairs of a time (seconds or a timedelta) and one or more users or notifiers: if nobody has answered
        by then, the notifiers are called, and the users may also answer
    :param approvals: how many different people must approve; a revision request from any of them takes effect at once
    :param auto_approve: a function that takes the pending record of a draft; if it returns a non-empty string, the
        draft is approved at once for that reason; otherwise the person is asked
    :param allow_edit: let the person edit the draft in the form; an approval then sends the edited text
    :param skip_completed: given a completed record, skip this task and those downstream instead of passing it on
    :param output_schema: the schema of the output; the form shows a draft's violations
    :param on_schema_mismatch: if a draft has violations, ``fail`` only shows them, and ``revise`` sends the draft back
        once before the person is asked
    :param crew_conn_id: the connection of type ``crew``, for the link to the console (templated)
    """

    template_fields: Sequence[str] = ("pending", "subject", "body", "previous", "crew_conn_id")
    fields_with_records = ("pending", "previous")
    template_fields_renderers: ClassVar[dict[str, str]] = {"pending": "json", "previous": "json", "body": "md"}
    operator_extra_links = (CrewExecutionLink(),)
    approvals = 1  # the default, by which a kickoff recognizes a mapped review

    def __init__(
        self,
        *,
        pending: Json | str | XComArg,
        subject: str | None = None,
        body: str | None = None,
        previous: Json | str | XComArg | None = None,
        round_number: int | None = None,
        max_rounds: int | None = None,
        response_timeout: float | timedelta | None = None,
        assigned_users: str | Json | Sequence[str | Json] | None = None,
        on_timeout: str | Json = "fail",
        on_tool_timeout: str = DENY,
        options: Sequence[str] = (APPROVE, REVISE),
        escalate: Sequence[tuple[float | timedelta, Any]] = (),
        approvals: int = 1,
        auto_approve: Callable[[Json], Any] | None = None,
        allow_edit: bool = False,
        skip_completed: bool = False,
        output_schema: Json | str | type | None = None,
        on_schema_mismatch: str = "fail",
        crew_conn_id: str = CrewHook.default_conn_name,
        **kwargs: Unpack[QuestionArguments],
    ) -> None:
        arguments: dict[str, Any] = {**kwargs}
        if "defaults" in arguments and arguments["defaults"] in (options[0], [options[0]]):  # named as in HITLOperator
            on_timeout = arguments.pop("defaults") and APPROVE
        policy = ReviewPolicy.of(
            options=options,
            on_timeout=on_timeout,
            on_tool_timeout=on_tool_timeout,
            response_timeout=response_timeout,
            assigned_users=assigned_users,
            escalate=escalate,
            approvals=approvals,
            auto_approve=auto_approve,
            allow_edit=allow_edit,
            output_schema=output_schema,
            on_schema_mismatch=on_schema_mismatch,
        )
        people.refuse_foreign(arguments)
        # A retry asks again after a crash; a person's decision or a missed deadline ends the task for good.
        arguments = {**at_least(arguments.get("default_args")), **arguments}
        super().__init__(subject="" if subject is None else subject, body=body, **policy.form_arguments, **arguments)
        # Set here, because Airflow passes the DAG's params, if any, to `params`.
        self.params = form_params(own_params(self), Draft.hint)
        self.policy = policy
        self.pending: Any = pending
        self.previous: Any = previous
        self.previous_task = task_of_review(previous)
        self.round_number = people.counted(round_number, "round_number")
        self.max_rounds = people.counted(max_rounds, "max_rounds")
        self.on_timeout = on_timeout
        self.on_tool_timeout = on_tool_timeout
        self.auto_approve = auto_approve
        self.approvals = approvals
        self.allow_edit = allow_edit
        self.output_schema = output_schema
        self.on_schema_mismatch = on_schema_mismatch
        self.skip_completed = skip_completed
        self.crew_conn_id = crew_conn_id

    def rules(self) -> ReviewRules:
        """Return the rules for the review, from the task's rendered arguments."""
        upstream, whole = sorted(self.upstream_task_ids), "the record passed to this task"
        if len(upstream) == 1:
            whole = f"the XCom `return_value` of task `{upstream[0]}`"
        return ReviewRules.by_task(
            self,
            self.policy,
            pending=self.pending,
            previous=self.previous,
            previous_task=self.previous_task,
            round_number=self.round_number,
            max_rounds=self.max_rounds,
            crew_conn_id=self.crew_conn_id,
            whole=whole,
        )

    @ends_in_a_sentence
    def execute(self, context: Any) -> Any:
        """Ask the person; a completed record needs no review and is returned."""
        rules = self.rules()
        pending = rules.record()
        if pending["state"] == COMPLETED:
            return self._pass_on(pending)
        push_execution_of(context, self.crew_conn_id, pending, self.log)
        stored = record_of(context)
        return drive(begin_review(stored, self, context, rules, pending), stored)

    def execute_complete(
        self, context: Any, event: Json, until: str | None = None, shown: Json | None = None, step: bool = False
    ) -> Json:
        """Return the review, or ask again if the answer is invalid."""
        stored = record_of(context)
        return drive(end_review(stored, self, context, self.rules(), event, until, shown, step=step), stored)

    def _pass_on(self, completed: Json) -> Json:
        message = f"Execution {completed.get('execution_id')} has completed; there is nothing to review"
        if self.skip_completed:
            raise AirflowSkipException(message)
        self.log.info("%s. Its record is passed on", message)
        return completed


def task_of_review(value: Any) -> str | None:
    """Return the id of the review task that an XCom comes from; None for anything else."""
    task = value.operator if isinstance(value, XComArg) and hasattr(value, "operator") else None
    return task.task_id if isinstance(task, CrewReviewOperator) else None
