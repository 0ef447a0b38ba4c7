"""The operator that starts an execution at most once, even across crashes and lost responses."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ClassVar, NoReturn, Unpack

from airflow.providers.common.compat.sdk import XComArg, conf

from airflow_crew_provider.api import asks
from airflow_crew_provider.api.answers import Draft, hash_of
from airflow_crew_provider.compat.arguments import WaitArguments
from airflow_crew_provider.exceptions import (
    REFUSED,
    CrewBadRequest,
    CrewError,
    CrewExecutionFailed,
    CrewNotFound,
    CrewOutcomeUnknown,
    CrewTimeout,
    CrewUnauthorized,
    CrewWebPage,
)
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.inbox.registering import note_run
from airflow_crew_provider.kickoff.post_record import PostRecord
from airflow_crew_provider.kickoff.request import refuse_literal_credentials, request_of
from airflow_crew_provider.kickoff.start import FROM_FAILED_TASK, NO_RETRY, RETRY_FROM, WHAT_TO_CHECK, KickoffStart
from airflow_crew_provider.links.crew import CrewExecutionLink
from airflow_crew_provider.models import Execution, ExecutionState, Json, Resume, Webhooks
from airflow_crew_provider.stored_names import KICKOFF_ID_KEY, KICKOFF_STATE
from airflow_crew_provider.task.attempt import Attempt
from airflow_crew_provider.task.store import store_of
from airflow_crew_provider.triggers.crew import CrewStatusTrigger
from airflow_crew_provider.wait import outcomes
from airflow_crew_provider.wait.output import OutputRules
from airflow_crew_provider.wait.task import WaitingTask, push_execution
from airflow_crew_provider.wait.watch import AnsweredDraft, Watch, fate_of_stop

OLD_QUESTION_SHOWS = 60.0  # seconds for which the status may still show an answered question


SECONDS_TO_RECORD = 2.0  # in a signal handler, which must end soon


class CrewKickoffOperator(WaitingTask):
    """Start an execution of a crew, at most once, and optionally wait for it.

    Returns the kickoff id or, with ``wait_for_completion``, the record of the completed execution. Either way, the task
    pushes the id as XCom ``kickoff_id`` as soon as it is known.

    :param inputs: the crew's inputs, plain JSON (templated)
    :param webhooks: a dict or `Webhooks` with the URLs to notify, or ``"inbox"`` (templated)
    :param meta: a dict that the service echoes in webhooks; the key ``airflow`` is added (templated)
    :param restore_from: for a Flow with ``@persist``, the id of the state to start from (templated)
    :param crew_conn_id: the connection of type ``crew`` (templated)
    :param check_inputs: request ``GET /inputs`` first, and fail if a required input is missing
    :param wait_for_completion: wait until the execution completes; an execution that is waiting for a person is treated
        as in progress, but a tool call whose outcome is unknown fails it, because nobody is asked about the call
    :param deferrable: wait in the triggerer, without a worker slot
    :param poll_in_worker: with ``deferrable``, how long to poll about once a second in the worker before the task
        defers, in seconds or as a timedelta; short runs then avoid the delay of a deferral
    :param poll_interval: the minimum pause between polls, in seconds or as a timedelta
    :param timeout: how long to wait, in seconds or as a timedelta; None for no limit
    :param cancel_on_kill: stop the execution (best effort) when the task is killed, cleared or times out
    :param on_unknown_outcome: what to do after a lost response: ``fail``, or ``retry`` and risk a second execution
    :param retry_from: with ``wait_for_completion``, where a retry continues after the execution has failed: at its
        ``failed_task`` if the service can continue the execution, or at the ``start``
    """

    hook_class = CrewHook
    template_fields: Sequence[str] = ("inputs", "webhooks", "meta", "restore_from", "crew_conn_id", "output_to")
    template_fields_renderers: ClassVar[dict[str, str]] = {"inputs": "json", "webhooks": "json", "meta": "json"}
    operator_extra_links = (CrewExecutionLink(),)
    ui_color = "#e8e4f8"
    schema_of_waits: Any = None  # the output schema of the waits in `crew_with_review`
    _starting: KickoffStart | None = None
    _kickoff_id: str | None = None
    _context: Any = None  # of the try that runs here
    is_killed = False  # Airflow only calls `on_kill`; the process keeps running for a few seconds

    def __init__(
        self,
        *,
        inputs: Json | XComArg,
        webhooks: Webhooks | Json | str | XComArg | None = None,
        meta: Json | XComArg | None = None,
        restore_from: str | XComArg | None = None,
        crew_conn_id: str = CrewHook.default_conn_name,
        check_inputs: bool = True,
        wait_for_completion: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_in_worker: float | str | timedelta = 0,
        poll_interval: float | str | timedelta = 10.0,
        timeout: float | str | timedelta | None = None,
        cancel_on_kill: bool = True,
        on_unknown_outcome: str = "fail",
        retry_from: str = FROM_FAILED_TASK,
        **kwargs: Unpack[WaitArguments],
    ) -> None:
        super().__init__(**kwargs)
        refuse_literal_credentials(webhooks)
        for name, value in (("poll_interval", poll_interval), ("timeout", timeout)):
            outcomes.seconds(value, name)
        if not wait_for_completion and (names := self.output_rules.names):
            raise ValueError(f"{names[0]} needs wait_for_completion=True, or belongs to the sensor")
        if on_unknown_outcome not in ("fail", "retry"):
            raise ValueError(f"on_unknown_outcome must be 'fail' or 'retry', not {on_unknown_outcome!r}")
        if retry_from not in RETRY_FROM:
            raise ValueError(f"retry_from must be 'failed_task' or 'start', not {retry_from!r}")
        self.inputs: Any = inputs
        self.webhooks = webhooks.as_dict() if isinstance(webhooks, Webhooks) else webhooks
        self.meta = meta
        self.restore_from = restore_from
        self.crew_conn_id = crew_conn_id
        self.check_inputs = check_inputs
        self.wait_for_completion = wait_for_completion
        self.deferrable = deferrable
        self.poll_in_worker = outcomes.seconds(poll_in_worker, "poll_in_worker") or 0.0
        self.poll_interval = poll_interval
        self.timeout = timeout
        self.cancel_on_kill = cancel_on_kill
        self.on_unknown_outcome = on_unknown_outcome
        self.retry_from = retry_from

    @outcomes.ends_in_a_sentence
    def execute(self, context: Any) -> Any:
        """Start the crew, or reattach to an earlier try's execution."""
        self._ti, self._context = context["ti"], context
        kickoff_id = self._start(context)
        if not self.wait_for_completion:
            self._close_record(context)
            return kickoff_id
        watch = self._watch(context, kickoff_id)
        if self.deferrable:
            return self.begin_in_triggerer(context, watch)
        return self.end(context, watch, self.poller.wait(watch))

    def on_kill(self) -> None:
        """Stop the execution when the task is killed, or reaches its execution timeout, in a worker."""
        self.is_killed = True
        start = self._starting
        kickoff_id = self._kickoff_id or (start.kickoff_id if start else None)
        if kickoff_id:
            self.log.warning("The task was killed, and execution %s may still be running", kickoff_id)
            self.stop_if_asked(kickoff_id)
        elif start and start.sent_at:
            self.log.error(
                "The task was killed while a kickoff sent at %s was in progress, so its outcome is unknown: the "
                "service may have started an execution. %s",
                start.sent_at,
                WHAT_TO_CHECK,
            )

    # --- starting ---

    def _start(self, context: Any) -> str:
        self._starting = start = KickoffStart(context, self)
        try:
            self._watch(context, "")  # validates durations before anything is sent
            start.open()
            for rules in (self.output_rules, OutputRules(self.schema_of_waits)):
                rules.refuse_unusable()
            kickoff_id = self._kickoff_id = start.start_or_reattach(request_of(self))
            self.report(context, ExecutionState.RUNNING, kickoff_id)
            context["ti"].xcom_push(key=KICKOFF_ID_KEY, value=kickoff_id)
            self.__dict__["_view"] = start.view
            # A try that reattaches reads the execution from a record, which may belong to another task.
            push_execution(context, self.hook, kickoff_id, view=start.view, is_own=start.sent_at is not None)
            self.note_run(context, kickoff_id)
            return kickoff_id
        except CrewError as error:
            outcomes.fail_task(error, f"{_advice(error)}{start.what_is_known()}")

    def newest_id(self, context: Any, kickoff_id: str) -> str:
        """Return the execution's current id, which never changes because this task never resumes it."""
        return kickoff_id

    # --- waiting ---

    def _watch(self, context: Any, kickoff_id: str) -> Watch:
        return Watch(
            kickoff_id=kickoff_id,
            started=time.time(),
            deadline=outcomes.deadline_of(context, self.timeout, self.execution_timeout),
            poll_interval=outcomes.seconds(self.poll_interval, "poll_interval") or 10.0,
            wait_past_pending=True,
            ends_at_unknown=True,
            budget=self.watched_budget,
        )

    def trigger_of(self, watch: Watch) -> CrewStatusTrigger:
        """Return the trigger that continues a watch."""
        return CrewStatusTrigger.of(watch, self.crew_conn_id, self.cancel_on_kill)

    def note_run(self, context: Any, execution_id: str) -> None:
        """Record that this DAG run started an execution, if it may be a Flow's execution."""
        note_run(context, self.hook, execution_id)

    def watch_again(self, context: Any) -> Watch:
        """Return the watch for a task that is resuming from the triggerer."""
        return self._watch(context, self._kickoff_id or self._record(context).kickoff_id or "")

    def handle_question(self, context: Any, watch: Watch, execution: Execution) -> Any:
        """Answer ``fail`` to a question about a tool call's unknown outcome, then wait for the execution to end."""
        watch.known = True
        if asks.is_unknown_outcome(execution.ask):
            watch.answered = self._fail_unknown_outcome(execution)
        if self.deferrable:
            self.go_on(watch)
        return self.end(context, watch, self.poller.wait(watch))

    def _fail_unknown_outcome(self, execution: Execution) -> AnsweredDraft:
        """Send the answer; repeating it is safe, because the service accepts it only once, for this question."""
        kickoff_id, question = execution.kickoff_id, execution.crew_task_id
        assert execution.ask
        assert question
        self.log.warning(
            "Execution %s asks about a call whose outcome is unknown: %s. This task asks nobody, so it answers that "
            "the execution should fail",
            kickoff_id,
            self.hook.mask_for_log(asks.in_words(execution.ask)),
        )
        shown = Draft(kickoff_id, question, hash_of(execution))
        answer = Resume(
            execution_id=kickoff_id,
            crew_task_id=question,
            human_feedback="",
            is_approve=False,
            outcome=asks.FAIL,
            output_sha256=shown.output_sha256 if execution.checks_draft else None,
        )
        try:
            self.hook.send_resume(answer)
        except (CrewBadRequest, CrewNotFound, CrewOutcomeUnknown) as error:
            self.log.info("The next poll will show whether the answer was accepted: %s", error)
        except CrewError as error:
            said = f"Execution {kickoff_id} is waiting for an answer"
            outcomes.fail_task(
                error, said if outcomes.is_final(error) else f"{said}; a retry of this task answers again"
            )
        return AnsweredDraft(shown, time.time() + OLD_QUESTION_SHOWS)

    def make_result(self, context: Any, execution: Execution) -> Json:
        """Return the record of the completed execution."""
        self._close_record(context, finished=True)
        return execution.record()

    def _close_record(self, context: Any, *, finished: bool = False) -> None:
        """Record that the task has ended; if that fails, only log the error, so that the result is not lost."""
        self._record_or_log(
            context, lambda record: record.close(finished=finished), "The end of this task could not be stored"
        )

    def record_over_budget(self, context: Any, passed: str) -> None:
        """Record the exceeded budget, so that a retry starts nothing; if that fails, it uses the service's figures."""
        self._record_or_log(
            context, lambda record: record.mark_over_budget(passed), "The exceeded budget could not be recorded"
        )

    def _record(self, context: Any) -> PostRecord:
        return PostRecord(store_of(context, KICKOFF_STATE), Attempt.of(context, self))

    def raise_failure(self, watch: Watch, error: str) -> NoReturn:
        """Fail so that a retry starts a new execution."""
        failure = CrewExecutionFailed(watch.kickoff_id, error)
        where = ", from the failed task if the service supports that" if self.retry_from == FROM_FAILED_TASK else ""
        raise outcomes.CrewTryFailed(f"{failure}. A retry of this task starts a new execution{where}") from failure

    def raise_timeout(self, context: Any, watch: Watch, message: str) -> NoReturn:
        """Fail, and stop the execution if `cancel_on_kill` is set; fail for good if a retry would start a new one."""
        stopped: bool | CrewError | None = None
        if self.cancel_on_kill:
            # Recorded before the stop, because a retry that then finds the execution ended must not start another.
            self._record_timeout(context, message)
            stopped = self.stop_execution(watch.kickoff_id)
        said = f"{message}. {fate_of_stop(watch.kickoff_id, stopped)}"
        if stopped is True:
            raise outcomes.CrewTaskFailed(f"{said}. {NO_RETRY}") from CrewTimeout(message)
        now = "A retry of this task waits for it again"
        if isinstance(stopped, CrewError) and not isinstance(stopped, REFUSED):
            now = "A retry of this task stops it, unless it has completed"
        elif stopped is not None:
            self._record_timeout(context, "")
        raise outcomes.CrewTryFailed(f"{said}. {now}") from CrewTimeout(message)

    def record_stop(self, *, by_timeout: bool) -> bool:
        """Record a stop at the execution timeout, after which no retry may start another; a kill's is only noted."""
        context = self._context
        if context is None:
            return True
        if not by_timeout:
            outcomes.in_signal_handler(lambda: self._note_kill(context), SECONDS_TO_RECORD)
            return True
        limit = f"The task reached its execution_timeout of {self.execution_timeout}"
        ti = context["ti"]
        return self._record_timeout(context, limit) or ti.try_number > ti.max_tries

    def _note_kill(self, context: Any) -> None:
        self._record_or_log(
            context, lambda record: record.note(killed_at=time.time()), "The kill could not be recorded"
        )

    def _record_timeout(self, context: Any, message: str) -> bool:
        return self._record_or_log(
            context, lambda record: record.mark_timed_out(message), "The timeout could not be recorded"
        )

    def _record_or_log(self, context: Any, change: Callable[[PostRecord], None], problem: str) -> bool:
        try:
            change(self._record(context))
        except CrewError as error:
            self.log.warning("%s: %s", problem, error)
            return False
        return True


def _advice(error: CrewError) -> str:
    if isinstance(error, CrewUnauthorized):
        return "Check the connection's token. "
    if isinstance(error, CrewWebPage):
        return "If it stays so, this is not a crew deployment: check the connection's Host. "
    return "Check the connection's Host, including its path. " if isinstance(error, CrewNotFound) else ""
