"""A person reads the draft in Airflow and approves it or asks for a revision. Needs Airflow 3.1 or newer."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import AirflowSkipException, TaskDeferred, XComArg

try:
    from airflow.providers.standard.operators.hitl import HITLOperator
    from airflow.sdk import Param
    from airflow.sdk.definitions.param import ParamsDict
except Exception as error:  # each version of Airflow before 3.1 fails here in its own way
    raise ImportError(
        "CrewReviewOperator needs Airflow 3.1 or newer, which has human-in-the-loop tasks; "
        "on older versions let a person answer elsewhere and pass the four fields to CrewResumeOperator"
    ) from error

from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.hooks.waits import CrewTaskFailed, fail_task
from airflow_crew_provider.links.crew import CrewExecutionLink, push_link
from airflow_crew_provider.models import Json, output_sha256
from airflow_crew_provider.operators import asking
from airflow_crew_provider.operators.answering import deadline_policy, record_of
from airflow_crew_provider.operators.review_page import Question

APPROVE, REVISE = "approve", "revise"
FEEDBACK = "human_feedback"
# XCom: the review, with the draft that it is about and its round.
DECISION = "crew_decision"


class CrewReviewOperator(HITLOperator):
    """Show a draft to a person in Airflow and return the review; no worker slot is held meanwhile.

    The arguments of `HITLOperator` hold too: ``notifiers``, ``assigned_users``. ``execution_timeout`` is for this
    task's own work and never for the person.

    :param pending: the record of an execution that waits for a person (templated)
    :param subject: the headline; by default the crew's task, its agent and the round (templated)
    :param body: what is shown, Markdown, instead of the page with the draft (templated)
    :param previous: the review of the round before, which is shown too (templated)
    :param round_number: the number of this round, from 1
    :param max_rounds: how many there are; in the last one a revision fails the task
    :param response_timeout: how long to wait for the person, a timedelta; None for no end
    :param on_timeout: at that deadline: ``fail``, ``{"revise": "text"}``, or ``approve``
    :param options: the words to approve and to revise, in this order
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
        response_timeout: timedelta | None = None,
        on_timeout: str | Json = "fail",
        options: Sequence[str] = (APPROVE, REVISE),
        crew_conn_id: str = CrewHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("defaults") in (options[0], [options[0]]):  # in HITLOperator's own words
            on_timeout = kwargs.pop("defaults") and APPROVE
        policy = deadline_policy(on_timeout, response_timeout)
        _refuse_foreign(options, kwargs)
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
                **kwargs,
            )
        if response_timeout is None and self.response_timeout is not None:
            self.execution_timeout, self.response_timeout = self.response_timeout, None
        # Set here, since Airflow hands the DAG's own params to `params` where the DAG has some.
        self.params = ParamsDict({**_own(self.params), FEEDBACK: _feedback_field()})
        self.pending: Any = pending
        self.previous: Any = previous
        self.round_number = round_number
        self.max_rounds = max_rounds
        self.on_timeout = policy
        self.crew_conn_id = crew_conn_id

    def execute(self, context: Any) -> Any:
        """Ask the person; a record that is completed already needs no review."""
        pending = self._record()
        self._link(context, pending)
        self._ask(context, datetime.now(UTC) + self.response_timeout if self.response_timeout else None)

    def execute_complete(self, context: Any, event: Json, until: str | None = None) -> Json:
        """Return the review; an answer that cannot be one is not taken, and the person is asked again."""
        pending = self._record()
        if event.get("error_type") == "timeout":
            self._fail_at_deadline(pending)
        try:
            if event.get("error_type") == "validation":
                raise ValueError(event["error"])
            answer = super().execute_complete(context, event)
            review = self._review(pending, answer, at_deadline=asking.timed_out(event))
        except (ValueError, CrewInvalidInput, asking.ParamValidationError) as error:
            self.log.warning("The answer of %s is not taken: %s. Asking again", asking.name_of(event), error)
            self._ask(context, datetime.fromisoformat(until) if until else None)
        self._write_down(context, pending, review)
        if not review["is_approve"] and self._question(pending, None).is_last:
            self._fail_without_round(context, review)
        return review

    # --- asking ---

    def _ask(self, context: Any, until: datetime | None) -> NoReturn:
        """Put the question and give the worker slot back."""
        question = self._question(self._record(), until)
        self.subject = self.subject or question.subject
        given = self.body
        self.body = given or question.body
        asking.refuse_stale(self, context, [self.body] if given else [question.mark, question.pending["execution_id"]])
        if until:
            self.response_timeout = max(until - datetime.now(UTC), timedelta(seconds=1))
        try:
            super().execute(context)
        except (asking.TaskAwaitingInput, TaskDeferred) as parked:
            parked.kwargs = {"until": until.isoformat() if until else None}
            raise
        raise AssertionError("a question to a person ends in a wait")

    def _question(self, pending: Json, until: datetime | None) -> Question:
        upstream = sorted(self.upstream_task_ids)
        return Question(
            pending=pending,
            approve=self.options[0],
            revise=self.options[1],
            round_number=self.round_number,
            max_rounds=self.max_rounds,
            previous=record_of(self.previous, "previous") if self.previous else None,
            until=until,
            on_timeout=self.on_timeout,
            **({"whole": f"the XCom `return_value` of task `{upstream[0]}`"} if len(upstream) == 1 else {}),
        )

    def _link(self, context: Any, pending: Json) -> None:
        """Link to the console; a connection that is not there or cannot be read costs the link only."""
        try:
            console = CrewHook(self.crew_conn_id).connection.console_url
        except Exception as error:  # each version of Airflow has its own for a connection that is not there
            self.log.info("No link to the execution: %s", error)
            return
        push_link(context, console, pending.get("kickoff_id") or pending["execution_id"], pending["execution_id"])

    def _record(self) -> Json:
        try:
            pending = record_of(self.pending, "pending")
            if pending.get("state") == "completed":
                raise AirflowSkipException(
                    f"Execution {pending.get('execution_id')} is completed; there is nothing to review"
                )
            missing = [name for name in ("execution_id", "crew_task_id", "output") if pending.get(name) is None]
            if missing:
                raise CrewInvalidInput(f"The pending record lacks {', '.join(missing)}; nobody was asked")
        except CrewInvalidInput as error:
            fail_task(error)
        return pending

    # --- deciding ---

    def _review(self, pending: Json, answer: Any, *, at_deadline: bool) -> Json:
        is_approve = answer["chosen_options"] == [self.options[0]]
        feedback = (answer["params_input"] or {}).get(FEEDBACK) or ""
        if at_deadline and isinstance(self.on_timeout, dict):
            feedback = self.on_timeout["revise"]
        if not is_approve and not feedback.strip():
            raise CrewInvalidInput("a revision was asked for without saying what to change")
        user = answer.get("responded_by_user")
        return {
            "execution_id": pending["execution_id"],
            "crew_task_id": pending["crew_task_id"],
            "is_approve": is_approve,
            "human_feedback": feedback,
            "reviewer": {"id": user["id"], "name": user["name"]} if user and not at_deadline else None,
            "decided_at": answer["responded_at"].isoformat(),
            "output_sha256": output_sha256(pending["output"]),
        }

    def _write_down(self, context: Any, pending: Json, review: Json) -> None:
        """Keep the decision with the draft that it was made on, and tell it in one line."""
        rounds = {"round": self.round_number, "max_rounds": self.max_rounds}
        context["ti"].xcom_push(key=DECISION, value={**review, **rounds, "output": pending["output"]})
        said = review["human_feedback"]
        self.log.info(
            "Review: %s by %s at %s, execution %s, task %s, round %s, draft sha256 %s, feedback %s",
            "approved" if review["is_approve"] else "revision",
            (review["reviewer"] or {}).get("id") or "the deadline",
            review["decided_at"],
            review["execution_id"],
            review["crew_task_id"],
            self.round_number or "-",
            review["output_sha256"],
            json.dumps(said if len(said) <= 500 else f"{said[:500]} … ({len(said)} characters)", ensure_ascii=False),
        )

    def _fail_at_deadline(self, pending: Json) -> NoReturn:
        raise CrewTaskFailed(
            f"Nobody answered within {self.response_timeout}. Nothing was sent: execution {pending['execution_id']} "
            "stays paused at the service. Clear this task to ask again, or answer with CrewResumeOperator"
        )

    def _fail_without_round(self, context: Any, review: Json) -> NoReturn:
        """End a last round that wants another one; the decision stays on record."""
        context["ti"].xcom_push(key="return_value", value=review)
        raise CrewTaskFailed(
            f"A revision was asked for in the last of {self.max_rounds} rounds. It was not sent: execution "
            f"{review['execution_id']} stays paused at the service, at task {review['crew_task_id']}. Answer it with "
            "CrewResumeOperator, or raise max_rounds and start a new run"
        )


def _refuse_foreign(options: Sequence[str], kwargs: Json) -> None:
    """Refuse what would approve by accident."""
    if len(options) != 2 or options[0] == options[1]:
        raise ValueError("options are two different words: to approve, and to revise")
    for name in ("defaults", "multiple"):
        if kwargs.pop(name, None):
            raise ValueError(f"{name} cannot be given: say with on_timeout what happens at the deadline")


def _own(params: Any) -> dict[str, Any]:
    """Return the params of this task without those of its DAG."""
    return {
        name: params.get_param(name) for name in params if getattr(params.get_param(name), "source", None) == "task"
    }


def _feedback_field() -> Any:
    field = Param(
        "",
        type=["string", "null"],
        format="multiline",
        title="Feedback",
        description="What to change; needed for a revision",
    )
    field.source = "task"
    return field
