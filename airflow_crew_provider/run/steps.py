"""The steps of the task: start, then wait, ask and answer until the execution has completed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from airflow_crew_provider.api.answers import DraftId, ReviewAnswer
from airflow_crew_provider.compat.task_instance import map_index_of
from airflow_crew_provider.exceptions import CrewError, CrewExecutionFailed
from airflow_crew_provider.inbox.registering import own_address
from airflow_crew_provider.inbox.source import InboxSource
from airflow_crew_provider.kickoff.request import StartingTask, checked_webhooks
from airflow_crew_provider.kickoff.start import RECORD_IS_MISSING, OwnExecution
from airflow_crew_provider.models import Execution, ExecutionState, Json
from airflow_crew_provider.resume.sending import Resuming
from airflow_crew_provider.review.airflow_form import ask_with_number, found_nothing
from airflow_crew_provider.review.decision import ReviewPolicy, ReviewRules, begin_review, end_review
from airflow_crew_provider.review.question import AskingTask, resume_question
from airflow_crew_provider.run.record import RunRecord, bound_to
from airflow_crew_provider.stored_names import DECISIONS_KEY, RESUME_STATE, REVIEW_KEY
from airflow_crew_provider.task.attempt import Attempt
from airflow_crew_provider.task.drive import Poll, Steps
from airflow_crew_provider.task.record import AnswerState, PostState, RunState, StoredPost
from airflow_crew_provider.task.waiting import Wait
from airflow_crew_provider.wait.outcomes import CrewAnswerNotTaken, CrewTaskFailed, CrewTryFailed, fail_task, seconds
from airflow_crew_provider.wait.task import push_execution
from airflow_crew_provider.wait.watch import SEEN, Outcome, Reply

IF_CLEARED = "If you clear this task, it stops the execution and starts another"


class RunTask(StartingTask, AskingTask):
    """The base class of the operator: its parameters on which the steps depend."""

    template_fields: Sequence[str] = StartingTask.template_fields
    policy: ReviewPolicy
    max_questions: int
    has_next_round = True  # in this task, after each answer
    execution_id: str | None = None  # once known


class WholeRun:
    """What one worker does of the task: it starts, resumes after a wait, or resumes with an answer."""

    def __init__(self, task: RunTask, context: Any) -> None:
        self.worker = task.new_worker(context)
        self.own = OwnExecution(task, self.worker, self._newest_id, self._may_go_on)
        self._task, self._context, self._log = task, context, self.worker.log
        self._record: RunRecord | None = None

    @property
    def record(self) -> RunRecord:
        """The record of the task, once read."""
        assert self._record is not None
        return self._record

    @property
    def polled_id(self) -> str:
        """The id to poll."""
        return self.record.kept.kickoff_id

    def recall(self) -> None:
        """Read the record, and follow its execution."""
        self._record = self._read()
        self._follow()

    def recall_after(self, resumed_with: Json) -> None:
        """Read the record of a task that resumes, which it has certainly had since it started the execution.

        :param resumed_with: what the task stored when it deferred or asked
        """
        self.recall()
        if self.record.kept.state is not RunState.NOTHING:
            return
        kept = resumed_with.get("waiting") or resumed_with.get("shown") or {}
        known = kept.get("kickoff_id") or kept.get("execution_id")
        execution = f"Execution {known}" if known else "Its execution"
        raise CrewTaskFailed(
            f"{RECORD_IS_MISSING}. Nothing is sent or asked without it. {execution} may still be active; if you clear "
            "this task, it starts another one"
        )

    def _read(self) -> RunRecord:
        try:
            return self._stored()
        except CrewError as error:
            fail_task(error, "Nothing was sent or asked this time; a retry of this task continues")

    def _stored(self) -> RunRecord:
        return RunRecord(self.worker.record, Attempt.of(self._context, self._task))

    def _newest_id(self, kickoff_id: str) -> str:
        stored = self._stored().kept
        return stored.kickoff_id if stored.execution_id == kickoff_id else kickoff_id

    def _may_go_on(self, ended: Reply) -> bool:
        """Whether the execution may go on under the id in the lost response to an answer, as on live deployments."""
        stored, answer = self._stored().kept, StoredPost.from_json(self.worker.record.part(RESUME_STATE, None).recall())
        is_sent = stored.state is RunState.ANSWERED and answer.state is PostState.INTENDED
        return is_sent and isinstance(ended, Execution) and ended.is_live and ended.kickoff_id == stored.kickoff_id

    def _follow(self) -> None:
        """Make all polls also read webhooks, if the execution was started with the inbox."""
        stored = self.record.kept
        self._task.execution_id, self.own.kickoff_id = stored.execution_id or None, self.polled_id or None
        self.worker.read_also(InboxSource(self.worker.hook, stored.inbox))

    def _push_decisions(self, record: RunRecord | None = None) -> None:
        self._context["ti"].xcom_push(key=DECISIONS_KEY, value=(record or self.record).decisions)

    # --- start and wait ---

    def start(self) -> Steps[Json]:
        """Start the crew or reattach to an earlier try's execution; go on with it."""
        # Airflow removes XComs at the start of a try, which may end before it reattaches.
        self._push_decisions(self._read())
        kickoff_id = yield from self.own.start()
        inbox, view = own_address(self._context, self.own.record.newest.inbox, kickoff_id), self.own.view
        self.recall()
        self.record.begin(kickoff_id, inbox, now=time.time(), continues=self.own.continues)
        self._follow()
        self._push_decisions()
        if self.record.kept.state is RunState.ANSWERED:
            return (yield from self._answer())
        wait = self._wait(view)
        return (yield from self._until_completed(wait, wait.begin()))

    def resumed(self, event: Any, waiting: Json | None) -> Steps[Json]:
        """Continue with a trigger's event, or keep waiting if it is an answer to a question already decided."""
        fields = event if isinstance(event, dict) else {}
        if "chosen_options" in fields:
            return (yield from self._after_decision(waiting))
        ended = fields.get("kickoff_id")
        if isinstance(ended, str) and self.polled_id and ended != self.polled_id:
            self._log.info("Execution %s has been answered, and continues as %s", ended, self.polled_id)
            event, waiting = self._continued, None
        return (yield from self._waited(lambda wait: wait.resumed(event, waiting)))

    def _after_decision(self, waiting: Json | None = None) -> Steps[Json]:
        self._log.warning("An answer arrived after its question had been decided; it is ignored. The wait continues")
        wait = self._wait()
        return (yield from self._until_completed(wait, wait.resumed(self._continued, waiting)))

    @property
    def _continued(self) -> Json:
        """The event after which a wait for the present id goes on."""
        return Outcome(SEEN, self.polled_id).to_event()

    def without_trigger(self, error: str) -> Steps[Json]:
        """End the wait after Airflow's own timeout."""
        return (yield from self._waited(lambda wait: wait.without_trigger(error)))

    def _waited(self, steps: Callable[[Wait], Steps[Execution]]) -> Steps[Json]:
        """Continue after a wait; Airflow may deliver its end again, to the same try, after a question followed."""
        if self.record.kept.state is RunState.ANSWERED:
            return (yield from self._answer())
        self.record.look_again(now=time.time())
        wait = self._wait()
        return (yield from self._until_completed(wait, steps(wait)))

    def _wait(self, view: str | None = None) -> Wait:
        stored, task = self.record.kept, self._task
        wait = self.own.wait(self.polled_id, inbox=stored.inbox, execution_id=task.execution_id, view=view)
        watch = wait.watch
        limits = seconds(task.timeout, "timeout"), seconds(task.execution_timeout, "execution_timeout")
        limit = min((each for each in limits if each is not None), default=None)
        watch.wait_past_pending = False
        watch.started = stored.since or watch.started
        watch.deadline, watch.answered = self.record.deadline(limit), self.record.answered
        return wait

    def _until_completed(self, wait: Wait, steps: Steps[Execution]) -> Steps[Json]:
        execution = yield from self.own.end_of(self._final_after_a_resume(steps))
        if execution.state is not ExecutionState.COMPLETED:
            return (yield from self._ask(execution.record(self._task.execution_id)))
        with self.own.kept_for_a_retry():
            changed = wait.result(execution)
        self.record.finish()
        self.own.close(finished=True)
        return {**execution.record(self._task.execution_id), **changed}

    def _final_after_a_resume(self, steps: Steps[Execution]) -> Steps[Execution]:
        """Fail for good if a resume has changed the execution's id, unless the service says that it can continue it."""
        try:
            return (yield from steps)
        except CrewExecutionFailed as failure:
            if failure.kickoff_id == self._task.execution_id or (yield from self._may_be_continued()):
                raise
            raise CrewTaskFailed(
                f"{failure}. The resume of execution {self._task.execution_id} was accepted; its continuation failed. "
                "Clear this task to start a new one"
            ) from failure

    def _may_be_continued(self) -> Steps[bool]:
        if not self.own.may_continue:
            return False
        if why := (yield from self.own.why_not_continued()):
            self._log.warning("No retry continues the execution, because %s", why)
        return not why

    # --- ask ---

    def _rules(self, pending: Json) -> ReviewRules:
        """Return the rules, including where to find the whole draft and the effect of a clear."""
        ask_with_number(self._task, self.record.kept.form)
        return ReviewRules.by_task(
            self._task,
            self._task.policy,
            pending=pending,
            previous=self._decision_before(),
            previous_task=None,
            round_number=self.record.kept.number,
            max_rounds=None,
            crew_conn_id=self.worker.hook.crew_conn_id,
            whole="the execution's page at the crew service",
            again=IF_CLEARED,
            continued=self.record.kept.continues,
        )

    def _decision_before(self) -> Json | None:
        """Return the last decision, with its draft if this attempt has stored it."""
        before = self.record.decisions_on_this[-1:]
        if not before:
            return None
        ti = self._context["ti"]
        stored = ti.xcom_pull(task_ids=self._task.task_id, key=REVIEW_KEY, map_indexes=map_index_of(ti))
        is_same = isinstance(stored, dict) and stored.get("decided_at") == before[0]["decided_at"]
        return {**before[0], **stored} if is_same else before[0]

    def _ask(self, pending: Json) -> Steps[Json]:
        draft = [*DraftId.of(pending)]
        number, execution_id = self.record.number_of(draft), self._task.execution_id
        if number > self._task.max_questions:
            raise CrewTaskFailed(
                f"Execution {execution_id} asks question {number}, but max_questions is {self._task.max_questions}. "
                "Nobody was asked; the execution stays paused. Answer it with CrewResumeOperator; if "
                "you clear this task, it stops the execution and starts another"
            )
        self.record.ask(draft, now=time.time())
        rules = self._rules(pending)
        review = yield from begin_review(self.worker.record, self._task, self._context, rules, rules.record())
        return (yield from self._decided(review))

    def is_asking(self, resumed_with: Json) -> bool:
        """Whether the task resumes from a question rather than from a wait."""
        return "shown" in resumed_with or ("waiting" not in resumed_with and self.record.kept.state is RunState.ASKING)

    def answered(self, resumed_with: Json, resume: Callable[[], Any] | None) -> Steps[Json]:
        """Continue with a person's answer.

        :param resume: Airflow's own way to continue; None if there is an answer
        """
        run = self.record.kept
        # Airflow may deliver an answer again, to the same try.
        if run.state is RunState.ANSWERED:
            return (yield from self._answer())
        if run.state in (RunState.WORKING, RunState.OVER):
            return (yield from self._after_decision())
        if isinstance(event := resumed_with.get("event"), dict):
            resumed_with = {**resumed_with, "event": bound_to(run.form, event)}
        pending = yield from self._pending_again()
        if pending is None and "shown" not in resumed_with:
            raise CrewTryFailed(
                f"Airflow could not resume this task, and execution {self._task.execution_id} does not show its "
                "question. A retry of this task continues from the execution's current state"
            )
        rules = self._rules(pending or {})
        stored, arguments = self.worker.record, (self._task, self._context)
        if resume is None and not found_nothing(resumed_with):
            review = yield from end_review(stored, *arguments, rules, **resumed_with)
        else:
            review = yield from resume_question(stored, *arguments, lambda: rules, resumed_with, resume)
        return (yield from self._decided(review))

    def _pending_again(self) -> Steps[Json | None]:
        """Poll for the question's record, whose draft may be too long to store; return None if it is not found."""
        reply = yield Poll(self.polled_id)
        is_pending = isinstance(reply, Execution) and reply.state is ExecutionState.PENDING
        record = reply.record(self._task.execution_id) if is_pending else None
        return record if record and [*DraftId.of(record)] == self.record.kept.draft else None

    # --- answer ---

    def _decided(self, review: Json) -> Steps[Json]:
        self.record.answer(review)
        self._push_decisions()
        return (yield from self._answer())

    def _answer(self) -> Steps[Json]:
        """Send the answer once, then wait for the crew again."""
        review = self.record.kept.review
        assert review is not None
        self.worker.read_also(None)  # only the status shows whether the answered draft is waiting
        try:
            webhooks = checked_webhooks(self._task.webhooks)
            answer = ReviewAnswer.of(review)
            resuming = Resuming(
                self._task, self.worker, answer, webhooks, lambda each: self._sent(resuming, each), IF_CLEARED
            )
            kickoff_id = yield from resuming.send_once()
        except CrewAnswerNotTaken as refused:
            self._log.warning(
                "%s. The wait continues; if the crew still needs a person, this task asks again", refused.fact
            )
            self.record.send(None, now=time.time(), refusal=refused.fact)
        except CrewError as error:
            fail_task(error)
        else:
            if self.record.kept.state is RunState.ANSWERED:  # this try has sent nothing
                self._sent(resuming, kickoff_id)
        self._follow()
        self._push_decisions()
        self._task.report(self._context, ExecutionState.RUNNING, self.polled_id)
        push_execution(self._context, self.worker.hook, self.polled_id, self._task.execution_id, review.get("view"))
        # Defer without polling first: a crew that asks again at once would keep this worker in a loop.
        wait = self._wait()
        return (yield from self._until_completed(wait, wait.go_on()))

    def _sent(self, resuming: Resuming, kickoff_id: str) -> None:
        resumed = resuming.said(kickoff_id)
        service = {"kickoff_id": kickoff_id, "status": resumed.status, "message": resumed.said.get("message")}
        self.record.send(
            service if resumed.state is not AnswerState.LEFT else None,
            now=time.time(),
            kickoff_id=kickoff_id,
            inbox=own_address(self._context, resuming.registration, kickoff_id),
            answered=resumed.answered,
            unused=resumed.state is AnswerState.UNUSED,
            refusal=resumed.refusal,
        )
