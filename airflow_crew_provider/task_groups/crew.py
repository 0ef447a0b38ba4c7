"""A kickoff, review rounds and the completed record, as one task group. Needs Airflow 3.1 or newer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import AirflowSkipException, TaskGroup, XComArg

from airflow_crew_provider.api.answers import FIELDS
from airflow_crew_provider.api.asks import DENY
from airflow_crew_provider.api.budget import FAIL
from airflow_crew_provider.api.values import record_or_none
from airflow_crew_provider.compat.loops import decided, make_loop
from airflow_crew_provider.compat.rendered_fields import HidesRecords
from airflow_crew_provider.compat.retries import at_least
from airflow_crew_provider.compat.supervisor import supervisor, task_state
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.models import ExecutionState, Json, Webhooks, shown
from airflow_crew_provider.operators.crew import CrewKickoffOperator, CrewResumeOperator
from airflow_crew_provider.sensors.crew import CrewStatusSensor
from airflow_crew_provider.stored_names import EXECUTION_ID_KEY
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, ends_in_a_sentence
from airflow_crew_provider.wait.task import CrewTask
from airflow_crew_provider.wait.watch import COMPLETED

# A short delay between tries: polling again costs nothing, and a failed execution is not polled again. Airflow
# occasionally fails a task that resumes just as it is being deferred (apache/airflow issues 66374 and 67287).
AGAIN = timedelta(seconds=5)
# What makes tasks a group, whatever a DAG's `default_args` say: a round that is not needed is skipped, each task passes
# its result on, and a wait ends when a person is needed.
OWN: Json = {"trigger_rule": "all_success", "do_xcom_push": True, "multiple_outputs": False}
OWN_OF_WAITS: Json = {"wait_past_pending": False}
OWN_OF_KICKOFF: Json = {
    "wait_for_completion": False,
    **dict.fromkeys(("output_schema", "max_total_tokens", "max_cost", "output_to", "files_to")),
}
OWN_OF_RESUMES: Json = dict.fromkeys(FIELDS)  # they answer with their review
# The reason for a loop's iteration is visible to everybody who may see the task, even without permission for XComs.
DECISIONS = {"True": "approve", "False": "revise"}


class CrewResultOperator(HidesRecords, CrewTask):
    """Return the completed record of one execution.

    A skipped wait keeps its XCom from before it was cleared, so records of another execution are ignored.

    :param records: the records from all waits, None for skipped ones; for a wait in a loop, those of all iterations
        (templated)
    :param execution_id: the id that the kickoff returned; by default that of the first record (templated)
    :param crew_conn_id: the connection of type ``crew``, for outlet events (templated)
    """

    hook_class = CrewHook
    fields_with_records = ("records",)
    template_fields: Sequence[str] = ("records", "execution_id", "crew_conn_id")
    ui_color = "#d4f0d4"

    def __init__(
        self,
        *,
        records: list[Any],
        execution_id: str | XComArg | None = None,
        crew_conn_id: str = CrewHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.records = records
        self.execution_id: Any = execution_id
        self.crew_conn_id = crew_conn_id

    @ends_in_a_sentence
    def execute(self, context: Any) -> Json:
        """Return the completed record; fail if the execution is waiting for a person again and no rounds remain.

        Skip if all upstream tasks were skipped. The trigger rule ``none_failed_min_one_success`` would do the same, but
        with it, Airflow fails every item of a mapped group as soon as one has failed.
        """
        if not self._something_ran(context["ti"]):
            raise AirflowSkipException("Nothing was started, so there is no result")
        records = [record for value in self.records for record in _each(value) if isinstance(record, Mapping)]
        execution_id = self.execution_id or (records[0].get("execution_id") if records else None)
        mine = [record for record in records if record.get("execution_id") == execution_id]
        if not mine:
            raise CrewTaskFailed(
                f"No wait has a record of execution {execution_id}; clear the kickoff and all tasks downstream"
            )
        # A completed execution has one such record; others are from earlier rounds.
        completed = [record for record in mine if record["state"] == COMPLETED]
        if not completed:
            raise CrewTaskFailed(_no_round_left(mine[-1]))
        record: Json = dict(completed[-1])
        ids = {"kickoff_id": record["kickoff_id"], "execution_id": record["execution_id"]}
        self.report(context, ExecutionState.COMPLETED, **ids, usage=record.get("usage"))
        self.report_files(context, record)
        return record

    def _something_ran(self, ti: Any) -> bool:
        upstream = sorted(self.upstream_task_ids)  # the kickoff first
        asks = supervisor() is not None and upstream
        return not asks or any(task_state(ti, task_id) == "success" for task_id in upstream)


def until_completed(loop: Any, ti: Any) -> Any:
    """Start another round unless the crew has completed or no rounds remain; the `result` task determines which."""
    review = record_or_none(ti.xcom_pull(task_ids=f"{ti.task_id.rpartition('.')[0]}.review")) or {}
    word = DECISIONS.get(str(review.get("is_approve")), "answered")
    if review.get("ask"):
        word = review["outcome"]  # a fixed word, unlike a Flow's outcomes, which may be anything
    record = record_or_none(loop.result) or {}
    is_over = loop.index + 1 >= loop.max_iterations or record.get("state") == COMPLETED
    return decided(stop=is_over, reason=f"round {loop.index + 1}: {word}")


def _each(value: Any) -> Iterable[Any]:
    """Return a wait's records; for one in a loop, Airflow returns those from all iterations in order."""
    return value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)


