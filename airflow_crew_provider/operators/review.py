"""A person reads the draft in Airflow and approves it or asks for a revision. Needs Airflow 3.1 or newer."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import AirflowSkipException, XComArg

from airflow_crew_provider.compat import human_in_the_loop, metrics
from airflow_crew_provider.compat.answer_values import unreadable
from airflow_crew_provider.compat.human_in_the_loop import form_params
from airflow_crew_provider.core.escalation import Escalation
from airflow_crew_provider.core.outcome import COMPLETED
from airflow_crew_provider.core.refused_answer import code, notice, problem_with
from airflow_crew_provider.core.review_policy import (
    counted,
    deadline_policy,
    needed_approvals,
    refuse_foreign,
    response_time,
    reviewers,
)
from airflow_crew_provider.core.stored_names import FEEDBACK_FIELD, REFUSED_KEY
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.links.crew import CrewExecutionLink
from airflow_crew_provider.models import Json
from airflow_crew_provider.operators.console_link import link_to_console
from airflow_crew_provider.operators.draft_edit import edited_text, read_edit, said_of, with_edit
from airflow_crew_provider.operators.flow_question import chosen, feedback_hint, outcomes_of
from airflow_crew_provider.operators.review_answer import (
    identity_of,
    no_answer,
    no_round_left,
    review_of,
    shown_draft,
)
from airflow_crew_provider.operators.review_people import ReviewPeople
from airflow_crew_provider.operators.schema_revision import SchemaRevision, refuse_bad_policy
from airflow_crew_provider.tasks.outcomes import CrewTaskFailed
from airflow_crew_provider.tasks.question_record import question_of
from airflow_crew_provider.tasks.retries import at_least

APPROVE, REVISE = "approve", "revise"


class CrewReviewOperator(ReviewPeople, SchemaRevision):
    """Show a draft to a person in Airflow and return the review; no worker slot is held meanwhile.

    A completed record needs no review: the task returns it, and `CrewResumeOperator` passes it on.

    The arguments of `HITLOperator` hold too: ``notifiers``, ``assigned_users``. ``execution_timeout`` is for this
    task's own work and never for the person.

    :param pending: the record of an execution that waits for a person (templated)
    :param subject: the headline; by default the crew's task, its agent and the round (templated)
    :param body: what is shown, Markdown, instead of the page with the draft (templated)
    :param previous: the review of the round before, which is shown too, with what has changed in the draft (templated)
    :param round_number: the number of this round, from 1
    :param max_rounds: how many there are; in the last one a revision fails the task
    :param response_timeout: how long to wait for the person, in seconds or as a timedelta; None for no end
    :param assigned_users: who may answer: ids of users, or dicts with ``id`` and ``name``; None for everybody
    :param on_timeout: at that deadline: ``fail``, ``{"revise": "text"}``, or ``approve``
    :param options: the words to approve and to revise, in this order; a Flow's outcomes take their place
    :param escalate: pairs of a time (seconds or a timedelta) and users or notifiers, one or several: when nobody has
        answered by then, the notifiers are called, and the users may answer too
    :param approvals: how many different people must approve; a revision by any of them counts at once
    :param allow_edit: let the person edit the draft in the form; an approval then brings the edited text
    :param skip_completed: with a completed record, skip this task and those after it instead of passing it on
    :param output_schema: what the output must match; how a draft violates it is shown
    :param on_schema_mismatch: ``fail``: only show it; ``revise``: send such a draft back once, before asking
    :param crew_conn_id: the connection of type ``crew``, for the link to the console (templated)
    """

    template_fields: Sequence[str] = ("pending", "subject", "body", "previous", "crew_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"pending": "json", "previous": "json", "body": "md"}
    operator_extra_links = (CrewExecutionLink(),)
    ui_color = "#f8e8c4"

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
        options: Sequence[str] = (APPROVE, REVISE),
        escalate: Sequence[tuple[float | timedelta, Any]] = (),
        approvals: int = 1,
        allow_edit: bool = False,
        skip_completed: bool = False,
        output_schema: Json | str | type | None = None,
        on_schema_mismatch: str = "fail",
        crew_conn_id: str = CrewHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("defaults") in (options[0], [options[0]]):  # in HITLOperator's own words
            on_timeout = kwargs.pop("defaults") and APPROVE
        response_timeout = response_time(response_timeout)
        policy = deadline_policy(on_timeout, response_timeout)
        escalation = Escalation.of(escalate, reviewers(assigned_users), response_timeout)
        refuse_foreign(options, kwargs)
        refuse_bad_policy(output_schema, on_schema_mismatch)
        # A retry asks again after a crash; what a person has decided, or left undecided, ends the task for good.
        kwargs = {**at_least(kwargs.get("default_args"), timedelta(seconds=10)), **kwargs}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that execution_timeout becomes the person's: it does not, see below
            super().__init__(
                subject=subject or "",
                body=body,
                options=list(options),
                defaults=[options[0] if policy == APPROVE else options[1]] if policy != "fail" else None,
                response_timeout=response_timeout,
                assigned_users=escalation.users,  # type: ignore[arg-type]
                **kwargs,
            )
        self._keep_timeouts_apart(response_timeout)
        # Set here, since Airflow hands the DAG's own params to `params` where the DAG has some.
        self.params = form_params(self, feedback_hint({}))
        self.words = list(options)
        self.pending: Any = pending
        self.previous: Any = previous
        self.previous_task = task_of_review(previous)
        self.round_number = counted(round_number, "round_number")
        self.max_rounds = counted(max_rounds, "max_rounds")
        self.on_timeout = policy
        self.escalation = escalation
        self.approvals = needed_approvals(approvals, escalation.users, allow_edit=allow_edit)
        self.allow_edit = allow_edit
        self.skip_completed = skip_completed
        self.output_schema = output_schema
        self.on_schema_mismatch = on_schema_mismatch
        self.crew_conn_id = crew_conn_id

    def execute(self, context: Any) -> Any:
        """Ask the person; a completed record needs no review and is returned."""
        pending = self._record()
        if pending["state"] == COMPLETED:
            return self._pass_on(pending)
        link_to_console(context, self.crew_conn_id, pending, self.log)
        shown = self._shown(pending)
        return self._by_schema(context, shown) or self._go_on(context, shown)

    def _shown_now(self) -> Json:
        return self._shown(self._record())

    def execute_complete(
        self, context: Any, event: Json, until: str | None = None, shown: Json | None = None, step: bool = False
    ) -> Json:
        """Return the review; an answer that cannot be one is not taken, and the person is asked again."""
        # Release 0.1 parked without what was shown.
        shown = shown or shown_draft(self._record())
        self._hold_to(shown)
        if event.get("error_type") == "timeout":
            if step:
                self._look_again(context, shown, until)
            event = self._deadline(context, shown)
        if event.get("error_type") == "unknown":
            self.process_trigger_event_error(event)
        self._refuse_changed(shown)
        if self.allow_edit:
            event = read_edit(shown, event)
        in_time = self.on_timeout == "fail" or not human_in_the_loop.timed_out(event)
        if not in_time and self.on_timeout == APPROVE and question_of(context, self).was_rejected(identity_of(shown)):
            self._refuse_late_approval(context, shown)
        problem = self._problem(context, event, shown) if in_time else None
        if problem:
            who = human_in_the_loop.name_of(event)
            kept = _keep_refused(context, event)
            if event.get("chosen_options") not in (None, [], self.choice_at_deadline) and self.on_timeout == APPROVE:
                question_of(context, self).rejected()
            self.log.warning("The answer of %s is not accepted because %s.%s Asking again", who, problem, kept)
            self._ask(context, shown, until, notice(who, problem))
        review = {**self._review(shown, event, in_time=in_time), **self._sent_back_before(context, shown)}
        if review["is_approve"] and in_time and self.approvals > 1:
            review = self._with_others(context, shown, until, review)
        metrics.reviewed(self.crew_conn_id, getattr(context["ti"], "start_date", None), event["responded_at"])
        self._write_down(context, shown, review)
        question_of(context, self).over()
        if review["is_approve"] is False and self._form(shown, None).needs_another_round:
            self._fail_without_round(context, review)
        return review

    def _pass_on(self, completed: Json) -> Json:
        said = f"Execution {completed.get('execution_id')} is completed; there is nothing to review"
        if self.skip_completed:
            raise AirflowSkipException(said)
        self.log.info("%s. Its record is passed on", said)
        return completed

    # --- deciding ---

    def _problem(self, context: Any, event: Json, shown: Json) -> str | None:
        """Say why an event is no answer; None if it is one."""
        revise = None if outcomes_of(shown) else self.words[1]
        problem = problem_with(event, self.options, list(self.params), revise) or self._not_counted(
            context, event, shown
        )
        if problem:
            return problem
        fields = copy.deepcopy(self.params)
        try:
            super().execute_complete(context, event)
        except (ValueError, human_in_the_loop.ParamValidationError) as error:
            return f"it does not fit the form: {code(error)}"
        finally:
            self.params = fields  # which Airflow fills with the answer; the next question must be the same
        return self._problem_with_edit(shown, event) if self.allow_edit else None

    def _review(self, shown: Json, event: Json, *, in_time: bool) -> Json:
        feedback = (event.get("params_input") or {}).get(FEEDBACK_FIELD) or ""
        if not in_time and isinstance(self.on_timeout, dict):
            feedback = self.on_timeout["revise"]
        edited = edited_text(shown, event) if self.allow_edit and in_time else None
        review = review_of(
            shown,
            event,
            choice=chosen(shown, event["chosen_options"][0], self.words),
            feedback=feedback,
            reviewer=event.get("responded_by_user") if in_time else None,
        )
        if edited is None:
            return review
        review = with_edit(review, shown, edited)
        self.log.info(said_of(review, edited))
        return review

    def _deadline(self, context: Any, shown: Json) -> Json:
        """Return what the deadline decides where Airflow was not told, or fail."""
        if self.choice_at_deadline is None or not self.escalation.steps:
            question_of(context, self).over()
            raise CrewTaskFailed(no_answer(shown, self.response_timeout))
        decided = {"chosen_options": self.choice_at_deadline, "params_input": {}, "responded_at": datetime.now(UTC)}
        return {**decided, "responded_by_user": None, "timedout": True}

    def _refuse_late_approval(self, context: Any, shown: Json) -> NoReturn:
        question_of(context, self).over()
        raise CrewTaskFailed(
            "Somebody has rejected this draft in an answer that was not accepted, so the deadline does not approve "
            f"it. Nothing was sent: execution {shown['execution_id']} stays paused at the service. Clear this task to "
            "ask again, or answer with CrewResumeOperator"
        )

    def _fail_without_round(self, context: Any, review: Json) -> NoReturn:
        """End a last round that wants another one; the decision stays on record."""
        context["ti"].xcom_push(key="return_value", value=review)
        raise CrewTaskFailed(no_round_left(review, self.max_rounds))


def _keep_refused(context: Any, event: Json) -> str:
    """Keep what an answer said, since asking again removes it from Airflow; return what the log says about that."""
    if not event.get("params_input") or unreadable(event["params_input"]):
        return ""
    context["ti"].xcom_push(key=REFUSED_KEY, value=event["params_input"])
    return f" What it said is kept in XCom {REFUSED_KEY}."


def task_of_review(given: Any) -> str | None:
    """Return the id of the review task whose XCom is given; None for anything else."""
    task = given.operator if isinstance(given, XComArg) and hasattr(given, "operator") else None
    return task.task_id if isinstance(task, CrewReviewOperator) else None
