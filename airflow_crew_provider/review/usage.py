"""The question of whether the output of a costly execution may be used. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_crew_provider.api.answers import DraftId
from airflow_crew_provider.api.budget import Budget, amounts, figures, judged, used_in
from airflow_crew_provider.api.values import record_of
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Json, output_sha256, shown
from airflow_crew_provider.questions.drafts import code
from airflow_crew_provider.review.form import MARK
from airflow_crew_provider.review.people import Escalation
from airflow_crew_provider.task.record import Rejected
from airflow_crew_provider.wait.outcomes import fail_task
from airflow_crew_provider.wait.watch import COMPLETED

if TYPE_CHECKING:
    from airflow_crew_provider.review.airflow_form import HITLOperator

APPROVE, REJECT = "approve", "reject"


@dataclass(frozen=True)
class UsageForm:
    """The question about one execution.

    :param shown: the part of the record that is shown
    :param allowed: the usage that the DAG allows without asking
    """

    shown: Json
    allowed: Budget

    @property
    def subject(self) -> str:
        """The headline."""
        used = " and ".join(self._used)
        if self.passed:
            return f"A crew used {used}; the limit is {self._limits}"
        return f"A crew's usage is unknown; the limit is {self._limits}"

    @property
    def body(self) -> str:
        """The page, as Markdown."""
        execution_id, mark = self.signs
        facts = (
            f"Execution {execution_id} has completed with output {mark}. {self._usage}, and this DAG allows "
            f"{self._limits} without asking."
        )
        choices = (
            f"* **{APPROVE}**: its output is passed to the downstream tasks.\n"
            f"* **{REJECT}**: it is not; the output stays at the crew service. The tokens are spent either way."
        )
        return f"{facts}\n\n{choices}"

    @property
    def passed(self) -> bool:
        """Whether the reported usage exceeds a limit."""
        return bool(self.allowed.passed_by(self.shown))

    @property
    def _usage(self) -> str:
        used = [f"It used **{' and '.join(self._used)}**"] if self._used else []
        unknown = self.allowed.unknown_in(self.shown, code)
        return ". ".join(used + ([f"The service does not report {unknown}"] if unknown else []))

    @property
    def _used(self) -> list[str]:
        return used_in(judged(self.shown), with_cost=self.allowed.max_cost is not None)

    @property
    def _limits(self) -> str:
        limits = amounts(self.allowed.max_total_tokens, self.allowed.max_cost)
        return limits[0].removesuffix(" tokens") if self.passed and len(limits) == 1 else " and ".join(limits)

    @property
    def signs(self) -> list[str]:
        """What the form shows of the execution's id and of the output's hash."""
        return [code(self.shown["execution_id"]), code(self.shown["output_sha256"][:MARK])]


@dataclass(frozen=True)
class UsageRules:
    """The rendered arguments of `CrewUsageApprovalOperator`."""

    completed: Any
    budget: Budget
    escalation: Escalation
    people: list[Json] | None
    defaults: list[str] | None

    holds_another: ClassVar[str] = (
        "Airflow still holds the question from an earlier run of this task, about another execution, and cannot show "
        "the new one, so nobody was asked. Start a new DAG run instead of clearing this one"
    )

    def record(self) -> Json:
        """Return the completed record."""
        try:
            record = record_of(self.completed, "completed")
            if record.get("state") != COMPLETED:
                raise CrewInvalidInput(f"completed is a record in state {shown(record.get('state'))}, not completed")
        except CrewInvalidInput as error:
            fail_task(error)
        return record

    def shown_now(self) -> Json:
        """Return the content to show."""
        return facts_of(self.record())

    def terms(self) -> Json:
        """Return the users who may answer, and what the deadline does; nothing else of the form depends on the DAG."""
        return {"users": self.escalation.ids, "people": self.people, "defaults": self.defaults}

    def by(self, terms: Json) -> UsageRules:
        """Return the rules with the terms of a form that was shown."""
        return replace(self, **{name: terms[name] for name in ("people", "defaults") if name in terms})

    def offer(self, task: HITLOperator, content: Json) -> None:
        """Set the form's default; its choices are the same in every DAG."""
        task.defaults = self.defaults

    def form(self, context: Any, content: Json, until: str | None, since: datetime) -> UsageForm:
        """Return the form."""
        return UsageForm(content, self.budget)

    def expires(self, content: Json) -> None:
        """A question about usage always needs an answer."""

    def approving(self, content: Json) -> list[str]:
        """Return the choice that approves."""
        return [APPROVE]

    def only_by_a_person(self, content: Json, rejected: Sequence[Rejected]) -> str:
        """Return that somebody has rejected this execution's output; another's may have cost less."""
        is_rejected = Rejected.of(DraftId.of(content)) in rejected
        return f"Somebody has rejected this output, of execution {content['execution_id']}" if is_rejected else ""

    def not_approved(self, content: Json) -> str:
        """Return what became of an output that the deadline did not approve."""
        return "It is not passed on; the service still has it"


def facts_of(record: Json) -> Json:
    """Return the part of a completed record to show to a person."""
    ids = {name: str(record.get(name) or "") for name in ("kickoff_id", "execution_id")}
    content = {name: record.get(name) for name in ("output", "output_path")}
    return {
        **ids,
        "crew_task_id": "",
        "output_sha256": output_sha256(content),
        "total_tokens": None,
        "cost_usd": None,
        **(figures(record.get("usage")) or {}),
    }
