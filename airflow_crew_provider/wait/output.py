"""A DAG's rules for a completed execution, checked before anything downstream runs, and the path for its output."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from airflow_crew_provider import stored_names
from airflow_crew_provider.api.budget import FAIL, IGNORE, NO_BUDGET, Budget, refuse_bad_choice
from airflow_crew_provider.api.values import handed_on
from airflow_crew_provider.compat import supervisor
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Execution, Json, reason, shortened
from airflow_crew_provider.wait.files import FILES_TO, LOCAL, OUTPUT_TO, opened, refuse_unusable
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, CrewTryFailed, fail_task
from airflow_crew_provider.wait.schema import (
    NAME,
    listed,
    matching,
    model_of,
    named_keys,
    refuse_bad_schema,
    validator_of,
)

log = logging.getLogger(__name__)


def stored(path: str, execution: Execution, output: Any) -> Json:
    """Write the output (a string unchanged, anything else as JSON); return the record fields that change as a result.

    The outputs of the crew's tasks are removed from the record too, because the last one is usually the same text.
    """
    try:
        _write(opened(path), output if isinstance(output, str) else json.dumps(output, ensure_ascii=False))
    except Exception as error:  # each storage raises its own errors
        raise CrewTryFailed(
            f"The output of execution {execution.kickoff_id} could not be written to {shortened(path)}: "
            f"{reason(error)}. The execution has completed, and its output is still available from the service",
            "A retry of this task fetches and writes it again",
        ) from error
    tasks = [asdict(replace(task, output=None)) for task in execution.tasks]
    return {"output": None, "output_path": path, "tasks": tasks}


def _write(path: Any, text: str) -> None:
    if path.protocol in LOCAL:
        path.parent.mkdir(parents=True, exist_ok=True)  # for object stores, this would create the bucket
    path.write_bytes(text.encode("utf-8", "surrogatepass"))


# --- rules ---


REPORT_USAGE = (
    "Make the service report its usage (for max_cost, it needs a price for each model), or set "
    "on_unknown_usage='ignore' to use the output unchecked"
)
# The fate of an execution whose output was not accepted, and what to do next.
STILL_THERE = (
    "The execution has completed, and its output is still available from the service; a retry would fail too. To "
    "run the crew again, clear its kickoff. If you only changed the rule, check this execution with a "
    "CrewStatusSensor: clearing a task that started it starts another one"
)


def usage_not_reported(execution_id: str | None, unknown: str) -> str:
    """Return the message for an execution whose usage cannot be checked against a limit.

    :param unknown: the figures that the service did not report
    """
    return f"For execution {execution_id}, the service did not report {unknown}. {REPORT_USAGE}. {STILL_THERE}"


@dataclass(frozen=True)
class OutputRules:
    """The rules given to a task.

    :param schema: a JSON Schema, a pydantic model or its import path; None accepts any output
    :param budget: limits on the execution's usage
    :param on_unknown_usage: what to do if the service does not report the usage needed to check a limit: ``fail``, or
        ``ignore`` the limit
    :param output_to: the path to write the output to; None leaves it in the record
    :param multiple_outputs: whether each key of the output also becomes an XCom
    :param files_to: the folder to copy the crew's files to; None copies none
    """

    schema: Any = None
    budget: Budget = NO_BUDGET
    on_unknown_usage: str = FAIL
    output_to: str | None = None
    multiple_outputs: bool = False
    files_to: str | None = None

    def __post_init__(self) -> None:
        """Refuse invalid rules when the DAG file is parsed."""
        if self.schema is not None:
            refuse_bad_schema(self.schema)
            self._refuse_named_keys(self.schema)
        refuse_bad_choice(self.on_unknown_usage, (FAIL, IGNORE))
        if self.multiple_outputs and self.output_to is not None:
            raise CrewInvalidInput(
                "multiple_outputs puts the output into XCom; output_to keeps it out. Use one of them"
            )

    @property
    def names(self) -> list[str]:
        """The names of the parameters that are set."""
        values = {NAME: self.schema, **self.budget.limits, OUTPUT_TO: self.output_to, FILES_TO: self.files_to}
        several = ["multiple_outputs"] if self.multiple_outputs else []
        return [name for name, value in values.items() if value is not None] + several

    def refuse_unusable(self) -> None:
        """Fail, before a crew is started or waited for, if a rule could not be applied to its output.

        :raises CrewInvalidInput: the model cannot be imported, a key that it names cannot be an XCom, or `output_to` or
            `files_to` did not render to a path
        :raises CrewStorageUnavailable: the storage for one of them cannot be opened
        """
        if self.schema is not None:
            self._refuse_named_keys(model_of(self.schema))
        for name, path in ((OUTPUT_TO, self.output_to), (FILES_TO, self.files_to)):
            if path is not None:
                refuse_unusable(name, path)

    def _refuse_named_keys(self, schema: Any) -> None:
        if self.multiple_outputs and (problems := _problems_with(named_keys(schema))):
            raise CrewInvalidInput(
                f"multiple_outputs: {NAME} names keys that are not valid for XCom: {listed(problems)}"
            )

    def applied(self, execution: Execution, log: Any) -> Json:
        """Return the fields of the record that the rules change.

        :param log: the logger for rules that could not be applied
        :raises CrewTaskFailed: the execution breaks a rule; another try would fail the same way
        """
        self._refuse_over_budget(execution, log)
        output = execution.output if execution.output_json is None else execution.output_json
        if self.schema is not None:
            output = self._matching(execution.kickoff_id, output)
        if self.output_to is None:
            return {"output": handed_on(output)}
        return stored(self.output_to, execution, output)

    def _refuse_over_budget(self, execution: Execution, log: Any) -> None:
        passed = self.budget.passed_by(execution.usage)
        if passed:
            raise CrewTaskFailed(f"Execution {execution.kickoff_id} {passed}. {STILL_THERE}")
        unknown = self.budget.unknown_in(execution.usage)
        if not unknown:
            return
        if self.on_unknown_usage == FAIL:
            raise CrewTaskFailed(usage_not_reported(execution.kickoff_id, unknown))
        log.warning(
            "For execution %s, the service did not report %s; the output is used anyway because of on_unknown_usage",
            execution.kickoff_id,
            unknown,
        )

    def _matching(self, kickoff_id: str, output: Any) -> Any:
        try:
            value, violations = matching(validator_of(self.schema), output)
        except CrewInvalidInput as error:
            fail_task(error, f"The output of execution {kickoff_id} was not checked. {STILL_THERE}")
        if not violations:
            return value
        count = f"{len(violations)} violation{'' if len(violations) == 1 else 's'}"
        raise CrewTaskFailed(
            f"The output of execution {kickoff_id} does not match {NAME}, {count}: "
            f"{listed(violations)}. Only a waiting draft can be revised. {STILL_THERE}"
        )


# --- each key as an XCom ---


# Airflow's scheduler acts on the second key (before 3.0, for any task), and some values crash it.
TAKEN = frozenset({"return_value", "skipmixin_key", *stored_names.XCOM_KEYS})
# The first is for links in Airflow's UI; under the second, the inbox looks up registrations by key alone.
TAKEN_BEGINNINGS = ("_link_", stored_names.POSTED_KEY)
# Airflow puts the key into a URL unquoted, so the value would be stored under another key, or for another task.
UNFIT = set("?#/%\\\x7f").union(map(chr, range(32)))
SHOWN = 60
LONGEST_KEY = 512  # the limit of Airflow's database


def push_keys(context: Any, kickoff_id: str, output: Any) -> None:
    """Push each key of a completed output, or none if one of them cannot be pushed.

    `airflow dags test` cannot push non-ASCII keys, but a worker can, so they are only logged.

    :raises CrewTaskFailed: the output is not an object, or has an invalid key; another try would fail the same way
    """
    left_out = []
    for key, value in _checked_keys(kickoff_id, output).items():
        try:
            context["ti"].xcom_push(key=key, value=value)
        except UnicodeError:
            if key.isascii() or not supervisor.is_in_process():
                raise
            left_out.append(repr(key[:SHOWN]))
    if left_out:
        log.warning("`airflow dags test` cannot push the output keys %s; a worker can", listed(left_out))


def _checked_keys(kickoff_id: str, output: Any) -> Json:
    if not isinstance(output, dict):
        problem = f"is {type(output).__name__}, not an object"
    else:
        problems = _problems_with(output)
        if not problems:
            return output
        problem = f"has keys that are not valid for XCom: {listed(problems)}"
    raise CrewTaskFailed(f"multiple_outputs: the output of execution {kickoff_id} {problem}. {STILL_THERE}")


def _problems_with(keys: Iterable[str]) -> list[str]:
    return [f"{key[:SHOWN]!r} {why}" for key in keys if (why := _problem_with(key))]


def _problem_with(key: str) -> str:
    if key in TAKEN or key.startswith(TAKEN_BEGINNINGS):
        return "is an XCom key used by Airflow or this provider"
    if not 0 < len(key) <= LONGEST_KEY:
        return f"does not have 1 to {LONGEST_KEY} characters"
    if key in (".", ".."):
        return "is a relative path"
    return "contains ?, #, /, %, a backslash or a control character" if set(key) & UNFIT else ""
