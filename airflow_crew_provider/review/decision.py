"""The question in a draft's review, and the decision that follows an answer. Needs Airflow 3.1 or newer.

An approval is deliberate and belongs to the draft shown:

* Approval is never the default. Without a person, the first of these that applies decides, before anybody is asked:
  a tool call that the form cannot show in full is denied; the schema sends a draft back, once; ``auto_approve``
  approves it. Once somebody was asked, only the deadline can: the service's own if it has passed, else the DAG's. An
  escalation step only asks more people, and a decision on record is not made again.
* None of them approves what only a person may approve (`ReviewRules.only_by_a_person`): a text that somebody has
  rejected in this DAG run, whichever execution shows it now, or a draft that violates the schema.
* The form that the person saw determines whether an answer is valid, even if the DAG file has been edited since.
* An invalid answer is not accepted, and the person is asked again and shown the reason.
* An answer does not count if the person may not answer yet, or has already approved. Neither does one that was given
  more than a minute after the deadline, no matter when it is delivered.
* A decision is stored together with its draft before the task succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from airflow_crew_provider.api import asks
from airflow_crew_provider.api.answers import DraftId
from airflow_crew_provider.api.values import record_or_none
from airflow_crew_provider.compat import metrics
from airflow_crew_provider.compat.loops import previous_xcom
from airflow_crew_provider.compat.task_instance import map_index_of
from airflow_crew_provider.exceptions import CrewInvalidInput
from airflow_crew_provider.models import Json, output_sha256, shown
from airflow_crew_provider.questions import Terms, question_in
from airflow_crew_provider.questions.drafts import code
from airflow_crew_provider.questions.kinds import VIOLATIONS
from airflow_crew_provider.review import airflow_form, answer, people
from airflow_crew_provider.review.answer import EARLIER
from airflow_crew_provider.review.form import ReviewForm
from airflow_crew_provider.review.people import Escalation, told
from airflow_crew_provider.review.question import Asking, AskingTask, people_of
from airflow_crew_provider.stored_names import (
    FEEDBACK_FIELD,
    REFUSAL,
    REJECTED_BEFORE,
    REVIEW_KEY,
    SCHEMA_REVISION,
)
from airflow_crew_provider.task.drive import Steps
from airflow_crew_provider.task.record import Rejected
from airflow_crew_provider.task.store import Stored
from airflow_crew_provider.wait.outcomes import CrewTaskFailed, fail_task
from airflow_crew_provider.wait.schema import listed

NAMES_OF_TERMS = (
    *("words", "on_timeout", "on_tool_timeout", "allow_edit", "approvals", "may_answer", "users"),
    *("round_number", "max_rounds", "fields", "people"),
)


@dataclass(frozen=True, kw_only=True)
class ReviewPolicy(Terms):
    """How a task's reviews are decided, from the DAG's arguments."""

    response_timeout: timedelta | None
    escalation: Escalation
    auto_approve: Callable[[Json], Any] | None
    output_schema: Any
    on_schema_mismatch: str

    @classmethod
    def of(
        cls,
        *,
        options: Sequence[str],
        on_timeout: Any,
        on_tool_timeout: Any,
        response_timeout: Any,
        assigned_users: Any,
        escalate: Any,
        approvals: Any,
        auto_approve: Any,
        allow_edit: Any,
        output_schema: Any,
        on_schema_mismatch: str,
    ) -> ReviewPolicy:
        """Check the arguments; refuse invalid ones when the DAG file is parsed."""
        timeout = people.response_time(response_timeout)
        policy, tool_policy = (
            people.deadline_policy(on_timeout, timeout),
            people.tool_policy(on_tool_timeout, timeout),
        )
        if auto_approve is not None and not callable(auto_approve):
            raise ValueError(f"auto_approve must be a function of the pending record, not {shown(auto_approve)}")
        escalation = Escalation.of(escalate, people.reviewers(assigned_users), timeout)
        words = people.two_words(options)
        answer.refuse_bad_policy(output_schema, on_schema_mismatch)
        return cls(
            words=words,
            on_timeout=policy,
            on_tool_timeout=tool_policy,
            allow_edit=allow_edit,
            approvals=people.needed_approvals(approvals, escalation.users, allow_edit=allow_edit),
            response_timeout=timeout,
            escalation=escalation,
            auto_approve=auto_approve,
            output_schema=output_schema,
            on_schema_mismatch=on_schema_mismatch,
        )

    @property
    def form_arguments(self) -> Json:
        """The arguments of `HITLOperator`."""
        approve, revise = self.words
        return {
            "options": list(self.words),
            "defaults": None if self.on_timeout == "fail" else [approve if self.on_timeout == "approve" else revise],
            "response_timeout": self.response_timeout,
            "assigned_users": self.escalation.users,
        }


@dataclass(frozen=True, kw_only=True)
class ReviewRules(ReviewPolicy):
    """The policy and the rendered arguments of one review; those in `NAMES_OF_TERMS` are the ones shown to the person.

    :param whole: where to find the whole draft, for a form that shows only part of it
    :param again: a sentence about the effect of clearing the task, for messages
    :param continued: the failed executions that the present one continues
    """

    pending: Any
    previous: Any
    previous_task: str | None
    may_answer: Json | None
    users: list[str] | None
    fields: Json
    people: list[Json] | None
    crew_conn_id: str
    whole: str
    again: str = "Clear this task to ask again"
    continued: Collection[str] = ()

    holds_another: ClassVar[str] = (
        "Airflow still holds the draft from an earlier run of this task and cannot show the new one, so nobody was "
        "asked and nothing was sent. The execution stays paused; start a new DAG run instead of "
        "clearing this one, or answer with CrewResumeOperator"
    )

    @classmethod
    def by_task(cls, task: AskingTask, policy: ReviewPolicy, **review: Any) -> ReviewRules:
        """Return the rules of a task's review; a subclass of it may have templated the assigned users."""
        escalation = policy.escalation
        return cls(
            **{**vars(policy), **review},
            may_answer=escalation.may_answer,
            users=escalation.ids,
            fields=airflow_form.fields_of(task),
            people=people_of(task.assigned_users),
        )

    def terms(self) -> Json:
        """Return the arguments that determine whether an answer is valid."""
        return {name: getattr(self, name) for name in NAMES_OF_TERMS}

    def by(self, terms: Json) -> ReviewRules:
        """Return the rules with the terms of a form that was shown."""
        return replace(self, **{name: terms[name] for name in NAMES_OF_TERMS if name in terms})

    def record(self) -> Json:
        """Return the pending record, or the completed one."""
        try:
            return answer.pending_record(self.pending)
        except CrewInvalidInput as error:
            fail_task(error)

    def shown(self, pending: Json) -> Json:
        """Return the part of a pending record to show to a person, with the draft's violations."""
        try:
            violations = answer.violations_of(self.output_schema, pending)
        except CrewInvalidInput as error:
            fail_task(error, "Nobody was asked, and the execution stays paused; correct the rule and clear this task")
        return {**answer.shown_draft(pending), **({VIOLATIONS: listed(violations)} if violations else {})}

    def shown_now(self) -> Json:
        """Return the content to show now."""
        return self.shown(self.record())

    def approving(self, content: Json) -> list[str] | None:
        """Return the choice that approves; None if there is no clear one."""
        return question_in(content).approving(self)

    def expires(self, content: Json) -> datetime | None:
        """When the service gives nobody's answer by itself; None if it does not."""
        return question_in(content).expires

    def offer(self, task: airflow_form.HITLOperator, content: Json) -> None:
        """Set the form's choices, fields and default; the choices depend on whether an agent, a Flow or a crew asks."""
        question, own = question_in(content), airflow_form.params_of(self.fields, task)
        task.options = question.choices(self)
        if not question.takes_own_body:
            task.body = None
        edited = question.editable_text if question.edits(self) else None
        task.params = airflow_form.form_params(own, question.hint, edited, question.field)
        try:
            chosen = question.at_deadline(self)
            question.refuse_approvals(self.approvals)
        except CrewInvalidInput as error:
            fail_task(error)
        # With defaults, Airflow would answer at the first escalation step, or show an approval that does not count.
        is_barred = chosen == question.approving(self) and self.only_by_a_person(content, ())
        task.defaults = None if self.escalation.steps or task.response_timeout is None or is_barred else chosen

    def only_by_a_person(self, content: Json, rejected: Sequence[Rejected]) -> str:
        """Return why only a person may approve this: it violates the schema, or somebody has rejected this very text.

        A retry or a clear may start another execution, whose draft is the same text.
        """
        if content["output_sha256"] in (*self.rejected_before, *(each.output_sha256 for each in rejected)):
            return "Somebody has rejected this draft"
        return "This draft does not match the output schema" if content.get(VIOLATIONS) else ""

    @property
    def rejected_before(self) -> list[Any]:
        """The hashes of the drafts that people rejected in earlier rounds."""
        previous = record_or_none(self.previous) or {}
        draft = previous.get("output_sha256")
        is_rejection = previous.get("is_approve") is False and previous.get("reviewer") and draft
        earlier = previous.get(REJECTED_BEFORE)
        return [*(earlier if isinstance(earlier, list) else []), *([draft] if is_rejection else [])]

    def not_approved(self, content: Json) -> str:
        """Return what became of a draft that the deadline did not approve, and what to do next."""
        return (
            f"Nothing was sent: execution {content['execution_id']} stays paused. {self.again}. You can also answer "
            "with CrewResumeOperator"
        )

    def form(self, context: Any, content: Json, until: str | None, since: datetime) -> ReviewForm:
        """Return the form, including the previous round."""
        return ReviewForm(
            pending=content,
            terms=self,
            whole=self.whole,
            previous=self._round_before(context),
            later=told(self.may_answer, since),
            until=datetime.fromisoformat(until) if until else None,
        )

    def _round_before(self, context: Any) -> Json | None:
        """Return the previous round's review, with its draft if it was made in this DAG, and why it changed nothing."""
        review = record_or_none(self.previous)
        if review is None:
            return None
        refusal = (record_or_none(self.pending) or {}).get(REFUSAL)
        refused = {REFUSAL: refusal} if refusal else {}
        if self.previous_task is None:
            return {**review, **refused}
        decision = record_or_none(self._decision_before(context, self.previous_task)) or {}
        is_of_review = decision.get("output_sha256") == review.get("output_sha256")
        return {**(decision if is_of_review else review), **refused}

    def _decision_before(self, context: Any, task_id: str) -> Any:
        ti = context["ti"]
        if task_id == ti.task_id:  # in a loop
            return previous_xcom(context, task_id, REVIEW_KEY)
        return ti.xcom_pull(task_ids=task_id, key=REVIEW_KEY, map_indexes=map_index_of(ti))


