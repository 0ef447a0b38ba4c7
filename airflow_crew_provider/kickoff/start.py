"""How one try of a kickoff comes to its execution: the one that an earlier try has started, or a new one."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from airflow_crew_provider.api.budget import Budget
from airflow_crew_provider.compat import metrics
from airflow_crew_provider.compat.task_state import Attempt, task_identity, task_state_of
from airflow_crew_provider.exceptions import CrewError, CrewKeyReused, CrewMissingInputs, CrewNotFound
from airflow_crew_provider.kickoff.post_record import Earlier, PostRecord, Sender, fingerprint
from airflow_crew_provider.kickoff.request import (
    added_address,
    check_inbox,
    check_inputs,
    missing_inputs,
    name_of,
    seen_from_outside,
    sender_of,
    tell_inbox,
    webhooks_to_send,
    with_credentials,
)
from airflow_crew_provider.models import CrewInputs, Execution, ExecutionState, Json, Kickoff, Started
from airflow_crew_provider.stored_names import KICKOFF_STATE
from airflow_crew_provider.wait import outcomes
from airflow_crew_provider.wait.poller import Poller
from airflow_crew_provider.wait.watch import GRACE_FOR_UNKNOWN_ID, fate_of_stop, shortened

WHAT_TO_CHECK = (
    "A second kickoff could run the crew twice, so none is sent. Check at the service whether an execution of this "
    "task runs (its meta.airflow names DAG, run, task and map index); then clear this task to start a new one"
)
UNKNOWN_SINCE = "unknown_since"  # in the record of an execution that its service does not know, epoch seconds


@dataclass(frozen=True)
class StartPolicy:
    """What an operator says about its starts: the parameters of `CrewKickoffOperator` with the same names."""

    check_inputs: bool
    cancel_on_kill: bool
    on_unknown_outcome: str
    budget: Budget


class KickoffStart:
    """The start of one try: `open` reads what earlier tries have left, `execution` goes on with it or starts anew."""

    def __init__(self, context: Any, task: Any, poller: Poller, policy: StartPolicy) -> None:
        self._context, self._task, self._poller, self._policy = context, task, poller, policy
        self._hook, self._log = poller.hook, task.log
        self.kickoff_id: str | None = None  # of the execution that runs, as soon as it is known
        self.sent_at: str | None = None  # when the POST was sent that is under way
        self._record: PostRecord | None = None
        self._asked: CrewInputs | None = None
        self._seen: Execution | CrewError | None = None

    @property
    def record(self) -> PostRecord:
        """The record of this task's POSTs, once it is open."""
        assert self._record is not None
        return self._record

    @property
    def view(self) -> str | None:
        """The path of the execution's page, where the service has named it."""
        return self.record.record.get("view") or (self._seen.view if isinstance(self._seen, Execution) else None)

    def open(self) -> None:
        """Read the record; refuse a retry whose earlier execution went over its budget, or could have."""
        attempt = Attempt.of(self._context, self._task)
        self._record = record = PostRecord(task_state_of(self._context, KICKOFF_STATE), attempt)
        record.forget_deleted_run()
        if record.cleared or not record.kickoff_id:
            return
        passed = record.record.get(outcomes.OVER_BUDGET_RECORD) or self._passed_at_its_end()
        if passed:
            outcomes.fail_over_budget(self._poller, record.kickoff_id, passed, self._log)

    def execution(self, request: Kickoff) -> str:
        """Return the id of the execution that this task is about."""
        record = self.record
        record.fingerprint = fingerprint(name_of(request, task_identity(self._context), self._hook.crew_conn_id))
        if record.earlier is Earlier.DONE and self._goes_on():
            assert record.kickoff_id
            tell_inbox(self._context, record, again=True)
            return record.kickoff_id
        webhooks = with_credentials(request.webhooks, self._hook)
        check_inbox(webhooks, self._hook)
        sender = sender_of(webhooks, self._hook, record)
        if record.earlier is Earlier.UNKNOWN:
            self._settle_unknown(sender)
        if self._policy.check_inputs:
            self._asked = check_inputs(self._hook, request.inputs, self._log)
        if record.earlier is Earlier.ANOTHER:
            self._leave_behind(sender)
        return self._send(replace(request, webhooks=webhooks), sender)

    # --- the POST ---

    def _added(self, request: Kickoff) -> Json:
        """Return what is added to a new POST. A new field of `meta.airflow` belongs here.

        The record keeps it, so that the POST sent again has the same body. A header, which is not a part of the body,
        may differ each time and needs no record. Neither may hold a credential.
        """
        airflow = {**task_identity(self._context), **seen_from_outside(self._task)}
        return {"airflow": airflow, **added_address(request.webhooks, self._hook)}

    def _with_added(self, request: Kickoff) -> Kickoff:
        """Return the request with what its record says was added; release 0.2.0 kept none, and added the identity."""
        airflow = self.record.added.get("airflow") or task_identity(self._context)
        webhooks = webhooks_to_send(request.webhooks, self._context, self._hook, self.record)
        return replace(request, meta={**(request.meta or {}), "airflow": airflow}, webhooks=webhooks)

    def _send(self, request: Kickoff, sender: Sender) -> str:
        keyed = self._hook.connection.idempotency_keys
        key = self.record.intend(sender, keyed=keyed, added=self._added(request))
        try:
            sent = replace(self._with_added(request), idempotency_key=key if keyed else None)
            self.kickoff_id, self.sent_at = None, _utc(time.time())
            started = self._hook.send_kickoff(sent)
        except CrewError as error:
            self._not_started(self._worded(error, request.inputs))
        self.kickoff_id = kickoff_id = started.kickoff_id
        metrics.started(self._hook.crew_conn_id)
        self._log.info("Started execution %s of the crew at connection %s", kickoff_id, self._hook.crew_conn_id)
        self._write_down(started)
        tell_inbox(self._context, self.record)
        return kickoff_id

    def _write_down(self, started: Started) -> None:
        try:
            self.record.done(started.kickoff_id, started.view)
        except Exception as error:  # whatever it is: the execution runs, and its id must not get lost
            self._log.error(
                "Execution %s was started, but its id could not be recorded: %s. If this try fails, the next one finds "
                "a kickoff of unknown outcome",
                started.kickoff_id,
                error,
            )

    def _not_started(self, error: CrewError) -> NoReturn:
        if self.record.failed(error):
            raise error
        self._task.report_unknown("kickoff")
        if self._may_send_again and not isinstance(error, CrewKeyReused):
            raise outcomes.CrewTryFailed(f"{error}. A retry of this task sends the kickoff again") from error
        raise outcomes.CrewTaskFailed(f"{error}. {WHAT_TO_CHECK}")

    def _worded(self, error: CrewError, inputs: Json) -> CrewError:
        """Let the service's refusal name the missing inputs as the preflight does."""
        if not isinstance(error, CrewMissingInputs) or not error.names or self._asked is None:
            return error
        message = self._hook.mask(missing_inputs(error.names, self._asked, inputs))
        return CrewMissingInputs(error.names, error.status_code, error.method, error.path, message)

    # --- what an earlier try has left ---

    def _look(self) -> Execution | CrewError:
        """Poll the execution of an earlier try, once for all that is decided by it."""
        assert self.record.kickoff_id
        if self._seen is None:
            self._seen = self._poller.poll(self.record.kickoff_id)
        return self._seen

    def _passed_at_its_end(self) -> str:
        reply = self._look() if self._policy.budget.limits else None
        failed = isinstance(reply, Execution) and reply.state is ExecutionState.ERROR
        return self._policy.budget.passed_by(reply.usage) if isinstance(reply, Execution) and failed else ""

    def _goes_on(self) -> bool:
        """Whether the execution of an earlier try is the one of this task; not if it failed."""
        self.kickoff_id = self.record.kickoff_id
        reply = self._look()
        if isinstance(reply, Execution) and reply.state is ExecutionState.ERROR:
            why = shortened(reply.error or "")
            self._log.info("Execution %s of an earlier try failed: %s. Starting another", reply.kickoff_id, why)
            self.record.note(finished=True)
            return False
        seen = f"is {reply.state}" if isinstance(reply, Execution) else f"could not be polled ({reply})"
        self._log.info("An earlier try started execution %s, which %s; going on with it", self.kickoff_id, seen)
        return True

    def _settle_unknown(self, sender: Sender) -> None:
        """Handle a kickoff of an earlier try whose outcome was never recorded."""
        said = f"An earlier try sent a kickoff at {_time(self.record.record)} and its outcome is unknown"
        if not self._may_send_again:
            raise outcomes.CrewTaskFailed(f"{said}. {WHAT_TO_CHECK}")
        changed = self.record.changes(sender)
        asked_for = self._policy.on_unknown_outcome == "retry"
        if changed and (self.record.sent_by_another(sender) or not asked_for):
            now = f"Connection {self._hook.crew_conn_id!r} has another sender now: {', '.join(changed)} changed"
            raise outcomes.CrewTaskFailed(f"{said}. {now}, so the service may not recognize it. {WHAT_TO_CHECK}")
        if not asked_for and not self.record.same_request:
            raise outcomes.CrewTaskFailed(
                f"{said}; it was for another request, so its key cannot be used. {WHAT_TO_CHECK}"
            )
        self._log.warning("%s; sending it again", said)

    @property
    def _may_send_again(self) -> bool:
        return self._policy.on_unknown_outcome == "retry" or self._hook.connection.idempotency_keys

    def _leave_behind(self, sender: Sender) -> None:
        """Stop the execution from before a clear or a change of the request, if it still runs."""
        record = self.record
        why = "The task was cleared" if record.cleared else "The request has changed"
        if not record.kickoff_id:
            self._log.warning("%s; an earlier kickoff has an unknown outcome. Starting a new execution", why)
            return
        over, fate = self._end_of_earlier(record.kickoff_id, sender)
        if over:
            record.note(finished=True)
        elif not record.cleared and self._policy.on_unknown_outcome != "retry":
            raise outcomes.CrewTryFailed(
                f"{why} since execution {record.kickoff_id} was started. {fate}. No second execution is started while "
                "the first may run. A retry checks again; clear this task to start a new one anyway, or see to it that "
                "every try renders the same inputs"
            )
        self._log.warning("%s. %s. Starting a new execution", why, fate)

    def _end_of_earlier(self, kickoff_id: str, sender: Sender) -> tuple[bool, str]:
        """Return whether an earlier execution is over, and a sentence on its fate; stop it first if asked to."""
        reply = self._look()
        over = outcomes.is_over(reply)
        if over or not self._policy.cancel_on_kill:
            return over, f"The earlier execution {kickoff_id} is {_state(reply)}"
        try:
            stopped = self._hook.stop(kickoff_id)
        except CrewError as error:
            return False, fate_of_stop(kickoff_id, error)
        after = reply if stopped else self._poller.poll(kickoff_id)
        if isinstance(after, CrewNotFound):
            return self._is_forgotten(kickoff_id, sender)
        if isinstance(after, Execution) and self.record.record.get(UNKNOWN_SINCE):
            self.record.note(**{UNKNOWN_SINCE: None})
        return stopped or outcomes.is_over(after), fate_of_stop(kickoff_id, stopped)

    def _is_forgotten(self, kickoff_id: str, sender: Sender) -> tuple[bool, str]:
        """Return whether an execution that could not be stopped is believed to be gone, and a sentence on its fate.

        A gateway, another deployment and another token's user show a running execution as not found too. So the place
        must be the one that started it, and answer at both ends of the time for which it does not know the id; the
        record counts that time over the tries.
        """
        not_known = f"Execution {kickoff_id} could not be stopped: the service does not know it"
        if self.record.sent_by_another(sender):
            return False, f"{not_known}, where the connection leads now or with its present token"
        try:
            self._hook.inputs()
        except CrewError as error:
            return False, f"{not_known}, and does not answer GET /inputs ({error})"
        now, since = time.time(), self.record.record.get(UNKNOWN_SINCE)
        if not since:
            since = now
            self.record.note(**{UNKNOWN_SINCE: now})
        said = f"{not_known} since {_utc(since)}"
        if now - since < GRACE_FOR_UNKNOWN_ID:
            return False, f"{said}, which counts as its end after {GRACE_FOR_UNKNOWN_ID:.0f} s"
        return True, f"{said}, which counts as its end"

    # --- what is known when a try ends without an execution ---

    def what_is_known(self) -> str:
        """Return what earlier tries have started, as far as the record proves it."""
        if self._record is None:
            return "This try sent nothing; what earlier tries have started is not known"
        open_posts = [post for post in self._record.posts if not post.get("finished")]
        if not open_posts:
            return "No execution was started"
        return f"This try started nothing, but {'; '.join(map(_left_by, open_posts[:3]))}"


def _left_by(post: Json) -> str:
    by = f"try {post['try_number']}" if "try_number" in post else "an earlier try"
    if post.get("kickoff_id"):
        return f"execution {post['kickoff_id']}, which {by} started at {_time(post)}, may still run"
    return f"the outcome of a kickoff that {by} sent at {_time(post)} is unknown, so an execution may run"


def _time(post: Json) -> str:
    return _utc(float(post.get("first_at") or post.get("intended_at") or 0))


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def _state(reply: Execution | CrewError) -> str:
    if isinstance(reply, Execution):
        return str(reply.state)
    return "not known to the service" if isinstance(reply, CrewNotFound) else f"in an unknown state ({reply})"