def _no_round_left(record: Mapping[str, Any]) -> str:
    return (
        f"Execution {record.get('execution_id')} is waiting for a person again, at task {record.get('crew_task_id')}, "
        "but no review rounds remain. It stays paused; raise max_rounds, or answer it by hand"
    )


class CrewReviewGroup(TaskGroup):
    """The return value of `crew_with_review`."""

    @property
    def output(self) -> XComArg:
        """The completed record, for the next task."""
        result: Any = self.get_child_by_label("result")
        output: XComArg = result.output
        return output


class Unset(str):
    """A default that is not the same object as an equal string of a DAG file."""


NOT_GIVEN = Unset(CrewHook.default_conn_name)


def crew_with_review(
    *,
    group_id: str = "crew",
    inputs: Json | XComArg,
    files: Mapping[str, Any] | XComArg | None = None,
    max_rounds: int = 3,
    webhooks: Webhooks | Json | str | None = None,
    meta: Json | XComArg | None = None,
    crew_conn_id: str = NOT_GIVEN,
    deferrable: bool = True,
    poll_interval: float = 10.0,
    timeout: float | None = None,
    cancel_on_kill: bool = True,
    review: Json | None = None,
    on_tool_timeout: str = DENY,
    auto_approve: Callable[[Json], Any] | None = None,
    output_schema: Json | str | type | None = None,
    max_total_tokens: int | None = None,
    max_cost: float | None = None,
    on_unknown_usage: str = FAIL,
    stop_over_budget: bool = True,
    output_to: str | None = None,
    files_to: str | None = None,
    on_schema_mismatch: str = "fail",
    outlets: Sequence[Any] | None = None,
    loop: bool = False,
) -> CrewReviewGroup:
    """Return a task group that runs a crew with up to ``max_rounds`` review rounds.

    Its last task, ``result``, returns the completed record, which is the group's ``output``; rounds that are not
    needed are skipped.

    :param inputs: the crew's inputs (templated)
    :param files: files to send, as in `CrewKickoffOperator` (templated)
    :param max_rounds: how many times a person may answer, across all of the crew's tasks that ask
    :param webhooks: sent with the kickoff and with each resume, because the service does not keep them
    :param meta: echoed by the service in webhooks (templated)
    :param crew_conn_id: the connection of all its tasks; if not given, that of ``default_args``
    :param deferrable: wait for the crew in the triggerer, without a worker slot
    :param poll_interval: the shortest pause between two polls, in seconds
    :param timeout: how long one wait for the crew may take, in seconds
    :param cancel_on_kill: stop the execution (best effort) when a user stops the kickoff or a wait
    :param review: arguments for `CrewReviewOperator`: ``assigned_users``, ``notifiers``, ``response_timeout``, ...
    :param on_tool_timeout: as in `CrewReviewOperator`
    :param auto_approve: as in `CrewReviewOperator`
    :param output_schema: schema for the completed output, as in `CrewStatusSensor`
    :param max_total_tokens: fail if the execution uses more tokens
    :param max_cost: fail if the execution costs more, in USD
    :param on_unknown_usage: what to do if the service does not report the usage needed to check a limit: ``fail``, or
        ``ignore`` the limit
    :param stop_over_budget: stop an execution that exceeds a limit while it is running or waiting for a person
    :param output_to: where to write the completed output instead of XCom (templated)
    :param files_to: an object storage folder to copy the crew's files to (templated)
    :param on_schema_mismatch: for a draft that does not match: ``fail`` only shows its violations; ``revise`` sends it
        back with them once, before anybody is asked, which uses one of the rounds
    :param outlets: assets updated by the completed output; their events contain the ids and the usage
    :param loop: run the rounds as the iterations of one Task Loop (Airflow 3.4 and newer; not inside a mapped task
        group or another loop)
    """
    if type(max_rounds) is not int or max_rounds < 1:
        raise ValueError(f"max_rounds must be an integer of at least 1, not {shown(max_rounds)}")
    if on_schema_mismatch == "revise" and max_rounds < 2:
        raise ValueError("on_schema_mismatch='revise' uses up a round: max_rounds must be at least 2")
    budget: Json = {"max_total_tokens": max_total_tokens, "max_cost": max_cost, "on_unknown_usage": on_unknown_usage}
    budget["stop_over_budget"] = stop_over_budget
    rules: Json = {"output_schema": output_schema, **budget, "output_to": output_to, "files_to": files_to}
    with CrewReviewGroup(group_id=group_id) as group:
        if getattr(group.dag, "fail_fast", False):
            raise ValueError(
                f"crew_with_review(group_id={group_id!r}) does not work in a DAG with fail_fast=True: Airflow refuses "
                "its trigger rules. Remove fail_fast, or use CrewRunOperator (Airflow 3.4)"
            )
        defaults = {**(group.dag.default_args if group.dag else {}), **group.default_args}
        if crew_conn_id is NOT_GIVEN:
            crew_conn_id = defaults.get("crew_conn_id", CrewHook.default_conn_name)
        shared: Json = {"crew_conn_id": crew_conn_id}
        owned: Json = {**shared, "cancel_on_kill": cancel_on_kill}
        wait: Json = {**owned, **rules, "deferrable": deferrable, "poke_interval": poll_interval}
        if timeout is not None:
            wait["timeout"] = timeout
        again = at_least(defaults, delay=AGAIN)
        again |= OWN
        wait |= {**again, **OWN_OF_WAITS}
        request: Json = {"inputs": inputs, "files": files, "webhooks": webhooks, "meta": meta}
        first_task: Json = {**again, "trigger_rule": rule} if (rule := defaults.get("trigger_rule")) else again
        kickoff = CrewKickoffOperator(task_id="kickoff", **request, **owned, **first_task, **OWN_OF_KICKOFF)
        kickoff.schema_of_waits = output_schema
        first = CrewStatusSensor(task_id="wait", kickoff_id=kickoff.output, execution_id=None, **wait)
        schema: Json = {"output_schema": output_schema, "on_schema_mismatch": on_schema_mismatch}
        policies: Json = {"on_tool_timeout": on_tool_timeout, "auto_approve": auto_approve}
        arguments: Json = {**shared, **OWN, "skip_completed": True, **schema, **policies, **(review or {})}
        arguments["max_rounds"] = max_rounds
        rounds = Rounds(first, max_rounds, arguments, {"webhooks": webhooks, **shared, **again, **OWN_OF_RESUMES}, wait)
        waits = rounds.in_a_loop(again) if loop else rounds.one_after_another()
        CrewResultOperator(
            task_id="result",
            records=[each.output for each in (first, *waits)],
            execution_id=kickoff.output,
            outlets=outlets,
            **shared,
            **{**again, "trigger_rule": "none_failed"},
        )
    return group  # type: ignore[return-value]