def begin_review(stored: Stored, task: AskingTask, context: Any, rules: ReviewRules, pending: Json) -> Steps[Json]:
    """Return the review if no person is needed; otherwise, ask one."""
    question, content = Asking(stored, context, task, rules, begins=True), rules.shown(pending)
    review = Decision(question, content).decide_without_person()
    return review if review is not None else (yield from question.go_on(content))


def end_review(
    stored: Stored,
    task: AskingTask,
    context: Any,
    rules: ReviewRules,
    event: Json,
    until: str | None = None,
    shown: Json | None = None,
    *,
    step: bool = False,
) -> Steps[Json]:
    """Return the review, or ask again if the answer is invalid.

    :param step: whether the task resumes at an escalation step
    """
    question = Asking(stored, context, task, rules)
    # Release 0.1 did not store what was shown.
    shown = shown or answer.shown_draft(question.rules.record())
    question.hold_to(shown)
    decision = Decision(question, shown, until)
    event = yield from question.delivered(shown, until, event, decision.default, decision.end_at_deadline, step=step)
    return (yield from decision.decide(event))


class Decision:
    """The decision on a question's draft.

    :param until: when the question expires, in ISO 8601
    """

    def __init__(self, question: Asking[ReviewRules], content: Json, until: str | None = None) -> None:
        self._question, self._shown, self._until = question, content, until
        self._task, self._context = question.task, question.context
        self._rules, self._record = question.rules, question.record
        self._asked, self._draft = question_in(content), DraftId.of(content)

    @property
    def default(self) -> list[str] | None:
        """The choice that the DAG's deadline makes; None if the task then fails."""
        return self._asked.at_deadline(self._rules)

    def decide_without_person(self) -> Json | None:
        """Return a review that can be made without a person, in the order above; None if a person must decide."""
        return self._denied_unseen() or self._by_schema() or self._by_rule()

    def _denied_unseen(self) -> Json | None:
        """Return the review that denies a tool call that a person cannot see in full."""
        if self._asked.may_be_judged_unseen or self._asked.is_whole:
            return None
        return self._written_down(answer.denial_unseen(self._shown))

    def _by_rule(self) -> Json | None:
        """Return the review with which ``auto_approve`` approves a draft before a person sees it."""
        rule = self._rules.auto_approve
        if rule is None or not self._asked.is_plain or self._record.is_open_for(self._draft):
            return None
        if why := self._question.only_by_a_person(self._shown):
            self._task.log.info("%s, so auto_approve is not called, and a person is asked", why)
            return None
        try:
            reason = rule(deepcopy(self._rules.record()))
        except Exception:
            self._task.log.warning("auto_approve failed, so a person is asked", exc_info=True)
            return None
        if not isinstance(reason, str) or not reason.strip():
            return None
        return self._written_down(answer.approval_by_rule(self._shown, reason))

    def _by_schema(self) -> Json | None:
        """Return the review that sends back a draft because of its violations."""
        wanted = self._rules.on_schema_mismatch == people.REVISE and self._shown.get(VIOLATIONS)
        if not wanted or self._sent_back_before():
            return None
        if self._rules.is_last or self._record.is_open_for(self._draft):
            return None
        review = answer.revision_by_schema(self._shown)
        self._record.mark_sent_back(self._draft)
        return self._written_down(review)

    def end_at_deadline(self) -> Json:
        """Return the event for a deadline that Airflow does not know about or has not noticed.

        :raises CrewTaskFailed: the policy chooses nothing
        """
        chosen, expires = self.default, self._asked.expires
        if expires and expires <= datetime.now(UTC):
            chosen = [asks.EXPIRED]
        if chosen is None:
            self._record.close()
            kept = self._rules.not_approved(self._shown)
            raise CrewTaskFailed(f"Nobody answered within {self._task.response_timeout}. {kept}")
        return airflow_form.deadline_event(chosen)

    def decide(self, event: Json) -> Steps[Json]:
        """Return the review, or ask again if the answer is invalid."""
        try:
            answer.refuse_changed(self._rules.pending, self._shown)
        except CrewInvalidInput as error:
            fail_task(error)
        if self._question.came_too_late(self._shown, self._until, event):
            event = self.end_at_deadline()
        if self._asked.edits(self._rules):
            event = self._asked.read_edit(event)
        policy = self._asked.policy(self._rules)
        in_time = policy == "fail" or not airflow_form.timed_out(event)
        if not in_time:
            self._question.refuse_late_approval(self._shown, event)
        problem = self._problem(event) if in_time else None
        if problem:
            yield from self._question.refuse(self._shown, self._until, event, problem)
        review = self._review(event, in_time=in_time)
        if in_time and self._asked.needed(review, self._rules) > 1:
            review = yield from self._with_others(review)
        metrics.reviewed(self._rules.crew_conn_id, self._asked.name, self._record.asked_at, event["responded_at"])
        review = self._written_down(answer.with_text_to_send(review, self._shown))
        if in_time:
            self._question.keep_rejection(self._shown, event)
        self._record.close()
        # An answer to a Flow or an agent needs no other round.
        if review["is_approve"] is False and self._asked.is_plain and self._rules.is_last:
            # Keep the decision on record.
            self._context["ti"].xcom_push(key="return_value", value=review)
            raise CrewTaskFailed(answer.no_round_left(review, self._rules.max_rounds))
        return review

    # --- which answers are accepted ---

    def _problem(self, event: Json) -> str | None:
        """Return why an event is not a valid answer; None if it is valid."""
        needs_text = self._asked.needs_text(self._rules)
        return (
            answer.problem_with(event, self._task.options, list(self._task.params), needs_text)
            or self._too_early(event)
            or self._approved_before(event)
            or airflow_form.problem_with_fields(self._task, self._context, event)
            or (self._problem_with_edit(event) if self._asked.edits(self._rules) else None)
        )

    def _too_early(self, event: Json) -> str | None:
        """Return a problem if somebody may not answer this form, or not before a later escalation step."""
        may, user = self._rules.may_answer, event.get("responded_by_user")
        if may is None or user is None:
            return None
        if user.get("id") not in may:
            return f"{code(airflow_form.name_of(event))} is not among those who may answer this form"
        at = self._record.since(self._draft) + timedelta(seconds=may[user["id"]])
        if event["responded_at"] >= at or not may[user["id"]]:
            return None
        return f"{code(airflow_form.name_of(event))} may not answer before {at:%Y-%m-%d %H:%M:%S} UTC"

    def _approved_before(self, event: Json) -> str | None:
        """Return a problem if the same person approved twice, or if the approver is unknown."""
        if self._asked.needed(self._choice(event), self._rules) == 1:
            return None
        who = (event.get("responded_by_user") or {}).get("id")
        if not who:
            return "Airflow does not report who approved, but different people must approve"
        approvals = self._record.approvals
        # If there are enough approvals, this is the last one redelivered after a failed attempt.
        if who not in _ids(approvals) or len(approvals) >= self._rules.approvals:
            return None
        return f"{code(airflow_form.name_of(event))} has already approved, but another person must also approve"

    def _problem_with_edit(self, event: Json) -> str | None:
        """Return why an edited text is invalid; text that becomes the output must match the schema."""
        edited = self._asked.edited_text(event)
        if edited is None:
            return None
        problem = self._asked.edit_problem(self._choice(event), edited)
        if problem or not self._asked.is_plain:
            return problem
        review = {**self._choice(event), "human_feedback": ""}
        if "edited_output" not in self._asked.with_edit(review, edited):
            return None
        try:
            draft = {**(record_or_none(self._rules.pending) or {}), **self._shown, "output": edited}
            violations = answer.violations_of(self._rules.output_schema, draft)
        except CrewInvalidInput as error:
            return str(error)
        return f"the edited text does not match the output schema: {code(listed(violations))}" if violations else None

    # --- the meaning of an answer ---

    def _choice(self, event: Json) -> Json:
        return self._asked.meaning(event["chosen_options"][0], self._rules)

    def _review(self, event: Json, *, in_time: bool) -> Json:
        feedback = (event.get("params_input") or {}).get(FEEDBACK_FIELD) or ""
        if not in_time:
            feedback = self._asked.text_at_deadline(self._rules) or feedback
        edited = self._asked.edited_text(event) if self._asked.edits(self._rules) and in_time else None
        reviewer = event.get("responded_by_user") if in_time else None
        choice = self._choice(event)
        review = answer.review_of(self._shown, event, choice=choice, feedback=feedback, reviewer=reviewer)
        if in_time and self._rules.fields:
            review["params_input"] = self._filled_in(event)
        if edited is None:
            return review
        review = self._asked.with_edit(review, edited)
        self._task.log.info(self._asked.said_of_edit(review, edited))
        return review

    def _filled_in(self, event: Json) -> Json:
        """Return the fields that the DAG's author added; without an answer, as the form shows them."""
        fields = event.get("params_input") or {}
        return {name: fields.get(name, field.get("value")) for name, field in self._rules.fields.items()}

    def _with_others(self, review: Json) -> Steps[Json]:
        """Return the review once enough people have approved; until then, ask the next person."""
        of_each = ("reviewer", "decided_at", "human_feedback", "params_input")
        approval = {name: review[name] for name in of_each if name in review}
        approvals_before = self._record.approvals
        approvals = (
            approvals_before if len(approvals_before) >= self._rules.approvals else self._record.add_approval(approval)
        )
        missing = self._rules.approvals - len(approvals)
        if missing <= 0:
            return answer.of_all_approvals(review, approvals)
        message = f"Approved by {', '.join(code(each) for each in _ids(approvals))}; {missing} more must approve"
        self._task.log.info("%s. Asking again", message)
        return (yield from self._question.ask(self._shown, self._until, f"{message}."))

    def _sent_back_before(self) -> Json:
        """Return the field for a review if a schema has already sent back a draft of its execution; empty if not.

        The previous round shows that; from Airflow 3.3 on, so does this task's record from before it was cleared.
        """
        previous, earlier = record_or_none(self._rules.previous) or {}, self._record.kept.sent_back
        of_this = (self._shown["execution_id"], *self._rules.continued)
        used = previous.get(SCHEMA_REVISION) and previous.get("execution_id") in of_this
        used = used or (earlier and earlier != self._draft and earlier.execution_id in of_this)
        return {SCHEMA_REVISION: EARLIER} if used else {}

    def _written_down(self, review: Json) -> Json:
        """Add the facts about earlier rounds that the next one needs; store the review with its draft, and log it."""
        rejected = self._rules.rejected_before
        review = {**review, **self._sent_back_before(), **({REJECTED_BEFORE: rejected} if rejected else {})}
        rounds = {"round": self._rules.round_number, "max_rounds": self._rules.max_rounds}
        pending = record_or_none(self._rules.pending)
        draft = answer.whole_draft(pending, self._shown)
        named = (pending or {}).get("object_sha256")
        of_object = {"object_sha256": named} if isinstance(draft, dict) and named == output_sha256(draft) else {}
        decision = {**review, **rounds, "output": draft, **of_object}
        self._context["ti"].xcom_push(key=REVIEW_KEY, value=decision)
        self._task.log.info(answer.in_one_line(decision))
        return review


def _ids(approvals: list[Json]) -> list[str]:
    return [each["reviewer"]["id"] for each in approvals]
