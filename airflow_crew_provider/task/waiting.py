"""The worker's part of a wait, as steps: poll, defer to the triggerer, and continue with its outcome."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

from airflow_crew_provider.api.budget import FAIL, NO_BUDGET, Budget
from airflow_crew_provider.compat import metrics
from airflow_crew_provider.exceptions import CrewError, CrewExecutionFailed, CrewTimeout, from_json
from airflow_crew_provider.inbox.registering import note_run
from airflow_crew_provider.models import Execution, ExecutionState, Json
from airflow_crew_provider.task.attempt import Attempt
from airflow_crew_provider.task.drive import (
    NOTHING_FOLLOWS,
    Defer,
    Do,
    Fetch,
    Pause,
    PollOnce,
    PollUntilOver,
    Steps,
    Worker,
)
from airflow_crew_provider.triggers.crew import CrewStatusTrigger
from airflow_crew_provider.wait import files, outcomes
from airflow_crew_provider.wait.output import OutputRules, push_keys
from airflow_crew_provider.wait.poller import Source
from airflow_crew_provider.wait.task import CrewTask, push_view
from airflow_crew_provider.wait.used import UsedByTask
from airflow_crew_provider.wait.watch import (
    COMPLETED,
    FAILED,
    GAVE_UP,
    OVER_BUDGET,
    PENDING,
    SEEN,
    TIMEOUT,
    Outcome,
    Watch,
)

PAUSE_IN_WORKER = 1.0  # seconds between polls before a deferral, unless the poll interval is shorter


class WaitingTask(CrewTask):
    """The base class of operators and sensors that wait: the parameters of each wait.

    :param output_schema: the schema of the completed output: a JSON Schema (a dict), a pydantic model, or the model's
        import path, ``package.module:Model``
    :param max_total_tokens: fail the task if the execution uses more tokens; None for no limit
    :param max_cost: fail the task if the execution costs more, in USD; None for no limit
    :param on_unknown_usage: what to do if the service does not report the usage needed to check a completed execution
        against a limit: ``fail``, or ``ignore`` the limit
    :param stop_over_budget: stop an execution that exceeds a limit while it is running or waiting for a person;
        False lets it finish
    :param output_to: an object storage path to write the completed output to, instead of XCom; the record then has
        ``output: null`` and ``output_path`` (templated)
    :param files_to: an object storage folder to copy the crew's files to (templated)
    :param multiple_outputs: push each key of a completed output, which must be an object, as a separate XCom; the
        record is still ``return_value``
    """

    cancel_on_kill: bool
    deferrable: bool
    poll_in_worker: float  # seconds
    worker: Worker | None = None  # of the try that this process runs
    used: UsedByTask | None = None  # the executions of that try

    def __init__(
        self,
        *,
        output_schema: Json | str | type | None = None,
        max_total_tokens: int | None = None,
        max_cost: float | None = None,
        on_unknown_usage: str = FAIL,
        stop_over_budget: bool = True,
        output_to: str | None = None,
        files_to: str | None = None,
        multiple_outputs: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.output_schema = output_schema
        self.max_total_tokens = max_total_tokens
        self.max_cost = max_cost
        self.on_unknown_usage = on_unknown_usage
        self.stop_over_budget = stop_over_budget
        self.output_to = files.given_path(files.OUTPUT_TO, output_to)
        self.files_to = files.given_path(files.FILES_TO, files_to)
        self._pushes_keys = self.multiple_outputs = multiple_outputs
        self.output_rules  # noqa: B018  refuses an invalid rule when the DAG file is parsed

    @property
    def output_rules(self) -> OutputRules:
        """The task's rules for a completed execution."""
        return OutputRules(
            *(self.output_schema, self.budget, self.on_unknown_usage, self.output_to, self._pushes_keys, self.files_to)
        )

    @property
    def budget(self) -> Budget:
        """The limits on an execution's usage."""
        return Budget(self.max_total_tokens, self.max_cost)

    @property
    def watched_budget(self) -> Budget:
        """The usage limits at which an execution is stopped."""
        return self.budget if self.stop_over_budget else NO_BUDGET

    def new_worker(self, context: Any, source: Source | None = None) -> Worker:
        """Return the worker of the try that begins or continues here."""
        self.worker = Worker(self.hook, self.log, context, source)
        self.used = UsedByTask(self.worker.record, context["ti"], Attempt.of(context, self))
        return self.worker

    def report(self, context: Any, state: ExecutionState, kickoff_id: str, **more: Any) -> None:
        """Record the state of the execution, also for the task's usage."""
        super().report(context, state, kickoff_id, **more)
        assert self._report
        assert self.used
        self.used.see(state, kickoff_id, self._report["execution_id"], self._report["usage"])

    def end_of_try(self, error: Exception | None) -> None:
        """Push what the task's executions have used; `ends_in_a_sentence` calls this once a try has ended by itself."""
        if self.used is not None:
            self.used.end(may_be_retried=error is not None)

    @outcomes.ends_in_a_sentence
    def resume_execution(self, next_method: str, next_kwargs: Any, context: Any) -> Any:
        """Continue with a trigger's event; after Airflow's own timeout, without one."""
        if next_method == "__fail__" and "timeout" in str((next_kwargs or {}).get("error")).lower():
            next_method = "end_without_trigger"
        return super().resume_execution(next_method, next_kwargs, context)


