"""The operator that starts an execution at most once, even across crashes and lost responses."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Unpack

from airflow.providers.common.compat.sdk import XComArg, conf

from airflow_crew_provider.compat.arguments import WaitArguments
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.kickoff.request import FROM_FAILED_TASK, StartingTask
from airflow_crew_provider.kickoff.start import OwnExecution
from airflow_crew_provider.links.crew import CrewExecutionLink
from airflow_crew_provider.models import Execution, ExecutionState, Json, Webhooks
from airflow_crew_provider.questions import question_of
from airflow_crew_provider.resume.unattended import answer_unattended
from airflow_crew_provider.task.drive import Steps
from airflow_crew_provider.task.waiting import Wait
from airflow_crew_provider.wait import outcomes
from airflow_crew_provider.wait.output import OutputRules


class CrewKickoffOperator(StartingTask):
    """Start an execution of a crew, at most once, and optionally wait for it.

    Returns the kickoff id or, with ``wait_for_completion``, the record of the completed execution. Either way, the task
    pushes the id as XCom ``kickoff_id`` as soon as it is known.

    :param inputs: the crew's inputs, plain JSON (templated)
    :param files: files to send, by input name: an absolute path on the worker, a path of Airflow's object storage such
        as ``s3://bucket/key``, or an ``https://`` address, which is passed on (templated)
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
    operator_extra_links = (CrewExecutionLink(),)
    schema_of_waits: Any = None  # the output schema of the waits in `crew_with_review`
    _own: OwnExecution | None = None  # in this process

    def __init__(
        self,
        *,
        inputs: Json | XComArg,
        files: Mapping[str, Any] | XComArg | None = None,
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
        super().__init__(
            inputs=inputs,
            files=files,
            webhooks=webhooks,
            meta=meta,
            restore_from=restore_from,
            crew_conn_id=crew_conn_id,
            check_inputs=check_inputs,
            poll_in_worker=poll_in_worker,
            poll_interval=poll_interval,
            timeout=timeout,
            cancel_on_kill=cancel_on_kill,
            on_unknown_outcome=on_unknown_outcome,
            retry_from=retry_from,
            **kwargs,
        )
        self.wait_for_completion = wait_for_completion
        self.deferrable = deferrable
        if not wait_for_completion and (names := self.output_rules.names):
            raise ValueError(f"{names[0]} needs wait_for_completion=True, or belongs to the sensor")

    @outcomes.ends_in_a_sentence
    def execute(self, context: Any) -> Any:
        """Start the crew, or reattach to an earlier try's execution; then wait for it, if requested."""
        own = self._begin(context)

        def steps() -> Steps[Any]:
            kickoff_id = yield from own.start(OutputRules(self.schema_of_waits))
            if not self.wait_for_completion:
                own.close()
                return kickoff_id
            wait = own.wait(kickoff_id, view=own.view)
            return (yield from self._until_completed(own, wait, wait.begin()))

        return own.worker.drive(steps())

    def execute_complete(self, context: Any, event: Any = None, waiting: Json | None = None) -> Any:
        """Continue in a worker with the trigger's event."""
        own = self._begin(context)
        wait = own.wait("")
        return own.worker.drive(self._until_completed(own, wait, wait.resumed(event, waiting)))

    def end_without_trigger(self, context: Any, error: str) -> Any:
        """End the wait after Airflow's own timeout."""
        own = self._begin(context)
        wait = own.wait(own.last_id() or "")
        return own.worker.drive(self._until_completed(own, wait, wait.without_trigger(error)))

    def on_kill(self) -> None:
        """Stop the execution when the task is killed, or reaches its execution timeout, in a worker."""
        self.is_killed = True
        if self._own is not None:
            self._own.on_kill()

    def _begin(self, context: Any) -> OwnExecution:
        self._own = OwnExecution(self, self.new_worker(context))
        return self._own

    def _until_completed(self, own: OwnExecution, wait: Wait, steps: Steps[Execution]) -> Steps[Json]:
        """Wait until the execution has completed; return its record.

        Nobody is asked, so a question about a tool call's unknown outcome is answered ``fail``.
        """
        execution = yield from own.end_of(steps)
        while execution.state is ExecutionState.PENDING:
            if question_of(execution).unattended:
                wait.watch.answered = yield from answer_unattended(self, own.worker, execution)
            execution = yield from own.end_of(wait.go_on())
        with own.kept_for_a_retry():
            changed = wait.result(execution)
        own.close(finished=True)
        return {**execution.record(), **changed}