@dataclass(frozen=True)
class Rounds:
    """The tasks of the rounds: a review, a resume and a wait for each.

    :param first: the wait for the first draft
    :param review: arguments for all reviews
    :param resume: arguments for all resumes
    :param wait: arguments for all waits
    """

    first: CrewStatusSensor
    most: int
    review: Json
    resume: Json
    wait: Json

    def one_after_another(self) -> list[CrewStatusSensor]:
        """Create the tasks for each round; return the waits."""
        # Imported here, so that on older versions of Airflow this module still imports and only the call fails.
        from airflow_crew_provider.operators.review import CrewReviewOperator

        waits, previous = [self.first], None
        for number in range(1, self.most + 1):
            with TaskGroup(group_id=f"round_{number}", tooltip="Skipped if the crew completes earlier"):
                of_round: Json = {"round_number": number, "pending": waits[-1].output, "previous": previous}
                review = CrewReviewOperator(task_id="review", **of_round, **self.review)
                previous = review.output
                has_next: Json = {"has_next_round": number < self.most}
                resume = CrewResumeOperator(task_id="resume", review=previous, **has_next, **self.resume)
                waits.append(self._wait_after(resume))
        return waits[1:]

    def in_a_loop(self, again: Json) -> list[CrewStatusSensor]:
        """Create a round's tasks as the body of a loop; return its wait.

        :param again: the retry arguments for the task that decides whether to start another round
        """
        waits: list[CrewStatusSensor] = []

        def body() -> None:
            from airflow_crew_provider.task_groups.rounds import LoopResumeOperator, LoopReviewOperator

            review = LoopReviewOperator(task_id="review", pending=self.first.output, **self.review)
            resume = LoopResumeOperator(task_id="resume", review=review.output, **self.resume)
            waits.append(self._wait_after(resume))

        tooltip = "Repeats until the crew completes or no rounds remain"
        gate = make_loop("round", body, until=until_completed, most=self.most, tooltip=tooltip)
        gate.retries, gate.retry_delay = again["retries"], again["retry_delay"]
        gate.trigger_rule, gate.do_xcom_push, gate.multiple_outputs = self.first.trigger_rule, True, False
        return waits

    def _wait_after(self, resume: CrewResumeOperator) -> CrewStatusSensor:
        # From the resume, not from the kickoff: the same id, but a graph with fewer edges.
        root = resume.output[EXECUTION_ID_KEY]  # type: ignore[index]
        return CrewStatusSensor(task_id="wait", kickoff_id=resume.output, execution_id=root, **self.wait)
