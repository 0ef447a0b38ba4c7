"""The worker's part of a wait: begin, defer to the triggerer, and resume with an outcome."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, NoReturn

from airflow.providers.common.compat.sdk import Asset, BaseOperator, TaskDeferred

from airflow_crew_provider.api.budget import FAIL, NO_BUDGET, Budget
from airflow_crew_provider.client.crew import ConnectedCrew
from airflow_crew_provider.compat import metrics
from airflow_crew_provider.compat.execution_record import record_execution
from airflow_crew_provider.exceptions import CrewConnectionError, CrewError, from_json
from airflow_crew_provider.models import Execution, ExecutionState, Json
from airflow_crew_provider.stored_names import EXECUTION_KEY, LINK_KEY
from airflow_crew_provider.wait import outcomes, output
from airflow_crew_provider.wait.output import OutputRules, push_keys
from airflow_crew_provider.wait.poller import Poller
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
    fate_of_stop,
)

UNKNOWN = "unknown"
PAUSE_IN_WORKER = 1.0  # seconds between polls before a deferral, unless the poll interval is shorter


class CrewTask(BaseOperator):
    """The base class of all tasks; it provides the connection's hook and the execution's link, events and lineage."""

    crew_conn_id: str
    hook_class: type[ConnectedCrew] = ConnectedCrew

    @property
    def hook(self) -> ConnectedCrew:
        """The hook of the connection, created on first use, when the connection id has been rendered."""
        made: ConnectedCrew | None = self.__dict__.get("_hook")
        if made is None:
            made = self.__dict__["_hook"] = self.hook_class(self.crew_conn_id)
        return made

    @outcomes.ends_in_a_sentence
    def resume_execution(self, next_method: str, next_kwargs: Any, context: Any) -> Any:
        """Continue with a trigger's event."""
        return super().resume_execution(next_method, next_kwargs, context)

    def report(
        self,
        context: Any,
        state: ExecutionState,
        kickoff_id: str,
        *,
        execution_id: str | None = None,
        usage: Json | None = None,
    ) -> None:
        """Record the state of the execution, and add it to the task's outlet events."""
        root = execution_id or getattr(self, "execution_id", None) or kickoff_id
        seen = {"crew_conn_id": self.crew_conn_id, "kickoff_id": kickoff_id, "execution_id": root, "state": str(state)}
        self.__dict__["_report"] = {**seen, "usage": usage}
        for outlet in self.outlets or ():
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra.update(self._report)

    def report_unknown(self, request: str) -> None:
        """Record that a POST may have arrived; ``request`` is ``kickoff`` or ``resume``."""
        metrics.outcome_unknown(self.crew_conn_id, request)
        self.__dict__["_report"] = {**self._report, "state": UNKNOWN}

    def get_openlineage_facets_on_start(self) -> Any:
        """Return the lineage at the start; only OpenLineage calls this and the next two, so it must be installed."""
        from airflow_crew_provider.wait.lineage import lineage_of

        inputs = getattr(self, "inputs", None)
        return lineage_of(self.crew_conn_id, sorted(map(str, inputs)) if isinstance(inputs, dict) else [], self._report)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the lineage of a task that succeeded."""
        return self.get_openlineage_facets_on_start()

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """Return the lineage of a task that failed."""
        return self.get_openlineage_facets_on_start()

    @property
    def _report(self) -> Json:
        return self.__dict__.get("_report") or {}


def push_execution(
    context: Any,
    hook: ConnectedCrew,
    kickoff_id: str,
    execution_id: str | None = None,
    view: str | None = None,
    *,
    is_own: bool = False,
) -> None:
    """Push the task's execution before the task waits, and record that it belongs to this DAG run.

    :param is_own: whether this try started it
    :raises CrewError: the connection cannot be used
    """
    about = _about(hook.crew_conn_id, kickoff_id, execution_id, view)
    record_execution(context, about, is_own=is_own)
    _announce(context, hook, about)


def push_execution_of(context: Any, crew_conn_id: str, record: Json, log: Any) -> None:
    """Push the execution of a record; the record is another task's XCom, so it proves nothing on its own."""
    execution_id = record["execution_id"]
    about = _about(crew_conn_id, record.get("kickoff_id") or execution_id, execution_id, record.get("view"))
    try:
        _announce(context, ConnectedCrew(crew_conn_id), about)
    except CrewError as error:
        log.info("No link to the execution: %s", error)


