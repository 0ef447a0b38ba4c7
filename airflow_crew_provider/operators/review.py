"""A person reads the draft in Airflow and approves it or asks for a revision. Needs Airflow 3.1 or newer."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import AirflowSkipException, XComArg

from airflow_crew_provider.compat import human_in_the_loop
from airflow_crew_provider.compat.human_in_the_loop import HITLOperator, form_params
from airflow_crew_provider.core.feedback import record_or_none
from airflow_crew_provider.core.outcome import COMPLETED
from airflow_crew_provider.core.refused_answer import code, notice, problem_with
from airflow_crew_provider.core.review_policy import (
    deadline_after,
    deadline_policy,
    refuse_foreign,
    response_time,
    reviewers,
)
from airflow_crew_provider.core.stored_names import FEEDBACK_FIELD, REVIEW_KEY
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.links.crew import CrewExecutionLink
from airflow_crew_provider.models import Json
from airflow_crew_provider.operators.console_link import link_to_console
from airflow_crew_provider.operators.flow_question import at_deadline, chosen, feedback_hint, outcomes_of
from airflow_crew_provider.operators.review_answer import (
    identity_of,
    in_one_line,
    no_answer,
    no_round_left,
    pending_record,
    review_of,
    shown_draft,
    whole_draft,
)
from airflow_crew_provider.operators.review_form import ReviewForm
from airflow_crew_provider.tasks.outcomes import CrewTaskFailed, fail_task
from airflow_crew_provider.tasks.question_record import QuestionRecord, question_of

APPROVE, REVISE = "approve", "revise"


class CrewReviewOperator(HITLOperator):
    """Show a draft to a person in Airflow and return the review; no worker slot is held meanwhile.

    A completed record needs no review: the task returns it, and `CrewResumeOperator` passes it on.

    The arguments of `HITLOperator` hold too: ``notifiers``, ``assigned_users``. ``execution_timeout`` is for this
    task's own work and never for the person.

    :param pending: the record of an execution that waits for a person (templated)
    :param subject: the headline; by default the crew's task, its agent and the round (templated)
    :param body: what is shown, Markdown, instead of the page with the draft (templated)
    :param previous: the review of the round before, which is shown too (templated)
    :param round_number: the number of this round, from 1
    :param max_rounds: how many there are; in the last one a revision fails the task
    :param response_timeout: how long to wait for the person, in seconds or as a timedelta; None for no end
    :param assigned_users: who may answer: ids of users, or dicts with ``id`` and ``name``; None for everybody
    :param on_timeout: at that deadline: ``fail``, ``{"revise": "text"}``, or ``approve``
    :param options: the words to approve and to revise, in this order; a Flow's outcomes take their place
    :param skip_completed: with a completed record, skip this task and those after it instead of passing it on
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
        skip_completed: bool = False,
        crew_conn_id: str = CrewHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("defaults") in (options[0], [options[0]]):  # in HITLOperator's own words
            on_timeout = kwargs.pop("defaults") and APPROVE
        response_timeout = response_time(response_timeout)
        policy = deadline_policy(on_timeout, response_timeout)
        refuse_foreign(options, kwargs)
        # A retry asks again after a crash; what a person has decided, or left undecided, ends the task for good.
        kwargs.setdefault("retries", 2)
        kwargs.setdefault("retry_delay", timedelta(seconds=10))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that execution_timeout becomes the person's: it does not, see below
            super().__init__(
                subject=subject or "",
                body=body,
                options=list(options),
                defaults=[options[0] if policy == APPROVE else options[1]] if policy != "fail" else None,
                response_timeout=response_timeout,
                assigned_users=reviewers(assigned_users),  # type: ignore[arg-type]
                **kwargs,
            )
        if response_timeout is None and self.response_timeout is not None:
            self.execution_timeout, self.response_timeout = self.response_timeout, None
        # Set here, since Airflow hands the DAG's own params to `params` where the DAG has some.
        self.params = form_params(self, feedback_hint({}))
        self.words = list(options)
        self.pending: Any = pending
        self.previous: Any = previous
        self.round_number = round_number
        self.max_rounds = max_rounds
        self.on_timeout = policy
        self.skip_completed = skip_completed
        self.crew_conn_id = crew_conn_id

    def execute(self, context: Any) -> Any:
        """Ask the person; a completed record needs no review and is returned."""
        pending = self._record()
        if pending["state"] == COMPLETED:
            return self._pass_on(pending)
        link_to_console(context, self.crew_conn_id, pending, self.log)
        return self._go_on(context, shown_draft(pending), looked=False)

    def resume_execution(self, next_method: str, next_kwargs: Any, context: Any) -> Any:
        """Go on where a trigger has found no answer, or no question."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (human_in_the_loop.TaskDeferralError, human_in_the_loop.TaskDeferralTimeout) as error:
            in_doubt = question_of(context, self).in_doubt
            if not in_doubt and isinstance(error, human_in_the_loop.TaskDeferralError):
                raise
        return self._go_on(context, shown_draft(self._record()), looked=True)

    def execute_complete(self, context: Any, event: Json, until: str | None = None, shown: Json | None = None) -> Json:
        """Return the review; an answer that cannot be one is not taken, and the person is asked again."""
        # Release 0.1 parked without what was shown.
        shown = shown or shown_draft(self._record())
        self._offer(shown)
        if event.get("error_type") == "timeout":
            self._fail_at_deadline(context, shown)
        if event.get("error_type") == "unknown":
            self.process_trigger_event_error(event)
        in_time = self.on_timeout == "fail" or not human_in_the_loop.timed_out(event)
        problem = self._problem(context, event, shown) if in_time else None
        if problem:
            who = human_in_the_loop.name_of(event)
            self.log.warning("The answer of %s is not accepted because %s. Asking again", who, problem)
            self._ask(context, shown, until, notice(who, problem))
        review = self._review(shown, event, in_time=in_time)
        self._write_down(context, shown, review)
        question_of(context, self).over()
        if review["is_approve"] is False and self._form(shown, None).needs_another_round:
            self._fail_without_round(context, review)
        return review

    # --- asking ---

    def _go_on(self, context: Any, shown: Json, *, looked: bool) -> NoReturn:
        """Ask, unless an earlier try has: then look for an answer that was given since, and wait for one after that."""
        question = question_of(context, self)
        self._offer(shown)
        until = question.until or deadline_after(self.response_timeout)
        if not question.is_open_for(identity_of(shown)) or (looked and question.in_doubt):
            self._ask(context, shown, until)
        question.asked(identity_of(shown), until, doubt=question.in_doubt)
        if looked:
            self._wait(context, question, shown, until)
        self.log.info("An earlier try has shown this draft; an answer that was given since then counts")
        human_in_the_loop.find_answer(self, context, until, {"until": until, "shown": shown})

    def _offer(self, shown: Json) -> None:
        """Let the person choose from the Flow's outcomes, or approve and revise."""
        self.options = outcomes_of(shown) or self.words
        self.params = form_params(self, feedback_hint(shown))
        try:
            self.defaults = at_deadline(shown, self.words, self.on_timeout)
        except CrewInvalidInput as error:
            fail_task(error)

    def _ask(self, context: Any, shown: Json, until: str | None, refused: str = "") -> NoReturn:
        """Put the question and give the worker slot back."""
        form = self._form(shown, until, refused)
        self.subject = self.subject or form.subject
        given = self.body
        self.body = "\n\n".join(part for part in (form.notice, given) if part) if given else form.body
        signs = [given] if given else [form.mark, shown["execution_id"]]
        (question := question_of(context, self)).asking(identity_of(shown), until)
        if human_in_the_loop.shows_another_draft(self, context, signs):
            raise CrewTaskFailed(
                "Airflow still holds the draft of an earlier run of this task and cannot show the new one, so nobody "
                "was asked and nothing was sent. The execution stays paused at the service; start a new DAG run "
                "instead of clearing this one, or answer with CrewResumeOperator"
            )
        question.asked(identity_of(shown), until, again=bool(refused))
        self._wait(context, question, shown, until)

    def _wait(self, context: Any, question: QuestionRecord, shown: Json, until: str | None) -> NoReturn:
        question.notify(self.notifiers, context)
        left = max(datetime.fromisoformat(until) - datetime.now(UTC), timedelta(seconds=1)) if until else None
        human_in_the_loop.park(self, context, left, {"until": until, "shown": shown})

    def _form(self, shown: Json, until: str | None, refused: str = "") -> ReviewForm:
        upstream = sorted(self.upstream_task_ids)
        return ReviewForm(
            pending=shown,
            approve=self.words[0],
            revise=self.words[1],
            round_number=self.round_number,
            max_rounds=self.max_rounds,
            previous=record_or_none(self.previous),
            until=datetime.fromisoformat(until) if until else None,
            on_timeout=self.on_timeout,
            refused=refused,
            **({"whole": f"the XCom `return_value` of task `{upstream[0]}`"} if len(upstream) == 1 else {}),
        )

    def _record(self) -> Json:
        try:
            return pending_record(self.pending)
        except CrewInvalidInput as error:
            fail_task(error)

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
        problem = problem_with(event, self.options, list(self.params), revise)
        if problem:
            return problem
        try:
            super().execute_complete(context, event)
        except (ValueError, human_in_the_loop.ParamValidationError) as error:
            return f"it does not fit the form: {code(error)}"
        return None

    def _review(self, shown: Json, event: Json, *, in_time: bool) -> Json:
        feedback = (event.get("params_input") or {}).get(FEEDBACK_FIELD) or ""
        if not in_time and isinstance(self.on_timeout, dict):
            feedback = self.on_timeout["revise"]
        return review_of(
            shown,
            event,
            choice=chosen(shown, event["chosen_options"][0], self.words),
            feedback=feedback,
            reviewer=event.get("responded_by_user") if in_time else None,
        )

    def _write_down(self, context: Any, shown: Json, review: Json) -> None:
        """Store the decision with the draft that it was made on, and log it in one line."""
        rounds = {"round": self.round_number, "max_rounds": self.max_rounds}
        decision = {**review, **rounds, "output": whole_draft(record_or_none(self.pending), shown)}
        context["ti"].xcom_push(key=REVIEW_KEY, value=decision)
        self.log.info(in_one_line(decision))

    def _fail_at_deadline(self, context: Any, shown: Json) -> NoReturn:
        question_of(context, self).over()
        raise CrewTaskFailed(no_answer(shown, self.response_timeout))

    def _fail_without_round(self, context: Any, review: Json) -> NoReturn:
        """End a last round that wants another one; the decision stays on record."""
        context["ti"].xcom_push(key="return_value", value=review)
        raise CrewTaskFailed(no_round_left(review, self.max_rounds))
