"""The sensor that waits until an execution ends or needs a person."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Unpack

from airflow.providers.common.compat.sdk import AirflowSensorTimeout, BaseSensorOperator, PokeReturnValue, XComArg, conf

from airflow_crew_provider.api.requests import EXECUTION_ID, path_segment
from airflow_crew_provider.compat import deferral
from airflow_crew_provider.compat.arguments import SensorArguments
from airflow_crew_provider.exceptions import CrewError, CrewExecutionFailed, CrewTimeout
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.inbox.registering import note_run, registered_address
from airflow_crew_provider.inbox.source import InboxSource
from airflow_crew_provider.links.crew import CrewExecutionLink
from airflow_crew_provider.models import Execution, ExecutionState, Json
from airflow_crew_provider.resume.record import last_resume, lost_edit, resume_before
from airflow_crew_provider.stored_names import WATCH_STATE
from airflow_crew_provider.task.attempt import Attempt, Relation
from airflow_crew_provider.task.drive import Steps, Worker
from airflow_crew_provider.task.record import AnswerState
from airflow_crew_provider.task.store import Store, TaskStateUnavailable
from airflow_crew_provider.task.waiting import CrewOverBudget, Wait, WaitingTask
from airflow_crew_provider.wait.narrator import waits_for_a_person
from airflow_crew_provider.wait.outcomes import (
    NET,
    WAITS_AGAIN,
    CrewTaskFailed,
    Ending,
    deadline_of,
    ends_in_a_sentence,
    fail_task,
    is_final,
    seconds,
)
from airflow_crew_provider.wait.task import push_execution
from airflow_crew_provider.wait.watch import LEARNED, Watch, fate_of_stop


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
    template_fields: Sequence[str] = ("kickoff_id", "execution_id", "crew_conn_id", "output_to", "files_to")
    operator_extra_links = (CrewExecutionLink(),)
    ui_color = "#e8e4f8"
    _wait: Wait | None = None  # of the polls in this process
    _is_progress_known = True  # whether this poll could read what earlier ones have stored

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
        self._check_ids()
        self._wait = self._new_wait(context)
        self.report(context, ExecutionState.RUNNING, self.kickoff_id)
        polled_before = not self.deferrable and self._recall(context, self._wait.watch)
        wrong = "rule"
        try:
            if not polled_before:  # a storage that is away for a moment must not end a wait that has begun
                self.output_rules.refuse_unusable()
            wrong = "connection"
            push_execution(context, self.hook, self.kickoff_id, self.execution_id)
        except CrewError as error:
            now = f"correct the {wrong} and clear this task" if is_final(error) else "a retry of this task waits for it"
            fail_task(error, f"Execution {self.kickoff_id} is not affected; {now}")
        note_run(context, self.hook, self.kickoff_id)
        if self.deferrable:
            # Use Airflow's own entry point, so that soft_fail and never_fail apply from the first poll.
            return self.resume_execution("begin", None, context)
        # The watch enforces the deadline, so that the error reports the execution's fate; Airflow's is a fallback.
        own, self.timeout = self.timeout, self.timeout + NET
        try:
            return super().execute(context)
        finally:
            self.timeout = own

    def begin(self, context: Any) -> Any:
        """Poll once, then wait in the triggerer unless that poll ends the wait."""
        assert self._wait is not None  # from `execute`, in this process
        return self._end(context, self._wait, self._wait.begin())

    def execute_complete(self, context: Any, event: Any = None, waiting: Json | None = None) -> Any:
        """Continue in a worker with the trigger's event."""
        wait = self._new_wait(context)
        return self._end(context, wait, wait.resumed(event, waiting))

    def end_without_trigger(self, context: Any, error: str) -> Any:
        """End the wait after Airflow's own timeout."""
        wait = self._new_wait(context)
        return self._end(context, wait, wait.without_trigger(error))

    def poke(self, context: Any) -> bool | PokeReturnValue:
        """Poll once."""
        if self._wait is None:
            self._wait = self._new_wait(context)
            self._recall(context, self._wait.watch)
        outcome = self._worker.drive(self._wait.poll_once())
        if outcome is None:
            self._remember(context, self._wait.watch)
            return False
        return PokeReturnValue(True, self._end(context, self._wait, self._wait.ended(outcome)))

    def on_kill(self) -> None:
        """Stop the execution when the task is killed in a worker; a cleared task waits for it again."""
        self._worker.stop_if_ended(self.kickoff_id, self._stops_after, WAITS_AGAIN, has_ended=self.has_ended)

    def _stops_after(self, ending: Ending) -> bool:
        if ending is Ending.TIMEOUT:  # Airflow retries it, unlike a wait that ends at its own deadline
            return self.cancel_on_timeout and self._worker.is_last_try
        return self.cancel_on_kill

    @property
    def _worker(self) -> Worker:
        if self.worker is None:
            self.worker = Worker(self.hook, self.log)
        return self.worker

    def _new_wait(self, context: Any) -> Wait:
        """Return a wait whose deadline is counted from now."""
        source = inbox = None
        if not self.wait_past_pending:
            inbox = registered_address(context, self, self.kickoff_id)
            source = InboxSource(self.hook, inbox)
        resume = None if self.wait_past_pending else resume_before(context, self, self.kickoff_id)
        worker = self.new_worker(context, source)
        watch = Watch(
            kickoff_id=self.kickoff_id,
            started=time.time(),
            deadline=deadline_of(context, self.timeout, self._limit_of_all_polls()),
            poll_interval=self.poke_interval,
            wait_past_pending=self.wait_past_pending,
            answered=resume.answered if resume else None,
            exponential_backoff=self.exponential_backoff,
            max_wait=seconds(self.max_wait),
            budget=self.watched_budget,
        )
        return Wait(self, worker, watch, inbox=inbox, execution_id=self.execution_id)

    def _limit_of_all_polls(self) -> timedelta | None:
        """Return `execution_timeout`, or None in reschedule mode, where it applies to each poll separately."""
        return None if self.reschedule and not self.deferrable else self.execution_timeout

    def _end(self, context: Any, wait: Wait, steps: Steps[Execution]) -> Json:
        """Take the last steps of the wait; return the record."""
        try:
            execution = self._worker.drive(steps)
        except CrewExecutionFailed as failure:
            what_now = "Waiting again would not help; clear the kickoff to start a new one"
            resumed = self._resumed(context, failure.kickoff_id)
            raise CrewTaskFailed(f"{failure}. {resumed}{what_now}") from failure
        except CrewTimeout as timeout:
            stopped = self._worker.stop(wait.watch.kickoff_id, is_last=True) if self.cancel_on_timeout else None
            now = "" if self.cancel_on_timeout else ". Clear this task to wait again"
            message = f"{timeout}. {fate_of_stop(wait.watch.kickoff_id, stopped)}{now}"
            raise AirflowSensorTimeout(message) from None
        except CrewOverBudget as over:
            self._worker.fail_over_budget(over.kickoff_id, over.passed)
        resume = last_resume(context, self, execution.kickoff_id)
        if warning := lost_edit(context, self, execution, resume):
            raise CrewTaskFailed(warning)
        changed: Json = {}
        if execution.state is ExecutionState.PENDING:
            self.log.info("%s", self.hook.mask_for_log(waits_for_a_person(execution)))
            changed = resume.refusal_field(execution) if resume else {}
        else:
            changed = wait.result(execution)
        self._forget(context)
        return {**execution.record(self.execution_id), **changed}

    def _resumed(self, context: Any, kickoff_id: str) -> str:
        """Return a sentence about the resume that this wait follows, if any: it was accepted."""
        root = self.execution_id or self.kickoff_id
        resume = resume_before(context, self, kickoff_id)
        if root == kickoff_id and (resume is None or resume.state is AnswerState.LEFT):
            return ""
        return f"The resume of execution {root} was accepted; its continuation failed. "

    def _get_next_poke_interval(self, started_at: Any, run_duration: Any, poke_count: int) -> float:
        assert self._wait is not None  # from `poke`
        pause = self._wait.watch.pause(now=time.time())
        return max(pause, deferral.NOTICED_AFTER) if self.reschedule else pause

    def _check_ids(self) -> None:
        try:
            path_segment(self.kickoff_id)
            path_segment(self.execution_id or self.kickoff_id, EXECUTION_ID)
        except CrewError as error:
            fail_task(error)

    # In reschedule mode, each poll runs in a separate process, so the state of the watch is stored between polls.

    def _recall(self, context: Any, watch: Watch) -> bool:
        """Continue the watch of an earlier poll, if there may have been one; return whether there may."""
        if not self.reschedule:
            return False
        try:
            learned = self._store(context).recall()
        except TaskStateUnavailable as problem:
            self._warn(problem)
            # This poll cannot know what only the progress shows: that the wait is over, or its id unknown for too long.
            # Airflow's own timeout still applies.
            self._is_progress_known, watch.deadline, watch.progress.known = False, None, True
            return True
        attempt = Attempt.of(context, self)
        of_try = (learned.get("kickoff_id"), learned.get("try_number")) == (self.kickoff_id, attempt.try_number)
        if not of_try or attempt.relation_to(learned) is Relation.OTHER_RUN:
            return False
        watch.recall(learned)
        return True

    def _store(self, context: Any) -> Store:
        return self._worker.record.part(WATCH_STATE, (*LEARNED, *self._about(context)))

    def _remember(self, context: Any, watch: Watch) -> None:
        if self.reschedule and self._is_progress_known:
            self._store(context).change({**watch.learned(), **self._about(context)}, self._warn)
            self._worker.save()

    def _forget(self, context: Any) -> None:
        try:
            if self.reschedule:
                self._store(context).close({})
        except TaskStateUnavailable as problem:
            self._warn(problem)

    def _warn(self, problem: TaskStateUnavailable) -> None:
        self.log.warning("%s. Execution %s is not affected, and the task goes on", problem, self.kickoff_id)

    def _about(self, context: Any) -> Json:
        """Return the values that identify this try."""
        return {"kickoff_id": self.kickoff_id, **Attempt.of(context, self).as_dict()}
