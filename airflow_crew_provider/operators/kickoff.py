"""The operator that starts an execution, at most once through crashes and lost answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import AirflowException, AirflowNotFoundException, BaseOperator, XComArg, conf

from airflow_crew_provider.exceptions import (
    CrewError,
    CrewExecutionFailed,
    CrewInvalidInput,
    CrewMissingInputs,
    CrewTimeout,
    CrewUnauthorized,
)
from airflow_crew_provider.hooks.crew import CrewHook, checked_inputs
from airflow_crew_provider.hooks.memory import memory_of, task_identity
from airflow_crew_provider.hooks.waits import CrewTaskFailed, deadline_of, fail_task, seconds
from airflow_crew_provider.jsonvalues import plain_object
from airflow_crew_provider.links.crew import CrewExecutionLink, push_link
from airflow_crew_provider.models import Execution, ExecutionState, Json, Webhooks
from airflow_crew_provider.operators.once import Earlier, Ledger, fingerprint
from airflow_crew_provider.operators.webhooks import (
    checked_webhooks,
    refuse_literal_credentials,
    tell_inbox,
    webhooks_to_send,
    with_credentials,
)
from airflow_crew_provider.triggers.waiting_task import WaitingTask
from airflow_crew_provider.waiting import Watch

KICKOFF_ID = "kickoff_id"
MEMORY = "crew_kickoff"
NOT_STARTED = "No execution was started"


class CrewKickoffOperator(WaitingTask, BaseOperator):
    """Start an execution of a crew, at most once, and wait for it if asked to.

    Returns the kickoff id; with ``wait_for_completion`` the record of the completed execution. The id is pushed as
    XCom ``kickoff_id`` in both cases, as soon as it is known.

    :param inputs: what the crew asks for, plain JSON (templated)
    :param webhooks: a dict or `Webhooks` of the addresses to notify, or the word ``inbox`` (templated)
    :param meta: echoed by the service in webhooks; the key ``airflow`` is added (templated)
    :param crew_conn_id: the connection of type ``crew`` (templated)
    :param check_inputs: ask ``GET /inputs`` first, and fail if one is missing
    :param wait_for_completion: wait until the execution is completed; a wait for a person counts as in progress
    :param deferrable: wait in the triggerer, without a worker slot
    :param poll_interval: the shortest pause between two looks, in seconds or as a timedelta
    :param timeout: how long to wait, in seconds or as a timedelta; None for no end
    :param cancel_on_kill: stop the execution, best effort, when the task is killed, cleared or times out
    :param on_unknown_outcome: after a lost answer: ``fail``, or ``retry`` and risk a second execution
    """

    template_fields: Sequence[str] = ("inputs", "webhooks", "meta", "crew_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"inputs": "json", "webhooks": "json", "meta": "json"}
    operator_extra_links = (CrewExecutionLink(),)
    ui_color = "#e8e4f8"

    def __init__(
        self,
        *,
        inputs: Json | XComArg,
        webhooks: Webhooks | Json | str | XComArg | None = None,
        meta: Json | XComArg | None = None,
        crew_conn_id: str = CrewHook.default_conn_name,
        check_inputs: bool = True,
        wait_for_completion: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float | timedelta = 10.0,
        timeout: float | timedelta | None = None,
        cancel_on_kill: bool = True,
        on_unknown_outcome: str = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        refuse_literal_credentials(webhooks)
        if on_unknown_outcome not in ("fail", "retry"):
            raise ValueError(f"on_unknown_outcome is 'fail' or 'retry', not {on_unknown_outcome!r}")
        self.inputs: Any = inputs
        self.webhooks = webhooks.as_dict() if isinstance(webhooks, Webhooks) else webhooks
        self.meta = meta
        self.crew_conn_id = crew_conn_id
        self.check_inputs = check_inputs
        self.wait_for_completion = wait_for_completion
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self.timeout = timeout
        self.cancel_on_kill = cancel_on_kill
        self.on_unknown_outcome = on_unknown_outcome
        self._kickoff_id: str | None = None

    def execute(self, context: Any) -> Any:
        """Start the crew, or take up what an earlier try has started."""
        self._ti = context["ti"]
        try:
            kickoff_id = self._start(context)
        except AirflowNotFoundException as error:
            raise CrewTaskFailed(f"{error}. {NOT_STARTED}") from None
        except CrewError as error:
            fail_task(error, f"{self._advice(error)}{NOT_STARTED}")
        self._kickoff_id = kickoff_id
        context["ti"].xcom_push(key=KICKOFF_ID, value=kickoff_id)
        push_link(context, self.hook.connection.console_url, kickoff_id)
        if not self.wait_for_completion:
            memory_of(context, MEMORY).over()
            return kickoff_id
        watch = self._watch(context, kickoff_id)
        if self.deferrable:
            return self.begin_in_triggerer(context, watch)
        return self.end(context, watch, self.hook.wait(watch))

    def on_kill(self) -> None:
        """Stop the execution when the task is killed or reaches its execution timeout while a worker runs it."""
        if self._kickoff_id:
            self.stop_if_asked(self._kickoff_id)

    # --- starting ---

    def _start(self, context: Any) -> str:
        request = self._request(context)
        max_tries = getattr(context["ti"], "max_tries", 0)
        ledger = Ledger(memory_of(context, MEMORY), fingerprint(_named(request, self.crew_conn_id)), max_tries)
        if ledger.earlier is Earlier.DONE and self._takes_up(ledger):
            assert ledger.kickoff_id
            tell_inbox(context, ledger, again=True)
            return ledger.kickoff_id
        if ledger.earlier is Earlier.ANOTHER:
            self._leave_behind(ledger)
        if ledger.earlier is Earlier.UNKNOWN:
            self._settle_unknown(ledger)
        if self.check_inputs:
            self._preflight(request["inputs"])
        return self._send(context, request, ledger)

    def _request(self, context: Any) -> Json:
        meta = {} if self.meta is None else plain_object(self.meta, "meta")
        if "airflow" in meta:
            raise CrewInvalidInput("meta.airflow: is filled in by this operator. Nothing was sent")
        return {
            "inputs": checked_inputs(self.inputs),
            "webhooks": checked_webhooks(self.webhooks),
            "meta": {**meta, "airflow": task_identity(context)},
        }

    def _send(self, context: Any, request: Json, ledger: Ledger) -> str:
        request = {**request, "webhooks": with_credentials(request["webhooks"], self.hook)}
        keyed = self.hook.connection.idempotency_keys
        key = ledger.intend()
        try:
            sent = {**request, "webhooks": webhooks_to_send(request["webhooks"], context, self.hook, ledger)}
            kickoff_id = self.hook.kickoff(**sent, idempotency_key=key if keyed else None)
        except CrewError as error:
            self._not_started(ledger, error)
        ledger.done(kickoff_id)
        tell_inbox(context, ledger)
        self.log.info("Started execution %s of the crew at connection %s", kickoff_id, self.crew_conn_id)
        return kickoff_id

    def _not_started(self, ledger: Ledger, error: CrewError) -> NoReturn:
        if ledger.failed(error):
            fail_task(error, f"{self._advice(error)}{NOT_STARTED}")
        if self._may_send_again:
            raise AirflowException(f"{error}. A retry of this task sends the kickoff again") from error
        raise CrewTaskFailed(f"{error}. {_WHAT_TO_CHECK}")

    def _advice(self, error: CrewError) -> str:
        unauthorized = isinstance(error, CrewUnauthorized)
        return f"Check the token of connection {self.crew_conn_id!r}. " if unauthorized else ""

    def _settle_unknown(self, ledger: Ledger) -> None:
        """An earlier try sent a kickoff, and nobody wrote down what came of it."""
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(ledger.record.get("intended_at", 0)))
        said = f"An earlier try sent a kickoff at {when} and its outcome is unknown"
        if not self._may_send_again:
            raise CrewTaskFailed(f"{said}. {_WHAT_TO_CHECK}")
        if self.on_unknown_outcome != "retry" and not ledger.same_request:
            raise CrewTaskFailed(f"{said}; it was for another request, so its key cannot be used. {_WHAT_TO_CHECK}")
        self.log.warning("%s; sending it again", said)

    @property
    def _may_send_again(self) -> bool:
        return self.on_unknown_outcome == "retry" or self.hook.connection.idempotency_keys

    def _takes_up(self, ledger: Ledger) -> bool:
        reply = self.hook.look(ledger.kickoff_id or "")
        if isinstance(reply, Execution) and reply.state is ExecutionState.ERROR:
            self.log.info("Execution %s of an earlier try failed: %s. Starting another", reply.kickoff_id, reply.error)
            return False
        seen = f"is {reply.state}" if isinstance(reply, Execution) else f"could not be looked at ({reply})"
        self.log.info("An earlier try started execution %s, which %s; going on with it", ledger.kickoff_id, seen)
        return True

    def _leave_behind(self, ledger: Ledger) -> None:
        """Say what becomes of the execution from before a clear or a change of the request."""
        why = "The request has changed" if not ledger.same_request else "The task was cleared"
        if not ledger.kickoff_id:
            self.log.warning("%s; an earlier kickoff has an unknown outcome. Starting a new execution", why)
            return
        reply = self.hook.look(ledger.kickoff_id)
        fate = (
            f"Execution {ledger.kickoff_id} of before is {reply.state if isinstance(reply, Execution) else 'unknown'}"
        )
        alive = not isinstance(reply, Execution) or reply.state in (ExecutionState.RUNNING, ExecutionState.PENDING)
        if alive and self.cancel_on_kill:
            fate = self.stop_execution(ledger.kickoff_id)
        self.log.warning("%s. %s. Starting a new execution", why, fate)

    def _preflight(self, inputs: Json) -> None:
        """Compare the inputs with what the crew asks for, before money is spent."""
        try:
            asked = self.hook.get_inputs()
        except (CrewUnauthorized, CrewInvalidInput):
            raise
        except CrewError as error:
            self.log.warning("The crew's inputs could not be checked (%s); starting it all the same", error)
            return
        missing = [name for name in asked if name not in inputs]
        if missing:
            raise CrewMissingInputs(missing, status_code=None, detail=_missing(missing, asked, inputs))
        unasked = sorted(set(inputs) - set(asked))
        if unasked:
            self.log.warning(
                "The crew did not ask for %s; it asks for %s", ", ".join(unasked), ", ".join(asked) or "none"
            )

    # --- waiting ---

    def _watch(self, context: Any, kickoff_id: str) -> Watch:
        return Watch(
            kickoff_id=kickoff_id,
            started=time.time(),
            deadline=deadline_of(context, self.timeout, self.execution_timeout),
            poll_interval=seconds(self.poll_interval) or 10.0,
            wait_past_pending=True,
        )

    def watch_again(self, context: Any) -> Watch:
        """Return the watch of a task that comes back from the triggerer."""
        return self._watch(context, self._kickoff_id or "")

    def completed(self, context: Any, execution: Execution) -> Json:
        """Return the record of the completed execution."""
        memory_of(context, MEMORY).over()
        return execution.record()

    def failed(self, watch: Watch, error: str) -> NoReturn:
        """Fail so that a retry starts a new execution."""
        failure = CrewExecutionFailed(watch.kickoff_id, error)
        raise AirflowException(f"{failure}. A retry of this task starts a new execution") from failure

    def timed_out(self, watch: Watch, message: str) -> NoReturn:
        """Fail, and stop the execution if that was asked for."""
        fate = (
            self.stop_execution(watch.kickoff_id) if self.cancel_on_kill else "A retry of this task waits for it again"
        )
        raise AirflowException(f"{message}. {fate}") from CrewTimeout(message)


_WHAT_TO_CHECK = (
    "A second kickoff could run the crew twice, so none is sent. Look at the service whether an execution of this "
    "task runs (its meta.airflow names DAG, run, task and map index); then clear this task to start a new one"
)


def _named(request: Json, crew_conn_id: str) -> Json:
    webhooks = request["webhooks"]
    named = webhooks.as_dict() if isinstance(webhooks, Webhooks) else webhooks
    return {**request, "webhooks": named, "connection": crew_conn_id}


def _missing(missing: list[str], asked: list[str], inputs: Json) -> str:
    return f"Missing inputs: {_listed(missing)} (the crew asks for {_listed(asked)}; given: {_listed(list(inputs))})"


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"
