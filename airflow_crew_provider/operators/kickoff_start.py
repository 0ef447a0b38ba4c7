"""How one try of a kickoff comes to its execution: the one that an earlier try has started, or a new one.

Never a second one beside the first, unless a user asks for it by a clear or by `on_unknown_outcome`. What is refused
is found before an earlier execution is stopped.
"""

from __future__ import annotations

import time
from typing import Any, NoReturn, Protocol

from airflow.providers.common.compat.sdk import AirflowException

from airflow_crew_provider.compat import metrics
from airflow_crew_provider.compat.attempt import Attempt
from airflow_crew_provider.compat.task_state import task_identity, task_state_of
from airflow_crew_provider.core.json_values import plain_object
from airflow_crew_provider.core.outcome import shortened
from airflow_crew_provider.core.request_parts import path_segment
from airflow_crew_provider.core.stored_names import KICKOFF_STATE
from airflow_crew_provider.exceptions import CrewError, CrewInvalidInput, CrewKeyReused, CrewMissingInputs
from airflow_crew_provider.hooks.crew import CrewHook, checked_inputs
from airflow_crew_provider.models import CrewInputs, Execution, ExecutionState, Json, Webhooks
from airflow_crew_provider.tasks.earlier_execution import end_of
from airflow_crew_provider.tasks.outcomes import CrewTaskFailed
from airflow_crew_provider.tasks.post_record import Earlier, PostRecord, fingerprint
from airflow_crew_provider.tasks.preflight import check_inputs, missing_inputs
from airflow_crew_provider.tasks.sender import Sender
from airflow_crew_provider.tasks.webhooks import (
    added_address,
    check_inbox,
    checked_webhooks,
    sender_of,
    tell_inbox,
    webhooks_to_send,
    with_credentials,
)

WHAT_TO_CHECK = (
    "A second kickoff could run the crew twice, so none is sent. Check at the service whether an execution of this "
    "task runs (its meta.airflow names DAG, run, task and map index); then clear this task to start a new one"
)


class KickoffTask(Protocol):
    """The operator as a start sees it."""

    inputs: Any
    webhooks: Any
    meta: Any
    restore_from: Any
    crew_conn_id: str
    check_inputs: bool
    cancel_on_kill: bool
    on_unknown_outcome: str
    log: Any

    @property
    def hook(self) -> CrewHook:
        """The hook of the task's connection."""

    def refuse_start(self, record: PostRecord) -> None:
        """Refuse rules that could not be applied, and a retry of what went over its budget."""

    def sending(self) -> None:
        """Note that the POST is under way."""

    def started(self, kickoff_id: str) -> None:
        """Note the id as soon as it is known."""

    def report_unknown(self, request: str) -> None:
        """Report that the POST may have arrived."""


