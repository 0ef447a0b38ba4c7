"""The operator that runs a crew to completion in one task, including all reviews. Needs Airflow 3.4 or newer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NoReturn, Unpack

from airflow.providers.common.compat.sdk import XComArg

from airflow_crew_provider.api.answers import ReviewAnswer
from airflow_crew_provider.api.asks import DENY
from airflow_crew_provider.compat.arguments import WaitArguments
from airflow_crew_provider.compat.nested_task import outside_dag
from airflow_crew_provider.compat.retries import at_least, mapped_at_least
from airflow_crew_provider.compat.task_instance import map_index_of
from airflow_crew_provider.compat.version import has_form_per_attempt
from airflow_crew_provider.exceptions import CrewError, CrewExecutionFailed
from airflow_crew_provider.hooks.crew import CrewHook
from airflow_crew_provider.inbox.registering import own_address
from airflow_crew_provider.inbox.source import InboxSource
from airflow_crew_provider.kickoff.request import checked_webhooks
from airflow_crew_provider.kickoff.start import FROM_FAILED_TASK
from airflow_crew_provider.models import Execution, ExecutionState, Json, Webhooks
from airflow_crew_provider.operators.kickoff import CrewKickoffOperator
from airflow_crew_provider.operators.review import APPROVE, REVISE, CrewReviewOperator
from airflow_crew_provider.resume.draft_check import CrewAnswerNotTaken
from airflow_crew_provider.resume.record import ResumeRecord
from airflow_crew_provider.resume.record import State as AnswerState
from airflow_crew_provider.resume.sending import Resuming
from airflow_crew_provider.review.airflow_form import number_param, own_params
from airflow_crew_provider.review.answer import DRAFT
from airflow_crew_provider.review.decision import ReviewRules
from airflow_crew_provider.review.people import counted
from airflow_crew_provider.review.record import question_of
from airflow_crew_provider.run.record import RunRecord, State, bound_to
from airflow_crew_provider.stored_names import (
    DECISIONS_KEY,
    NUMBER_FIELD,
    RESUME_STATE,
    REVIEW_KEY,
    RUN_STATE,
)
from airflow_crew_provider.task.store import store_of
from airflow_crew_provider.triggers.crew import CrewStatusTrigger
from airflow_crew_provider.wait.outcomes import (
    CrewTaskFailed,
    CrewTryFailed,
    ends_in_a_sentence,
    fail_task,
    seconds,
)
from airflow_crew_provider.wait.poller import Poller
from airflow_crew_provider.wait.task import push_execution
from airflow_crew_provider.wait.watch import SEEN, Outcome, Watch

RETRIES = 5
# The arguments passed to the review.
ASKED = (
    "response_timeout",
    "assigned_users",
    "on_timeout",
    "on_tool_timeout",
    "options",
    "escalate",
    "approvals",
    "auto_approve",
    "allow_edit",
    "on_schema_mismatch",
    "output_schema",
    "notifiers",
    "crew_conn_id",
)


class NestedReview(CrewReviewOperator):
    """The review of one question, inside the task that asks it."""

    def rules(self) -> ReviewRules:
        """Return the rules, including where to find the whole draft and the effect of a clear."""
        clear = "If you clear this task, it stops the execution and starts another"
        return replace(super().rules(), whole="the execution's page at the crew service", again=clear)


class CrewRunOperator(CrewKickoffOperator):
    """Run a crew until it completes, and ask a person each time it needs one; return the completed record.

    No worker slot is held while the crew works or a person is asked. The XCom ``crew_decisions`` lists all reviews,
    without drafts.

    :param inputs: the crew's inputs, plain JSON (templated)
    :param webhooks: a dict or `Webhooks` with the URLs to notify, or ``"inbox"`` (templated)
    :param meta: a dict that the service echoes in webhooks; the key ``airflow`` is added (templated)
    :param restore_from: for a Flow with ``@persist``, the id of the state to start from (templated)
    :param crew_conn_id: the connection of type ``crew`` (templated)
    :param check_inputs: request ``GET /inputs`` first, and fail if a required input is missing
    :param poll_in_worker: how long to poll about once a second in the worker before the task defers, in seconds or as a
        timedelta
    :param poll_interval: the minimum pause between polls, in seconds or as a timedelta
    :param timeout: how long the crew may work, not counting the time people take, in seconds or as a timedelta; None
        for no limit
    :param cancel_on_kill: stop the execution (best effort) when the task is killed, cleared or times out
    :param on_unknown_outcome: what to do if the kickoff's response is lost: ``fail``, or ``retry`` and risk a second
        execution
    :param retry_from: where a retry continues after the execution has failed: at its ``failed_task`` if the service can
        continue the execution, or at the ``start``
    :param max_questions: how many questions the crew may ask
    :param response_timeout: how long to wait for the answer to each question, in seconds or as a timedelta; None for no
        deadline
    :param assigned_users: the users who may answer, as ids or as dicts with ``id`` and ``name``; None for everybody
    :param on_timeout: what to do at the deadline: ``fail``, ``{"revise": "text"}``, or ``approve``
    :param on_tool_timeout: the same for a tool call awaiting approval: ``deny``, ``fail``, or ``approve``
    :param options: labels for the two buttons, the approving one first; a Flow's outcomes replace them
    :param escalate: pairs of a time (seconds or a timedelta) and one or more users or notifiers: if nobody has answered
        by then, the notifiers are called, and the users may also answer
    :param approvals: how many different people must approve; a revision request from any of them takes effect at once
    :param auto_approve: a function that takes the pending record of a draft; if it returns a non-empty string, the
        draft is approved at once for that reason; otherwise the person is asked
    :param allow_edit: let the person edit the draft in the form; an approval then sends the edited text
    :param notifiers: notifiers to call for each question
    :param on_schema_mismatch: if a draft does not match ``output_schema``, ``fail`` only shows the violations, and
        ``revise`` sends the draft back once before the person is asked
    """

    has_next_round = True  # in this task, after each answer

    def __init__(
        self,
        *,
        inputs: Json | XComArg,
        webhooks: Webhooks | Json | str | XComArg | None = None,
        meta: Json | XComArg | None = None,
        restore_from: str | XComArg | None = None,
        crew_conn_id: str = CrewHook.default_conn_name,
        check_inputs: bool = True,
        poll_in_worker: float | str | timedelta = 0,
        poll_interval: float | str | timedelta = 10.0,
        timeout: float | str | timedelta | None = None,
        cancel_on_kill: bool = True,
        on_unknown_outcome: str = "fail",
        retry_from: str = FROM_FAILED_TASK,
        max_questions: int = 100,
        response_timeout: float | timedelta | None = None,
        assigned_users: str | Json | Sequence[str | Json] | None = None,
        on_timeout: str | Json = "fail",
        on_tool_timeout: str = DENY,
        options: Sequence[str] = (APPROVE, REVISE),
        escalate: Sequence[tuple[float | timedelta, Any]] = (),
        approvals: int = 1,
        auto_approve: Callable[[Json], Any] | None = None,
        allow_edit: bool = False,
        notifiers: Any = (),
        on_schema_mismatch: str = "fail",
        **kwargs: Unpack[WaitArguments],
    ) -> None:
        if not has_form_per_attempt():
            raise ValueError(
                "CrewRunOperator needs Airflow 3.4 or newer, where a task can ask several questions; on older versions "
                "use crew_with_review"
            )
        given: dict[str, Any] = {**kwargs}
        super().__init__(
            inputs=inputs,
            webhooks=webhooks,
            meta=meta,
            restore_from=restore_from,
            crew_conn_id=crew_conn_id,
            check_inputs=check_inputs,
            wait_for_completion=True,
            deferrable=True,
            poll_in_worker=poll_in_worker,
            poll_interval=poll_interval,
            timeout=timeout,
            cancel_on_kill=cancel_on_kill,
            on_unknown_outcome=on_unknown_outcome,
            retry_from=retry_from,
            **{**at_least(given.get("default_args"), RETRIES), **given},
        )
        self.max_questions = counted(max_questions, "max_questions") or 1
        self.response_timeout = response_timeout
        self.assigned_users = assigned_users
        self.on_timeout = on_timeout
        self.on_tool_timeout = on_tool_timeout
        self.options = options
        self.escalate = escalate
        self.approvals = approvals
        self.auto_approve = auto_approve
        self.allow_edit = allow_edit
        self.notifiers = notifiers
        self.on_schema_mismatch = on_schema_mismatch
        self.execution_id: str | None = None
        self._found: RunRecord | None = None
        self._review(None, 1)  # refuses invalid arguments when the DAG file is parsed

    @classmethod
    def partial(cls, **kwargs: Any) -> Any:
        """Return a mapped task, with the same default retries."""
        return mapped_at_least(super().partial(**kwargs), kwargs, RETRIES)

    @ends_in_a_sentence
    def execute(self, context: Any) -> Any:
        """Start the crew, or reattach to an earlier try's execution."""
        self._ti, self._context = context["ti"], context
        kickoff_id = self._start(context)
        assert self._starting is not None
        inbox = own_address(context, self._starting.record.newest.inbox, kickoff_id)
        run = self._recall(context)
        if run.kept.execution_id != kickoff_id:
            self._forget_last_question(context)
        self._store(lambda: run.begin(kickoff_id, inbox, now=time.time()), "A retry of this task reattaches to it")
        self._recalled(context)
        self._push_decisions(context)
        if run.kept.state is State.ANSWERED:
            self._send(context)
        return self.begin_in_triggerer(context, self._watch(context, run.kept.kickoff_id))

    @ends_in_a_sentence
    def resume_execution(self, next_method: str, next_kwargs: Any, context: Any) -> Any:
        """Continue with a person's answer, or with the outcome of the wait."""
        self._ti, self._context = context["ti"], context
        run = self._recall(context)
        given = next_kwargs or {}
        is_asked = "shown" in given or ("waiting" not in given and run.kept.state is State.ASKING)
        if not is_asked:
            return super().resume_execution(next_method, next_kwargs, context)
        if isinstance(event := given.get("event"), dict):
            given = {**given, "event": bound_to(run.kept.form, event)}
        pending = self._pending_again()
        if pending is None and "shown" not in given:
            raise CrewTryFailed(
                f"Airflow could not resume this task, and execution {self.execution_id} does not show its question. A "
                "retry of this task continues from the execution's current state"
            )
        review = self._review(pending, run.kept.number, context)
        self._decided(context, review.resume_execution(next_method, given, _inside(review, context)))

    def execute_complete(self, context: Any, event: Any = None, waiting: Json | None = None) -> Any:
        """Keep waiting if the event is an answer to a question that has already been decided."""
        if isinstance(event, dict) and "chosen_options" in event:
            self.log.warning("An answer arrived after its question had been decided; it is ignored. The wait continues")
            event = Outcome(SEEN, self._polled).to_event()
        return super().execute_complete(context, event, waiting)

    def newest_id(self, context: Any, kickoff_id: str) -> str:
        """Return an execution's current id, which a resume may have changed."""
        kept = RunRecord(store_of(context, RUN_STATE)).kept
        return kept.kickoff_id if kept.execution_id == kickoff_id else kickoff_id

    # --- the state of the task ---

    @property
    def _run(self) -> RunRecord:
        """The record of this task, once it has been read."""
        assert self._found is not None
        return self._found

    @property
    def _polled(self) -> str:
        """The id to poll."""
        return self._run.kept.kickoff_id

    def _recall(self, context: Any) -> RunRecord:
        try:
            self._found = RunRecord(store_of(context, RUN_STATE))
        except CrewError as error:
            fail_task(error, "Nothing was sent or asked this time; a retry of this task continues")
        self._recalled(context)
        return self._found

    def _recalled(self, context: Any) -> None:
        self.execution_id, self._kickoff_id = self._run.kept.execution_id or None, self._polled or None
        self.open_sources(context, self._polled)

    def _store(self, move: Callable[[], None], otherwise: str) -> None:
        try:
            move()
        except CrewError as error:
            fail_task(error, otherwise)

    def _forget_last_question(self, context: Any) -> None:
        """Forget the last question and its answer, since the next question may be identical."""
        question_of(context, self).forget()
        self._store(store_of(context, RESUME_STATE).forget, "Nobody was asked; a retry of this task will ask")

    def _push_decisions(self, context: Any) -> None:
        context["ti"].xcom_push(key=DECISIONS_KEY, value=self._run.kept.decisions)

    # --- waiting ---

    def open_sources(self, context: Any, kickoff_id: str) -> None:
        """Make all polls also read webhooks if the execution was started with the inbox."""
        self.inbox = self._run.kept.inbox
        self.__dict__["_poller"] = Poller(self.hook, InboxSource(self.hook, self.inbox))

    def trigger_of(self, watch: Watch) -> CrewStatusTrigger:
        """Return the trigger that continues a watch."""
        return CrewStatusTrigger.of(watch, self.crew_conn_id, self.cancel_on_kill, self.inbox)

    def _watch(self, context: Any, kickoff_id: str) -> Watch:
        watch = super()._watch(context, kickoff_id)
        watch.wait_past_pending = False
        if self._found is not None:
            own = seconds(self.timeout, "timeout"), seconds(self.execution_timeout, "execution_timeout")
            limit = min((each for each in own if each is not None), default=None)
            watch.started = self._run.kept.since or watch.started
            watch.deadline, watch.answered = self._run.deadline(limit), self._run.answered
        return watch

    def make_result(self, context: Any, execution: Execution) -> Json:
        """Return a completed execution's record; for any other execution, ask a person."""
        if execution.state is not ExecutionState.COMPLETED:
            self._ask(context, execution.record(self.execution_id))
        self._store(self._run.finish, "A retry of this task finds the execution completed")
        super().make_result(context, execution)
        return execution.record(self.execution_id)

    def raise_failure(self, watch: Watch, error: str) -> NoReturn:
        """Fail so that a retry starts a new execution; fail for good if a resume has changed the execution's id."""
        if watch.kickoff_id == self.execution_id:
            super().raise_failure(watch, error)
        failure = CrewExecutionFailed(watch.kickoff_id, error)
        raise CrewTaskFailed(
            f"{failure}. The resume of execution {self.execution_id} was accepted; its continuation failed. Clear this "
            "task to start a new one"
        ) from failure

    # --- asking ---

    def _review(self, pending: Json | None, number: int, context: Any = None) -> NestedReview:
        """Return the task that asks the question with this number."""
        form = self._found.kept.form if self._found else number
        with outside_dag():
            return NestedReview(
                task_id=self.task_id,
                pending=pending or {},
                previous=self._decision_before(context) if context else None,
                round_number=number,
                params={**own_params(self), NUMBER_FIELD: number_param(form)},
                **{name: getattr(self, name) for name in ASKED},
            )

    def _decision_before(self, context: Any) -> Json | None:
        """Return the last decision, with its draft if this attempt has stored it."""
        before = self._run.kept.decisions[-1:]
        if not before:
            return None
        stored = context["ti"].xcom_pull(task_ids=self.task_id, key=REVIEW_KEY, map_indexes=map_index_of(context["ti"]))
        is_same = isinstance(stored, dict) and stored.get("decided_at") == before[0]["decided_at"]
        return stored if is_same else before[0]

    def _ask(self, context: Any, pending: Json) -> NoReturn:
        draft = [pending.get(name) for name in DRAFT]
        number = self._run.number_of(draft)
        if number > self.max_questions:
            raise CrewTaskFailed(
                f"Execution {self.execution_id} asks question {number}, but max_questions is {self.max_questions}. "
                "Nobody was asked; the execution stays paused. Answer it with CrewResumeOperator; if "
                "you clear this task, it stops the execution and starts another"
            )
        if number != self._run.kept.number:
            self._forget_last_question(context)
        self._store(lambda: self._run.ask(draft, now=time.time()), "Nobody was asked; a retry of this task will ask")
        review = self._review(pending, number, context)
        self._decided(context, review.begin(_inside(review, context)))

    def _pending_again(self) -> Json | None:
        """Poll for the question's record, whose draft may be too long to store; return None if it is not found."""
        seen = self.poller.poll(self._polled)
        is_pending = isinstance(seen, Execution) and seen.state is ExecutionState.PENDING
        record = seen.record(self.execution_id) if is_pending else None  # type: ignore[union-attr]
        return record if record and [record.get(name) for name in DRAFT] == self._run.kept.draft else None

    def _decided(self, context: Any, review: Json) -> NoReturn:
        self._store(lambda: self._run.answer(review), "The answer is kept; a retry of this task uses it")
        self._push_decisions(context)
        self._send(context)

    # --- answering ---

    def _send(self, context: Any) -> NoReturn:
        """Send the answer once, then wait for the crew again."""
        review = self._run.kept.review
        assert review is not None
        try:
            resuming = Resuming(context, self, ReviewAnswer.of(review), checked_webhooks(self.webhooks))
            kickoff_id = resuming.send_once()
        except CrewAnswerNotTaken as refused:
            self.log.warning("%s. The wait continues; if the crew still needs a person, this task asks again", refused)
            self._store(lambda: self._run.send(None, now=time.time()), "A retry of this task compares again")
        except CrewError as error:
            fail_task(error)
        else:
            self._store(lambda: self._sent(context, resuming, kickoff_id), "The answer was sent exactly once")
        self._recalled(context)
        self._push_decisions(context)
        self.report(context, ExecutionState.RUNNING, self._polled)
        push_execution(context, self.hook, self._polled, self.execution_id, review.get("view"))
        # Defer without polling first: a crew that asks again at once would keep this worker in a loop.
        self.go_on(self._watch(context, self._polled))

    def _sent(self, context: Any, resuming: Resuming, kickoff_id: str) -> None:
        said: ResumeRecord = resuming.said(kickoff_id)
        is_sent = said.state is AnswerState.SENT
        service = {"kickoff_id": kickoff_id, "status": said.status, "message": said.said.get("message")}
        self._run.send(
            service if is_sent else None,
            now=time.time(),
            kickoff_id=kickoff_id,
            inbox=own_address(context, resuming.registration, kickoff_id),
            answered=said.answered,
        )


def _inside(review: NestedReview, context: Any) -> Any:
    """Return the context with the review as its task, from which notifiers read the question."""
    return {**context, "task": review}
