"""Lets a person decide whether the output of a costly execution may be used. Needs Airflow 3.1 or newer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowSkipException, XComArg

from airflow_crew_provider.compat import human_in_the_loop
from airflow_crew_provider.core.budget import ASK, FAIL, IGNORE, Budget, cost_usd, refuse_bad_choice, refuse_bad_limit
from airflow_crew_provider.core.escalation import Escalation
from airflow_crew_provider.core.feedback import record_of, record_or_none
from airflow_crew_provider.core.outcome import COMPLETED
from airflow_crew_provider.core.refused_answer import code, notice, problem_with
from airflow_crew_provider.core.review_policy import response_time, reviewers
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Json, output_sha256, total_tokens
from airflow_crew_provider.operators.question import Question
from airflow_crew_provider.operators.review_answer import identity_of
from airflow_crew_provider.tasks.outcomes import CrewTaskFailed, fail_task
from airflow_crew_provider.tasks.output_rules import REPORT_USAGE, still_there
from airflow_crew_provider.tasks.question_record import question_of
from airflow_crew_provider.tasks.retries import at_least

APPROVE, REJECT = "approve", "reject"


@dataclass(frozen=True)
class UsageForm:
    """The question about one execution.

    :param shown: what of the record is shown
    :param allowed: what the DAG allows without a question
    :param refused: why the last answer was not accepted
    """

    shown: Json
    allowed: Budget
    refused: str

    @property
    def subject(self) -> str:
        """The headline."""
        used = " and ".join(self._used)
        if self.passed:
            return f"A crew used {used}, {self._limits} are allowed"
        return f"It is not known what a crew used, {self._limits} are allowed"

    @property
    def body(self) -> str:
        """Markdown."""
        facts = (
            f"Execution {code(self.shown['execution_id'])} is completed, output {code(self.mark)}. {self._usage}, "
            f"and this DAG allows {self._limits} without a question."
        )
        choices = (
            f"* **{APPROVE}**: its output goes to the tasks that follow.\n"
            f"* **{REJECT}**: it does not; the output stays at the crew service. What it used is spent either way."
        )
        return "\n\n".join(part for part in (self.notice, facts, choices) if part)

    @property
    def passed(self) -> bool:
        """Whether a limit is known to be passed."""
        return bool(self.allowed.passed_by(self.shown))

    @property
    def _usage(self) -> str:
        used = [f"It used **{' and '.join(self._used)}**"] if self._used else []
        unknown = self.allowed.unknown_in(self.shown)
        return "; ".join(used + ([f"The service does not report {unknown}"] if unknown else []))

    @property
    def _used(self) -> list[str]:
        return _amounts(total_tokens(self.shown), cost_usd(self.shown) if self.allowed.max_cost is not None else None)

    @property
    def _limits(self) -> str:
        limits = _amounts(self.allowed.max_total_tokens, self.allowed.max_cost)
        return limits[0].removesuffix(" tokens") if self.passed and len(limits) == 1 else " and ".join(limits)

    @property
    def notice(self) -> str:
        """What became of the last answer."""
        return f"**{self.refused}**" if self.refused else ""

    @property
    def mark(self) -> str:
        """The part of the output's hash that is shown."""
        return str(self.shown["output_sha256"])[:16]


