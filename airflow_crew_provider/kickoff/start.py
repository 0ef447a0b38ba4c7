"""The execution that a task starts: start it or reattach to an earlier try's, and end the task when it has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, cast

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.requests import Kickoff
from airflow_crew_provider.compat import metrics
from airflow_crew_provider.compat.task_instance import task_identity
from airflow_crew_provider.exceptions import (
    REFUSED,
    CrewAlreadyContinued,
    CrewBadRequest,
    CrewError,
    CrewExecutionFailed,
    CrewKeyReused,
    CrewMissingInputs,
    CrewNotFound,
    CrewTimeout,
    CrewUnauthorized,
    CrewWebPage,
)
from airflow_crew_provider.inbox.registering import note_run
from airflow_crew_provider.kickoff.files import FILES, KickoffFiles
from airflow_crew_provider.kickoff.post_record import (
    WHAT_TO_CHECK,
    CrewPostLost,
    Earlier,
    PostRecord,
    Sender,
    SendOnce,
    fingerprint,
    unanswered,
)
from airflow_crew_provider.kickoff.request import (
    FROM_FAILED_TASK,
    StartingTask,
    check_inputs,
    missing_inputs,
    name_of,
    request_of,
    seen_from_outside,
)
from airflow_crew_provider.kickoff.webhooks import PostWebhooks, tell_inbox
from airflow_crew_provider.models import (
    REGION_FIELDS,
    Execution,
    ExecutionState,
    ExpectedInputs,
    Json,
    Started,
    shortened,
)
from airflow_crew_provider.stored_names import KICKOFF_ID_KEY, KICKOFF_STATE
from airflow_crew_provider.task.attempt import Attempt
from airflow_crew_provider.task.drive import Do, Get, Poll, Steps, Stop, Worker
from airflow_crew_provider.task.record import PostState, StoredPost
from airflow_crew_provider.task.store import NoRecord, record_of
from airflow_crew_provider.task.waiting import CrewOverBudget, Wait
from airflow_crew_provider.wait import outcomes
from airflow_crew_provider.wait.output import OutputRules
from airflow_crew_provider.wait.task import push_execution
from airflow_crew_provider.wait.watch import GRACE_FOR_UNKNOWN_ID, LONGEST_MESSAGE, Reply, Watch, fate_of_stop

NO_RETRY = (
    "A retry would start another one, so this task is not retried; raise the limit and clear the task to start one"
)
RECORD_IS_MISSING = "The record of this task, an Airflow Variable, is missing, although it was stored"
CONTINUED_BY = "continued_by"  # stored with a refused POST: the execution that already continues the failed one
REFUSES_FILES = (CrewNotFound, CrewBadRequest, CrewMissingInputs)
CONTINUED = "continue_from"  # added to a POST: the earlier try's execution that it continues


class OwnExecution:
    """The execution that a task starts, as steps: at most once, whatever earlier tries did.

    :param newest_id: returns the current id of an execution, given its first id; a resume may have changed it
    :param may_go_on: whether an execution that has ended may go on under an id that is not known
    """

    def __init__(
        self,
        task: StartingTask,
        worker: Worker,
        newest_id: Callable[[str], str] = str,
        may_go_on: Callable[[Reply], bool] = lambda ended: False,
    ) -> None:
        self._task, self.worker, self._context = task, worker, worker.context
        self._hook, self._log, self._newest_id, self._may_go_on = worker.hook, worker.log, newest_id, may_go_on
        self.kickoff_id: str | None = None  # the running execution, once known
        self.sent_at: str | None = None  # when the current POST was sent
        self._record: PostRecord | None = None
        self._wait: Wait | None = None
        self._asked: ExpectedInputs | None = None
        self._seen: Reply | None = None
        self._files = KickoffFiles(None)
        self._failed: str | None = None  # an earlier try's execution that a new one may continue

    @property
    def record(self) -> PostRecord:
        """The record of this task's POSTs, once opened."""
        assert self._record is not None
        return self._record

    @property
    def view(self) -> str | None:
        """The path of the execution's page, if the service reported it."""
        status, newest = self._seen, self.record.newest
        if newest.view or not isinstance(status, Execution) or status.kickoff_id != newest.kickoff_id:
            return newest.view
        return status.view

    @property
    def continues(self) -> bool:
        """Whether the execution continues one of an earlier try that failed."""
        return bool(self.record.added.get(CONTINUED))

    @property
    def polled_id(self) -> str | None:
        """The id that the task polls, once known."""
        return (self._wait.watch.kickoff_id if self._wait else None) or self.kickoff_id

    def start(self, *further_rules: OutputRules) -> Steps[str]:
        """Start an execution or reattach to an earlier one, and push its id and link; return the id.

        :param further_rules: for the execution's output, in tasks downstream
        """
        try:
            self.watch("")  # validates durations before anything is sent
            yield from self._open()
            for rules in (self._task.output_rules, *further_rules):
                rules.refuse_unusable()
            kickoff_id = yield from self._start_or_reattach(request_of(self._task))
            self._task.report(self._context, ExecutionState.RUNNING, kickoff_id)
            self._context["ti"].xcom_push(key=KICKOFF_ID_KEY, value=kickoff_id)
            # A try that reattaches reads the execution from a record, which may belong to another task.
            push_execution(self._context, self._hook, kickoff_id, view=self.view, is_own=self.sent_at is not None)
            note_run(self._context, self._hook, kickoff_id)
        except CrewError as error:
            outcomes.fail_task(error, f"{_advice(error)}{self.what_is_known()}")
        return kickoff_id

    def _open(self) -> Steps[None]:
        """Read the record; refuse a retry if the wait timed out, or if the execution exceeded its budget."""
        # With what this try changes in the task's record, in one write.
        self._record = record = PostRecord(self.worker.record.part(KICKOFF_STATE, None), self._attempt)
        record.begin_try()
        if record.newest.cleared or not record.kickoff_id:
            return
        passed = record.newest.over_budget or (yield from self._passed_at_its_end())
        if passed:
            self.worker.fail_over_budget(self._earlier_id, passed)
        if record.newest.timed_out:
            yield from self._end_timed_out(self._earlier_id)

    @property
    def _attempt(self) -> Attempt:
        return Attempt.of(self._context, self._task)

    def _read_record(self) -> PostRecord:
        # On its own, because a kill may come at any time.
        return PostRecord(record_of(self._context).part(KICKOFF_STATE, None), self._attempt)

    def _start_or_reattach(self, request: Kickoff) -> Steps[str]:
        record = self.record
        self._files = files = KickoffFiles(request.files, record.added.get(FILES), record.newest.addresses)
        self._set_fingerprint(request)
        if record.earlier is Earlier.STARTED and (yield from self._reattach()):
            assert record.kickoff_id
            self._tell_of_changes(f"Execution {record.kickoff_id} continues with the file that was sent")
            tell_inbox(self._context, record, again=True)
            return record.kickoff_id
        if record.earlier is Earlier.UNKNOWN and (continued_by := record.newest.more.get(CONTINUED_BY)):
            return (yield from self._adopt(continued_by))
        webhooks = PostWebhooks(request.webhooks, self._hook, record)
        webhooks.check()
        sender = webhooks.sender
        if record.earlier is Earlier.UNKNOWN:
            self._settle_unknown(sender)
        if self._task.check_inputs:
            self._asked = yield Do(check_inputs, self._hook, request.inputs, self._log, request.files)
        yield from self._decide_what_to_continue()
        if not record.is_resent(sender, keyed=self._hook.connection.idempotency_keys):
            yield from self._upload(request)
        elif files.are_on_record:
            self._tell_of_changes("The kickoff is sent again as it was sent first")
        else:
            yield from self._upload_again(request, "It cannot be sent again: the addresses of its files are lost")
        if record.earlier is Earlier.ANOTHER:
            yield from self._leave_earlier_behind(webhooks)
        return (yield from self._send(request, webhooks))

    # --- the POST ---

    def _set_fingerprint(self, request: Kickoff) -> None:
        named = name_of(request, task_identity(self._context), self._hook.crew_conn_id)
        files = self._files.identity
        self.record.fingerprint = fingerprint({**named, FILES: files} if files else named)

    def _upload(self, request: Kickoff) -> Steps[None]:
        if request.files:
            yield Do(self._files.upload, self._hook)
            self._set_fingerprint(request)

    def _upload_again(self, request: Kickoff, problem: str) -> Steps[None]:
        """Upload the files of the POST on record, which is to be sent again, for the same request only."""
        before = self.record.fingerprint
        yield from self._upload(request)
        if self.record.fingerprint != before:
            raise outcomes.CrewTaskFailed(
                f"An earlier try sent a kickoff at {_sent_at(self.record.newest)}. {problem}, "
                f"and its files have changed since then. {WHAT_TO_CHECK}"
            )
        added = {**self.record.added, **self._files.added}
        self.record.newest = replace(self.record.newest, added=added, addresses=self._files.addresses)

    def _tell_of_changes(self, consequence: str) -> None:
        for change in self._files.changes():
            self._log.warning("%s. %s", change, consequence)

    def _added(self, webhooks: PostWebhooks) -> Json:
        """Return the fields to add to a new POST; put new fields of `meta.airflow` here.

        The record stores them, so that a resent POST has the same body. Headers are not part of the body: they may
        differ and need not be recorded. The recorded fields must not contain a credential.
        """
        airflow = {**task_identity(self._context), **seen_from_outside(self._task)}
        continued = {CONTINUED: self._failed} if self._failed else {}
        return {"airflow": airflow, **webhooks.added, **continued, **self._files.added}

    def _with_added(self, request: Kickoff) -> Kickoff:
        """Return the request with its recorded additions; release 0.1 recorded none, but added the task's identity."""
        airflow = self.record.added.get("airflow") or task_identity(self._context)
        meta = {**(request.meta or {}), "airflow": airflow}
        continued, files = self.record.added.get(CONTINUED), self.record.newest.addresses
        return replace(request, meta=meta, continue_from=continued, files=files or None)

    def _send(self, request: Kickoff, webhooks: PostWebhooks) -> Steps[str]:
        if self._task.is_killed:
            raise outcomes.CrewTryFailed(f"The task was killed before its kickoff was sent. {self.what_is_known()}")
        keyed, added = self._hook.connection.idempotency_keys, self._added(webhooks)

        def post(key: str | None) -> Started:
            # Under the POST's key, so only now; the record then has the registration, too.
            sent_to = webhooks.registered(self._context)
            sent = replace(self._with_added(request), webhooks=sent_to, idempotency_key=key)
            self.kickoff_id, self.sent_at = None, _utc(time.time())
            started = self._hook.send_kickoff(sent)
            self.kickoff_id = started.kickoff_id
            metrics.started(self._hook.crew_conn_id)
            self._log.info(
                "Started execution %s of the crew at connection %s", self.kickoff_id, self._hook.crew_conn_id
            )
            return started

        try:
            started: Started = yield SendOnce(
                self.record, post, webhooks.sender, keyed, added, self._taken, addresses=self._files.addresses
            )
        except CrewPostLost as lost:
            if isinstance(lost.error, REFUSES_FILES) and self._files.may_be_gone:
                # The service may no longer have what was uploaded, or the signature of an address may have expired.
                yield from self._upload_again(request, f"Sending it again failed ({lost.error})")
                return (yield from self._send(request, webhooks))
            if not isinstance(lost.error, CrewAlreadyContinued):
                self._fail_without_answer(self._worded(lost.error, request.inputs))
            self.record.note(**{CONTINUED_BY: lost.error.kickoff_id})
            return (yield from self._adopt(lost.error.kickoff_id))
        except CrewError as error:
            if self._is_not_continued(error):
                return (yield from self._send(request, webhooks))
            raise self._worded(error, request.inputs) from error
        if self._task.is_killed:  # during the request, when its id was not known
            self._stop_if_ended(started.kickoff_id)
        tell_inbox(self._context, self.record)
        return started.kickoff_id

    def _taken(self, started: Any = None) -> Json:
        """Note which execution the started one continues, if any."""
        if continued := self.record.added.get(CONTINUED):
            assert self._task.used
            self._task.used.replaces(continued)
        return {}

    def _fail_without_answer(self, error: CrewError) -> NoReturn:
        self._task.report_unknown("kickoff")
        message = unanswered(error)
        if self._may_send_again and not isinstance(error, CrewKeyReused):
            raise outcomes.CrewTryFailed(f"{message}. A retry of this task sends the kickoff again") from error
        raise outcomes.CrewTaskFailed(f"{message}. {WHAT_TO_CHECK}")

    def _worded(self, error: CrewError, inputs: Json) -> CrewError:
        """Report the service's refusal of missing inputs in the same words as the preflight."""
        if not isinstance(error, CrewMissingInputs) or not error.names or self._asked is None:
            return error
        message = self._hook.mask(missing_inputs(error.names, self._asked, inputs))
        return CrewMissingInputs(error.names, error.status_code, error.method, error.path, message)

    # --- an execution that continues another ---

    def _decide_what_to_continue(self) -> Steps[None]:
        """Start from the beginning unless the service reports that it can continue the failed execution."""
        if self._failed is None or self.record.earlier is Earlier.UNKNOWN:
            return  # in the latter case, the first POST decided
        if why := (yield from self.why_not_continued()):
            self._log.info("Starting from the beginning, because %s", why)
            self._failed = None
        else:
            self._log.info("Continuing execution %s from the task that failed", self._failed)

    def why_not_continued(self) -> Steps[str]:
        """Return why the service cannot continue a failed execution; empty if it can."""
        try:
            expected = self._asked or (yield Get(endpoints.inputs()))
        except CrewError as error:
            return f"it is not known whether the service can continue executions ({error})"
        return "" if expected.continues else "the service cannot continue executions"

    def _is_not_continued(self, error: CrewError) -> bool:
        """Return whether the service only refused to continue an execution and started nothing."""
        refused = isinstance(error, CrewNotFound) or (isinstance(error, CrewMissingInputs) and not error.names)
        if not self._failed or not refused:
            return False
        why = str(error).removesuffix(".")
        self._log.warning("Execution %s is not continued: %s. Starting from the beginning", self._failed, why)
        self._failed = None
        return True

    def _adopt(self, continued_by: str) -> Steps[str]:
        """Reattach to the execution that continues the failed one, if this task started it; never start another.

        Until this is known, the record shows the POST as unanswered, so that no later try sends a second one.
        """
        message = f"Execution {continued_by} already continues {self.record.added.get(CONTINUED)}"
        if not self.record.same_request:
            raise outcomes.CrewTaskFailed(f"{message}, and the request has changed since. {WHAT_TO_CHECK}")
        try:
            details = (yield Get(endpoints.details(continued_by))).found or {}
        except CrewError as problem:
            raise outcomes.CrewTryFailed(f"{message}, and it is not known what started it ({problem})") from problem
        meta = details.get("meta")
        airflow = meta.get("airflow") if isinstance(meta, dict) else None
        mine = task_identity(self._context)
        names = {*mine, *REGION_FIELDS}
        if not isinstance(airflow, dict) or any(airflow.get(name) != mine.get(name) for name in names):
            raise outcomes.CrewTaskFailed(f"{message}, and this task did not start it. {WHAT_TO_CHECK}")
        self._log.info("%s, and an earlier try started it; reattaching to it", message)
        self.kickoff_id = continued_by
        self._taken()
        self.record.adopt(continued_by)
        tell_inbox(self._context, self.record, again=True)
        return continued_by

    # --- earlier tries ---

    @property
    def _earlier_id(self) -> str:
        """The current id of the execution on record."""
        assert self.record.kickoff_id
        return self._newest_id(self.record.kickoff_id)

    def _poll_earlier(self) -> Steps[Reply]:
        """Poll an earlier try's execution, once for all decisions that depend on it."""
        if self._seen is None:
            self._seen = yield from self._poll(self._earlier_id)
        return self._seen

    def _poll(self, kickoff_id: str) -> Steps[Reply]:
        """Poll the recorded execution; if the service knows it, record that it is no longer unknown."""
        reply = yield Poll(kickoff_id)
        if isinstance(reply, Execution) and self.record.newest.unknown_since:
            self.record.mark(unknown_since=None)
        return cast("Reply", reply)

    def _end_timed_out(self, kickoff_id: str) -> Steps[None]:
        """Stop the execution after an earlier try's timeout and fail, unless it has completed or cannot be stopped."""
        message = f"An earlier try failed: {self.record.newest.timed_out}"
        reply, stopped = (yield from self._poll(kickoff_id)), False
        if not outcomes.is_over(reply):
            stopped = yield Stop(kickoff_id, self.worker.is_last_try)
            if isinstance(stopped, CrewError):
                raise outcomes.CrewTryFailed(
                    f"{message}. {fate_of_stop(kickoff_id, stopped)}. A retry of this task stops it"
                ) from stopped
            if not stopped and not outcomes.is_over(reply := (yield from self._poll(kickoff_id))):
                self.record.mark(timed_out="")
                return
        if isinstance(reply, Execution) and reply.state is ExecutionState.COMPLETED:
            return
        raise outcomes.CrewTaskFailed(f"{message}. {fate_of_stop(kickoff_id, stopped, reply)}. {NO_RETRY}")

    def _passed_at_its_end(self) -> Steps[str]:
        reply = (yield from self._poll_earlier()) if self._task.budget.limits else None
        if isinstance(reply, Execution) and reply.has_failed:
            return self._task.budget.passed_by(reply.usage)
        return ""

    def _reattach(self) -> Steps[bool]:
        """Reattach to an earlier try's execution; return False if that execution failed."""
        self.kickoff_id = self._earlier_id
        reply = yield from self._poll_earlier()
        if isinstance(reply, Execution) and reply.has_failed and not self._may_go_on(reply):
            why = shortened(reply.error or "", LONGEST_MESSAGE)
            self._log.info("Execution %s of an earlier try failed: %s. Starting a new one", reply.kickoff_id, why)
            execution_id, used = self.record.kickoff_id, reply.usage
            self._task.report(
                self._context, ExecutionState.ERROR, reply.kickoff_id, execution_id=execution_id, usage=used
            )
            self.record.finish()
            self._failed = self.record.kickoff_id if self.may_continue else None
            return False
        status = f"is {reply.state}" if isinstance(reply, Execution) else f"could not be polled ({reply})"
        self._log.info("An earlier try started execution %s, which %s; reattaching to it", self.kickoff_id, status)
        return True

    def _settle_unknown(self, sender: Sender) -> None:
        """Handle an earlier try's kickoff with no recorded outcome."""
        message = f"An earlier try sent a kickoff at {_sent_at(self.record.newest)} and its outcome is unknown"
        keyed, at_risk = self._hook.connection.idempotency_keys, self._task.on_unknown_outcome == "retry"
        if why := self.record.why_not_again(sender, keyed=keyed, at_risk=at_risk):
            raise outcomes.CrewTaskFailed(f"{message}; {why}. {WHAT_TO_CHECK}")
        if self.may_continue and self.record.same_request:
            self._failed = self.record.added.get(CONTINUED)
        self._log.warning("%s; sending it again", message)

    @property
    def may_continue(self) -> bool:
        """Whether a retry continues a failed execution, if the service can."""
        return self._task.wait_for_completion and self._task.retry_from == FROM_FAILED_TASK

    @property
    def _may_send_again(self) -> bool:
        keyed = self._hook.connection.idempotency_keys
        return self._task.on_unknown_outcome == "retry" or self.record.was_keyed(keyed=keyed)

    def _leave_earlier_behind(self, webhooks: PostWebhooks) -> Steps[None]:
        """Stop a running execution that was started before the task was cleared or the request changed."""
        record = self.record
        why = "The task was cleared" if record.newest.cleared else "The request has changed"
        if not record.kickoff_id:
            self._log.warning("%s; an earlier kickoff has an unknown outcome. Starting a new execution", why)
            return
        over, fate = yield from self._stop_earlier(webhooks)
        if over:
            record.finish()
        elif not self._starts_regardless:
            raise outcomes.CrewTryFailed(
                f"{why} since execution {record.kickoff_id} was started. {fate}. No second execution is started while "
                "the first may still be running. A retry checks again; clear this task to start a new one anyway, or "
                "make sure that every try renders the same inputs"
            )
        self._log.warning("%s. %s. Starting a new execution", why, fate)

    @property
    def _starts_regardless(self) -> bool:
        """Whether a new execution is started even if the earlier one may still run; no later try stops that one."""
        return self.record.newest.cleared or self._task.on_unknown_outcome == "retry"

    def _stop_earlier(self, webhooks: PostWebhooks) -> Steps[tuple[bool, str]]:
        """Stop an earlier execution if `cancel_on_kill` is set; return whether it is over, and a sentence about it."""
        kickoff_id, reply = self._earlier_id, (yield from self._poll_earlier())
        over = outcomes.is_over(reply)
        if over and self._may_go_on(reply):
            return (
                False,
                f"Execution {kickoff_id} may go on under another id: the outcome of an answer to it is unknown",
            )
        if over or not self._task.cancel_on_kill:
            return over, f"The earlier execution {kickoff_id} is {_state(reply)}"
        stopped = yield Stop(kickoff_id, is_last=self._starts_regardless)
        if isinstance(stopped, CrewError):
            return False, fate_of_stop(kickoff_id, stopped)
        after = reply if stopped else (yield from self._poll(kickoff_id))
        if isinstance(after, CrewNotFound):
            return (yield from self._judge_unknown(kickoff_id, webhooks.sender))
        return stopped or outcomes.is_over(after), fate_of_stop(kickoff_id, stopped, after)

    def _judge_unknown(self, kickoff_id: str, sender: Sender) -> Steps[tuple[bool, str]]:
        """Return whether an execution that could not be stopped counts as gone, and a sentence about its fate.

        A request through a gateway, to another deployment or with another token may also get "not found" for a running
        execution. So the sender must be unchanged, and the service must respond both at the start and at the end of a
        grace period, whose start is recorded for later tries.
        """
        not_known = f"Execution {kickoff_id} could not be stopped: the service does not know it"
        if sender.is_another(self.record.newest.sender):
            return False, f"{not_known}, at the connection's current address or with its current token"
        try:
            yield Get(endpoints.inputs())
        except CrewError as error:
            return False, f"{not_known}, and does not answer GET /inputs ({error})"
        now, since = time.time(), self.record.newest.unknown_since
        if not since:
            since = now
            self.record.mark(unknown_since=now)
        message = f"{not_known}, first noticed at {_utc(since)}"
        if now - since < GRACE_FOR_UNKNOWN_ID:
            return False, f"{message}; after {GRACE_FOR_UNKNOWN_ID:.0f} s, it counts as ended"
        return True, f"{message}, so it counts as ended"

    # --- the wait, and its end ---

    def watch(self, kickoff_id: str) -> Watch:
        """Return a watch whose deadline is counted from now."""
        task = self._task
        interval = outcomes.seconds(task.poll_interval, "poll_interval")
        return Watch(
            kickoff_id=kickoff_id,
            started=time.time(),
            deadline=outcomes.deadline_of(self._context, task.timeout, task.execution_timeout),
            poll_interval=10.0 if interval is None else interval,
            wait_past_pending=True,
            ends_at_unknown=True,
            budget=task.watched_budget,
        )

    def last_id(self) -> str | None:
        """Return the recorded id, for a task that resumes without one."""
        return self._read_record().kickoff_id

    def wait(self, kickoff_id: str, **place: Any) -> Wait:
        """Return the wait for the execution; `place` are further arguments of `Wait`."""
        self._wait = Wait(self._task, self.worker, self.watch(kickoff_id), **place)
        return self._wait

    def end_of(self, wait: Steps[Execution]) -> Steps[Execution]:
        """Take the steps of a wait; if they end without a result, fail so that a retry does what is right."""
        try:
            with self.kept_for_a_retry():
                return (yield from wait)
        except CrewExecutionFailed as failure:
            where = ", from the failed task if the service supports that" if self.may_continue else ""
            message = f"{failure}. A retry of this task starts a new execution{where}"
            raise outcomes.CrewTryFailed(message) from failure
        except CrewTimeout as timeout:
            with self.kept_for_a_retry():
                raise (yield from self._end_at(timeout)) from timeout
        except CrewOverBudget as over:
            # If this cannot be stored, a retry uses the service's figures.
            passed, problem = over.passed, "The exceeded budget could not be recorded"
            self._keep(lambda: self._read_record().mark(over_budget=passed), problem)
            self.worker.fail_over_budget(over.kickoff_id, over.passed)

    def _end_at(self, timeout: CrewTimeout) -> Steps[Exception]:
        """Stop the execution if `cancel_on_kill` is set; return an error, final if a retry would start another one."""
        kickoff_id = self.polled_id or ""
        stopped: bool | CrewError | None = None
        if self._stops_at(str(timeout)):
            stopped = yield Stop(kickoff_id, self.worker.is_last_try)
        message = f"{timeout}. {fate_of_stop(kickoff_id, stopped)}"
        if stopped is True:
            return outcomes.CrewTaskFailed(f"{message}. {NO_RETRY}")
        now = "A retry of this task waits for it again"
        if isinstance(stopped, CrewError) and not isinstance(stopped, REFUSED):
            now = "A retry of this task stops it, unless it has completed"
        elif stopped is not None:
            self._keep_timeout("")
        return outcomes.CrewTryFailed(message, now)

    @contextmanager
    def kept_for_a_retry(self) -> Iterator[None]:
        """Fail for good where a try would fail, if a retry would not find the execution on record and start another."""
        try:
            yield
        except outcomes.CrewTryFailed as failure:
            if self._is_on_record:
                raise
            raise outcomes.CrewTaskFailed(
                f"{failure.fact}. {RECORD_IS_MISSING}. A retry or a clear would start another execution"
            ) from (failure.__cause__ or failure)

    @property
    def _is_on_record(self) -> bool:
        """Whether a retry finds the kickoff, or has nothing to find; one that cannot read its record sends nothing."""
        if isinstance(self.worker.record, NoRecord):
            return True
        try:
            return self._read_record().newest.state is not PostState.NOTHING
        except CrewError:
            return True

    def close(self, *, finished: bool = False) -> None:
        """Record that the task has ended; if that fails, only log the error, so that the result is not lost.

        :param finished: whether the execution has ended too
        """
        posts = self.worker.record.part(KICKOFF_STATE, None)  # with the end of the run, if the task has one
        end = "The end of this task could not be stored"
        self._keep(lambda: PostRecord(posts, self._attempt).close(finished=finished), end)

    def _keep(self, change: Callable[[], None], problem: str) -> bool:
        try:
            change()
        except CrewError as error:
            self._log.warning("%s: %s", problem, error)
            return False
        return True

    def _stops_at(self, timeout: str) -> bool:
        """Record that the task has timed out; return whether its execution is to be stopped.

        A retry that finds the execution ended must not start another one, so without the record, only the last try
        stops it.
        """
        return self._task.cancel_on_kill and (self._keep_timeout(timeout) or self.worker.is_last_try)

    def _keep_timeout(self, message: str) -> bool:
        def mark() -> None:
            record = self._read_record()
            if self.sent_at and self.kickoff_id and record.newest.state is PostState.INTENDED:
                record.record_id(self.kickoff_id)  # the timeout has interrupted what would have recorded it
            record.mark(timed_out=message)

        return self._keep(mark, "The timeout could not be recorded")

    # --- a kill ---

    def on_kill(self) -> None:
        """Stop the execution when the task is killed, or reaches its execution timeout, in a worker."""
        if kickoff_id := self.polled_id:
            self._log.warning("The task was killed, and execution %s may still be running", kickoff_id)
            self._stop_if_ended(kickoff_id)
        elif self.sent_at:
            self._log.error(
                "The task was killed while a kickoff sent at %s was in progress, so its outcome is unknown: the "
                "service may have started an execution. %s",
                self.sent_at,
                WHAT_TO_CHECK,
            )

    def _stop_if_ended(self, kickoff_id: str) -> None:
        self.worker.stop_if_ended(kickoff_id, partial(self._stops_after, kickoff_id), has_ended=self._task.has_ended)

    def _stops_after(self, kickoff_id: str, ending: outcomes.Ending) -> bool:
        """Record the end of the task before its execution is stopped; return whether that is to happen.

        A kill needs no record, except by a clear: after one that is for good, no retry could start another execution.
        """
        if ending is outcomes.Ending.TIMEOUT:
            return self._stops_at(f"The task reached its execution_timeout of {self._task.execution_timeout}")
        if ending is outcomes.Ending.CLEARED:
            self._record_clear(kickoff_id)
        return self._task.cancel_on_kill

    def _record_clear(self, kickoff_id: str) -> None:
        """Record a clear of the running task, so that its next try, which looks like a retry, starts another one."""

        def mark() -> None:
            record = self._read_record()
            # Otherwise, the interrupted code is about to record the id.
            if record.kickoff_id and self._newest_id(record.kickoff_id) == kickoff_id:
                record.mark(cleared=True)

        self._keep(mark, "The clear could not be recorded")

    # --- a try that ends without an execution ---

    def what_is_known(self) -> str:
        """Return a sentence about the recorded executions that earlier tries started."""
        if self._record is None:
            return "This try sent nothing; it is not known what earlier tries started"
        open_posts = self._record.newest.unsettled
        if not open_posts:
            return "No execution was started"
        return f"This try started nothing, but {'; '.join(map(_left_by, open_posts[:3]))}"


def _advice(error: CrewError) -> str:
    if isinstance(error, CrewUnauthorized):
        return "Check the connection's token. "
    if isinstance(error, CrewWebPage):
        return "If it stays so, this is not a crew deployment: check the connection's Host. "
    return "Check the connection's Host, including its path. " if isinstance(error, CrewNotFound) else ""


def _left_by(post: StoredPost) -> str:
    by = f"try {post.attempt['try_number']}" if "try_number" in post.attempt else "an earlier try"
    if post.kickoff_id:
        return f"execution {post.kickoff_id}, which {by} started at {_sent_at(post)}, may still be running"
    return f"the outcome of a kickoff that {by} sent at {_sent_at(post)} is unknown, so an execution may be running"


def _sent_at(post: StoredPost) -> str:
    return _utc(post.first_at or post.intended_at)


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def _state(reply: Reply) -> str:
    if isinstance(reply, Execution):
        return str(reply.state)
    return "not known to the service" if isinstance(reply, CrewNotFound) else f"in an unknown state ({reply})"
