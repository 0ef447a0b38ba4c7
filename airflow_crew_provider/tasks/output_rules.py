"""What a DAG demands of a completed execution before anything downstream runs, the same for all waiting tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_crew_provider.core.output_schema import NAME, listed, matching, refuse_bad_schema, validator_of
from airflow_crew_provider.exceptions import CrewError, CrewInvalidInput
from airflow_crew_provider.models import Execution, Json
from airflow_crew_provider.tasks import output_storage
from airflow_crew_provider.tasks.outcomes import CrewTaskFailed, fail_task


@dataclass(frozen=True)
class OutputRules:
    """The rules as a task was given them.

    :param schema: a JSON Schema, a pydantic model or its import path; None takes any output
    :param max_total_tokens: how many tokens the execution may have used; None for any number
    :param output_to: the path to write the output to; None leaves it in the record
    """

    schema: Any = None
    max_total_tokens: int | None = None
    output_to: str | None = None

    def __post_init__(self) -> None:
        """Refuse, when the DAG file is parsed, what is known to be wrong then."""
        if self.schema is not None:
            refuse_bad_schema(self.schema)
        most = self.max_total_tokens
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise CrewInvalidInput(f"max_total_tokens must be a whole number of at least 1, not {most!r}")

    @property
    def names(self) -> list[str]:
        """Return the parameters that were given."""
        given = {NAME: self.schema, "max_total_tokens": self.max_total_tokens, output_storage.NAME: self.output_to}
        return [name for name, value in given.items() if value is not None]

    def refuse_unusable(self) -> None:
        """Fail before a crew is started or waited for if a rule could not be applied to its output."""
        if self.output_to:
            output_storage.refuse_unusable(self.output_to)
        try:
            _ = self.schema is None or validator_of(self.schema)
        except CrewError as error:
            fail_task(error)

    def applied(self, execution: Execution, log: Any) -> Json:
        """Return the fields of the record that the rules change.

        :param log: where it is said that a rule could not be applied
        :raises CrewTaskFailed: the execution breaks a rule; another try would find the same
        """
        if self.max_total_tokens is not None:
            self._count_tokens(execution, self.max_total_tokens, log)
        output = execution.output if execution.output_json is None else execution.output_json
        if self.schema is not None:
            output = self._matching(execution.kickoff_id, output)
        return output_storage.stored(self.output_to, execution, output) if self.output_to else {"output": output}

    def _count_tokens(self, execution: Execution, most: int, log: Any) -> None:
        used = (execution.usage or {}).get("total_tokens")
        if isinstance(used, bool) or not isinstance(used, int | float):
            log.warning("max_total_tokens: the service does not say how many tokens %s used", execution.kickoff_id)
        elif used > most:
            raise CrewTaskFailed(
                f"Execution {execution.kickoff_id} used {used} tokens, more than max_total_tokens of {most}. "
                f"{still_there()}"
            )

    def _matching(self, kickoff_id: str, output: Any) -> Any:
        value, violations = matching(validator_of(self.schema), output)
        if not violations:
            return value
        raise CrewTaskFailed(
            f"The output of execution {kickoff_id} does not match {NAME}, {len(violations)} violations: "
            f"{listed(violations)}. {still_there()}"
        )


def still_there() -> str:
    """Say what became of an execution whose output was not accepted, and what helps."""
    return (
        "The execution is completed and its output stays at the service; a retry would find the same. To run the crew "
        "again, clear its kickoff; after a change of the rule alone, clear the task that waits for it"
    )