class CrewOverBudget(Exception):
    """The execution exceeded its limits while it was running or waiting for a person, so it must be stopped.

    :param passed: a description of the limits
    """

    def __init__(self, kickoff_id: str, passed: str) -> None:
        super().__init__(kickoff_id, passed)
        self.kickoff_id, self.passed = kickoff_id, passed


class Wait:
    """A task's wait for its execution, as steps. They end with the execution, completed or waiting for a person.

    Each of them may raise `CrewExecutionFailed`, `CrewTimeout` or `CrewOverBudget`, on which the task decides.

    :param inbox: where the execution's webhooks are stored
    :param execution_id: the id of the first kickoff, if it differs from the polled one
    :param view: the path of the execution's page, if the task has pushed its link
    """

    def __init__(
        self,
        task: WaitingTask,
        worker: Worker,
        watch: Watch,
        *,
        inbox: Json | None = None,
        execution_id: str | None = None,
        view: str | None = None,
    ) -> None:
        self.watch = watch
        self._task, self._worker = task, worker
        self._inbox, self._execution_id, self._view = inbox, execution_id, view

    def begin(self) -> Steps[Execution]:
        """Wait in the worker or, if the task is deferrable, poll once, and again for `poll_in_worker` seconds first."""
        watch = self.watch
        if not self._task.deferrable:
            return (yield from self.ended((yield PollUntilOver(watch))))
        ends = watch.started + self._task.poll_in_worker
        interval, watch.poll_interval = watch.poll_interval, min(watch.poll_interval, PAUSE_IN_WORKER)
        while True:
            outcome = yield from self.poll_once()
            pause = watch.pause(now=time.time())
            if outcome is not None or time.time() + pause > ends:
                break
            yield Pause(pause)
        watch.poll_interval = interval
        return (yield from (self.go_on() if outcome is None else self.ended(outcome)))

    def poll_once(self) -> Steps[Outcome | None]:
        """Poll once; push the link again if the status is the first to name the execution's page."""
        outcome: Outcome | None = yield PollOnce(self.watch)
        view = self.watch.progress.last.view if self.watch.progress.last else None
        if view and view != self._view:
            self._view = view
            push_view(self._worker.context, self._worker.hook, self.watch.kickoff_id, self._execution_id, view)
        return outcome

    def go_on(self) -> Steps[Execution]:
        """Continue the wait for an execution that the service knows."""
        watch = self.watch
        if not self._task.deferrable:
            return (yield from self.ended((yield PollUntilOver(watch))))
        needed = {"started": watch.started, "deadline": watch.deadline, "ended": watch.narrator.ended}
        found_by = {"kickoff_id": watch.kickoff_id, "inbox": (self._inbox or {}).get("registration")}
        # The resumed task needs the first three values; the inbox finds the waiting task by the others.
        kwargs = {"waiting": {**needed, **found_by}}
        trigger = CrewStatusTrigger.of(watch, self._task.crew_conn_id, self._task.cancel_on_kill, self._inbox)
        yield Defer(trigger, kwargs, outcomes.fallback_timeout(watch.deadline))
        raise AssertionError(NOTHING_FOLLOWS)

    def resumed(self, event: Any, waiting: Json | None) -> Steps[Execution]:
        """Continue with a trigger's event; the result is fetched here.

        :param waiting: what the wait stored when it deferred
        """
        watch = self.watch
        try:
            outcome = Outcome.from_event(event)
        except CrewError as error:
            outcomes.fail_task(error, "The fate of the execution is unknown; a retry of this task polls again")
        watch.kickoff_id = outcome.kickoff_id
        if waiting:
            watch.started, watch.deadline = waiting["started"], waiting["deadline"]
            watch.narrator.ended = waiting.get("ended", 0)
        with suppress(CrewError):
            self._worker.hook.connection  # noqa: B018  so that an error includes its base URL
        self._report(ExecutionState.RUNNING)
        if outcome.kind == SEEN and outcome.message:
            # If a webhook resumed this task, the service may report more now.
            self._worker.log.info("Execution %s: %s", watch.kickoff_id, outcome.message)
            watch.progress.known = True
            return (yield from self.begin())
        return (yield from self.ended(outcome))

    def without_trigger(self, error: str) -> Steps[Execution]:
        """Poll once and end the wait: no trigger was running, and the deadline is long past."""
        watch = self.watch
        if not watch.kickoff_id:
            raise outcomes.CrewTryFailed(f"{error}. The fate of the execution is unknown")
        watch.started, watch.deadline = outcomes.began(self._worker.context), time.time()
        return (yield from self.ended((yield PollOnce(watch))))

    def ended(self, outcome: Outcome) -> Steps[Execution]:
        """Return the execution that ended the wait, or continue the wait."""
        task, watch = self._task, self.watch
        # The worker applies the limits currently in the DAG.
        limits = {FAILED: task.budget, OVER_BUDGET: task.watched_budget}.get(outcome.kind, NO_BUDGET)
        if passed := limits.passed_by(outcome.usage):
            self._fail(outcome.usage, CrewOverBudget(watch.kickoff_id, passed))
        if outcome.kind in (SEEN, OVER_BUDGET):
            watch.progress.known = True
            return (yield from self.go_on())
        if outcome.kind == FAILED:
            self._fail(outcome.usage, CrewExecutionFailed(watch.kickoff_id, outcome.message))
        if outcome.kind in (TIMEOUT, GAVE_UP):
            status = watch.progress.last
            self._report(ExecutionState.RUNNING, outcome.usage or (status.usage if status else None))
        if outcome.kind == TIMEOUT:
            raise CrewTimeout(outcome.message)
        if outcome.kind == GAVE_UP:
            last = from_json(outcome.error)
            raise outcomes.CrewTryFailed(outcome.message, "A retry of this task polls again") from last
        assert outcome.kind in (COMPLETED, PENDING)
        execution: Execution | Outcome
        try:
            execution = yield Fetch(watch, outcome)
        except CrewError as error:
            outcomes.fail_task(error)
        watch.progress.known = True
        if isinstance(execution, Outcome):
            if execution.kind == SEEN:
                self._worker.log.info(
                    "Execution %s has continued: it was answered elsewhere, or its status was outdated. "
                    "The wait continues",
                    watch.kickoff_id,
                )
            return (yield from self.ended(execution))
        is_pending = execution.state is ExecutionState.PENDING
        if is_pending and (passed := task.watched_budget.passed_by(execution.usage)):
            self._fail(execution.usage, CrewOverBudget(watch.kickoff_id, passed))
        if is_pending and watch.wait_past_pending:
            return execution
        if execution.flow_id and execution.flow_id != execution.kickoff_id:
            note_run(self._worker.context, self._worker.hook, execution.flow_id)
        self._report(execution.state, execution.usage)
        task.multiple_outputs = False  # or Airflow would push the record's own keys, even for a pending record
        if is_pending:
            if not execution.has_details:
                return execution
            return replace(execution, files=(yield Do(files.of_question, self._worker.hook, execution)))
        metrics.completed(task.crew_conn_id, execution)
        hook = self._worker.hook
        page = hook.connection.link(execution.kickoff_id, self._execution_id, execution.view)
        self._worker.log.info("%s", hook.mask_for_log(outcomes.in_short(execution, page)))
        return execution

    def result(self, execution: Execution) -> Json:
        """Apply the rules to a completed execution; return the fields of its record that they change.

        Call this before the task records its end, so that a retry finds the execution again.
        """
        rules = self._task.output_rules
        changed = rules.applied(execution, self._worker.log)
        changed |= files.written(self._worker.hook, execution, rules.files_to)
        self._task.report_files(self._worker.context, changed)
        if rules.multiple_outputs:
            push_keys(self._worker.context, execution.kickoff_id, changed["output"])
        return changed

    def _report(self, state: ExecutionState, usage: Json | None = None) -> None:
        self._task.report(
            self._worker.context, state, self.watch.kickoff_id, execution_id=self._execution_id, usage=usage
        )

    def _fail(self, usage: Json | None, error: Exception) -> NoReturn:
        metrics.failed(self._task.crew_conn_id, usage)
        self._report(ExecutionState.ERROR, usage)
        raise error
