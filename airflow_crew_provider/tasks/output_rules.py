"""What a DAG demands of a completed execution before anything downstream runs, the same for all waiting tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_crew_provider.core.budget import FAIL, IGNORE, NO_BUDGET, Budget, refuse_bad_choice
from airflow_crew_provider.core.output_schema import NAME, listed, matching, refuse_bad_schema, validator_of
from airflow_crew_provider.core.xcom_values import handed_on
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Execution, Json
from airflow_crew_provider.tasks import output_storage
from airflow_crew_provider.tasks.outcomes import CrewTaskFailed, fail_task

REPORT_USAGE = (
    "Let the service report its usage, and for max_cost a price of each model; or set on_unknown_usage='ignore' to use "
    "such an output unchecked"
)


@dataclass(frozen=True)
class OutputRules:
    """The rules as a task was given them.

    :param schema: a JSON Schema, a pydantic model or its import path; None takes any output
    :param budget: what the execution may have used
    :param on_unknown_usage: ``fail``, or ``ignore`` that the service does not report what the budget is compared with
    :param output_to: the path to write the output to; None leaves it in the record
    :param multiple_outputs: whether each key of the output becomes an XCom too
    """

    schema: Any = None
    budget: Budget = NO_BUDGET
    on_unknown_usage: str = FAIL
    output_to: str | None = None
    multiple_outputs: bool = False

    def __post_init__(self) -> None:
        """Refuse, when the DAG file is parsed, what is known to be wrong then."""
        if self.schema is not None:
            refuse_bad_schema(self.schema)
        refuse_bad_choice(self.on_unknown_usage, (FAIL, IGNORE))
        if self.multiple_outputs and self.output_to is not None:
            raise CrewInvalidInput("multiple_outputs puts into XCom what output_to keeps out of it; give one of them")

    @property
    def names(self) -> list[str]:
        """Return the parameters that were given."""
        given = {NAME: self.schema, **self.budget.limits, output_storage.NAME: self.output_to}
        several = ["multiple_outputs"] if self.multiple_outputs else []
        return [name for name, value in given.items() if value is not None] + several

    def refuse_unusable(self) -> None:
        """Fail before a crew is started or waited for if a rule could not be applied to its output.

        :raises CrewInvalidInput: the model cannot be imported, or what was rendered is no path
        """
        if self.schema is not None:
            validator_of(self.schema)
        if self.output_to is not None:
            output_storage.refuse_unusable(self.output_to)

    def applied(self, execution: Execution, log: Any) -> Json:
        """Return the fields of the record that the rules change.

        :param log: where it is said that a rule could not be applied
        :raises CrewTaskFailed: the execution breaks a rule; another try would find the same
        """
        self._refuse_over_budget(execution, log)
        output = execution.output if execution.output_json is None else execution.output_json
        if self.schema is not None:
            output = self._matching(execution.kickoff_id, output)
        if self.output_to is None:
            return {"output": handed_on(output)}
        return output_storage.stored(self.output_to, execution, output)

    def _refuse_over_budget(self, execution: Execution, log: Any) -> None:
        passed = self.budget.passed_by(execution.usage)
        if passed:
            raise CrewTaskFailed(f"Execution {execution.kickoff_id} {passed}. {still_there()}")
        unknown = self.budget.unknown_in(execution.usage)
        if not unknown:
            return
        said = f"The service does not report of execution {execution.kickoff_id} {unknown}"
        if self.on_unknown_usage == FAIL:
            raise CrewTaskFailed(f"{said}. {REPORT_USAGE}. {still_there()}")
        log.warning("%s; the output is used all the same, as on_unknown_usage says", said)

    def _matching(self, kickoff_id: str, output: Any) -> Any:
        try:
            value, violations = matching(validator_of(self.schema), output)
        except CrewInvalidInput as error:
            fail_task(error, f"Nothing is known to be wrong with the output of execution {kickoff_id}. {still_there()}")
        if not violations:
            return value
        raise CrewTaskFailed(
            f"The output of execution {kickoff_id} does not match {NAME}, {len(violations)} violations: "
            f"{listed(violations)}. Only a draft that waits can be revised. {still_there()}"
        )


def still_there() -> str:
    """Say what became of an execution whose output was not accepted, and what helps."""
    return (
        "The execution is completed and its output stays at the service; a retry would find the same. To run the crew "
        "again, clear its kickoff; after a change of the rule alone, clear the task that waits for it"
    )
