"""The sensor that waits until an execution ends or needs a person."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn, Unpack

from airflow.providers.common.compat.sdk import AirflowSensorTimeout, BaseSensorOperator, PokeReturnValue, XComArg, conf

from airflow_crew_provider.api.endpoints import path_segment
from airflow_crew_provider.compat import deferral
from airflow_crew_provider.compat.arguments import SensorArguments
from airflow_crew_provider.exceptions import CrewError, CrewExecutionFailed
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.inbox.registering import note_run, registered_address
from airflow_crew_provider.inbox.source import InboxSource
from airflow_crew_provider.links.crew import CrewExecutionLink
from airflow_crew_provider.models import Execution, ExecutionState, Json
from airflow_crew_provider.resume.record import State, answered_before, lost_edit, resume_before
from airflow_crew_provider.stored_names import WATCH_STATE
from airflow_crew_provider.task.attempt import Attempt
from airflow_crew_provider.task.store import store_of
from airflow_crew_provider.triggers.crew import CrewStatusTrigger
from airflow_crew_provider.wait.outcomes import (
    NET,
    WAITS_AGAIN,
    CrewTaskFailed,
    deadline_of,
    ends_in_a_sentence,
    fail_task,
    seconds,
)
from airflow_crew_provider.wait.poller import Poller
from airflow_crew_provider.wait.task import WaitingTask, push_execution
from airflow_crew_provider.wait.watch import Watch, fate_of_stop, waits_for_a_person


class CrewStatusSensor(WaitingTask, BaseSensorOperator):
    """Wait until an execution completes or needs a person, and return its record.

    A failed execution fails the task at once and without retries, because polling again would not help.

    :param kickoff_id: the id to poll (templated)
    :param execution_id: the id of the first kickoff, if it differs (templated)
    :param crew_conn_id: the connection of type ``crew`` (templated)
    :param wait_past_pending: treat an execution that is waiting for a person as in progress
    :param deferrable: wait in the triggerer, without a worker slot
    :param poll_in_worker: with ``deferrable``, how long to poll about once a second in the worker before the task
        defers, in seconds or as a timedelta; short runs then avoid the delay of a deferral
    :param cancel_on_timeout: stop the execution (best effort) when the sensor times out
    :param cancel_on_kill: stop the execution (best effort) when a user ends the waiting task
    :param poke_interval: the minimum pause between polls, in seconds or as a timedelta; with ``mode="reschedule"``,
        no pause is shorter than 8 s
    """

    hook_class = CrewHook
    template_fields: Sequence[str] = ("kickoff_id", "execution_id", "crew_conn_id", "output_to")
    operator_extra_links = (CrewExecutionLink(),)
    ui_color = "#e8e4f8"
    _watch: Watch | None = None

    def __init__(
        self,
        *,
        kickoff_id: str | XComArg,
        execution_id: str | XComArg | None = None,
        crew_conn_id: str = CrewHook.default_conn_name,
        wait_past_pending: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_in_worker: float | str | timedelta = 0,
        cancel_on_timeout: bool = False,
        cancel_on_kill: bool = False,
        poke_interval: float = 10.0,
        **kwargs: Unpack[SensorArguments],
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.kickoff_id: Any = kickoff_id
        self.execution_id: Any = execution_id
        self.crew_conn_id = crew_conn_id
        self.wait_past_pending = wait_past_pending
        self.deferrable = deferrable
        self.poll_in_worker = seconds(poll_in_worker, "poll_in_worker") or 0.0
        self.cancel_on_timeout = cancel_on_timeout
        self.cancel_on_kill = cancel_on_kill

    @ends_in_a_sentence
    def execute(self, context: Any) -> Any:
        """Wait in the configured way."""
        self._ti = context["ti"]
        self._check_ids()
        self.report(context, ExecutionState.RUNNING, self.kickoff_id)
        try:
            self.output_rules.refuse_unusable()
        except CrewError as error:
            fail_task(error, f"Execution {self.kickoff_id} is not affected; correct the rule and clear this task")
        self.open_sources(context, self.kickoff_id)
        try:
            push_execution(context, self.hook, self.kickoff_id, self.execution_id)
        except CrewError as error:
            fail_task(error)
        self.note_run(context, self.kickoff_id)
        if self.deferrable:
            # Use Airflow's own entry point, so that soft_fail and never_fail apply from the first poll.
            return self.resume_execution("begin", None, context)
        self._watch = self._recalled(context)
        # The watch enforces the deadline, so that the error reports the execution's fate; Airflow's is a fallback.
        own, self.timeout = self.timeout, self.timeout + NET
        try:
            return super().execute(context)
        finally:
            self.timeout = own

    def begin(self, context: Any) -> Any:
        """Poll once, then wait in the triggerer unless that poll ends the wait."""
        return self.begin_in_triggerer(context, self.watch_again(context))

    def poke(self, context: Any) -> bool | PokeReturnValue:
        """Poll once."""
        if self._watch is None:
            self._watch = self._recalled(context)
        outcome = self.poller.poll_once(self._watch)
        self.push_view(context, self._watch)
        if outcome is None:
            self._remember(context)
            return False
        return PokeReturnValue(True, self.end(context, self._watch, outcome))

    def open_sources(self, context: Any, kickoff_id: str) -> None:
        """Make all polls also read webhooks if the execution was started with the inbox."""
        if not self.wait_past_pending:
            self.inbox = registered_address(context, self, kickoff_id)
            self.__dict__["_poller"] = Poller(self.hook, InboxSource(self.hook, self.inbox))

    def trigger_of(self, watch: Watch) -> CrewStatusTrigger:
        """Return the trigger that continues a watch."""
        return CrewStatusTrigger.of(watch, self.crew_conn_id, self.cancel_on_kill, self.inbox)

    def note_run(self, context: Any, execution_id: str) -> None:
        """Record that this DAG run is waiting for an execution, if it may be a Flow's execution."""
        note_run(context, self.hook, execution_id)

    def on_kill(self) -> None:
        """Stop the execution when the task is killed in a worker; a cleared task waits for it again."""
        self.stop_if_asked(self.kickoff_id, WAITS_AGAIN)

    def watch_again(self, context: Any) -> Watch:
        """Return a watch whose deadline is counted from now."""
        return Watch(
            kickoff_id=self.kickoff_id,
            started=time.time(),
            deadline=deadline_of(context, self.timeout, self._limit_of_all_polls()),
            poll_interval=self.poke_interval or 1.0,
            wait_past_pending=self.wait_past_pending,
            answered=None if self.wait_past_pending else answered_before(context, self, self.kickoff_id),
            exponential_backoff=self.exponential_backoff,
            max_wait=seconds(self.max_wait),
            budget=self.watched_budget,
        )

    def _limit_of_all_polls(self) -> timedelta | None:
        """Return `execution_timeout`, or None in reschedule mode, where it applies to each poll separately."""
        return None if self.reschedule and not self.deferrable else self.execution_timeout

    def check(self, context: Any, execution: Execution) -> None:
        """Fail if the previous resume left an edited draft for a round that never came."""
        said = lost_edit(context, self, execution)
        if said:
            raise CrewTaskFailed(said)

    def make_result(self, context: Any, execution: Execution) -> Json:
        """Return the record."""
        if execution.state is ExecutionState.PENDING:
            self.log.info("%s", self.hook.mask_for_log(waits_for_a_person(execution)))
        if self.reschedule:
            store_of(context, WATCH_STATE).close({})
        return execution.record(self.execution_id)

    def raise_failure(self, watch: Watch, error: str) -> NoReturn:
        """Fail for good; after a resume, report that it was accepted but the execution then failed."""
        failure = CrewExecutionFailed(watch.kickoff_id, error)
        continuation = f"{self._resumed(watch)}Waiting again would not help; clear the kickoff to start a new one"
        raise CrewTaskFailed(f"{failure}. {continuation}") from failure

    def _resumed(self, watch: Watch) -> str:
        root = self.execution_id or self.kickoff_id
        resume = resume_before({"ti": self._ti}, self, watch.kickoff_id)
        if root == watch.kickoff_id and (resume is None or resume.state is State.LEFT):
            return ""
        return f"The resume of execution {root} was accepted; its continuation failed. "

    def raise_timeout(self, context: Any, watch: Watch, message: str) -> NoReturn:
        """Fail as sensors do at their timeout; stop the execution if `cancel_on_timeout` is set."""
        stopped = self.stop_execution(watch.kickoff_id) if self.cancel_on_timeout else None
        now = "" if self.cancel_on_timeout else ". Clear this task to wait again"
        raise AirflowSensorTimeout(f"{message}. {fate_of_stop(watch.kickoff_id, stopped)}{now}")

    def _get_next_poke_interval(self, started_at: Any, run_duration: Any, poke_count: int) -> float:
        if self._watch is None:
            return super()._get_next_poke_interval(started_at, run_duration, poke_count)
        pause = self._watch.pause(now=time.time())
        return max(pause, deferral.NOTICED_AFTER) if self.reschedule else pause

    def _check_ids(self) -> None:
        try:
            for identifier in (self.kickoff_id, self.execution_id or self.kickoff_id):
                path_segment(identifier)
        except CrewError as error:
            fail_task(error)

    # In reschedule mode, each poll runs in a separate process, so the state of the watch is stored between polls.

    def _recalled(self, context: Any) -> Watch:
        watch = self.watch_again(context)
        kept = store_of(context, WATCH_STATE).recall() if self.reschedule else {}
        about = self._about(context)
        if "kickoff_id" in kept and all(kept.get(name, value) == value for name, value in about.items()):
            watch.recall(kept)
        return watch

    def _remember(self, context: Any) -> None:
        if not self.reschedule or self._watch is None:
            return
        store_of(context, WATCH_STATE).keep({**self._watch.learned(), **self._about(context)})

    def _about(self, context: Any) -> Json:
        """Return the values that identify this try; the record of a deleted run may have the same try number."""
        attempt = Attempt.of(context, self)
        return {"kickoff_id": self.kickoff_id, "try_number": attempt.try_number, "run_after": attempt.run_after}