class CrewUsageApprovalOperator(Question):
    """Return a completed record; ask a person first if its execution has used more than the DAG allows.

    Approved, the record goes on as it is. Rejected, this task and so those after it are skipped, or it fails. Nothing
    is sent to the crew service. The arguments of `HITLOperator` hold too: ``notifiers``, ``defaults``.

    :param completed: the record of a completed execution (templated)
    :param max_total_tokens: how many tokens it may have used without a question; this or `max_cost` is needed
    :param max_cost: how much it may have cost without a question, in USD
    :param on_unknown_usage: when the service does not report what a limit is compared with: ``ask`` the person,
        ``fail``, or ``ignore`` it
    :param response_timeout: how long to wait for the person, in seconds or as a timedelta; None for no end. Then the
        task fails, or ``defaults`` decides
    :param assigned_users: who may answer: ids of users, or dicts with ``id`` and ``name``; None for everybody
    :param fail_on_reject: fail instead of skipping
    """

    template_fields: Sequence[str] = ("completed",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"completed": "json"}
    ui_color = "#f8e8c4"
    holds_another = (
        "Airflow still holds the question of an earlier run of this task, about another execution, and cannot show the "
        "new one, so nobody was asked. Start a new DAG run instead of clearing this one"
    )

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
        **kwargs: Any,
    ) -> None:
        if max_cost is None:
            refuse_bad_limit(max_total_tokens)
        refuse_bad_choice(on_unknown_usage, (ASK, FAIL, IGNORE))
        Budget(max_total_tokens, max_cost)  # refuses a bad limit when the DAG file is parsed
        timeout, users = response_time(response_timeout), reviewers(assigned_users)
        # A retry looks for the answer again; what a person has decided ends the task for good.
        kwargs = {**at_least(kwargs.get("default_args"), timedelta(seconds=10)), **kwargs}
        if kwargs.pop("multiple", None):
            raise ValueError("multiple cannot be given: a person approves or rejects")
        super().__init__(
            subject="",
            options=[APPROVE, REJECT],
            response_timeout=timeout,
            assigned_users=users,  # type: ignore[arg-type]
            **kwargs,
        )
        self._keep_timeouts_apart(timeout)
        self.params = human_in_the_loop.no_params()
        self.completed: Any = completed
        self.max_total_tokens = max_total_tokens
        self.max_cost = max_cost
        self.on_unknown_usage = on_unknown_usage
        self.fail_on_reject = fail_on_reject
        self.escalation = Escalation.of((), users, timeout)

    @property
    def budget(self) -> Budget:
        """What an execution may have used without a question."""
        return Budget(self.max_total_tokens, self.max_cost)

    def execute(self, context: Any) -> Json:
        """Return the record, or wait for a person."""
        record = self._record()
        if self._needs_a_person(record):
            self._go_on(context, self._shown_now())
        used = " and ".join(_amounts(total_tokens(record.get("usage")), cost_usd(record.get("usage"))))
        said = f"used {used}" if used else "reports no usage"
        self.log.info("Execution %s %s; nobody is asked", record.get("execution_id"), said)
        return record

    def execute_complete(
        self, context: Any, event: Json, until: str | None = None, shown: Json | None = None, **_: Any
    ) -> Json:
        """Return the record that was approved."""
        assert shown is not None
        if event.get("error_type") == "timeout":
            question_of(context, self).over()
            raise CrewTaskFailed(
                f"Nobody has answered within {self.response_timeout} whether the output of execution "
                f"{shown['execution_id']} may be used, so it does not go on; it stays at the service"
            )
        if event.get("error_type") == "unknown":
            self.process_trigger_event_error(event)
        problem = problem_with(event, self.options, (), None)
        who = human_in_the_loop.name_of(event)
        if problem:
            self.log.warning("The answer of %s is not accepted because %s. Asking again", who, problem)
            self._ask(context, shown, until, notice(who, problem))
        record = self._approved(shown) if event["chosen_options"] == [APPROVE] else None
        question_of(context, self).over()
        said = f"{who} has chosen to {event['chosen_options'][0]} the output of execution {shown['execution_id']}"
        if record is None:
            raise (CrewTaskFailed if self.fail_on_reject else AirflowSkipException)(said)
        self.log.info("%s", said)
        return record

    def _needs_a_person(self, record: Json) -> bool:
        unknown = self.budget.unknown_in(record.get("usage"))
        if self.budget.passed_by(record.get("usage")):
            return True
        if unknown and self.on_unknown_usage == FAIL:
            said = f"The service does not report of execution {record.get('execution_id')} {unknown}"
            raise CrewTaskFailed(f"{said}. {REPORT_USAGE}. {still_there()}")
        return bool(unknown) and self.on_unknown_usage == ASK

    def _approved(self, shown: Json) -> Json:
        """Return the record that was asked about."""
        now = record_or_none(self.completed) or {}
        if now and identity_of(_facts(now)) == identity_of(shown):
            return now
        by_now = f"of execution {now.get('execution_id')}" if now else "gone"
        raise CrewTaskFailed(
            f"The output of execution {shown['execution_id']} was approved, and the record that this task is given is "
            f"by now {by_now}: an earlier task was cleared. Nothing goes on; start a new DAG run"
        )

    def _shown_now(self) -> Json:
        return _facts(self._record())

    def _offer(self, shown: Json) -> None:
        """Offer what `__init__` has set."""

    def _form_for(self, context: Any, shown: Json, until: str | None, refused: str, later: list[str]) -> UsageForm:
        return UsageForm(shown, self.budget, refused)

    def _record(self) -> Json:
        try:
            record = record_of(self.completed, "completed")
            if record.get("state") != COMPLETED:
                raise CrewInvalidInput(f"completed is a record in state {record.get('state')!r}, not completed")
        except CrewInvalidInput as error:
            fail_task(error)
        return record


def _facts(record: Json) -> Json:
    ids = {name: str(record.get(name) or "") for name in ("kickoff_id", "execution_id")}
    content = {name: record.get(name) for name in ("output", "output_path")}
    return {
        **ids,
        "crew_task_id": "",
        "output_sha256": output_sha256(content),
        "total_tokens": total_tokens(record.get("usage")),
        "cost_usd": cost_usd(record.get("usage")),
    }


def _amounts(tokens: float | None, cost: float | None) -> list[str]:
    """Write tokens and USD for a person; what is not known is left out."""
    written = [f"{tokens:,} tokens"] if tokens is not None else []
    return written + ([f"{cost:,} USD"] if cost is not None else [])