def _about(crew_conn_id: str, kickoff_id: str, execution_id: str | None, view: str | None) -> Json:
    ids = {"kickoff_id": kickoff_id, "execution_id": execution_id or kickoff_id}
    return {**ids, "crew_conn_id": crew_conn_id, "view": view}


def _announce(context: Any, hook: ConnectedCrew, about: Json) -> None:
    """Push the execution and the URL of its link, which is empty if there is no page.

    An empty URL is pushed too, because Airflow logs an error for a link whose XCom is missing. If the connection cannot
    be looked up now, the execution is pushed without a link.
    """
    try:
        url = hook.connection.link(about["kickoff_id"], about["execution_id"], about["view"])
    except CrewConnectionError as error:
        hook.log.warning("No link to the execution: %s", error)
        url = ""
    context["ti"].xcom_push(key=EXECUTION_KEY, value=about)
    context["ti"].xcom_push(key=LINK_KEY, value=url)


class WaitingTask(CrewTask):
    """The base class of operators and sensors that wait; subclasses define what to poll and how to handle the end.

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
    :param multiple_outputs: push each key of a completed output, which must be an object, as a separate XCom; the
        record is still ``return_value``
    """

    cancel_on_kill: bool
    poll_in_worker: float  # seconds
    inbox: Json | None = None  # where the execution's webhooks are stored, once looked up
    _ti: Any = None
    _is_stopping = False

    def __init__(
        self,
        *,
        output_schema: Json | str | type | None = None,
        max_total_tokens: int | None = None,
        max_cost: float | None = None,
        on_unknown_usage: str = FAIL,
        stop_over_budget: bool = True,
        output_to: str | None = None,
        multiple_outputs: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.output_schema = output_schema
        self.max_total_tokens = max_total_tokens
        self.max_cost = max_cost
        self.on_unknown_usage = on_unknown_usage
        self.stop_over_budget = stop_over_budget
        self.output_to = output.given_path(output_to)
        self._pushes_keys = self.multiple_outputs = multiple_outputs
        self.output_rules  # noqa: B018  refuses an invalid rule when the DAG file is parsed

    @property
    def output_rules(self) -> OutputRules:
        """The task's rules for a completed execution."""
        return OutputRules(self.output_schema, self.budget, self.on_unknown_usage, self.output_to, self._pushes_keys)

    @property
    def budget(self) -> Budget:
        """The limits on an execution's usage."""
        return Budget(self.max_total_tokens, self.max_cost)

    @property
    def watched_budget(self) -> Budget:
        """The usage limits at which an execution is stopped."""
        return self.budget if self.stop_over_budget else NO_BUDGET

    def record_over_budget(self, context: Any, passed: str) -> None:
        """Record, before the execution is stopped, that a retry must not start another one."""

    @property
    def poller(self) -> Poller:
        """This task's poller; it reads only the status until `open_sources` adds other sources of questions."""
        made: Poller | None = self.__dict__.get("_poller")
        if made is None or made.hook is not self.hook:
            made = self.__dict__["_poller"] = Poller(self.hook)
        return made

    def open_sources(self, context: Any, kickoff_id: str) -> None:
        """Make all polls also check places other than the status where this execution may ask questions."""

    def trigger_of(self, watch: Watch) -> Any:
        """Return the trigger that continues a watch."""
        raise NotImplementedError

    def note_run(self, context: Any, execution_id: str) -> None:
        """Record that this DAG run is waiting for an execution, so that its questions are removed with the run."""
        raise NotImplementedError

    def watch_again(self, context: Any) -> Watch:
        """Return the watch that the task's arguments describe; its deadline is counted from now."""
        raise NotImplementedError

    def make_result(self, context: Any, execution: Execution) -> Json:
        """Return the record."""
        raise NotImplementedError

    def handle_question(self, context: Any, watch: Watch, execution: Execution) -> Any:
        """Handle a question that interrupts a wait with `wait_past_pending`, and continue."""
        watch.known = True
        self.go_on(watch)

    def raise_failure(self, watch: Watch, error: str) -> NoReturn:
        """Raise the error for a failed execution."""
        raise NotImplementedError

    def raise_timeout(self, context: Any, watch: Watch, message: str) -> NoReturn:
        """Raise the error for a wait that reached its deadline."""
        raise NotImplementedError

    def begin_in_triggerer(self, context: Any, watch: Watch) -> Any:
        """Poll once, and again for `poll_in_worker` seconds, then defer to the triggerer unless the wait has ended."""
        ends = watch.started + self.poll_in_worker
        interval, watch.poll_interval = watch.poll_interval, min(watch.poll_interval, PAUSE_IN_WORKER)
        while True:
            outcome = self.poller.poll_once(watch)
            self.push_view(context, watch)
            pause = watch.pause(now=time.time())
            if outcome is not None or time.time() + pause > ends:
                break
            time.sleep(pause)
        watch.poll_interval = interval
        if outcome is None:
            self.go_on(watch)
        return self.end(context, watch, outcome)

    def push_view(self, context: Any, watch: Watch) -> None:
        """Push the link again if the first status names the execution's page."""
        view = watch.last.view if watch.last else None
        if view and self.__dict__.get("_view") != view:
            self.__dict__["_view"] = view
            execution_id = getattr(self, "execution_id", None)
            _announce(context, self.hook, _about(self.crew_conn_id, watch.kickoff_id, execution_id, view))

    @outcomes.ends_in_a_sentence
    def resume_execution(self, next_method: str, next_kwargs: Any, context: Any) -> Any:
        """Continue with a trigger's event; after Airflow's own timeout, without one."""
        if next_method == "__fail__" and "timeout" in str((next_kwargs or {}).get("error")).lower():
            next_method = "end_without_trigger"
        return super().resume_execution(next_method, next_kwargs, context)

    def end_without_trigger(self, context: Any, error: str) -> Any:
        """Poll once and end the task: no trigger was running, and the deadline is long past."""
        self.__dict__.update(_ti=context["ti"], _context=context)
        watch = self.watch_again(context)
        if not watch.kickoff_id:
            raise outcomes.CrewTryFailed(f"{error}. The fate of the execution is unknown")
        watch.started, watch.deadline = outcomes.began(context), time.time()
        self.open_sources(context, watch.kickoff_id)
        outcome = self.poller.poll_once(watch)
        assert outcome is not None
        return self.end(context, watch, outcome)

    def go_on(self, watch: Watch) -> NoReturn:
        """Defer to the triggerer, which frees the worker slot."""
        needed = {"started": watch.started, "deadline": watch.deadline, "ended": watch.ended}
        found_by = {"kickoff_id": watch.kickoff_id, "inbox": (self.inbox or {}).get("registration")}
        raise TaskDeferred(
            trigger=self.trigger_of(watch),
            method_name="execute_complete",
            # The resumed task needs the first three values; the inbox finds the waiting task by the others.
            kwargs={"waiting": {**needed, **found_by}},
            timeout=outcomes.fallback_timeout(watch.deadline),
        )

    def execute_complete(self, context: Any, event: Any = None, waiting: Json | None = None) -> Any:
        """Handle the trigger's event in a worker; the result is fetched here."""
        try:
            outcome = Outcome.from_event(event)
        except CrewError as error:
            outcomes.fail_task(error, "The fate of the execution is unknown; a retry of this task polls again")
        self.__dict__.update(_ti=context["ti"], _context=context, _kickoff_id=outcome.kickoff_id)
        with suppress(CrewError):
            self.hook.connection  # noqa: B018  so that an error includes its base URL
        self.report(context, ExecutionState.RUNNING, outcome.kickoff_id)
        watch = self.watch_again(context)
        watch.kickoff_id = outcome.kickoff_id
        if waiting:
            watch.started, watch.deadline = waiting["started"], waiting["deadline"]
            watch.ended = waiting.get("ended", 0)
        self.open_sources(context, watch.kickoff_id)
        if outcome.kind == SEEN and outcome.message:
            # If a webhook resumed this task, the service may report more now.
            self.log.info("Execution %s: %s", watch.kickoff_id, outcome.message)
            watch.known = True
            return self.begin_in_triggerer(context, watch)
        return self.end(context, watch, outcome)

    def end(self, context: Any, watch: Watch, outcome: Outcome) -> Any:
        """End the task as the outcome requires, or continue waiting."""
        # The worker applies the limits currently in the DAG.
        limits = {FAILED: self.budget, OVER_BUDGET: self.watched_budget}.get(outcome.kind, NO_BUDGET)
        if passed := limits.passed_by(outcome.usage):
            self._over_budget(context, watch, passed, outcome.usage)
        if outcome.kind in (SEEN, OVER_BUDGET):
            watch.known = True
            self.go_on(watch)
        if outcome.kind == FAILED:
            metrics.failed(self.crew_conn_id, outcome.usage)
            self.report(context, ExecutionState.ERROR, watch.kickoff_id, usage=outcome.usage)
            self.raise_failure(watch, outcome.message)
        if outcome.kind == TIMEOUT:
            self.raise_timeout(context, watch, outcome.message)
        if outcome.kind == GAVE_UP:
            last = from_json(outcome.error)
            raise outcomes.CrewTryFailed(f"{outcome.message}. A retry of this task polls again") from last
        assert outcome.kind in (COMPLETED, PENDING)
        try:
            execution = outcomes.ended(self.poller, watch, outcome)
        except CrewError as error:
            outcomes.fail_task(error)
        if execution is None:
            self.log.info(
                "Execution %s has continued: it was answered elsewhere, or its status was outdated. The wait continues",
                watch.kickoff_id,
            )
            watch.known = True
            self.go_on(watch)
        if execution.state is ExecutionState.PENDING and (passed := self.watched_budget.passed_by(execution.usage)):
            self._over_budget(context, watch, passed, execution.usage)
        if execution.state is ExecutionState.PENDING and watch.wait_past_pending:
            return self.handle_question(context, watch, execution)
        if execution.flow_id and execution.flow_id != execution.kickoff_id:
            self.note_run(context, execution.flow_id)
        self.report(context, execution.state, execution.kickoff_id, usage=execution.usage)
        self.multiple_outputs = False  # or Airflow would push the record's own keys, even for a pending record
        if execution.state is ExecutionState.COMPLETED:
            metrics.completed(self.crew_conn_id, execution)
            page = self.hook.connection.link(execution.kickoff_id, getattr(self, "execution_id", None), execution.view)
            self.log.info("%s", self.hook.mask_for_log(outcomes.in_short(execution, page)))
        self.check(context, execution)
        if execution.state is not ExecutionState.COMPLETED:
            return self.make_result(context, execution)
        # Apply the rules before the task records its end, so that a retry finds the execution again.
        changed = self.output_rules.applied(execution, self.log)
        if self._pushes_keys:
            push_keys(context, execution.kickoff_id, changed["output"])
        return {**self.make_result(context, execution), **changed}

    def _over_budget(self, context: Any, watch: Watch, passed: str, usage: Json | None) -> NoReturn:
        self.record_over_budget(context, passed)
        metrics.failed(self.crew_conn_id, usage)
        self.report(context, ExecutionState.ERROR, watch.kickoff_id, usage=usage)
        outcomes.fail_over_budget(self.poller, watch.kickoff_id, passed, self.log)

    def check(self, context: Any, execution: Execution) -> None:
        """Fail if the execution must not be passed downstream."""

    def stop_execution(self, kickoff_id: str) -> bool | CrewError:
        """Try to stop an execution; return whether it was stopped, or the error.

        The task's execution timeout may interrupt a stop that the wait's own timeout requested, and then request it
        again. The service refuses the second one, although the first one worked.
        """
        was_interrupted, self._is_stopping = self._is_stopping, True
        try:
            stopped = self.hook.stop(kickoff_id)
        except CrewError as error:
            return error
        if not stopped and was_interrupted:
            reply = self.poller.poll(kickoff_id)
            return isinstance(reply, Execution) and reply.has_failed
        self._is_stopping = False
        return stopped

    def record_stop(self, *, by_timeout: bool) -> bool:
        """Record that this task stops its execution, before it does; return whether it may.

        :param by_timeout: whether the task's execution timeout asks for it; otherwise a kill does, in a signal handler
        """
        return True

    def stop_if_asked(self, kickoff_id: str, goes_on: outcomes.States = outcomes.GOES_ON) -> None:
        """Stop the execution of a task that ended for good, if `cancel_on_kill` is set; log its fate either way."""
        has_ended = outcomes.has_ended(self)
        asked = self.cancel_on_kill and outcomes.is_for_good(self._ti, goes_on, has_ended=has_ended)
        asked = asked and self.record_stop(by_timeout=outcomes.is_by_timeout())
        stopped = self.stop_execution(kickoff_id) if asked else None
        self.log.info("The task was killed. %s", fate_of_stop(kickoff_id, stopped))
