"""Start an execution, or reattach to the execution of an earlier try."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, NoReturn

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.compat import metrics
from airflow_crew_provider.compat.task_instance import task_identity
from airflow_crew_provider.exceptions import (
    CrewAlreadyContinued,
    CrewError,
    CrewKeyReused,
    CrewMissingInputs,
    CrewNotFound,
)
from airflow_crew_provider.kickoff.post_record import Earlier, PostRecord, Sender, StoredPost, fingerprint
from airflow_crew_provider.kickoff.request import (
    KickoffTask,
    added_address,
    check_inbox,
    check_inputs,
    missing_inputs,
    name_of,
    prepare_webhooks,
    seen_from_outside,
    sender_of,
    tell_inbox,
    with_credentials,
)
from airflow_crew_provider.models import REGION_FIELDS, CrewInputs, Execution, ExecutionState, Json, Kickoff, Started
from airflow_crew_provider.stored_names import KICKOFF_STATE
from airflow_crew_provider.task.attempt import Attempt, Relation
from airflow_crew_provider.task.store import RecordLost, store_of
from airflow_crew_provider.wait import outcomes
from airflow_crew_provider.wait.watch import GRACE_FOR_UNKNOWN_ID, fate_of_stop, shortened

WHAT_TO_CHECK = (
    "A second kickoff could run the crew twice, so none is sent. Check the service for a running execution of this "
    "task (its meta.airflow names the DAG, run, task and map index); then clear this task to start a new one"
)
NO_RETRY = (
    "A retry would start another one, so this task is not retried; raise the limit and clear the task to start one"
)
FROM_FAILED_TASK, FROM_START = RETRY_FROM = ("failed_task", "start")
CONTINUED_BY = "continued_by"  # stored with a refused POST: the execution that already continues the failed one
CONTINUED = "continue_from"  # added to a POST: the earlier try's execution that it continues


class KickoffStart:
    """The kickoff in one try: `open` reads the record, then `start_or_reattach` returns the execution's id."""

    def __init__(self, context: Any, task: KickoffTask) -> None:
        self._context, self._task = context, task
        self._poller, self._hook, self._log = task.poller, task.poller.hook, task.log
        self.kickoff_id: str | None = None  # the running execution, once known
        self.sent_at: str | None = None  # when the current POST was sent
        self._record: PostRecord | None = None
        self._asked: CrewInputs | None = None
        self._seen: Execution | CrewError | None = None
        self._failed: str | None = None  # an earlier try's execution that a new one may continue

    @property
    def record(self) -> PostRecord:
        """The record of this task's POSTs, once opened."""
        assert self._record is not None
        return self._record

    @property
    def view(self) -> str | None:
        """The path of the execution's page, if the service reported it."""
        seen, newest = self._seen, self.record.newest
        if newest.view or not isinstance(seen, Execution) or seen.kickoff_id != newest.kickoff_id:
            return newest.view
        return seen.view

    def open(self) -> None:
        """Read the record; refuse a retry if the wait timed out, or if the execution exceeded its budget."""
        store, attempt = store_of(self._context, KICKOFF_STATE), Attempt.of(self._context, self._task)
        try:
            self._record = record = PostRecord(store, attempt)
        except RecordLost as lost:
            self._refuse_without_record(lost, attempt)
            store.keep(lost.witness)
            self._record = record = PostRecord(store, attempt)
        record.begin_try()
        if record.cleared or not record.kickoff_id:
            return
        passed = record.newest.over_budget or self._passed_at_its_end()
        if passed:
            outcomes.fail_over_budget(self._poller, record.kickoff_id, passed, self._log)
        if record.newest.timed_out:
            self._end_timed_out(self._task.newest_id(self._context, record.kickoff_id))

    def _refuse_without_record(self, lost: RecordLost, attempt: Attempt) -> None:
        """Refuse to send anything unless a clear, or the operator's arguments, allow another execution."""
        relation = attempt.relation_to(lost.witness)
        if relation is Relation.OTHER_RUN:
            return
        if relation is not Relation.CLEAR and self._task.on_unknown_outcome != "retry":
            raise outcomes.CrewTaskFailed(
                f"{lost}, which may still be running. Nothing was sent. Clear this task to stop it and start a new one"
            )
        self._log.error("%s", lost)

    def start_or_reattach(self, request: Kickoff) -> str:
        """Start an execution or reattach to an earlier one; return its id."""
        record = self.record
        record.fingerprint = fingerprint(name_of(request, task_identity(self._context), self._hook.crew_conn_id))
        if record.earlier is Earlier.STARTED and self._reattach():
            assert record.kickoff_id
            tell_inbox(self._context, record, again=True)
            return record.kickoff_id
        if record.earlier is Earlier.UNKNOWN and (continued_by := record.newest.more.get(CONTINUED_BY)):
            return self._adopt(continued_by)
        webhooks = with_credentials(request.webhooks, self._hook)
        check_inbox(webhooks, self._hook)
        sender = sender_of(webhooks, self._hook, record)
        if record.earlier is Earlier.UNKNOWN:
            self._settle_unknown(sender)
        if self._task.check_inputs:
            self._asked = check_inputs(self._hook, request.inputs, self._log)
        self._decide_what_to_continue()
        if record.earlier is Earlier.ANOTHER:
            self._leave_earlier_behind(sender)
        return self._send(replace(request, webhooks=webhooks), sender)

    # --- the POST ---

    def _added(self, request: Kickoff) -> Json:
        """Return the fields to add to a new POST; put new fields of `meta.airflow` here.

        The record stores them, so that a resent POST has the same body. Headers are not part of the body: they may
        differ and need not be recorded. The recorded fields must not contain a credential.
        """
        airflow = {**task_identity(self._context), **seen_from_outside(self._task)}
        continued = {CONTINUED: self._failed} if self._failed else {}
        return {"airflow": airflow, **added_address(request.webhooks, self._hook), **continued}

    def _with_added(self, request: Kickoff) -> Kickoff:
        """Return the request with its recorded additions; release 0.1 recorded none, but added the task's identity."""
        airflow = self.record.added.get("airflow") or task_identity(self._context)
        webhooks = prepare_webhooks(request.webhooks, self._context, self._hook, self.record)
        meta = {**(request.meta or {}), "airflow": airflow}
        return replace(request, meta=meta, webhooks=webhooks, continue_from=self.record.added.get(CONTINUED))

    def _send(self, request: Kickoff, sender: Sender) -> str:
        if self._task.is_killed:
            raise outcomes.CrewTryFailed(f"The task was killed before its kickoff was sent. {self.what_is_known()}")
        keyed = self._hook.connection.idempotency_keys
        key = self.record.intend(sender, keyed=keyed, added=self._added(request))
        try:
            sent = replace(self._with_added(request), idempotency_key=key if keyed else None)
            self.kickoff_id, self.sent_at = None, _utc(time.time())
            started = self._hook.send_kickoff(sent)
        except CrewAlreadyContinued as error:
            self.record.note(**{CONTINUED_BY: error.kickoff_id})
            return self._adopt(error.kickoff_id)
        except CrewError as error:
            if self._is_not_continued(error):
                return self._send(request, sender)
            self._fail_without_answer(self._worded(error, request.inputs))
        self.kickoff_id = kickoff_id = started.kickoff_id
        metrics.started(self._hook.crew_conn_id)
        self._log.info("Started execution %s of the crew at connection %s", kickoff_id, self._hook.crew_conn_id)
        self._record_id(started)
        if self._task.is_killed:  # during the request, when its id was not known
            self._task.stop_if_asked(kickoff_id)
        tell_inbox(self._context, self.record)
        return kickoff_id

    def _record_id(self, started: Started) -> None:
        self.record.testify(started.kickoff_id)
        try:
            self.record.record_id(started.kickoff_id, started.view)
        except Exception as error:  # of any kind: the execution is running, and its id must not be lost
            self._log.error(
                "Execution %s was started, but its id could not be recorded: %s. If this try fails, the next one will "
                "find a kickoff with an unknown outcome",
                started.kickoff_id,
                error,
            )

    def _fail_without_answer(self, error: CrewError) -> NoReturn:
        if self.record.withdraw_if_refused(error):
            raise error
        self._task.report_unknown("kickoff")
        if self._may_send_again and not isinstance(error, CrewKeyReused):
            raise outcomes.CrewTryFailed(f"{error}. A retry of this task sends the kickoff again") from error
        raise outcomes.CrewTaskFailed(f"{error}. {WHAT_TO_CHECK}")

    def _worded(self, error: CrewError, inputs: Json) -> CrewError:
        """Report the service's refusal of missing inputs in the same words as the preflight."""
        if not isinstance(error, CrewMissingInputs) or not error.names or self._asked is None:
            return error
        message = self._hook.mask(missing_inputs(error.names, self._asked, inputs))
        return CrewMissingInputs(error.names, error.status_code, error.method, error.path, message)

    # --- an execution that continues another ---

    def _decide_what_to_continue(self) -> None:
        """Start from the beginning unless the service reports that it can continue the failed execution."""
        if self._failed is None or self.record.earlier is Earlier.UNKNOWN:
            return  # in the latter case, the first POST decided
        try:
            asked = self._asked or self._hook.inputs()
        except CrewError as error:
            why = f"it is not known whether the service can continue executions ({error})"
        else:
            if asked.continues:
                self._log.info("Continuing execution %s from the task that failed", self._failed)
                return
            why = "the service cannot continue executions"
        self._log.info("Starting from the beginning, because %s", why)
        self._failed = None

    def _is_not_continued(self, error: CrewError) -> bool:
        """Return whether the service only refused to continue an execution and started nothing."""
        failed = self.record.added.get(CONTINUED)
        refused = isinstance(error, CrewNotFound) or (isinstance(error, CrewMissingInputs) and not error.names)
        if not failed or not refused or not self.record.withdraw_if_refused(error):
            return False
        why = str(error).removesuffix(".")
        self._log.warning("Execution %s is not continued: %s. Starting from the beginning", failed, why)
        self._failed = None
        return True

    def _adopt(self, continued_by: str) -> str:
        """Reattach to the execution that continues the failed one, if this task started it; never start another.

        Until this is known, the record shows the POST as unanswered, so that no later try sends a second one.
        """
        said = f"Execution {continued_by} already continues {self.record.added.get(CONTINUED)}"
        if not self.record.same_request:
            raise outcomes.CrewTaskFailed(f"{said}, and the request has changed since. {WHAT_TO_CHECK}")
        try:
            found = self._hook.client.send(endpoints.details(continued_by)).found or {}
        except CrewError as problem:
            raise outcomes.CrewTryFailed(f"{said}, and it is not known what started it ({problem})") from problem
        meta = found.get("meta")
        airflow = meta.get("airflow") if isinstance(meta, dict) else None
        mine = task_identity(self._context)
        names = {*mine, *REGION_FIELDS}
        if not isinstance(airflow, dict) or any(airflow.get(name) != mine.get(name) for name in names):
            raise outcomes.CrewTaskFailed(f"{said}, and this task did not start it. {WHAT_TO_CHECK}")
        self._log.info("%s, and an earlier try started it; reattaching to it", said)
        self.kickoff_id = continued_by
        self.record.testify(continued_by)
        self.record.adopt(continued_by)
        tell_inbox(self._context, self.record, again=True)
        return continued_by

    # --- earlier tries ---

    def _poll_earlier(self) -> Execution | CrewError:
        """Poll an earlier try's execution, once for all decisions that depend on it."""
        assert self.record.kickoff_id
        if self._seen is None:
            self._seen = self._poll(self.record.kickoff_id)
        return self._seen

    def _poll(self, kickoff_id: str) -> Execution | CrewError:
        """Poll the recorded execution; if the service knows it, record that it is no longer unknown."""
        reply = self._poller.poll(kickoff_id)
        if isinstance(reply, Execution) and self.record.newest.unknown_since:
            self.record.mark_unknown_since(None)
        return reply

    def _end_timed_out(self, kickoff_id: str) -> None:
        """Stop the execution after an earlier try's timeout and fail, unless it has completed or cannot be stopped."""
        said = f"An earlier try failed: {self.record.newest.timed_out}"
        reply, fate = self._poll(kickoff_id), f"Execution {kickoff_id} has ended"
        if not outcomes.is_over(reply):
            try:
                stopped = self._hook.stop(kickoff_id)
            except CrewError as error:
                raise outcomes.CrewTryFailed(
                    f"{said}. {fate_of_stop(kickoff_id, error)}. A retry of this task stops it"
                ) from error
            if stopped:
                fate = fate_of_stop(kickoff_id, stopped)
            elif not outcomes.is_over(reply := self._poll(kickoff_id)):
                self.record.mark_timed_out("")
                return
        if isinstance(reply, Execution) and reply.state is ExecutionState.COMPLETED:
            return
        raise outcomes.CrewTaskFailed(f"{said}. {fate}. {NO_RETRY}")

    def _passed_at_its_end(self) -> str:
        reply = self._poll_earlier() if self._task.budget.limits else None
        if isinstance(reply, Execution) and reply.has_failed:
            return self._task.budget.passed_by(reply.usage)
        return ""

    def _reattach(self) -> bool:
        """Reattach to an earlier try's execution; return False if that execution failed."""
        self.kickoff_id = self.record.kickoff_id
        reply = self._poll_earlier()
        if isinstance(reply, Execution) and reply.has_failed:
            why = shortened(reply.error or "")
            self._log.info("Execution %s of an earlier try failed: %s. Starting a new one", reply.kickoff_id, why)
            self.record.mark_finished()
            self._failed = self.record.kickoff_id if self._may_continue else None
            return False
        seen = f"is {reply.state}" if isinstance(reply, Execution) else f"could not be polled ({reply})"
        self._log.info("An earlier try started execution %s, which %s; reattaching to it", self.kickoff_id, seen)
        return True

    def _settle_unknown(self, sender: Sender) -> None:
        """Handle an earlier try's kickoff with no recorded outcome."""
        said = f"An earlier try sent a kickoff at {_sent_at(self.record.newest)} and its outcome is unknown"
        if not self._may_send_again:
            raise outcomes.CrewTaskFailed(f"{said}. {WHAT_TO_CHECK}")
        changed = self.record.changes(sender)
        asked_for = self._task.on_unknown_outcome == "retry"
        if changed and (self.record.sent_by_another(sender) or not asked_for):
            now = f"Connection {self._hook.crew_conn_id!r} has since changed ({', '.join(changed)})"
            raise outcomes.CrewTaskFailed(f"{said}. {now}, so the service may not recognize it. {WHAT_TO_CHECK}")
        if not asked_for and not self.record.same_request:
            raise outcomes.CrewTaskFailed(
                f"{said}; it was for a different request, so its key cannot be used. {WHAT_TO_CHECK}"
            )
        if self._may_continue and self.record.same_request:
            self._failed = self.record.added.get(CONTINUED)
        self._log.warning("%s; sending it again", said)

    @property
    def _may_continue(self) -> bool:
        return self._task.wait_for_completion and self._task.retry_from == FROM_FAILED_TASK

    @property
    def _may_send_again(self) -> bool:
        keyed = self._hook.connection.idempotency_keys
        return self._task.on_unknown_outcome == "retry" or self.record.was_keyed(keyed=keyed)

    def _leave_earlier_behind(self, sender: Sender) -> None:
        """Stop a running execution that was started before the task was cleared or the request changed."""
        record = self.record
        why = "The task was cleared" if record.cleared else "The request has changed"
        if not record.kickoff_id:
            self._log.warning("%s; an earlier kickoff has an unknown outcome. Starting a new execution", why)
            return
        over, fate = self._stop_earlier(record.kickoff_id, sender)
        if over:
            record.mark_finished()
        elif not record.cleared and self._task.on_unknown_outcome != "retry":
            raise outcomes.CrewTryFailed(
                f"{why} since execution {record.kickoff_id} was started. {fate}. No second execution is started while "
                "the first may still be running. A retry checks again; clear this task to start a new one anyway, or "
                "make sure that every try renders the same inputs"
            )
        self._log.warning("%s. %s. Starting a new execution", why, fate)

    def _stop_earlier(self, kickoff_id: str, sender: Sender) -> tuple[bool, str]:
        """Stop an earlier execution if `cancel_on_kill` is set; return whether it is over, and a sentence about it."""
        newest = self._task.newest_id(self._context, kickoff_id)
        reply = self._poll_earlier() if newest == kickoff_id else self._poll(newest)
        kickoff_id, over = newest, outcomes.is_over(reply)
        if over or not self._task.cancel_on_kill:
            return over, f"The earlier execution {kickoff_id} is {_state(reply)}"
        try:
            stopped = self._hook.stop(kickoff_id)
        except CrewError as error:
            return False, fate_of_stop(kickoff_id, error)
        after = reply if stopped else self._poll(kickoff_id)
        if isinstance(after, CrewNotFound):
            return self._judge_unknown(kickoff_id, sender)
        return stopped or outcomes.is_over(after), fate_of_stop(kickoff_id, stopped)

    def _judge_unknown(self, kickoff_id: str, sender: Sender) -> tuple[bool, str]:
        """Return whether an execution that could not be stopped counts as gone, and a sentence about its fate.

        A request through a gateway, to another deployment or with another token may also get "not found" for a running
        execution. So the sender must be unchanged, and the service must respond both at the start and at the end of a
        grace period, whose start is recorded for later tries.
        """
        not_known = f"Execution {kickoff_id} could not be stopped: the service does not know it"
        if self.record.sent_by_another(sender):
            return False, f"{not_known}, at the connection's current address or with its current token"
        try:
            self._hook.inputs()
        except CrewError as error:
            return False, f"{not_known}, and does not answer GET /inputs ({error})"
        now, since = time.time(), self.record.newest.unknown_since
        if not since:
            since = now
            self.record.mark_unknown_since(now)
        said = f"{not_known}, first noticed at {_utc(since)}"
        if now - since < GRACE_FOR_UNKNOWN_ID:
            return False, f"{said}; after {GRACE_FOR_UNKNOWN_ID:.0f} s, it counts as ended"
        return True, f"{said}, so it counts as ended"

    # --- a try that ends without an execution ---

    def what_is_known(self) -> str:
        """Return a sentence about the recorded executions that earlier tries started."""
        if self._record is None:
            return "This try sent nothing; it is not known what earlier tries started"
        open_posts = self._record.newest.unsettled
        if not open_posts:
            return "No execution was started"
        return f"This try started nothing, but {'; '.join(map(_left_by, open_posts[:3]))}"


def _left_by(post: StoredPost) -> str:
    by = f"try {post.attempt['try_number']}" if "try_number" in post.attempt else "an earlier try"
    if post.kickoff_id:
        return f"execution {post.kickoff_id}, which {by} started at {_sent_at(post)}, may still be running"
    return f"the outcome of a kickoff that {by} sent at {_sent_at(post)} is unknown, so an execution may be running"


def _sent_at(post: StoredPost) -> str:
    return _utc(post.first_at or post.intended_at)


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def _state(reply: Execution | CrewError) -> str:
    if isinstance(reply, Execution):
        return str(reply.state)
    return "not known to the service" if isinstance(reply, CrewNotFound) else f"in an unknown state ({reply})"
