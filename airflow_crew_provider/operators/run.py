"""The operator that runs a crew to completion in one task, including all reviews. Needs Airflow 3.4 or newer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Unpack

from airflow_crew_provider.api.asks import APPROVE, DENY
from airflow_crew_provider.compat.arguments import StartArguments
from airflow_crew_provider.compat.retries import at_least, mapped_at_least
from airflow_crew_provider.compat.version import has_form_per_attempt
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.links.crew import CrewExecutionLink
from airflow_crew_provider.models import Json
from airflow_crew_provider.review.decision import ReviewPolicy
from airflow_crew_provider.review.people import REVISE, count
from airflow_crew_provider.run.steps import RunTask, WholeRun
from airflow_crew_provider.task.waiting import WaitingTask
from airflow_crew_provider.wait.outcomes import ends_in_a_sentence

RETRIES = 5


class CrewRunOperator(RunTask):
    """Run a crew until it completes, and ask a person each time it needs one; return the completed record.

    No worker slot is held while the crew works or a person is asked. The XCom ``crew_decisions`` lists all reviews,
    without drafts.

    It also takes the parameters of `CrewKickoffOperator`, except ``wait_for_completion`` and ``deferrable``. Here,
    ``timeout`` limits the crew's work, not counting the time people take.

    :param crew_conn_id: the connection of type ``crew`` (templated)
    :param max_questions: how many questions the crew may ask
    :param response_timeout: how long to wait for the answer to each question, in seconds or as a timedelta; None for no
        deadline
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
    :param notifiers: notifiers to call for each question
    :param on_schema_mismatch: if a draft does not match ``output_schema``, ``fail`` only shows the violations, and
        ``revise`` sends the draft back once before the person is asked
    """

    hook_class = CrewHook
    operator_extra_links = (CrewExecutionLink(),)
    _run: WholeRun | None = None  # in this process

    def __init__(
        self,
        *,
        crew_conn_id: str = CrewHook.default_conn_name,
        max_questions: int = 100,
        response_timeout: float | timedelta | None = None,
        assigned_users: str | Json | Sequence[str | Json] | None = None,
        on_timeout: str | Json = "fail",
        on_tool_timeout: str = DENY,
        options: Sequence[str] = (APPROVE, REVISE),
        escalate: Sequence[tuple[float | timedelta, Any]] = (),
        approvals: int = 1,
        auto_approve: Callable[[Json], Any] | None = None,
        allow_edit: bool = False,
        notifiers: Any = (),
        on_schema_mismatch: str = "fail",
        **kwargs: Unpack[StartArguments],
    ) -> None:
        if not has_form_per_attempt():
            raise ValueError(
                "CrewRunOperator needs Airflow 3.4 or newer, where a task can ask several questions; on older versions "
                "use crew_with_review"
            )
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
            output_schema=kwargs.get("output_schema"),
            on_schema_mismatch=on_schema_mismatch,
        )
        arguments: dict[str, Any] = {**kwargs}
        arguments = {**at_least(arguments.get("default_args"), RETRIES), **arguments}
        super().__init__(
            crew_conn_id=crew_conn_id,
            subject="",
            notifiers=notifiers,
            **policy.form_arguments,
            **arguments,
        )
        self.policy = policy
        self.max_questions = count(max_questions, "max_questions")
        self.on_timeout = on_timeout
        self.on_tool_timeout = on_tool_timeout
        self.escalate = escalate
        self.approvals = approvals
        self.auto_approve = auto_approve
        self.allow_edit = allow_edit
        self.on_schema_mismatch = on_schema_mismatch

    @classmethod
    def partial(cls, **kwargs: Any) -> Any:
        """Return a mapped task, with the same default retries."""
        return mapped_at_least(super().partial(**kwargs), kwargs, RETRIES)

    @ends_in_a_sentence
    def execute(self, context: Any) -> Any:
        """Start the crew, or reattach to an earlier try's execution."""
        self._run = run = WholeRun(self, context)
        return run.worker.drive(run.start())

    @ends_in_a_sentence
    def resume_execution(self, next_method: str, next_kwargs: Any, context: Any) -> Any:
        """Continue with a person's answer, or with the outcome of the wait."""
        self._run = run = WholeRun(self, context)
        run.recall_after(next_kwargs or {})
        if not run.is_asking(next_kwargs or {}):
            return super().resume_execution(next_method, next_kwargs, context)
        # Airflow's own way, past the one of a wait: a timeout ends a search for an answer, not a wait for the crew.
        resume = partial(super(WaitingTask, self).resume_execution, next_method, next_kwargs, context)
        is_answer = next_method == "execute_complete"
        return run.worker.drive(run.answered(next_kwargs or {}, None if is_answer else resume))

    def execute_complete(self, context: Any, event: Any = None, waiting: Json | None = None) -> Any:
        """Continue in a worker with the trigger's event."""
        assert self._run is not None
        return self._run.worker.drive(self._run.resumed(event, waiting))

    def end_without_trigger(self, context: Any, error: str) -> Any:
        """End the wait after Airflow's own timeout."""
        assert self._run is not None
        return self._run.worker.drive(self._run.without_trigger(error))

    def on_kill(self) -> None:
        """Stop the execution when the task is killed, or reaches its execution timeout, in a worker."""
        self.is_killed = True
        if self._run is not None:
            self._run.own.on_kill()