class KickoffStart:
    """The start of one try."""

    def __init__(self, task: KickoffTask, context: Any) -> None:
        self.task, self.context, self.log = task, context, task.log
        self.record: PostRecord | None = None
        self._asked: CrewInputs | None = None

    def execution(self) -> str:
        """Return the id of the execution that this task is about."""
        self.record = PostRecord(task_state_of(self.context, KICKOFF_STATE), Attempt.of(self.context, self.task))
        self.record.forget_deleted_run()
        self.task.refuse_start(self.record)
        request = self._request()
        self.record.fingerprint = fingerprint(self._named(request))
        if self.record.earlier is Earlier.DONE and self._goes_on(self.record):
            assert self.record.kickoff_id
            tell_inbox(self.context, self.record, again=True)
            return self.record.kickoff_id
        return self._start(request, self.record)

    def _start(self, request: Json, record: PostRecord) -> str:
        request["webhooks"] = with_credentials(request["webhooks"], self.task.hook)
        check_inbox(request["webhooks"], self.task.hook)
        sender = sender_of(request["webhooks"], self.task.hook, record)
        if record.earlier is Earlier.UNKNOWN:
            self._settle_unknown(record, sender)
        if self.task.check_inputs:
            self._asked = check_inputs(self.task.hook, request["inputs"], self.log)
        if record.earlier is Earlier.ANOTHER:
            self._leave_behind(record)
        return self._send(request, record, sender)

    def _request(self) -> Json:
        task = self.task
        meta = {} if task.meta is None else plain_object(task.meta, "meta")
        if "airflow" in meta:
            raise CrewInvalidInput("meta.airflow: is filled in by this operator. Nothing was sent")
        return {
            "inputs": checked_inputs(task.inputs),
            "webhooks": checked_webhooks(task.webhooks),
            "meta": meta,
            **_restored(task.restore_from),
        }

    def _named(self, request: Json) -> Json:
        """Return what names a request: what the user asks for, as release 0.1 named it for this task instance.

        What is added to a request never enters it: see `_added`.
        """
        webhooks = request["webhooks"]
        named = webhooks.as_dict() if isinstance(webhooks, Webhooks) else webhooks
        meta = {**request["meta"], "airflow": task_identity(self.context)}
        return {**request, "meta": meta, "webhooks": named, "connection": self.task.crew_conn_id}

    def _added(self, request: Json) -> Json:
        """Return what is added to a new POST. A new field of `meta.airflow` belongs here.

        The record keeps it, so that the POST sent again has the same body. A header, which is no part of the body,
        may differ each time and needs no record. Neither may hold a credential.
        """
        return {"airflow": task_identity(self.context), **added_address(request["webhooks"], self.task.hook)}

    def _with_added(self, request: Json, record: PostRecord) -> Json:
        """Return the request with what its record says was added; release 0.2.0 kept none, and added the identity."""
        airflow = record.added.get("airflow") or task_identity(self.context)
        webhooks = webhooks_to_send(request["webhooks"], self.context, self.task.hook, record)
        return {**request, "meta": {**request["meta"], "airflow": airflow}, "webhooks": webhooks}

    # --- the POST ---

    def _send(self, request: Json, record: PostRecord, sender: Sender) -> str:
        hook = self.task.hook
        keyed = hook.connection.idempotency_keys
        key = record.intend(sender, keyed=keyed, added=self._added(request))
        try:
            sent = self._with_added(request, record)
            self.task.sending()
            kickoff_id = hook.kickoff(**sent, idempotency_key=key if keyed else None)
        except CrewError as error:
            self._not_started(record, self._worded(error, request["inputs"]))
        self.task.started(kickoff_id)
        metrics.started(self.task.crew_conn_id)
        self.log.info("Started execution %s of the crew at connection %s", kickoff_id, self.task.crew_conn_id)
        self._write_down(record, kickoff_id)
        tell_inbox(self.context, record)
        return kickoff_id

    def _write_down(self, record: PostRecord, kickoff_id: str) -> None:
        try:
            record.done(kickoff_id)
        except Exception as error:  # whatever it is: the execution runs, and its id must not get lost
            self.log.error(
                "Execution %s was started, but its id could not be recorded: %s. If this try fails, the next one finds "
                "a kickoff of unknown outcome",
                kickoff_id,
                error,
            )

    def _not_started(self, record: PostRecord, error: CrewError) -> NoReturn:
        if record.failed(error):
            raise error
        self.task.report_unknown("kickoff")
        if self._may_send_again and not isinstance(error, CrewKeyReused):
            raise AirflowException(f"{error}. A retry of this task sends the kickoff again") from error
        raise CrewTaskFailed(f"{error}. {WHAT_TO_CHECK}")

    def _worded(self, error: CrewError, inputs: Json) -> CrewError:
        """Let the service's refusal name the missing inputs as the preflight does."""
        if not isinstance(error, CrewMissingInputs) or not error.names or self._asked is None:
            return error
        message = self.task.hook.mask(missing_inputs(error.names, self._asked, inputs))
        return CrewMissingInputs(error.names, error.status_code, error.method, error.path, message)

    # --- what an earlier try has left ---

    def _goes_on(self, record: PostRecord) -> bool:
        """Whether the execution of an earlier try is the one of this task; not if it failed."""
        assert record.kickoff_id
        self.task.started(record.kickoff_id)
        reply = self.task.hook.poll(record.kickoff_id)
        if isinstance(reply, Execution) and reply.state is ExecutionState.ERROR:
            why = shortened(reply.error or "")
            self.log.info("Execution %s of an earlier try failed: %s. Starting another", reply.kickoff_id, why)
            record.note(finished=True)
            return False
        seen = f"is {reply.state}" if isinstance(reply, Execution) else f"could not be polled ({reply})"
        self.log.info("An earlier try started execution %s, which %s; going on with it", record.kickoff_id, seen)
        return True

    def _settle_unknown(self, record: PostRecord, sender: Sender) -> None:
        """Handle a kickoff of an earlier try whose outcome was never recorded."""
        said = f"An earlier try sent a kickoff at {_time(record.record)} and its outcome is unknown"
        if not self._may_send_again:
            raise CrewTaskFailed(f"{said}. {WHAT_TO_CHECK}")
        changed = record.changes(sender)
        asked_for = self.task.on_unknown_outcome == "retry"
        if changed and (record.sent_by_another(sender) or not asked_for):
            now = f"Connection {self.task.crew_conn_id!r} has another sender now: {', '.join(changed)} changed"
            raise CrewTaskFailed(f"{said}. {now}, so the service may not recognize it. {WHAT_TO_CHECK}")
        if not asked_for and not record.same_request:
            raise CrewTaskFailed(f"{said}; it was for another request, so its key cannot be used. {WHAT_TO_CHECK}")
        self.log.warning("%s; sending it again", said)

    @property
    def _may_send_again(self) -> bool:
        return self.task.on_unknown_outcome == "retry" or self.task.hook.connection.idempotency_keys

    def _leave_behind(self, record: PostRecord) -> None:
        """Stop the execution from before a clear or a change of the request, if it still runs."""
        why = "The task was cleared" if record.cleared else "The request has changed"
        if not record.kickoff_id:
            self.log.warning("%s; an earlier kickoff has an unknown outcome. Starting a new execution", why)
            return
        since = record.record.get("intended_at", 0.0)
        over, fate = end_of(self.task.hook, record.kickoff_id, since, stop=self.task.cancel_on_kill)
        if over:
            record.note(finished=True)
        elif not record.cleared and self.task.on_unknown_outcome != "retry":
            raise AirflowException(
                f"{why} since execution {record.kickoff_id} was started. {fate}. No second execution is started while "
                "the first may run. A retry checks again; clear this task to start a new one anyway, or see to it that "
                "every try renders the same inputs"
            )
        self.log.warning("%s. %s. Starting a new execution", why, fate)

    # --- what is known when a try ends without an execution ---

    def what_is_known(self) -> str:
        """Say what earlier tries have started, as far as the record proves it."""
        if self.record is None:
            return "This try sent nothing; what earlier tries have started is not known"
        open_posts = [post for post in self.record.posts if not post.get("finished")]
        if not open_posts:
            return "No execution was started"
        return f"This try started nothing, but {'; '.join(map(_left_by, open_posts[:3]))}"

    def ended(self) -> None:
        """Record that no retry follows, so that the next try is known to be a clear."""
        if self.record is not None and self.record.record:
            try:
                self.record.note(over=True)
            except CrewError as error:
                self.log.warning("%s", error)


def _restored(given: Any) -> Json:
    """Return the state to start from, if any; a request without one is named as release 0.1 named it."""
    if given is None:
        return {}
    path_segment(given)
    return {"restore_from": given}


def _left_by(post: Json) -> str:
    by = f"try {post['try_number']}" if "try_number" in post else "an earlier try"
    if post.get("kickoff_id"):
        return f"execution {post['kickoff_id']}, which {by} started at {_time(post)}, may still run"
    return f"the outcome of a kickoff that {by} sent at {_time(post)} is unknown, so an execution may run"


def _time(post: Json) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(post.get("first_at", post.get("intended_at", 0))))
